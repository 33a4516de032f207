package roommcp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
)

var (
	errStopping = fault.New(fault.Unavailable, "the server is stopping")
	errMadeWay  = fault.New(fault.Conflict, "this session made way for a newer one of the same agent")
	errIdle     = fault.New(fault.Conflict, "this session was idle for too long")
	errGone     = errors.New("the client ended the session")
)

// session is one MCP session and the connection it owns.
type session struct {
	srv     *Server
	mcp     *mcp.ServerSession
	id      string // of the connection
	agentNo int64
	client  *mcp.Implementation
	ctx     context.Context // ends with the session; its cause says why
	cancel  context.CancelCauseFunc
	woken   chan struct{} // for run
	news    chan struct{} // for a waiting call
	waiting chan struct{} // held by the one waiting call

	started  atomic.Bool // it has what keeps it
	inFlight int         // under the server's lock
	lastSeen time.Time

	mu        sync.Mutex
	agent     room.Agent
	stream    *connection.Stream // nil: not attached
	reader    *feed.Reader
	cursor    int64       // handed over or passed over
	placed    bool        // cursor is meant
	rooms     []uuid.UUID // claimed when it was last looked at
	gap       *gapNotice  // to be told by the next wait
	notifying bool        // a log level was set
}

// received watches the messages of clients: a session begins with its initialize.
func (s *Server) received(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "initialize" {
			return s.initialize(ctx, method, req, next)
		}
		res, err := next(ctx, method, req)
		if err == nil && method == "logging/setLevel" {
			if c := s.session(req.GetSession()); c != nil {
				err = c.startNotifying(ctx)
			}
			if err != nil {
				return nil, err
			}
		}
		return res, err
	}
}

// initialize begins a session. What is refused here is refused before the SDK takes the session for one.
func (s *Server) initialize(ctx context.Context, method string, req mcp.Request, next mcp.MethodHandler) (mcp.Result, error) {
	if s.session(req.GetSession()) != nil { // once more in the same session
		return next(ctx, method, req)
	}
	c, err := s.open(req)
	if err != nil {
		s.log(err).Msg("MCP session refused")
		return nil, err
	}
	res, err := next(ctx, method, req)
	if err != nil {
		s.forget(c)
		return nil, err
	}
	s.start(ctx, c)
	return res, nil
}

func (s *Server) session(ss mcp.Session) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[ss.ID()]
}

// callerOf is who a message comes from.
func callerOf(req mcp.Request) (caller, error) {
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		if c, ok := extra.TokenInfo.Extra[tokenCaller].(caller); ok {
			return c, nil
		}
	}
	return caller{}, fault.New(fault.Unauthenticated, "the request has no key")
}

// open makes the session of an initialize, and counts it.
func (s *Server) open(req mcp.Request) (*session, error) {
	ss, ok := req.GetSession().(*mcp.ServerSession)
	if !ok || ss.ID() == "" {
		return nil, fault.New(fault.Internal, "an MCP session without an id")
	}
	who, err := callerOf(req)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, err
	}
	c := &session{srv: s, mcp: ss, id: "mcp-" + id.String(), agentNo: who.agent.No, agent: who.agent,
		woken: make(chan struct{}, 1), news: make(chan struct{}, 1), waiting: make(chan struct{}, 1), lastSeen: s.opts.Clock.Now()}
	if p, ok := req.GetParams().(*mcp.InitializeParams); ok {
		c.client = p.ClientInfo
	}
	// A value of the request's context would tie what is sent later to this request.
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeWay(c.agentNo); err != nil {
		c.cancel(err)
		return nil, err
	}
	s.sessions[ss.ID()] = c
	s.running.Add(2)
	return c, nil
}

// forget takes back open.
func (s *Server) forget(c *session) {
	c.cancel(errGone)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c.mcp.ID())
	s.running.Add(-2)
}

// start opens the session's connection, and what keeps both.
func (s *Server) start(ctx context.Context, c *session) {
	if err := c.attach(ctx, c.agent); err != nil {
		s.log(err).Str("agent", c.agent.Name).Msg("MCP session without a connection yet") // its calls try again
	}
	go func() {
		defer s.running.Done()
		_ = c.mcp.Wait()
		c.cancel(errGone)
	}()
	go func() {
		defer s.running.Done()
		c.run()
	}()
	c.started.Store(true)
}

// kick wakes whoever listens, once.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wake is what the registry and the feed call.
func (c *session) wake() {
	kick(c.woken)
	kick(c.news)
}

// run beats for the session, and ends what it has.
func (c *session) run() {
	beat := c.srv.opts.Clock.NewTimer(connection.BeatEvery)
	defer beat.Stop()
	for c.ctx.Err() == nil {
		select {
		case <-c.ctx.Done():
		case <-beat.C():
			c.beat()
			beat.Reset(connection.BeatEvery)
		case <-c.woken:
			c.look()
		}
	}
	c.end()
}

func (c *session) end() {
	c.mu.Lock()
	c.detach("the MCP session ended")
	c.mu.Unlock()
	_ = c.mcp.Close() // waits for calls under way, which see that ctx has ended
	c.srv.mu.Lock()
	delete(c.srv.sessions, c.mcp.ID())
	c.srv.mu.Unlock()
}

// present tells whether the host counts as there, and whether the session has been idle for too long.
func (c *session) present() (here, expired bool) {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if c.inFlight > 0 {
		return true, false
	}
	idle := c.srv.opts.Clock.Now().Sub(c.lastSeen)
	return idle < c.srv.opts.Presence, idle >= c.srv.opts.Idle
}

// beat proves that the host is there, or ends the connection when it is not.
func (c *session) beat() {
	here, expired := c.present()
	if expired {
		c.cancel(errIdle)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !here {
		c.detach("the MCP host has been silent")
		return
	}
	if c.stream != nil && c.stream.Pong(c.cursor) != nil {
		c.lost()
	}
	if c.stream == nil {
		if err := c.attachLocked(c.ctx, c.agent); err != nil {
			c.srv.log(err).Str("agent", c.agent.Name).Msg("MCP session not attached again")
		}
	}
}

// lost notes that the connection is over. An operator's eviction and the agent's end end the session too; after a lapse,
// which only a server that stood still has, it attaches again. The lock is held.
func (c *session) lost() {
	p := c.stream.Pass()
	c.detach("the stream is over")
	if p.End != nil && p.End.Code != room.CodeHeartbeatLapsed {
		c.cancel(fault.New(fault.Conflict, "the connection of this session was ended: %s", p.End.Reason))
	}
}

// attach opens the connection unless it is open.
func (c *session) attach(ctx context.Context, a room.Agent) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attachLocked(ctx, a)
}

func (c *session) attachLocked(ctx context.Context, a room.Agent) error {
	if cause := context.Cause(c.ctx); cause != nil {
		return cause
	}
	if c.stream != nil {
		return nil
	}
	c.agent = a
	speaks := connection.Speaks
	q := connection.Request{AgentNo: a.No, AgentID: a.ID, AgentName: a.Name, ConnectionID: c.id, Transport: Transport,
		Scope: connection.ScopeSingle, Filter: connection.FilterAll, StartHead: !c.placed, After: c.cursor,
		Declared: connection.Declaration{Speaks: &speaks, Accepts: &speaks}}
	if c.client != nil {
		q.Declared.Artifact, q.Declared.Version = clip(c.client.Name), clip(c.client.Version)
	}
	stream, err := c.srv.svc.Connections.Attach(ctx, q, c.wake)
	if err != nil {
		return err
	}
	reader := c.srv.svc.Feed.NewReader(a.No, c.wake)
	o, err := reader.Open(ctx, feed.Start{Head: !c.placed, After: c.cursor})
	if err != nil {
		reader.Close()
		c.srv.svc.Connections.CloseConnection(a.No, c.id, "its events cannot be read")
		return err
	}
	c.stream, c.reader, c.placed, c.cursor = stream, reader, true, o.Cursor
	stream.ResetCursor(o.Cursor)
	for i := range o.Gaps {
		c.meet(&o.Gaps[i])
	}
	generation := stream.Generation()
	for _, id := range c.rooms { // what a sibling has claimed meanwhile stays with it
		_, _ = c.srv.svc.Connections.Subscribe(ctx, a.No, c.id, &generation, id, false)
	}
	return nil
}

// detach gives the connection back, and keeps in mind which room it had. The lock is held.
func (c *session) detach(why string) {
	if c.stream == nil {
		return
	}
	if info := c.stream.Info(); len(info.Rooms) > 0 || c.stream.Pass().End == nil {
		c.rooms = info.Rooms
	}
	c.reader.Close()
	c.stream.Detach()
	c.srv.svc.Connections.CloseConnection(c.agentNo, c.id, why)
	c.stream, c.reader = nil, nil
}

// look follows a wake: an end is noticed at once.
func (c *session) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == nil {
		return
	}
	if c.stream.Pass().End != nil {
		c.lost()
		return
	}
	c.rooms = c.stream.Info().Rooms
}

// maxDeclared bounds what is kept of a client's name and version.
const maxDeclared = 256

func clip(s string) *string {
	if len(s) > maxDeclared {
		s = s[:maxDeclared]
	}
	return &s
}
