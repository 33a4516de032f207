package api

import (
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/room/connection"
)

type whoPublic struct {
	Principal string     `json:"principal"`
	Kind      string     `json:"kind"`
	Name      string     `json:"name"`
	Role      agent.Role `json:"role"`
	Scopes    []string   `json:"scopes"`
	ProjectID *uuid.UUID `json:"project_id"`
}

func (a *API) whoami(w http.ResponseWriter, c *call) error {
	return reply(w, c, http.StatusOK, whoPublic{Principal: c.who.ID, Kind: c.who.Kind, Name: c.who.Name,
		Role: c.who.Role, Scopes: texts(c.who.Scopes), ProjectID: c.who.ProjectID})
}

type statusPublic struct {
	Version   string         `json:"version"`
	StartedAt stamp          `json:"started_at"`
	Epoch     string         `json:"epoch"`
	Store     storePublic    `json:"store"`
	Sessions  sessionsPublic `json:"sessions"`
	Agents    agentsPublic   `json:"agents"`
	Commands  openPublic     `json:"commands"`
	Rooms     roomsPublic    `json:"rooms"`
	Degraded  []string       `json:"degraded"`
}

type storePublic struct {
	Path          string `json:"path"`
	SizeBytes     int64  `json:"size_bytes"`
	WALBytes      int64  `json:"wal_bytes"`
	SchemaVersion int    `json:"schema_version"`
}

type sessionsPublic struct {
	WS       int `json:"ws"`
	LongPoll int `json:"longpoll"`
}

// roomsPublic is the rooms plane: attached and detached are the live connections of room agents.
type roomsPublic struct {
	Agents     connectedPublic              `json:"agents"`
	Rooms      int64                        `json:"rooms"`
	Attached   map[connection.Transport]int `json:"attached"` // by what they are read over
	Detached   int                          `json:"detached"`
	MediaBytes int64                        `json:"media_bytes"`
}

type connectedPublic struct {
	Connected int   `json:"connected"`
	Total     int64 `json:"total"`
}

type agentsPublic struct {
	Online int `json:"online"`
	Total  int `json:"total"`
}

type openPublic struct {
	Pending    int64 `json:"pending"`
	Dispatched int64 `json:"dispatched"`
}

func (a *API) status(w http.ResponseWriter, c *call) error {
	s, err := a.System.Status(c.Context())
	if err != nil {
		return err
	}
	agents, err := a.Directory.CountAgents(c.Context())
	if err != nil {
		return err
	}
	open, err := a.Commands.Counts(c.Context())
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, statusPublic{Version: s.Version, StartedAt: stamp(s.StartedAt), Epoch: a.opts.Epoch,
		Store:    storePublic{s.StorePath, s.StoreBytes, s.WALBytes, s.SchemaVersion},
		Sessions: sessionsPublic{s.WebSockets, s.LongPolls}, Agents: agentsPublic{agents.Online, agents.Total},
		Commands: openPublic{open.Pending, open.Dispatched}, Rooms: a.roomsOf(s), Degraded: texts(s.Degraded)})
}

func (a *API) roomsOf(s Status) roomsPublic {
	lines := a.Rooms.Connections.Counts()
	out := roomsPublic{Agents: connectedPublic{lines.Agents, s.RoomAgents}, Rooms: s.Rooms, Attached: lines.Attached,
		MediaBytes: s.MediaBytes}
	if out.Attached == nil {
		out.Attached = map[connection.Transport]int{}
	}
	for _, n := range lines.Detached {
		out.Detached += n
	}
	return out
}

// maxPrefix is the longest text that is resolved: an agent's name.
const maxPrefix = 200

type resolved struct {
	IDs []uuid.UUID `json:"ids"`
}

// resolve turns the beginning of an id, or an agent's name, into ids. Which right it needs depends on the kind.
func (a *API) resolve(w http.ResponseWriter, c *call) error {
	q := c.query()
	kind, prefix := q.oneOf("kind", "agent", "command", "failure", "schedule", "fire", "apikey"), q.text("prefix", maxPrefix)
	for _, name := range []string{"kind", "prefix"} {
		if !q.values.Has(name) {
			q.bad(name, "is required")
		}
	}
	if err := q.err(); err != nil {
		return err
	}
	ids, err := a.resolveKind(c, kind, prefix)
	if err != nil {
		return err
	}
	if ids == nil {
		ids = []uuid.UUID{}
	}
	return reply(w, c, http.StatusOK, resolved{ids})
}

func (a *API) resolveKind(c *call, kind, prefix string) ([]uuid.UUID, error) {
	switch kind {
	case "agent":
		if err := c.mayHere("agents", false, agent.Viewer); err != nil {
			return nil, err
		}
		return a.Directory.ResolveAgents(c.Context(), c.project.No, prefix)
	case "command":
		if err := c.mayHere("commands", false, agent.Viewer); err != nil {
			return nil, err
		}
		return a.Commands.Resolve(c.Context(), c.project.No, prefix)
	case "schedule":
		if err := c.mayHere("schedules", false, agent.Viewer); err != nil {
			return nil, err
		}
		return a.Schedules.Resolve(c.Context(), c.project.No, prefix)
	case "failure":
		if err := c.mayHere("failures", false, agent.Viewer); err != nil {
			return nil, err
		}
		return a.Failures.Resolve(c.Context(), c.project.No, prefix)
	case "fire":
		if err := c.mayHere("schedules", false, agent.Viewer); err != nil {
			return nil, err
		}
		return a.Fires.Resolve(c.Context(), c.project.No, prefix)
	default:
		if err := c.mayHere("auth", false, agent.Admin); err != nil {
			return nil, err
		}
		return a.Directory.ResolveAPIKeys(c.Context(), c.who, prefix)
	}
}
