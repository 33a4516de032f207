package fire

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
)

const (
	// replayBatch is how many buffered fires one transaction looks at: some hundred rows written at most.
	replayBatch = 100
	// replayIdle is how many batches that bring nothing one turn looks at: the next one goes on behind them.
	replayIdle = 5
	// replayWindow is how many schedule.fire commands an agent may have open for replay to give it another: what stands in
	// the queue longer than the command timeout would be lost to it (agent protocol G.4: 200 for each turn of 10 s).
	replayWindow = 200
)

// Waiting is a buffered fire with what decides about it at replay.
type Waiting struct {
	Pending
	FireID     uuid.UUID
	ScheduleID uuid.UUID
	CatchUp    schedule.CatchUp
	Newest     bool // no other fire of its schedule and engine in the buffer is scheduled for later
}

// verdict is what replay does with a buffered fire.
type verdict uint8

const (
	deliver verdict = iota
	drop
)

// judge applies the schedule's catch_up (agent protocol G.4 step 3).
func judge(w *Waiting) verdict {
	switch w.CatchUp {
	case schedule.FireAll:
		return deliver
	case schedule.FireOne:
		if w.Newest {
			return deliver
		}
	}
	return drop
}

// replayer is who the commands of replay are issued by: the appliance.
var replayer = agent.Principal{}

// Position is where a fire stands in the order of replay.
type Position struct {
	ScheduledFor time.Time
	No           int64 // of the Pending
}

// pass is one walk through the buffered fires of a group, oldest first, page by page.
type pass struct {
	after Position
	// stuck are schedules with a fire that could not be handed over: their later ones wait for it.
	stuck map[int64]bool
	left  bool // it has passed fires that stay in the buffer
	idle  int  // pages in a row that brought nothing
}

// replayed is what one transaction of replay did.
type replayed struct {
	seen, delivered, dropped int
	full                     bool // the agents have as many fires open as replay gives them
}

// outcome is how a walk ended.
type outcome struct {
	left bool  // something of the group is still buffered
	full bool  // what is left waits for the agent to end commands
	rest *pass // where the next turn goes on; nil: at the beginning
}

// replayGroup hands over what an agent can take of a group, oldest first, page by page, beginning where rest says. A fire that
// is refused stays, and so do the later ones of its schedule; those of others behind it are reached nevertheless.
func (f *Fires) replayGroup(ctx context.Context, g Group, rest *pass) (outcome, error) {
	p := rest
	if p == nil {
		p = &pass{stuck: map[int64]bool{}}
	}
	for ctx.Err() == nil {
		able, full := false, false
		err := f.st.View(ctx, func(tx ReadTx) error {
			t, room, err := bestTarget(tx, g)
			able, full = t != nil && room > 0, t != nil && room <= 0
			return err
		})
		if err != nil || !able {
			return outcome{left: true, full: full}, err
		}
		var r replayed
		if err := f.st.Update(ctx, "replay fires", func(tx Tx) (err error) {
			r, err = f.replayBatch(tx, g, p)
			return err
		}); err != nil {
			return outcome{left: true}, err
		}
		p.left = p.left || r.delivered+r.dropped < r.seen
		p.idle++
		if r.delivered+r.dropped > 0 {
			p.idle = 0
		}
		switch {
		case r.full:
			return outcome{left: true, full: true}, nil
		case r.seen < replayBatch:
			return outcome{left: p.left}, nil
		case p.idle == replayIdle:
			p.idle = 0
			return outcome{left: true, rest: p}, nil
		}
	}
	return outcome{left: true}, ctx.Err()
}

// bestTarget is the agent that a fire of the group would go to, and how many more it may have open; nil without one.
func bestTarget(tx ReadTx, g Group) (t *Target, room int, err error) {
	targets, err := tx.FireTargets(g.ProjectNo, g.Engine, 1)
	if err != nil || len(targets) == 0 {
		return nil, 0, err
	}
	open, err := tx.FireCommandsOpen(targets[0].AgentNo)
	return &targets[0], replayWindow - open, err
}

// replayBatch decides about the next buffered fires of a group (agent protocol G.4 steps 2 to 4).
func (f *Fires) replayBatch(tx Tx, g Group, p *pass) (r replayed, err error) {
	t, room, err := bestTarget(tx, g)
	if err != nil || t == nil {
		return r, err
	}
	rows, err := tx.PendingToReplay(g, p.after, replayBatch)
	if err != nil {
		return r, err
	}
	r.seen = len(rows)
	for i := range rows {
		w := &rows[i]
		p.after = Position{w.ScheduledFor, w.No}
		if !w.ExpiresAt.After(tx.Now()) { // the buffer time has run out: the expiry's
			continue
		}
		switch judge(w) {
		case drop:
			if err := f.leave(tx, &w.Pending, BufferExpired, &Trouble{Code: CodeCatchUp,
				Message: "an agent came, and the schedule's catch_up (" + string(w.CatchUp) + ") leaves this fire out"}, nil); err != nil {
				return r, err
			}
			r.dropped++
		case deliver:
			if room <= 0 {
				r.full = true
				continue
			}
			if p.stuck[w.ScheduleNo] {
				continue
			}
			fire := Fire{ProjectNo: w.ProjectNo, FireID: w.FireID}
			cmd, err := f.issueTo(tx, replayer, *t, fire, w.ScheduleID, w.Payload)
			if refused(err) { // it stays for another turn
				p.stuck[w.ScheduleNo] = true
				continue
			}
			if err != nil {
				return r, err
			}
			if err := f.leave(tx, &w.Pending, Delivered, nil, cmd); err != nil {
				return r, err
			}
			room--
			r.delivered++
		}
	}
	return r, nil
}

// leave takes a fire out of the buffer.
func (f *Fires) leave(tx Tx, p *Pending, to Status, why *Trouble, cmd *agent.Command) error {
	fire, err := tx.FireByNo(p.FireNo)
	if err != nil {
		return err
	}
	if err := tx.DeletePending(p.No); err != nil {
		return err
	}
	next, ok := fire.To(to, tx.Now(), why)
	if !ok {
		return fault.New(fault.Internal, "buffered fire %s is %s", fire.FireID, fire.Status)
	}
	if cmd != nil {
		next.CommandNo, next.CommandID = cmd.No, &cmd.ID
	}
	return f.save(tx, fire.Status, next)
}
