package store

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"

	"signalbox/appliance/fault"
)

// onRollback has fn called, on the connection's goroutine, whenever SQLite rolls the open transaction back, be it by a
// statement or by itself. It is not called for ROLLBACK TO.
func onRollback(c *conn, fn func()) error {
	err := c.sc.Raw(func(dc any) error {
		h, ok := dc.(sqlite.HookRegisterer)
		if !ok {
			return fault.New(fault.Internal, "the driver's connection %T has no rollback hook", dc)
		}
		h.RegisterRollbackHook(fn)
		return nil
	})
	if err != nil {
		return fmt.Errorf("watch for rollbacks: %w", err)
	}
	return nil
}

// maintain runs fn on the writer's connection, between commits and outside any transaction.
func (db *DB) maintain(ctx context.Context, op string, fn func(*conn) error) error {
	return db.writer.do(ctx, db.writer.bg, op, nil, fn)
}

// Slices runs fn in one write transaction after the other until it reports no more, for work like retention that must
// not delay others: a slice goes to the writer only when no caller waits, or once in 32 commits when some always do,
// and shares its commit only with callers that came meanwhile. Each slice must be small (some hundred rows). It stops
// at the first error; what earlier slices did stays. ctx is looked at between slices.
func (db *DB) Slices(ctx context.Context, op string, fn func(*Tx) (more bool, err error)) error {
	for more := true; more; {
		err := db.writer.do(ctx, db.writer.bg, op, func(tx *Tx) (err error) {
			more, err = fn(tx)
			return err
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// vacuumPages is what one slice of Vacuum gives back: 1 MiB.
const vacuumPages = 256

// Vacuum gives pages freed by deletions back to the file system, in slices like those of Slices.
func (db *DB) Vacuum(ctx context.Context) error {
	last := int64(-1)
	return db.Slices(ctx, "vacuum", func(tx *Tx) (bool, error) {
		if _, err := tx.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages)); err != nil {
			return false, err
		}
		var free int64
		if err := tx.QueryRow("PRAGMA freelist_count").Scan(&free); err != nil {
			return false, err
		}
		stuck := free == last // a file made by others, without the bookkeeping that giving back needs
		last = free
		return free > 0 && !stuck, nil
	})
}

// Space reads how large the database is without its log, and how much of that holds nothing.
func (db *DB) Space(ctx context.Context) (size, free int64, err error) {
	err = db.View(ctx, func(tx *ReadTx) error {
		size, free, err = readSpace(func(query string, into *int64) error { return tx.QueryRow(query).Scan(into) })
		return err
	})
	return size, free, err
}

func readSpace(read func(query string, into *int64) error) (size, free int64, err error) {
	var page, count int64
	err = errors.Join(read("PRAGMA page_size", &page), read("PRAGMA page_count", &count), read("PRAGMA freelist_count", &free))
	if err != nil {
		return 0, 0, fmt.Errorf("size of the database: %w", mapError(err))
	}
	return page * count, page * free, nil
}

// IntegrityCheck reads the database and returns what is wrong with it; an empty list is a sound database. quick leaves
// out the comparison of indexes with their tables. It uses a connection of its own and may take minutes on a large
// file; the log cannot be emptied while it runs. ctx interrupts it.
func (db *DB) IntegrityCheck(ctx context.Context, quick bool) ([]string, error) {
	return checkFile(ctx, db.path, quick)
}

// checkFile reads a database through a connection of its own that cannot write. Damage that keeps the check from going on
// is a finding as well.
func checkFile(ctx context.Context, path string, quick bool) ([]string, error) {
	problems, err := findProblems(ctx, path, quick)
	if isFatal(err) {
		return append(problems, err.Error()), nil
	}
	return problems, err
}

func findProblems(ctx context.Context, path string, quick bool) (problems []string, err error) {
	c, err := openConn(ctx, path, roleReader)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.close() }()
	check := "PRAGMA integrity_check"
	if quick {
		check = "PRAGMA quick_check"
	}
	rows, err := c.sc.QueryContext(ctx, check)
	if err != nil {
		return problems, fmt.Errorf("integrity check: %w", mapError(err))
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return problems, fmt.Errorf("integrity check: %w", mapError(err))
		}
		if line != "ok" {
			problems = append(problems, line)
		}
	}
	if err := rows.Err(); err != nil {
		return problems, fmt.Errorf("integrity check: %w", mapError(err))
	}
	_ = rows.Close()
	if err := foreignKeyCheck(c); err != nil {
		if !fault.Is(err, fault.Invalid) {
			return problems, fmt.Errorf("integrity check: %w", err)
		}
		problems = append(problems, fault.Message(err))
	}
	return problems, nil
}
