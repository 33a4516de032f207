// Package feed holds what waits for each agent: its own numbering over all its rooms, the events it has not been rid of
// by retention, and the gaps it is told of (rooms protocol E, N).
//
// The log is the database. An event is one row of an agent, written in the transaction of the item it tells of, and its
// number is the highest before it plus one; nothing else is written for it. What an agent may still read is decided at
// every read, from one snapshot: rows beyond the cap or past their age count as dropped although they may still lie
// there, and removing them (in chunks when more is queued, and by Sweep) changes nothing that a reader sees.
//
// Agents with a reader have a short tail in memory beside it, which is filled after COMMIT, in commit order. A tail only
// spares reads: a reader that is behind it reads the database.
package feed

import (
	"context"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/room"
)

// The limits of retention (E.3).
const (
	DefaultRetained = 2000
	DefaultAge      = 15 * time.Minute
)

// DefaultCacheBytes is what encoded bodies may take beside the tails. A resume storm after a restart reads the same few
// items for every agent.
const DefaultCacheBytes = 16 << 20

// Options of a Feed; zero fields take the defaults above.
type Options struct {
	Retained   int           // events kept for one agent, at least 1
	Age        time.Duration // how long one is kept
	Start      time.Time     // when the server started: age runs from then at the earliest (L.25); zero: now
	Clock      clock.Clock   // nil: the system's
	CacheBytes int64
	// Upkeep takes the transactions of Sweep and Recover; nil: those of the feed itself.
	Upkeep   room.Store[Tx, ReadTx]
	Observer Observer // nil: nobody
}

// Observer is told what was committed. It is called on the writer's goroutine and must be brief.
type Observer interface {
	// Queued tells of the events of one item, one for each receiver.
	Queued(kind room.EventKind, receivers int)
	// Dropped tells how many events of an agent retention took.
	Dropped(events int64)
}

// nobody observes nothing.
type nobody struct{}

// Queued does nothing.
func (nobody) Queued(room.EventKind, int) {}

// Dropped does nothing.
func (nobody) Dropped(int64) {}

// Feed queues events and serves readers. Safe for concurrent use.
type Feed struct {
	store, upkeep room.Store[Tx, ReadTx]
	clock         clock.Clock
	retained      int64
	age           time.Duration
	start         time.Time
	tails         tails
	heads         heads
	bodies        *cache
	due           dueTime
	observer      Observer
}

// New makes the feed of a database.
func New(st room.Store[Tx, ReadTx], o Options) *Feed {
	if o.Retained <= 0 {
		o.Retained = DefaultRetained
	}
	if o.Age <= 0 {
		o.Age = DefaultAge
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Start.IsZero() {
		o.Start = o.Clock.Now()
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = DefaultCacheBytes
	}
	if o.Upkeep == nil {
		o.Upkeep = st
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	f := &Feed{store: st, upkeep: o.Upkeep, clock: o.Clock, retained: int64(o.Retained), age: o.Age, start: o.Start,
		bodies: newCache(o.CacheBytes), observer: o.Observer}
	f.tails.init(min(maxTail, o.Retained))
	return f
}

// Head is the last number issued to the agent, 0 for none. NotFound: there is no such agent.
func (f *Feed) Head(ctx context.Context, agentNo int64) (head int64, err error) {
	err = f.store.View(ctx, func(tx ReadTx) error {
		st, err := tx.FeedState(agentNo)
		head = st.Top()
		return err
	})
	return head, err
}

// CountMissed counts the unaddressed messages of the room among the agent's numbers above base and up to through (D.10).
// floor tells that retention has dropped some of that room above base, so that there were more.
func (f *Feed) CountMissed(ctx context.Context, agentNo, roomNo, base, through int64) (n int64, floor bool, err error) {
	err = f.store.View(ctx, func(tx ReadTx) error {
		dropped, err := tx.FeedDroppedThrough(agentNo, roomNo)
		if err != nil {
			return err
		}
		floor = dropped > base
		n, err = tx.FeedMissed(agentNo, roomNo, base, through)
		return err
	})
	return n, floor, err
}

// Queued is the event of one item as it waits for an agent.
type Queued struct {
	Sequence int64
	Kind     room.EventKind
	Flag     bool // addressed of a message, listening of a join
	At       time.Time
}

// Find looks for the agent's event of an item; false when none is kept.
func (f *Feed) Find(ctx context.Context, agentNo, itemNo int64) (q Queued, found bool, err error) {
	err = f.store.View(ctx, func(tx ReadTx) error {
		w, err := f.window(tx, agentNo)
		if err != nil {
			return err
		}
		var s Stored
		if s, found, err = tx.FeedFind(agentNo, itemNo); err != nil {
			return err
		}
		if found = found && s.Sequence > w.cutoff; found {
			q = Queued{Sequence: s.Sequence, Kind: s.Kind, Flag: s.Flag, At: s.QueuedAt}
		}
		return nil
	})
	return q, found, err
}

// DroppedThrough is the highest number of the room that retention dropped for the agent, 0 for none.
func (f *Feed) DroppedThrough(ctx context.Context, agentNo, roomNo int64) (sequence int64, err error) {
	err = f.store.View(ctx, func(tx ReadTx) error {
		w, err := f.window(tx, agentNo)
		if err != nil {
			return err
		}
		if sequence, err = tx.FeedDroppedThrough(agentNo, roomNo); err != nil || w.cutoff == 0 {
			return err
		}
		behind, err := tx.FeedLastOfRoom(agentNo, roomNo, w.cutoff)
		sequence = max(sequence, behind)
		return err
	})
	return sequence, err
}
