// Package daemonstore is the database of an archive daemon: one SQLite file with the tables of daemon protocol 11. It
// stands on package store, which gives the single writer, full synchronous commits and the file's upkeep.
package daemonstore

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/store"
)

//go:embed schema.sql
var schema string

// ApplicationID marks a daemon's database file: "SgBd". The appliance refuses it, and the daemon the appliance's.
const ApplicationID = 0x53674264

// Options say what to open.
type Options struct {
	// Path of the database file; its directory is created.
	Path string
	// ClientID is the daemon's identity. It is stored in a new database and compared with that of an older one. Without
	// it a new database makes its own.
	ClientID uuid.UUID
	// Clock gives transactions their time; nil means the system's.
	Clock clock.Clock
	// Log takes what an operator should know.
	Log zerolog.Logger
	// Hooks are failpoints for tests.
	Hooks store.Hooks
	// OnFatal is that of store.Options.
	OnFatal func(error)
}

// DB is an open daemon database. It implements daemon.Store. All methods are safe for concurrent use.
type DB struct {
	db *store.DB
}

var _ daemon.Store = (*DB)(nil)

// Open opens or creates the database and checks its integrity. A new one gets a new state epoch. Conflict when the file
// is no daemon database or belongs to another client. The caller must Close it.
func Open(ctx context.Context, o Options) (*DB, error) {
	db, err := store.Open(ctx, store.Options{Path: o.Path, Schema: schema, Migrations: noScripts{}, ApplicationID: ApplicationID,
		Clock: o.Clock, Log: o.Log, Hooks: o.Hooks, OnFatal: o.OnFatal})
	if err != nil {
		return nil, err
	}
	d := &DB{db: db}
	if err := d.prepare(ctx, o.ClientID); err != nil {
		_ = db.Close()
		return nil, err
	}
	return d, nil
}

// prepare checks the file and writes the identity of a new one.
func (d *DB) prepare(ctx context.Context, client uuid.UUID) error {
	var found string
	err := d.db.View(ctx, func(tx *store.ReadTx) error {
		return tx.QueryRow("SELECT quick_check FROM pragma_quick_check").Scan(&found)
	})
	if err != nil {
		return fmt.Errorf("check database %s: %w", d.db.Path(), err)
	}
	if found != "ok" {
		return fault.New(fault.Corrupt, "database %s is damaged: %s", d.db.Path(), found)
	}
	return d.Update(ctx, "daemon.identity", func(t daemon.Tx) error {
		x := t.(*tx)
		var stored uuid.UUID
		err := x.tx.QueryRow("SELECT client_id FROM identity").Scan(&stored)
		switch {
		case fault.Is(err, fault.NotFound):
			if client == uuid.Nil {
				client = uuid.New()
			}
			_, err = x.tx.Exec("INSERT INTO identity(one, client_id, state_epoch, created_at) VALUES(1, ?, ?, ?)",
				client, uuid.New(), x.Now())
			return err
		case err != nil:
			return err
		case client != uuid.Nil && client != stored:
			return fault.New(fault.Conflict, "database %s belongs to client %s, not to %s", d.db.Path(), stored, client)
		}
		return nil
	})
}

// Update runs fn in a write transaction; see store.DB.Update.
func (d *DB) Update(ctx context.Context, op string, fn func(daemon.Tx) error) error {
	return d.db.Update(ctx, op, func(t *store.Tx) error { return fn(&tx{reader: reader{q: t}, tx: t}) })
}

// View runs fn on a snapshot; see store.DB.View.
func (d *DB) View(ctx context.Context, fn func(daemon.ReadTx) error) error {
	return d.db.View(ctx, func(t *store.ReadTx) error { return fn(&reader{q: t}) })
}

// Path is the absolute path of the file.
func (d *DB) Path() string { return d.db.Path() }

// Close ends the database; see store.DB.Close.
func (d *DB) Close() error { return d.db.Close() }

// noScripts is the file system without migrations: the schema has only its first version.
type noScripts struct{}

func (noScripts) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// queries is what both kinds of transactions read with.
type queries interface {
	Query(query string, args ...any) (*store.Rows, error)
	QueryRow(query string, args ...any) *store.Row
	Now() time.Time
}

type reader struct{ q queries }

type tx struct {
	reader
	tx *store.Tx
}

// Now is the transaction's time.
func (r *reader) Now() time.Time { return r.q.Now() }

// AfterCommit has fn called once the transaction is durable.
func (t *tx) AfterCommit(fn func()) { t.tx.AfterCommit(fn) }

// Hint has fn called once the transaction is durable, or may be.
func (t *tx) Hint(fn func()) { t.tx.Hint(fn) }

// exec runs a statement whose result does not matter.
func (t *tx) exec(query string, args ...any) error {
	_, err := t.tx.Exec(query, args...)
	return err
}

// found turns NotFound into false.
func found(err error) (bool, error) {
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// nullID is NULL for uuid.Nil.
func nullID(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }

// collect scans every row with scan.
func collect[T any](rows *store.Rows, err error, scan func(*store.Rows) (T, error)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
