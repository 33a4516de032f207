package daemon

import (
	"context"
	"errors"

	pb "signalbox/appliance/archive/archivepb"
)

// performUndo cleans up after a CancelJob and ends it with STEP_CANCELLED, or HELD when a person must look. A retryable
// failure is tried again.
func (d *Daemon) performUndo(ctx context.Context, w *work) error {
	err := guarded(func() error { return d.o.Steps.Undo(ctx, d.job(w), w.cancel.GetCleanup()) })
	if ctx.Err() != nil {
		return nil
	}
	kind, detail := pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED, (*pb.ErrorDetail)(nil)
	if err != nil {
		detail, _ = detailOf(err)
		var step *StepError
		if errors.As(err, &step) && detail.GetRetryable() {
			d.tell(Notice{What: WhatCleanup, Job: w.row.ID, Command: w.lease.CommandID, Code: detail.GetCode(), Err: err})
			return err
		}
		kind = pb.JobEventKind_JOB_EVENT_KIND_HELD
	}
	failure := err
	err = d.update(ctx, "daemon.cancelled", func(tx Tx) error {
		row, l, ok, err := leased(tx, w.row.ID, w.lease.CommandID)
		if err != nil {
			return err
		}
		if !ok {
			return errLeaseGone
		}
		if err := d.emit(tx, &row, &l, kind, func(e *pb.JobEvent) { e.Error = detail }); err != nil {
			return err
		}
		return settleCancelled(tx, row, l)
	})
	if err != nil {
		return gone(err)
	}
	d.forget(w.lease.CommandID)
	what := WhatCancelled
	if failure != nil {
		what = WhatHeld
	}
	d.tell(Notice{What: what, Job: w.row.ID, Command: w.lease.CommandID, Code: detail.GetCode(), Err: failure})
	return d.at(EndStored, w.row.ID)
}

// settleCancelled gives the step leases that the CancelJob closed their terminal event: that of the cancel.
func settleCancelled(tx Tx, row JobRow, cancel Lease) error {
	leases, err := tx.JobLeases(row.ID)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.State == pb.LeaseState_LEASE_STATE_SETTLED && l.EndSequence == 0 {
			l.EndSequence = cancel.EndSequence
			if err := tx.PutLease(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// performClose removes the job's own files after CloseJob. It is repeated, also by later processes, until it is done.
func (d *Daemon) performClose(ctx context.Context, w *work) error {
	err := guarded(func() error { return d.o.Steps.Close(ctx, d.job(w)) })
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		detail, _ := detailOf(err)
		d.tell(Notice{What: WhatCleanup, Job: w.row.ID, Code: detail.GetCode(), Err: err})
		return err
	}
	return d.update(ctx, "daemon.closed", func(tx Tx) error {
		row, ok, err := tx.Job(w.row.ID)
		if err != nil || !ok {
			return err
		}
		row.Closing = false
		return tx.UpdateJob(row)
	})
}
