package agent_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"signalbox/appliance/agent"
)

// setBack is how far the clock is set back in these tests: rows that were written before lie a day in the future.
const setBack = 24 * time.Hour

// TestSilentAgentAfterTheClockWasSetBack wants an agent that is never heard again offline within the timeout, counted from
// when the sweep finds its stamp in the future, and one that goes on untouched.
func TestSilentAgentAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, silent := b.mint("silent")
	_, alive := b.mint("alive")
	for _, p := range []*agent.Peer{&silent, &alive} {
		p.Worker = "w1"
		b.online(*p, fullHello())
	}
	b.clk.Advance(-setBack)
	touch := func() {
		t.Helper()
		if err := b.TouchLongPoll(ctx, alive); err != nil {
			t.Fatal(err)
		}
	}
	touch()
	if at := b.agent(alive).LastSeenAt; at == nil || !at.Equal(b.clk.Now()) {
		t.Errorf("heard after the clock was set back: seen at %v", at)
	}
	if n, err := b.SweepOffline(ctx); n != 0 || err != nil {
		t.Errorf("the first sweep: %d offline, %v", n, err)
	}
	b.clk.Advance(time.Minute)
	touch()
	for _, want := range []int{1, 0} {
		if n, err := b.SweepOffline(ctx); n != want || err != nil {
			t.Errorf("%d offline, want %d, %v", n, want, err)
		}
	}
	if a := b.agent(silent); a.State != agent.Offline {
		t.Errorf("the silent one is %s", a.State)
	}
	if a := b.agent(alive); a.State != agent.Online {
		t.Errorf("the other is %s", a.State)
	}
}

// TestSocketThatEndsAfterTheClockWasSetBack has the end of an old socket recorded after its worker came back: whose
// connection is newer is no question of clocks.
func TestSocketThatEndsAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newDirBench(t)
	_, p := b.mint("one")
	p.Worker = "w1"
	old := b.online(p, fullHello())
	b.clk.Advance(-setBack)
	at := b.online(p, fullHello())
	if err := b.WorkerOffline(ctx, p, true, old); err != nil {
		t.Fatal(err)
	}
	slots, err := b.AgentWorkers(ctx, b.shop.No, p.AgentID)
	if err != nil || len(slots) != 1 || slots[0].State != agent.Online || b.agent(p).State != agent.Online {
		t.Fatalf("the newer connection was ended: %+v, %v", slots, err)
	}
	if err := b.WorkerOffline(ctx, p, true, at); err != nil || b.agent(p).State != agent.Offline {
		t.Errorf("%s after the end of the newer, %v", b.agent(p).State, err)
	}
}

// TestDeadlineAfterTheClockWasSetBack wants a command that was issued before to time out within its timeout, not a day
// later, and the sweep to write nothing when no deadline is too far away.
func TestDeadlineAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	early := r.issue("restart_worker", restartPayload)
	r.clock.Advance(-setBack)
	late := r.issue("restart_worker", restartPayload)
	if n, err := r.cmds.SweepTimeouts(ctx); n != 0 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	writes := r.st.writes()
	if n, err := r.cmds.SweepTimeouts(ctx); n != 0 || err != nil || r.st.writes() != writes {
		t.Fatalf("%d, %v, %d writes", n, err, r.st.writes()-writes)
	}
	at, err := r.cmds.NextDeadline(ctx)
	if want := r.clock.Now().Add(time.Minute + time.Microsecond); err != nil || !at.Equal(want) {
		t.Errorf("next deadline %v, want %v, %v", at, want, err)
	}
	r.clock.Advance(at.Sub(r.clock.Now()))
	if n, err := r.cmds.SweepTimeouts(ctx); n != 2 || err != nil {
		t.Errorf("%d timed out, %v", n, err)
	}
	for _, c := range []agent.Command{early, late} {
		if got := r.get(c); got.Status != agent.TimedOut {
			t.Errorf("%+v", got)
		}
	}
}

// TestSilentWorkerAfterTheClockWasSetBack is the same for the workers that events tell of, and for the presence of the
// agent that sends them.
func TestSilentWorkerAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	g, ctx := newIngestRig(t), context.Background()
	g.one(batch(t, event("task.started", "a", 0, `{"worker":"quiet"}`)))
	g.clock.Advance(-setBack)
	g.one(batch(t, event("task.started", "b", -setBack, `{"worker":"busy"}`)))
	if n := must[int](t)(g.records.SweepWorkers(ctx)); n != 0 {
		t.Errorf("%d workers silenced at once", n)
	}
	g.clock.Advance(5*time.Minute + time.Second)
	g.one(batch(t, event("task.succeeded", "b", 5*time.Minute+time.Second-setBack, `{"worker":"busy"}`)))
	if n := must[int](t)(g.records.SweepWorkers(ctx)); n != 1 {
		t.Errorf("%d workers silenced, want 1", n)
	}
	g.want("states", g.text(`SELECT name || ' ' || state FROM workers ORDER BY name`), "busy online | quiet unknown")
	g.want("seen", g.text(`SELECT DISTINCT last_seen_at FROM agents WHERE last_seen_at IS NOT NULL`),
		strconv.FormatInt(g.clock.Now().UnixMicro(), 10))
}
