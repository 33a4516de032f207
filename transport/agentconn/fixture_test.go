package agentconn

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/transport"
	"signalbox/transport/agentclient"
	"signalbox/transport/session"
)

// oneAgent is a directory of one agent whose hellos can be held back, and a router and command service without content.
type oneAgent struct {
	identity agent.Identity
	online   func(nth int) time.Time // of the nth hello: when it was written, once it may be known
	offline  chan time.Time
	dispatch func(frames []agent.Frame) []agent.Outcome // nil: all are durable
	ws       *WebSocket                                 // set by serve

	mu      sync.Mutex
	hellos  int
	pending []agent.Claimed // handed to whoever asks first
	asked   time.Time       // last claim
	ended   []string        // "<what> <command id>" of send and sign failures
	live    int             // sessions that can answer
}

func (o *oneAgent) Authenticate(context.Context, string) (agent.Identity, error) {
	return o.identity, nil
}

func (o *oneAgent) MarkOnline(context.Context, agent.Peer, agent.Hello) (time.Time, error) {
	o.mu.Lock()
	o.hellos++
	nth := o.hellos
	o.mu.Unlock()
	return o.online(nth), nil
}

func (o *oneAgent) CheckAlive(context.Context, int64) error { return nil }

func (o *oneAgent) WorkerOffline(_ context.Context, _ agent.Peer, _ bool, connectedAt time.Time) error {
	o.offline <- connectedAt
	return nil
}

func (o *oneAgent) TouchLongPoll(context.Context, agent.Peer) error                  { return nil }
func (o *oneAgent) StoreRuntimeFeatures(context.Context, agent.Peer, []string) error { return nil }
func (o *oneAgent) RecordRefusal(context.Context, audit.Entry) error                 { return nil }
func (o *oneAgent) MarkSent(context.Context, ...int64) error                         { return nil }

func (o *oneAgent) SendFailed(_ context.Context, c agent.Claimed, _ string) error {
	return o.end("send", c)
}
func (o *oneAgent) SignFailed(_ context.Context, c agent.Claimed) error { return o.end("sign", c) }

func (o *oneAgent) Connected(agent.Peer)    { o.lives(1) }
func (o *oneAgent) Disconnected(agent.Peer) { o.lives(-1) }

func (o *oneAgent) lives(by int) (now int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live += by
	return o.live
}

func (o *oneAgent) end(what string, c agent.Claimed) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = append(o.ended, what+" "+c.Command.ID.String())
	return nil
}

// idle tells whether nobody has claimed for a while.
func (o *oneAgent) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.asked.IsZero() && time.Since(o.asked) > 200*time.Millisecond
}

func (o *oneAgent) failures() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ended)
}

func (o *oneAgent) Dispatch(_ context.Context, _ agent.Peer, frames []agent.Frame) []agent.Outcome {
	if o.dispatch != nil {
		return o.dispatch(frames)
	}
	return durable(frames)
}

// durable is the outcome of frames that were stored.
func durable(frames []agent.Frame) []agent.Outcome {
	out := make([]agent.Outcome, len(frames))
	for i := range out {
		out[i].Verdict = agent.Durable
	}
	return out
}

func (o *oneAgent) ClaimPending(_ context.Context, _ agent.Peer, r agent.ClaimRequest) (agent.ClaimResult, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = time.Now()
	n := min(r.Limit, len(o.pending))
	claimed := o.pending[:n]
	o.pending = o.pending[n:]
	return agent.ClaimResult{Claimed: claimed}, nil
}

// serve serves the agent on both transports and returns how to connect.
func (o *oneAgent) serve(t *testing.T) agentclient.Config {
	t.Helper()
	reg := prometheus.NewRegistry()
	group, err := session.NewGroup(clock.System(), zerolog.Nop(), reg)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	gate := &Gate{Bucket: transport.NewRateBucket("agent-connect", 0, time.Minute, clock.System()),
		Allow:    transport.NewAllowlist("agent", transport.NewNetworks(nil), nil),
		Refusals: transport.NewRefusalWindow(clock.System(), time.Minute), Directory: o}
	key := secret.NewBytes(make([]byte, 32))
	services := Services{Directory: o, Router: o, Commands: o, Hub: wake.New(), Clock: clock.System(), Metrics: metrics}
	secretOf := func(uuid.UUID) secret.Bytes { return key }
	ws := NewWebSocket(group, gate, services, WebSocketOptions{Version: "1.13.0", Heartbeat: 10 * time.Second, MaxFrame: 1 << 20, IdleTimeout: time.Minute, FirstFrame: time.Minute,
		IngestQueue: 16, ProjectSecret: secretOf})
	o.ws = ws
	mux := http.NewServeMux()
	mux.Handle(WebSocketPath, ws)
	NewLongPoll(gate, services, LongPollOptions{Limits: LPLimits{PerAgent: 16, Total: 16, Idle: time.Minute}, ProjectSecret: secretOf}).Routes(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := group.Drain(ctx, 0); err != nil {
			t.Error(err)
		}
		ws.Close()
		group.Close()
	})
	return agentclient.Config{URL: server.URL, Token: secret.NewText("token"), ProjectSecret: key, Client: http.DefaultClient}
}

func newOneAgent(online func(nth int) time.Time) *oneAgent {
	project := agent.Project{No: 1, ID: uuid.New(), Slug: "p"}
	return &oneAgent{identity: agent.Identity{Project: project, Agent: agent.Agent{No: 1, ID: uuid.New()}}, online: online,
		offline: make(chan time.Time, 8)}
}
