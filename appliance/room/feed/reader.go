package feed

import (
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// maxPageBytes ends a page early: a page of large messages must not take the memory of 200 of them.
const maxPageBytes = 1 << 20

// Start is where a stream wants to begin.
type Start struct {
	Head  bool  // behind everything; After is not read
	After int64 // behind this number
}

// Gap is a loss to be told (D.3, E.5).
type Gap struct {
	From, ResumedAt int64
	Rooms           []uuid.UUID // that lost events, sorted by their text; of a reset the caller fills in the claimed ones
	AllRooms        bool
	Reset           bool // the numbering was reset (E.5, 1 and 1b), not retention
}

// Opening is where a stream really begins.
type Opening struct {
	Requested int64
	Cursor    int64 // after the gaps
	Head      int64 // last number issued
	Gaps      []Gap // in the order they are written: at most one reset, then at most one of retention
}

// Page is one read of the delivery loop (E.4).
type Page struct {
	Gap    *Gap    // to be written before the events; reading goes on from its ResumedAt
	Events []Event // oldest first; none: the cursor may move to Head
	Head   int64   // last number issued, as this read saw it
}

// Reader reads the events of one agent. It is for one goroutine; Close may come from any.
type Reader struct {
	feed    *Feed
	agentNo int64
	wake    func()
	tail    *tail
	closed  sync.Once

	passed int64 // under the lock of the tail: no event up to here will be asked for again
}

// NewReader subscribes to the agent's events; read after that, and nothing is missed. wake is called after the COMMIT of
// each event, on the writer's goroutine: it must not block. It may still be called once while Close returns. The caller
// must Close the reader.
func (f *Feed) NewReader(agentNo int64, wake func()) *Reader {
	r := &Reader{feed: f, agentNo: agentNo, wake: wake}
	r.tail = f.tails.attach(r)
	return r
}

// Close ends the subscription. Safe to call twice.
func (r *Reader) Close() { r.closed.Do(func() { r.feed.tails.detach(r) }) }

// Open decides where a stream begins and which gaps it is told, from one snapshot (E.5). NotFound: there is no such agent.
func (r *Reader) Open(ctx context.Context, s Start) (o Opening, err error) {
	version := r.tail.mark(r, 0)
	err = r.feed.store.View(ctx, func(tx ReadTx) error {
		o, err = r.feed.open(tx, r.agentNo, s)
		return err
	})
	if err != nil {
		return Opening{}, err
	}
	r.tail.learn(version, o.Head)
	return o, nil
}

func (f *Feed) open(tx ReadTx, agentNo int64, s Start) (Opening, error) {
	w, err := f.window(tx, agentNo)
	if err != nil {
		return Opening{}, err
	}
	head := w.Top()
	s.After = max(s.After, 0)
	o := Opening{Requested: s.After, Cursor: s.After, Head: head}
	switch {
	case s.Head:
		o.Requested, o.Cursor = head, head
		return o, nil
	case s.After > head:
		o.Cursor = head
	case s.After > 0 && s.After < w.Floor-1:
		o.Cursor = w.Floor - 1
	}
	if o.Cursor != s.After {
		o.Gaps = append(o.Gaps, Gap{From: s.After, ResumedAt: o.Cursor, AllRooms: true, Reset: true})
	}
	if w.dropped > o.Cursor {
		gap, err := w.gap(tx, agentNo, o.Cursor)
		if err != nil {
			return Opening{}, err
		}
		gap.From = s.After
		o.Gaps, o.Cursor = append(o.Gaps, *gap), gap.ResumedAt
	}
	return o, nil
}

// Next reads up to limit events above after, from memory where it can, else from one snapshot. Retention is looked at in
// the same read: what it took above after is told as a gap, and no event above a dropped one comes before that (E.5, 3).
// A page may be shorter than what waits; only one without events means that there are none. limit is at least 1.
func (r *Reader) Next(ctx context.Context, after int64, limit int) (Page, error) {
	after, limit = max(after, 0), max(limit, 1)
	if p, ok := r.tail.page(r, after, limit, r.feed.isAged(r.feed.clock.Now())); ok {
		return p, nil
	}
	version := r.tail.mark(r, after)
	var p Page
	err := r.feed.store.View(ctx, func(tx ReadTx) (err error) {
		p, err = r.feed.page(tx, r.agentNo, after, limit)
		return err
	})
	if err != nil {
		return Page{}, err
	}
	r.tail.learn(version, p.Head)
	return p, nil
}

func (f *Feed) page(tx ReadTx, agentNo, after int64, limit int) (Page, error) {
	w, err := f.window(tx, agentNo)
	if err != nil {
		return Page{}, err
	}
	p := Page{Head: w.Top()}
	if w.dropped > after {
		if p.Gap, err = w.gap(tx, agentNo, after); err != nil {
			return Page{}, err
		}
		after = p.Gap.ResumedAt
	}
	if w.Newest <= after {
		return p, nil
	}
	rows, err := tx.FeedPage(agentNo, after, limit)
	if err != nil {
		return Page{}, err
	}
	p.Events, err = f.fill(tx, rows)
	return p, err
}

// fill gives events their bodies: encoded ones where they are kept, else made from the items.
func (f *Feed) fill(tx ReadTx, rows []Stored) ([]Event, error) {
	events, size := make([]Event, 0, len(rows)), 0
	places := map[int64]Where{}
	for _, s := range rows {
		at, ok := places[s.RoomNo]
		if !ok {
			var err error
			if at, err = tx.FeedWhere(s.RoomNo); err != nil {
				return nil, broken(err, s)
			}
			places[s.RoomNo] = at
		}
		body := f.bodies.get(s.ItemNo, at.Channel)
		if body == nil {
			it, err := tx.FeedItem(s.ItemNo)
			if err == nil {
				body, err = encode(at.Room.ID, at.Channel, &it)
			}
			if err != nil {
				return nil, broken(err, s)
			}
			f.bodies.put(body)
		}
		e := Event{Sequence: s.Sequence, Kind: s.Kind, Flag: s.Flag, Room: at.Room, ItemNo: s.ItemNo, QueuedAt: s.QueuedAt,
			body: body, command: s.Command}
		if size += e.Size(); size > maxPageBytes && len(events) > 0 {
			break
		}
		events = append(events, e)
	}
	return events, nil
}

// broken keeps an event that points nowhere from looking like an agent that is not there.
func broken(err error, s Stored) error {
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	return fault.Wrap(fault.Internal, err, "event %d points to an item or a room that is gone", s.Sequence)
}

func sortIDs(ids []uuid.UUID) {
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
}
