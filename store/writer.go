package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
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
	slow     atomic.Bool                   // any goroutine; the batch at work runs for long, or the one before it did
	lastNow  atomic.Int64                  // any goroutine; microseconds of the latest transaction
	commits  atomic.Int64                  // any goroutine
	trouble  atomic.Pointer[error]         // any goroutine; why the latest batch failed, nil after a good one
	onCommit func()

	lost     bool // SQLite rolled the open transaction back by itself; set by the rollback hook
	unserved int  // commits of callers since maintenance had its turn
	batch    batch
	stopOnce sync.Once
	watchdog *time.Timer
	pool     sync.Pool
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
	if w.slow.Load() && w.isSelf() { // the suspicion came before: it does not come twice in a batch
		return nested(op)
	}
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

// raiseSuspicion has every waiting caller check whether it is the writer, and every one that comes while the batch goes on.
// It runs on a timer's goroutine.
func (w *writer) raiseSuspicion() {
	w.slow.Store(true) // before the channel is replaced: who waits on the new one has seen it
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
