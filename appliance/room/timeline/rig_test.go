package timeline_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var ctx = context.Background()

var begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// presence is what the live connections are told to know.
type presence struct {
	holders  map[int64]string
	live     map[int64]room.Status
	controls map[int64]map[string]bool
}

func (p *presence) RoleHolders(int64) map[int64]string { return p.holders }

func (p *presence) Status(agentNo int64, m room.ConnectionModel, _ int64) room.Status {
	if s, ok := p.live[agentNo]; ok {
		return s
	}
	return room.AgentStatus(m, room.Presence{})
}

func (p *presence) ControlCapabilities(agentNo, _ int64) map[string]bool { return p.controls[agentNo] }

// rig is a timeline with its feed on a real database.
type rig struct {
	t        testing.TB
	clock    *clock.Fake
	db       *store.DB
	feed     *feed.Feed
	hub      *wake.Hub
	presence *presence
	log      *timeline.Timeline
	seq      int
}

func newRig(t testing.TB, o timeline.Options, opts ...storetest.Option) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin), hub: wake.New(), presence: &presence{}}
	r.db = storetest.Open(t, append(opts, func(o *store.Options) { o.Clock = r.clock })...)
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), feed.Options{Clock: r.clock})
	r.log = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](r.db), r.feed, r.presence, r.hub, o)
	return r
}

func (r *rig) update(fn func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(ctx, "test", fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) exec(query string, args ...any) int64 {
	r.t.Helper()
	var id int64
	r.update(func(tx *store.Tx) error {
		res, err := tx.Exec(query, args...)
		id = res.LastInsertID()
		return err
	})
	return id
}

func (r *rig) person(name string) room.Actor {
	r.t.Helper()
	a := room.Actor{Kind: room.KindPerson, ID: uuid.New(), Name: name}
	r.seq++
	a.No = r.exec(`INSERT INTO people (id, kind, name, email, role, sessions_after, created_at, updated_at)
		VALUES (?,'person',?,?,'user',0,0,0)`, a.ID, name, fmt.Sprintf("%d@example.org", r.seq))
	a.OwnerNo = a.No
	return a
}

// agent makes an agent that everybody may address.
func (r *rig) agent(name string, owner room.Actor) room.Actor {
	r.t.Helper()
	a := room.Actor{Kind: room.KindAgent, ID: uuid.New(), Name: name, OwnerNo: owner.No}
	var ownerNo any
	if owner.No != 0 {
		ownerNo = owner.No
	}
	a.No = r.exec(`INSERT INTO room_agents (id, name, owner_no, description, connector_type, connection_model, profile, tools,
		models, metadata, key_hash, key_set_at, created_at, updated_at)
		VALUES (?,?,?,'','external','always_on','{}','[]','[]','{}',?,0,0,0)`,
		a.ID, name, ownerNo, strings.ReplaceAll(a.ID.String(), "-", "")+strings.Repeat("0", 32))
	return a
}

func (r *rig) policy(agent room.Actor, p *room.Policy) {
	r.t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec(`UPDATE room_agents SET policy = ? WHERE room_agent_no = ?`, string(b), agent.No)
}

func (r *rig) capabilities(agent room.Actor, model room.ConnectionModel, c room.CommandCapabilities) {
	r.t.Helper()
	b, err := json.Marshal(map[string]any{"connection_model": model, "command_capabilities": c})
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec(`UPDATE room_agents SET profile = ?, connection_model = ? WHERE room_agent_no = ?`, string(b), model, agent.No)
}

// room makes a room with the members, which nobody is told of.
func (r *rig) room(channel room.ChannelType, members ...room.Actor) room.Ref {
	r.t.Helper()
	r.seq++
	ref := room.Ref{ID: uuid.New(), Name: fmt.Sprintf("room-%d", r.seq)}
	ref.No = r.exec(`INSERT INTO rooms (id, name, description, instructions, channel_type, chat, read_visibility,
		write_visibility, internal_only, created_at, updated_at) VALUES (?,?,'','',?,0,'public','public',0,0,0)`,
		ref.ID, ref.Name, channel)
	for _, m := range members {
		r.add(ref, m)
	}
	return ref
}

func (r *rig) add(in room.Ref, m room.Actor) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error { return addMember(tx, in.No, m) })
}

func addMember(tx *store.Tx, roomNo int64, m room.Actor) error {
	query := `INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at) VALUES (?,?,0,0,0)`
	if m.Kind == room.KindPerson {
		query = `INSERT INTO room_people (room_no, person_no, manager, joined_position, joined_at) VALUES (?,?,0,0,0)`
	}
	_, err := tx.Exec(query, roomNo, m.No)
	return err
}

func (r *rig) say(in room.Ref, by room.Actor, body string) timeline.Posted {
	r.t.Helper()
	return r.post(timeline.Draft{Actor: by, RoomID: in.ID, Body: body})
}

func (r *rig) post(d timeline.Draft) timeline.Posted {
	r.t.Helper()
	p, err := r.log.Post(ctx, d)
	if err != nil {
		r.t.Fatalf("post %.60q: %v", d.Body, err)
	}
	return p
}

// event is a row of room_events with the item it is of.
type event struct {
	sequence, position int64
	kind               room.EventKind
	flag               bool
	command, body      string
}

func (r *rig) events(agent room.Actor) []event {
	r.t.Helper()
	var out []event
	err := r.db.View(ctx, func(tx *store.ReadTx) error {
		rows, err := tx.Query(`SELECT e.sequence, i.position, e.kind, e.flag, coalesce(e.command, ''), i.body FROM room_events e
			JOIN room_items i ON i.item_no = e.item_no WHERE e.room_agent_no = ? ORDER BY e.sequence`, agent.No)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e event
			if err := rows.Scan(&e.sequence, &e.position, &e.kind, &e.flag, &e.command, &e.body); err != nil {
				return err
			}
			out = append(out, e)
		}
		return rows.Err()
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// items are all items of a room, oldest first.
func (r *rig) items(in room.Ref) []room.Item {
	r.t.Helper()
	items, head, err := r.log.Since(ctx, in.No, 0, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	if head < 1000 && head != int64(len(items)) {
		r.t.Errorf("head %d with %d items", head, len(items))
	}
	return items
}

// counts are the rows of items and events: what a refused post must not change.
func (r *rig) counts() (out [3]int64) {
	r.t.Helper()
	err := r.db.View(ctx, func(tx *store.ReadTx) error {
		return tx.QueryRow(`SELECT (SELECT count(*) FROM room_items), (SELECT count(*) FROM room_events),
			(SELECT coalesce(sum(last_position), 0) FROM rooms)`).Scan(&out[0], &out[1], &out[2])
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}
