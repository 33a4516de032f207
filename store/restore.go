package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"signalbox/appliance/fault"
)

const (
	// suffixRestoring marks a copy that is being made and checked; it counts for nothing.
	suffixRestoring = ".restoring"
	// suffixRestore and a time mark a checked copy that has to take the database's place. Its appearance is the moment
	// of the restore: before, a crash leaves the present database; after, whoever locks the database next finishes.
	suffixRestore = ".restore-"
	// suffixBefore and the same time mark what was the database until then.
	suffixBefore = ".before-restore-"

	restoreStamp = "20060102T150405.000000Z"
)

// Restored says what Restore did.
type Restored struct {
	Path    string // of the database
	Kept    string // where the former database is now; "" when there was none
	Version int    // of the restored schema
	Bytes   int64
}

// Restore puts a copy of the file at from in the place of the database at to, which nobody may be serving (InUse). The
// file is checked first: a foreign or newer one, one with a log beside it (Conflict) and a damaged one (Corrupt) are
// refused and nothing changes. The former database is kept beside the new one together with its log. The restored
// database has a new epoch. A crash leaves the old database or the new one in place, each whole.
func Restore(ctx context.Context, from, to string, now time.Time) (r Restored, err error) {
	processSettings()
	to, err1 := filepath.Abs(to)
	from, err2 := filepath.Abs(from)
	if err := errors.Join(err1, err2); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if err := checkSource(from, to); err != nil {
		return r, err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return r, fmt.Errorf("database directory: %w", err)
	}
	lock, err := lockFile(to + ".lock")
	if err != nil {
		return r, err
	}
	defer lock.release()
	if err := finishRestore(to); err != nil {
		return r, err
	}
	tmp, stamp := to+suffixRestoring, now.UTC().Format(restoreStamp)
	if r, err = takeCopy(ctx, from, tmp); err != nil {
		removeCopy(tmp)
		return Restored{}, fmt.Errorf("restore %s: %w", from, err)
	}
	r.Path = to
	if _, err := os.Lstat(to); err == nil {
		r.Kept = to + suffixBefore + stamp
	}
	err = os.Rename(tmp, to+suffixRestore+stamp)
	if err != nil {
		removeCopy(tmp)
		return Restored{}, fmt.Errorf("restore %s: %w", from, err)
	}
	if err := errors.Join(syncFile(filepath.Dir(to)), finishRestore(to)); err != nil {
		return r, fmt.Errorf("restore %s: not finished, the next start tries again: %w", from, err)
	}
	return r, nil
}

// checkSource looks at the file without opening it as a database.
func checkSource(from, to string) error {
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "there is no file %s", from)
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.Invalid, "%s is not a regular file", from)
	}
	if present, err := os.Stat(to); err == nil && os.SameFile(info, present) {
		return fault.New(fault.Invalid, "%s is the database itself", from)
	}
	empty, err := checkHeader(from, applicationID)
	if err != nil {
		return err
	}
	if empty {
		return foreign(from, "it is empty")
	}
	for _, suffix := range []string{"-wal", "-journal"} {
		if i, err := os.Stat(from + suffix); err == nil && i.Size() > 0 {
			return fault.New(fault.Conflict, "%s has a log beside it, %s: it is in use or was left by a crash, and alone it is "+
				"not whole; make a backup of it first", from, from+suffix)
		}
	}
	return nil
}

// takeCopy copies the file, checks the copy, and makes it durable.
func takeCopy(ctx context.Context, from, tmp string) (r Restored, err error) {
	removeCopy(tmp)
	if r.Bytes, err = copyFile(ctx, from, tmp); err != nil {
		return r, err
	}
	scripts, err := loadMigrations(nil)
	if err != nil {
		return r, err
	}
	state, err := inspect(ctx, tmp, applicationID, scripts.version())
	if err != nil {
		return r, err
	}
	if state.fresh {
		return r, foreign(from, "it is empty")
	}
	r.Version = state.version
	problems, err := checkFile(ctx, tmp, true)
	if err != nil {
		return r, err
	}
	if len(problems) > 0 {
		return r, fault.New(fault.Corrupt, "the file is damaged: %s", strings.Join(problems[:min(len(problems), 3)], "; "))
	}
	return r, standAlone(tmp)
}

// copyFile copies bytes to a new file of mode 0600; ctx is looked at between pieces.
func copyFile(ctx context.Context, from, to string) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	const piece = 8 << 20
	for {
		if err := ctx.Err(); err != nil {
			return n, mapError(err)
		}
		m, err := io.CopyN(out, in, piece)
		n += m
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// finishRestore completes what Restore began at path, if it did. The caller holds the lock.
func finishRestore(path string) error {
	stamps, err := pendingRestores(path)
	if err != nil {
		return err
	}
	for _, stamp := range stamps {
		for _, step := range restoreSteps(path, stamp) {
			if err := step(); err != nil {
				return fmt.Errorf("finish the restore of %s: %w", path, err)
			}
		}
	}
	return nil
}

// pendingRestores lists the times of restores that a crash interrupted, oldest first.
func pendingRestores(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("look for restores: %w", err)
	}
	var stamps []string
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+suffixRestore)
		if !ok {
			continue
		}
		if _, err := time.Parse(restoreStamp, stamp); err == nil {
			stamps = append(stamps, stamp)
		}
	}
	slices.Sort(stamps)
	return stamps, nil
}

// restoreSteps put a checked copy in place. Each may be repeated, and a crash between any two is made good by running
// them all again. The log must be gone before the new database has the name: SQLite would replay it into the wrong file.
func restoreSteps(path, stamp string) []func() error {
	kept, dir := path+suffixBefore+stamp, filepath.Dir(path)
	return []func() error{
		func() error { return keepFormer(path, kept) },
		func() error { return moveIfThere(path+"-wal", kept+"-wal") },
		func() error { return moveIfThere(path+"-journal", kept+"-journal") },
		func() error { return removeIfThere(path + "-shm") },
		func() error { return syncFile(dir) },
		func() error { return os.Rename(path+suffixRestore+stamp, path) },
		func() error { return syncFile(dir) },
	}
}

// keepFormer gives the database a second name, so that the first is never without a file.
func keepFormer(path, kept string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // a fresh directory, or moved already
	}
	err := os.Link(path, kept)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return os.Rename(path, kept) // a file system without links
}

func moveIfThere(from, to string) error {
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeIfThere(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
