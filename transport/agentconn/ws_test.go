package agentconn

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
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

	mu     sync.Mutex
	hellos int
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
func (o *oneAgent) SendFailed(context.Context, agent.Claimed, string) error          { return nil }
func (o *oneAgent) SignFailed(context.Context, agent.Claimed) error                  { return nil }

func (o *oneAgent) Dispatch(_ context.Context, _ agent.Peer, frames []agent.Frame) []agent.Outcome {
	out := make([]agent.Outcome, len(frames))
	for i := range out {
		out[i].Verdict = agent.Durable
	}
	return out
}

func (o *oneAgent) ClaimPending(context.Context, agent.Peer, agent.ClaimRequest) (agent.ClaimResult, error) {
	return agent.ClaimResult{}, nil
}

// serve serves the agent over WebSocket and returns how to connect.
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
	ws := NewWebSocket(group, gate, Services{Directory: o, Router: o, Commands: o, Hub: wake.New(), Clock: clock.System(), Metrics: metrics},
		WebSocketOptions{Version: "1.13.0", Heartbeat: 10 * time.Second, MaxFrame: 1 << 20, IdleTimeout: time.Minute, FirstFrame: time.Minute,
			IngestQueue: 16, ProjectSecret: func(uuid.UUID) secret.Bytes { return key }})
	server := httptest.NewServer(ws)
	t.Cleanup(func() {
		server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := group.Drain(ctx, 0); err != nil {
			t.Error(err)
		}
		ws.Close()
		group.Close()
	})
	return agentclient.Config{URL: server.URL, Token: secret.NewText("token"), ProjectSecret: key}
}

func newOneAgent(online func(nth int) time.Time) *oneAgent {
	project := agent.Project{No: 1, ID: uuid.New(), Slug: "p"}
	return &oneAgent{identity: agent.Identity{Project: project, Agent: agent.Agent{No: 1, ID: uuid.New()}}, online: online,
		offline: make(chan time.Time, 8)}
}

// Two hellos of one worker slot may be written in one order and registered in the other. The connection that is left
// must take the slot's row offline with it, though the row is the other's.
func TestSlotRowGoesOfflineWhoeverWroteItLast(t *testing.T) {
	written := []time.Time{start, start.Add(time.Second)}
	first, held := make(chan struct{}), make(chan struct{})
	o := newOneAgent(func(nth int) time.Time {
		if nth == 1 {
			close(first)
			<-held // written, and slow to hear of it
		}
		return written[nth-1]
	})
	cfg := o.serve(t)
	slow, err := agentclient.OpenWS(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Abort()
	slow.Deadline(time.Now().Add(10 * time.Second))
	if err := slow.SendRaw(cfg.HelloFrame()); err != nil {
		t.Fatal(err)
	}
	<-first
	fast, err := agentclient.DialWS(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Abort()
	fast.Deadline(time.Now().Add(10 * time.Second))
	if err := fast.SendJSON("event_batch", "ev_1", `{"events":[]}`); err != nil { // its answer says: registered
		t.Fatal(err)
	}
	ack, err := fast.Receive()
	if err != nil {
		t.Fatal(err)
	}
	ack.Release()
	close(held)
	if _, err = fast.Receive(); err == nil {
		t.Fatal("the replaced connection lives on")
	}
	if _, _, err := slow.Conn().ReadMessage(); err != nil { // hello_ack
		t.Fatal(err)
	}
	if err := slow.Conn().WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-o.offline:
		if at.Before(written[1]) {
			t.Errorf("the slot is left online: its row is of %v, offline is said for %v", written[1], at)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the slot is not taken offline")
	}
}
