package beneath

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Root is an open directory handle. It is safe for concurrent use, except Close, which must come last.
type Root struct {
	dir      string // as configured; only for Verify and messages
	handle   *os.File
	fd       int
	dev, ino uint64
	walk     bool // openat2 is missing: components are opened one by one
	hook     Hook

	probing sync.Mutex // held while Probe works

	mu    sync.Mutex
	owner Owner     // that Claim found or wrote
	known *Measured // what Probe found
}

// Options change how a Root works. The zero value is right outside tests.
type Options struct {
	Hook Hook
}

// Open opens the directory. The path itself may lead through symbolic links: it is the operator's configuration.
func Open(dir string, o Options) (*Root, error) {
	r := &Root{dir: dir, hook: o.Hook}
	if err := r.before(OpOpen, ""); err != nil {
		return nil, fmt.Errorf("open root %s: %w", dir, r.fail(OpOpen, "", err))
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open root %s: %w", dir, &Error{Code: codeOf(OpOpen, err), Op: OpOpen, Err: err, UID: os.Geteuid()})
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open root %s: %w", dir, &Error{Code: codeOf(OpStat, err), Op: OpStat, Err: err, UID: os.Geteuid()})
	}
	r.handle, r.fd, r.dev, r.ino = os.NewFile(uintptr(fd), dir), fd, uint64(st.Dev), st.Ino
	r.walk = !r.hasOpenat2()
	return r, nil
}

// Close releases the handle. No operation may be running, and none may follow.
func (r *Root) Close() error { return r.handle.Close() }

// Dir returns the path that was opened, for messages.
func (r *Root) Dir() string { return r.dir }

// Identity returns the device and inode of the root directory.
func (r *Root) Identity() (device, inode uint64) { return r.dev, r.ino }

// SameFilesystem reports whether both roots lie on one device. Links and renames between them may still be refused, by
// bind mounts for one: only the operation itself tells.
func (r *Root) SameFilesystem(other *Root) bool { return r.dev == other.dev }

// Verify checks that the configured path still leads to the directory that was opened and, after Claim, that it still
// carries the owner file. It fails with UNAVAILABLE when it does not (daemon protocol 7.4).
func (r *Root) Verify() error {
	if err := r.before(OpVerify, ""); err != nil {
		return &Error{Code: Unavailable, Op: OpVerify, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(r.dir, &st); err != nil {
		return &Error{Code: Unavailable, Op: OpVerify, Err: fmt.Errorf("root %s: %w", r.dir, err)}
	}
	if uint64(st.Dev) != r.dev || st.Ino != r.ino {
		return &Error{Code: Unavailable, Op: OpVerify, Err: fmt.Errorf("root %s is now another directory: device %d inode %d, opened as device %d inode %d",
			r.dir, uint64(st.Dev), st.Ino, r.dev, r.ino)}
	}
	r.mu.Lock()
	owner := r.owner
	r.mu.Unlock()
	if owner == (Owner{}) {
		return nil
	}
	return r.checkOwner(owner)
}

func (r *Root) before(op Op, name string) error {
	if r.hook == nil {
		return nil
	}
	return r.hook(op, name)
}

// check refuses names that could leave the root, before the kernel sees them.
func check(op Op, name string) (string, error) {
	if name == "" || name == "." {
		return ".", nil
	}
	if strings.HasPrefix(name, "/") {
		return "", unsafePath(op, name, "absolute path")
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", unsafePath(op, name, "NUL in path")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return "", unsafePath(op, name, "empty, . or .. component")
		}
	}
	return name, nil
}

const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// hasOpenat2 reports whether the kernel has the call and the process may use it: sandboxes answer ENOSYS or EPERM.
func (r *Root) hasOpenat2() bool {
	if r.before(OpResolve, "") != nil {
		return false
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat2(r.fd, ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve})
	})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// openat opens a checked name without following any link. The last component may be a link only with O_PATH, and is
// then the link itself.
func (r *Root) openat(name string, flags int, mode uint32) (int, error) {
	flags |= unix.O_CLOEXEC
	if flags&unix.O_DIRECTORY == 0 || r.walk {
		flags |= unix.O_NOFOLLOW // with O_DIRECTORY it would turn openat2's ELOOP into ENOTDIR
	}
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_LARGEFILE // unix.Openat adds it, unix.Openat2 does not
	}
	if r.walk {
		return r.openWalk(name, flags, mode)
	}
	for range 32 { // EAGAIN: the tree was renamed while the kernel walked it
		fd, err := retry(func() (int, error) {
			return unix.Openat2(r.fd, name, &unix.OpenHow{Flags: uint64(flags), Mode: uint64(mode), Resolve: resolve})
		})
		if err != unix.EAGAIN {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// openWalk opens one component after the other, each without following a link.
func (r *Root) openWalk(name string, flags int, mode uint32) (int, error) {
	at, own := r.fd, false
	drop := func() {
		if own {
			unix.Close(at)
		}
	}
	rest := name
	for {
		part, more, found := strings.Cut(rest, "/")
		f, m := flags, mode
		if found {
			f, m = unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0
		}
		fd, err := retry(func() (int, error) { return unix.Openat(at, part, f, m) })
		if err == unix.ENOTDIR && isLink(at, part) {
			err = unix.ELOOP // what openat2 answers
		}
		drop()
		if err != nil {
			return -1, err
		}
		if !found {
			return fd, nil
		}
		at, own, rest = fd, true, more
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			drop()
			return -1, errors.Join(err, unix.ENOTDIR)
		}
	}
}

func isLink(at int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// parent opens the directory that holds the name. done must be called when err is nil.
func (r *Root) parent(name string) (fd int, base string, done func(), err error) {
	dir, base := path.Split(name)
	if dir == "" {
		return r.fd, base, func() {}, nil
	}
	fd, err = r.openat(strings.TrimSuffix(dir, "/"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, "", nil, err
	}
	return fd, base, func() { unix.Close(fd) }, nil
}

// named runs call with the handle of the directory that holds the name, after the checks and the hook.
func (r *Root) named(op Op, name string, call func(fd int, base string) error) error {
	checked, err := check(op, name)
	if err != nil {
		return err
	}
	if checked == "." && op != OpStat {
		return unsafePath(op, name, "not possible on the root itself")
	}
	if err := r.before(op, name); err != nil {
		return r.fail(op, name, err)
	}
	fd, base, done, err := r.parent(checked)
	if err != nil {
		return r.resolveFailed(op, name, err)
	}
	defer done()
	return r.fail(op, name, retryErr(func() error { return call(fd, base) }))
}

// resolveFailed is the failure of the walk to a name, where EXDEV and EINVAL are no answers about op.
func (r *Root) resolveFailed(op Op, name string, err error) error {
	e := r.fail(OpOpen, name, err).(*Error)
	e.Op = op
	if err == unix.ENOTDIR && makes[op] {
		e.Code = PathConflict
	}
	return e
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func retryErr(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
