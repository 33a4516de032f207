package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func fullHello() agent.Hello {
	pid, started := 4242, dirStart.Add(-time.Hour)
	return agent.Hello{ProtocolVersion: "2", AgentVersion: "1.13.0", Framework: "bare", Engines: []string{"celery"},
		Schedulers: []string{"celery-beat"}, Capabilities: map[string][]string{"celery": {"retry_task"}},
		Host: []byte(`{"name":"box-1"}`), WorkerRole: "task", WorkerPID: &pid, WorkerStartedAt: &started,
		RuntimeFeatures: []string{"retry_by_reference"}}
}

func TestHelloStoresInventoryAndSlot(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	p.Worker = "w1"
	b.clk.Advance(time.Minute)
	at := b.online(p, fullHello())
	a := b.agent(p)
	if a.State != agent.Online || a.ProtocolVersion != "2" || a.AgentVersion != "1.13.0" || a.FrameworkAdapter != "bare" ||
		!slices.Equal(a.EngineAdapters, []string{"celery"}) || !slices.Equal(a.SchedulerAdapters, []string{"celery-beat"}) ||
		!slices.Equal(a.Capabilities["celery"], []string{"retry_task"}) || string(a.Host) != `{"name":"box-1"}` ||
		!slices.Equal(a.RuntimeFeatures, []string{"retry_by_reference"}) ||
		!a.LastSeenAt.Equal(at) || !a.LastConnectAt.Equal(at) || !at.Equal(dirStart.Add(time.Minute)) {
		t.Errorf("agent %+v at %s", a, at)
	}
	slots, err := b.AgentWorkers(ctx, b.shop.No, p.AgentID)
	if err != nil || len(slots) != 1 {
		t.Fatalf("%d slots, %v", len(slots), err)
	}
	w := slots[0]
	if *w.WorkerID != "w1" || *w.Role != "task" || *w.PID != 4242 || !w.StartedAt.Equal(dirStart.Add(-time.Hour)) ||
		w.State != agent.Online || w.AgentID != p.AgentID || w.ProjectID != p.ProjectID || !w.LastConnectAt.Equal(at) {
		t.Errorf("slot %+v", w)
	}
	// A bare hello takes the slot over and clears what it does not state.
	b.clk.Advance(time.Minute)
	p.Worker = ""
	b.online(p, agent.Hello{ProtocolVersion: "2", AgentVersion: "1.13.0", Framework: "bare"})
	if a := b.agent(p); len(a.EngineAdapters) != 0 || len(a.Capabilities) != 0 || string(a.Host) != "{}" || a.RuntimeFeatures == nil ||
		len(a.RuntimeFeatures) != 0 || !a.ReportedInventory() {
		t.Errorf("agent %+v", a)
	}
	slots, err = b.AgentWorkers(ctx, b.shop.No, uuid.Nil) // of the whole project
	if err != nil || len(slots) != 2 || slots[0].WorkerID != nil || slots[0].Role != nil || slots[0].StartedAt != nil ||
		slots[1].ID != w.ID {
		t.Errorf("slots %+v, %v", slots, err)
	}
	if c, err := b.CountAgents(ctx); err != nil || c != (agent.AgentCounts{Online: 1, Total: 1}) {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestWorkerOffline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		last      bool
		reconnect string // worker that connects before the end is recorded; "-" for none
		agent     agent.State
		slot      agent.State
	}{
		{"last slot", true, "-", agent.Offline, agent.Offline},
		{"not the last slot", false, "-", agent.Online, agent.Offline},
		{"slot taken by a newer connection", false, "w1", agent.Online, agent.Online},
		{"taken over, yet counted as last", true, "w1", agent.Online, agent.Online},
		{"another slot connected since", true, "w2", agent.Online, agent.Offline},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newDirBench(t)
			_, p := b.mint("one")
			p.Worker = "w1"
			at := b.online(p, fullHello())
			b.clk.Advance(time.Microsecond)
			if tc.reconnect != "-" {
				q := p
				q.Worker = tc.reconnect
				b.online(q, fullHello())
			}
			if err := b.WorkerOffline(t.Context(), p, tc.last, at); err != nil {
				t.Fatal(err)
			}
			if got := b.agent(p).State; got != tc.agent {
				t.Errorf("agent %s", got)
			}
			slots, err := b.AgentWorkers(t.Context(), b.shop.No, p.AgentID)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range slots {
				if *s.WorkerID == "w1" && s.State != tc.slot {
					t.Errorf("slot %s", s.State)
				}
			}
		})
	}
}

func TestLongPollLiveness(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	p.Transport = agent.LongPoll
	for range 2 { // from unknown, then from offline
		if err := b.TouchLongPoll(ctx, p); err != nil {
			t.Fatal(err)
		}
		a := b.agent(p)
		if a.State != agent.Online || a.LastSeenAt == nil || a.LastConnectAt != nil || a.ReportedInventory() {
			t.Fatalf("%+v", a)
		}
		b.clk.Advance(30 * time.Second) // exactly the timeout: not yet older
		if n, err := b.SweepOffline(ctx); n != 0 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		b.clk.Advance(time.Microsecond)
		if n, err := b.SweepOffline(ctx); n != 1 || err != nil || b.agent(p).State != agent.Offline {
			t.Fatalf("%d, %v, %s", n, err, b.agent(p).State)
		}
	}
}

func TestSweepTakesEveryBatch(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	const n = 1100
	err := b.db.Update(ctx, "fill", func(tx *store.Tx) error {
		for i := range n {
			a := agent.Agent{ID: uuid.New(), ProjectNo: b.shop.No, Name: fmt.Sprint(i), State: agent.Unknown, Host: []byte("{}"),
				CreatedAt: tx.Now()}
			no, err := tx.InsertAgent(a, fmt.Sprintf("%064d", i))
			if err != nil {
				return err
			}
			if _, err := tx.TouchAgent(no); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.clk.Advance(time.Minute)
	if got, err := b.SweepOffline(ctx); got != n || err != nil {
		t.Fatalf("%d, %v", got, err)
	}
	b.clk.Advance(31 * 24 * time.Hour)
	if got, err := b.PruneStale(ctx); got != n || err != nil {
		t.Fatalf("%d, %v", got, err)
	}
	if got := len(b.audits()); got != n+1 {
		t.Errorf("%d audit rows", got)
	}
}

func TestRuntimeFeatures(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	for _, tc := range []struct{ states, want []string }{
		{nil, nil}, // never reported
		{[]string{"b", "a"}, []string{"b", "a"}},
		{nil, []string{"b", "a"}}, // absent keeps
		{[]string{}, []string{}},  // empty clears
		{[]string{"c"}, []string{"c"}},
	} {
		if err := b.StoreRuntimeFeatures(ctx, p, tc.states); err != nil {
			t.Fatal(err)
		}
		if got := b.agent(p).RuntimeFeatures; !slices.Equal(got, tc.want) || (got == nil) != (tc.want == nil) {
			t.Errorf("after %q: %q", tc.states, got)
		}
	}
}

func TestPruneStale(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	m, old := b.mint("old")
	_, young := b.mint("young")
	b.mint("never seen")
	b.online(old, fullHello())
	b.clk.Advance(time.Minute)
	if _, err := b.SweepOffline(ctx); err != nil {
		t.Fatal(err)
	}
	b.clk.Advance(30 * 24 * time.Hour)
	if n, err := b.PruneStale(ctx); n != 0 || err != nil {
		t.Fatalf("exactly 30 days: %d, %v", n, err)
	}
	b.online(young, fullHello())
	b.clk.Advance(time.Minute)
	if _, err := b.SweepOffline(ctx); err != nil {
		t.Fatal(err)
	}
	b.use(agent.SecretSet{Current: dirMaster("a")}, 0)
	if n, err := b.PruneStale(ctx); n != 0 || err != nil {
		t.Fatalf("turned off: %d, %v", n, err)
	}
	b.use(agent.SecretSet{Current: dirMaster("a")}, 30)
	w := b.hub.Watch(agent.AgentKey(old.AgentNo))
	defer w.Stop()
	if n, err := b.PruneStale(ctx); n != 1 || err != nil || !dirWoken(w) {
		t.Fatalf("%d, %v", n, err)
	}
	_, err := b.Authenticate(ctx, "Bearer "+m.Token.Reveal())
	wantDirFault(t, err, fault.Unauthenticated)
	if list, err := b.ListAgents(ctx, b.shop.No, false); err != nil || len(list) != 2 {
		t.Errorf("%d live, %v", len(list), err)
	}
	if got := b.audits(); got[len(got)-1] != "agent.pruned" {
		t.Errorf("audit rows %q", got)
	}
}

func TestSlotsAreResetAndPruned(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	for _, w := range []string{"w1", "w2"} {
		p.Worker = w
		b.online(p, fullHello())
	}
	if n, err := b.ResetWorkers(ctx); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if b.agent(p).State != agent.Online {
		t.Error("the agent is offline before it was silent for long")
	}
	b.clk.Advance(7*24*time.Hour + time.Microsecond)
	b.online(p, fullHello()) // w2
	if n, err := b.PruneWorkers(ctx); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if slots, err := b.AgentWorkers(ctx, b.shop.No, p.AgentID); err != nil || len(slots) != 1 || *slots[0].WorkerID != "w2" {
		t.Errorf("%+v, %v", slots, err)
	}
}

func TestAgentHealth(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	err := b.db.Update(ctx, "fill", func(tx *store.Tx) error {
		for i := range 120 {
			_, err := tx.Exec(`INSERT INTO agent_status (agent_no, captured_at, received_at, payload) VALUES (?,?,?,?)`,
				p.AgentNo, dirStart.Add(time.Duration(i)*time.Second), tx.Now(), fmt.Sprintf(`{"n":%d}`, i))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.AgentHealth(ctx, b.shop.No, p.AgentID)
	if err != nil || len(got) != 100 || string(got[0].Payload) != `{"n":119}` || !got[99].CapturedAt.Equal(dirStart.Add(20*time.Second)) {
		t.Errorf("%d samples, %v", len(got), err)
	}
	_, err = b.AgentHealth(ctx, b.shop.No, uuid.New())
	wantDirFault(t, err, fault.NotFound)
	_, err = b.AgentHealth(ctx, b.shop.No+1, p.AgentID)
	wantDirFault(t, err, fault.NotFound)
}

// An agent that comes back over long-poll may be what a fire waits for; one that is online already is no news.
func TestTouchThatPromotesWakesWhoWaitsForAgents(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	w := b.hub.Watch(agent.AgentsOnline(b.shop.No))
	defer w.Stop()
	for i, want := range []bool{true, false, true} {
		if i == 2 {
			b.clk.Advance(time.Minute)
			if n, err := b.SweepOffline(ctx); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := b.TouchLongPoll(ctx, p); err != nil {
			t.Fatal(err)
		}
		got := false
		select {
		case <-w.C():
			got = true
		default:
		}
		if got != want || b.agent(p).State != agent.Online {
			t.Errorf("touch %d woke: %t, want %t", i, got, want)
		}
	}
}
