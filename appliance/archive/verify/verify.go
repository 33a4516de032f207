// Package verify reads content once and proves it: one sequential read of every file feeds its SHA-256 and the torrent's
// piece hashes together (daemon protocol 3.2 VERIFY, 8.2).
//
// Reading and the hashes run side by side, each in its own goroutine, over a few buffers of fixed size; v1 pieces that
// span files are fed in the order of the file list. Memory does not depend on the size of the content, apart from one
// result a file and one byte a piece.
package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"time"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// File is one open file. *beneath.File is one. Stat is called before the first and after the last read: a difference
// means that the file changed meanwhile.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	Stat() (beneath.Stat, error)
	Close() error
}

// Opener opens the files of the content by their index. It is called from one goroutine a reader. A file that is not
// there is an error for which errors.Is(err, fs.ErrNotExist) or beneath.IsNotFound holds: that is a finding, every other
// error ends the run.
type Opener interface {
	OpenFile(ctx context.Context, index int) (File, error)
}

// Entry is one file of content without a torrent.
type Entry struct {
	Path    string
	Bytes   int64
	Symlink bool // has no bytes to read
}

// Content says what is to be proven. At most one of Torrent and Files is set.
type Content struct {
	Torrent *torrent.Metainfo
	Files   []Entry
	// Selected tells whether a file was asked for; nil: all. Others are not opened, and the pieces they share with files
	// that were asked for cannot be proven.
	Selected func(index int) bool
	// Want gives the SHA-256 that a file must have, if one is known; nil: none.
	Want func(index int) (digest [sha256.Size]byte, known bool)
}

// Options change how the work is done. The zero value reads at full speed with one reader.
type Options struct {
	// BytesPerSecond limits reading; 0: no limit.
	BytesPerSecond int64
	// Clock is the time of the limit; nil: the system's.
	Clock clock.Clock
	// Readers is how many places of the content are read at once, at most 16; 0: one. More than one helps where many
	// disks or a network lie below, and never splits a file, or files that share a piece.
	Readers int
	// BufferBytes is the most that one read takes; 0: 256 KiB. A reader has up to Buffers of them.
	BufferBytes int
	// StopAtFirstBad ends the run at the first bad file instead of looking at all of them. Every file before it has been
	// checked when it is found.
	StopAtFirstBad bool
	// Progress is told how far the work is, after every read and every file. Calls do not overlap; the readers wait
	// for it.
	Progress func(Progress)
}

// Buffers is the largest number of buffers of one reader.
const Buffers = 8

const (
	defaultBuffer = 256 << 10
	maxReaders    = 16
)

// Progress is how much of the content that was asked for has been passed: read, or found missing.
type Progress struct {
	Bytes, TotalBytes int64
	Files, TotalFiles int
}

// State is the finding about one file.
type State uint8

// The findings. Those from Absent on are bad.
const (
	// NotAsked: the file was not selected, is padding or a link, or the run ended before it.
	NotAsked State = iota
	// Complete: all that was asked is proven.
	Complete
	// Unproven: the file is there and right as far as its bytes tell, but it shares a piece with a file that was not
	// asked for, or was left out.
	Unproven
	// Absent: there is no such file.
	Absent
	// SizeDiffers: its size is not that of the torrent or the list.
	SizeDiffers
	// Changed: its size, time or identity changed while it was read.
	Changed
	// DigestDiffers: its SHA-256 is not the one that was wanted.
	DigestDiffers
	// PieceDiffers: a piece with its bytes does not match the torrent.
	PieceDiffers
)

// Bad tells whether the state is a fault of the content.
func (s State) Bad() bool { return s >= Absent }

// FileResult is what was found about one file.
type FileResult struct {
	State State
	// SHA256 is the digest of the whole file; set when Digested.
	SHA256   [sha256.Size]byte
	Digested bool
	// GoodBytes counts the bytes in good pieces (completed_bytes); without a torrent, all bytes of a complete file.
	GoodBytes int64
	// Stat describes the file as it was read, and OpenedAt is when that began, by the clock of the options; both are zero
	// if it was not opened.
	Stat     beneath.Stat
	OpenedAt time.Time
	// BadPiece is the first bad piece with bytes of the file, when State is PieceDiffers.
	BadPiece int
}

// Result is what a run found.
type Result struct {
	Files  []FileResult
	Pieces []torrent.PieceState // by piece; nil without a torrent
	// FirstBad is the index of the file to blame, -1 if nothing is bad. Of several files that share a bad piece it is
	// one whose own digest or size is wrong, if there is one.
	FirstBad int

	FilesChecked  int
	BytesRead     int64
	PiecesChecked int // good and bad ones
	PiecesGood    int
	PiecesSkipped int // pieces that hold bytes of files that were not asked for
}

// Err is nil if nothing is bad, and otherwise an INTEGRITY_FAILURE or STALE_FINGERPRINT that names the first bad file
// and what is wrong with it.
func (r *Result) Err(c Content) error {
	if r.FirstBad < 0 {
		return nil
	}
	i := r.FirstBad
	f, path, size := r.Files[i], c.path(i), c.bytes(i)
	code, fact := "INTEGRITY_FAILURE", "is wrong"
	switch f.State {
	case Absent:
		fact = "is missing"
	case Changed:
		code, fact = "STALE_FINGERPRINT", "changed while it was read"
	case DigestDiffers:
		fact = "does not have the SHA-256 it must have"
	case PieceDiffers:
		return integrity(code, path, "the file %s does not match the torrent: piece %d differs", path, f.BadPiece).With("piece", f.BadPiece)
	case SizeDiffers:
		return integrity(code, path, "the file %s has %d bytes and must have %d", path, f.Stat.Size, size).
			With("expected", size).With("found", f.Stat.Size)
	}
	return integrity(code, path, "the file %s %s", path, fact)
}

func integrity(code, path, format string, args ...any) *fault.Error {
	return fault.New(fault.Conflict, format, args...).With("error_code", code).With("path", path)
}

func (c *Content) count() int {
	if c.Torrent != nil {
		return len(c.Torrent.Files)
	}
	return len(c.Files)
}

func (c *Content) path(i int) string {
	if c.Torrent != nil {
		return c.Torrent.Files[i].Path
	}
	return c.Files[i].Path
}

func (c *Content) bytes(i int) int64 {
	if c.Torrent != nil {
		return c.Torrent.Files[i].Bytes
	}
	return c.Files[i].Bytes
}

// asked tells whether the file is to be opened and read.
func (c *Content) asked(i int) bool {
	if c.Torrent != nil {
		if c.Torrent.Files[i].Kind != torrent.Regular {
			return false
		}
	} else if c.Files[i].Symlink {
		return false
	}
	return c.Selected == nil || c.Selected(i)
}

// readFailed names the file. An error of beneath already does, and has its own code.
func readFailed(path string, err error) error {
	var own *beneath.Error
	if errors.As(err, &own) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.Wrap(fault.Internal, err, "the file %s cannot be read", path).With("error_code", "READ_ERROR").With("path", path)
}

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || beneath.IsNotFound(err) }
