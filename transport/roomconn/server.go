package roomconn

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
	"signalbox/transport/roomhttp"
	"signalbox/transport/session"
)

// Authenticator proves agents.
type Authenticator interface {
	// AuthenticateAgent proves an Authorization header (A.1). What proves nothing is Unauthenticated.
	AuthenticateAgent(ctx context.Context, authorization string) (room.Agent, error)
}

// Registry is who is connected; *connection.Registry is one.
type Registry interface {
	Attach(ctx context.Context, q connection.Request, wake func()) (*connection.Stream, error)
	Beat(agentNo int64, id string, cursor int64, generation *int64) (rooms []uuid.UUID, read int64, err error)
	Subscribe(ctx context.Context, agentNo int64, id string, generation *int64, roomID uuid.UUID, takeover bool) (
		connection.Subscription, error)
	Unsubscribe(agentNo int64, id string, generation *int64, roomID uuid.UUID) ([]uuid.UUID, error)
	Place(agentNo int64, id string, generation *int64, placements map[string]uuid.UUID) (connection.Placed, error)
	CloseConnection(agentNo int64, id, reason string) bool
	RenewLease(agentNo int64, id string) (held bool)
	// ResetBaselines makes the counts of missed messages unknown (D.10).
	ResetBaselines(agentNo int64)
}

var _ Registry = (*connection.Registry)(nil)
var _ Feed = (*feed.Feed)(nil)

// Feed is what waits for agents; *feed.Feed is one.
type Feed interface {
	NewReader(agentNo int64, wake func()) *feed.Reader
	CountMissed(ctx context.Context, agentNo, roomNo, base, through int64) (n int64, floor bool, err error)
}

// Services are what the streams are wired to.
type Services struct {
	Agents   Authenticator
	Registry Registry
	Feed     Feed
	Clock    clock.Clock
	Log      zerolog.Logger
	Metrics  *Metrics // nil: of its own, registered nowhere
}

// Options of a Server. Zero values take the defaults named.
type Options struct {
	Version   string // of connection_state; "" is unknown
	RemoveSSE bool   // answer 410 transport_removed instead of streaming (G.1)
	// WriteTimeout bounds one write to a client, on both transports; 10 s.
	WriteTimeout time.Duration
}

// Server carries events to agents. Create it with New, add it to a mux with Routes.
type Server struct {
	agents   Authenticator
	registry Registry
	feed     Feed
	clock    clock.Clock
	log      zerolog.Logger
	metrics  *Metrics
	opts     Options
	plane    *session.Plane
	pings    *pinger
}

const (
	// maxFrame is the largest frame a client may send (K).
	maxFrame = 64 << 10
	// queuedFrames is how many frames may wait for one socket beside the page being written (K).
	queuedFrames = 64
	// writeTimeout is the default of Options.WriteTimeout.
	writeTimeout = 10 * time.Second
)

// closeCodes are those of B.3 and C.7.
var closeCodes = map[session.Reason]session.CloseCode{
	session.Normal:          {Code: 1000},
	session.PeerClosed:      {Code: 1000},
	session.Replaced:        {Code: 1000, Text: "taken over by another stream"},
	session.Lapsed:          {Code: 1000, Text: "no pong in time"},
	session.Evicted:         {Code: 1000, Text: "evicted"},
	session.Draining:        {Code: 1012, Text: "restarting, come back"},
	session.Oversize:        {Code: 1009, Text: "frame above 64 KiB"},
	session.Unauthenticated: {Code: 4401, Text: "missing or invalid key"},
	session.Internal:        {Code: 1011, Text: "delivery failed"},
	session.Panic:           {Code: 1011, Text: "delivery failed"},
}

// New adds the plane of room agents to the session group. The server's goroutine runs until Close.
func New(group *session.Group, s Services, o Options) *Server {
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = writeTimeout
	}
	if s.Clock == nil {
		s.Clock = clock.System()
	}
	if s.Metrics == nil {
		s.Metrics = NewMetrics(nil)
	}
	v := &Server{agents: s.Agents, registry: s.Registry, feed: s.Feed, clock: s.Clock, log: s.Log, metrics: s.Metrics,
		opts: o, pings: newPinger(s.Clock)}
	v.plane = group.NewPlane(session.Options{
		Kind:         "room",
		Outgoing:     session.Text,
		MaxMessage:   maxFrame,
		QueueFrames:  queuedFrames,
		WriteTimeout: o.WriteTimeout,
		Codes:        closeCodes,
	})
	return v
}

// Close ends the pings. Drain the session group first.
func (v *Server) Close() { v.pings.close() }

// Routes registers the routes of streams and of what goes with them.
func (v *Server) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /agents/{agent_id}/connection/ws", v.serveSocket)
	mux.HandleFunc("GET /agents/{agent_id}/events", v.serveEvents)
	for path, handle := range map[string]func(*call) (any, error){
		"connection/beat":        v.beat,
		"connection/subscribe":   v.subscribe,
		"connection/unsubscribe": v.unsubscribe,
		"connection/placements":  v.place,
		"connection/close":       v.closeConnection,
		"leases/renew":           v.renewLease,
	} {
		mux.HandleFunc("POST /agents/{agent_id}/"+path, func(w http.ResponseWriter, r *http.Request) { v.serveCall(w, r, handle) })
	}
}

// caller is what a stream needs of its request, kept apart from it because a socket outlives its request.
type caller struct {
	authorization string
	pathID        string
	query         string
	lastEventID   string
}

func callerOf(r *http.Request) caller {
	return caller{authorization: r.Header.Get("Authorization"), pathID: r.PathValue("agent_id"), query: r.URL.RawQuery}
}

// authenticate is check 1 of B.2.
func (v *Server) authenticate(ctx context.Context, c caller) (room.Agent, error) {
	a, err := v.agents.AuthenticateAgent(ctx, c.authorization)
	if err != nil {
		return a, err
	}
	return a, ownPath(a, c.pathID)
}

// ownPath refuses a key on the path of another agent (A.2).
func ownPath(a room.Agent, pathID string) error {
	if id, err := uuid.Parse(pathID); err != nil || id != a.ID {
		return fault.New(fault.Forbidden, "the key is not that of the agent in the path")
	}
	return nil
}

// attach runs checks 1 and 3 to 12 of B.2 and opens the reading of the stream, subscribed before anything is read. The
// caller must close the pump.
func (v *Server) attach(ctx context.Context, c caller, t connection.Transport, enc encoder, wake func()) (*pump, *page, error) {
	a, err := v.authenticate(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	o, err := parseOpening(c.query, c.lastEventID)
	if err != nil {
		return nil, nil, err
	}
	stream, err := v.registry.Attach(ctx, connection.Request{AgentNo: a.No, AgentID: a.ID, AgentName: a.Name,
		ConnectionID: o.connectionID, Transport: t, Scope: o.scope, Filter: o.filter, StartHead: o.startHead, After: o.after,
		SpawnCapable: o.spawnCapable, Rooms: o.rooms.ids, ExpectedGeneration: o.expected, Declared: o.declared}, wake)
	if err != nil {
		return nil, nil, o.rooms.respell(err)
	}
	p := &pump{srv: v, stream: stream, enc: enc, reader: v.feed.NewReader(a.No, wake)}
	first, err := p.open(ctx, feed.Start{Head: o.startHead, After: o.after}, t == connection.SSE)
	if err != nil {
		p.close()
		return nil, nil, failedOpen(err)
	}
	return p, first, nil
}

// failedOpen is a reading that did not begin after the attach did. It is ours, whatever the code says, unless the agent
// is gone.
func failedOpen(err error) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.Unauthenticated, err, "the agent was deleted")
	}
	return err
}

// isRefusal tells what a client is told by a status from what is our failure (B.3).
func isRefusal(err error) bool {
	status := roomhttp.Status(err)
	return status >= 400 && status < 500 && !fault.Is(err, fault.Canceled)
}

// logFailure records what is no refusal.
func (v *Server) logFailure(err error, what string) {
	if errors.Is(err, context.Canceled) {
		return
	}
	v.log.Error().Err(err).Msg(what)
}
