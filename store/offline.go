package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"signalbox/appliance/fault"
)

// File is a database that no appliance serves, held under its lock for upkeep. Nothing is migrated, and only Vacuum
// writes to it. A File is for one goroutine.
type File struct {
	path    string
	lock    *fileLock
	version int
}

// OpenFile locks the database at path for upkeep. NotFound says that there is none; InUse tells a database that is being
// served from other errors; foreign and newer files are refused (Conflict). The caller must Close it.
func OpenFile(ctx context.Context, path string) (f *File, err error) {
	processSettings()
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("database path: %w", err)
	}
	if err := lookFor(path); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.release()
		}
	}()
	if err := finishRestore(path); err != nil {
		return nil, err
	}
	scripts, err := loadMigrations(nil)
	if err != nil {
		return nil, err
	}
	state, err := inspect(ctx, path, applicationID, scripts.version())
	if err != nil {
		return nil, err
	}
	if state.fresh {
		return nil, fault.New(fault.NotFound, "database %s is empty", path)
	}
	return &File{path: path, lock: lock, version: state.version}, nil
}

// lookFor finds a database, or one that a restore was about to put there.
func lookFor(path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if stamps, e := pendingRestores(path); e == nil && len(stamps) > 0 {
			return nil
		}
		return fault.New(fault.NotFound, "there is no database %s", path)
	}
	if err != nil {
		return fmt.Errorf("database file: %w", err)
	}
	return nil
}

// Close gives the lock back.
func (f *File) Close() { f.lock.release() }

// Path is the absolute path of the database file.
func (f *File) Path() string { return f.path }

// SchemaVersion is the version that the file has; this program may know a newer one.
func (f *File) SchemaVersion() int { return f.version }

// Backup copies the database as DB.Backup does.
func (f *File) Backup(ctx context.Context, path string) error {
	c, err := openConn(ctx, f.path, roleInspect)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }()
	return backup(ctx, f.path, path, func(ctx context.Context, fn func(*conn) error) error {
		if err := ctx.Err(); err != nil {
			return mapError(err)
		}
		return mapError(fn(c))
	})
}

// IntegrityCheck reads the database as DB.IntegrityCheck does.
func (f *File) IntegrityCheck(ctx context.Context, quick bool) ([]string, error) {
	return checkFile(ctx, f.path, quick)
}

// Space reads how large the database is, as DB.Space does.
func (f *File) Space(ctx context.Context) (size, free int64, err error) {
	c, err := openConn(ctx, f.path, roleInspect)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = c.close() }()
	return readSpace(c.read)
}

// read runs a query with one integer result.
func (c *conn) read(query string, into *int64) (err error) {
	*into, err = c.int64(query)
	return err
}

// Vacuum gives free pages back to the file system and empties the log.
func (f *File) Vacuum(ctx context.Context) error {
	c, err := openConn(ctx, f.path, roleWriter)
	if err != nil {
		return err
	}
	for last := int64(-1); err == nil; {
		var free int64
		if free, err = c.int64("PRAGMA freelist_count"); err != nil || free == 0 || free == last {
			break
		}
		last = free
		if err = ctx.Err(); err == nil {
			err = c.script(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages))
		}
	}
	if err = errors.Join(mapError(err), mapError(c.close())); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	return nil
}
