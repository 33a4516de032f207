package agent

import (
	"context"
	"slices"
	"time"

	"signalbox/appliance/fault"
)

const (
	sweepBatch = 500 // agents of one commit of the liveness sweep
	pruneBatch = 100 // agents of one commit of the hygiene sweep; each has an audit row
	slotBatch  = 500 // worker slots of one commit of the hygiene sweep
	// slotKeep is how long a slot is shown after it was last seen. Agents name a new slot at every start of a process,
	// so old ones pile up.
	slotKeep = 7 * 24 * time.Hour
)

// Limits of the runtime features that a long-poll agent states (agent protocol F.1).
const (
	maxFeatures   = 64
	maxFeatureLen = 64
)

// MarkOnline stores a hello (agent protocol B.2 steps 10 and 15): the agent is online with the inventory it stated, and
// its worker slot with it, in one transaction. It returns the connect time it wrote, which WorkerOffline needs back.
// Unauthenticated when the agent was revoked meanwhile, ProjectInactive when its project was archived.
func (d *Directory) MarkOnline(ctx context.Context, p Peer, h Hello) (connectedAt time.Time, err error) {
	slot, err := newID()
	if err != nil {
		return time.Time{}, err
	}
	err = d.st.Update(ctx, "agent hello", func(tx DirectoryTx) error {
		live, err := tx.SetAgentOnline(p.AgentNo, h)
		if err != nil {
			return err
		}
		if !live {
			if err := checkAccess(tx, p.AgentNo); err != nil {
				return err
			}
			return fault.New(fault.Internal, "agent %s took no hello", p.AgentID)
		}
		connectedAt = tx.Now()
		tx.Hint(func() { d.hub.Wake(AgentsOnline(p.ProjectNo)) })
		return tx.SetSlotOnline(p.AgentNo, slot, h)
	})
	return connectedAt, err
}

// WorkerOffline records the end of a WebSocket session that connected at connectedAt (agent protocol B.6): its slot goes
// offline unless a newer connection has taken it, and the agent with it when this was its last slot and nothing
// connected since.
func (d *Directory) WorkerOffline(ctx context.Context, p Peer, lastSlot bool, connectedAt time.Time) error {
	return d.st.Update(ctx, "worker offline", func(tx DirectoryTx) error {
		if err := tx.SetSlotOffline(p.AgentNo, p.Worker, connectedAt); err != nil || !lastSlot {
			return err
		}
		tx.Hint(func() { d.hub.Wake(AgentsOffline{}) })
		return tx.SetAgentOffline(p.AgentNo, connectedAt)
	})
}

// ResetWorkers marks every worker slot offline and returns how many were online: at start no session exists, whatever a
// crash left behind. Agents keep their state; the liveness sweep knows when they were last heard.
func (d *Directory) ResetWorkers(ctx context.Context) (n int, err error) {
	err = d.st.Update(ctx, "reset workers", func(tx DirectoryTx) (err error) {
		n, err = tx.SetAllSlotsOffline()
		return err
	})
	return n, err
}

// TouchLongPoll records that a verified frame came over long-poll (agent protocol F.5): the agent was heard now, and is
// online whatever it was before. A revoked agent, or one of an archived project, stays as it is.
func (d *Directory) TouchLongPoll(ctx context.Context, p Peer) error {
	return d.st.Update(ctx, "touch agent", func(tx DirectoryTx) error {
		promoted, err := tx.TouchAgent(p.AgentNo)
		if promoted {
			tx.Hint(func() { d.hub.Wake(AgentsOnline(p.ProjectNo)) })
		}
		return err
	})
}

// StoreRuntimeFeatures stores the features that a long-poll agent stated on its probe: nil (no header) keeps what is
// stored, an empty list clears it. Features beyond the limits are left out. Nothing is written when nothing changes.
func (d *Directory) StoreRuntimeFeatures(ctx context.Context, p Peer, features []string) error {
	if features == nil {
		return nil
	}
	features = boundFeatures(features)
	var same bool
	err := d.st.View(ctx, func(tx DirectoryReadTx) error {
		a, err := tx.AgentByID(p.ProjectNo, p.AgentID)
		same = a.RuntimeFeatures != nil && slices.Equal(a.RuntimeFeatures, features)
		return err
	})
	if err != nil || same {
		return err
	}
	return d.st.Update(ctx, "runtime features", func(tx DirectoryTx) error {
		return tx.SetAgentFeatures(p.AgentNo, features)
	})
}

// boundFeatures keeps the first 64 names of at most 64 bytes, each once.
func boundFeatures(features []string) []string {
	out := make([]string, 0, min(len(features), maxFeatures))
	for _, f := range features {
		if len(out) == maxFeatures {
			break
		}
		if f != "" && len(f) <= maxFeatureLen && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// SweepOffline marks agents offline that were silent for the offline timeout (agent protocol B.7) and returns how many.
// It writes nothing when there are none.
func (d *Directory) SweepOffline(ctx context.Context) (n int, err error) {
	for {
		var silent int
		err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
			silent, err = tx.SilentAgents(tx.Now().Add(-d.opts.OfflineTimeout), 1)
			return err
		})
		if err != nil || silent == 0 {
			return n, err
		}
		var batch int
		err = d.st.Update(ctx, "sweep offline", func(tx DirectoryTx) (err error) {
			tx.Hint(func() { d.hub.Wake(AgentsOffline{}) })
			batch, err = tx.SetSilentOffline(tx.Now().Add(-d.opts.OfflineTimeout), sweepBatch)
			return err
		})
		if err != nil {
			return n, err
		}
		if n += batch; batch < sweepBatch {
			return n, nil
		}
	}
}

// PruneStale revokes the agents that have been offline for longer than StalePruneDays (agent protocol B.7), each with
// an audit row, and returns how many. It does nothing when pruning is off.
func (d *Directory) PruneStale(ctx context.Context) (n int, err error) {
	if d.opts.StalePruneDays <= 0 {
		return 0, nil
	}
	age := time.Duration(d.opts.StalePruneDays) * 24 * time.Hour
	for {
		var batch []Agent
		stale := func(tx DirectoryReadTx) (err error) {
			batch, err = tx.StaleAgents(tx.Now().Add(-age), pruneBatch)
			return err
		}
		if err := d.st.View(ctx, stale); err != nil || len(batch) == 0 {
			return n, err
		}
		err := d.st.Update(ctx, "prune agents", func(tx DirectoryTx) error {
			if err := stale(tx); err != nil {
				return err
			}
			for _, a := range batch {
				meta := map[string]any{"name": a.Name, "offline_days": d.opts.StalePruneDays}
				if err := d.revoke(tx, Principal{}, a, "agent.pruned", meta); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return n, err
		}
		if n += len(batch); len(batch) < pruneBatch {
			return n, nil
		}
	}
}

// PruneWorkers removes worker slots that have been offline for a week and returns how many. The agents stay.
func (d *Directory) PruneWorkers(ctx context.Context) (n int, err error) {
	for {
		var batch int
		err := d.st.Update(ctx, "prune worker slots", func(tx DirectoryTx) (err error) {
			batch, err = tx.DeleteSlots(tx.Now().Add(-slotKeep), slotBatch)
			return err
		})
		if err != nil {
			return n, err
		}
		if n += batch; batch < slotBatch {
			return n, nil
		}
	}
}
