package job

import (
	"context"
	"time"

	pb "signalbox/appliance/archive/archivepb"
)

// longestAfterStart bounds the waits that a process finds in the database: no wait that time ends is meant to be longer,
// except that for the end of a retention (daemon protocol 2.4, ErrorDetail).
const longestAfterStart = 24 * time.Hour

// longest bounds the waits that this process begins by itself. A job without space may be looked at before its time.
func (e *Engine) longest() time.Duration { return max(e.o.RetryCap, e.o.SpaceEvery, e.o.SnapshotWait) }

// setBack tells whether the system's clock is behind what it said at the last call. Only one goroutine calls it.
func (e *Engine) setBack(now time.Time) bool {
	last := e.looked
	e.looked = now.Round(0) // the date, not the time that passed
	return e.looked.Before(last)
}

// boundWaits brings forward what a clock put too far into the future that was set back since: no wait then lasts until the
// clock has caught up.
func (e *Engine) boundWaits(ctx context.Context, longest time.Duration) error {
	if err := e.update(ctx, "job_waits", func(tx Tx) error {
		return tx.JobBoundRetries(tx.Now().Add(longest))
	}); err != nil {
		return err
	}
	for after := int64(0); ; {
		var list []int64
		if err := e.st.View(ctx, func(tx ReadTx) (err error) {
			list, err = tx.JobsWaiting(int32(pb.WaitReason_WAIT_REASON_RETENTION), after, 100)
			return err
		}); err != nil || len(list) == 0 {
			return err
		}
		for _, no := range list {
			after = no
			if err := e.boundRetention(ctx, no); err != nil {
				return err
			}
		}
	}
}

// boundRetention lets a job wait for its retention from now, when it would wait for longer than that: the content was
// released no later than now.
func (e *Engine) boundRetention(ctx context.Context, jobNo int64) error {
	return e.update(ctx, "job_retention", func(tx Tx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.State != stateWaiting || row.Wait != waitRetention {
			return err
		}
		b, err := e.load(tx, row)
		if err != nil || b.def == nil {
			return err
		}
		latest := tx.Now().Add(retention(b.def))
		if !b.row.RetainUntil.After(latest) {
			return nil
		}
		b.row.RetainUntil, b.row.RetryAt = latest, latest
		return tx.JobUpdate(&b.row)
	})
}
