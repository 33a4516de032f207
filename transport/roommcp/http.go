package roommcp

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/rs/zerolog"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
)

// headerSession carries the id of an MCP session.
const headerSession = "Mcp-Session-Id"

// caller is who a request comes from; it reaches handlers through the SDK's token info.
type caller struct {
	agent  room.Agent
	origin room.Origin
}

type callerKey struct{}

// tokenCaller is the key of a caller in the extra values of a token.
const tokenCaller = "caller"

// verified hands the SDK what serve has proved.
func verified(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
	c, ok := ctx.Value(callerKey{}).(caller)
	if !ok {
		return nil, auth.ErrInvalidToken
	}
	return &auth.TokenInfo{UserID: c.agent.ID.String(), Extra: map[string]any{tokenCaller: c}}, nil
}

// serve checks where a request comes from and whose it is, counts it, and passes it to the SDK.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c, done, err := s.admit(r)
	if err != nil {
		if fault.Is(err, fault.Unauthenticated) {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		s.log(err).Str("request", transport.RequestID(r.Context())).Str("path", r.URL.Path).Msg("MCP request refused")
		roomhttp.WriteError(w, r, err)
		return
	}
	defer done()
	s.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
}

// log begins a line of the level that the error deserves.
func (s *Server) log(err error) *zerolog.Event {
	level := zerolog.DebugLevel
	switch fault.CodeOf(err) {
	case fault.Unavailable:
		level = zerolog.WarnLevel
	case fault.Internal, fault.Corrupt, fault.OutcomeUnknown:
		level = zerolog.ErrorLevel
	}
	return s.opts.Log.WithLevel(level).Err(err)
}

// admit lets a request pass. done must be called when it is over.
func (s *Server) admit(r *http.Request) (c caller, done func(), err error) {
	if err := s.checkOrigin(r); err != nil {
		return c, nil, err
	}
	if c.agent, err = s.svc.Identity.AuthenticateAgent(r.Context(), r.Header.Get("Authorization")); err != nil {
		return c, nil, err
	}
	if path := r.PathValue("agent_id"); path != "" {
		if id, err := uuid.Parse(path); err != nil || id != c.agent.ID {
			return c, nil, fault.New(fault.Forbidden, "agent_id: this key is another agent's")
		}
	}
	c.origin.UserAgent = r.UserAgent()
	if addr := transport.ClientAddr(r.Context()); addr.IsValid() {
		c.origin.SourceIP = addr.String()
	}
	return c, s.enter(r.Header.Get(headerSession)), nil
}

// checkOrigin refuses other sites' pages (see the package comment).
func (s *Server) checkOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" || s.origins[origin] {
		return nil
	}
	refused := fault.New(fault.Forbidden, "Origin: this site may not call the endpoint")
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return refused
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if ok && isLoopback(local.String()) && !isLoopback(r.Host) {
		return refused
	}
	return nil
}

// isLoopback tells whether a host, with or without port, is the machine itself.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// enter counts a request of a session.
func (s *Server) enter(id string) (done func()) {
	s.mu.Lock()
	c := s.sessions[id]
	if c != nil {
		c.inFlight++
	}
	s.mu.Unlock()
	if c == nil {
		return func() {} // none yet, or the SDK refuses it
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.inFlight--
		c.lastSeen = s.opts.Clock.Now()
	}
}

// makeWay sees that there is room for one more session of the agent: its own session that is idle longest goes, when
// there are too many. The lock is held.
func (s *Server) makeWay(agentNo int64) error {
	if s.closing {
		return errStopping
	}
	own, all := 0, 0
	var idle *session
	for _, c := range s.sessions {
		if c.ctx.Err() != nil {
			continue // on its way out
		}
		all++
		if c.agentNo != agentNo {
			continue
		}
		own++
		if c.inFlight == 0 && c.started.Load() && (idle == nil || c.lastSeen.Before(idle.lastSeen)) {
			idle = c
		}
	}
	switch {
	case own < s.opts.PerAgent && all < s.opts.MaxSessions:
	case idle != nil:
		idle.cancel(errMadeWay)
	case own >= s.opts.PerAgent:
		return fault.New(fault.Conflict, "this agent has %d MCP sessions open, the most it may; close one", own)
	default:
		return fault.New(fault.Unavailable, "too many MCP sessions on this server; try again later")
	}
	return nil
}
