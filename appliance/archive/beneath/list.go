package beneath

import (
	"bytes"
	"context"
	"encoding/binary"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Entry is one name in a directory. Type holds only type bits: 0 for a regular file, fs.ModeDir, fs.ModeSymlink, or
// fs.ModeIrregular for everything else.
type Entry struct {
	Name string
	Type fs.FileMode
}

const dirBuffer = 32 << 10 // bytes the kernel fills with entries at a time

// ReadDir calls each for every name of a directory except "." and "..", in the file system's own order. Memory does not
// grow with the number of names. An error of each ends it and is returned as it is. The directory may change meanwhile;
// each may itself change it, and sees every name that stays there at least once.
func (r *Root) ReadDir(name string, each func(Entry) error) error {
	checked, err := check(OpReadDir, name)
	if err != nil {
		return err
	}
	if err := r.before(OpReadDir, name); err != nil {
		return r.fail(OpReadDir, name, err)
	}
	fd, err := r.openat(checked, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return r.resolveFailed(OpReadDir, name, err)
	}
	defer unix.Close(fd)
	buf := make([]byte, dirBuffer)
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return r.fail(OpReadDir, name, err)
		}
		if n == 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			entry, size := parseEntry(rest)
			if size == 0 {
				return r.fail(OpReadDir, name, unix.EIO)
			}
			rest = rest[size:]
			if entry.Name == "." || entry.Name == ".." {
				continue
			}
			if entry.Type == typeUnknown {
				var st unix.Stat_t
				err := unix.Fstatat(fd, entry.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
				if err == unix.ENOENT {
					continue
				}
				if err != nil {
					return r.fail(OpReadDir, name, err)
				}
				entry.Type = statOf(&st).Mode.Type()
			}
			if err := each(entry); err != nil {
				return err
			}
		}
	}
}

const typeUnknown = fs.ModeType

// parseEntry reads the first linux_dirent64 of b and returns its length, 0 when b does not hold one.
func parseEntry(b []byte) (Entry, int) {
	var d unix.Dirent
	const (
		lenAt  = unsafe.Offsetof(d.Reclen)
		typeAt = unsafe.Offsetof(d.Type)
		nameAt = unsafe.Offsetof(d.Name)
	)
	if len(b) < int(nameAt) {
		return Entry{}, 0
	}
	size := int(binary.NativeEndian.Uint16(b[lenAt:]))
	if size <= int(nameAt) || size > len(b) {
		return Entry{}, 0
	}
	name := b[nameAt:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	e := Entry{Name: string(name)}
	switch b[typeAt] {
	case unix.DT_REG:
	case unix.DT_DIR:
		e.Type = fs.ModeDir
	case unix.DT_LNK:
		e.Type = fs.ModeSymlink
	case unix.DT_UNKNOWN:
		e.Type = typeUnknown
	default:
		e.Type = fs.ModeIrregular
	}
	return e, size
}

const maxDepth = 256 // directories below the one that RemoveAll was given

// RemoveAll removes a name and, if it is a directory, everything below it, without following links. A name that does not
// exist is no error. It must only be given what this product made itself. It stops between two names when ctx ends; what
// is gone stays gone.
func (r *Root) RemoveAll(ctx context.Context, name string) error {
	st, err := r.Lstat(name)
	if err != nil {
		if IsNotFound(err) {
			return nil
		}
		return err
	}
	if st.Mode.IsDir() {
		return r.removeDir(ctx, name, maxDepth)
	}
	return ignoreNotFound(r.Unlink(name))
}

func (r *Root) removeDir(ctx context.Context, name string, depth int) error {
	if depth == 0 {
		return &Error{Code: FilesystemLimit, Op: OpRmdir, Path: name, Err: unix.ENAMETOOLONG}
	}
	err := r.ReadDir(name, func(e Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.Type.IsDir() {
			return r.removeDir(ctx, name+"/"+e.Name, depth-1)
		}
		return ignoreNotFound(r.Unlink(name + "/" + e.Name))
	})
	if err != nil {
		return ignoreNotFound(err)
	}
	return ignoreNotFound(r.Rmdir(name))
}

func ignoreNotFound(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}
