package daemon

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
)

// runner is the one goroutine that works for a job: whatever it does next starts only after the last has stopped (3.5).
type runner struct {
	again  bool                    // look at the job once more before ending
	cancel context.CancelCauseFunc // of what it does now
}

// errInterrupted ends a worker whose lease is not its any more, or whose job is held.
var errInterrupted = errors.New("the lease has ended")

// Retries of clean-up and of steps whose result could not be stored.
var retryBackoff = archive.Backoff{Initial: 5 * time.Second, Cap: 5 * time.Minute}

// kick has the job looked at: what its state and leases ask for is done.
func (d *Daemon) kick(job uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return
	}
	if r := d.runners[job]; r != nil {
		r.again = true
		return
	}
	r := &runner{}
	d.runners[job] = r
	d.group.Go(func() { d.run(job, r) })
}

// interrupt ends what the job's worker does. It does not wait: the worker looks at the job anew once it has stopped.
func (d *Daemon) interrupt(job uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.runners[job]; r != nil {
		r.again = true
		if r.cancel != nil {
			r.cancel(errInterrupted)
		}
	}
}

// run works for the job until there is nothing left to do.
func (d *Daemon) run(job uuid.UUID, r *runner) {
	failures := 0
	for {
		ctx, cancel := context.WithCancelCause(d.ctx)
		d.mu.Lock()
		r.again, r.cancel = false, cancel
		d.mu.Unlock()
		w, err := d.nextWork(ctx, job)
		if err == nil && w != nil {
			err = d.perform(ctx, w)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			failures = 0
		default:
			// Nothing is lost: the journal and the lease stay, and the work finds its place again.
			d.sleep(ctx, retryBackoff.Delay(failures, d.o.Random()))
			failures++
		}
		cancel(nil)
		d.mu.Lock()
		if d.ctx.Err() != nil || err == nil && w == nil && !r.again {
			delete(d.runners, job)
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
	}
}

// work is what a job has to do now.
type work struct {
	row   JobRow
	lease Lease
	// execute is set for a step, cancel for a clean-up after CancelJob; neither is for one after CloseJob.
	execute *pb.ExecuteStepCommand
	cancel  *pb.CancelJobCommand
	route   *RouteRow
	record  *CommitRecord
}

// nextWork reads what the job asks for; nil when it asks for nothing.
func (d *Daemon) nextWork(ctx context.Context, job uuid.UUID) (*work, error) {
	var w *work
	err := d.o.Store.View(ctx, func(tx ReadTx) error {
		w = nil
		row, ok, err := tx.Job(job)
		if err != nil || !ok {
			return err
		}
		w = &work{row: row}
		if row.Ended {
			if !row.Closing {
				w = nil
			}
			return nil
		}
		if ok, err = w.findLease(tx); err != nil || !ok {
			w = nil
			return err
		}
		if w.record, err = tx.CommitRecord(job); err != nil {
			return err
		}
		return w.findRoute(tx)
	})
	return w, err
}

// findLease finds the open lease that the job's state gives work to.
func (w *work) findLease(tx ReadTx) (bool, error) {
	leases, err := tx.JobLeases(w.row.ID)
	if err != nil {
		return false, err
	}
	for _, l := range leases {
		if l.State != pb.LeaseState_LEASE_STATE_OPEN {
			continue
		}
		wanted := l.Kind == LeaseStep && (w.row.State == pb.JobState_JOB_STATE_RUNNING || w.row.State == pb.JobState_JOB_STATE_STALLED) ||
			l.Kind == LeaseCancel && w.row.State == pb.JobState_JOB_STATE_CANCELLING
		if !wanted {
			continue
		}
		c, ok, err := tx.Command(l.CommandID)
		if err != nil || !ok {
			return false, err
		}
		var m pb.Command
		if err := proto.Unmarshal(c.Payload, &m); err != nil {
			return false, fmt.Errorf("command %s: %w", l.CommandID, err)
		}
		w.lease, w.execute, w.cancel = l, m.GetExecuteStep(), m.GetCancelJob()
		return true, nil
	}
	return false, nil
}

func (w *work) findRoute(tx ReadTx) error {
	id, err := uuid.Parse(w.row.Definition.GetRouteId())
	if err != nil {
		return nil
	}
	r, ok, err := tx.Route(id, w.row.Role)
	if err == nil && ok && r.State != pb.RouteState_ROUTE_STATE_REMOVED {
		w.route = &r
	}
	return err
}

// perform does the work. A returned error means: try again later.
func (d *Daemon) perform(ctx context.Context, w *work) error {
	switch {
	case w.execute != nil:
		return d.performStep(ctx, w)
	case w.cancel != nil:
		return d.performUndo(ctx, w)
	default:
		return d.performClose(ctx, w)
	}
}

// job builds what a worker knows of its job.
func (d *Daemon) job(w *work) *Job {
	j := &Job{ID: w.row.ID, ClientID: d.id.ClientID, Definition: w.row.Definition, Digest: w.row.Digest, Role: w.row.Role,
		Committed: w.row.Committed, Record: w.record, Journal: &journal{d: d, job: w.row.ID}}
	if w.route != nil {
		j.Route, j.RouteSide = w.route.Route, w.route.Side
	}
	j.Evidence = func(ctx context.Context, step pb.JobStep) (e *pb.StepEvidence, err error) {
		err = d.o.Store.View(ctx, func(tx ReadTx) (err error) {
			e, err = tx.StepEvidence(w.row.ID, step)
			return err
		})
		return e, err
	}
	return j
}

// slot waits for a place among the workers of the step: TRANSFER and VERIFY have their own for each root, and PURGE has its
// own, for it may wait long for the end of a retention.
func (d *Daemon) slot(ctx context.Context, w *work) (release func(), err error) {
	key, n := "", d.o.Workers.Others
	switch w.execute.GetStep() {
	case pb.JobStep_JOB_STEP_TRANSFER:
		endpoint := w.route.endpoint()
		key, n = "transfer\x00"+endpoint.GetRootId(), d.o.Workers.TransfersPerRoot
	case pb.JobStep_JOB_STEP_VERIFY:
		key, n = "verify\x00"+w.row.Definition.GetDestination().GetContentRootId(), d.o.Workers.VerifiesPerRoot
	case pb.JobStep_JOB_STEP_PURGE:
		key = "purge"
	}
	d.mu.Lock()
	c := d.slots[key]
	if c == nil {
		c = make(chan struct{}, n)
		d.slots[key] = c
	}
	d.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// endpoint is this side's end of the route; nil for no route.
func (r *RouteRow) endpoint() *pb.RouteEndpoint {
	if r == nil {
		return nil
	}
	if r.Side == pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE {
		return r.Route.GetSource()
	}
	return r.Route.GetTarget()
}

// guarded calls fn and turns a panic into an error with INTERNAL.
func guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return fn()
}

// detailOf turns a worker's error into what STEP_FAILED and HELD carry. held tells HELD.
func detailOf(err error) (detail *pb.ErrorDetail, held bool) {
	var step *StepError
	var hold *Held
	switch {
	case errors.As(err, &hold):
		held, detail = true, hold.Detail
	case errors.As(err, &step):
		detail = step.Detail
	}
	if detail.GetCode() == pb.ErrorCode_ERROR_CODE_UNSPECIFIED {
		return valid.Detail(pb.ErrorCode_ERROR_CODE_INTERNAL, "an unexpected failure; the daemon's log has the cause"), held
	}
	return detail, held
}
