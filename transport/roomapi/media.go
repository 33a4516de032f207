package roomapi

import (
	"context"
	"errors"
	"mime/multipart"
	"net/http"
	"strings"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
	"signalbox/transport/roomhttp"
)

// IsUpload tells whether the request is an upload of files, whose body is read as it arrives and may be as large as
// roomhttp.UploadLimit.
func IsUpload(r *http.Request) bool {
	if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/agents/") {
		return false
	}
	parts := strings.Split(r.URL.Path, "/") // "", agents, id, rooms, room, media
	return len(parts) == 6 && parts[3] == "rooms" && parts[5] == "media"
}

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
	roomhttp.ServeMedia(w, r, f)
	return nil
}

// texts are the parts of an upload that are no files, with their bounds.
var texts = map[string]int64{"caption": timeline.DefaultMaxBody, "thread_id": 256}

// sent is one file of the answer to an upload.
type sent struct {
	EventID  string `json:"event_id"`
	Media    string `json:"mxc"`
	Filename string `json:"filename"`
}

// upload takes files and posts them as one message, all or nothing (H.8, K).
func (s *Server) upload(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	d := timeline.Draft{Actor: a.Actor()}
	var err error
	if d.RoomID, err = roomID(r.PathValue("room_id")); err != nil {
		return closing(w, err)
	}
	up, err := s.svc.Media.Begin(r.Context(), d.Actor, d.RoomID)
	if err != nil {
		return closing(w, err)
	}
	defer up.Close()
	said, err := roomhttp.Upload(w, r, texts, func(p *multipart.Part) error {
		return up.Add(r.Context(), p.FileName(), p.Header.Get("Content-Type"), p)
	})
	if err != nil {
		return err
	}
	d.Body, d.ThreadID = said["caption"], said["thread_id"]
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

// closing ends the connection with the answer: the body is not worth reading.
func closing(w http.ResponseWriter, err error) error {
	w.Header().Set("Connection", "close")
	return err
}
