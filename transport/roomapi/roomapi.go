package roomapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/media"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
)

// Identity is who calls and who registers; *identity.Identity is one.
type Identity interface {
	AuthenticateAgent(ctx context.Context, authorization string) (room.Agent, error)
	AuthenticateRegistrant(ctx context.Context, authorization string) (identity.Registrant, error)
	Register(ctx context.Context, by identity.Registrant, n identity.NewAgent) (identity.Registered, error)
	RegisterKnown(ctx context.Context, by identity.Registrant, n identity.NewKnownAgent) (identity.Registered, error)
	RegisterKnownBulk(ctx context.Context, by identity.Registrant, n identity.NewKnownAgents) ([]identity.Registered, error)
	Agent(ctx context.Context, id uuid.UUID) (room.Agent, error)
	DeleteAgent(ctx context.Context, by room.Actor, id uuid.UUID) error
}

// Operations is the table of operations; *operation.Table is one.
type Operations interface {
	Schemas() json.RawMessage
	Call(ctx context.Context, c operation.Call) (any, error)
}

// Timeline says things in rooms; *timeline.Timeline is one.
type Timeline interface {
	Post(ctx context.Context, d timeline.Draft) (timeline.Posted, error)
}

// Media keeps files; *media.Media is one.
type Media interface {
	Begin(ctx context.Context, by room.Actor, roomID uuid.UUID) (*media.Upload, error)
	Open(ctx context.Context, by room.Actor, roomID uuid.UUID, key string) (*media.File, error)
	// Member is the number of the room when the actor is in it.
	Member(ctx context.Context, by room.Actor, roomID uuid.UUID) (int64, error)
}

// Connections takes what sessions report of themselves; *connection.Registry is one.
type Connections interface {
	SetRuntimeState(agentNo, roomNo int64, state string, capabilities map[string]bool)
}

// Services are what the routes are a face of.
type Services struct {
	Identity    Identity
	Operations  Operations
	Timeline    Timeline
	Media       Media
	Connections Connections
}

// Options of a Server.
type Options struct {
	Version string // of the server; "": not told
	Log     zerolog.Logger
}

// Server serves the routes.
type Server struct {
	svc  Services
	opts Options
}

// New returns a Server.
func New(s Services, o Options) *Server { return &Server{svc: s, opts: o} }

// Routes registers the routes.
func (s *Server) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /agents", s.register)
	mux.HandleFunc("POST /agents/register-known", s.registerKnown)
	mux.HandleFunc("POST /agents/register-known-bulk", s.registerKnownBulk)
	mux.HandleFunc("DELETE /agents/{agent_id}", s.deleteAgent)
	mux.HandleFunc("GET /agents/{agent_id}/ops", s.agent(s.operations))
	mux.HandleFunc("POST /agents/{agent_id}/ops/{name}", s.agent(s.call))
	mux.HandleFunc("POST /agents/{agent_id}/message", s.agent(s.message))
	mux.HandleFunc("POST /agents/{agent_id}/typing", s.agent(s.typing))
	mux.HandleFunc("POST /agents/{agent_id}/runtime-state", s.agent(s.runtimeState))
	mux.HandleFunc("GET /agents/{agent_id}/rooms/{room_id}/media", s.agent(s.download))
	mux.HandleFunc("POST /agents/{agent_id}/rooms/{room_id}/media", s.agent(s.upload))
	mux.HandleFunc("GET /version", s.version)
}

// handler answers a request of the agent, or returns the error to answer with.
type handler func(w http.ResponseWriter, r *http.Request, a room.Agent) error

// agent lets the agent of the path pass with its own key (A.2).
func (s *Server) agent(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r = withOrigin(r)
		a, err := s.svc.Identity.AuthenticateAgent(r.Context(), r.Header.Get("Authorization"))
		if err == nil {
			err = samePath(r, a)
		}
		if err == nil {
			err = h(w, r, a)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	}
}

func samePath(r *http.Request, a room.Agent) error {
	if id, err := uuid.Parse(r.PathValue("agent_id")); err != nil || id != a.ID {
		return fault.New(fault.Forbidden, "agent_id: this key is another agent's")
	}
	return nil
}

// withOrigin notes where the request came from, for the audit log.
func withOrigin(r *http.Request) *http.Request {
	o := room.Origin{UserAgent: r.UserAgent()}
	if addr := transport.ClientAddr(r.Context()); addr.IsValid() {
		o.SourceIP = addr.String()
	}
	return r.WithContext(room.WithOrigin(r.Context(), o))
}

// fail answers with an error. What the server did wrong is logged with its cause, which the caller is not told.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	level := zerolog.DebugLevel
	switch code := fault.CodeOf(err); {
	case r.Context().Err() != nil:
	case code == fault.Unavailable:
		level = zerolog.WarnLevel
	case code == fault.Internal, code == fault.Corrupt, code == fault.OutcomeUnknown:
		level = zerolog.ErrorLevel
	}
	s.opts.Log.WithLevel(level).Err(err).Str("request", transport.RequestID(r.Context())).Str("method", r.Method).
		Str("path", r.URL.Path).Msg("request of a room agent failed")
	roomhttp.WriteError(w, r, err)
}

func answer(w http.ResponseWriter, r *http.Request, v any) error {
	transport.WriteJSON(w, r, http.StatusOK, v)
	return nil
}

// contract is a range of protocol revisions.
type contract struct {
	Speaks  int `json:"speaks"`
	Accepts int `json:"accepts"`
}

func (s *Server) version(w http.ResponseWriter, r *http.Request) {
	if _, err := s.svc.Identity.AuthenticateAgent(r.Context(), r.Header.Get("Authorization")); err != nil {
		s.fail(w, r, err)
		return
	}
	out := struct {
		Version   *string             `json:"version"`
		Contracts map[string]contract `json:"contracts"`
	}{Contracts: map[string]contract{"agent-protocol": {connection.Speaks, connection.Accepts}}}
	if s.opts.Version != "" {
		out.Version = &s.opts.Version
	}
	_ = answer(w, r, out)
}
