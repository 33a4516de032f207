package gateway

import (
	"mime/multipart"
	"net/http"
	"strings"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/transport/roomhttp"
)

// IsUpload tells whether the request is an upload of files, whose body is read as it arrives and may be as large as
// roomhttp.UploadLimit.
func IsUpload(r *http.Request) bool {
	parts := strings.Split(r.URL.Path, "/") // "", gateway, rooms, room, media
	return r.Method == http.MethodPost && len(parts) == 5 && parts[1] == "gateway" && parts[2] == "rooms" && parts[4] == "media"
}

// upload keeps files for a message that names them in uploadIds, all or none.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, p room.Person) error {
	files, err := s.receive(w, r, p)
	if err != nil {
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
		return nil, closing(w, err)
	}
	up, err := s.svc.Media.Begin(r.Context(), p.Actor(), id)
	if err != nil {
		return nil, closing(w, err)
	}
	defer up.Close()
	_, err = roomhttp.Upload(w, r, nil, func(part *multipart.Part) error {
		return up.Add(r.Context(), part.FileName(), part.Header.Get("Content-Type"), part)
	})
	if err != nil {
		return nil, err
	}
	return up.Save(r.Context())
}

// closing ends the connection with the answer: the body is not worth reading.
func closing(w http.ResponseWriter, err error) error {
	w.Header().Set("Connection", "close")
	return err
}

// download sends a file of a room, to be saved.
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
	roomhttp.SaveMedia(w, r, f)
	return nil
}
