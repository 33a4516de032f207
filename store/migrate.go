package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/store/migrations"
)

// applicationID marks a database file as Signalbox's: "SgBx" in the header, also known to file(1) this way.
const applicationID = 0x53674278

// firstVersion is the user_version of a database whose schema needed no script yet.
const firstVersion = 1

// script is one migration.
type script struct {
	version int // that it leads to
	name    string
	sql     string
}

type scripts []script

// version is the user_version of a current database.
func (s scripts) version() int {
	if len(s) == 0 {
		return firstVersion
	}
	return s[len(s)-1].version
}

// loadMigrations reads the scripts and checks that their numbers run from 2 without a gap.
func loadMigrations(from fs.FS) (scripts, error) {
	if from == nil {
		from = migrations.FS
	}
	names, err := fs.Glob(from, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	slices.Sort(names)
	var out scripts
	for i, name := range names {
		number, _, found := strings.Cut(path.Base(name), "_")
		version, err := strconv.Atoi(number)
		if !found || err != nil || len(number) != 4 {
			return nil, fmt.Errorf("migration %s: the name must be NNNN_what_it_does.sql", name)
		}
		if want := firstVersion + 1 + i; version != want {
			return nil, fmt.Errorf("migration %s: number %d is missing or taken twice", name, want)
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		out = append(out, script{version: version, name: name, sql: string(text)})
	}
	return out, nil
}

// fileState is what inspect found.
type fileState struct {
	fresh   bool
	version int
}

// inspect decides whether the file is ours to open, without changing it.
func inspect(ctx context.Context, file string, id uint32, newest int) (fileState, error) {
	empty, err := checkHeader(file, id)
	if err != nil || empty {
		return fileState{fresh: true}, err
	}
	c, err := openConn(ctx, file, roleInspect)
	if err != nil {
		return fileState{}, err
	}
	defer func() { _ = c.close() }()
	app, err1 := c.int64("PRAGMA application_id")
	version, err2 := c.int64("PRAGMA user_version")
	objects, err3 := c.int64("SELECT count(*) FROM sqlite_schema")
	if err := errors.Join(err1, err2, err3); err != nil {
		return fileState{}, fmt.Errorf("inspect %s: %w", file, mapError(err))
	}
	switch {
	case app == 0 && version == 0 && objects == 0:
		return fileState{fresh: true}, nil
	case app != int64(id):
		return fileState{}, foreign(file, fmt.Sprintf("application id %#x instead of %#x", app, id))
	case version > int64(newest):
		return fileState{}, fault.New(fault.Conflict,
			"database %s has version %d, this program knows versions up to %d: run the newer program, or restore a backup made before the upgrade",
			file, version, newest)
	case version < firstVersion:
		return fileState{}, foreign(file, fmt.Sprintf("version %d", version))
	}
	return fileState{version: int(version)}, nil
}

func foreign(file, what string) error {
	return fault.New(fault.Conflict, "%s is not a Signalbox database (%s); it was left unchanged", file, what)
}

// checkHeader looks at the first bytes, before SQLite does: SQLite takes any short file for an empty database.
func checkHeader(file string, id uint32) (empty bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return false, fmt.Errorf("inspect: %w", err)
	}
	defer func() { _ = f.Close() }()
	var head [100]byte
	n, err := io.ReadFull(f, head[:])
	switch {
	case errors.Is(err, io.EOF):
		return true, nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return false, fmt.Errorf("inspect %s: %w", file, err)
	case n < len(head) || string(head[:16]) != "SQLite format 3\x00":
		return false, foreign(file, "no SQLite header")
	}
	// A header of zero may lag behind the log; a value of somebody else never does.
	if app := binary.BigEndian.Uint32(head[68:]); app != 0 && app != id {
		return false, foreign(file, fmt.Sprintf("application id %#x instead of %#x", app, id))
	}
	return false, nil
}

// upgrade brings an inspected file to the current schema.
type upgrade struct {
	conn    *conn
	path    string
	id      uint32
	schema  string
	scripts scripts
	clock   clock.Clock
	hooks   Hooks
	log     zerolog.Logger
}

func (u *upgrade) run(ctx context.Context, state fileState) error {
	switch {
	case state.fresh:
		if err := u.create(); err != nil {
			return fmt.Errorf("create database %s: %w", u.path, err)
		}
		return nil // its schema is schema.sql's
	case state.version < u.scripts.version():
		if err := u.migrate(ctx, state.version); err != nil {
			return fmt.Errorf("migrate database %s: %w", u.path, err)
		}
	}
	if err := compareSchema(ctx, u.conn, u.schema); err != nil {
		return fmt.Errorf("database %s: %w", u.path, err)
	}
	return nil
}

// create applies the whole schema in one transaction: a crash leaves an empty database.
func (u *upgrade) create() error {
	return u.inTransaction(func() error {
		if err := u.conn.script(u.schema); err != nil {
			return fmt.Errorf("apply schema: %w", mapError(err))
		}
		return u.stamp(u.scripts.version())
	})
}

func (u *upgrade) stamp(version int) error {
	err := u.conn.script(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", u.id, version))
	return mapError(err)
}

// migrate keeps a snapshot and runs the scripts that are missing, each in its own transaction.
func (u *upgrade) migrate(ctx context.Context, from int) error {
	if err := u.snapshot(ctx, from); err != nil {
		return fmt.Errorf("snapshot before migrating: %w", err)
	}
	// A script that rebuilds a table must drop the old one without its references being followed. The pragma does
	// nothing inside a transaction; the check before each COMMIT takes its place.
	if err := u.conn.script("PRAGMA foreign_keys = OFF"); err != nil {
		return mapError(err)
	}
	for _, s := range u.scripts {
		if err := u.apply(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := u.conn.script("PRAGMA foreign_keys = ON"); err != nil {
		return mapError(err)
	}
	return verifyPragmas(ctx, u.conn.sc, roleWriter)
}

// apply runs one script unless the version, read again under the lock, shows that it ran.
func (u *upgrade) apply(s script) error {
	ran := false
	err := u.inTransaction(func() error {
		at, err := u.conn.int64("PRAGMA user_version")
		if err != nil {
			return mapError(err)
		}
		if at >= int64(s.version) {
			return nil
		}
		if at != int64(s.version-1) {
			return fault.New(fault.Conflict, "the database is at version %d, this script needs %d", at, s.version-1)
		}
		if err := u.conn.script(s.sql); err != nil {
			return mapError(err)
		}
		if err := foreignKeyCheck(u.conn); err != nil {
			return err
		}
		ran = true
		if err := u.stamp(s.version); err != nil {
			return err
		}
		if h := u.hooks.BeforeMigrationCommit; h != nil {
			return h(s.version)
		}
		return nil
	})
	if err != nil || !ran {
		return err
	}
	u.log.Info().Str("script", s.name).Int("version", s.version).Msg("database migrated")
	if h := u.hooks.AfterMigrationCommit; h != nil {
		return h(s.version)
	}
	return nil
}

// inTransaction runs fn between BEGIN IMMEDIATE and COMMIT.
func (u *upgrade) inTransaction(fn func() error) error {
	if err := u.conn.script(sqlBegin); err != nil {
		return mapError(err)
	}
	if err := fn(); err != nil {
		if e := u.conn.script(sqlRollback); e != nil {
			return errors.Join(err, mapError(e))
		}
		return err
	}
	return mapError(u.conn.script(sqlCommit))
}

// maxViolations bounds the list of broken references in one error.
const maxViolations = 10

// foreignKeyCheck lists rows whose parent is missing. It must be a query: executed as a statement it reports nothing.
func foreignKeyCheck(c *conn) error {
	rows, err := c.sc.QueryContext(background, `SELECT "table", coalesce(rowid, 0), parent FROM pragma_foreign_key_check LIMIT ?`,
		maxViolations)
	if err != nil {
		return mapError(err)
	}
	defer func() { _ = rows.Close() }()
	var broken []string
	for rows.Next() {
		var table, parent string
		var rowid int64
		if err := rows.Scan(&table, &rowid, &parent); err != nil {
			return mapError(err)
		}
		broken = append(broken, fmt.Sprintf("%s row %d has no %s", table, rowid, parent))
	}
	if err := rows.Err(); err != nil {
		return mapError(err)
	}
	if len(broken) > 0 {
		return fault.New(fault.Invalid, "broken references: %s", strings.Join(broken, "; "))
	}
	return nil
}
