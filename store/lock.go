package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"signalbox/appliance/fault"
)

// fileLock is the advisory lock that keeps two processes from serving one database. It lives beside the database, so
// it never meets SQLite's own locks. The kernel drops it when the process ends, however it ends.
type fileLock struct{ f *os.File }

// lockFile takes the lock or says who holds it. The file stays behind: removing it would let two processes lock two
// files of the same name.
func lockFile(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("database lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		defer func() { _ = f.Close() }()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Unavailable, "the database is in use by %s (lock file %s)", lockOwner(f), path).
				With(detailLock, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	l := &fileLock{f: f}
	if err := errors.Join(f.Truncate(0), writeOwner(f)); err != nil {
		l.release()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return l, nil
}

// detailLock is the detail of the error about a lock that somebody else holds.
const detailLock = "lock_file"

// InUse tells whether err says that another process holds the database.
func InUse(err error) bool { return fault.Details(err)[detailLock] != nil }

func writeOwner(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// lockOwner names the holder as far as the file tells.
func lockOwner(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			return "process " + strconv.Itoa(pid)
		}
	}
	return "another process"
}

// release gives the lock back. Closing alone would not do while a child process that is just being started, and closes
// what is not its own with its exec, still has the file open.
func (l *fileLock) release() {
	_ = unix.Flock(int(l.f.Fd()), unix.LOCK_UN)
	_ = l.f.Close()
}
