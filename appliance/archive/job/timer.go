package job

import (
	"context"
	"strconv"
	"sync"
	"time"

	"signalbox/appliance/archive"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// timer is the one timer of the engine: the next retry_at of any job, and the next repetition of a go-ahead.
type timer struct{ c chan struct{} }

func (t *timer) init() { t.c = make(chan struct{}, 1) }

// poke has the time computed anew.
func (t *timer) poke() {
	select {
	case t.c <- struct{}{}:
	default:
	}
}

// calm forgets that the timer was poked: by what has failed, which is tried again after a pause and not at once.
func (t *timer) calm() {
	select {
	case <-t.c:
	default:
	}
}

// task is work outside a transaction, for one job.
type task struct {
	jobNo int64
	kind  taskKind
}

type taskKind int

const (
	taskCheck  taskKind = iota + 1 // run the preflight
	taskRoom                       // look at the storage
	taskExpire                     // the verification of an eviction is too old
)

// worker holds the tasks that wait for one of a few goroutines. They are lost with the process, and found again in the
// database by the next.
type worker struct {
	mu      sync.Mutex
	waiting []task
	known   map[task]bool // waiting or running
	again   map[task]bool // asked for while running
	running int
	most    int
	c       chan struct{}
}

func (w *worker) init(most int) {
	w.known, w.again, w.most, w.c = map[task]bool{}, map[task]bool{}, most, make(chan struct{}, 1)
}

func (w *worker) add(t task) {
	w.mu.Lock()
	if w.known[t] {
		w.again[t] = true
	} else {
		w.known[t] = true
		w.waiting = append(w.waiting, t)
	}
	w.mu.Unlock()
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// take gives the next task to a free goroutine.
func (w *worker) take() (t task, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 || w.running >= w.most {
		return t, false
	}
	t, w.waiting = w.waiting[0], w.waiting[1:]
	w.running++
	return t, true
}

func (w *worker) finish(t task) {
	w.mu.Lock()
	w.running--
	delete(w.known, t)
	again := w.again[t]
	delete(w.again, t)
	w.mu.Unlock()
	if again {
		w.add(t)
		return
	}
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Run does the background work of the engine until ctx ends: waits that time ends, preflights, looks at storage, and the
// repetition of go-aheads. It begins with what the database holds, and returns nil.
func (e *Engine) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	e.resumeWork(ctx)
	t := e.clock.NewTimer(time.Hour)
	defer t.Stop()
	for {
		next := e.turn(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.ResetAt(next)
		for {
			next, ok := e.work.take()
			if !ok {
				break
			}
			tasks.Go(func() { e.do(ctx, next) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C():
		case <-e.timer.c:
		case <-e.work.c:
		}
	}
}

// do runs one task. What fails is tried again after a pause, by the job's own time.
func (e *Engine) do(ctx context.Context, t task) {
	defer e.work.finish(t)
	var err error
	what := ""
	switch t.kind {
	case taskCheck:
		what, err = "preflight", e.check(ctx, t.jobNo)
	case taskRoom:
		what, err = "storage", e.room(ctx, t.jobNo)
	case taskExpire:
		what, err = "verification", e.expire(ctx, t.jobNo)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	e.observer.Failed(what, err)
	if t.kind == taskCheck {
		out := Outcome{Wait: waitBackoff, Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true,
			Message: "the preflight could not be made: " + fault.Message(err)}}
		if err := e.checked(ctx, t.jobNo, out); err != nil && ctx.Err() == nil {
			e.observer.Failed(what, err)
		}
	}
}

// resumeWork finds what a process that ended had begun.
func (e *Engine) resumeWork(ctx context.Context) {
	if err := e.boundWaits(ctx, longestAfterStart); err != nil && ctx.Err() == nil {
		e.observer.Failed("start", err)
	}
	e.searchAfter(0)
}

// searchAfter has the preflights looked for that jobs wait for, after a pause.
func (e *Engine) searchAfter(pause time.Duration) {
	e.search.Store(e.clock.Now().Add(pause).UnixNano())
	e.timer.poke()
}

// searched looks for preflights when it is time to, and returns when to look again; after idle when they were found.
func (e *Engine) searched(ctx context.Context) time.Time {
	now := e.clock.Now()
	at := e.search.Load()
	if at == 0 {
		return now.Add(idle)
	}
	if wait := time.Unix(0, at).Sub(now); wait > 0 && wait <= failedPause { // more: the clock was set back
		return now.Add(wait)
	}
	if e.search.Store(0); !e.findChecks(ctx) {
		e.searchAfter(failedPause)
		return now.Add(failedPause)
	}
	return now.Add(idle)
}

// findChecks has the preflights run that jobs of the database wait for, and reports whether it could read them all.
func (e *Engine) findChecks(ctx context.Context) bool {
	for after := int64(0); ; {
		var list []int64
		err := e.st.View(ctx, func(tx ReadTx) (err error) {
			list, err = tx.JobsIn(int32(statePreflight), after, 100)
			return err
		})
		if err != nil && ctx.Err() == nil {
			e.observer.Failed("preflights", err)
		}
		if err != nil || len(list) == 0 {
			return err == nil
		}
		for _, no := range list {
			e.work.add(task{jobNo: no, kind: taskCheck})
			after = no
		}
	}
}

// idle is how long Run sleeps when nothing is due: any change wakes it.
const idle = time.Hour

// putOff is when a job is looked at again whose wait could not be ended.
const putOff = time.Minute

// failedPause is how long Run waits after a database error.
const failedPause = 5 * time.Second

// turn does what is due and returns until when to sleep.
func (e *Engine) turn(ctx context.Context) time.Time {
	search := e.searched(ctx)
	for {
		now := e.clock.Now()
		if e.setBack(now) {
			if err := e.boundWaits(ctx, e.longest()); err != nil {
				e.looked = now.Add(time.Hour).Round(0) // not done: again at the next turn
				if ctx.Err() == nil {
					e.observer.Failed("timer", err)
				}
				e.timer.calm()
				return now.Add(failedPause)
			}
		}
		var due []int64
		var next time.Time
		err := e.st.View(ctx, func(tx ReadTx) (err error) {
			if due, err = tx.JobsDue(now, 64); err != nil || len(due) > 0 {
				return err
			}
			next, err = tx.JobNextDue()
			return err
		})
		for _, no := range due {
			if err == nil {
				err = e.dueOrLater(ctx, no)
			}
		}
		if err != nil {
			if ctx.Err() == nil {
				e.observer.Failed("timer", err)
			}
			e.timer.calm()
			return now.Add(failedPause)
		}
		if len(due) > 0 {
			continue
		}
		again, daemons := e.acks.next(e.o.CommandRetry, now)
		for _, no := range daemons {
			e.hub.Wake(archive.DaemonKey(no))
		}
		until := search
		for _, at := range []time.Time{next, again} {
			if !at.IsZero() && at.Before(until) {
				until = at
			}
		}
		return until
	}
}

// dueOrLater is due; a job that it fails for is put off, so that it keeps none of the others waiting.
func (e *Engine) dueOrLater(ctx context.Context, jobNo int64) error {
	err := e.due(ctx, jobNo)
	if err == nil || ctx.Err() != nil {
		return err
	}
	e.observer.Failed("timer", err)
	return e.update(ctx, "job_due", func(tx Tx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.RetryAt.IsZero() {
			return err
		}
		row.RetryAt = tx.Now().Add(putOff)
		return tx.JobUpdate(&row)
	})
}

// due ends the wait of a job whose time has come, or puts the next look off.
func (e *Engine) due(ctx context.Context, jobNo int64) error {
	return e.update(ctx, "job_due", func(tx Tx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.RetryAt.IsZero() || row.RetryAt.After(tx.Now()) {
			return err
		}
		if row.State != stateWaiting {
			row.RetryAt = time.Time{}
			return tx.JobUpdate(&row)
		}
		if row.Wait == waitSpace && row.Kept != statePreflight {
			row.RetryAt = tx.Now().Add(e.o.SpaceEvery)
			tx.Hint(func() { e.work.add(task{jobNo: jobNo, kind: taskRoom}) })
			return tx.JobUpdate(&row)
		}
		if row.Wait == waitRoute && row.RouteNo != 0 {
			ready, _, err := e.routes.Ready(tx, row.RouteNo)
			if err != nil {
				return err
			}
			if !ready { // OnRoute ends the wait
				row.RetryAt = time.Time{}
				return tx.JobUpdate(&row)
			}
		}
		if row.Wait == waitReconcile {
			return e.askAgain(tx, row)
		}
		return e.cleared(tx, row, "its time has come")
	})
}

// askAgain makes a new decision about a job whose snapshot was promised and did not come.
func (e *Engine) askAgain(tx Tx, row Job) error {
	row.RetryAt = time.Time{}
	b, err := e.load(tx, row)
	if err != nil {
		return err
	}
	for _, c := range b.cmds {
		if c.Kind != archive.RequestJobSnapshot || c.State != command.Accepted {
			continue
		}
		p := b.at(c.Daemon.No)
		if late := c.AckedAt.Add(e.o.SnapshotWait); p == nil || late.After(tx.Now()) && !c.AckedAt.After(tx.Now()) {
			if p != nil && (b.row.RetryAt.IsZero() || late.Before(b.row.RetryAt)) {
				b.row.RetryAt = late
			}
			continue
		}
		if err := b.current(); err != nil {
			return err
		}
		v := b.view.Party(p.Role)
		if !v.Online {
			continue // its next registration decides
		}
		in := decide.Input{Job: &b.view, Role: p.Role, K: v.Reported, Snapshot: c.ID}
		if err := b.decided(decide.SnapshotLate(in), in, "the snapshot did not come"); err != nil {
			return err
		}
	}
	if err := tx.JobUpdate(&b.row); err != nil {
		return err
	}
	b.done()
	return nil
}

// cleared tells the job that what it waits for has come.
func (e *Engine) cleared(tx Tx, row Job, what string) error {
	b, err := e.load(tx, row)
	if err != nil {
		return err
	}
	b.row.RetryAt = time.Time{}
	if err := b.advance(decide.Cleared{}, cause{what: what}); err != nil {
		return err
	}
	b.done()
	return nil
}

// clear is cleared for a job that still waits for the reason.
func (e *Engine) clear(ctx context.Context, jobNo int64, reason pb.WaitReason, what string) error {
	return e.update(ctx, "job_cleared", func(tx Tx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.State != stateWaiting || row.Wait != reason {
			return err
		}
		return e.cleared(tx, row, what)
	})
}

// OnRoute is told, in the transaction that changes whether a route is ready: jobs that wait for it go on when it is, and
// connections that hold a TRANSFER back look again.
func (e *Engine) OnRoute(rtx archive.Writer, routeNo int64) error {
	tx := rtx.(Tx)
	jobs, err := tx.JobsUsing(routeNo)
	if err != nil || len(jobs) == 0 {
		return err
	}
	ready, _, err := e.routes.Ready(tx, routeNo)
	if err != nil {
		return err
	}
	for _, no := range jobs {
		row, err := tx.JobByNo(no)
		if err != nil {
			return err
		}
		source, target := row.SourceNo, row.TargetNo
		tx.Hint(func() {
			e.hub.Wake(archive.DaemonKey(source))
			e.hub.Wake(archive.DaemonKey(target))
		})
		switch {
		case ready && row.State == stateWaiting && row.Wait == waitRoute:
			err = e.cleared(tx, row, "the route is ready")
		case !ready && row.State == stateRunning:
			err = e.routeLost(tx, row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// routeLost has a job whose TRANSFER is next wait for its route.
func (e *Engine) routeLost(tx Tx, row Job) error {
	b, err := e.load(tx, row)
	if err != nil || !b.view.RouteDown {
		return err
	}
	if err := b.advance(decide.RouteLost{}, cause{what: "the route is not ready"}); err != nil {
		return err
	}
	b.done()
	return nil
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
