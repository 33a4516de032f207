package timeline

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
)

// NewItem is an item to append. Who may append it is for the caller to decide.
type NewItem struct {
	Kind        room.ItemKind
	Sender      room.Actor
	OnBehalfOf  string
	Body        string
	ThreadNo    int64     // item number of the thread's root; 0: none
	ThreadID    uuid.UUID // its id
	Attachments []room.Attachment
	Automatic   bool
	RequestID   string // with Digest: the poster's idempotency key and what it stands for
	Digest      []byte
}

// Append puts an item at the end of a room's log and queues its events, in the caller's transaction. The cast must be
// the room's as the transaction sees it. Watchers of the room are woken after COMMIT.
func (t *Timeline) Append(tx Tx, cast *room.Cast, n NewItem, a feed.Audience) (room.Item, error) {
	spot, err := tx.TimelineSpotOf(cast.Room.No)
	if err != nil {
		return room.Item{}, err
	}
	return t.append(tx, cast, &spot, n, func(room.Item) feed.Audience { return a })
}

// append is Append at a known end of the log, which it moves. The audience is decided when the item is complete.
func (t *Timeline) append(tx Tx, cast *room.Cast, spot *Spot, n NewItem, audience func(room.Item) feed.Audience) (room.Item, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return room.Item{}, fault.Wrap(fault.Internal, err, "make the id of a room item")
	}
	it := room.Item{RoomNo: cast.Room.No, Position: spot.Position + 1, ID: id, Kind: n.Kind, SenderKind: n.Sender.Kind,
		SenderNo: n.Sender.No, SenderID: n.Sender.ParticipantID(), SenderName: senderName(n), OnBehalfOf: n.OnBehalfOf,
		Body: n.Body, ThreadNo: n.ThreadNo, ThreadID: n.ThreadID, Automatic: n.Automatic, RequestID: n.RequestID,
		At: after(tx.Now(), spot.At)}
	if len(n.Attachments) > 0 {
		if it.Attachments, err = json.Marshal(n.Attachments); err != nil {
			return room.Item{}, fault.Wrap(fault.Internal, err, "encode the attachments of a room item")
		}
	}
	if it.No, err = tx.AppendTimelineItem(it, n.Digest); err != nil {
		return room.Item{}, err
	}
	if err := t.feed.Queue(tx, cast, it, audience(it)); err != nil {
		return room.Item{}, err
	}
	spot.Position, spot.At = it.Position, it.At
	tx.AfterCommit(func() { t.appended(it.Kind, it.SenderKind) })
	tx.Hint(func() { t.hub.Wake(RoomKey{cast.Room.No}) })
	return it, nil
}

// senderName is never empty (D.6). What the platform says on behalf of a person carries the person's name.
func senderName(n NewItem) string {
	switch {
	case n.Sender.Kind == room.KindPlatform && n.OnBehalfOf != "":
		return n.OnBehalfOf
	case n.Sender.Name != "":
		return n.Sender.Name
	}
	return n.Sender.ParticipantID()
}

// maxAhead is how far the times of a busy room may run ahead of the clock.
const maxAhead = time.Second

// after is the time of an item that follows one made at prev. Clients know times as whole milliseconds and page through
// the history by them (H.5), so each item of a room gets its own, unless more than a thousand a second are said there.
// The times of a room go back only when the clock did, by more than that.
func after(now, prev time.Time) time.Time {
	if prev.IsZero() {
		return now
	}
	next := prev.Truncate(time.Millisecond).Add(time.Millisecond)
	switch {
	case !now.Before(next), prev.Sub(now) > maxAhead:
		return now
	case next.Sub(now) > maxAhead:
		return prev
	}
	return next
}

// Joined appends the room_join items of who newly joined a room, and queues their events for all other members (D.7).
// Call it in the transaction that added the members, after their rows are there; several who join at once hear of each
// other.
func (t *Timeline) Joined(tx Tx, roomNo int64, who ...room.Actor) error {
	if len(who) == 0 {
		return nil
	}
	cast, err := t.Cast(tx, roomNo)
	if err != nil {
		return err
	}
	spot, err := tx.TimelineSpotOf(roomNo)
	if err != nil {
		return err
	}
	for _, actor := range who {
		n := NewItem{Kind: room.ItemJoin, Sender: actor}
		if _, err := t.append(tx, cast, &spot, n, func(room.Item) feed.Audience { return feed.Audience{} }); err != nil {
			return err
		}
	}
	return nil
}
