package store

import (
	"fmt"
	"runtime/debug"
	"time"

	"signalbox/appliance/fault"
)

// batch is the set of callers that share one COMMIT.
type batch struct {
	open    bool       // a transaction is open
	applied []*request // succeeded so far
	refused []outcome  // failed by themselves; told when the outcome of the COMMIT is known
	after   []hook     // of those that succeeded
	rows    int
	bytes   int64
}

type outcome struct {
	r   *request
	err error
}

// more returns one more caller for the batch if one waits already and the batch has room: nothing is ever waited for,
// so an idle system adds no delay.
func (w *writer) more(start time.Time) *request {
	b := &w.batch
	if len(b.applied)+len(b.refused) >= w.limits.BatchCallers || b.rows >= w.limits.BatchRows ||
		b.bytes >= w.limits.BatchBytes || time.Since(start) >= w.limits.BatchTime {
		return nil
	}
	select {
	case r := <-w.queue:
		return r
	default:
		return nil
	}
}

// runBatch serves first and whoever waits behind it with one COMMIT.
func (w *writer) runBatch(first *request) {
	start := time.Now()
	w.slow.Store(false)
	w.watchdog.Reset(stuckAfter)
	defer w.watchdog.Stop()
	w.unserved++
	for r := first; r != nil; r = w.more(start) {
		if f := w.fatal.Load(); f != nil {
			w.reply(r, f, "refused")
			continue
		}
		if !r.state.CompareAndSwap(queued, taken) {
			continue // its caller gave up
		}
		if err := w.runOne(r); err != nil {
			w.failBatch(err)
			return
		}
	}
	w.finish(start)
}

// runOne runs one caller inside the batch. Its own failure undoes only its own work. The error it returns is the end
// of the whole transaction; r is then among those to be told.
func (w *writer) runOne(r *request) error {
	b := &w.batch
	// The first caller needs no savepoint: with nothing before it, its failure rolls the transaction back.
	guarded := len(b.applied) > 0
	tx := &Tx{reader: reader{c: w.conn, now: w.now(), lost: w.isLost}}
	err := w.enter(guarded)
	if err == nil {
		err = w.call(tx, r)
		if leaked := tx.end(); leaked && err == nil {
			err = fault.Wrap(fault.Internal, fmt.Errorf("%s: rows left open", r.op), "%s", codeMessage(fault.Internal))
		}
		b.rows += tx.rows
		b.bytes += tx.bytes
		switch {
		case w.lost:
			if tx.doomed != nil {
				err = tx.doomed
			}
			err = fmt.Errorf("%s: transaction rolled back by the database: %w", r.op, asWhole(err))
		case err != nil && !isFatal(err):
			b.refused = append(b.refused, outcome{r: r, err: err})
			return w.undo(guarded)
		case err != nil: // what else the batch did rests on a damaged file
			err = fmt.Errorf("%s: %w", r.op, err)
		case guarded:
			err = w.step(sqlRelease)
		}
	}
	if err != nil {
		b.refused = append(b.refused, outcome{r: r})
		return err
	}
	b.applied = append(b.applied, r)
	b.after = append(b.after, tx.after...)
	return nil
}

// enter opens the batch's transaction when there is none, and the caller's savepoint when it needs one.
func (w *writer) enter(guarded bool) error {
	if !w.batch.open {
		w.lost = false
		if err := w.step(sqlBegin); err != nil {
			return err
		}
		w.batch.open = true
	}
	if guarded {
		return w.step(sqlSavepoint)
	}
	return nil
}

// step runs one of the statements around a caller.
func (w *writer) step(query string) error {
	if _, err := w.conn.exec(query); err != nil {
		return fmt.Errorf("%s: %w", query, mapError(err))
	}
	return nil
}

// isLost reports whether SQLite ended the transaction by itself.
func (w *writer) isLost() bool { return w.lost }

// undo takes one caller's work back.
func (w *writer) undo(guarded bool) error {
	if !guarded {
		w.batch.open = false
		return w.step(sqlRollback)
	}
	if err := w.step(sqlUndo); err != nil {
		return err
	}
	return w.step(sqlRelease)
}

// asWhole is the error of a transaction that ended under its callers: always "nothing was applied" or worse.
func asWhole(err error) error {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.Corrupt:
		return err
	}
	return fault.Wrap(fault.Unavailable, err, messageUnavailable)
}

// call runs the caller's function and contains its panic.
func (w *writer) call(tx *Tx, r *request) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		p := recover()
		if p == nil {
			return // runtime.Goexit: run's deferred function ends the writer
		}
		w.log.Error().Str("op", r.op).Interface("panic", p).Bytes("stack", debug.Stack()).Msg("panic in a transaction")
		w.metrics.panics.Inc()
		err = fault.Wrap(fault.Internal, fmt.Errorf("%s: panic: %v", r.op, p), "%s", codeMessage(fault.Internal))
	}()
	err = r.fn(tx)
	for _, fn := range tx.atEnd {
		if err == nil {
			err = fn()
		}
	}
	returned = true
	return err
}

// maxHold is the longest step back of the system's clock over which the time of transactions stands still: more than what
// corrects a clock that runs, less than any deadline.
const maxHold = 2 * time.Second

// now is the timestamp of the next transaction: never before an earlier one, unless the system's clock was set back by more
// than maxHold.
func (w *writer) now() time.Time {
	last := w.lastNow.Load()
	t := steady(w.clock.Now(), last)
	if t < last {
		w.log.Warn().Time("from", time.UnixMicro(last).UTC()).Time("to", time.UnixMicro(t).UTC()).
			Msg("the system's clock was set back: what was written meanwhile is dated in the future")
	}
	w.lastNow.Store(t)
	return time.UnixMicro(t).UTC()
}

// steady is the clock in microseconds, held at last when it is behind it by no more than maxHold.
func steady(now time.Time, last int64) int64 {
	t := now.UnixMicro()
	if t < last && last-t <= maxHold.Microseconds() {
		return last
	}
	return t
}

// finish commits the batch and tells everybody.
func (w *writer) finish(start time.Time) {
	b := &w.batch
	if b.open {
		if err := w.commit(); err != nil {
			w.failBatch(err)
			return
		}
	}
	for _, h := range b.after {
		w.runAfter(h.fn)
	}
	n := len(b.applied)
	if n > 0 {
		w.commits.Add(1)
		if w.trouble.Load() != nil {
			w.trouble.Store(nil)
		}
		w.metrics.commit(time.Since(start), n)
		w.onCommit()
	}
	for _, r := range b.applied {
		w.reply(r, nil, "ok")
	}
	for _, o := range b.refused {
		w.reply(o.r, o.err, "refused")
	}
	w.resetBatch()
}

// ops are the operations applied, for the hooks.
func (b *batch) ops() []string {
	ops := make([]string, len(b.applied))
	for i, r := range b.applied {
		ops[i] = r.op
	}
	return ops
}

// commit makes the batch durable. Its error says whether nothing was applied (Unavailable, Corrupt) or nobody knows
// (OutcomeUnknown).
func (w *writer) commit() error {
	b := &w.batch
	if h := w.hooks.BeforeCommit; h != nil {
		if err := h(b.ops()); err != nil {
			return fmt.Errorf("commit: %w", asWhole(mapError(err)))
		}
	}
	_, err := w.conn.exec(sqlCommit)
	if err == nil {
		b.open = false
		if h := w.hooks.AfterCommitBeforeReply; h != nil {
			err = h(b.ops())
		}
		if err == nil {
			return nil
		}
		return unknown(err)
	}
	switch code := sqliteCode(err); code & codePrimaryMask {
	case codeFull, codeBusy, codeNoMem, codeInterrupt, codeLocked:
		// The last frame of the log, the one that makes the others count, was not written.
		return fmt.Errorf("commit: %w", mapError(err))
	default:
		// With an I/O error the commit frame may sit in the log, valid, and be found by the next start.
		return unknown(err)
	}
}

func unknown(err error) error {
	return fault.Wrap(fault.OutcomeUnknown, fmt.Errorf("commit: %w", err), messageOutcomeUnknown)
}

// failBatch ends a batch of which nothing, or nobody knows what, was applied.
func (w *writer) failBatch(err error) {
	b := &w.batch
	unsure := fault.Is(err, fault.OutcomeUnknown)
	if b.open && !w.lost {
		if _, e := w.conn.exec(sqlRollback); e != nil && !w.lost {
			err = fmt.Errorf("%w; rollback: %w", err, e)
			w.fail(fault.Wrap(fault.Corrupt, err, "%s", codeMessage(fault.Corrupt)))
		}
	}
	if unsure {
		for _, h := range b.after {
			if h.hint {
				w.runAfter(h.fn)
			}
		}
	}
	w.trouble.Store(&err)
	w.log.Warn().Err(err).Int("callers", len(b.applied)+len(b.refused)).Msg("batch failed")
	if isFatal(err) {
		w.fail(fault.Wrap(fault.Corrupt, err, "%s", codeMessage(fault.Corrupt)))
	}
	for _, r := range b.applied {
		w.reply(r, err, "failed")
	}
	for _, o := range b.refused {
		w.reply(o.r, err, "failed")
	}
	w.resetBatch()
}

// maxKeptBatch bounds what a batch leaves behind for the next one to reuse.
const maxKeptBatch = 4096

func (w *writer) resetBatch() {
	b := &w.batch
	clear(b.applied)
	clear(b.refused)
	clear(b.after)
	if cap(b.after) > maxKeptBatch {
		b.after = nil
	}
	*b = batch{applied: b.applied[:0], refused: b.refused[:0], after: b.after[:0]}
}

func (w *writer) runAfter(fn func()) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("panic after a commit")
			w.metrics.panics.Inc()
		}
	}()
	fn()
}
