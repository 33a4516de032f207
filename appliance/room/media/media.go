package media

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Bounds that are used when the options leave them zero.
const (
	DefaultMaxFile  = 20 << 20  // bytes of one file (K)
	DefaultMaxFiles = 16        // files of one upload
	DefaultReserve  = 256 << 20 // bytes left free on the disk
	fileGrace       = time.Hour
	UnusedAge       = 24 * time.Hour // rows that no message names are removed after it
)

// Record is one row: a file in a room.
type Record struct {
	No         int64
	ID         uuid.UUID // the media key
	RoomNo     int64
	Digest     [32]byte // SHA-256
	Size       int64
	Mimetype   string
	Filename   string
	SenderKind room.ActorKind
	SenderNo   int64
	CreatedAt  time.Time
}

// Attachment is the record as it goes into a message (D.6).
func (r Record) Attachment() room.Attachment {
	return room.Attachment{Filename: r.Filename, Mimetype: r.Mimetype, Size: r.Size, Media: r.ID.String(),
		Type: messageType(r.Mimetype)}
}

// ReadTx is what Media needs of a read transaction.
type ReadTx interface {
	room.Reader
	// MediaRoom is the number of a room that is not deleted; NotFound when there is none.
	MediaRoom(id uuid.UUID) (int64, error)
	// MediaMember tells whether the actor is in the room.
	MediaMember(roomNo int64, kind room.ActorKind, no int64) (bool, error)
	// MediaRecord finds a row of the room by its key; NotFound when there is none.
	MediaRecord(roomNo int64, id uuid.UUID) (Record, error)
	// MediaRecords is a page of all rows in the order of their numbers.
	MediaRecords(after int64, limit int) ([]Record, error)
	// MediaNamedSoon tells whether a message made within a few minutes of the row names it. False decides nothing.
	MediaNamedSoon(r Record) (bool, error)
	// MediaNamed looks for a message that names the row among the room's items after a position; next is where to go on,
	// 0 at the end.
	MediaNamed(r Record, after int64, limit int) (found bool, next int64, err error)
	// MediaHasContent tells whether any row has the digest.
	MediaHasContent(digest [32]byte) (bool, error)
	// MediaBytes sums the sizes of all contents, each once.
	MediaBytes() (int64, error)
}

// Tx is what Media needs of a write transaction.
type Tx interface {
	ReadTx
	room.Writer
	MediaInsert(Record) error
	MediaDelete(no int64) error
}

// Options bound what is kept.
type Options struct {
	Dir      string // where the files are; made when missing
	MaxFile  int64  // bytes of one file; 0: DefaultMaxFile
	MaxFiles int    // files of one upload; 0: DefaultMaxFiles
	MaxTotal int64  // bytes of all files; 0: no cap
	Reserve  int64  // bytes that must stay free on the disk; 0: DefaultReserve, negative: not looked at
	Clock    clock.Clock
	Free     func(dir string) (int64, error) // free bytes of the disk; nil asks the system
}

// Media is the store of files. Safe for concurrent use.
type Media struct {
	st room.Store[Tx, ReadTx]
	o  Options

	// placing is held shared from the moment a file has its name until its row is committed, and alone while a file without
	// a row is removed: so no file goes between the two.
	placing sync.RWMutex
	used    atomic.Int64 // bytes in named files, and promised to uploads under way

	sweeping sync.Mutex
	rows     int64 // rows up to here have been looked at by Sweep
	shard    int   // directory that Sweep looks at next
	looked   bool  // Sweep has looked at all rows of this pass
}

// New makes the directory, removes what an interrupted upload left in it, and sums up what is kept.
func New(ctx context.Context, st room.Store[Tx, ReadTx], o Options) (*Media, error) {
	if o.MaxFile == 0 {
		o.MaxFile = DefaultMaxFile
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	if o.Reserve == 0 {
		o.Reserve = DefaultReserve
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Free == nil {
		o.Free = freeBytes
	}
	m := &Media{st: st, o: o}
	if err := os.RemoveAll(m.temp()); err != nil {
		return nil, fmt.Errorf("media: clear the directory of uploads: %w", err)
	}
	if err := os.MkdirAll(m.temp(), 0o700); err != nil {
		return nil, fmt.Errorf("media: make the directory: %w", err)
	}
	return m, m.recount(ctx)
}

// MaxFile is the largest file taken, in bytes.
func (m *Media) MaxFile() int64 { return m.o.MaxFile }

// MaxFiles is how many files one upload may have.
func (m *Media) MaxFiles() int { return m.o.MaxFiles }

// Used is how many bytes the files hold.
func (m *Media) Used() int64 { return m.used.Load() }

// recount sets the sum to what the rows say. No upload may be between its file and its row.
func (m *Media) recount(ctx context.Context) error {
	return m.st.View(ctx, func(tx ReadTx) error {
		n, err := tx.MediaBytes()
		if err == nil {
			m.used.Store(n)
		}
		return err
	})
}

func (m *Media) temp() string { return filepath.Join(m.o.Dir, "tmp") }

// path of the file of a digest: a directory by its first byte, so that none grows too large.
func (m *Media) path(digest [32]byte) string {
	name := fmt.Sprintf("%x", digest)
	return filepath.Join(m.o.Dir, name[:2], name[2:])
}

// memberRoom returns the number of the room when the actor is in it: NotFound for no such room, Forbidden for not a member.
func memberRoom(tx ReadTx, by room.Actor, roomID uuid.UUID) (int64, error) {
	no, err := tx.MediaRoom(roomID)
	if fault.Is(err, fault.NotFound) {
		return 0, fault.New(fault.NotFound, "room %s: no such room", roomID)
	}
	if err != nil {
		return 0, err
	}
	in, err := tx.MediaMember(no, by.Kind, by.No)
	if err == nil && !in {
		err = fault.New(fault.Forbidden, "room %s: you are not a member of it", roomID)
	}
	return no, err
}

// Member is the number of the room when the actor is in it; NotFound when there is no such room, Forbidden for others.
func (m *Media) Member(ctx context.Context, by room.Actor, roomID uuid.UUID) (no int64, err error) {
	err = m.st.View(ctx, func(tx ReadTx) error {
		no, err = memberRoom(tx, by, roomID)
		return err
	})
	return no, err
}

// File is an open file with what is known of it. The caller closes it.
type File struct {
	*os.File
	Record Record
}

// Open opens a file of a room the actor is in (H.8). Forbidden for others; NotFound for an unknown room or key, and for a
// key of another room.
func (m *Media) Open(ctx context.Context, by room.Actor, roomID uuid.UUID, key string) (*File, error) {
	var rec Record
	err := m.st.View(ctx, func(tx ReadTx) error {
		no, err := memberRoom(tx, by, roomID)
		if err != nil {
			return err
		}
		rec, err = findRecord(tx, no, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(m.path(rec.Digest))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Wrap(fault.NotFound, err, "media %s: its file is missing on the server", rec.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("media: open: %w", err)
	}
	return &File{f, rec}, nil
}

func findRecord(tx ReadTx, roomNo int64, key string) (Record, error) {
	missing := fault.New(fault.NotFound, "media: no such file in this room")
	id, err := uuid.Parse(key)
	if err != nil {
		return Record{}, missing
	}
	rec, err := tx.MediaRecord(roomNo, id)
	if fault.Is(err, fault.NotFound) {
		err = missing
	}
	return rec, err
}

// Attachments turns media keys that the actor uploaded to the room before into attachments of a message. A key that is not
// its own is refused. stale refuses the files for a new message, because no message named one of them in time, so that it
// may be removed any moment; a repetition of a message that named them then is still served.
func (m *Media) Attachments(ctx context.Context, by room.Actor, roomID uuid.UUID,
	keys []string) (out []room.Attachment, stale, err error) {
	if len(keys) > m.o.MaxFiles {
		return nil, nil, fault.Field("uploadIds", "at most %d files in one message, got %d", m.o.MaxFiles, len(keys))
	}
	out = make([]room.Attachment, 0, len(keys))
	err = m.st.View(ctx, func(tx ReadTx) error {
		no, err := memberRoom(tx, by, roomID)
		if err != nil {
			return err
		}
		for i, key := range keys {
			rec, err := findRecord(tx, no, key)
			switch {
			case fault.Is(err, fault.NotFound), err == nil && (rec.SenderKind != by.Kind || rec.SenderNo != by.No):
				return fault.Field(fmt.Sprintf("uploadIds[%d]", i), "no upload of yours to this room")
			case err != nil:
				return err
			case stale == nil && tx.Now().Sub(rec.CreatedAt) > UnusedAge-fileGrace:
				stale = fault.Field(fmt.Sprintf("uploadIds[%d]", i), "uploaded too long ago, upload it again")
			}
			out = append(out, rec.Attachment())
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return out, stale, nil
}
