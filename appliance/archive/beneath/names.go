package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is what the file system says about one name. Two names with equal Dev and Ino are one file.
type Stat struct {
	Dev, Ino  uint64
	Size      int64 // logical bytes
	Allocated int64 // bytes of blocks in use; on compressing and delayed-allocation file systems a rough figure
	MtimeNS   int64 // Unix time in ns
	CtimeNS   int64
	Nlink     uint32
	UID, GID  uint32
	Mode      fs.FileMode
}

// Unchanged reports whether both describe the same file with the same size and modification time.
func (s Stat) Unchanged(o Stat) bool {
	return s.Dev == o.Dev && s.Ino == o.Ino && s.Size == o.Size && s.MtimeNS == o.MtimeNS
}

// SameFile reports whether both describe one inode.
func (s Stat) SameFile(o Stat) bool { return s.Dev == o.Dev && s.Ino == o.Ino }

// Mtime returns the modification time in UTC.
func (s Stat) Mtime() time.Time { return time.Unix(0, s.MtimeNS).UTC() }

// Executable reports whether the owner may execute it.
func (s Stat) Executable() bool { return s.Mode.IsRegular() && s.Mode&0o100 != 0 }

func statOf(st *unix.Stat_t) Stat {
	s := Stat{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Allocated: st.Blocks * 512, MtimeNS: nanos(st.Mtim),
		CtimeNS: nanos(st.Ctim), Nlink: uint32(st.Nlink), UID: st.Uid, GID: st.Gid, Mode: fs.FileMode(st.Mode & 0o777)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.Mode |= fs.ModeDir
	case unix.S_IFLNK:
		s.Mode |= fs.ModeSymlink
	case unix.S_IFREG:
	default:
		s.Mode |= fs.ModeIrregular
	}
	return s
}

// nanos counts in 64 bits also where the kernel's seconds have 32.
func nanos(t unix.Timespec) int64 { return int64(t.Sec)*1e9 + int64(t.Nsec) }

// Lstat describes a name without following it.
func (r *Root) Lstat(name string) (Stat, error) {
	var s Stat
	err := r.named(OpStat, name, func(fd int, base string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		s = statOf(&st)
		return nil
	})
	return s, err
}

// lstat is Lstat without the hook, for explanations.
func (r *Root) lstat(name string) (Stat, error) {
	name, err := check(OpStat, name)
	if err != nil {
		return Stat{}, err
	}
	fd, base, done, err := r.parent(name)
	if err != nil {
		return Stat{}, err
	}
	defer done()
	var st unix.Stat_t
	if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Stat{}, err
	}
	return statOf(&st), nil
}

// Mkdir makes one directory.
func (r *Root) Mkdir(name string, mode fs.FileMode) error {
	return r.named(OpMkdir, name, func(fd int, base string) error { return unix.Mkdirat(fd, base, uint32(mode.Perm())) })
}

// MkdirAll makes a directory and those above it. It returns the ones it made, outermost first, also beside an error, so
// that a rollback removes those and no other.
func (r *Root) MkdirAll(name string, mode fs.FileMode) (created []string, err error) {
	name, err = check(OpMkdir, name)
	if err != nil || name == "." {
		return nil, err
	}
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		part := name[:i]
		err := r.Mkdir(part, mode)
		if err == nil {
			created = append(created, part)
			continue
		}
		if !errors.Is(err, unix.EEXIST) {
			return created, err
		}
		st, statErr := r.Lstat(part)
		switch {
		case statErr != nil:
			return created, statErr
		case st.Mode&fs.ModeSymlink != 0:
			return created, unsafePath(OpMkdir, part, "a symbolic link where a directory belongs")
		case !st.Mode.IsDir():
			return created, err
		}
	}
	return created, nil
}

// RenameNoReplace moves a name to a name in dst, which may be the same root. It never replaces: an existing name is
// PATH_CONFLICT. Where the file system cannot promise that, a file is linked to the new name and then unlinked from the
// old one; a directory is refused as unsupported, so that the caller publishes file by file. A crash between link and
// unlink leaves both names on one inode. Neither directory is flushed.
func (r *Root) RenameNoReplace(old string, dst *Root, name string) error {
	err := r.pair(OpRename, old, dst, name, renameNoReplace)
	if !IsUnsupported(err) || errors.Is(err, unix.EXDEV) {
		return err
	}
	st, statErr := r.Lstat(old)
	if statErr != nil {
		return statErr
	}
	if st.Mode.IsDir() {
		return err
	}
	if err := r.Link(old, dst, name); err != nil {
		return err
	}
	return r.Unlink(old)
}

func renameNoReplace(fd int, base string, dfd int, dbase string) error {
	return unix.Renameat2(fd, base, dfd, dbase, unix.RENAME_NOREPLACE)
}

// Link gives a file one more name in dst, which may be the same root; the last component is not followed. An existing
// name is PATH_CONFLICT. Compare the inode of the new name with the one that was meant.
func (r *Root) Link(old string, dst *Root, name string) error {
	return r.pair(OpLink, old, dst, name, func(fd int, base string, dfd int, dbase string) error {
		return unix.Linkat(fd, base, dfd, dbase, 0)
	})
}

// pair runs call with the handles of the directories of both names. Failures name the new one, except where the old one
// cannot be reached.
func (r *Root) pair(op Op, old string, dst *Root, name string, call func(fd int, base string, dfd int, dbase string) error) error {
	from, err := check(op, old)
	if err != nil {
		return err
	}
	if from == "." {
		return unsafePath(op, old, "not possible on the root itself")
	}
	var unreachable error
	err = dst.named(op, name, func(dfd int, dbase string) error {
		fd, base, done, err := r.parent(from)
		if err != nil {
			unreachable = r.resolveFailed(op, old, err)
			return err
		}
		defer done()
		return call(fd, base, dfd, dbase)
	})
	if unreachable != nil {
		return unreachable
	}
	if e, ok := err.(*Error); ok {
		e.From = old
	}
	return err
}

// Symlink makes a symbolic link with this text. Nothing in this package follows it.
func (r *Root) Symlink(target, name string) error {
	if target == "" || strings.IndexByte(target, 0) >= 0 {
		return unsafePath(OpSymlink, name, "link target is empty or has a NUL")
	}
	return r.named(OpSymlink, name, func(fd int, base string) error { return unix.Symlinkat(target, fd, base) })
}

// Readlink returns the text of a symbolic link, at most 4096 bytes.
func (r *Root) Readlink(name string) (string, error) {
	text := ""
	err := r.named(OpReadlink, name, func(fd int, base string) error {
		buf := make([]byte, 4097)
		n, err := unix.Readlinkat(fd, base, buf)
		if err != nil {
			return err
		}
		if n == len(buf) {
			return unix.ENAMETOOLONG
		}
		text = string(buf[:n])
		return nil
	})
	return text, err
}

// Unlink removes a name that is not a directory.
func (r *Root) Unlink(name string) error {
	return r.named(OpUnlink, name, func(fd int, base string) error { return unix.Unlinkat(fd, base, 0) })
}

// Rmdir removes an empty directory; one that is not empty is PATH_CONFLICT.
func (r *Root) Rmdir(name string) error {
	return r.named(OpRmdir, name, func(fd int, base string) error { return unix.Unlinkat(fd, base, unix.AT_REMOVEDIR) })
}

// Chmod sets the permission bits of a name that is not a symbolic link.
func (r *Root) Chmod(name string, mode fs.FileMode) error {
	return r.named(OpChmod, name, func(fd int, base string) error {
		err := unix.Fchmodat(fd, base, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
		if err != unix.EOPNOTSUPP && err != unix.ENOSYS {
			return err
		}
		if isLink(fd, base) {
			return unix.ELOOP
		}
		h, err := unix.Openat(fd, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(h)
		return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", h), uint32(mode.Perm()))
	})
}

// Chown sets owner and group of a name, -1 for unchanged, without following it.
func (r *Root) Chown(name string, uid, gid int) error {
	return r.named(OpChown, name, func(fd int, base string) error {
		return unix.Fchownat(fd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// SetMtime sets the modification time of a name, in Unix ns, without following it; the access time stays.
func (r *Root) SetMtime(name string, ns int64) error {
	times, err := mtimeOnly(ns)
	if err != nil {
		return r.fail(OpSetTime, name, err)
	}
	return r.named(OpSetTime, name, func(fd int, base string) error {
		return unix.UtimesNanoAt(fd, base, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func mtimeOnly(ns int64) ([]unix.Timespec, error) {
	m := unix.NsecToTimespec(ns)
	if nanos(m) != ns {
		return nil, unix.EOVERFLOW // seconds of 32 bits
	}
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, m}, nil
}

// SyncDir flushes a directory, so that names made or removed in it survive a power loss. supported is false, without an
// error, where the file system has no such flush (daemon protocol 7.3); every other failure is WRITE_ERROR.
func (r *Root) SyncDir(name string) (supported bool, err error) {
	checked, err := check(OpSyncDir, name)
	if err != nil {
		return false, err
	}
	if err := r.before(OpSyncDir, name); err != nil {
		err = r.fail(OpSyncDir, name, err)
		if IsUnsupported(err) {
			return false, nil
		}
		return false, err
	}
	fd := r.fd
	if checked != "." {
		if fd, err = r.openat(checked, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return false, r.resolveFailed(OpSyncDir, name, err)
		}
		defer unix.Close(fd)
	}
	err = r.fail(OpSyncDir, name, retryErr(func() error { return unix.Fsync(fd) }))
	if IsUnsupported(err) {
		return false, nil
	}
	return err == nil, err
}

// Space returns the size of the file system and the bytes that this process may still write, without quotas.
func (r *Root) Space() (total, free uint64, err error) {
	if err := r.before(OpStatfs, ""); err != nil {
		return 0, 0, r.fail(OpStatfs, "", err)
	}
	var st unix.Statfs_t
	if err := retryErr(func() error { return unix.Fstatfs(r.fd, &st) }); err != nil {
		return 0, 0, r.fail(OpStatfs, "", err)
	}
	size := uint64(st.Frsize)
	if size == 0 {
		size = uint64(st.Bsize)
	}
	return st.Blocks * size, st.Bavail * size, nil
}
