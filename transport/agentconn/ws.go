package agentconn

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/transport"
	"signalbox/transport/session"
	"signalbox/transport/wire"
)

// WebSocketPath is where agents connect (agent protocol B.1).
const WebSocketPath = "/ws/agent"

// Keepalive of the WebSocket layer (agent protocol B.1).
const (
	pingInterval = 60 * time.Second
	pongWait     = 60 * time.Second
)

// maxSockets bounds the sockets of all agents together, handshakes included: at about 10 KiB each they stay far below what
// a small machine has. More are refused with 503 before the upgrade.
const maxSockets = 20_000

// queuedFrames is how many frames may wait for one socket: acknowledgements and commands are small, so their bytes are
// the bound that counts.
const queuedFrames = 16 << 10

// WebSocketOptions configure the WebSocket transport.
type WebSocketOptions struct {
	Version       string        // brain_version of hello_ack
	Heartbeat     time.Duration // heartbeat_interval_seconds of hello_ack
	MaxFrame      int           // bytes; the smaller of the two settings
	IdleTimeout   time.Duration // no message for this long ends the session
	FirstFrame    time.Duration // deadline of the hello
	PerAgentCap   int           // most worker slots of one agent; 0: none
	IngestQueue   int           // most frames waiting for the database, per connection
	ProjectSecret func(project uuid.UUID) secret.Bytes
}

// WebSocket serves /ws/agent. Create it with NewWebSocket; it is an http.Handler.
type WebSocket struct {
	opts      WebSocketOptions
	plane     *session.Plane
	gate      *Gate
	directory Directory
	router    Router
	commands  Commands
	clock     clock.Clock
	log       zerolog.Logger
	metrics   *Metrics
	slots     *slots[*wsConn]
	feeds     *feeds
}

// Services are what both transports are wired to.
type Services struct {
	Directory Directory
	Router    Router
	Commands  Commands
	Hub       *wake.Hub
	Clock     clock.Clock
	Log       zerolog.Logger
	Metrics   *Metrics
}

// NewWebSocket adds the agent plane to the session group.
func NewWebSocket(group *session.Group, gate *Gate, s Services, o WebSocketOptions) *WebSocket {
	w := &WebSocket{opts: o, gate: gate, directory: s.Directory, router: s.Router, commands: s.Commands,
		clock: s.Clock, log: s.Log, metrics: s.Metrics, slots: newSlots[*wsConn](o.PerAgentCap)}
	w.slots.replace = (*wsConn).succeed
	w.feeds = newFeeds(w, s.Hub)
	w.plane = group.NewPlane(session.Options{
		Kind:         "agent",
		Outgoing:     session.Binary,
		MaxMessage:   o.MaxFrame,
		QueueFrames:  queuedFrames,
		MaxSessions:  maxSockets,
		IdleTimeout:  o.IdleTimeout,
		PingInterval: pingInterval,
		PongWait:     pongWait,
		Codes:        closeCodes,
	})
	s.Metrics.watchWebSocket(w)
	return w
}

// closeCodes are those of agent protocol B.4.
var closeCodes = map[session.Reason]session.CloseCode{
	session.Normal:           {Code: 1000},
	session.PeerClosed:       {Code: 1000},
	session.Replaced:         {Code: 4002, Text: "replaced by a newer connection of this worker"},
	session.Revoked:          {Code: 4003, Text: "agent revoked or project archived"},
	session.Protocol:         {Code: 4400, Text: "malformed frame"},
	session.Oversize:         {Code: 4400, Text: "frame above the size limit"},
	session.Unauthenticated:  {Code: 4401, Text: "invalid agent token"},
	session.Inactive:         {Code: 4401, Text: "the agent's project is archived"},
	session.Denied:           {Code: 4403, Text: "source address is not allowed for this surface"},
	session.Signature:        {Code: 4403, Text: "frame verification failed"},
	session.Idle:             {Code: 4408, Text: "idle timeout"},
	session.HandshakeTimeout: {Code: 4408, Text: "no hello in time"},
	session.Incompatible:     {Code: 4426, Text: "protocol version not supported"},
	session.RateLimited:      {Code: 4429, Text: "agent connect rate limit exceeded"},
	session.Capacity:         {Code: 4429, Text: "too many workers of this agent"},
	session.Internal:         {Code: 1011, Text: "internal error"},
	session.Panic:            {Code: 1011, Text: "internal error"},
}

// ServeHTTP upgrades the request. Every refusal but a missing Upgrade is a close code after an accepted upgrade, in the
// order of agent protocol B.2.
func (w *WebSocket) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !session.IsUpgrade(r) {
		rw.Header().Set("Upgrade", "websocket")
		rw.Header().Set("Connection", "Upgrade")
		transport.WriteError(rw, r, fault.New(fault.Incompatible,
			"this path speaks WebSocket only; where a proxy strips Upgrade headers, set Z4J_TRANSPORT=longpoll on the agent to use /api/v1/agent/").
			With("fallback", map[string]string{"transport": "longpoll", "events": EventsPath, "commands": CommandsPath}))
		return
	}
	c := callerOf(r)
	limited := w.gate.rate(c)
	err := w.plane.Accept(rw, r, transport.AddrKey(c.addr), func(ctx context.Context, s *session.Session) (session.Handler, error) {
		if limited != nil {
			return nil, session.Fail(session.RateLimited, limited)
		}
		return w.handshake(ctx, s, c)
	})
	if err != nil {
		transport.WriteError(rw, r, err)
	}
}

// handshake is agent protocol B.2 from step 4 on.
func (w *WebSocket) handshake(ctx context.Context, s *session.Session, c caller) (session.Handler, error) {
	id, err := w.admit(ctx, c)
	if err != nil {
		return nil, err
	}
	s.SetPrincipal(id.Agent.ID.String())
	_, first, err := s.ReadFirst(w.opts.FirstFrame)
	if err != nil {
		return nil, err
	}
	hello, err := wire.ParseHello(first)
	if err != nil {
		return nil, session.Fail(session.Protocol, err)
	}
	if hello.ProtocolVersion != wire.ProtocolVersion {
		return nil, session.Fail(session.Incompatible, nil)
	}
	w.checkSkew(id, hello)
	sessionID := uuid.New()
	conn := newWSConn(w, s, id, hello, sessionID)
	if conn.connectedAt, err = w.directory.MarkOnline(ctx, conn.peer, domainHello(hello)); err != nil {
		return nil, refusal(err)
	}
	conn.rowAt = conn.connectedAt
	ack := wire.AppendHelloAck(nil, w.clock.Now(), wire.HelloAck{BrainVersion: w.opts.Version, AgentID: id.Agent.ID,
		ProjectID: id.Project.ID, SessionID: sessionID, Heartbeat: w.opts.Heartbeat, MaxFrameBytes: w.opts.MaxFrame})
	if err := s.Send(ack); err != nil {
		return nil, w.abandon(conn, err)
	}
	if err := w.enter(ctx, conn); err != nil {
		return nil, err
	}
	w.log.Info().Str(fieldAgent, id.Agent.ID.String()).Str(fieldProject, id.Project.Slug).Str("worker", conn.peer.Worker).
		Str("peer", s.Peer()).Str("version", hello.AgentVersion).Str("framework", hello.Framework).Msg("agent connected")
	return conn, nil
}

func (w *WebSocket) admit(ctx context.Context, c caller) (agent.Identity, error) {
	if err := w.gate.admitAddress(ctx, c); err != nil {
		return agent.Identity{}, refusal(err)
	}
	id, err := w.gate.authenticate(ctx, c, true)
	if err != nil {
		return agent.Identity{}, refusal(err)
	}
	return id, nil
}

// refusal turns the error of a check into the reason the session ends for.
func refusal(err error) error {
	switch fault.CodeOf(err) {
	case fault.IPDenied:
		return session.Fail(session.Denied, nil)
	case fault.Unauthenticated:
		return session.Fail(session.Unauthenticated, nil)
	case fault.ProjectInactive:
		return session.Fail(session.Inactive, nil)
	default:
		return session.Fail(session.Internal, err)
	}
}

// enter registers the connection and checks once more that it is welcome: from here on a revocation finds it.
func (w *WebSocket) enter(ctx context.Context, conn *wsConn) error {
	replaced, ok := w.slots.register(conn.peer.AgentID, conn.peer.Worker, conn)
	if !ok {
		return w.abandon(conn, session.Fail(session.Capacity, nil))
	}
	w.feeds.enter(conn.peer)
	if replaced != nil {
		replaced.session.Close(session.Replaced)
	}
	if err := w.directory.CheckAlive(ctx, conn.peer.AgentNo); err != nil {
		reason := session.Revoked
		if c := fault.CodeOf(err); c != fault.Unauthenticated && c != fault.ProjectInactive {
			reason = session.Internal
		}
		w.leave(conn)
		return session.Fail(reason, err)
	}
	go conn.awaitProof()
	return nil
}

// abandon takes back what MarkOnline said of a connection that never was registered, and returns err.
func (w *WebSocket) abandon(conn *wsConn, err error) error {
	w.offline(conn, len(w.slots.newestFirst(conn.peer.AgentID)) == 0)
	return err
}

// leave ends a registered connection: slot, feed, worker row and agent state, in this order, so that a newer connection
// of the slot is never touched.
func (w *WebSocket) leave(conn *wsConn) {
	mine, last := w.slots.unregister(conn.peer.AgentID, conn.peer.Worker, conn)
	w.feeds.leave(conn.peer)
	if mine {
		w.offline(conn, last)
	}
}

func (w *WebSocket) offline(conn *wsConn, last bool) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := w.directory.WorkerOffline(ctx, conn.peer, last, conn.rowAt); err != nil {
		w.log.Warn().Err(err).Str(fieldAgent, conn.peer.AgentID.String()).Msg("end of a worker not written")
	}
}

// Sessions lists the live sessions of an agent, newest first.
func (w *WebSocket) Sessions(agentID uuid.UUID) []agent.SessionInfo {
	conns := w.slots.newestFirst(agentID)
	out := make([]agent.SessionInfo, len(conns))
	for i, c := range conns {
		out[i] = c.info()
	}
	return out
}

// Count returns the number of connected worker slots.
func (w *WebSocket) Count() int { return w.slots.count() }

func domainHello(h *wire.Hello) agent.Hello {
	out := agent.Hello{ProtocolVersion: h.ProtocolVersion, AgentVersion: h.AgentVersion, Framework: h.Framework,
		Engines: h.Engines, Schedulers: h.Schedulers, Capabilities: h.Capabilities, Host: h.Host,
		RuntimeFeatures: h.RuntimeFeatures, WorkerStartedAt: h.WorkerStartedAt}
	if h.WorkerID != nil {
		out.WorkerID = *h.WorkerID
	}
	if h.WorkerRole != nil {
		out.WorkerRole = *h.WorkerRole
	}
	if h.WorkerPID != nil {
		pid := int(*h.WorkerPID)
		out.WorkerPID = &pid
	}
	return out
}

// Close ends what goes on beside the sessions. Drain the session group first.
func (w *WebSocket) Close() { w.feeds.close() }
