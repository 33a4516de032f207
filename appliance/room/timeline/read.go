package timeline

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// maxRead is the most items of one read, beside MaxReadBytes: a snapshot is held for as long as it takes.
const maxRead = 1000

// Since returns items of a room above a position, oldest first, and the position of the newest there is. Whoever calls
// has made sure that they may be read. The limit is clamped to 1…1000; a page is shorter where items are large, and empty
// only when there are none.
func (t *Timeline) Since(ctx context.Context, roomNo, after int64, limit int) (items []room.Item, head int64, err error) {
	err = t.store.View(ctx, func(tx ReadTx) error {
		spot, err := tx.TimelineSpotOf(roomNo)
		if err != nil {
			return err
		}
		head = spot.Position
		items, err = tx.TimelineForward(roomNo, after, min(max(limit, 1), maxRead))
		return err
	})
	return items, head, err
}

// Before returns the newest items of a room below a position, oldest first, and whether there are more below them. A
// position of 0 or less means the end of the log. Rights and limit as in Since.
func (t *Timeline) Before(ctx context.Context, roomNo, before int64, limit int) (items []room.Item, more bool, err error) {
	limit = min(max(limit, 1), maxRead)
	err = t.store.View(ctx, func(tx ReadTx) error {
		spot, err := tx.TimelineSpotOf(roomNo)
		if err != nil {
			return err
		}
		from := spot.Position
		if before > 0 {
			from = min(from, before-1)
		}
		items, more, err = tx.TimelineBackward(roomNo, from, 1, limit)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	slices.Reverse(items)
	return items, more, nil
}

// Item finds an item of any room; NotFound when there is none. Rights as in Since.
func (t *Timeline) Item(ctx context.Context, id uuid.UUID) (it room.Item, err error) {
	err = t.store.View(ctx, func(tx ReadTx) error {
		it, err = tx.TimelineItem(id)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		err = fault.Wrap(fault.NotFound, err, "message %s does not exist", id)
	}
	return it, err
}
