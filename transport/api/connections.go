package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/connection"
)

// connectionPublic is a live connection of a room agent.
type connectionPublic struct {
	ConnectionID  string            `json:"connection_id"`
	Agent         namedPublic       `json:"agent"`
	Scope         connection.Scope  `json:"scope"`
	Filter        connection.Filter `json:"filter"`
	SpawnCapable  bool              `json:"spawn_capable"`
	Cursor        int64             `json:"cursor"`    // written or passed over
	Processed     int64             `json:"processed"` // last reported by the client
	Head          int64             `json:"head"`      // last number issued to the agent
	Lag           int64             `json:"lag"`       // head − cursor
	Generation    int64             `json:"generation"`
	Claims        []namedPublic     `json:"claims"`
	Placements    []placementPublic `json:"placements"`
	Transport     string            `json:"transport"`
	Attached      bool              `json:"attached"`
	Held          bool              `json:"held"`
	LastBeatAt    stamp             `json:"last_beat_at"`
	LastBeatAgeMS int64             `json:"last_beat_age_ms"`
	Beats         int64             `json:"beats"`
	Protocol      int               `json:"protocol"` // in force
	Declared      *int              `json:"declared"` // newest revision of the client; null: it declared none
	Client        *string           `json:"client"`
	ClientVersion *string           `json:"client_version"`
	OpenedAt      stamp             `json:"opened_at"`
	AttachedAt    stamp             `json:"attached_at"`
	RoleLease     *leasePublic      `json:"role_lease"`
}

type placementPublic struct {
	SessionID string `json:"session_id"`
	RoomID    string `json:"room_id"`
	RoomName  string `json:"room_name"`
}

type leasePublic struct {
	RoomID   string `json:"room_id"`
	RoomName string `json:"room_name"`
	Role     string `json:"role"`
}

// connectionShower reads what connections do not know: the names of rooms, and how far the agent's numbering is. It asks
// once for an agent.
type connectionShower struct {
	api   *API
	ctx   context.Context
	agent int64
	head  int64
	names map[uuid.UUID]string
}

func (s *connectionShower) learn(agentNo int64) error {
	if s.agent == agentNo {
		return nil
	}
	head, err := s.api.Rooms.Feed.Head(s.ctx, agentNo)
	if err != nil {
		return err
	}
	rooms, err := s.api.Rooms.Identity.AgentRooms(s.ctx, agentNo)
	if err != nil {
		return err
	}
	s.agent, s.head, s.names = agentNo, head, make(map[uuid.UUID]string, len(rooms))
	for _, r := range rooms {
		s.names[r.ID] = r.Name
	}
	return nil
}

// show describes a connection; false when its agent was deleted meanwhile.
func (s *connectionShower) show(i *connection.Info) (connectionPublic, bool, error) {
	if err := s.learn(i.AgentNo); err != nil {
		if fault.Is(err, fault.NotFound) {
			return connectionPublic{}, false, nil
		}
		return connectionPublic{}, false, err
	}
	out := connectionPublic{ConnectionID: i.ConnectionID, Agent: namedPublic{i.AgentID.String(), i.AgentName}, Scope: i.Scope,
		Filter: i.Filter, SpawnCapable: i.SpawnCapable, Cursor: i.Cursor, Processed: i.Processed, Head: max(s.head, i.Cursor),
		Generation: i.Generation, Claims: []namedPublic{}, Placements: []placementPublic{}, Transport: string(i.Transport),
		Attached: i.Attached, Held: i.Held, LastBeatAt: stamp(i.LastBeat),
		LastBeatAgeMS: max(0, s.api.opts.Clock.Now().Sub(i.LastBeat).Milliseconds()), Beats: i.Beats, Protocol: i.Protocol,
		Declared: i.Declared.Speaks, Client: i.Declared.Artifact, ClientVersion: i.Declared.Version, OpenedAt: stamp(i.OpenedAt),
		AttachedAt: stamp(i.AttachedAt)}
	out.Lag = out.Head - out.Cursor
	for _, id := range i.Rooms {
		out.Claims = append(out.Claims, namedPublic{id.String(), s.names[id]})
	}
	for session, id := range i.Placements {
		out.Placements = append(out.Placements, placementPublic{session, id.String(), s.names[id]})
	}
	sortBy(out.Placements, func(p *placementPublic) string { return p.SessionID })
	if i.Role != nil {
		out.RoleLease = &leasePublic{i.Role.Room.ID.String(), i.Role.Room.Name, i.Role.Role}
	}
	return out, true, nil
}

func (a *API) listConnections(w http.ResponseWriter, c *call) error {
	q := c.query()
	agentID := q.id("agent")
	if err := q.err(); err != nil {
		return err
	}
	var infos []connection.Info
	if q.values.Has("agent") {
		ag, err := a.Rooms.Identity.Agent(c.Context(), agentID)
		if err != nil {
			return err
		}
		infos = a.Rooms.Connections.List(ag.No)
	} else {
		infos = a.Rooms.Connections.All()
	}
	s := connectionShower{api: a, ctx: c.Context()}
	out := make([]connectionPublic, 0, len(infos))
	for i := range infos {
		shown, ok, err := s.show(&infos[i])
		if err != nil {
			return err
		}
		if ok {
			out = append(out, shown)
		}
	}
	return reply(w, c, http.StatusOK, out)
}

func (a *API) getConnection(w http.ResponseWriter, c *call) error {
	info, ok := a.Rooms.Connections.Get(c.PathValue("id"))
	if !ok {
		return errNoConnection
	}
	s := connectionShower{api: a, ctx: c.Context()}
	shown, ok, err := s.show(&info)
	if err != nil {
		return err
	}
	if !ok {
		return errNoConnection
	}
	return reply(w, c, http.StatusOK, shown)
}

func (a *API) evictConnection(w http.ResponseWriter, c *call) error {
	id := c.PathValue("id")
	info, ok := a.Rooms.Connections.Get(id)
	if !ok || !a.Rooms.Connections.Evict(id, "evicted by an operator") {
		return errNoConnection
	}
	a.recordAct(c, "room_connection.evicted", "room_agent", info.AgentID.String(), map[string]any{"connection_id": id, "name": info.AgentName})
	w.WriteHeader(http.StatusNoContent)
	return nil
}
