package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/explain"
)

// setArchived archives a room or opens it again.
func (a *API) setArchived(w http.ResponseWriter, c *call, change func(context.Context, room.Actor, uuid.UUID) (room.Room, error)) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	r, err := change(ctx, by, id)
	if err != nil {
		return err
	}
	return a.replyRoom(w, c, http.StatusOK, by, r)
}

type admittedPublic struct {
	Kind     room.ActorKind `json:"kind"`
	ID       string         `json:"id"`
	Name     string         `json:"name"`
	Admitted bool           `json:"admitted"`
}

type roomPolicyPublic struct {
	AgentID     string           `json:"agent_id"`
	Name        string           `json:"name"`
	Addressable string           `json:"addressable"`
	OpenCommand *string          `json:"open_command"`
	Senders     []admittedPublic `json:"senders"`
}

// roomPolicy says of every agent of a room who of the others may address it.
func (a *API) roomPolicy(w http.ResponseWriter, c *call) error {
	ctx, _, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	members, people, err := a.Rooms.Directory.Members(ctx, r.ID)
	if err != nil {
		return err
	}
	var senders []room.Actor
	for i := range people {
		senders = append(senders, people[i].Person.Actor())
	}
	for i := range members {
		senders = append(senders, members[i].Agent.Actor())
	}
	out := each(members, func(m *room.Member) roomPolicyPublic {
		p := roomPolicyPublic{AgentID: m.Agent.ID.String(), Name: m.Agent.Name, Addressable: explain.Addressable(&m.Agent),
			OpenCommand: orNull(explain.OpenCommand(&m.Agent)), Senders: []admittedPublic{}}
		for _, s := range senders {
			if s.Kind != room.KindAgent || s.No != m.Agent.No {
				p.Senders = append(p.Senders, admittedPublic{s.Kind, s.ID.String(), s.Name, m.Agent.Policy.Admits(&r, s, &m.Agent)})
			}
		}
		return p
	})
	return reply(w, c, http.StatusOK, struct {
		RoomID string             `json:"room_id"`
		Agents []roomPolicyPublic `json:"agents"`
	}{r.ID.String(), out})
}

// maxMatches bounds what resolve answers with.
const maxMatches = 10

// matcher collects what a text names: by its whole name or id, or else by the beginning of its id.
type matcher struct {
	text, hex       string
	exact, begins   []namedPublic
	connectionsOnly bool // ids are any texts, not UUIDs
	anyCase         bool // names are the same in any case
}

func newMatcher(text string) *matcher {
	m := &matcher{text: text, hex: strings.ToLower(strings.ReplaceAll(text, "-", ""))}
	if len(m.hex) < 4 || strings.Trim(m.hex, "0123456789abcdef") != "" {
		m.hex = ""
	}
	return m
}

func (m *matcher) add(id, name string, names ...string) {
	hit := namedPublic{id, name}
	for _, n := range append(names, id) {
		if n == m.text || m.anyCase && strings.EqualFold(n, m.text) {
			m.exact = append(m.exact, hit)
			return
		}
	}
	if m.hex != "" && strings.HasPrefix(strings.ReplaceAll(id, "-", ""), m.hex) || m.connectionsOnly && len(m.text) >= 4 && strings.HasPrefix(id, m.text) {
		m.begins = append(m.begins, hit)
	}
}

func (m *matcher) matches() []namedPublic {
	out := m.exact
	if len(out) == 0 {
		out = m.begins
	}
	if out == nil {
		return []namedPublic{}
	}
	return out[:min(len(out), maxMatches)]
}

// resolveNamed finds what a name, an email, an id or the beginning of an id stands for.
func (a *API) resolveNamed(w http.ResponseWriter, c *call) error {
	q := c.query()
	kind, text := q.oneOf("kind", "room", "room_agent", "person", "registration_key", "connection"), q.text("text", maxNameLen)
	for _, name := range []string{"kind", "text"} {
		if !q.values.Has(name) {
			q.bad(name, "is required")
		}
	}
	if err := q.err(); err != nil {
		return err
	}
	m := newMatcher(text)
	if err := a.match(c, kind, m); err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		Matches []namedPublic `json:"matches"`
	}{m.matches()})
}

func (a *API) match(c *call, kind string, m *matcher) error {
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	switch kind {
	case "room":
		rooms, err := a.Rooms.Directory.Rooms(ctx, by, allRooms)
		for i := range rooms {
			m.add(rooms[i].ID.String(), rooms[i].Name, rooms[i].Name)
		}
		return err
	case "room_agent":
		return a.eachRoomAgent(ctx, func(ag *room.Agent) error {
			m.add(ag.ID.String(), ag.Name, ag.Name)
			return nil
		})
	case "person":
		m.anyCase = true
		people, err := a.Rooms.Identity.People(ctx)
		for i := range people {
			m.add(people[i].ID.String(), people[i].Name, people[i].Name, people[i].Email)
		}
		return err
	case "registration_key":
		if err := agent.Authorize(c.who, roomsResource, false, agent.Admin, nil); err != nil {
			return err
		}
		keys, err := a.Rooms.Identity.Keys(ctx, 0, false)
		for i := range keys {
			m.add(keys[i].ID.String(), keys[i].Label, keys[i].Label)
		}
		return err
	default:
		m.connectionsOnly = true
		for _, i := range a.Rooms.Connections.All() {
			m.add(i.ConnectionID, i.AgentName)
		}
		return nil
	}
}

// errNoConnection is an id that no live connection has.
var errNoConnection = fault.New(fault.NotFound, "no live connection has this id")
