package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"modernc.org/sqlite"

	"signalbox/appliance/fault"
)

const (
	// backupSlicePages is how much of the database one slice copies: 1 MiB, one or two milliseconds of the writer.
	backupSlicePages = 256
	// keptSnapshots is how many files from before migrations stay beside the database.
	keptSnapshots = 3
)

// onConn runs fn on the connection that a backup reads from, between commits.
type onConn func(ctx context.Context, fn func(*conn) error) error

// Backup copies the database to a new file at path while writes go on. It copies in small slices on the writer's
// connection between commits: no snapshot is held open, so the log stays small, and what is written meanwhile goes to
// the copy too. The copy is complete, synced and mode 0600 when Backup returns nil; after an error there is no file.
// Its epoch is removed: opened as a database it gets a new one. An existing file is not overwritten (Conflict), and
// Invalid is a path that cannot hold a copy; Unavailable names what went wrong with the copy.
func (db *DB) Backup(ctx context.Context, path string) error {
	return backup(ctx, db.path, path, db.copying)
}

// copying runs a piece of a backup. Its failure may be of the copy's disk: it must not pass for damage of the database,
// which ends all writes.
func (db *DB) copying(ctx context.Context, fn func(*conn) error) error {
	var failed error
	err := db.maintain(ctx, "backup", func(c *conn) error {
		failed = fn(c)
		return nil
	})
	return errors.Join(err, mapError(failed))
}

// backup copies the database at source, read through on, to a new file.
func backup(ctx context.Context, source, path string, on onConn) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("backup path: %w", err)
	}
	if err := checkTarget(source, path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // 0600
	if err != nil {
		return copyFailed(path, err)
	}
	tmp := f.Name()
	if err = f.Close(); err == nil {
		err = copyPages(ctx, tmp, on)
	}
	if err == nil {
		err = standAlone(tmp)
	}
	if err == nil {
		err = publish(tmp, path)
	}
	if err != nil {
		removeCopy(tmp)
		return copyFailed(path, err)
	}
	return nil
}

// checkTarget refuses a path that cannot become a copy of the database at source.
func checkTarget(source, path string) error {
	if suffix, ok := strings.CutPrefix(path, source); ok && slices.Contains(companions, suffix) {
		return fault.Field("path", "%s is a name that belongs to the database itself", path)
	}
	if _, err := os.Lstat(path); err == nil {
		return fault.New(fault.Conflict, "backup: %s exists already", path)
	}
	if i, err := os.Stat(filepath.Dir(path)); err != nil || !i.IsDir() {
		return fault.Field("path", "there is no directory %s", filepath.Dir(path))
	}
	return nil
}

// companions are the suffixes of files that SQLite and the lock keep beside a database.
var companions = []string{"", "-wal", "-shm", "-journal", ".lock"}

// copyFailed keeps what callers branch on and words the rest, which is about the copy and not about the database.
func copyFailed(path string, err error) error {
	switch fault.CodeOf(err) {
	case fault.Conflict, fault.Invalid, fault.Canceled:
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	return fault.Wrap(fault.Unavailable, err, "no copy was made at %s: %v", path, err)
}

func copyPages(ctx context.Context, tmp string, on onConn) (err error) {
	var b *sqlite.Backup
	defer func() {
		if b == nil {
			return
		}
		// The copy shares the connection: only its goroutine may end it, whatever became of ctx.
		err = errors.Join(err, on(context.WithoutCancel(ctx), func(*conn) error { return b.Finish() }))
	}()
	err = on(ctx, func(c *conn) error {
		return c.sc.Raw(func(dc any) (err error) {
			b, err = dc.(interface {
				NewBackup(string) (*sqlite.Backup, error)
			}).NewBackup(dsnPlain(tmp))
			return err
		})
	})
	for more := true; more && err == nil; {
		err = on(ctx, func(*conn) (err error) {
			more, err = b.Step(backupSlicePages)
			return err
		})
	}
	return err
}

// standAlone makes a copied file whole by itself: no log beside it, no epoch, on disk.
func standAlone(tmp string) error {
	db, err := sql.Open("sqlite", dsnPlain(tmp))
	if err != nil {
		return err
	}
	_, err1 := db.ExecContext(background, "PRAGMA journal_mode = DELETE")
	_, err2 := db.ExecContext(background, "DELETE FROM meta WHERE key = ?", metaEpoch)
	if err := errors.Join(mapError(err1), mapError(err2), db.Close()); err != nil {
		return err
	}
	return syncFile(tmp)
}

// publish gives a finished copy its name, durably, and never overwrites: a link fails where the name is taken.
func publish(tmp, path string) error {
	err := os.Link(tmp, path)
	switch {
	case err == nil:
		err = os.Remove(tmp)
	case errors.Is(err, fs.ErrExist):
		return fault.New(fault.Conflict, "backup: %s exists already", path)
	default: // a file system without links
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	return syncFile(filepath.Dir(path))
}

func removeCopy(tmp string) {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		_ = os.Remove(tmp + suffix)
	}
}

// syncFile forces a file, or a directory's names, to disk.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// snapshot copies the database before a migration, to <path>.pre-v<version>-<time>.bak beside it, and removes all but
// the newest snapshots. Nobody else uses the database yet, so one VACUUM INTO will do.
func (u *upgrade) snapshot(ctx context.Context, from int) error {
	stamp := u.clock.Now().UTC().Format("20060102T150405.000000Z")
	path := fmt.Sprintf("%s.pre-v%d-%s.bak", u.path, from+1, stamp)
	tmp := path + ".tmp"
	removeCopy(tmp)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = u.conn.sc.ExecContext(ctx, "VACUUM INTO ?", tmp)
	if err == nil {
		err = standAlone(tmp)
	}
	if err == nil {
		err = publish(tmp, path)
	}
	if err != nil {
		removeCopy(tmp)
		return mapError(err)
	}
	u.log.Info().Str("file", path).Msg("snapshot taken before migrating")
	return u.pruneSnapshots()
}

func (u *upgrade) pruneSnapshots() error {
	entries, err := os.ReadDir(filepath.Dir(u.path))
	if err != nil {
		return err
	}
	type kept struct {
		name string
		when string
	}
	var found []kept
	prefix := filepath.Base(u.path) + ".pre-v"
	for _, e := range entries {
		name := e.Name()
		if len(name) <= len(prefix) || name[:len(prefix)] != prefix || filepath.Ext(name) != ".bak" {
			continue
		}
		// The time is the part behind the version: it sorts, the version does not.
		if i := slices.Index([]byte(name[len(prefix):]), '-'); i >= 0 {
			found = append(found, kept{name: name, when: name[len(prefix)+i:]})
		}
	}
	slices.SortFunc(found, func(a, b kept) int {
		if a.when < b.when {
			return 1
		}
		return -1
	})
	for i, k := range found {
		if i >= keptSnapshots {
			if err := os.Remove(filepath.Join(filepath.Dir(u.path), k.name)); err != nil {
				return err
			}
		}
	}
	return nil
}
