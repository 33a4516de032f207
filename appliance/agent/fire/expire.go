package fire

import (
	"context"
	"time"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

const (
	expiryBatch = 100 // fires of one transaction; each has an audit row
	breakBatch  = 100 // schedules of one turn of the circuit breaker
	pruneScan   = 100 // rows that one transaction of retention looks at
)

// Expired ends the buffered fires whose buffer time has run out (agent protocol G.4 step 1) and returns how many. A fire
// expires at its expires_at, not after it. A time that lies further ahead than the whole retention was set by a clock that was
// ahead, or under a longer retention: it is brought forward to that.
func (f *Fires) Expired(ctx context.Context) (n int, err error) {
	if err := f.boundExpiry(ctx); err != nil {
		return 0, err
	}
	for {
		var due []Pending
		look := func(tx ReadTx) (err error) {
			due, err = tx.PendingExpired(tx.Now(), expiryBatch)
			return err
		}
		if err := f.st.View(ctx, look); err != nil || len(due) == 0 {
			return n, err
		}
		err := f.st.Update(ctx, "expire buffered fires", func(tx Tx) error {
			if err := look(tx); err != nil {
				return err
			}
			for i := range due {
				if err := f.expire(tx, &due[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return n, err
		}
		if n += len(due); len(due) < expiryBatch {
			return n, nil
		}
	}
}

func (f *Fires) boundExpiry(ctx context.Context) error {
	found := false
	if err := f.st.View(ctx, func(tx ReadTx) (err error) {
		found, err = tx.PendingExpiryAfter(tx.Now().Add(f.opts.Retention))
		return err
	}); err != nil || !found {
		return err
	}
	return f.st.Update(ctx, "bound the buffer time of fires", func(tx Tx) error {
		return tx.PendingBoundExpiry(tx.Now().Add(f.opts.Retention))
	})
}

func (f *Fires) expire(tx Tx, p *Pending) error {
	fire, err := tx.FireByNo(p.FireNo)
	if err != nil {
		return err
	}
	why := Trouble{Code: CodeExpired, Message: "no online agent listed the engine " + p.Engine + " before the buffer time ran out"}
	if err := f.leave(tx, p, BufferExpired, &why, nil); err != nil {
		return err
	}
	fire.ErrorMessage = &why.Message
	if err := f.opts.News.FireExpired(tx, fire); err != nil {
		return err
	}
	id := fire.ScheduleID.String()
	meta := []byte(`{"engine":`)
	meta = rawjson.AppendString(meta, p.Engine)
	meta = append(meta, `,"enqueued_at":"`+rawjson.FormatTime(p.EnqueuedAt)+`","fire_id":"`+fire.FireID.String()+
		`","scheduled_for":"`+rawjson.FormatTime(p.ScheduledFor)+`"}`...)
	return f.log.Append(tx, audit.Entry{ProjectNo: p.ProjectNo, Action: "schedule.fire.buffer_expired", TargetType: "schedule",
		TargetID: &id, Result: "expired", Outcome: audit.Failure, Metadata: meta})
}

// TripBreakers disables the schedules whose count of failures has reached the threshold without having been tripped by the
// last of them, because the threshold was lowered since, and returns how many.
func (f *Fires) TripBreakers(ctx context.Context) (n int, err error) {
	if f.opts.BreakerThreshold <= 0 {
		return 0, nil
	}
	for {
		var found []int64
		look := func(tx Tx) (err error) {
			found, err = tx.SchedulesFailing(f.opts.BreakerThreshold, breakBatch)
			return err
		}
		any := false
		if err := f.st.View(ctx, func(tx ReadTx) (err error) {
			nos, err := tx.SchedulesFailing(f.opts.BreakerThreshold, 1)
			any = len(nos) > 0
			return err
		}); err != nil || !any {
			return n, err
		}
		err := f.st.Update(ctx, "trip circuit breakers", func(tx Tx) error {
			if err := look(tx); err != nil {
				return err
			}
			for _, no := range found {
				if err := f.trip(tx, no); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return n, err
		}
		if n += len(found); len(found) < breakBatch {
			return n, nil
		}
	}
}

// Prune removes fires that were fired before the cutoff and are not buffered, in slices, and returns how many. It stops
// between two slices when ctx ends.
func (f *Fires) Prune(ctx context.Context, cutoff time.Time) (n int, err error) {
	for after := int64(0); ; {
		if ctx.Err() != nil {
			return n, fault.Wrap(fault.Canceled, context.Cause(ctx), "prune fires was stopped")
		}
		var removed int
		var next int64
		err := f.st.Update(ctx, "prune fires", func(tx Tx) (err error) {
			removed, next, err = tx.PruneFires(after, cutoff, pruneScan)
			return err
		})
		if err != nil {
			return n, err
		}
		n += removed
		if next == 0 {
			return n, nil
		}
		after = next
	}
}
