package roomapi

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
)

// Bounds of an upload beside those of its files.
const (
	maxCaption  = 256 << 10
	maxThreadID = 256
	maxParts    = 64
	partSlack   = 1 << 20 // of a body, for what is not file
	// uploadPause is how long an upload may stand still, uploadTime how long it may take.
	uploadPause = 60 * time.Second
	uploadTime  = 30 * time.Minute
)

// IsUpload tells whether the request is an upload of files, whose body is read as it arrives and may be as large as
// UploadLimit.
func IsUpload(r *http.Request) bool {
	if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/agents/") {
		return false
	}
	parts := strings.Split(r.URL.Path, "/") // "", agents, id, rooms, room, media
	return len(parts) == 6 && parts[3] == "rooms" && parts[5] == "media"
}

// UploadLimit is the cap of such a body, given the bounds of one upload.
func UploadLimit(maxFile int64, maxFiles int) int64 { return maxFile*int64(maxFiles) + partSlack }

// download sends a file's bytes with headers that keep a browser from running them (H.8).
func (s *Server) download(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	key := r.URL.Query().Get("mxc")
	if key == "" {
		return fault.Field("mxc", "is required: the media key of an attachment")
	}
	id, err := roomID(r.PathValue("room_id"))
	if err != nil {
		return err
	}
	f, err := s.svc.Media.Open(r.Context(), a.Actor(), id, key)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := w.Header()
	h.Set("Content-Type", f.Record.Mimetype)
	h.Set("Content-Disposition", disposition(dispositionKind(f.Record.Mimetype), f.Record.Filename))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "private, max-age=31536000, immutable")
	h.Set("ETag", `"`+hex.EncodeToString(f.Record.Digest[:])+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil
}

// sent is one file of the answer to an upload.
type sent struct {
	EventID  string `json:"event_id"`
	Media    string `json:"mxc"`
	Filename string `json:"filename"`
}

// upload takes files and posts them as one message, all or nothing (H.8, K).
func (s *Server) upload(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	id, err := roomID(r.PathValue("room_id"))
	if err != nil {
		return closing(w, err)
	}
	up, err := s.svc.Media.Begin(r.Context(), a.Actor(), id)
	if err != nil {
		return closing(w, err)
	}
	defer up.Close()
	patient(w, r)
	d := timeline.Draft{Actor: a.Actor(), RoomID: id}
	err = receive(r, &d, func(p *multipart.Part) error {
		return up.Add(r.Context(), p.FileName(), p.Header.Get("Content-Type"), p)
	})
	if err != nil {
		return closing(w, err)
	}
	if d.Attachments, err = up.Save(r.Context()); err != nil {
		return err
	}
	posted, err := s.svc.Timeline.Post(r.Context(), d)
	if err != nil {
		if !fault.Is(err, fault.OutcomeUnknown) {
			err = errors.Join(err, up.Discard(context.WithoutCancel(r.Context())))
		}
		return err
	}
	event := posted.Item.ID.String()
	files := make([]sent, len(d.Attachments))
	for i, f := range d.Attachments {
		files[i] = sent{event, f.Media, f.Filename}
	}
	return answer(w, r, map[string]any{"ok": true, "event_id": event, "mxc": files[0].Media, "attachments": files})
}

// closing ends the connection with the answer: what is left of the body is not worth reading.
func closing(w http.ResponseWriter, err error) error {
	w.Header().Set("Connection", "close")
	return err
}

// receive reads the parts of an upload as they come: files one by one, then or between them caption and thread_id.
func receive(r *http.Request, d *timeline.Draft, file func(*multipart.Part) error) error {
	mr, err := r.MultipartReader()
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "body: must be multipart/form-data with the part files")
	}
	for range maxParts {
		p, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return broken(err)
		}
		switch p.FormName() {
		case "files", "file":
			err = file(p)
		case "caption":
			d.Body, err = text(p, maxCaption)
		case "thread_id":
			d.ThreadID, err = text(p, maxThreadID)
		default: // unknown fields are ignored; the next part skips what is left of this one
		}
		if err != nil {
			return err
		}
	}
	return fault.New(fault.Invalid, "body: at most %d parts", maxParts)
}

// text reads a part that is no file.
func text(p *multipart.Part, limit int64) (string, error) {
	b, err := io.ReadAll(io.LimitReader(p, limit+1))
	if err != nil {
		return "", broken(err)
	}
	if int64(len(b)) > limit {
		return "", fault.Field(p.FormName(), "must be at most %d bytes", limit)
	}
	return string(b), nil
}

func broken(err error) error {
	var known *fault.Error
	if errors.As(err, &known) {
		return err
	}
	return fault.Wrap(fault.Invalid, err, "body: broke off or is no multipart/form-data")
}

// patient moves the read deadline along with the upload: a large file may take its time, but not stand still.
func patient(w http.ResponseWriter, r *http.Request) {
	r.Body = &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w), last: time.Now().Add(uploadTime)}
}

type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	last    time.Time // when it must be over
	moved   time.Time
}

// Read passes bytes through.
func (b *patientBody) Read(p []byte) (int, error) {
	if now := time.Now(); now.Sub(b.moved) > time.Second {
		b.moved = now
		end := now.Add(uploadPause)
		if end.After(b.last) {
			end = b.last
		}
		_ = b.control.SetReadDeadline(end) // not every writer in tests has one
	}
	return b.ReadCloser.Read(p)
}
