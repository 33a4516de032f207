package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"modernc.org/sqlite"

	"signalbox/appliance/fault"
)

const (
	// backupSlicePages is how much of the database one slice copies: 1 MiB, one or two milliseconds of the writer.
	backupSlicePages = 256
	// keptSnapshots is how many files from before migrations stay beside the database.
	keptSnapshots = 3
)

// Backup copies the database to a new file at path while writes go on. It copies in small slices on the writer's
// connection between commits: no snapshot is held open, so the log stays small, and what is written meanwhile goes to
// the copy too. The copy is complete, synced and mode 0600 when Backup returns nil; after an error there is no file.
// Its epoch is removed: opened as a database it gets a new one. An existing file is not overwritten (Conflict).
func (db *DB) Backup(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fault.New(fault.Conflict, "backup: %s exists already", path)
	}
	tmp := path + ".tmp"
	err := db.copyTo(ctx, tmp)
	if err == nil {
		err = finishCopy(tmp, path)
	}
	if err != nil {
		removeCopy(tmp)
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	return nil
}

func (db *DB) copyTo(ctx context.Context, tmp string) (err error) {
	removeCopy(tmp)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	var b *sqlite.Backup
	defer func() {
		if b == nil {
			return
		}
		// The copy shares the writer's connection: only its goroutine may end it, whatever became of ctx.
		err = errors.Join(err, db.maintain(context.WithoutCancel(ctx), "backup", func(*conn) error { return b.Finish() }))
	}()
	err = db.maintain(ctx, "backup", func(c *conn) error {
		return c.sc.Raw(func(dc any) (err error) {
			b, err = dc.(interface {
				NewBackup(string) (*sqlite.Backup, error)
			}).NewBackup(dsnPlain(tmp))
			return err
		})
	})
	for more := true; more && err == nil; {
		err = db.maintain(ctx, "backup", func(*conn) (err error) {
			more, err = b.Step(backupSlicePages)
			return err
		})
	}
	return err
}

// finishCopy makes a copied file stand alone: no log beside it, no epoch, on disk, under its final name.
func finishCopy(tmp, path string) error {
	db, err := sql.Open("sqlite", dsnPlain(tmp))
	if err != nil {
		return err
	}
	_, err1 := db.ExecContext(background, "PRAGMA journal_mode = DELETE")
	_, err2 := db.ExecContext(background, "DELETE FROM meta WHERE key = ?", metaEpoch)
	if err := errors.Join(mapError(err1), mapError(err2), db.Close()); err != nil {
		return err
	}
	if err := syncFile(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
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
		err = finishCopy(tmp, path)
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
