package operation

import (
	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
)

var agentOperations = []operation{{
	name: "list_agents", group: "agents",
	description: "List the agents of this server, by name. Returns {agents: [{id, name, display_name, description, " +
		"agent_type, connected, note?}], more}; connected says whether it is running now. When more is true, ask again " +
		"with after set to the last name. Next: invite_agent_to_room.",
	args: []arg{{"name_prefix", text, false, "", "Only agents whose names begin so."},
		{"after", text, false, "", "Only agents whose names come after this one."}},
	result: "`{agents: [{id, name, display_name, description, agent_type, connected, note?}], more}`", run: (*request).listAgents,
}, {
	name: "get_agent_detail", group: "agents",
	description: "Look at an agent: what it is, who owns it, whether it is running, and in which rooms that you may look " +
		"at it is.",
	args: []arg{{"agent_name", text, false, nil, "Name of the agent, from list_agents. Leave out for yourself."}},
	result: "`{id, name, display_name, description, agent_type, connected, note?, owner, connector_type, " +
		"connection_model, can_delegate, can_accept, tools, models, created_at, rooms: [{room_id, name, status}]}`",
	run: (*request).agentDetail,
}, {
	name: "update_agent_detail", group: "agents",
	description: "Change how you yourself are shown to others. Only what you give is changed; an empty text removes it. " +
		"Returns your detail as get_agent_detail does.",
	args: []arg{{"description", text, false, nil, "What you are for, so that others know when to ask you."},
		{"display_name", text, false, nil, "A name for people. Mentions use your name, which stays."},
		{"icon_url", text, false, nil, "Address of a picture."}},
	result: "as `get_agent_detail`", run: (*request).updateAgent,
}}

type listedAgent struct {
	ID          uuid.UUID `json:"id"`
	Name        string    `json:"name"`
	DisplayName *string   `json:"display_name"`
	Description string    `json:"description"`
	Type        *string   `json:"agent_type"`
	Connected   bool      `json:"connected"`
	Note        string    `json:"note,omitempty"`
}

func (r *request) shownAgent(a room.Agent) listedAgent {
	return listedAgent{a.ID, a.Name, orNull(a.DisplayName), a.Description, orNull(a.Type),
		r.svc.Connections.Presence(a.No, 0).AnyLive, note(a)}
}

type listedAgents struct {
	Agents []listedAgent `json:"agents"`
	More   bool          `json:"more"`
}

func (r *request) listAgents() (any, error) {
	list, more, err := r.svc.Identity.Agents(r.ctx, identity.AgentFilter{Prefix: r.text("name_prefix"), After: r.text("after")})
	out := listedAgents{make([]listedAgent, len(list)), more}
	for i, a := range list {
		out.Agents[i] = r.shownAgent(a)
	}
	return out, err
}

type agentDetail struct {
	listedAgent
	Owner           *string              `json:"owner"`
	ConnectorType   string               `json:"connector_type"`
	ConnectionModel room.ConnectionModel `json:"connection_model"`
	CanDelegate     bool                 `json:"can_delegate"`
	CanAccept       bool                 `json:"can_accept"`
	Tools           any                  `json:"tools"`
	Models          any                  `json:"models"`
	CreatedAt       int64                `json:"created_at"`
	Rooms           []agentRoom          `json:"rooms"`
}

type agentRoom struct {
	ID     uuid.UUID   `json:"room_id"`
	Name   string      `json:"name"`
	Status room.Status `json:"status"`
}

func (r *request) agentDetail() (any, error) {
	name := r.text("agent_name")
	if name == "" {
		name = r.Agent.Name
	}
	a, err := r.svc.Identity.AgentNamed(r.ctx, name)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			return nil, fault.Field("agent_name", "there is no agent %.80q; list_agents shows them", name)
		}
		return nil, err
	}
	return r.agent(a)
}

func (r *request) agent(a room.Agent) (any, error) {
	d := agentDetail{listedAgent: r.shownAgent(a), Owner: orNull(a.OwnerName), ConnectorType: a.ConnectorType,
		ConnectionModel: a.Profile.ConnectionModel, CanDelegate: a.Profile.TaskProtocol.CanDelegate,
		CanAccept: a.Profile.TaskProtocol.CanAccept, Tools: a.Tools, Models: a.Models,
		CreatedAt: millis(a.CreatedAt), Rooms: []agentRoom{}}
	rooms, err := r.svc.Directory.RoomsOf(r.ctx, a.No, false)
	if err != nil {
		return nil, err
	}
	shared, err := r.ownRooms()
	if err != nil {
		return nil, err
	}
	for _, m := range rooms {
		if shared[m.No] || m.MayRead(r.actor) {
			d.Rooms = append(d.Rooms, agentRoom{m.ID, m.Name, r.svc.Connections.Status(a.No, a.Profile.ConnectionModel, m.No)})
		}
	}
	return d, nil
}

// ownRooms are the rooms that the caller is a member of.
func (r *request) ownRooms() (map[int64]bool, error) {
	own, err := r.svc.Directory.RoomsOf(r.ctx, r.Agent.No, true)
	in := make(map[int64]bool, len(own))
	for _, m := range own {
		in[m.No] = true
	}
	return in, err
}

func (r *request) updateAgent() (any, error) {
	a, err := r.svc.Identity.UpdateAgent(r.ctx, r.actor, r.Agent.ID, identity.AgentChange{
		Description: given[string](r, "description"), DisplayName: given[string](r, "display_name"),
		IconURL: given[string](r, "icon_url")})
	if err != nil {
		return nil, err
	}
	return r.agent(a)
}
