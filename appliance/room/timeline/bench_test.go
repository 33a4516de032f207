package timeline_test

import (
	"fmt"
	"testing"

	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
	"signalbox/store"
)

// crowd makes a room with so many agents, each owner-only.
func (r *rig) crowd(owner room.Actor, n int) room.Ref {
	r.t.Helper()
	in := r.room(room.ChannelPublic, owner)
	r.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO room_agents (id, name, owner_no, description, connector_type, connection_model, profile, tools, models, metadata,
		key_hash, policy, key_set_at, created_at, updated_at)
		SELECT randomblob(16), 'crowd-' || i, ?, '', 'external', 'always_on', '{"connection_model":"always_on","message_exchange":true}',
		'[]', '[]', '{}', lower(hex(randomblob(32))),
		'{"rules":[{"rooms":"*","room_groups":"*","users":[],"agents":[],"owner":true,"owner_agents":false}]}', 0, 0, 0 FROM n`,
		n, owner.No)
	r.exec(`INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at)
		SELECT ?, room_agent_no, 0, 0, 0 FROM room_agents`, in.No)
	return in
}

func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("agents=%d", n), func(b *testing.B) {
			r := newRig(b, timeline.Options{})
			alice := r.person("alice")
			in := r.crowd(alice, n)
			r.say(in, alice, "warm")
			b.ReportAllocs()
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := r.log.Post(ctx, timeline.Draft{Actor: alice, RoomID: in.ID, Body: "@crowd-1 how is it going?"}); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// What a change of a room's members costs the next post.
func BenchmarkCast(b *testing.B) {
	r := newRig(b, timeline.Options{})
	alice := r.person("alice")
	in := r.crowd(alice, 5000)
	b.ReportAllocs()
	for b.Loop() {
		err := r.db.View(ctx, func(tx *store.ReadTx) error {
			_, err := tx.TimelineCast(in.No)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHistory(b *testing.B) {
	r := newRig(b, timeline.Options{})
	alice := r.person("alice")
	in := r.room(room.ChannelPublic, alice)
	for range 50 {
		r.update(func(tx *store.Tx) error {
			cast, err := r.log.Cast(tx, in.No)
			for i := 0; err == nil && i < 400; i++ {
				_, err = r.log.Append(tx, cast, timeline.NewItem{Kind: room.ItemMessage, Sender: alice, Body: "hello"}, noAudience)
			}
			return err
		})
	}
	middle := r.items(in)[500].At
	b.ReportAllocs()
	for b.Loop() {
		h, err := r.log.History(ctx, alice, timeline.HistoryQuery{RoomID: in.ID, Limit: 50, Before: &middle})
		if err != nil || !h.Truncated {
			b.Fatal(h.Truncated, err)
		}
	}
}
