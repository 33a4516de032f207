package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
)

// lookEvery is how often the checkpointer looks at the log while commits happen. Without commits it sleeps.
const lookEvery = 100 * time.Millisecond

// checkpointer keeps the write-ahead log small, on a connection of its own. While commits happen it copies the log
// into the database beside the writer (PASSIVE: waits for nobody, keeps nobody waiting) as soon as it passes a size,
// so that the checkpoint inside a COMMIT, the net below, finds little to do. When it has been quiet it empties the
// file (TRUNCATE).
type checkpointer struct {
	conn    *conn
	wal     string
	limits  Limits
	clock   clock.Clock
	log     zerolog.Logger
	metrics *metrics
	commits *atomic.Int64
	hook    func(mode, result string)

	partial  bool // the last checkpoint had somebody in its way
	asleep   atomic.Bool
	wake     chan struct{}
	requests chan chan error
	stopping chan struct{}
	done     chan struct{}
}

func newCheckpointer(ctx context.Context, o Options, w *writer, m *metrics) (*checkpointer, error) {
	c, err := openConn(ctx, o.Path, roleCheckpoint)
	if err != nil {
		return nil, err
	}
	p := &checkpointer{
		conn: c, wal: o.Path + "-wal", limits: o.Limits, clock: o.Upkeep, log: o.Log, metrics: m, commits: &w.commits, hook: o.Hooks.Checkpointed,
		wake: make(chan struct{}, 1), requests: make(chan chan error), stopping: make(chan struct{}), done: make(chan struct{}),
	}
	w.onCommit = p.notify
	return p, nil
}

// notify tells that a commit happened. It costs one load while the checkpointer is awake.
func (p *checkpointer) notify() {
	if p.asleep.Load() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

func (p *checkpointer) stop() {
	close(p.stopping)
	<-p.done
}

func (p *checkpointer) run() {
	defer close(p.done)
	seen := int64(-1) // the log of the last run may still be there: look once
	for {
		if seen == p.commits.Load() {
			p.asleep.Store(true)
			if seen == p.commits.Load() && !p.sleep() {
				return
			}
			p.asleep.Store(false)
		}
		if !p.watch() {
			return
		}
		seen = p.commits.Load()
		// A log that a reader kept from being emptied is looked at again after the next quiet time.
		if _ = p.checkpoint("TRUNCATE"); p.partial {
			seen = -1
		}
	}
}

// sleep waits for a commit. It returns false when the store closes.
func (p *checkpointer) sleep() bool {
	for {
		select {
		case <-p.wake:
			return true
		case reply := <-p.requests:
			reply <- p.checkpoint("TRUNCATE")
		case <-p.stopping:
			return false
		}
	}
}

// watch looks at the log while commits happen and returns true once it was quiet for IdleAfter, false when the store
// closes.
func (p *checkpointer) watch() bool {
	t := p.clock.NewTimer(lookEvery)
	defer t.Stop()
	seen, quiet, done := p.commits.Load(), time.Duration(0), int64(0)
	for quiet < p.limits.IdleAfter {
		select {
		case <-t.C():
		case reply := <-p.requests:
			reply <- p.checkpoint("TRUNCATE")
			continue
		case <-p.stopping:
			return false
		}
		if n := p.commits.Load(); n == seen {
			quiet += lookEvery
		} else {
			seen, quiet = n, 0
		}
		// The file keeps its size when the log starts over, so its size alone cannot tell that there is work.
		if p.size() >= p.limits.CheckpointBytes && seen != done {
			done = seen
			_ = p.checkpoint("PASSIVE")
		}
		t.Reset(lookEvery)
	}
	return true
}

// size is the length of the log file, 0 when there is none.
func (p *checkpointer) size() int64 {
	i, err := os.Stat(p.wal)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn().Err(err).Msg("look at the log")
		}
		return 0
	}
	p.metrics.wal.Set(float64(i.Size()))
	return i.Size()
}

// checkpoint runs one checkpoint of the mode. Readers or the writer in the way leave it partial, which is no error.
func (p *checkpointer) checkpoint(mode string) error {
	p.partial = false
	if mode == "TRUNCATE" {
		if p.size() == 0 {
			return nil
		}
		// Copy first without keeping the writer out, so that the part that does is short.
		if err := p.pragma("PASSIVE"); err != nil {
			return err
		}
	}
	err := p.pragma(mode)
	p.size()
	return err
}

func (p *checkpointer) pragma(mode string) error {
	var busy, logged, copied int64
	err := p.conn.sc.QueryRowContext(background, "PRAGMA wal_checkpoint("+mode+")").Scan(&busy, &logged, &copied)
	result := "complete"
	switch {
	case err != nil && sqliteCode(err)&codePrimaryMask == codeBusy:
		result, err = "partial", nil
	case err != nil:
		result = "failed"
		err = mapError(err)
		p.log.Warn().Err(err).Str("mode", mode).Msg("checkpoint failed")
	case busy != 0 || copied < logged:
		result = "partial"
	}
	p.partial = result == "partial"
	p.metrics.checkpoints.WithLabelValues(mode, result).Inc()
	if p.hook != nil {
		p.hook(mode, result)
	}
	return err
}

// Checkpoint copies the log into the database file and empties it as far as readers allow. It keeps writers out only
// for the last, short part.
func (db *DB) Checkpoint(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case db.check.requests <- reply:
	case <-ctx.Done():
		return canceled("checkpoint", context.Cause(ctx))
	case <-db.check.done:
		return db.writer.closedError("checkpoint")
	}
	if err := <-reply; err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
