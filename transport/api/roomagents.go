package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/explain"
	"signalbox/appliance/room/identity"
)

// roomAgentPublic is an agent of rooms: what it is, who may address it, and how it stands now, in one room or overall.
type roomAgentPublic struct {
	ID              string                   `json:"id"`
	Name            string                   `json:"name"`
	DisplayName     *string                  `json:"display_name"`
	IconURL         *string                  `json:"icon_url"`
	Description     string                   `json:"description"`
	Owner           *namedPublic             `json:"owner"`
	Type            *string                  `json:"type"`
	ConnectorType   string                   `json:"connector_type"`
	ConnectionModel room.ConnectionModel     `json:"connection_model"`
	Commands        room.CommandCapabilities `json:"command_capabilities"`
	Status          room.Status              `json:"status"`
	Connections     int                      `json:"connections"`
	hearingPublic
	Policy    *room.Policy `json:"policy"`
	KeySetAt  stamp        `json:"key_set_at"`
	CreatedAt stamp        `json:"created_at"`
	UpdatedAt stamp        `json:"updated_at"`
}

func (a *API) showRoomAgent(g *room.Agent, status room.Status, h explain.Hearing) roomAgentPublic {
	return roomAgentPublic{ID: g.ID.String(), Name: g.Name, DisplayName: orNull(g.DisplayName), IconURL: orNull(g.IconURL),
		Description: g.Description, Owner: showNamed(g.OwnerID, g.OwnerName), Type: orNull(g.Type), ConnectorType: g.ConnectorType,
		ConnectionModel: g.Profile.ConnectionModel, Commands: g.Profile.Commands, Status: status, Connections: len(h.Connections),
		hearingPublic: showHearing(h), Policy: g.Policy, KeySetAt: stamp(g.KeySetAt), CreatedAt: stamp(g.CreatedAt),
		UpdatedAt: stamp(g.UpdatedAt)}
}

// overall shows an agent as it stands to all its rooms.
func (a *API) overall(g *room.Agent, rooms []room.Ref) roomAgentPublic {
	infos := a.Rooms.Connections.List(g.No)
	return a.showRoomAgent(g, overallStatus(g, infos), explain.Hearing{Agent: g, Member: len(rooms) > 0, Connections: coveringAny(infos)})
}

// overallStatus is the best status that the agent has in any room (H.7).
func overallStatus(g *room.Agent, infos []connection.Info) room.Status {
	p := room.Presence{AnyLive: len(infos) > 0}
	for i := range infos {
		p.Claimed = p.Claimed || len(infos[i].Rooms) > 0
		p.SpawnCovered = p.SpawnCovered || infos[i].SpawnCapable
	}
	return room.AgentStatus(g.Profile.ConnectionModel, p)
}

// listRoomAgents lists all agents, or those of a room as they stand there.
func (a *API) listRoomAgents(w http.ResponseWriter, c *call) error {
	q := c.query()
	roomID := q.id("room")
	if err := q.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	out := []roomAgentPublic{}
	if !q.values.Has("room") {
		err = a.eachRoomAgent(ctx, func(g *room.Agent) error {
			rooms, err := a.Rooms.Identity.AgentRooms(ctx, g.No)
			out = append(out, a.overall(g, rooms))
			return err
		})
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, out)
	}
	r, err := a.Rooms.Directory.Room(ctx, by, roomID)
	if err != nil {
		return err
	}
	members, _, err := a.Rooms.Directory.Members(ctx, r.ID)
	if err != nil {
		return err
	}
	for i := range members {
		g := &members[i].Agent
		out = append(out, a.showRoomAgent(g, a.Rooms.Connections.Status(g.No, g.Profile.ConnectionModel, r.No),
			explain.Hearing{Agent: g, Room: &r, Member: true, Connections: covering(a.Rooms.Connections, g.No, r.No)}))
	}
	return reply(w, c, http.StatusOK, out)
}

// roomAgentDetail is an agent with the rooms it is in.
type roomAgentDetail struct {
	roomAgentPublic
	Rooms []agentRoomPublic `json:"rooms"`
}

type agentRoomPublic struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Alias     *string        `json:"alias"`
	Listening bool           `json:"listening"`
	Status    room.Status    `json:"status"`
	ReactsTo  string         `json:"reacts_to"`
	Deaf      []reasonPublic `json:"deaf"`
}

func (a *API) agentDetail(ctx context.Context, g *room.Agent) (roomAgentDetail, error) {
	refs, err := a.Rooms.Identity.AgentRooms(ctx, g.No)
	if err != nil {
		return roomAgentDetail{}, err
	}
	out := roomAgentDetail{a.overall(g, refs), []agentRoomPublic{}}
	for _, ref := range refs {
		members, _, err := a.Rooms.Directory.Members(ctx, ref.ID)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return out, err
		}
		for i := range members {
			if members[i].Agent.No != g.No {
				continue
			}
			m := a.showMember(&room.Room{No: ref.No, ID: ref.ID, Name: ref.Name}, &members[i], nil)
			out.Rooms = append(out.Rooms, agentRoomPublic{ref.ID.String(), ref.Name, m.Alias, m.Listening, m.Status, m.ReactsTo, m.Deaf})
		}
	}
	return out, nil
}

func (a *API) getRoomAgent(w http.ResponseWriter, c *call) error {
	g, err := a.roomAgent(c)
	if err != nil {
		return err
	}
	detail, err := a.agentDetail(c.Context(), &g)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, detail)
}

func (a *API) roomAgent(c *call) (room.Agent, error) {
	id, err := c.pathID("id")
	if err != nil {
		return room.Agent{}, err
	}
	return a.Rooms.Identity.Agent(c.Context(), id)
}

// registeredPublic is the one answer that holds an agent's key.
type registeredPublic struct {
	Agent   roomAgentDetail `json:"agent"`
	APIKey  string          `json:"api_key"`
	Rotated bool            `json:"rotated"`
}

func (a *API) replyRegistered(w http.ResponseWriter, c *call, status int, r identity.Registered) error {
	detail, err := a.agentDetail(c.Context(), &r.Agent)
	if err != nil { // the key exists only here: it is told whatever else cannot be
		a.logTrouble(c.Request, err, "rooms of a registered agent not told")
		detail = roomAgentDetail{a.overall(&r.Agent, nil), []agentRoomPublic{}}
	}
	return reply(w, c, status, registeredPublic{detail, r.Key.Reveal(), r.Rotated})
}

// newRoomAgent is what a registration asks for: a known type, or a profile.
type newRoomAgent struct {
	name, description, kind, model string
	displayName, iconURL           *string
	owner                          *uuid.UUID
	profile                        json.RawMessage
	open, overwrite                bool
}

func (b *body) newRoomAgent() newRoomAgent {
	n := newRoomAgent{name: b.required("name"), description: orEmpty(b.text("description")), kind: orEmpty(b.text("type")),
		model: orEmpty(b.text("connection_model")), displayName: b.text("display_name"), iconURL: b.text("icon_url"), owner: b.id("owner_id")}
	if v := b.root.Get("integration_profile"); !v.IsAbsent() {
		n.profile = append(n.profile, v.Raw()...)
	}
	if v := b.flag("open"); v != nil {
		n.open = *v
	}
	if v := b.flag("overwrite"); v != nil {
		n.overwrite = *v
	}
	ways := 0
	for _, given := range []bool{n.kind != "", n.model != "", n.profile != nil} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		b.bad("type", "excludes connection_model and integration_profile")
	}
	if ways == 0 {
		n.model = string(room.SessionAddressable)
	}
	return n
}

// register makes the agent.
func (a *API) register(ctx context.Context, by identity.Registrant, n newRoomAgent) (identity.Registered, error) {
	if n.kind != "" {
		return a.Rooms.Identity.RegisterKnown(ctx, by, identity.NewKnownAgent{Type: n.kind, Name: n.name, Description: n.description,
			DisplayName: n.displayName, IconURL: n.iconURL, Overwrite: n.overwrite})
	}
	out := identity.NewAgent{Name: n.name, Description: n.description, DisplayName: n.displayName, IconURL: n.iconURL, Overwrite: n.overwrite}
	if n.profile == nil {
		out.Profile = room.Profile{ConnectionModel: room.ConnectionModel(n.model), MessageExchange: true, Commands: identity.NoCommands()}
	} else {
		p, err := identity.ParseProfile(n.profile)
		if err != nil {
			return identity.Registered{}, err
		}
		out.Profile, out.RawProfile = p, n.profile
	}
	return a.Rooms.Identity.Register(ctx, by, out)
}

func (a *API) registerRoomAgent(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	n := b.newRoomAgent()
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	ownerID := by.ID
	if n.owner != nil {
		ownerID = *n.owner
	}
	owner, err := a.Rooms.Identity.Person(ctx, ownerID)
	if fault.Is(err, fault.NotFound) {
		return fault.Field("owner_id", "must be the id of a person")
	}
	if err != nil {
		return err
	}
	r, err := a.register(ctx, identity.RegistrantOf(owner), n)
	if err != nil {
		err = inOurWords(err, "agent_type", "type")
		if n.profile == nil {
			err = inOurWords(err, "integration_profile.connection_model", "connection_model")
		}
		return err
	}
	if n.open {
		opened, err := a.Rooms.Identity.SetPolicy(ctx, by, r.Agent.ID, nil)
		if err != nil { // the answer shows that it is owner-only still, and how to open it
			a.logTrouble(c.Request, err, "a registered agent was not opened")
		} else {
			r.Agent = opened
		}
	}
	return a.replyRegistered(w, c, http.StatusCreated, r)
}

func (a *API) rotateRoomAgent(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	r, err := a.Rooms.Identity.RotateKey(ctx, by, id)
	if err != nil {
		return err
	}
	return a.replyRegistered(w, c, http.StatusOK, r)
}

func (a *API) deleteRoomAgent(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Identity.DeleteAgent(ctx, by, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type policyPublic struct {
	AgentID     string       `json:"agent_id"`
	Addressable string       `json:"addressable"`
	OwnerOnly   bool         `json:"owner_only"`
	OpenCommand *string      `json:"open_command"`
	Policy      *room.Policy `json:"policy"`
}

func showPolicy(g *room.Agent) policyPublic {
	by := explain.Addressable(g)
	return policyPublic{g.ID.String(), by, by == explain.ByOwner, orNull(explain.OpenCommand(g)), g.Policy}
}

func (a *API) getPolicy(w http.ResponseWriter, c *call) error {
	g, err := a.roomAgent(c)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showPolicy(&g))
}

func (a *API) setPolicy(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	if !b.has("policy") {
		b.bad("policy", "is required; null lets everybody address the agent")
		return b.err()
	}
	var p *room.Policy
	if v := b.root.Get("policy"); v.Kind() != rawjson.Null {
		if p, err = room.ParsePolicy(v.Raw()); err != nil {
			return err
		}
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	g, err := a.Rooms.Identity.SetPolicy(ctx, by, id, p)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showPolicy(&g))
}

// registrationKeyPublic is a key that registers agents, without the key.
type registrationKeyPublic struct {
	ID        string           `json:"id"`
	Kind      identity.KeyKind `json:"kind"`
	Label     string           `json:"label"`
	Person    *namedPublic     `json:"person"`
	CreatedAt stamp            `json:"created_at"`
	RevokedAt *stamp           `json:"revoked_at"`
}

func showRegistrationKey(k *identity.Key) registrationKeyPublic {
	return registrationKeyPublic{k.ID.String(), k.Kind, k.Label, showNamed(k.PersonID, k.PersonName), stamp(k.CreatedAt), maybe(k.RevokedAt)}
}

func (a *API) listRegistrationKeys(w http.ResponseWriter, c *call) error {
	q := c.query()
	revoked := q.flag("include_revoked", false)
	if err := q.err(); err != nil {
		return err
	}
	keys, err := a.Rooms.Identity.Keys(c.Context(), 0, revoked)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(keys, showRegistrationKey))
}

func (a *API) mintRegistrationKey(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	n := identity.NewKey{Kind: identity.KeyKind(orEmpty(b.text("kind"))), Label: orEmpty(b.text("label"))}
	if n.Kind == "" {
		n.Kind = identity.KeyRegistration
	}
	if id := b.id("person_id"); id != nil {
		n.For = *id
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	k, text, err := a.Rooms.Identity.CreateKey(ctx, by, n)
	if err != nil {
		return inOurWords(err, "for", "person_id")
	}
	return reply(w, c, http.StatusCreated, struct {
		registrationKeyPublic
		Key string `json:"key"`
	}{showRegistrationKey(&k), text.Reveal()})
}

func (a *API) revokeRegistrationKey(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Identity.RevokeKey(ctx, by, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
