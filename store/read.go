package store

import (
	"context"
	"fmt"
	"time"

	"signalbox/appliance/fault"
)

// readPool hands out the read connections. Each serves one View at a time.
type readPool struct {
	path  string
	slots chan *conn // a nil slot is a connection that broke; its next user opens it again
	size  int
	stop  chan struct{}
}

func openReaders(ctx context.Context, path string, n int) (*readPool, error) {
	p := &readPool{path: path, slots: make(chan *conn, n), size: n, stop: make(chan struct{})}
	for range n {
		c, err := openConn(ctx, path, roleReader)
		if err != nil {
			p.drain(len(p.slots))
			return nil, err
		}
		p.slots <- c
	}
	return p, nil
}

// close refuses new readers and waits for those at work.
func (p *readPool) close() {
	close(p.stop)
	p.drain(p.size)
}

func (p *readPool) drain(n int) {
	for range n {
		if c := <-p.slots; c != nil {
			_ = c.close()
		}
	}
}

func (p *readPool) take(ctx context.Context) (*conn, error) {
	select {
	case <-p.stop:
		return nil, fault.Wrap(fault.Unavailable, fmt.Errorf("view: database closed"), "the appliance is stopping")
	default:
	}
	select {
	case c := <-p.slots:
		if c != nil {
			return c, nil
		}
		c, err := openConn(ctx, p.path, roleReader)
		if err != nil {
			p.slots <- nil
			return nil, err
		}
		return c, nil
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Canceled, context.Cause(ctx), "the request was given up before it was read")
	case <-p.stop:
		return nil, fault.Wrap(fault.Unavailable, fmt.Errorf("view: database closed"), "the appliance is stopping")
	}
}

// View runs fn on a snapshot: it sees every commit before its first statement and none after. It waits for a free
// reader as long as ctx allows; inside, ctx is looked at before each statement and every few rows. A View must be
// short, one page of results: an open snapshot keeps the log from being emptied. fn must not keep tx, and must not
// call View again (it would hold two readers). A panic in fn passes to the caller, with the reader given back.
func (db *DB) View(ctx context.Context, fn func(*ReadTx) error) error {
	c, err := db.readers.take(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	tx := &ReadTx{reader: reader{c: c, ctx: ctx, now: db.readNow()}}
	begun := false
	defer func() {
		tx.end()
		if begun {
			if _, err := c.exec(sqlRollback); err != nil {
				_ = c.close()
				c = nil
			}
		}
		db.readers.slots <- c
		db.metrics.views.Observe(time.Since(start).Seconds())
		if db.viewed != nil {
			db.viewed()
		}
	}()
	if _, err := c.exec("BEGIN DEFERRED"); err != nil {
		return db.noticeFatal(fmt.Errorf("begin view: %w", mapError(err)))
	}
	begun = true
	return db.noticeFatal(fn(tx))
}

// readNow is the time of a snapshot, by the rule of write transactions.
func (db *DB) readNow() time.Time {
	return time.UnixMicro(steady(db.clock.Now(), db.writer.lastNow.Load())).UTC()
}

// noticeFatal stops writing when a reader found the file damaged.
func (db *DB) noticeFatal(err error) error {
	if err != nil && isFatal(err) {
		db.writer.fail(fault.Wrap(fault.Corrupt, err, "%s", codeMessage(fault.Corrupt)))
	}
	return err
}

// numbers runs a query for one column of numbers.
func (r *reader) numbers(query string, args ...any) ([]int64, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []int64
	for rows.Next() {
		var no int64
		if err := rows.Scan(&no); err != nil {
			return nil, err
		}
		out = append(out, no)
	}
	return out, rows.Err()
}
