package timeline

import (
	"context"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Limits of a history (H.5, K).
const (
	DefaultHistory = 50
	MaxHistory     = 500
)

// HistoryQuery asks for a part of a room's history (H.5).
type HistoryQuery struct {
	RoomID uuid.UUID
	Limit  int        // entries, clamped to 1…MaxHistory; fewer come where they are large (MaxReadBytes)
	Since  *time.Time // included
	Before *time.Time // not included
}

// History is the newest part of what was asked for.
type History struct {
	Threads   []HistoryThread // by latest activity, newest last
	Truncated bool            // there are older entries than Oldest in what was asked for
	Oldest    time.Time       // of the oldest entry that counts against the limit; zero for none
}

// HistoryThread is an entry and the replies to it.
type HistoryThread struct {
	Root Entry
	// Replies within the window, oldest first. They count against the limit; a root from outside the window does not.
	Replies []room.Item
}

// Entry is the root of a thread. Elided: nothing is told of it but Item.ID.
type Entry struct {
	Item   room.Item
	Elided bool
}

// History reads messages and joins of a room; typed commands are no part of it. An agent must be a member of the room, a
// person a member or an admin: Forbidden, naming the room. It depends neither on what waits for the agent nor on when it
// joined.
func (t *Timeline) History(ctx context.Context, actor room.Actor, q HistoryQuery) (History, error) {
	limit := min(max(q.Limit, 1), MaxHistory)
	var out History
	err := t.store.View(ctx, func(tx ReadTx) error {
		spot, err := tx.TimelineSpot(q.RoomID)
		if err != nil {
			return noRoom(err, q.RoomID)
		}
		cast, err := t.castAt(tx, spot.RoomNo, spot.CastRevision)
		if err != nil {
			return err
		}
		if actor.Kind != room.KindPerson || !actor.Admin {
			if _, err := t.member(tx, cast, actor); err != nil {
				return err
			}
		}
		entries, truncated, err := window(tx, spot, q, limit)
		if err != nil || len(entries) == 0 {
			return err
		}
		out.Truncated, out.Oldest = truncated, entries[0].At
		out.Threads, err = threads(tx, entries)
		return err
	})
	return out, err
}

// window reads the newest entries asked for, oldest first.
func window(tx ReadTx, spot Spot, q HistoryQuery, limit int) (entries []room.Item, truncated bool, err error) {
	from, downTo := spot.Position, int64(1)
	if q.Before != nil {
		if from, err = position(tx, spot, *q.Before); err != nil {
			return nil, false, err
		}
		from--
	}
	if q.Since != nil {
		if downTo, err = position(tx, spot, *q.Since); err != nil {
			return nil, false, err
		}
	}
	entries, truncated, err = tx.TimelineEntries(spot.RoomNo, from, downTo, limit)
	slices.Reverse(entries)
	return entries, truncated, err
}

// position finds the first item of a room made at the time or later; one after the last when there is none. The
// positions of a room have no holes, and its times go up with them (see after).
func position(tx ReadTx, spot Spot, at time.Time) (int64, error) {
	if spot.At.Before(at) {
		return spot.Position + 1, nil
	}
	var failed error
	n := sort.Search(int(spot.Position), func(i int) bool {
		if failed != nil {
			return true
		}
		made, err := tx.TimelineAt(spot.RoomNo, int64(i)+1)
		if err != nil {
			failed = fault.Wrap(fault.Internal, err, "find a time in the log of a room")
			return true
		}
		return !made.Before(at)
	})
	return int64(n) + 1, failed
}

// threads groups entries, given oldest first, and fetches the roots that are not among them.
func threads(tx ReadTx, entries []room.Item) ([]HistoryThread, error) {
	byRoot := map[int64]*HistoryThread{}
	latest := map[int64]int64{} // position of the last entry, by root
	var missing []int64
	for _, it := range entries {
		root := rootOf(it)
		th := byRoot[root.no]
		if th == nil {
			th = &HistoryThread{Root: Entry{Item: room.Item{No: root.no, ID: root.id}, Elided: true}}
			byRoot[root.no] = th
			if it.No != root.no {
				missing = append(missing, root.no)
			}
		}
		latest[root.no] = it.Position
		if it.No == root.no {
			th.Root = Entry{Item: it}
		} else {
			th.Replies = append(th.Replies, it)
		}
	}
	if len(missing) > 0 {
		roots, err := tx.TimelineItemsByNo(missing)
		if err != nil {
			return nil, err
		}
		for _, it := range roots {
			if it.Kind != room.ItemCommand {
				byRoot[it.No].Root = Entry{Item: it}
			}
		}
	}
	order := make([]int64, 0, len(byRoot))
	for no := range byRoot {
		order = append(order, no)
	}
	sort.Slice(order, func(i, j int) bool { return latest[order[i]] < latest[order[j]] })
	out := make([]HistoryThread, 0, len(order))
	for _, no := range order {
		out = append(out, *byRoot[no])
	}
	return out, nil
}
