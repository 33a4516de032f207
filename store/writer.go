package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

const (
	sqlBegin     = "BEGIN IMMEDIATE"
	sqlCommit    = "COMMIT"
	sqlRollback  = "ROLLBACK"
	sqlSavepoint = "SAVEPOINT caller"
	sqlRelease   = "RELEASE caller"
	sqlUndo      = "ROLLBACK TO caller"

	// fairShare is how many commits of callers pass before one waiting slice of maintenance gets its turn: under
	// constant load retention still progresses, and takes at most one commit in this many.
	fairShare = 32
	// stuckAfter is how long one batch may run before the waiting callers check whether they are the writer itself,
	// waiting for itself.
	stuckAfter = time.Second
)

// request states. The caller's context counts while it is queued; the swap decides who was first.
const (
	queued int32 = iota
	taken
	abandoned
)

// request is one Update on its way through the writer, or one piece of maintenance.
type request struct {
	op    string
	fn    func(*Tx) error
	raw   func(*conn) error // maintenance outside any transaction; then fn is nil
	state atomic.Int32
	done  chan error // one reply
}

// writer owns the only connection that writes. Everything below is touched by its goroutine alone, except where said.
type writer struct {
	conn    *conn
	clock   clock.Clock
	log     zerolog.Logger
	hooks   Hooks
	limits  Limits
	metrics *metrics
	onFatal func(error)

	queue    chan *request // callers
	bg       chan *request // maintenance, one slice at a time
	stopping chan struct{} // closed by stop
	done     chan struct{} // closed when the goroutine has ended

	fatal    atomic.Pointer[fault.Error]   // any goroutine; set once: no write is accepted any more
	goid     atomic.Int64                  // any goroutine
	suspect  atomic.Pointer[chan struct{}] // any goroutine; closed when a batch runs for long
	lastNow  atomic.Int64                  // any goroutine; microseconds of the latest transaction
	commits  atomic.Int64                  // any goroutine
	onCommit func()

	lost     bool // SQLite rolled the open transaction back by itself; set by the rollback hook
	unserved int  // commits of callers since maintenance had its turn
	batch    batch
	stopOnce sync.Once
	watchdog *time.Timer
	pool     sync.Pool
}

// batch is the set of callers that share one COMMIT.
type batch struct {
	open    bool       // a transaction is open
	applied []*request // succeeded so far
	refused []outcome  // failed by themselves; told when the outcome of the COMMIT is known
	after   []func()
	rows    int
	bytes   int64
}

type outcome struct {
	r   *request
	err error
}

func newWriter(c *conn, o *Options) (*writer, error) {
	w := &writer{
		conn: c, clock: o.Clock, log: o.Log, hooks: o.Hooks, limits: o.Limits, onFatal: o.OnFatal,
		queue:    make(chan *request, o.Limits.Queue),
		bg:       make(chan *request),
		stopping: make(chan struct{}),
		done:     make(chan struct{}),
		onCommit: func() {},
	}
	w.pool.New = func() any { return &request{done: make(chan error, 1)} }
	ch := make(chan struct{})
	w.suspect.Store(&ch)
	w.watchdog = time.AfterFunc(time.Hour, w.raiseSuspicion)
	w.watchdog.Stop()
	if err := onRollback(c, func() { w.lost = true }); err != nil {
		return nil, err
	}
	return w, nil
}

// do queues a request and waits for its outcome. While it waits in the queue ctx can take it back; once it is in a
// batch the caller waits for the COMMIT.
func (w *writer) do(ctx context.Context, lane chan *request, op string, fn func(*Tx) error, raw func(*conn) error) error {
	if f := w.fatal.Load(); f != nil {
		return f
	}
	if err := ctx.Err(); err != nil {
		return canceled(op, context.Cause(ctx))
	}
	r := w.pool.Get().(*request)
	r.op, r.fn, r.raw = op, fn, raw
	r.state.Store(queued)
	suspect := *w.suspect.Load()
	for sent := false; !sent; {
		select {
		case lane <- r:
			sent = true
		case <-ctx.Done():
			return canceled(op, context.Cause(ctx))
		case <-w.stopping:
			return w.closedError(op)
		case <-suspect:
			if w.isSelf() {
				return nested(op)
			}
			suspect = *w.suspect.Load()
		}
	}
	if w.hooks.Queued != nil {
		w.hooks.Queued(op)
	}
	return w.await(ctx, r, suspect)
}

func (w *writer) await(ctx context.Context, r *request, suspect chan struct{}) error {
	cancel := ctx.Done()
	for {
		select {
		case err := <-r.done:
			r.fn, r.raw = nil, nil
			w.pool.Put(r)
			return err
		case <-cancel:
			if r.state.CompareAndSwap(queued, abandoned) {
				return canceled(r.op, context.Cause(ctx))
			}
			cancel = nil // in a batch: only the outcome counts
		case <-suspect:
			if w.isSelf() {
				r.state.CompareAndSwap(queued, abandoned)
				return nested(r.op)
			}
			suspect = *w.suspect.Load()
		case <-w.done:
			select {
			case err := <-r.done:
				return err
			default:
			}
			if r.state.CompareAndSwap(queued, abandoned) {
				return w.closedError(r.op)
			}
			return fault.New(fault.OutcomeUnknown, messageOutcomeUnknown)
		}
	}
}

func canceled(op string, cause error) error {
	return fault.Wrap(fault.Canceled, fmt.Errorf("%s: %w", op, cause), "the request was given up before it was applied")
}

func nested(op string) error {
	return fault.Wrap(fault.Internal, fmt.Errorf("update %s called inside an update: the writer would wait for itself", op),
		"%s", codeMessage(fault.Internal))
}

func (w *writer) closedError(op string) error {
	if f := w.fatal.Load(); f != nil {
		return f
	}
	return fault.Wrap(fault.Unavailable, fmt.Errorf("%s: database closed", op), "the appliance is stopping, nothing was applied")
}

// stop has the goroutine serve what is queued and end, and waits for it.
func (w *writer) stop() {
	w.stopOnce.Do(func() { close(w.stopping) })
	<-w.done
}

// run is the writer goroutine.
func (w *writer) run() {
	w.goid.Store(goroutineID())
	ended := false
	defer func() {
		if !ended {
			w.fail(fault.Wrap(fault.Internal, errors.New("the writer's goroutine was ended from inside a transaction"),
				"%s", codeMessage(fault.Internal)))
		}
		w.watchdog.Stop()
		close(w.done)
	}()
	for r := w.next(); r != nil; r = w.next() {
		if r.raw != nil {
			w.runRaw(r)
			continue
		}
		w.runBatch(r)
	}
	ended = true
}

// next returns the request to serve: callers first, then maintenance, and maintenance first once in fairShare
// commits. It returns nil when the writer stops and the queue is empty.
func (w *writer) next() *request {
	if w.unserved >= fairShare {
		w.unserved = 0
		select {
		case r := <-w.bg:
			return r
		default:
		}
	}
	select {
	case r := <-w.queue:
		return r
	default:
	}
	select {
	case r := <-w.queue:
		return r
	case r := <-w.bg:
		w.unserved = 0
		return r
	case <-w.stopping:
		select {
		case r := <-w.queue:
			return r
		default:
			return nil
		}
	}
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
// of the whole transaction.
func (w *writer) runOne(r *request) error {
	b := &w.batch
	if !b.open {
		w.lost = false
		if _, err := w.conn.exec(sqlBegin); err != nil {
			b.refused = append(b.refused, outcome{r: r})
			return fmt.Errorf("begin: %w", mapError(err))
		}
		b.open = true
	}
	// The first caller needs no savepoint: with nothing before it, its failure rolls the transaction back.
	guarded := len(b.applied) > 0
	if guarded {
		if _, err := w.conn.exec(sqlSavepoint); err != nil {
			b.refused = append(b.refused, outcome{r: r})
			return fmt.Errorf("savepoint: %w", mapError(err))
		}
	}
	tx := &Tx{reader: reader{c: w.conn, now: w.now(), lost: func() bool { return w.lost }}}
	err := w.call(tx, r)
	if leaked := tx.end(); leaked && err == nil {
		err = fault.Wrap(fault.Internal, fmt.Errorf("%s: rows left open", r.op), "%s", codeMessage(fault.Internal))
	}
	if w.lost {
		b.refused = append(b.refused, outcome{r: r})
		if tx.doomed != nil {
			err = tx.doomed
		}
		return fmt.Errorf("%s: transaction rolled back by the database: %w", r.op, asWhole(err))
	}
	b.rows += tx.rows
	b.bytes += tx.bytes
	if err != nil && isFatal(err) { // what else the batch did rests on a damaged file
		b.refused = append(b.refused, outcome{r: r})
		return fmt.Errorf("%s: %w", r.op, err)
	}
	if err == nil {
		if guarded {
			if _, err := w.conn.exec(sqlRelease); err != nil {
				b.refused = append(b.refused, outcome{r: r})
				return fmt.Errorf("release: %w", mapError(err))
			}
		}
		b.applied = append(b.applied, r)
		b.after = append(b.after, tx.after...)
		return nil
	}
	b.refused = append(b.refused, outcome{r: r, err: err})
	return w.undo(guarded)
}

// undo takes one caller's work back.
func (w *writer) undo(guarded bool) error {
	if !guarded {
		w.batch.open = false
		if _, err := w.conn.exec(sqlRollback); err != nil {
			return fmt.Errorf("rollback: %w", mapError(err))
		}
		return nil
	}
	if _, err := w.conn.exec(sqlUndo); err != nil {
		return fmt.Errorf("roll back one caller: %w", mapError(err))
	}
	if _, err := w.conn.exec(sqlRelease); err != nil {
		return fmt.Errorf("release: %w", mapError(err))
	}
	return nil
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
	returned = true
	return err
}

// now is the timestamp of the next transaction: never before an earlier one, whatever the system's clock does.
func (w *writer) now() time.Time {
	t := w.clock.Now().UnixMicro()
	if last := w.lastNow.Load(); t < last {
		t = last
	}
	w.lastNow.Store(t)
	return time.UnixMicro(t).UTC()
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
	for _, fn := range b.after {
		w.runAfter(fn)
	}
	n := len(b.applied)
	if n > 0 {
		w.commits.Add(1)
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

// commit makes the batch durable. Its error says whether nothing was applied (Unavailable, Corrupt) or nobody knows
// (OutcomeUnknown).
func (w *writer) commit() error {
	b := &w.batch
	if h := w.hooks.BeforeCommit; h != nil {
		if err := h(len(b.applied)); err != nil {
			return fmt.Errorf("commit: %w", asWhole(mapError(err)))
		}
	}
	_, err := w.conn.exec(sqlCommit)
	if err == nil {
		b.open = false
		if h := w.hooks.AfterCommitBeforeReply; h != nil {
			err = h(len(b.applied))
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
	if b.open && !w.lost {
		if _, e := w.conn.exec(sqlRollback); e != nil && !w.lost {
			err = fmt.Errorf("%w; rollback: %w", err, e)
			w.fail(fault.Wrap(fault.Corrupt, err, "%s", codeMessage(fault.Corrupt)))
		}
	}
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

// isFatal reports a failing disk or a damaged file anywhere in the chain, also below OutcomeUnknown.
func isFatal(err error) bool {
	if fault.Is(err, fault.Corrupt) {
		return true
	}
	code := sqliteCode(err)
	return code != 0 && faultCode(code) == fault.Corrupt
}

// fail refuses all further writes and tells the owner, once.
func (w *writer) fail(f *fault.Error) {
	if !w.fatal.CompareAndSwap(nil, f) {
		return
	}
	w.log.Error().Err(f).Msg("the database cannot be written any more")
	if w.onFatal != nil {
		w.onFatal(f)
	}
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

// runRaw serves one piece of maintenance on the writer's connection, outside any transaction.
func (w *writer) runRaw(r *request) {
	if !r.state.CompareAndSwap(queued, taken) {
		return
	}
	if f := w.fatal.Load(); f != nil {
		w.reply(r, f, "refused")
		return
	}
	err := mapError(r.raw(w.conn))
	if isFatal(err) {
		w.fail(fault.Wrap(fault.Corrupt, err, "%s", codeMessage(fault.Corrupt)))
	}
	result := "ok"
	if err != nil {
		result = "failed"
	}
	w.reply(r, err, result)
}

func (w *writer) reply(r *request, err error, result string) {
	w.metrics.op(r.op, result)
	r.done <- err
}

// raiseSuspicion has every waiting caller check whether it is the writer. It runs on a timer's goroutine.
func (w *writer) raiseSuspicion() {
	next := make(chan struct{})
	close(*w.suspect.Swap(&next))
}

// isSelf reports whether the calling goroutine is the writer's own.
func (w *writer) isSelf() bool { return goroutineID() == w.goid.Load() }

// goroutineID parses the number of the calling goroutine out of its stack header. It takes microseconds, so it is
// asked only when something already went wrong.
func goroutineID() int64 {
	var buf [64]byte
	fields := bytes.Fields(buf[:runtime.Stack(buf[:], false)])
	if len(fields) < 2 {
		return 0
	}
	id, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
