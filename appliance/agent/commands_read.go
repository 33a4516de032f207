package agent

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// Get returns a command of the project; NotFound when there is none.
func (c *Commands) Get(ctx context.Context, projectNo int64, id uuid.UUID) (cmd Command, err error) {
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		cmd, err = tx.CommandByID(projectNo, id)
		return notFoundAs(err, "command not found")
	})
	return cmd, err
}

// List returns a page of the project's commands, newest first.
func (c *Commands) List(ctx context.Context, projectNo int64, f CommandFilter, page Page) (cmds []Command, err error) {
	if f.Status != "" && !f.Status.Valid() {
		return nil, fault.Field("status", "must be pending, dispatched, completed, failed, timeout or cancelled")
	}
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		cmds, err = tx.CommandList(projectNo, f, page)
		return err
	})
	return cmds, err
}

// Resolve returns the ids of the project's commands that start with the hex digits of prefix, at most 10; none for what
// is not a prefix (see IDRange).
func (c *Commands) Resolve(ctx context.Context, projectNo int64, prefix string) (ids []uuid.UUID, err error) {
	from, to, ok := IDRange(prefix)
	if !ok {
		return nil, nil
	}
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		ids, err = tx.CommandsWithPrefix(projectNo, from, to, maxResolved)
		return err
	})
	return ids, err
}

// Deliveries returns the delivery ledger of a command, oldest first.
func (c *Commands) Deliveries(ctx context.Context, projectNo int64, id uuid.UUID) (ds []Delivery, err error) {
	err = c.withCommand(ctx, projectNo, id, func(tx CommandReadTx, cmd Command) error {
		ds, err = tx.CommandDeliveries(cmd.No)
		return err
	})
	return ds, err
}

// maxTimeline bounds what one answer holds of a timeline; a command has a handful of rows.
const maxTimeline = 1000

// Timeline returns the changes of a command, oldest first.
func (c *Commands) Timeline(ctx context.Context, projectNo int64, id uuid.UUID) (ts []Transition, err error) {
	err = c.withCommand(ctx, projectNo, id, func(tx CommandReadTx, cmd Command) error {
		ts, err = tx.CommandTransitions(cmd.No, maxTimeline)
		return err
	})
	return ts, err
}

func (c *Commands) withCommand(ctx context.Context, projectNo int64, id uuid.UUID, fn func(CommandReadTx, Command) error) error {
	return c.st.View(ctx, func(tx CommandReadTx) error {
		cmd, err := tx.CommandByID(projectNo, id)
		if err != nil {
			return notFoundAs(err, "command not found")
		}
		return fn(tx, cmd)
	})
}

// Cancel gives up a command that has not ended (audited). What the agent does with it already goes on; its result will
// count as late. Conflict with the status when it has ended; NotFound when there is none.
func (c *Commands) Cancel(ctx context.Context, p Principal, projectNo int64, id uuid.UUID) (cmd Command, err error) {
	err = c.st.Update(ctx, "cancel command", func(tx CommandTx) error {
		before, err := tx.CommandByID(projectNo, id)
		if err != nil {
			return notFoundAs(err, "command not found")
		}
		if cmd, err = before.Cancel(tx.Now()); err != nil {
			return err
		}
		reason := "the command was cancelled"
		if err := tx.FinishDeliveries(cmd.No, tx.Now(), DeliverySuperseded, &reason); err != nil {
			return err
		}
		by := "by " + shorten(p.Name)
		if p.Name == "" {
			by = "by " + shorten(p.ID)
		}
		if err := c.put(tx, before, cmd, EventCancelled, &by); err != nil {
			return err
		}
		return c.auditBy(tx, p, cmd, "command.cancelled", []byte(`{"status":"`+string(before.Status)+`"}`))
	})
	if err != nil {
		return Command{}, fmt.Errorf("cancel command %s: %w", id, err)
	}
	return cmd, nil
}

// StreamPage is a stretch of the log of transitions.
type StreamPage struct {
	Items []StreamItem
	Next  int64 // position to go on from
	More  bool  // Next is not the head yet: read again without waiting
	// Gap tells that the position lies below what retention removed, or beyond the head: rows between it and the first
	// item may be missing. The stream went on from Resumed: with the oldest kept row after the position, or at the head.
	Gap     bool
	Resumed int64
	Bounds  StreamBounds
}

// streamScan bounds how much of the log one call looks through, whatever the filter lets pass.
const streamScan = 4096

// Head returns the ends of the project's log of transitions. A stream that starts now starts after Head.
func (c *Commands) Head(ctx context.Context, projectNo int64) (b StreamBounds, err error) {
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		b, err = tx.CommandStreamBounds(projectNo)
		return err
	})
	return b, err
}

// StreamSince returns the project's transitions after a position, oldest first, at most limit. Position 0 is the oldest
// kept row and never a gap. Watch ProjectCommands before the first call and wait for it when More is false.
func (c *Commands) StreamSince(ctx context.Context, projectNo, after int64, f StreamFilter, limit int) (StreamPage, error) {
	var page StreamPage
	err := c.st.View(ctx, func(tx CommandReadTx) error {
		b, err := tx.CommandStreamBounds(projectNo)
		if err != nil {
			return err
		}
		page = startStream(after, b)
		upTo := min(page.Next+streamScan, b.Head)
		page.Items, err = tx.CommandStream(projectNo, page.Next, upTo, f, limit)
		if err != nil {
			return err
		}
		page.Next = upTo
		if n := len(page.Items); n == limit && n > 0 {
			page.Next = page.Items[n-1].Transition.No
		}
		page.More = page.Next < b.Head
		return nil
	})
	return page, err
}

// startStream decides where a stream from a position goes on.
func startStream(after int64, b StreamBounds) StreamPage {
	p := StreamPage{Bounds: b, Next: after}
	switch {
	case after > b.Head: // a position of a database that was since restored from a copy
		p.Gap, p.Next = true, b.Head
	case after != 0 && after < b.Pruned:
		p.Gap = true
	}
	if p.Next < b.First-1 { // nothing is kept below
		p.Next = b.First - 1
	}
	p.Resumed = p.Next
	return p
}
