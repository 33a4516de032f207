package beneath

import (
	"io"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is an open regular file. ReadAt and WriteAt may run at the same time from several goroutines; Extents may not run
// beside another Extents of the same File.
type File struct {
	root *Root
	name string
	f    *os.File
	fd   int
}

// Open opens a regular file for reading. Links are refused; so is everything else that is not a regular file, with
// UNSUPPORTED_FORMAT.
func (r *Root) Open(name string) (*File, error) { return r.open(OpOpen, name, unix.O_RDONLY, 0) }

// OpenWrite opens an existing regular file for reading and writing.
func (r *Root) OpenWrite(name string) (*File, error) { return r.open(OpOpen, name, unix.O_RDWR, 0) }

// Create makes a new file, open for reading and writing. An existing name is PATH_CONFLICT.
func (r *Root) Create(name string, mode fs.FileMode) (*File, error) {
	return r.open(OpCreate, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, uint32(mode.Perm()))
}

func (r *Root) open(op Op, name string, flags int, mode uint32) (*File, error) {
	checked, err := check(op, name)
	if err != nil {
		return nil, err
	}
	if checked == "." {
		return nil, &Error{Code: UnsupportedFormat, Op: op, Path: name, Err: unix.EISDIR}
	}
	if err := r.before(op, name); err != nil {
		return nil, r.fail(op, name, err)
	}
	fd, err := r.openat(checked, flags|unix.O_NONBLOCK, mode) // not blocking: a pipe must not hold us up
	if err != nil {
		switch err {
		case unix.EISDIR, unix.ENXIO, unix.ENODEV:
			return nil, &Error{Code: UnsupportedFormat, Op: op, Path: name, Err: err}
		}
		return nil, r.fail(op, name, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, &Error{Code: UnsupportedFormat, Op: op, Path: name, Err: notRegular{}}
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, r.fail(OpStat, name, err)
	}
	return &File{root: r, name: name, f: os.NewFile(uintptr(fd), name), fd: fd}, nil
}

type notRegular struct{}

func (notRegular) Error() string { return "not a regular file" }

// Name returns the path the file was opened by.
func (f *File) Name() string { return f.name }

// Close closes the file. A failure may be a late write error: check it after writing.
func (f *File) Close() error {
	hooked := f.root.before(OpClose, f.name)
	err := f.f.Close()
	if hooked != nil {
		err = hooked
	}
	return f.wrap(OpClose, err)
}

func (f *File) wrap(op Op, err error) error {
	if pe, ok := err.(*os.PathError); ok {
		err = pe.Err
	}
	return f.root.fail(op, f.name, err)
}

// ReadAt reads like io.ReaderAt; the end of the file is a bare io.EOF.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if err := f.root.before(OpRead, f.name); err != nil {
		return 0, f.wrap(OpRead, err)
	}
	n, err := f.f.ReadAt(p, off)
	if err == io.EOF {
		return n, io.EOF
	}
	return n, f.wrap(OpRead, err)
}

// WriteAt writes all of p or fails.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if err := f.root.before(OpWrite, f.name); err != nil {
		return 0, f.wrap(OpWrite, err)
	}
	n, err := f.f.WriteAt(p, off)
	return n, f.wrap(OpWrite, err)
}

// Truncate sets the length; what is added is a hole.
func (f *File) Truncate(size int64) error {
	if err := f.root.before(OpTruncate, f.name); err != nil {
		return f.wrap(OpTruncate, err)
	}
	return f.wrap(OpTruncate, f.f.Truncate(size))
}

// Sync flushes the file to the medium. After a failure the content must be taken as lost: syncing again proves nothing
// (daemon protocol 2.12, WRITE_ERROR).
func (f *File) Sync() error {
	if err := f.root.before(OpSync, f.name); err != nil {
		return f.wrap(OpSync, err)
	}
	return f.wrap(OpSync, f.f.Sync())
}

// Stat describes the open file.
func (f *File) Stat() (Stat, error) {
	if err := f.root.before(OpStat, f.name); err != nil {
		return Stat{}, f.wrap(OpStat, err)
	}
	var st unix.Stat_t
	if err := retryErr(func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return Stat{}, f.wrap(OpStat, err)
	}
	return statOf(&st), nil
}

// Chmod sets the permission bits.
func (f *File) Chmod(mode fs.FileMode) error {
	if err := f.root.before(OpChmod, f.name); err != nil {
		return f.wrap(OpChmod, err)
	}
	return f.wrap(OpChmod, unix.Fchmod(f.fd, uint32(mode.Perm())))
}

// SetMtime sets the modification time, in Unix ns; the access time stays.
func (f *File) SetMtime(ns int64) error {
	if err := f.root.before(OpSetTime, f.name); err != nil {
		return f.wrap(OpSetTime, err)
	}
	times, err := mtimeOnly(ns)
	if err != nil {
		return f.wrap(OpSetTime, err)
	}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(f.fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
	if errno != 0 {
		return f.wrap(OpSetTime, errno)
	}
	return nil
}

// Allocate reserves blocks for the first size bytes and sets the length to at least that; UNSUPPORTED where the file
// system cannot.
func (f *File) Allocate(size int64) error {
	if err := f.root.before(OpAllocate, f.name); err != nil {
		return f.wrap(OpAllocate, err)
	}
	if size == 0 {
		return nil
	}
	return f.wrap(OpAllocate, retryErr(func() error { return unix.Fallocate(f.fd, 0, 0, size) }))
}

// Extents calls each for the runs of data in the file, in order and without overlap, as the file system reports them
// (daemon protocol 7.5). What lies between is a hole according to the file system, which may be wrong shortly after a
// write. Where there is no such report the whole file is one run. An error of each ends it and is returned as it is.
func (f *File) Extents(each func(off, length int64) error) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for off := int64(0); off < st.Size; {
		start, end, err := f.NextData(off, st.Size)
		if err != nil {
			return err
		}
		if start >= end {
			return nil
		}
		if err := each(start, end-start); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// NextData returns the first run of data at or after off and before size; start equals end when there is none.
func (f *File) NextData(off, size int64) (start, end int64, err error) {
	if err = f.root.before(OpSeek, f.name); err == nil {
		start, err = unix.Seek(f.fd, off, unix.SEEK_DATA)
	}
	switch {
	case err == unix.ENXIO:
		return size, size, nil
	case err != nil:
		if err = f.wrap(OpSeek, err); IsUnsupported(err) {
			return off, size, nil
		}
		return 0, 0, err
	case start >= size:
		return size, size, nil
	}
	end, err = unix.Seek(f.fd, start, unix.SEEK_HOLE)
	if err == unix.ENXIO {
		return size, size, nil // cut off meanwhile
	}
	if err != nil {
		return 0, 0, f.wrap(OpSeek, err)
	}
	return start, min(end, size), nil
}

// CopyRange lets the kernel copy n bytes to the same offset of dst and returns how many it copied, which may be fewer;
// 0 without an error means it will not. UNSUPPORTED where it cannot. Never give it a hole: it may write real zeros.
func (f *File) CopyRange(dst *File, off, n int64) (int64, error) {
	if err := dst.root.before(OpCopyRange, dst.name); err != nil {
		return 0, dst.wrap(OpCopyRange, err)
	}
	const most = 1 << 30
	from, to := off, off
	done, err := retry(func() (int, error) { return unix.CopyFileRange(f.fd, &from, dst.fd, &to, int(min(n, most)), 0) })
	return int64(max(done, 0)), dst.wrap(OpCopyRange, err)
}

// Reflink makes dst, which must be empty, share the blocks of f. UNSUPPORTED where the file system has no clones or the
// files lie on two of them.
func (f *File) Reflink(dst *File) error {
	if err := dst.root.before(OpReflink, dst.name); err != nil {
		return dst.wrap(OpReflink, err)
	}
	return dst.wrap(OpReflink, retryErr(func() error { return unix.IoctlFileClone(dst.fd, f.fd) }))
}
