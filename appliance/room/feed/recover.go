package feed

import (
	"context"

	"signalbox/appliance/fault"
)

const (
	// restoredJump is how far a restore moves every numbering: farther than anything issued after the copy was made.
	restoredJump = 1 << 32
	// maxSequence is the highest number there may be (E.1).
	maxSequence = 1<<53 - 1
	// recoverRows ends a transaction of the recovery; one more agent's events may come on top.
	recoverRows = 1000
	// recoverAgents bounds it for agents that have no events.
	recoverAgents = 200
)

// Recover must run at each start, before any number is issued. With restored it makes good that the database went back in
// time (N.5): every agent's events are dropped, and marked so, and its numbering jumps clear of all that was issued since
// the copy. The decision is durable before the first step, so a recovery that a crash interrupted is finished by the next
// start, whatever that one says about the database.
func (f *Feed) Recover(ctx context.Context, restored bool) error {
	running := false
	defer f.heads.forget()
	err := f.upkeep.Update(ctx, "rooms.recover_begin", func(tx Tx) error {
		var err error
		if _, running, err = tx.FeedRecovery(); err != nil || running || !restored {
			return err
		}
		running = true
		return tx.FeedSetRecovery(0)
	})
	for err == nil && running {
		err = f.upkeep.Update(ctx, "rooms.recover", func(tx Tx) error {
			running, err = f.recoverSome(tx)
			return err
		})
	}
	return err
}

// recoverSome does some agents and reports whether there may be more.
func (f *Feed) recoverSome(tx Tx) (more bool, err error) {
	through, running, err := tx.FeedRecovery()
	if err != nil || !running {
		return false, err
	}
	agents, err := tx.FeedAgents(through, recoverAgents)
	if err != nil {
		return false, err
	}
	if len(agents) == 0 {
		return false, tx.FeedEndRecovery()
	}
	for removed := int64(0); len(agents) > 0 && removed < recoverRows; agents = agents[1:] {
		n, err := f.recoverAgent(tx, agents[0])
		if err != nil {
			return false, err
		}
		removed += n
		through = agents[0]
	}
	return true, tx.FeedSetRecovery(through)
}

func (f *Feed) recoverAgent(tx Tx, agentNo int64) (n int64, err error) {
	st, err := tx.FeedState(agentNo)
	if err != nil {
		return 0, err
	}
	if st.Newest != 0 {
		if err := tx.FeedMark(agentNo, st.Newest); err != nil {
			return 0, err
		}
		if n, err = tx.FeedDelete(agentNo, st.Newest); err != nil {
			return 0, err
		}
	}
	head := st.Top() + restoredJump
	if head >= maxSequence {
		return 0, fault.New(fault.Internal, "the numbering of agent %d has no room for another restore", agentNo)
	}
	f.resetAfter(tx, agentNo)
	return n, tx.FeedSetNumbers(agentNo, head, head+1, 0)
}
