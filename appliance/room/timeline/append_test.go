package timeline_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/timeline"
	"signalbox/store"
)

var noAudience feed.Audience

// D.7: every agent in the room but the one that joined hears of it, flagged as its membership says.
func TestJoined(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a, b, c, d := r.agent("a", alice), r.agent("b", alice), r.agent("c", alice), r.agent("d", alice)
	in := r.room(room.ChannelPublic, a, b)
	r.exec(`UPDATE room_members SET listening = 1 WHERE room_agent_no = ?`, b.No)
	watch := r.hub.Watch(timeline.RoomKey{RoomNo: in.No})
	defer watch.Stop()
	join := func(who ...room.Actor) error {
		return r.db.Update(ctx, "test", func(tx *store.Tx) error {
			for _, w := range who {
				if err := addMember(tx, in.No, w); err != nil {
					return err
				}
			}
			return r.log.Joined(tx, in.No, who...)
		})
	}
	if err := join(alice); err != nil {
		t.Fatal(err)
	}
	select {
	case <-watch.C():
	default:
		t.Error("watchers were not woken")
	}
	if err := join(c, d); err != nil {
		t.Fatal(err)
	}
	items := r.items(in)
	if len(items) != 3 || items[0].Kind != room.ItemJoin || items[0].SenderName != "alice" || items[0].Body != "" ||
		items[0].SenderID != alice.ID.String() || items[2].SenderNo != d.No {
		t.Errorf("%+v", items)
	}
	for _, want := range []struct {
		who       room.Actor
		flag      bool
		positions []int64
	}{{a, false, []int64{1, 2, 3}}, {b, true, []int64{1, 2, 3}}, {c, false, []int64{3}}, {d, false, []int64{2}}} {
		got := r.events(want.who)
		if len(got) != len(want.positions) {
			t.Errorf("%s: %+v", want.who.Name, got)
			continue
		}
		for i, e := range got {
			if e.kind != room.EventJoin || e.flag != want.flag || e.position != want.positions[i] {
				t.Errorf("%s: %+v", want.who.Name, e)
			}
		}
	}
	before := r.counts()
	if err := r.db.Update(ctx, "test", func(tx *store.Tx) error { return r.log.Joined(tx, in.No) }); err != nil {
		t.Error(err)
	}
	if got := r.counts(); got != before {
		t.Errorf("nobody joined: rows changed from %v to %v", before, got)
	}
}

func (r *rig) cast(in room.Ref) (c *room.Cast) {
	r.t.Helper()
	err := r.db.View(ctx, func(tx *store.ReadTx) (err error) {
		c, err = r.log.Cast(tx, in.No)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// A cast is kept while nothing in it changed, and one read in a transaction that came to nothing is never used again.
func TestCastsAreKeptAndDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a, b := r.agent("agent", alice), r.agent("build-bot", room.Actor{})
	in := r.room(room.ChannelPublic, a)
	r.capabilities(a, room.AutoSession, room.CommandCapabilities{Reset: room.CapabilityAlways})
	r.policy(a, room.OwnerOnly())
	group := uuid.New()
	groupNo := r.exec(`INSERT INTO room_groups (id, name, description, created_at) VALUES (?,'g','',0)`, group)
	r.exec(`UPDATE rooms SET room_group_no = ? WHERE room_no = ?`, groupNo, in.No)

	c := r.cast(in)
	if len(c.Members) != 1 || c.Room.ID != in.ID || c.Room.Name != in.Name || c.Room.Channel != room.ChannelPublic ||
		c.Room.GroupNo != groupNo || c.Room.GroupID != group || c.Room.ArchivedAt != nil {
		t.Fatalf("%+v", c)
	}
	if m := c.Members[0].Agent; m.ID != a.ID || m.Name != "agent" || m.OwnerNo != alice.No || m.OwnerID != alice.ID ||
		m.Profile.ConnectionModel != room.AutoSession || m.Profile.Commands.Reset != room.CapabilityAlways || !m.Policy.OwnerOnly() {
		t.Errorf("%+v", m)
	}
	r.say(in, a, "said") // moves the log, which changes nobody
	if r.cast(in) != c {
		t.Error("read again although nothing changed")
	}
	for _, change := range []string{
		`UPDATE room_members SET alias = 'x'`,
		`UPDATE room_agents SET policy = NULL`,
		`INSERT INTO room_roles (room_no, name, exclusive, instructions, created_at, updated_at) SELECT room_no, 'lead', 0, '', 0, 0 FROM rooms`,
		`UPDATE rooms SET archived_at = 1`,
		`UPDATE room_agents SET owner_no = NULL`,
		`DELETE FROM room_members`,
	} {
		old := r.cast(in)
		r.exec(change)
		if r.cast(in) == old {
			t.Errorf("%s: the old cast was used", change)
		}
	}
	c = r.cast(in)
	if len(c.Members) != 0 || len(c.Roles) != 1 || c.Room.ArchivedAt == nil {
		t.Errorf("%+v", c)
	}

	no := errors.New("no")
	err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
		if err := addMember(tx, in.No, b); err != nil {
			return err
		}
		inside, err := r.log.Cast(tx, in.No)
		if err != nil || len(inside.Members) != 1 {
			t.Errorf("inside: %+v, %v", inside, err)
		}
		return no
	})
	if !errors.Is(err, no) {
		t.Fatal(err)
	}
	if c := r.cast(in); len(c.Members) != 0 {
		t.Errorf("a member that never was: %+v", c.Members)
	}
	r.add(in, b)
	if c := r.cast(in); len(c.Members) != 1 {
		t.Errorf("%+v", c.Members)
	}
}
