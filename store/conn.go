package store

import (
	"context"
	"database/sql"
	"fmt"

	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

// maxStatements bounds the prepared statements kept by one connection. The texts are constants plus a few composed
// filters, so the bound is a guard against a text built with values in it.
const maxStatements = 512

// background is the context that statements run under. It cannot be cancelled: a cancelled write makes database/sql
// roll the whole transaction back, with the other callers' work in it, and the watcher that cancellation needs costs a
// fifth of the throughput.
var background = context.Background()

// conn is one connection with its prepared statements. It belongs to one goroutine at a time.
type conn struct {
	db    *sql.DB // a pool of exactly this one connection
	sc    *sql.Conn
	stmts map[string]*stmt
}

// stmt is a prepared statement; busy while a Rows reads from it.
type stmt struct {
	s    *sql.Stmt
	busy bool
	temp bool // outside the cache: closed after its one use
}

// openConn opens one connection of the role to the file at path and verifies its settings.
func openConn(ctx context.Context, path string, r role) (*conn, error) {
	db, err := sql.Open("sqlite", dsn(path, r))
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	sc, err := db.Conn(ctx)
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open database %s: %w", path, mapError(err))
	}
	c := &conn{db: db, sc: sc, stmts: make(map[string]*stmt)}
	if err := verifyPragmas(ctx, sc, r); err != nil {
		_ = c.close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return c, nil
}

func (c *conn) close() error {
	for _, s := range c.stmts {
		_ = s.s.Close()
	}
	c.stmts = nil
	_ = c.sc.Close()
	return c.db.Close()
}

// prepare returns the cached statement for the text. A statement whose rows are still being read cannot be started
// again, so a second use gets a statement of its own.
func (c *conn) prepare(text string) (*stmt, error) {
	cached, ok := c.stmts[text]
	if ok && !cached.busy {
		return cached, nil
	}
	s, err := c.sc.PrepareContext(background, text)
	if err != nil {
		return nil, err
	}
	if ok {
		return &stmt{s: s, temp: true}, nil
	}
	if len(c.stmts) >= maxStatements {
		c.evict()
	}
	st := &stmt{s: s}
	c.stmts[text] = st
	return st, nil
}

// evict closes one statement that nobody reads from.
func (c *conn) evict() {
	for text, s := range c.stmts {
		if !s.busy {
			_ = s.s.Close()
			delete(c.stmts, text)
			return
		}
	}
}

func (s *stmt) release() {
	s.busy = false
	if s.temp {
		_ = s.s.Close()
	}
}

// exec runs a prepared statement that returns no rows.
func (c *conn) exec(text string, args ...any) (sql.Result, error) {
	s, err := c.prepare(text)
	if err != nil {
		return nil, err
	}
	r, err := s.s.ExecContext(background, args...)
	if s.temp {
		s.release()
	}
	return r, err
}

// script runs one or more statements unprepared: schema, migrations, pragmas.
func (c *conn) script(text string) error {
	_, err := c.sc.ExecContext(background, text)
	return err
}

// int64 runs a query with one integer result, unprepared.
func (c *conn) int64(text string, args ...any) (int64, error) {
	var n int64
	err := c.sc.QueryRowContext(background, text, args...).Scan(&n)
	return n, err
}
