package feed

import (
	"context"
	"sync"
	"time"

	"signalbox/appliance/fault"
)

// dropRows is how many events one transaction of the sweep removes, and sweepAgents how many agents it visits; one more
// agent's worth may come on top.
const (
	dropRows    = 512
	sweepAgents = 32
	scanAgents  = 256
	// trimEvery is how far an agent's rows may grow beyond the cap before they are removed.
	trimEvery = 64
)

// window is what a reader sees of an agent's events: those above cutoff.
type window struct {
	State
	cutoff  int64 // number of the newest event that is stored and counts as dropped; 0: none
	dropped int64 // highest number dropped, marked or not
}

// window reads an agent's numbering and applies retention to it (N.4).
func (f *Feed) window(tx ReadTx, agentNo int64) (w window, err error) {
	if w.State, err = tx.FeedState(agentNo); err != nil {
		return w, err
	}
	if w.cutoff, err = f.cutoff(tx, agentNo, w.State, tx.Now()); err != nil {
		return w, err
	}
	w.dropped = max(w.Dropped, w.cutoff)
	return w, nil
}

// cutoff is the newest stored event that retention takes, 0 for none. Age takes only the oldest ones in a row: should the
// clock have jumped back, an event stays as long as an older one does.
func (f *Feed) cutoff(tx ReadTx, agentNo int64, st State, now time.Time) (cutoff int64, err error) {
	if excess := st.Stored() - f.retained; excess > 0 {
		if cutoff, err = tx.FeedNth(agentNo, excess); err != nil {
			return 0, err
		}
	}
	limit, ok := f.ageLimit(now)
	if !ok || st.Oldest == 0 || !st.OldestAt.Before(limit) {
		return cutoff, nil
	}
	first, err := tx.FeedFirstSince(agentNo, limit)
	if err != nil {
		return 0, err
	}
	if first == 0 {
		return st.Newest, nil
	}
	if first <= cutoff+1 {
		return cutoff, nil
	}
	return tx.FeedLast(agentNo, first-1)
}

// ageLimit is the time before which an event was queued that is past its age; false while none can be.
func (f *Feed) ageLimit(now time.Time) (time.Time, bool) {
	if now.Sub(f.start) <= f.age {
		return time.Time{}, false
	}
	return now.Add(-f.age), true
}

func (f *Feed) isAged(now time.Time) func(Event) bool {
	limit, ok := f.ageLimit(now)
	return func(e Event) bool { return ok && e.QueuedAt.Before(limit) }
}

// gap describes what was dropped above after.
func (w *window) gap(tx ReadTx, agentNo, after int64) (*Gap, error) {
	rooms, err := tx.FeedLost(agentNo, after, w.cutoff)
	if err != nil {
		return nil, err
	}
	sortIDs(rooms)
	return &Gap{From: after, ResumedAt: w.dropped, Rooms: rooms}, nil
}

// drop removes an agent's events up to a number that is among the stored ones, and marks their rooms.
func (f *Feed) drop(tx Tx, agentNo int64, st State, through int64) (n int64, err error) {
	if err := tx.FeedMark(agentNo, through); err != nil {
		return 0, err
	}
	if n, err = tx.FeedDelete(agentNo, through); err != nil {
		return 0, err
	}
	if err := f.renumber(tx, agentNo, st, n); err != nil {
		return 0, err
	}
	tx.AfterCommit(func() {
		f.observer.Dropped(n)
		if t := f.tails.get(agentNo); t != nil {
			t.passTo(through)
		}
	})
	return n, nil
}

// renumber keeps head and holes right after n of an agent's events were removed; st is from before.
func (f *Feed) renumber(tx Tx, agentNo int64, st State, n int64) error {
	after, err := tx.FeedState(agentNo)
	if err != nil {
		return err
	}
	head, holes := st.Head, int64(0)
	if after.Newest != st.Newest {
		head = st.Top()
	}
	if after.Oldest != 0 {
		holes = st.Top() - after.Oldest + 1 - (st.Stored() - n)
	}
	if head == st.Head && holes == st.Holes {
		return nil
	}
	return tx.FeedSetNumbers(agentNo, head, st.Floor, holes)
}

// trim enforces the cap on an agent that has just got a number. It does so once in trimEvery numbers, and not for all
// agents at the same ones: a room of a thousand must not remove for all its members in one transaction.
func (f *Feed) trim(tx Tx, p Placed) error {
	if (p.AgentNo+p.Sequence)%trimEvery != 0 || p.Sequence <= f.retained {
		return nil
	}
	st, err := tx.FeedState(p.AgentNo)
	if err != nil {
		return err
	}
	excess := st.Stored() - f.retained
	if excess <= 0 {
		return nil
	}
	through, err := tx.FeedNth(p.AgentNo, excess)
	if err != nil {
		return err
	}
	_, err = f.drop(tx, p.AgentNo, st, through)
	return err
}

// dueTime is when the sweep can find something at the earliest.
type dueTime struct {
	mu sync.Mutex
	at time.Time
}

func (d *dueTime) reached(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !now.Before(d.at)
}

func (d *dueTime) set(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = at
}

// Sweep removes what is past its age and counts it. It goes over all agents in slices, a transaction each, and does
// nothing while nothing can be due. Readers see the same whether it came or not.
func (f *Feed) Sweep(ctx context.Context) (n int, err error) {
	now := f.clock.Now()
	limit, ok := f.ageLimit(now)
	if !ok || !f.due.reached(now) {
		return 0, nil
	}
	// Whatever is queued from now on is due an age from now.
	oldest := now
	for after := int64(0); ; {
		var agents []OldestOf
		err := f.upkeep.View(ctx, func(tx ReadTx) (err error) {
			agents, err = tx.FeedOldest(after, scanAgents)
			return err
		})
		if err != nil {
			return n, err
		}
		var aged []int64
		for _, a := range agents {
			after = a.AgentNo
			switch {
			case a.At.IsZero():
			case a.At.Before(limit):
				aged = append(aged, a.AgentNo)
			case a.At.Before(oldest):
				oldest = a.At
			}
		}
		removed, kept, err := f.sweepAgents(ctx, aged)
		n += removed
		if err != nil {
			return n, err
		}
		if !kept.IsZero() && kept.Before(oldest) {
			oldest = kept
		}
		if len(agents) < scanAgents {
			break
		}
	}
	f.due.set(oldest.Add(f.age))
	return n, nil
}

// sweepAgents removes what is past its age of the agents named, and returns the time of the oldest event it left.
func (f *Feed) sweepAgents(ctx context.Context, agents []int64) (n int, oldest time.Time, err error) {
	for len(agents) > 0 {
		var done, removed int
		var left time.Time
		err := f.upkeep.Update(ctx, "rooms.sweep_events", func(tx Tx) error {
			done, removed, left = 0, 0, time.Time{}
			for done < min(len(agents), sweepAgents) && removed < dropRows {
				st, n, err := f.retain(tx, agents[done])
				if err != nil && !fault.Is(err, fault.NotFound) { // deleted meanwhile
					return err
				}
				removed += int(n)
				if st.Oldest != 0 && (left.IsZero() || st.OldestAt.Before(left)) {
					left = st.OldestAt
				}
				done++
			}
			return nil
		})
		if err != nil {
			return n, oldest, err
		}
		n, agents = n+removed, agents[done:]
		if !left.IsZero() && (oldest.IsZero() || left.Before(oldest)) {
			oldest = left
		}
	}
	return n, oldest, nil
}

// retain removes what counts as dropped, and returns the numbering after that and how many there were. It must run before
// other events are removed: with fewer of them the cap would admit again what readers were told is lost.
func (f *Feed) retain(tx Tx, agentNo int64) (st State, n int64, err error) {
	if st, err = tx.FeedState(agentNo); err != nil {
		return st, 0, err
	}
	through, err := f.cutoff(tx, agentNo, st, tx.Now())
	if err != nil || through == 0 {
		return st, 0, err
	}
	if n, err = f.drop(tx, agentNo, st, through); err != nil {
		return st, 0, err
	}
	st, err = tx.FeedState(agentNo)
	return st, n, err
}
