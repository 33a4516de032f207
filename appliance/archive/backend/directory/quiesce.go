package directory

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
)

// Quiesce implements backend.Backend: two looks at all files, QuietTime apart, must see the same, and no process may
// have one of them open for writing, if that is checked. Nobody is stopped: there is no one to stop.
func (b *Backend) Quiesce(ctx context.Context, id string) error {
	first, err := b.current(ctx, id, false)
	if err != nil {
		return err
	}
	timer := b.o.Clock.NewTimer(b.o.QuietTime)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	second, err := b.current(ctx, id, false)
	if err != nil {
		return err
	}
	if p, differs := difference(first, second); differs {
		return backend.Fail("UNSAFE_STATE", "the file %s is being changed", shown(p)).With("path", shown(p))
	}
	if !b.o.CheckOpenFiles {
		return nil
	}
	files := map[inode]string{}
	for i := range second.files {
		if f := &second.files[i]; f.there && f.stat.Mode.IsRegular() {
			files[inode{f.stat.Dev, f.stat.Ino}] = f.path
		}
	}
	p, pid, err := openForWriting(ctx, b.o.proc, files)
	if err != nil {
		return err
	}
	if p != "" {
		return backend.Fail("UNSAFE_STATE", "process %d has the file %s open for writing", pid, shown(p)).With("path", shown(p)).With("pid", pid)
	}
	return nil
}

// difference returns the first file that is not the same in both.
func difference(a, b *snapshot) (string, bool) {
	if a.res.root != b.res.root || a.res.dir != b.res.dir {
		return a.res.name, true
	}
	for i := range max(len(a.files), len(b.files)) {
		switch {
		case i >= len(a.files):
			return b.files[i].path, true
		case i >= len(b.files):
			return a.files[i].path, true
		}
		x, y := &a.files[i], &b.files[i]
		if x.path != y.path || x.there != y.there || x.target != y.target || !x.stat.Unchanged(y.stat) {
			return min(x.path, y.path), true
		}
	}
	return "", false
}

// openForWriting looks for a process with one of the files open for writing. Processes that end meanwhile, or that may
// not be inspected, are passed over.
func openForWriting(ctx context.Context, proc string, files map[inode]string) (string, int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return "", 0, backend.Fail("UNSUPPORTED", "open files cannot be checked: there is no process list")
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		dir := filepath.Join(proc, e.Name(), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			info, err := os.Stat(filepath.Join(dir, fd.Name()))
			if err != nil {
				continue
			}
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				continue
			}
			if p := files[inode{uint64(st.Dev), st.Ino}]; p != "" && writable(filepath.Join(proc, e.Name(), "fdinfo", fd.Name())) {
				return p, pid, nil
			}
		}
	}
	return "", 0, nil
}

// writable reads the flags of an open file, which are octal.
func writable(fdinfo string) bool {
	b, err := os.ReadFile(fdinfo)
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b, []byte("flags:"))
	if !ok {
		return false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	flags, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 8, 64)
	return err == nil && flags&syscall.O_ACCMODE != syscall.O_RDONLY
}

// Unquiesce implements backend.Backend: nothing was stopped.
func (b *Backend) Unquiesce(ctx context.Context, id string, _ archivepb.BackendState) error {
	_, err := b.find(ctx, id, false)
	return err
}
