package agentconn

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"signalbox/appliance/agent"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

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
	slow.Deadline(time.Now().Add(2 * time.Minute))
	if err := slow.SendRaw(cfg.HelloFrame()); err != nil {
		t.Fatal(err)
	}
	<-first
	fast, err := agentclient.DialWS(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Abort()
	fast.Deadline(time.Now().Add(2 * time.Minute))
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
	if err := slow.Conn().WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-o.offline:
		if at.Before(written[1]) {
			t.Errorf("the slot is left online: its row is of %v, offline is said for %v", written[1], at)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the slot is not taken offline")
	}
}

// connect opens a WebSocket session whose reads and writes end with the test.
func connect(t *testing.T, cfg agentclient.Config) *agentclient.WS {
	t.Helper()
	ws, err := agentclient.DialWS(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ws.Deadline(time.Now().Add(2 * time.Minute))
	t.Cleanup(func() { _ = ws.Abort() })
	return ws
}

func now(int) time.Time { return time.Now() }

func verdict(v agent.Verdict) func([]agent.Frame) []agent.Outcome {
	return func(frames []agent.Frame) []agent.Outcome {
		out := make([]agent.Outcome, len(frames))
		for i := range out {
			out[i] = agent.Outcome{Verdict: v, Message: "why"}
		}
		return out
	}
}

// Agent protocol D.2: a frame of an adapter that must be upgraded gets a signed fatal error frame instead of an
// acknowledgement, and over long-poll a rejection with the code.
func TestUpgradeRequired(t *testing.T) {
	o := newOneAgent(now)
	o.dispatch = verdict(agent.UpgradeRequired)
	cfg := o.serve(t)
	ws := connect(t, cfg)
	if err := ws.SendJSON(wire.TypeEventBatch, "ev_1", `{"events":[]}`); err != nil {
		t.Fatal(err)
	}
	f, err := ws.Receive()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	var p struct {
		Code, Message string
		Fatal         bool
	}
	if err := json.Unmarshal(f.Payload.Raw(), &p); err != nil || f.Type != wire.TypeError || f.ID != "err_ev_1" || p.Code != "scheduler_upgrade_required" || !p.Fatal {
		t.Errorf("answered %s, %v", f.Raw(), err)
	}
	lp, err := agentclient.OpenLP(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	up, err := lp.Upload(t.Context(), agentclient.Outgoing{Type: wire.TypeEventBatch, ID: "ev_2", Payload: []byte(`{}`)})
	if err != nil || up.Rejected != 1 || up.Accepted != 0 || up.ErrorCode == nil || *up.ErrorCode != "scheduler_upgrade_required" {
		t.Errorf("upload: %+v, %v", up, err)
	}
}

// A handler that crashes costs its session over WebSocket, and counts as a rejection over long-poll (agent protocol F.5).
func TestHandlerCrash(t *testing.T) {
	o := newOneAgent(now)
	var calm atomic.Bool
	o.dispatch = func(frames []agent.Frame) []agent.Outcome {
		if !calm.Load() {
			panic("crash")
		}
		return durable(frames)
	}
	cfg := o.serve(t)
	ws := connect(t, cfg)
	if err := ws.SendJSON(wire.TypeEventBatch, "ev_1", `{"events":[]}`); err != nil {
		t.Fatal(err)
	}
	_, err := ws.Receive()
	var ce *agentclient.CloseError
	if !errors.As(err, &ce) || ce.Code != 1011 {
		t.Errorf("closed with %v", err)
	}
	lp, err := agentclient.OpenLP(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	frame := agentclient.Outgoing{Type: wire.TypeHeartbeat, ID: "h", Payload: []byte(`{}`)}
	up, err := lp.Upload(t.Context(), frame, frame)
	if err != nil || up.Rejected != 2 || up.Accepted != 0 || up.ErrorCode != nil {
		t.Errorf("upload: %+v, %v", up, err)
	}
	calm.Store(true)
	if up, err = lp.Upload(t.Context(), frame); err != nil || up.Accepted != 1 {
		t.Errorf("afterwards: %+v, %v", up, err)
	}
}

// A command whose frame cannot be made ends as such on both transports: given back, it would come again and again. The
// others of the claim are not held up.
func TestCommandThatCannotBeSigned(t *testing.T) {
	bad := agent.Claimed{Command: agent.Command{ID: uuid.New(), Action: "cancel_task", TargetType: "task", Payload: []byte("no JSON")}, DeliveryNo: 1, TimeoutSeconds: 60}
	good := bad
	good.Command.ID, good.Command.Payload, good.DeliveryNo = uuid.New(), []byte(`{}`), 2
	want := []string{"sign " + bad.Command.ID.String()}

	o := newOneAgent(now)
	o.pending = []agent.Claimed{bad, good}
	ws := connect(t, o.serve(t))
	f, err := ws.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if f.ID != good.Command.ID.String() {
		t.Errorf("received %s", f.Raw())
	}
	f.Release()
	if got := o.failures(); !slices.Equal(got, want) {
		t.Errorf("over WebSocket: %q, want %q", got, want)
	}

	o = newOneAgent(now)
	lp, err := agentclient.OpenLP(t.Context(), o.serve(t))
	if err != nil {
		t.Fatal(err)
	}
	o.pending = []agent.Claimed{bad, good}
	got, err := lp.Poll(t.Context(), 0, 50)
	if err != nil || len(got) != 1 || got[0].ID != good.Command.ID.String() {
		t.Errorf("poll: %v, %v", got, err)
	}
	if got := o.failures(); !slices.Equal(got, want) {
		t.Errorf("over long-poll: %q, want %q", got, want)
	}
}

// A backlog larger than what may wait for the socket is claimed as the peer takes it: a slow peer is no reason to close
// the session, and what is not claimed cannot be lost.
func TestBacklogWaitsForASlowPeer(t *testing.T) {
	const n = 2500
	o := newOneAgent(now)
	payload := []byte(`{"x":"` + strings.Repeat("x", 8<<10) + `"}`)
	for i := range n {
		o.pending = append(o.pending, agent.Claimed{DeliveryNo: int64(i + 1), TimeoutSeconds: 60,
			Command: agent.Command{ID: uuid.New(), Action: "restart_worker", TargetType: "worker", Payload: payload}})
	}
	want := make([]string, n)
	for i := range want {
		want[i] = o.pending[i].Command.ID.String()
	}
	ws := connect(t, o.serve(t))
	if err := ws.SendJSON(wire.TypeEventBatch, "ev_1", `{"events":[]}`); err != nil { // acknowledged behind the first commands
		t.Fatal(err)
	}
	for !o.idle() { // the feed has filled what it may
		<-time.After(10 * time.Millisecond)
	}
	o.mu.Lock()
	left := len(o.pending)
	o.mu.Unlock()
	if left == 0 {
		t.Fatal("the backlog fits: the test tests nothing")
	}
	for i := 0; i < n; {
		f, err := ws.Receive()
		if err != nil {
			t.Fatalf("after %d commands: %v", i, err)
		}
		if f.Type == wire.TypeCommand {
			if f.ID != want[i] {
				t.Fatalf("command %d is %s", i, f.ID)
			}
			i++
		}
		f.Release()
	}
	if got := o.failures(); len(got) != 0 {
		t.Errorf("%d commands could not be sent", len(got))
	}
}

// Commands that a peer never acknowledges are remembered only while they could still be given back.
func TestUnacknowledgedCommandsAreForgottenInTime(t *testing.T) {
	const n = 1000
	o := newOneAgent(now)
	for i := range n {
		o.pending = append(o.pending, agent.Claimed{DeliveryNo: int64(i + 1), TimeoutSeconds: 60, Command: agent.Command{
			ID: uuid.New(), Action: "cancel_task", TargetType: "task", Payload: []byte(`{}`), TimeoutAt: time.Now().Add(-time.Second)}})
	}
	ws := connect(t, o.serve(t))
	for range n {
		f, err := ws.Receive()
		if err != nil {
			t.Fatal(err)
		}
		f.Release()
	}
	c := o.ws.slots.newestFirst(o.identity.Agent.ID)[0]
	c.mu.Lock()
	kept := len(c.unacked)
	c.mu.Unlock()
	if kept > pruneUnacked {
		t.Errorf("%d commands are remembered", kept)
	}
	if n := o.lives(0); n != 1 {
		t.Errorf("%d sessions can answer, want 1", n)
	}
	if err := ws.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-o.offline:
	case <-time.After(2 * time.Minute):
		t.Fatal("the session does not end")
	}
	if got := o.failures(); len(got) != 0 {
		t.Errorf("%d commands were given back after their time", len(got))
	}
	if n := o.lives(0); n != 0 {
		t.Errorf("%d sessions can answer after the end", n)
	}
}
