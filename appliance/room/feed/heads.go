package feed

import (
	"github.com/google/uuid"

	"signalbox/appliance/room"
)

// maxHeads bounds how many agents' numbers are kept.
const maxHeads = 1 << 17

// heads are the last numbers issued to agents, as far as they are known without looking: looking one up for each receiver
// costs as much as the row. Nothing but queueing moves them while the server runs. It is touched by the writer's goroutine
// alone.
//
// A number is noted before its transaction is through, for the next one of the same commit goes on from it. Whether that
// came about is seen at the next use, by the item it was noted with: an item's id is random and is gone with its
// transaction. Transactions follow one another, so when the last item is there, so is everything noted before.
type heads struct {
	last   map[int64]int64 // by agent; empty: nothing is known
	itemNo int64
	itemID uuid.UUID
}

// check forgets the numbers when the transaction they were noted in has failed.
func (h *heads) check(tx ReadTx) error {
	if len(h.last) == 0 {
		return nil
	}
	is, err := tx.FeedItemIs(h.itemNo, h.itemID)
	if err != nil || !is || len(h.last) > maxHeads {
		h.forget()
	}
	return err
}

// note keeps what an item's receivers were given.
func (h *heads) note(it *room.Item, placed []Placed) {
	if h.last == nil {
		h.last = make(map[int64]int64, len(placed))
	}
	for _, p := range placed {
		h.last[p.AgentNo] = p.Sequence
	}
	h.itemNo, h.itemID = it.No, it.ID
}

func (h *heads) forget() { h.last = nil }
