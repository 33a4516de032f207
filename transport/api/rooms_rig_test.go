package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/store"
)

// roomRig is the real rooms plane behind the surface.
type roomRig struct {
	identity *identity.Identity
	feed     *feed.Feed
	conns    *connection.Registry
	timeline *timeline.Timeline
	dir      *directory.Directory
}

// rooms builds the plane on the rig's database.
func (g *rig) buildRooms(log *audit.Log) RoomServices {
	r := &roomRig{}
	g.rooms = r
	r.identity = identity.New(store.Bind[identity.Tx, identity.ReadTx](g.db), log,
		identity.Keys{Current: secret.NewBytes(make([]byte, 32))}, identity.Options{Clock: g.clock,
			OnDelete: func(tx identity.Tx, a room.Agent) error {
				wide := tx.(directory.Tx)
				if err := r.dir.AgentDeleted(wide, a.No); err != nil {
					return err
				}
				return r.feed.ForgetAgent(wide, a.No)
			},
			Closed: func(no int64, why string) { r.conns.AgentClosed(no, why) }})
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](g.db), feed.Options{Clock: g.clock, Retained: 5})
	r.conns = connection.New(r.identity, connection.Options{Clock: g.clock})
	r.timeline = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](g.db), r.feed, r.conns, g.hub, timeline.Options{})
	r.dir = directory.New(directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](g.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](g.db), Audit: log, Log: r.timeline, Queue: r.feed,
		Changes: r.conns, Hub: g.hub})
	r.timeline.UseDirectory(r.dir)
	_, err := r.identity.Operator(context.Background()) // so that a refusal finds it there
	g.must(err)
	return RoomServices{Identity: r.identity, Directory: r.dir, Timeline: r.timeline, Feed: r.feed, Connections: r.conns}
}

// idOf is what these tests read of most rows.
type idOf struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// plaza is a room of the operator with one agent in it.
type plaza struct {
	room  idOf
	agent idOf
	no    int64 // of the agent
	ben   idOf  // a person in the room
}

func (g *rig) plaza(open bool) plaza {
	g.t.Helper()
	var p plaza
	var made struct {
		Agent  idOf   `json:"agent"`
		APIKey string `json:"api_key"`
	}
	body := `{"name":"build-bot","connection_model":"always_on"}`
	if open {
		body = `{"name":"build-bot","connection_model":"always_on","open":true}`
	}
	g.ok(http.StatusCreated, "POST", "/room-agents", body, &made)
	p.agent = made.Agent
	g.ok(http.StatusCreated, "POST", "/people", `{"name":"Ben","email":"ben@example.com"}`, &p.ben)
	g.ok(http.StatusCreated, "POST", "/rooms", `{"name":"plaza","agent_ids":["`+p.agent.ID+`"],"person_ids":["`+p.ben.ID+`"]}`, &p.room)
	ag, err := g.rooms.identity.Agent(g.t.Context(), uuid.MustParse(p.agent.ID))
	g.must(err)
	p.no = ag.No
	return p
}

// connect attaches a stream of the agent.
func (g *rig) connect(p plaza, change func(*connection.Request)) *connection.Stream {
	g.t.Helper()
	q := connection.Request{AgentNo: p.no, AgentID: uuid.MustParse(p.agent.ID), AgentName: p.agent.Name, ConnectionID: "5d0c1c3e",
		Transport: connection.WebSocket, Scope: connection.ScopeAll, Filter: connection.FilterAll, StartHead: true}
	if change != nil {
		change(&q)
	}
	s, err := g.rooms.conns.Attach(g.t.Context(), q, func() {})
	g.must(err)
	return s
}

// said posts as the operator and returns the item.
func (g *rig) said(p plaza, text, requestID string) itemPublic {
	g.t.Helper()
	var out postedPublic
	g.ok(http.StatusCreated, "POST", "/rooms/"+p.room.ID+"/messages", `{"body":"`+text+`","request_id":"`+requestID+`"}`, &out)
	return out.Item
}

// UnmarshalJSON lets these tests read the shapes back.
func (s *stamp) UnmarshalJSON(b []byte) error { return (*time.Time)(s).UnmarshalJSON(b) }
