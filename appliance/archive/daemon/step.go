package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
)

// errLeaseGone tells a worker that its lease is not open any more.
var errLeaseGone = errors.New("the lease is not open any more")

// performStep runs one leased step from STEP_STARTED to its terminal event.
func (d *Daemon) performStep(ctx context.Context, w *work) error {
	release, err := d.slot(ctx, w)
	if err != nil {
		return err
	}
	defer release()
	resumed, made, err := d.begin(ctx, w)
	if err != nil {
		return gone(err)
	}
	m := newMeter(d, w, made)
	t := &Task{Job: d.job(w), CommandID: w.lease.CommandID, Execute: w.execute, Resumed: resumed, Progress: m.report,
		Confirmed: func(ctx context.Context) error { return d.awaitConfirmed(ctx, w.lease) },
		Commit:    func(ctx context.Context, r CommitRecord) error { return d.commit(ctx, w, r) }}
	measured := make(chan struct{})
	measuring, stop := context.WithCancel(ctx)
	go func() {
		defer close(measured)
		m.run(measuring)
	}()
	var evidence *pb.StepEvidence
	err = guarded(func() (err error) {
		evidence, err = d.o.Steps.Run(ctx, t)
		return err
	})
	stop()
	<-measured
	if ctx.Err() != nil || errors.Is(err, errLeaseGone) {
		return nil // the lease is not ours any more, or the next process runs the step again
	}
	if err == nil {
		err = checkEvidence(w.execute.GetStep(), evidence)
	}
	return gone(d.finish(ctx, w, m.last(), evidence, err))
}

// gone is nil for a lease that has ended: the runner looks at the job anew.
func gone(err error) error {
	if errors.Is(err, errLeaseGone) {
		return nil
	}
	return err
}

// begin makes STEP_STARTED unless an earlier call did; then it returns the last progress of that one.
func (d *Daemon) begin(ctx context.Context, w *work) (resumed bool, made *pb.Progress, err error) {
	err = d.update(ctx, "daemon.step_started", func(tx Tx) error {
		row, l, ok, err := leased(tx, w.row.ID, w.lease.CommandID)
		if err != nil {
			return err
		}
		if !ok {
			return errLeaseGone
		}
		if resumed = l.Started; resumed {
			last, _, err := tx.LastEvent(l.CommandID, minorKinds...)
			made = last.Event.GetProgress()
			return err
		}
		return d.emit(tx, &row, &l, pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED, nil)
	})
	if err == nil && !resumed {
		d.tell(Notice{What: WhatStepStarted, Job: w.row.ID, Step: w.lease.Step, Command: w.lease.CommandID})
	}
	return resumed, made, err
}

// finish makes the terminal event and closes the lease, in one transaction.
func (d *Daemon) finish(ctx context.Context, w *work, last *pb.Progress, evidence *pb.StepEvidence, failure error) error {
	kind, detail := pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED, (*pb.ErrorDetail)(nil)
	if failure != nil {
		var held bool
		kind = pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED
		if detail, held = detailOf(failure); held {
			kind = pb.JobEventKind_JOB_EVENT_KIND_HELD
		}
	}
	err := d.update(ctx, "daemon.step_ended", func(tx Tx) error {
		row, l, ok, err := leased(tx, w.row.ID, w.lease.CommandID)
		if err != nil {
			return err
		}
		if !ok {
			return errLeaseGone
		}
		kind, detail := kind, detail
		if evidence != nil && failure == nil && archive.Commits(l.Step) {
			if row.Committed {
				row.CommitEvidenceSHA256 = archive.EvidenceDigest(evidence)
			} else {
				kind = pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED
				detail = valid.Detail(pb.ErrorCode_ERROR_CODE_INTERNAL, "the step ended without its commit record")
			}
		}
		return d.emit(tx, &row, &l, kind, func(e *pb.JobEvent) {
			e.Error = detail
			if kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED {
				e.Evidence, e.Progress = evidence, completed(w, last)
			} else {
				e.Progress = last
			}
		})
	})
	if err != nil {
		return err
	}
	d.forget(w.lease.CommandID)
	what := map[pb.JobEventKind]string{pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED: WhatStepDone,
		pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED: WhatStepFailed, pb.JobEventKind_JOB_EVENT_KIND_HELD: WhatHeld}[kind]
	d.tell(Notice{What: what, Job: w.row.ID, Step: w.lease.Step, Command: w.lease.CommandID, Code: detail.GetCode(), Err: failure})
	return d.at(EndStored, w.row.ID)
}

// checkEvidence holds the worker to the step it was given.
func checkEvidence(step pb.JobStep, e *pb.StepEvidence) error {
	var of pb.JobStep
	switch e.GetEvidence().(type) {
	case *pb.StepEvidence_Stage:
		of = pb.JobStep_JOB_STEP_STAGE
	case *pb.StepEvidence_Transfer:
		of = pb.JobStep_JOB_STEP_TRANSFER
	case *pb.StepEvidence_Materialize:
		of = pb.JobStep_JOB_STEP_MATERIALIZE
	case *pb.StepEvidence_Verify:
		of = pb.JobStep_JOB_STEP_VERIFY
	case *pb.StepEvidence_Commit:
		of = pb.JobStep_JOB_STEP_COMMIT
	case *pb.StepEvidence_Release:
		of = pb.JobStep_JOB_STEP_RELEASE
	case *pb.StepEvidence_Purge:
		of = pb.JobStep_JOB_STEP_PURGE
	}
	if of != step {
		return fmt.Errorf("step %s ended with evidence of %s", step, of)
	}
	return nil
}

// awaitConfirmed blocks until control has confirmed the lease: to this process for COMMIT, over the present connection for
// RELEASE and PURGE (3.5, 3.6). Other steps do nothing irreversible and need no confirmation.
func (d *Daemon) awaitConfirmed(ctx context.Context, l Lease) error {
	if !archive.Irreversible(l.Step) {
		return ctx.Err()
	}
	watch := d.hub.Watch(confirmKey(l.CommandID))
	defer watch.Stop()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.mu.Lock()
		by, ok := d.confirmed[l.CommandID]
		present := by == d.session
		d.mu.Unlock()
		if ok && (present || l.Step == pb.JobStep_JOB_STEP_COMMIT) {
			return nil
		}
		select {
		case <-watch.C():
		case <-ctx.Done():
		}
	}
}

// forget drops the confirmation of a lease that has ended.
func (d *Daemon) forget(lease uuid.UUID) {
	d.mu.Lock()
	delete(d.confirmed, lease)
	d.mu.Unlock()
}

// maxAction bounds the worker's own part of a commit record.
const maxAction = 64 << 10

// commit writes the commit record and the commit flag, only while the lease is open (3.5, 3.7).
func (d *Daemon) commit(ctx context.Context, w *work, r CommitRecord) error {
	if !archive.Commits(w.lease.Step) || r.Step != w.lease.Step || len(r.Action) > maxAction || r.CommitID == uuid.Nil {
		return fmt.Errorf("commit record of %s under a lease of %s, action of %d bytes", r.Step, w.lease.Step, len(r.Action))
	}
	if err := d.awaitConfirmed(ctx, w.lease); err != nil {
		return err
	}
	err := d.update(ctx, "daemon.commit_record", func(tx Tx) error {
		row, _, ok, err := leased(tx, w.row.ID, w.lease.CommandID)
		if err != nil {
			return err
		}
		if !ok {
			return errLeaseGone
		}
		found, err := tx.CommitRecord(row.ID)
		if err != nil {
			return err
		}
		if found != nil {
			if !found.equal(r) {
				return &Held{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT, "the job has another commit record")}
			}
			return nil
		}
		if err := tx.PutCommitRecord(row.ID, r); err != nil {
			return err
		}
		row.Committed = true
		return tx.UpdateJob(row)
	})
	if err != nil {
		return err
	}
	return d.at(CommitRecorded, w.row.ID)
}

func (r *CommitRecord) equal(o CommitRecord) bool {
	return r.CommitID == o.CommitID && r.Step == o.Step && r.VerifyEvidenceSHA256 == o.VerifyEvidenceSHA256 && string(r.Action) == string(o.Action)
}
