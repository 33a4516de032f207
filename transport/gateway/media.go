package gateway

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Bounds of an upload beside those of its files.
const (
	maxParts    = 64
	uploadPause = 60 * time.Second // how long it may stand still
	uploadTime  = 30 * time.Minute // how long it may take
)

// IsUpload tells whether the request is an upload of files, whose body is read as it arrives and may be larger than other
// bodies.
func IsUpload(r *http.Request) bool {
	parts := strings.Split(r.URL.Path, "/") // "", gateway, rooms, room, media
	return r.Method == http.MethodPost && len(parts) == 5 && parts[1] == "gateway" && parts[2] == "rooms" && parts[4] == "media"
}

// upload keeps files for a message that names them in uploadIds, all or none.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, p room.Person) error {
	files, err := s.receive(w, r, p)
	if err != nil {
		w.Header().Set("Connection", "close") // what is left of the body is not worth reading
		return err
	}
	out := make([]attachment, len(files))
	for i, f := range files {
		out[i] = attachment{f.Media, f.Filename, f.Mimetype, f.Size, f.Type}
	}
	return answer(w, r, map[string]any{"uploads": out})
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request, p room.Person) ([]room.Attachment, error) {
	id, err := pathID(r, "room")
	if err != nil {
		return nil, err
	}
	up, err := s.svc.Media.Begin(r.Context(), p.Actor(), id)
	if err != nil {
		return nil, err
	}
	defer up.Close()
	r.Body = &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w), last: time.Now().Add(uploadTime)}
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "body: must be multipart/form-data with the part files")
	}
	for range maxParts {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return up.Save(r.Context())
		}
		if err == nil {
			err = add(r.Context(), up.Add, part)
		}
		if err != nil {
			return nil, broken(err)
		}
	}
	return nil, fault.New(fault.Invalid, "body: must have at most %d parts", maxParts)
}

// add takes a file; other parts are ignored.
func add(ctx context.Context, to func(context.Context, string, string, io.Reader) error, part *multipart.Part) error {
	if name := part.FormName(); name != "files" && name != "file" {
		return nil
	}
	return to(ctx, part.FileName(), part.Header.Get("Content-Type"), part)
}

// broken makes an error of the multipart reader one of the caller's.
func broken(err error) error {
	var known *fault.Error
	if errors.As(err, &known) {
		return err
	}
	return fault.Wrap(fault.Invalid, err, "body: broke off or is no multipart/form-data")
}

// patientBody moves the read deadline along with an upload: a large file may take its time, but not stand still.
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

// download sends a file of a room. A browser that follows its address saves it, whatever it is; a page may still show it
// as an image. Nothing in it is run in the name of this server.
func (s *Server) download(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	mediaKey := r.URL.Query().Get("mxc")
	if mediaKey == "" {
		return fault.Field("mxc", "is required: the mediaId of an attachment")
	}
	f, err := s.svc.Media.Open(r.Context(), p.Actor(), id, mediaKey)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := w.Header()
	h.Set("Content-Type", f.Record.Mimetype)
	h.Set("Content-Length", strconv.FormatInt(f.Record.Size, 10))
	h.Set("Content-Disposition", disposition(f.Record.Filename))
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "private, max-age=31536000, immutable") // a key names one content for good
	w.WriteHeader(http.StatusOK)
	_, _ = io.Copy(w, f) // a peer that has gone is noticed by its next request
	return nil
}

// disposition names the file for a browser that saves it.
func disposition(filename string) string {
	if d := mime.FormatMediaType("attachment", map[string]string{"filename": filename}); d != "" {
		return d
	}
	return "attachment"
}
