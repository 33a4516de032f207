package api

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/rawjson"
)

// agentPublic is AgentPublic (agent protocol H.4).
type agentPublic struct {
	ID                string              `json:"id"`
	ProjectID         string              `json:"project_id"`
	Name              string              `json:"name"`
	State             agent.State         `json:"state"`
	ProtocolVersion   string              `json:"protocol_version"`
	FrameworkAdapter  string              `json:"framework_adapter"`
	EngineAdapters    []string            `json:"engine_adapters"`
	SchedulerAdapters []string            `json:"scheduler_adapters"`
	Capabilities      map[string][]string `json:"capabilities"`
	LastSeenAt        *stamp              `json:"last_seen_at"`
	LastConnectAt     *stamp              `json:"last_connect_at"`
	CreatedAt         stamp               `json:"created_at"`
	IsOutdated        bool                `json:"is_outdated"`
	HostName          *string             `json:"host_name"`
	AgentVersion      *string             `json:"agent_version"`
	VersionStatus     *string             `json:"version_status"`
	RevokedAt         *stamp              `json:"revoked_at,omitempty"`
}

func (a *API) showAgent(g *agent.Agent) agentPublic {
	out := agentPublic{ID: g.ID.String(), ProjectID: g.ProjectID.String(), Name: g.Name, State: g.State,
		ProtocolVersion: g.ProtocolVersion, FrameworkAdapter: g.FrameworkAdapter, EngineAdapters: texts(g.EngineAdapters),
		SchedulerAdapters: texts(g.SchedulerAdapters), Capabilities: g.Capabilities, LastSeenAt: maybe(g.LastSeenAt),
		LastConnectAt: maybe(g.LastConnectAt), CreatedAt: stamp(g.CreatedAt), IsOutdated: g.IsOutdated(),
		HostName: hostName(g.Host), AgentVersion: orNull(g.AgentVersion),
		VersionStatus: orNull(g.VersionStatus(a.opts.KnownAgentVersion)), RevokedAt: maybe(g.RevokedAt)}
	if out.Capabilities == nil {
		out.Capabilities = map[string][]string{}
	}
	return out
}

// hostName is the name in the host object of a hello.
func hostName(host []byte) *string {
	doc, err := rawjson.Parse(host)
	if err != nil {
		return nil
	}
	defer doc.Release()
	if doc.Root().Kind() != rawjson.Object {
		return nil
	}
	name, ok := doc.Root().Get("name").Str()
	if !ok {
		return nil
	}
	return &name
}

func (a *API) listAgents(w http.ResponseWriter, c *call) error {
	q := c.query()
	revoked := q.flag("include_revoked", false)
	if err := q.err(); err != nil {
		return err
	}
	agents, err := a.Directory.ListAgents(c.Context(), c.project.No, revoked)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(agents, a.showAgent))
}

// mintedPublic is the one answer that holds an agent's credentials (agent protocol A.4).
type mintedPublic struct {
	Agent      agentPublic `json:"agent"`
	Token      string      `json:"token"`
	HMACSecret string      `json:"hmac_secret"`
}

func (a *API) mintAgent(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	name := b.required("name")
	if err := b.err(); err != nil {
		return err
	}
	m, err := a.Directory.MintAgent(c.Context(), c.who, c.project.Slug, name)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, mintedPublic{a.showAgent(&m.Agent), m.Token.Reveal(), m.HMACSecret.Reveal()})
}

func (a *API) revokeAgent(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if err := a.Directory.RevokeAgent(c.Context(), c.who, c.project.Slug, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) agentSecret(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	text, err := a.Directory.AgentSecret(c.Context(), c.who, c.project.Slug, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		AgentID    uuid.UUID `json:"agent_id"`
		HMACSecret string    `json:"hmac_secret"`
	}{id, text.Reveal()})
}

// agentDetail is AgentPublic with what is known of the agent's processes.
type agentDetail struct {
	agentPublic
	Sessions        []sessionPublic `json:"sessions"`
	Workers         []slotPublic    `json:"workers"`
	RuntimeFeatures []string        `json:"runtime_features"`
	TelemetryLoss   []lossPublic    `json:"telemetry_loss"`
	DeclaredEngines []string        `json:"declared_engines"`
	Notes           []string        `json:"notes"` // what to know of it and fires
}

// lossPublic is what an agent says it lost of one buffer and run.
type lossPublic struct {
	BufferID  string          `json:"buffer_id"`
	RuntimeID string          `json:"runtime_id"`
	FirstAt   stamp           `json:"first_at"`
	UpdatedAt stamp           `json:"updated_at"`
	Figures   json.RawMessage `json:"figures"`
}

func showLoss(l *agent.AgentLoss) lossPublic {
	return lossPublic{BufferID: l.BufferID, RuntimeID: l.RuntimeID, FirstAt: stamp(l.FirstAt), UpdatedAt: stamp(l.UpdatedAt),
		Figures: l.Payload}
}

type sessionPublic struct {
	Transport   agent.Transport `json:"transport"`
	SessionID   string          `json:"session_id"`
	WorkerID    *string         `json:"worker_id"`
	WorkerRole  *string         `json:"worker_role"`
	RemoteAddr  string          `json:"remote_addr"`
	ConnectedAt stamp           `json:"connected_at"`
	LastFrameAt *stamp          `json:"last_frame_at"`
}

func showSession(s *agent.SessionInfo) sessionPublic {
	out := sessionPublic{Transport: s.Transport, SessionID: s.Session, WorkerID: orNull(s.Worker),
		WorkerRole: orNull(s.WorkerRole), RemoteAddr: s.Remote, ConnectedAt: stamp(s.ConnectedAt)}
	if !s.LastFrameAt.IsZero() {
		out.LastFrameAt = maybe(&s.LastFrameAt)
	}
	return out
}

// slotPublic is a row of agent_workers (agent protocol B.5).
type slotPublic struct {
	ID            string      `json:"id"`
	AgentID       string      `json:"agent_id"`
	ProjectID     string      `json:"project_id"`
	WorkerID      *string     `json:"worker_id"`
	Role          *string     `json:"role"`
	Framework     string      `json:"framework"`
	PID           *int        `json:"pid"`
	StartedAt     *stamp      `json:"started_at"`
	State         agent.State `json:"state"`
	LastSeenAt    stamp       `json:"last_seen_at"`
	LastConnectAt stamp       `json:"last_connect_at"`
	CreatedAt     stamp       `json:"created_at"`
	UpdatedAt     stamp       `json:"updated_at"`
}

func showSlot(s *agent.AgentWorker) slotPublic {
	return slotPublic{ID: s.ID.String(), AgentID: s.AgentID.String(), ProjectID: s.ProjectID.String(),
		WorkerID: s.WorkerID, Role: s.Role, Framework: s.Framework, PID: s.PID, StartedAt: maybe(s.StartedAt),
		State: s.State, LastSeenAt: stamp(s.LastSeenAt), LastConnectAt: stamp(s.LastConnectAt),
		CreatedAt: stamp(s.CreatedAt), UpdatedAt: stamp(s.UpdatedAt)}
}

func (a *API) getAgent(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	g, err := a.Directory.GetAgent(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	slots, err := a.Directory.AgentWorkers(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	losses, err := a.Directory.AgentLosses(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	notes, declared, err := a.Fires.AgentNotes(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	sessions := a.Presence.Sessions(id)
	return reply(w, c, http.StatusOK, agentDetail{agentPublic: a.showAgent(&g), Sessions: each(sessions, showSession),
		Workers: each(slots, showSlot), RuntimeFeatures: texts(g.RuntimeFeatures), TelemetryLoss: each(losses, showLoss),
		DeclaredEngines: texts(declared.Engines), Notes: texts(notes)})
}

// samplePublic is one agent_status frame (agent protocol D.3).
type samplePublic struct {
	CapturedAt stamp           `json:"captured_at"`
	ReceivedAt stamp           `json:"received_at"`
	Payload    json.RawMessage `json:"payload"`
}

func showSample(s *agent.AgentSample) samplePublic {
	return samplePublic{stamp(s.CapturedAt), stamp(s.ReceivedAt), raw(s.Payload)}
}

func (a *API) agentHealth(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	samples, err := a.Directory.AgentHealth(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(samples, showSample))
}

func (a *API) listSlots(w http.ResponseWriter, c *call) error {
	slots, err := a.Directory.AgentWorkers(c.Context(), c.project.No, uuid.Nil)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(slots, showSlot))
}
