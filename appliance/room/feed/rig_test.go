package feed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/store"
	"signalbox/store/storetest"
)

var ctx = context.Background()

var begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// rig is a feed on a real database.
type rig struct {
	t     testing.TB
	clock *clock.Fake
	db    *store.DB
	feed  *feed.Feed
	opts  feed.Options
	casts map[int64]*room.Cast
	posts int
}

func newRig(t testing.TB, o feed.Options) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin), opts: o, casts: map[int64]*room.Cast{}}
	r.db = storetest.Open(t, r.clocked)
	r.start()
	return r
}

func (r *rig) clocked(o *store.Options) { o.Clock = r.clock }

func (r *rig) start() {
	r.opts.Clock, r.opts.Start = r.clock, r.clock.Now()
	r.opts.Upkeep = store.BindUpkeep[feed.Tx, feed.ReadTx](r.db)
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), r.opts)
}

// restart is a stop and a start of the appliance.
func (r *rig) restart(down time.Duration) {
	r.t.Helper()
	r.clock.Advance(down)
	r.db = storetest.Reopen(r.t, r.db, r.clocked)
	r.start()
}

func (r *rig) update(fn func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(ctx, "test", fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	})
}

func insertAgent(tx *store.Tx, name string) (int64, error) {
	res, err := tx.Exec(`INSERT INTO room_agents (id, name, description, connector_type, connection_model, profile, tools, models,
		metadata, key_hash, key_set_at, created_at, updated_at) VALUES (?,?,'','generic','always_on','{}','[]','[]','{}',?,0,0,0)`,
		uuid.New(), name, fmt.Sprintf("%064s", name))
	return res.LastInsertID(), err
}

func insertMember(tx *store.Tx, roomNo, agentNo int64, listening bool) error {
	_, err := tx.Exec(`INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at) VALUES (?,?,?,0,0)`,
		roomNo, agentNo, listening)
	return err
}

func (r *rig) agent(name string) (no int64) {
	r.t.Helper()
	r.update(func(tx *store.Tx) (err error) {
		no, err = insertAgent(tx, name)
		return err
	})
	return no
}

// room makes a room with members.
func (r *rig) room(name string, members ...int64) int64 {
	r.t.Helper()
	cast := &room.Cast{Room: room.Room{ID: uuid.New(), Name: name, Channel: room.ChannelPublic}}
	r.update(func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO rooms (id, name, description, instructions, channel_type, chat, read_visibility,
			write_visibility, internal_only, created_at, updated_at) VALUES (?,?,'','','channel_public',0,'public','public',0,0,0)`,
			cast.Room.ID, name)
		if err != nil {
			return err
		}
		cast.Room.No = res.LastInsertID()
		for _, m := range members {
			if err := insertMember(tx, cast.Room.No, m, false); err != nil {
				return err
			}
		}
		return nil
	})
	r.casts[cast.Room.No] = cast
	return cast.Room.No
}

func (r *rig) id(roomNo int64) uuid.UUID { return r.casts[roomNo].Room.ID }

func (r *rig) join(roomNo, agentNo int64) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error { return insertMember(tx, roomNo, agentNo, false) })
}

func (r *rig) leave(roomNo, agentNo int64) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		if err := r.feed.Forget(tx, agentNo, roomNo); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM room_members WHERE room_no = ? AND room_agent_no = ?`, roomNo, agentNo)
		return err
	})
}

// item is a message of a person, to be changed by the caller.
func (r *rig) item(roomNo int64) room.Item {
	r.posts++
	return room.Item{RoomNo: roomNo, Position: int64(r.posts), ID: uuid.New(), Kind: room.ItemMessage, SenderKind: room.KindPerson,
		SenderNo: 1, SenderID: "person-1", SenderName: "alice", Body: fmt.Sprint("post ", r.posts), At: r.clock.Now()}
}

func storeItem(tx *store.Tx, it *room.Item) error {
	var thread, attachments, behalf any
	if it.ThreadNo != 0 {
		thread = it.ThreadNo
	}
	if it.Attachments != nil {
		attachments = string(it.Attachments)
	}
	if it.OnBehalfOf != "" {
		behalf = it.OnBehalfOf
	}
	res, err := tx.Exec(`INSERT INTO room_items (room_no, position, id, kind, sender_kind, sender_no, sender_id, sender_name,
		on_behalf_of, body, thread_root_no, attachments, automatic, created_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,0,?)`,
		it.RoomNo, it.Position, it.ID, string(it.Kind), string(it.SenderKind), it.SenderNo, it.SenderID, it.SenderName, behalf,
		it.Body, thread, attachments, it.At)
	it.No = res.LastInsertID()
	return err
}

// queue stores an item and queues its events.
func (r *rig) queue(it room.Item, a feed.Audience) room.Item {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		if err := storeItem(tx, &it); err != nil {
			return err
		}
		return r.feed.Queue(tx, r.casts[it.RoomNo], it, a)
	})
	return it
}

func (r *rig) post(roomNo int64, n int) {
	r.t.Helper()
	for range n {
		r.queue(r.item(roomNo), feed.Audience{})
	}
}

func (r *rig) reader(agentNo int64) *feed.Reader {
	rd := r.feed.NewReader(agentNo, func() {})
	r.t.Cleanup(rd.Close)
	return rd
}

func (r *rig) open(rd *feed.Reader, s feed.Start) feed.Opening {
	r.t.Helper()
	o, err := rd.Open(ctx, s)
	if err != nil {
		r.t.Fatal(err)
	}
	return o
}

func (r *rig) next(rd *feed.Reader, after int64, limit int) feed.Page {
	r.t.Helper()
	p, err := rd.Next(ctx, after, limit)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) head(agentNo int64) int64 {
	r.t.Helper()
	head, err := r.feed.Head(ctx, agentNo)
	if err != nil {
		r.t.Fatal(err)
	}
	return head
}

func sequences(events []feed.Event) []int64 {
	out := []int64{}
	for _, e := range events {
		out = append(out, e.Sequence)
	}
	return out
}

func span(from, to int64) []int64 {
	out := []int64{}
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

func decode(t testing.TB, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return m
}
