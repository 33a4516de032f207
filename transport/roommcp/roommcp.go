package roommcp

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/operation"
)

// Identity is who calls; *identity.Identity is one.
type Identity interface {
	AuthenticateAgent(ctx context.Context, authorization string) (room.Agent, error)
}

// Connections is who is connected; *connection.Registry is one.
type Connections interface {
	Attach(ctx context.Context, q connection.Request, wake func()) (*connection.Stream, error)
	Subscribe(ctx context.Context, agentNo int64, id string, generation *int64, roomID uuid.UUID,
		takeover bool) (connection.Subscription, error)
	CloseConnection(agentNo int64, id, reason string) bool
	ResetBaselines(agentNo int64)
}

// Feed is what waits for agents; *feed.Feed is one.
type Feed interface {
	NewReader(agentNo int64, wake func()) *feed.Reader
	CountMissed(ctx context.Context, agentNo, roomNo, base, through int64) (n int64, floor bool, err error)
}

// Operations is the table of operations; *operation.Table is one.
type Operations interface {
	Operations() []operation.Info
	Call(ctx context.Context, c operation.Call) (any, error)
}

// Metrics counts what sessions are handed; *roomconn.Metrics is one.
type Metrics interface {
	Delivered(t connection.Transport)
	Gap(reset bool)
}

// noMetrics counts nothing.
type noMetrics struct{}

// Delivered does nothing.
func (noMetrics) Delivered(connection.Transport) {}

// Gap does nothing.
func (noMetrics) Gap(bool) {}

// Services are what the endpoint is a face of.
type Services struct {
	Identity    Identity
	Operations  Operations
	Connections Connections
	Feed        Feed
}

// Bounds that are used when the options leave them zero.
const (
	DefaultPresence    = 5 * time.Minute
	DefaultIdle        = time.Hour
	DefaultMaxSessions = 256
	DefaultPerAgent    = 8
)

// Transport is what the connections of this package are listed as.
const Transport connection.Transport = "mcp"

// Options of a Server.
type Options struct {
	Version     string        // of the server
	Presence    time.Duration // how long a host counts as there after its last request
	Idle        time.Duration // how long a session lasts without a request
	MaxSessions int           // of all agents
	PerAgent    int           // of one agent
	MaxBody     int64         // bytes of a request; 0: the library's 4 MiB
	Origins     []string      // of browsers that may call beside the endpoint's own host
	Clock       clock.Clock
	Log         zerolog.Logger
	Metrics     Metrics // nil: nothing is counted
}

// Server serves the endpoint.
type Server struct {
	svc     Services
	opts    Options
	mcp     *mcp.Server
	handler http.Handler
	origins map[string]bool

	mu       sync.Mutex
	sessions map[string]*session // by MCP session id
	closing  bool
	running  sync.WaitGroup
}

// New returns a Server. Drain or Close ends it.
func New(s Services, o Options) *Server {
	if o.Presence <= 0 {
		o.Presence = DefaultPresence
	}
	if o.Idle <= 0 {
		o.Idle = DefaultIdle
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = DefaultMaxSessions
	}
	if o.PerAgent <= 0 {
		o.PerAgent = DefaultPerAgent
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	srv := &Server{svc: s, opts: o, sessions: map[string]*session{}, origins: map[string]bool{}}
	for _, origin := range o.Origins {
		srv.origins[origin] = true
	}
	srv.mcp = mcp.NewServer(&mcp.Implementation{Name: "signalbox", Title: "Signalbox rooms", Version: o.Version},
		&mcp.ServerOptions{Instructions: instructions, Capabilities: capabilities()})
	srv.mcp.AddReceivingMiddleware(srv.received)
	srv.addTools()
	sdk := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv.mcp }, &mcp.StreamableHTTPOptions{
		MaxRequestBodyBytes: o.MaxBody, DisableLocalhostProtection: true}) // checkOrigin does it, and allows for proxies
	srv.handler = auth.RequireBearerToken(verified, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(sdk)
	return srv
}

func capabilities() *mcp.ServerCapabilities {
	//lint:ignore SA1019 the versions of the protocol that have sessions have logging too
	return &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Logging: &mcp.LoggingCapabilities{}}
}

const instructions = "Rooms where agents and people work together. Call list_rooms, then connect_to_room with a room_id: " +
	"that makes you present there and returns what you need to know. Post with post_message, read what was said with " +
	"read_context. To react to others, call wait_for_messages again and again: it returns as soon as something is " +
	"addressed to you in the room you are connected to."

// Routes registers the routes.
func (s *Server) Routes(mux *http.ServeMux) {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		mux.HandleFunc(method+" /mcp", s.serve)
		mux.HandleFunc(method+" /agents/{agent_id}/mcp", s.serve)
	}
}

// Sessions counts the open sessions.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// Drain ends every session, refuses new ones, and waits until all is given back or ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for _, c := range s.sessions {
		c.cancel(errStopping)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("MCP sessions are still ending: %w", context.Cause(ctx))
	}
}
