package schedule

import (
	"context"
	"time"

	"signalbox/appliance/fault"
)

// Gone is woken after every commit that deleted a schedule: RunPurge looks again.
type Gone struct{}

// Bounds of the purge: a schedule may have millions of fires, and nobody else is to wait for them.
const (
	purgeSlice = 200 // rows of one transaction
	purgeMost  = 50  // schedules looked up at a time
)

// RunPurge removes what deleted schedules have left, until ctx ends: at the start what an earlier run has not come to, then
// whatever is deleted. It is woken through Gone and reads nothing in between. Failures go to Options.Trouble and are tried
// again. Run it once.
func (s *Schedules) RunPurge(ctx context.Context) error {
	watch := s.hub.Watch(Gone{})
	defer watch.Stop()
	retry := s.opts.Clock.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-retry.C():
		case <-watch.C():
		case <-ctx.Done():
			return nil
		}
		if _, err := s.Purge(ctx); err != nil && ctx.Err() == nil {
			s.opts.Trouble("purge deleted schedules", err)
			retry.Reset(retryPurge)
		}
	}
}

// retryPurge is the wait after a failure of the purge.
const retryPurge = 10 * time.Second

// Purge removes what deleted schedules have left, in slices, and returns how many rows that were. It stops between two slices
// when ctx ends; what is left then is the next call's.
func (s *Schedules) Purge(ctx context.Context) (n int, err error) {
	for {
		var nos []int64
		if err := s.st.View(ctx, func(tx ReadTx) (err error) {
			nos, err = tx.SchedulesDeleted(purgeMost)
			return err
		}); err != nil || len(nos) == 0 {
			return n, err
		}
		for _, no := range nos {
			for gone := false; !gone; {
				if ctx.Err() != nil {
					return n, fault.Wrap(fault.Canceled, context.Cause(ctx), "purge deleted schedules was stopped")
				}
				removed := 0
				err := s.st.Update(ctx, "purge deleted schedule", func(tx Tx) (err error) {
					removed, gone, err = tx.PurgeSchedule(no, purgeSlice)
					return err
				})
				if n += removed; err != nil {
					return n, err
				}
			}
			n++ // the schedule itself
		}
	}
}
