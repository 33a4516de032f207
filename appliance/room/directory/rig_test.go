package directory_test

import (
	"context"
	"encoding/json"
	"slices"
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
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// rig is a Directory with the real parts around it, on a database of its own.
type rig struct {
	*directory.Directory
	t      *testing.T
	db     *store.DB
	clk    *clock.Fake
	people *identity.Identity
	feed   *feed.Feed
	log    *timeline.Timeline
	conns  *connection.Registry
	hub    *wake.Hub
	before storetest.Failpoint

	admin      room.Actor // the operator
	ann, bob   room.Person
	fox, owl   room.Agent // ann's and bob's
	loner      room.Agent // nobody's
	foxs, owls room.Actor
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewFake(start), hub: wake.New()}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clk }, storetest.WithBeforeCommit(&r.before))
	master := secret.NewBytes([]byte(strings.Repeat("m", 32)))
	log := audit.New(audit.NewKeys(master))
	r.people = identity.New(store.Bind[identity.Tx, identity.ReadTx](r.db), log, identity.Keys{Current: master},
		identity.Options{Clock: r.clk, OnDelete: func(tx identity.Tx, a room.Agent) error {
			wide := tx.(directory.Tx)
			if err := r.AgentDeleted(wide, a.No); err != nil {
				return err
			}
			return r.feed.ForgetAgent(wide, a.No)
		}})
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), feed.Options{Clock: r.clk})
	r.conns = connection.New(r.people, connection.Options{Clock: r.clk})
	r.log = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](r.db), r.feed, r.conns, r.hub, timeline.Options{})
	r.Directory = directory.New(directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](r.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](r.db), Audit: log, Log: r.log, Queue: r.feed,
		Changes: r.conns, Hub: r.hub})
	r.log.UseDirectory(r.Directory)

	operator, err := r.people.Operator(t.Context())
	r.ok("operator", err)
	r.admin = operator.Actor()
	r.admin.Admin = true
	r.ann, r.bob = r.person("ann"), r.person("bob")
	r.fox, r.owl = r.agent(r.ann, "fox"), r.agent(r.bob, "owl")
	r.foxs, r.owls = r.fox.Actor(), r.owl.Actor()
	r.loner = r.agent(r.bob, "loner")
	r.exec(`UPDATE room_agents SET owner_no = NULL WHERE name = 'loner'`)
	r.loner.OwnerNo = 0
	return r
}

func (r *rig) ctx() context.Context { return r.t.Context() }

func (r *rig) ok(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// wants fails the test unless err has the code, and a message with the words.
func (r *rig) wants(what string, err error, code fault.Code, words string) {
	r.t.Helper()
	if fault.CodeOf(err) != code || !strings.Contains(fault.Message(err), words) {
		r.t.Errorf("%s: %v (%s), want %s with %q", what, err, fault.CodeOf(err), code, words)
	}
}

func (r *rig) person(name string) room.Person {
	r.t.Helper()
	p, err := r.people.CreatePerson(r.ctx(), r.admin, identity.NewPerson{Name: name, Email: name + "@example.org"})
	r.ok("person "+name, err)
	return p
}

func (r *rig) agent(owner room.Person, name string) room.Agent {
	r.t.Helper()
	got, err := r.people.Register(r.ctx(), identity.RegistrantOf(owner), identity.NewAgent{Name: name,
		Profile: room.Profile{ConnectionModel: room.AlwaysOn, Commands: identity.NoCommands()}})
	r.ok("agent "+name, err)
	return got.Agent
}

func invited(names ...string) (list []directory.Invitation) {
	for _, n := range names {
		list = append(list, directory.Invitation{Name: n})
	}
	return list
}

// room makes a public room of ann's with the agents.
func (r *rig) room(name string, agents ...string) room.Room {
	r.t.Helper()
	made, err := r.Create(r.ctx(), r.ann.Actor(), directory.NewRoom{Name: name, Agents: invited(agents...), NoAgents: true})
	r.ok("room "+name, err)
	return made
}

// private is room, readable and writable by its owner alone.
func (r *rig) private(name string, agents ...string) room.Room {
	r.t.Helper()
	made, err := r.Create(r.ctx(), r.ann.Actor(), directory.NewRoom{Name: name, Agents: invited(agents...), NoAgents: true,
		ReadVisibility: room.Private, WriteVisibility: room.Private})
	r.ok("room "+name, err)
	return made
}

// names of the agents in the room.
func (r *rig) names(id uuid.UUID) (names []string) {
	r.t.Helper()
	agents, _, err := r.Members(r.ctx(), id)
	r.ok("members", err)
	for _, m := range agents {
		names = append(names, m.Agent.Name)
	}
	return names
}

// events are the kinds of what waits for the agent, of the room.
func (r *rig) events(a room.Agent, roomNo int64) (kinds []room.EventKind) {
	r.t.Helper()
	reader := r.feed.NewReader(a.No, func() {})
	defer reader.Close()
	_, err := reader.Open(r.ctx(), feed.Start{After: 0})
	r.ok("open", err)
	page, err := reader.Next(r.ctx(), 0, 100)
	r.ok("events", err)
	for _, e := range page.Events {
		if e.Room.No == roomNo {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

// connect opens a connection of the agent.
func (r *rig) connect(a room.Agent, id string, rooms ...uuid.UUID) *connection.Stream {
	r.t.Helper()
	s, err := r.conns.Attach(r.ctx(), connection.Request{AgentNo: a.No, AgentID: a.ID, AgentName: a.Name, ConnectionID: id,
		Transport: connection.WebSocket, Scope: connection.ScopeSingle, Filter: connection.FilterAll, StartHead: true, Rooms: rooms},
		func() {})
	r.ok("attach", err)
	return s
}

func (r *rig) post(by room.Actor, id uuid.UUID, body string) {
	r.t.Helper()
	_, err := r.log.Post(r.ctx(), timeline.Draft{Actor: by, RoomID: id, Body: body})
	r.ok("post", err)
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	r.ok(query, r.db.Update(r.ctx(), "test", func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}))
}

func (r *rig) count(query string, args ...any) (n int) {
	r.t.Helper()
	r.ok(query, r.db.View(r.ctx(), func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) }))
	return n
}

// tables are what the Directory writes, and the audit log.
var tables = []string{"rooms", "room_members", "room_people", "room_roles", "room_items", "room_events", "room_links",
	"room_references", "room_reference_uses", "room_documents", "room_groups", "audit_log"}

// state is all of it, to see that nothing changed.
func (r *rig) state() string {
	r.t.Helper()
	var out []string
	r.ok("state", r.db.View(r.ctx(), func(tx *store.ReadTx) error {
		for _, table := range tables {
			columns, err := columnsOf(tx, table)
			if err != nil {
				return err
			}
			rows, err := tx.Query(`SELECT json_array(` + strings.Join(columns, ", ") + `) FROM ` + table)
			if err != nil {
				return err
			}
			for rows.Next() {
				var line string
				if err := rows.Scan(&line); err != nil {
					return err
				}
				out = append(out, table+line)
			}
			if err := rows.Close(); err != nil {
				return err
			}
		}
		return nil
	}))
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func columnsOf(tx *store.ReadTx, table string) (columns []string, err error) {
	rows, err := tx.Query(`SELECT name FROM pragma_table_info(?)`, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		columns = append(columns, "quote(substr("+name+", 1, 200)) || coalesce(length("+name+"), 0)")
	}
	return columns, rows.Err()
}

// unchanged runs fn and fails the test when it changed anything.
func (r *rig) unchanged(what string, fn func()) {
	r.t.Helper()
	before := r.state()
	fn()
	if after := r.state(); after != before {
		r.t.Errorf("%s changed something:\n%s\nwas\n%s", what, after, before)
	}
}

// audited returns the metadata of the last audit row of the action.
func (r *rig) audited(action string) (meta map[string]any) {
	r.t.Helper()
	var text string
	r.ok("audit of "+action, r.db.View(r.ctx(), func(tx *store.ReadTx) error {
		return tx.QueryRow(`SELECT metadata FROM audit_log WHERE action = ? ORDER BY audit_no DESC LIMIT 1`, action).Scan(&text)
	}))
	r.ok("metadata", json.Unmarshal([]byte(text), &meta))
	return meta
}

func p[T any](v T) *T { return &v }
