package roomhttp

import (
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/media"
)

// ServeMedia sends a file with headers that keep a browser from running it, whole or in ranges (H.8).
func ServeMedia(w http.ResponseWriter, r *http.Request, f *media.File) {
	serve(w, r, f, dispositionKind(f.Record.Mimetype))
}

// SaveMedia is ServeMedia for browsers: one that follows the address saves the file, whatever it is; a page may still show
// it as an image.
func SaveMedia(w http.ResponseWriter, r *http.Request, f *media.File) { serve(w, r, f, "attachment") }

func serve(w http.ResponseWriter, r *http.Request, f *media.File, kind string) {
	h := w.Header()
	h.Set("Content-Type", f.Record.Mimetype)
	h.Set("Content-Disposition", disposition(kind, f.Record.Filename))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "private, max-age=31536000, immutable") // a key names one content for good
	h.Set("ETag", `"`+hex.EncodeToString(f.Record.Digest[:])+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
}

// Bounds of an upload beside those of its files.
const (
	maxParts = 64
	// uploadPause is how long an upload may stand still, uploadTime how long it may take.
	uploadPause = 60 * time.Second
	uploadTime  = 30 * time.Minute
	partSlack   = 1 << 20 // of a body, for what is not file
)

// UploadLimit is the cap of the body of an upload, given the bounds of its files.
func UploadLimit(maxFile int64, maxFiles int) int64 { return maxFile*int64(maxFiles) + partSlack }

// Upload reads a multipart/form-data body as it arrives: each part named files or file goes to file, and the texts named
// in limits are returned, each at most so many bytes. Other parts are skipped. The errors of file come back as they are.
// After an error the connection ends with the answer: what is left of the body is not worth reading.
func Upload(w http.ResponseWriter, r *http.Request, limits map[string]int64,
	file func(*multipart.Part) error) (map[string]string, error) {
	r.Body = &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w), last: time.Now().Add(uploadTime)}
	texts, err := receive(r, limits, file)
	if err != nil {
		w.Header().Set("Connection", "close")
	}
	return texts, err
}

func receive(r *http.Request, limits map[string]int64, file func(*multipart.Part) error) (map[string]string, error) {
	mr, err := r.MultipartReader()
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "body: must be multipart/form-data with the part files")
	}
	texts := map[string]string{}
	for range maxParts {
		p, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			return texts, nil
		}
		if err != nil {
			return nil, broken(err)
		}
		name := p.FormName()
		if name == "files" || name == "file" {
			err = file(p)
		} else if limit, known := limits[name]; known {
			texts[name], err = text(p, limit)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, fault.New(fault.Invalid, "body: at most %d parts", maxParts)
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
