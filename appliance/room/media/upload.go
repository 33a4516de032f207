package media

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Upload is the files of one message on their way in. Use it from one goroutine: Add each file, then Save, and always
// Close. Nothing is kept of it unless Save succeeds.
type Upload struct {
	m      *Media
	by     room.Actor
	roomID uuid.UUID
	files  []received
	saved  []Record
}

// received is a file whose bytes are in a temporary file.
type received struct {
	temp     string
	digest   [32]byte
	size     int64
	mimetype string
	filename string
}

// Begin starts an upload to a room that the actor is in. Errors as those of Open; Unavailable when the disk is too full.
func (m *Media) Begin(ctx context.Context, by room.Actor, roomID uuid.UUID) (*Upload, error) {
	if err := m.checkSpace(); err != nil {
		return nil, err
	}
	err := m.st.View(ctx, func(tx ReadTx) error {
		_, err := memberRoom(tx, by, roomID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Upload{m: m, by: by, roomID: roomID}, nil
}

// spaceEvery is how many bytes of a file pass between two looks at the disk.
const spaceEvery = 4 << 20

func (m *Media) checkSpace() error {
	if m.o.MaxTotal > 0 && m.used.Load() >= m.o.MaxTotal {
		return m.fullError()
	}
	if m.o.Reserve < 0 {
		return nil
	}
	free, err := m.o.Free(m.o.Dir)
	if err != nil {
		return fmt.Errorf("media: free space of the disk: %w", err)
	}
	if free < m.o.Reserve {
		return fault.New(fault.Unavailable, "no file is taken: the server's disk is nearly full")
	}
	return nil
}

func (m *Media) fullError() error {
	return fault.New(fault.Unavailable, "no file is taken: all files together would pass the server's cap of %d bytes", m.o.MaxTotal)
}

// Add streams one file to disk. The name is made safe, the type is the declared one unless the bytes say otherwise. An
// empty file, one above the cap, and one too many are Invalid, and then the whole upload is off.
func (u *Upload) Add(ctx context.Context, filename, declared string, r io.Reader) error {
	if len(u.files) == u.m.o.MaxFiles {
		return fault.Field("files", "at most %d files in one upload", u.m.o.MaxFiles)
	}
	f, err := os.CreateTemp(u.m.temp(), "upload-*")
	if err != nil {
		return diskError("make a file", err)
	}
	u.files = append(u.files, received{temp: f.Name(), filename: CleanFilename(filename)})
	rec := &u.files[len(u.files)-1]
	err = u.receive(ctx, rec, declared, f, r)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = diskError("close a file", cerr)
	}
	return err
}

func (u *Upload) receive(ctx context.Context, rec *received, declared string, f *os.File, r io.Reader) error {
	limit := u.m.o.MaxFile
	sum := sha256.New()
	head := &headWriter{}
	in := &source{ctx: ctx, r: io.LimitReader(r, limit+1), every: u.m.checkSpace}
	n, err := io.Copy(io.MultiWriter(f, sum, head), in)
	switch {
	case in.err != nil:
		return in.err
	case err != nil:
		return diskError("write a file", err)
	case n == 0:
		return fault.Field("files", "%s is empty", quoteName(rec.filename))
	case n > limit:
		return fault.Field("files", "%s is larger than %d bytes", quoteName(rec.filename), limit)
	}
	if err := f.Sync(); err != nil {
		return diskError("force a file to disk", err)
	}
	rec.size, rec.mimetype = n, MediaType(declared, head.b)
	sum.Sum(rec.digest[:0])
	return nil
}

// source reads what is uploaded, keeps its error apart from those of the disk, and looks around every so often.
type source struct {
	ctx   context.Context
	r     io.Reader
	every func() error
	n     int
	err   error
}

// Read reads the next bytes.
func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		s.err = fault.Wrap(fault.Canceled, context.Cause(s.ctx), "the upload was given up")
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if s.n += n; s.n >= spaceEvery {
		s.n = 0
		if s.err = s.every(); s.err != nil {
			return 0, s.err
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		var known *fault.Error
		if errors.As(err, &known) {
			s.err = err
		} else {
			s.err = fault.Wrap(fault.Invalid, err, "files: the upload broke off")
		}
	}
	return n, err
}

// headWriter keeps what the type is told by.
type headWriter struct{ b []byte }

// Write never fails.
func (h *headWriter) Write(p []byte) (int, error) {
	if room := sniffLen - len(h.b); room > 0 {
		h.b = append(h.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// Count is how many files have been added.
func (u *Upload) Count() int { return len(u.files) }

// Save gives the files their names and commits their rows; it returns them in the order they were added, ready for a
// message. They wait UnusedAge for one to name them.
func (u *Upload) Save(ctx context.Context) ([]room.Attachment, error) {
	if len(u.files) == 0 {
		return nil, fault.Field("files", "at least one file is needed")
	}
	m := u.m
	m.placing.RLock()
	defer m.placing.RUnlock()
	if err := m.place(u.files); err != nil {
		return nil, err
	}
	saved := make([]Record, len(u.files))
	for i, f := range u.files {
		id, err := uuid.NewRandom()
		if err != nil {
			return nil, err
		}
		saved[i] = Record{ID: id, Digest: f.digest, Size: f.size, Mimetype: f.mimetype, Filename: f.filename,
			SenderKind: u.by.Kind, SenderNo: u.by.No}
	}
	err := m.st.Update(ctx, "media_save", func(tx Tx) error {
		no, err := memberRoom(tx, u.by, u.roomID)
		if err != nil {
			return err
		}
		for i := range saved {
			saved[i].RoomNo, saved[i].CreatedAt = no, tx.Now()
			if err := tx.MediaInsert(saved[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	u.saved = saved
	out := make([]room.Attachment, len(saved))
	for i, r := range saved {
		out[i] = r.Attachment()
	}
	return out, nil
}

// Discard takes back what Save kept, when no message came of it after all.
func (u *Upload) Discard(ctx context.Context) error {
	saved := u.saved
	u.saved = nil
	if len(saved) == 0 {
		return nil
	}
	return u.m.st.Update(ctx, "media_discard", func(tx Tx) error {
		for _, s := range saved {
			rec, err := tx.MediaRecord(s.RoomNo, s.ID)
			if fault.Is(err, fault.NotFound) {
				continue
			}
			if err == nil {
				err = tx.MediaDelete(rec.No)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Close removes what is left of the upload on the disk. What Save kept stays.
func (u *Upload) Close() {
	for _, f := range u.files {
		_ = os.Remove(f.temp) // gone when it has its name; otherwise the next start removes it
	}
	u.files = nil
}

// place gives the files their names, durably. A content that is there already is kept as it is.
func (m *Media) place(files []received) error {
	touched := map[string]bool{}
	for _, f := range files {
		path := m.path(f.digest)
		dir := filepath.Dir(path)
		if st, err := os.Stat(path); err == nil && st.Size() == f.size {
			now := m.o.Clock.Now()
			_ = os.Chtimes(path, now, now)
			continue
		}
		if total := m.used.Add(f.size); m.o.MaxTotal > 0 && total > m.o.MaxTotal {
			m.used.Add(-f.size)
			return m.fullError()
		}
		if err := m.name(f.temp, path, dir); err != nil {
			m.used.Add(-f.size)
			return err
		}
		touched[dir] = true
	}
	for dir := range touched {
		if err := syncDir(dir); err != nil {
			return diskError("force a directory to disk", err)
		}
	}
	return nil
}

func (m *Media) name(temp, path, dir string) error {
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		if err := syncDir(m.o.Dir); err != nil {
			return diskError("force the directory to disk", err)
		}
	case !errors.Is(err, os.ErrExist):
		return diskError("make a directory", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return diskError("name a file", err)
	}
	now := m.o.Clock.Now()
	_ = os.Chtimes(path, now, now) // its age is told by the appliance's clock; a failure leaves the system's
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// diskError keeps a full disk apart from a broken one.
func diskError(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(fault.Unavailable, err, "no file is taken: the server's disk is full")
	}
	return fmt.Errorf("media: %s: %w", what, err)
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // the types differ by platform
}

func quoteName(s string) string { return fmt.Sprintf("%q", s) }
