package agent_test

import (
	"context"
	"testing"
	"time"
)

func TestSweepWorkersForgetsWhoIsSilent(t *testing.T) {
	t.Parallel()
	g, ctx := newIngestRig(t), context.Background()
	g.one(batch(t, event("task.started", "a", 0, `{"worker":"quiet"}`)))
	g.clock.Advance(4 * time.Minute)
	g.one(batch(t, event("task.started", "b", 4*time.Minute, `{"worker":"busy"}`)))
	if n := must[int](t)(g.records.SweepWorkers(ctx)); n != 0 {
		t.Errorf("%d workers silenced before their time", n)
	}
	g.clock.Advance(time.Minute + time.Second)
	if n := must[int](t)(g.records.SweepWorkers(ctx)); n != 1 {
		t.Errorf("%d workers silenced, want 1", n)
	}
	states := func() string { return g.text(`SELECT name || ' ' || state FROM workers ORDER BY name`) }
	g.want("states", states(), "busy online | quiet unknown")
	if n := must[int](t)(g.records.CountWorkersOnline(ctx)); n != 1 {
		t.Errorf("%d workers online", n)
	}
	g.one(batch(t, event("task.succeeded", "a", 5*time.Minute, `{"worker":"quiet"}`)))
	g.want("states after news", states(), "busy online | quiet online")
}
