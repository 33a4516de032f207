package operation_test

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// rig is the table on the real parts, with ann's agents fox and cub, bob's agent owl, and ann's room den with fox and owl
// in it, which fox's connection c1 claims.
type rig struct {
	*operation.Table
	t     *testing.T
	db    *store.DB
	clk   *clock.Fake
	ids   *identity.Identity
	feed  *feed.Feed
	log   *timeline.Timeline
	conns *connection.Registry
	dir   *directory.Directory

	ann, bob      room.Person
	fox, cub, owl room.Agent
	den           room.Room
	names         map[string]string // what $name stands for
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewFake(start), names: map[string]string{}}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clk })
	master := secret.NewBytes([]byte(strings.Repeat("m", 32)))
	log, hub := audit.New(audit.NewKeys(master)), wake.New()
	r.ids = identity.New(store.Bind[identity.Tx, identity.ReadTx](r.db), log, identity.Keys{Current: master},
		identity.Options{Clock: r.clk})
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), feed.Options{Clock: r.clk})
	r.conns = connection.New(r.ids, connection.Options{Clock: r.clk})
	r.log = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](r.db), r.feed, r.conns, hub, timeline.Options{})
	r.dir = directory.New(directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](r.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](r.db), Audit: log, Log: r.log, Queue: r.feed,
		Changes: r.conns, Hub: hub})
	r.Table = operation.New(operation.Services{Directory: r.dir, Identity: r.ids, Timeline: r.log, Feed: r.feed, Connections: r.conns})

	r.ann, r.bob = r.person("ann"), r.person("bob")
	r.fox, r.cub, r.owl = r.agent(r.ann, "fox", room.SessionAddressable), r.agent(r.ann, "cub", room.AlwaysOn), r.agent(r.bob, "owl", room.AlwaysOn)
	r.den = r.room(directory.NewRoom{Name: "den", Description: "of foxes", Instructions: "Be quiet.",
		Agents: []directory.Invitation{{Name: "fox", Alias: "red"}, {Name: "owl"}}})
	for name, id := range map[string]uuid.UUID{"ann": r.ann.ID, "bob": r.bob.ID, "fox": r.fox.ID, "cub": r.cub.ID, "owl": r.owl.ID, "den": r.den.ID} {
		r.names[name] = id.String()
	}
	r.attach(r.fox, "c1", r.den.ID)
	return r
}

func (r *rig) ctx() context.Context { return r.t.Context() }

func (r *rig) ok(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) person(name string) room.Person {
	r.t.Helper()
	operator, err := r.ids.Operator(r.ctx())
	r.ok("operator", err)
	by := operator.Actor()
	by.Admin = true
	p, err := r.ids.CreatePerson(r.ctx(), by, identity.NewPerson{Name: name, Email: name + "@example.org"})
	r.ok("person", err)
	return p
}

func (r *rig) agent(owner room.Person, name string, m room.ConnectionModel) room.Agent {
	r.t.Helper()
	got, err := r.ids.Register(r.ctx(), identity.RegistrantOf(owner), identity.NewAgent{Name: name, Description: "a " + name,
		Profile: room.Profile{ConnectionModel: m, Commands: identity.NoCommands()}})
	r.ok("agent", err)
	return got.Agent
}

func (r *rig) room(n directory.NewRoom) room.Room {
	r.t.Helper()
	made, err := r.dir.Create(r.ctx(), r.ann.Actor(), n)
	r.ok("room", err)
	return made
}

func (r *rig) attach(a room.Agent, id string, rooms ...uuid.UUID) {
	r.t.Helper()
	_, err := r.conns.Attach(r.ctx(), connection.Request{AgentNo: a.No, AgentID: a.ID, AgentName: a.Name, ConnectionID: id,
		Transport: connection.WebSocket, Scope: connection.ScopeSingle, Filter: connection.FilterAll, StartHead: true, Rooms: rooms}, func() {})
	r.ok("attach", err)
}

func (r *rig) post(by room.Actor, body string) room.Item {
	r.t.Helper()
	p, err := r.log.Post(r.ctx(), timeline.Draft{Actor: by, RoomID: r.den.ID, Body: body})
	r.ok("post", err)
	return p.Item
}

// asFox is a call by fox on its connection, in which $names stand for ids.
func (r *rig) asFox(op, args string) operation.Call {
	return operation.Call{Agent: r.fox, ConnectionID: "c1", HasConnection: true, Name: op, Args: json.RawMessage(r.fill(args))}
}

func (r *rig) asOwl(op, args string) operation.Call {
	return operation.Call{Agent: r.owl, Name: op, Args: json.RawMessage(r.fill(args))}
}

func (r *rig) fill(s string) string {
	for name, id := range r.names {
		s = strings.ReplaceAll(s, "$"+name, id)
	}
	return s
}

// do runs a call and returns its result as JSON decodes it.
func (r *rig) do(c operation.Call) any {
	r.t.Helper()
	result, err := r.Call(r.ctx(), c)
	r.ok(c.Name+" "+string(c.Args), err)
	return r.decode(result)
}

func (r *rig) decode(result any) (v any) {
	r.t.Helper()
	b, err := json.Marshal(result)
	r.ok("encode", err)
	r.ok("decode", json.Unmarshal(b, &v))
	return v
}

// gives runs a call and compares its result; want is JSON in which $names stand for ids, and "*" for whatever is there.
func (r *rig) gives(c operation.Call, want string) any {
	r.t.Helper()
	got := r.do(c)
	var v any
	r.ok("want of "+c.Name, json.Unmarshal([]byte(r.fill(want)), &v))
	if !like(got, v) {
		b, _ := json.MarshalIndent(got, "", " ")
		r.t.Errorf("%s %s gives\n%s\nwant\n%s", c.Name, c.Args, b, r.fill(want))
	}
	return got
}

// like compares decoded JSON; "*" in want stands for anything.
func like(got, want any) bool {
	switch w := want.(type) {
	case string:
		return w == "*" || got == want
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k := range w {
			if v, there := g[k]; !there || !like(v, w[k]) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !like(g[i], w[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(got, want)
}

// refuses runs a call that must fail with the code and a message with the words, and changes nothing.
func (r *rig) refuses(c operation.Call, code fault.Code, words string) {
	r.t.Helper()
	before := r.state()
	_, err := r.Call(r.ctx(), c)
	if fault.CodeOf(err) != code || !strings.Contains(fault.Message(err), r.fill(words)) {
		r.t.Errorf("%s %s: %v (%s), want %s with %q", c.Name, c.Args, err, fault.CodeOf(err), code, r.fill(words))
	}
	if after := r.state(); before != after {
		r.t.Errorf("%s %s was refused and changed something:\n%s\nwas\n%s", c.Name, c.Args, after, before)
	}
}

// state is the audit log and the figures of what operations write, with the claims and leases.
func (r *rig) state() string {
	r.t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	r.ok("state", r.db.View(r.ctx(), func(tx *store.ReadTx) error {
		for _, table := range []string{"rooms", "room_members", "room_people", "room_roles", "room_items", "room_links", "room_references",
			"room_reference_uses", "room_documents", "room_groups", "room_agents", "audit_log"} {
			var n int
			if err := tx.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil {
				return err
			}
			_ = e.Encode(n)
		}
		return nil
	}))
	for _, a := range []room.Agent{r.fox, r.cub, r.owl} {
		for _, c := range r.conns.List(a.No) {
			_ = e.Encode([]any{c.ConnectionID, c.Rooms, c.Placements, c.Role})
		}
	}
	return b.String()
}
