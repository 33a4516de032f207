package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// Tx is one caller's write transaction. It is valid only inside the function that Update called and only on its
// goroutine. It reads what it and the callers before it wrote.
type Tx struct {
	reader
	after []hook
	atEnd []func() error

	collects *collects // nil: nothing was collected for notifications
}

// hook is what follows a transaction.
type hook struct {
	fn   func()
	hint bool // also after a commit of unknown outcome
}

// ReadTx is one snapshot of the database. It is valid only inside the function that View called and only on its
// goroutine.
type ReadTx struct {
	reader
}

// reader is what Tx and ReadTx share: a query written as a method of *reader serves both.
type reader struct {
	c     *conn
	ctx   context.Context // nil in a Tx: a write is not cancelled once it runs
	now   time.Time
	open  []*Rows
	rows  int   // changed by this transaction
	bytes int64 // bound by this transaction
	ended bool
	// doomed, when set, tells why no further statement may run: the transaction around it is gone.
	doomed error
	// lost reports whether SQLite rolled the transaction back by itself; nil in a ReadTx.
	lost func() bool
}

// Result says what a statement did.
type Result struct {
	rows int64
	id   int64
}

// RowsAffected is the number of rows that the statement inserted, updated or deleted.
func (r Result) RowsAffected() int64 { return r.rows }

// LastInsertID is the row id of the last insert on this connection; meaningful right after an INSERT.
func (r Result) LastInsertID() int64 { return r.id }

// Now is the transaction's one timestamp: UTC, whole microseconds. It is never before that of an earlier transaction, except
// when the system's clock was set back by more than two seconds: then it follows the clock, and rows that were written
// before lie in the future. Order by numbers, not by it.
func (r *reader) Now() time.Time { return r.now }

// Exec runs a statement, prepared once per connection. Arguments may be what database/sql takes, and also
// uuid.UUID (bound as its 16 bytes), uuid.NullUUID, and time.Time (bound as microseconds since 1970; the zero time is
// NULL). Errors are *fault.Error: Conflict for a taken unique value, Invalid for a broken constraint.
func (tx *Tx) Exec(query string, args ...any) (Result, error) {
	if err := tx.usable(); err != nil {
		return Result{}, err
	}
	res, err := tx.c.exec(query, tx.bind(args)...)
	if err != nil {
		return Result{}, tx.failed(err)
	}
	// The driver read both numbers when the statement ended: these calls cannot fail.
	n, _ := res.RowsAffected()
	id, _ := res.LastInsertId()
	tx.rows++
	return Result{rows: n, id: id}, nil
}

// AfterCommit has fn called once the transaction is durable, before Update returns, in commit order and in the order of the
// calls. It runs on the writer's goroutine: it must not block, and must not call Update. It is not called when the
// transaction fails, nor when the outcome of its COMMIT is unknown: it is for what claims that the change happened, such as
// counts, notices and memory of what is stored. A panic in it is logged and goes no further.
func (tx *Tx) AfterCommit(fn func()) { tx.after = append(tx.after, hook{fn: fn}) }

// Hint is AfterCommit for what only says "look again": it is called, too, when nobody knows whether the COMMIT happened, for
// then the change may be there, and nobody else would ever be told of it. It is for waking readers and workers, who read the
// database, and for dropping what is cached. fn must be right when nothing has changed; what it wakes must not have the same
// write tried again at once.
func (tx *Tx) Hint(fn func()) { tx.after = append(tx.after, hook{fn: fn, hint: true}) }

// AtEnd has fn called when the transaction's function has returned without an error, inside the transaction: its error is
// that of the transaction. fn must not call AtEnd.
func (tx *Tx) AtEnd(fn func() error) { tx.atEnd = append(tx.atEnd, fn) }

// Query starts a query, prepared once per connection. The rows must be closed before the transaction's function
// returns. Arguments as in Exec. A statement with RETURNING may be run here by a Tx.
func (r *reader) Query(query string, args ...any) (*Rows, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	s, err := r.c.prepare(query)
	if err != nil {
		return nil, r.failed(err)
	}
	rows, err := s.s.QueryContext(background, r.bind(args)...)
	if err != nil {
		if s.temp {
			s.release()
		}
		return nil, r.failed(err)
	}
	s.busy = true
	out := &Rows{rows: rows, r: r, s: s}
	r.open = append(r.open, out)
	return out, nil
}

// QueryRow runs a query that gives at most one row. Its error, NotFound when there is no row, comes from Scan, which
// must be called.
func (r *reader) QueryRow(query string, args ...any) *Row {
	rows, err := r.Query(query, args...)
	return &Row{rows: rows, err: err}
}

// usable refuses statements after the end and inside a transaction that no longer exists.
func (r *reader) usable() error {
	switch {
	case r.ended:
		return fault.New(fault.Internal, "transaction used after its end")
	case r.doomed != nil:
		return r.doomed
	case r.ctx != nil && r.ctx.Err() != nil:
		return mapError(context.Cause(r.ctx))
	}
	return nil
}

// failed maps a statement's error and notices a transaction that SQLite rolled back: any later statement would commit
// by itself.
func (r *reader) failed(err error) error {
	err = mapError(err)
	if r.lost != nil && r.lost() {
		r.doomed = err
	}
	return err
}

// end closes what the function left open and reports whether there was any.
func (r *reader) end() (leaked bool) {
	leaked = len(r.open) > 0
	for len(r.open) > 0 {
		_ = r.open[len(r.open)-1].Close()
	}
	r.ended = true
	return leaked
}

// bind converts the arguments that database/sql would store in another form than the schema's. The caller's slice is
// not changed.
func (r *reader) bind(args []any) []any {
	copied := false
	set := func(i int, v any) {
		if !copied {
			args = append([]any(nil), args...)
			copied = true
		}
		args[i] = v
	}
	for i, a := range args {
		switch v := a.(type) {
		case string:
			r.bytes += int64(len(v))
		case []byte:
			r.bytes += int64(len(v))
		case uuid.UUID:
			set(i, v[:])
		case uuid.NullUUID:
			if v.Valid {
				set(i, v.UUID[:])
			} else {
				set(i, nil)
			}
		case time.Time:
			if v.IsZero() {
				set(i, nil)
			} else {
				set(i, v.UnixMicro())
			}
		}
		r.bytes += 8
	}
	return args
}

// Rows are the results of a query; use as sql.Rows: Next, Scan, Err, Close.
type Rows struct {
	rows *sql.Rows
	r    *reader
	s    *stmt
	n    int
	err  error
}

// cancelEvery is how many rows of a View pass between two looks at the caller's context.
const cancelEvery = 64

// Next moves to the next row. It returns false at the end or after an error, which Err then gives.
func (r *Rows) Next() bool {
	if r.err != nil {
		return false
	}
	if r.n++; r.n%cancelEvery == 0 {
		if r.err = r.r.usable(); r.err != nil {
			_ = r.Close()
			return false
		}
	}
	if r.rows.Next() {
		return true
	}
	if err := r.rows.Err(); err != nil {
		r.err = r.r.failed(err)
	}
	_ = r.Close()
	return false
}

// Scan copies the row's columns. A *uuid.UUID takes 16 bytes, a *time.Time takes microseconds since 1970 and becomes
// UTC; NULL makes it the zero time.
func (r *Rows) Scan(dest ...any) error {
	for i, d := range dest {
		if t, ok := d.(*time.Time); ok {
			dest[i] = (*microTime)(t)
		}
	}
	if err := r.rows.Scan(dest...); err != nil {
		return r.r.failed(err)
	}
	return nil
}

// Err is the error that ended Next, if any.
func (r *Rows) Err() error { return r.err }

// Close ends the query. It may be called more than once.
func (r *Rows) Close() error {
	if r.s == nil {
		return nil
	}
	err := r.rows.Close()
	r.s.release()
	r.s = nil
	for i, o := range r.r.open {
		if o == r {
			r.r.open = append(r.r.open[:i], r.r.open[i+1:]...)
			break
		}
	}
	if err != nil && r.err == nil {
		r.err = r.r.failed(err)
	}
	return r.err
}

// Row is the result of QueryRow.
type Row struct {
	rows *Rows
	err  error
}

// Scan copies the columns of the one row and ends the query. NotFound when there is no row; it wraps sql.ErrNoRows.
func (r *Row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer func() { _ = r.rows.Close() }()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return mapError(sql.ErrNoRows)
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	// Closing steps a statement with RETURNING to its end, where it can still fail.
	return r.rows.Close()
}

// microTime scans microseconds since 1970.
type microTime time.Time

// Scan implements sql.Scanner.
func (t *microTime) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*t = microTime{}
	case int64:
		*t = microTime(time.UnixMicro(v).UTC())
	default:
		return fault.New(fault.Internal, "a time column holds %T instead of an integer", v)
	}
	return nil
}
