package agent

import (
	"context"
	"fmt"
	"time"

	"signalbox/appliance/fault"
)

// Slices of the sweep and of retention: what one transaction ends or looks at.
const (
	sweepSlice = 200
	pruneScan  = 100
)

// SweepTimeouts ends every open command whose deadline has passed and returns how many (agent protocol E.3). It works
// in slices of 200, one transaction each, and writes nothing when there is none. A deadline that lies further ahead than a
// command's whole timeout was set by a clock that was ahead: it is brought forward to that.
func (c *Commands) SweepTimeouts(ctx context.Context) (n int, err error) {
	if err := c.boundDeadlines(ctx); err != nil {
		return 0, err
	}
	for {
		due, done, err := c.sweepSlice(ctx)
		n += done
		if err != nil || due < sweepSlice {
			return n, err
		}
	}
}

// boundDeadlines brings the deadlines forward that a clock set which was set back since.
func (c *Commands) boundDeadlines(ctx context.Context) error {
	found := false
	if err := c.st.View(ctx, func(tx CommandReadTx) (err error) {
		found, err = tx.CommandDeadlineAfter(tx.Now().Add(c.opts.Timeout))
		return err
	}); err != nil || !found {
		return err
	}
	return c.st.Update(ctx, "bound command deadlines", func(tx CommandTx) error {
		return tx.CommandsBoundDeadlines(tx.Now().Add(c.opts.Timeout))
	})
}

// sweepSlice ends up to one slice: due were found, done of them ended.
func (c *Commands) sweepSlice(ctx context.Context) (due, done int, err error) {
	expired := func(tx CommandReadTx) ([]int64, error) { return tx.CommandsExpired(tx.Now(), sweepSlice) }
	var found []int64
	if err := c.st.View(ctx, func(tx CommandReadTx) error { found, err = expired(tx); return err }); err != nil || len(found) == 0 {
		return 0, 0, err
	}
	err = c.st.Update(ctx, "time out commands", func(tx CommandTx) error {
		done = 0
		nos, err := expired(tx)
		if err != nil {
			return err
		}
		due = len(nos)
		for _, no := range nos {
			if err := c.expire(tx, no); err != nil {
				return fmt.Errorf("time out command %d: %w", no, err)
			}
			done++
		}
		return nil
	})
	return due, done, err
}

func (c *Commands) expire(tx CommandTx, no int64) error {
	cmd, err := tx.CommandByNo(no)
	if err != nil {
		return err
	}
	next, err := cmd.Expire(tx.Now())
	if err != nil {
		return err
	}
	if err := tx.FinishDeliveries(no, tx.Now(), DeliveryTimeout, nil); err != nil {
		return err
	}
	detail := "nobody had taken it"
	if cmd.Status == Dispatched {
		detail = "no result came"
	}
	return c.put(tx, cmd, next, EventTimedOut, &detail)
}

// NextDeadline returns when SweepTimeouts will next have something to do; the zero time when no command is open. A
// caller that sleeps until then watches SweepKey first: it is woken when an earlier deadline comes.
func (c *Commands) NextDeadline(ctx context.Context) (at time.Time, err error) {
	// Until the answer is known every new deadline wakes: none can fall between the read and the sleep.
	c.deadline.Store(0)
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		at, err = tx.CommandNextDeadline()
		return err
	})
	if err != nil || at.IsZero() {
		return time.Time{}, err
	}
	// A deadline is over strictly after its time.
	at = at.Add(time.Microsecond)
	c.deadline.Store(at.UnixMicro())
	return at, nil
}

// deadlineSet wakes the sweep when a new deadline is earlier than what it sleeps until.
func (c *Commands) deadlineSet(at time.Time) {
	if until := c.deadline.Load(); until == 0 || at.UnixMicro() < until {
		c.hub.Wake(SweepKey{})
	}
}

// PruneCommands removes terminal commands that ended before the cutoff, with their ledgers and timelines, and returns
// how many. It works in slices, one short transaction each, and stops between two of them when ctx ends.
func (c *Commands) PruneCommands(ctx context.Context, cutoff time.Time) (n int, err error) {
	for after := int64(0); ; {
		if ctx.Err() != nil {
			return n, fault.Wrap(fault.Canceled, context.Cause(ctx), "prune commands was stopped")
		}
		var removed int
		var next int64
		err := c.st.Update(ctx, "prune commands", func(tx CommandTx) error {
			removed, next, err = tx.PruneCommands(after, cutoff, pruneScan)
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
