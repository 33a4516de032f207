package agent

import (
	"context"
	"fmt"
)

// rescueReason is what the ledger says of a hand-over that the end of the process cut off.
const rescueReason = "the server ended before the agent acknowledged"

// Rescue gives back, at start, the redeliverable commands that the last run had handed to WebSocket sessions and that no
// agent acknowledged: those sessions are gone, and a connection only takes what is pending. It returns how many. Every
// other command stays with its deadline, for it may have run.
func (c *Commands) Rescue(ctx context.Context) (n int, err error) {
	for {
		found, rescued := 0, 0
		err := c.st.Update(ctx, "rescue commands", func(tx CommandTx) error {
			rescued = 0
			nos, err := tx.CommandsStranded(tx.Now(), sweepSlice)
			if err != nil {
				return err
			}
			found = len(nos)
			for _, no := range nos {
				if err := c.rescue(tx, no); err != nil {
					return fmt.Errorf("rescue command %d: %w", no, err)
				}
				rescued++
			}
			return nil
		})
		n += rescued
		if err != nil || found < sweepSlice {
			return n, err
		}
	}
}

// WakePending wakes the sessions of every agent that has a pending command, and returns how many agents that were. It is
// the slow look for a wake-up that got lost: delivery itself is woken by the commit.
func (c *Commands) WakePending(ctx context.Context) (n int, err error) {
	var agents []int64
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		agents, err = tx.CommandsPendingAgents(c.woken.Load(), maxWoken)
		return err
	})
	next := int64(0) // from the beginning again
	if len(agents) == maxWoken {
		next = agents[maxWoken-1]
	}
	c.woken.Store(next)
	for _, no := range agents {
		c.hub.Wake(AgentKey(no))
	}
	return len(agents), err
}

// maxWoken bounds one look; the next one goes on behind it.
const maxWoken = 1000

func (c *Commands) rescue(tx CommandTx, no int64) error {
	cmd, err := tx.CommandByNo(no)
	if err != nil {
		return err
	}
	next, err := cmd.Revert(tx.Now(), c.opts.Timeout)
	if err != nil {
		return err
	}
	reason := rescueReason
	if err := tx.FinishDeliveries(no, tx.Now(), DeliverySendFailed, &reason); err != nil {
		return err
	}
	return c.put(tx, cmd, next, EventReverted, &reason)
}
