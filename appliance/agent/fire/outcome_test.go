package fire_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/store"
)

// TestWhatEndsAFire walks the ends of a delivered fire (agent protocol E.4, G.5).
func TestWhatEndsAFire(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	timeout := func(r *rig, id uuid.UUID) {
		r.clock.Advance(2 * time.Minute)
		if n, err := r.cmds.SweepTimeouts(ctx); n != 1 || err != nil {
			r.t.Fatal(n, err)
		}
	}
	signFailed := func(r *rig, id uuid.UUID) {
		cmd := r.command(id)
		p := agent.Peer{ProjectNo: cmd.ProjectNo, ProjectID: cmd.ProjectID, AgentNo: cmd.AgentNo, AgentID: cmd.AgentID, Transport: agent.LongPoll}
		got, err := r.cmds.ClaimPending(ctx, p, agent.ClaimRequest{Limit: 1})
		if err != nil || len(got.Claimed) != 1 {
			r.t.Fatal(got, err)
		}
		if err := r.cmds.SignFailed(ctx, got.Claimed[0]); err != nil {
			r.t.Fatal(err)
		}
	}
	cancel := func(r *rig, id uuid.UUID) {
		if _, err := r.cmds.Cancel(ctx, agent.LocalPrincipal(), r.project.No, id); err != nil {
			r.t.Fatal(err)
		}
	}
	success := func(r *rig, id uuid.UUID) { r.answer(id, `{"status":"success","result":{"task_id":"x"}}`) }
	duplicate := func(r *rig, id uuid.UUID) { r.answer(id, `{"status":"success","result":{"deduplicated":true}}`) }
	failed := func(r *rig, id uuid.UUID) { r.answer(id, `{"status":"failed","error":"no such task"}`) }
	silent := func(r *rig, id uuid.UUID) { r.answer(id, `{"status":"failed"}`) }
	for _, tc := range []struct {
		name          string
		steps         []func(*rig, uuid.UUID)
		want          fire.Status
		code, message string
		failures      int
	}{
		{"success", []func(*rig, uuid.UUID){success}, fire.AckedSuccess, "", "", 0},
		{"a duplicate of a fire", []func(*rig, uuid.UUID){duplicate}, fire.AckedSuccess, "", "", 0},
		{"failed", []func(*rig, uuid.UUID){failed}, fire.AckedFailed, fire.CodeAgent, "no such task", 1},
		{"failed without a reason", []func(*rig, uuid.UUID){silent}, fire.AckedFailed, fire.CodeAgent, "the agent gave no reason", 1},
		{"command timeout", []func(*rig, uuid.UUID){timeout}, fire.Delivered, "", "", 0},
		{"success after the command timed out", []func(*rig, uuid.UUID){timeout, success}, fire.AckedSuccess, "", "", 0},
		{"failed after the command timed out", []func(*rig, uuid.UUID){timeout, failed}, fire.AckedFailed, fire.CodeAgent, "no such task", 1},
		{"sign failure", []func(*rig, uuid.UUID){signFailed}, fire.Failed, fire.CodeCommand, "longpoll sign failed", 1},
		{"success after a sign failure", []func(*rig, uuid.UUID){signFailed, success}, fire.AckedSuccess, "", "", 0},
		{"failed after a sign failure counts once", []func(*rig, uuid.UUID){signFailed, failed}, fire.AckedFailed, fire.CodeAgent, "no such task", 1},
		{"cancelled", []func(*rig, uuid.UUID){cancel}, fire.Failed, fire.CodeCancelled, "the command was cancelled", 1},
		{"success after a cancel", []func(*rig, uuid.UUID){cancel, success}, fire.AckedSuccess, "", "", 0},
		{"a second result changes nothing", []func(*rig, uuid.UUID){failed, success}, fire.AckedFailed, fire.CodeAgent, "no such task", 1},
		{"a second failure changes nothing", []func(*rig, uuid.UUID){success, failed}, fire.AckedSuccess, "", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.agent("a", agent.Online, "celery")
			s := r.schedule("report", "celery", schedule.Skip)
			got := r.slot(s, start)
			r.clock.Advance(250 * time.Millisecond)
			for _, step := range tc.steps {
				step(r, *got.CommandID)
			}
			f := r.want(got.FireID, tc.want)
			if text(f.ErrorCode) != tc.code || text(f.ErrorMessage) != tc.message {
				t.Errorf("error %q %q", text(f.ErrorCode), text(f.ErrorMessage))
			}
			if f.LatencyMS != nil && *f.LatencyMS != f.AckedAt.Sub(f.FiredAt).Milliseconds() || (f.LatencyMS == nil) != (f.AckedAt == nil) {
				t.Errorf("latency %v, acked %v", f.LatencyMS, f.AckedAt)
			}
			if n := r.count(`SELECT consecutive_failures FROM schedules`); n != tc.failures {
				t.Errorf("%d failures in a row, want %d", n, tc.failures)
			}
		})
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestCommandsThatAreNoFires(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	got := r.slot(s, start)
	// Somebody's own schedule.fire, even with the fire's id in it, is not the fire's command.
	cmd, err := r.cmds.Issue(context.Background(), agent.LocalPrincipal(), agent.IssueRequest{ProjectNo: r.project.No, AgentID: a.ID,
		Action: "schedule.fire", Payload: []byte(`{"schedule_id":"` + s.ID.String() + `","engine":"celery","fire_id":"` + got.FireID.String() + `"}`)})
	if err != nil {
		t.Fatal(err)
	}
	r.answer(cmd.Command.ID, `{"status":"failed","error":"x"}`)
	r.want(got.FireID, fire.Delivered)
}

// fail fires the schedule for a slot and has the agent fail it.
func (r *rig) fail(s schedule.Schedule, at time.Time) schedule.Fired {
	r.t.Helper()
	f := r.slot(s, at)
	r.answer(*f.CommandID, `{"status":"failed","error":"boom"}`)
	return f
}

func (r *rig) enabled(s schedule.Schedule) bool {
	r.t.Helper()
	return r.count(`SELECT is_enabled FROM schedules WHERE schedule_no = ?`, s.No) == 1
}

func TestCircuitBreaker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.agent("a", agent.Online, "celery")
	s, other := r.schedule("report", "celery", schedule.Skip), r.schedule("other", "celery", schedule.Skip)
	at := start
	next := func() time.Time { at = at.Add(time.Minute); return at }
	for range 4 {
		r.fail(s, next())
		r.fail(other, next())
	}
	r.answer(*r.slot(other, next()).CommandID, `{"status":"success"}`)
	r.fail(other, next())
	if !r.enabled(s) || !r.enabled(other) {
		t.Fatal("tripped too early")
	}
	open := r.slot(s, next()) // answered later
	r.fail(s, next())
	if r.enabled(s) || !r.enabled(other) {
		t.Fatal("five failures did not trip it, or tripped another")
	}
	var action, meta, reason string
	if err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		if err := tx.QueryRow(`SELECT disabled_reason FROM schedules WHERE schedule_no = ?`, s.No).Scan(&reason); err != nil {
			return err
		}
		return tx.QueryRow(`SELECT action, metadata FROM audit_log WHERE target_id = ?`, s.ID.String()).Scan(&action, &meta)
	}); err != nil {
		t.Fatal(err)
	}
	if action != "schedule.circuit_breaker.tripped" || meta != `{"consecutive_failures":5,"name":"report","threshold":5}` ||
		reason != "circuit breaker: the last 5 fires failed" {
		t.Errorf("%s %s %s", action, meta, reason)
	}
	r.answer(*open.CommandID, `{"status":"failed"}`) // it is disabled already: no second row
	if n := r.count(`SELECT count(*) FROM audit_log WHERE action = 'schedule.circuit_breaker.tripped'`); n != 1 {
		t.Errorf("%d rows", n)
	}
	// Enabled again it starts afresh: what failed before does not count.
	r.exec(`UPDATE schedules SET is_enabled = 1, consecutive_failures = 0, disabled_reason = NULL WHERE schedule_no = ?`, s.No)
	if n, err := r.fires.TripBreakers(context.Background()); n != 0 || err != nil {
		t.Error(n, err)
	}
	for range 4 {
		r.fail(s, next())
	}
	if !r.enabled(s) {
		t.Error("old failures were counted again")
	}
	r.fail(s, next())
	if r.enabled(s) {
		t.Error("it does not trip a second time")
	}
}

func TestCircuitBreakerOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig) { r.opts.BreakerThreshold = 0 })
	r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	for i := range 8 {
		r.fail(s, start.Add(time.Duration(i)*time.Minute))
	}
	if n, err := r.fires.TripBreakers(context.Background()); !r.enabled(s) || n != 0 || err != nil {
		t.Error(n, err)
	}
	// A threshold that is set since trips what had reached it.
	r.opts.BreakerThreshold = 3
	r.build()
	if n, err := r.fires.TripBreakers(context.Background()); r.enabled(s) || n != 1 || err != nil {
		t.Error(n, err)
	}
}

func TestExpiryBreaksARowOfFailures(t *testing.T) { // the last five finished fires must all be failures
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	for i := range 4 {
		r.fail(s, start.Add(time.Duration(i)*time.Minute))
	}
	r.exec(`UPDATE agents SET state = 'unknown' WHERE agent_no = ?`, a.No)
	r.slot(s, start.Add(time.Hour))
	r.clock.Advance(retention)
	if n, err := r.fires.Expired(context.Background()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	r.online(a)
	r.fail(s, start.Add(2*time.Hour))
	if !r.enabled(s) {
		t.Error("tripped over an expired fire")
	}
}

func TestRetentionOfFires(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig) { r.opts.Retention = 60 * 24 * time.Hour })
	a := r.agent("a", agent.Offline, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	kept := r.slot(s, start) // buffered
	r.online(a)
	other := r.schedule("other", "celery", schedule.Skip)
	r.slots(other, 250)
	r.clock.Advance(30 * 24 * time.Hour)
	young := r.slot(s, start.Add(1000*time.Minute))
	r.clock.Advance(time.Minute)
	n, err := r.fires.Prune(context.Background(), r.clock.Now().AddDate(0, 0, -30))
	if n != 250 || err != nil {
		t.Fatal(n, err)
	}
	r.want(kept.FireID, fire.Buffered)
	r.want(young.FireID, fire.Delivered)
	if n, err := r.fires.Prune(context.Background(), r.clock.Now().AddDate(0, 0, -30)); n != 0 || err != nil {
		t.Error(n, err)
	}
}

func TestExplainOfEveryStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	explain := func(id uuid.UUID, status fire.Status, words ...string) {
		t.Helper()
		r.want(id, status)
		e, err := r.fires.Explain(context.Background(), r.project.No, id)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(e.Sentences, "\n")
		for _, w := range words {
			if !strings.Contains(all, w) {
				t.Errorf("%s: %q is not in\n%s", status, w, all)
			}
		}
		if (e.WaitingFor == fire.WaitsForNothing) != status.Finished() || e.Next.What == "" {
			t.Errorf("%s: waits for %q, next %+v", status, e.WaitingFor, e.Next)
		}
	}
	ok := r.slot(s, start)
	explain(ok.FireID, fire.Delivered, "Schedule report was fired for the slot 2026-03-01T12:00:00Z at",
		"It was handed over as command "+ok.CommandID.String(), "It waits for agent a", "signalbox commands explain "+ok.CommandID.String())
	r.clock.Advance(3 * time.Second)
	r.answer(*ok.CommandID, `{"status":"success"}`)
	explain(ok.FireID, fire.AckedSuccess, "submitted the task at 2026-03-01T12:00:03Z (in 0 ms), 3 s after it was fired")
	bad := r.fail(s, start.Add(time.Minute))
	explain(bad.FireID, fire.AckedFailed, "answered with a failure", ": boom")
	late := r.slot(s, start.Add(2*time.Minute))
	r.clock.Advance(2 * time.Minute)
	if _, err := r.cmds.SweepTimeouts(context.Background()); err != nil {
		t.Fatal(err)
	}
	explain(late.FireID, fire.Delivered, "No agent took command "+late.CommandID.String()+" in time", "It timed out at",
		"no task was submitted", "stays delivered")
	r.exec(`UPDATE commands SET dispatched_at = issued_at`)
	explain(late.FireID, fire.Delivered, "It was handed over as command", "It timed out at", "A late result still ends the fire")
	r.exec(`DELETE FROM command_transitions`)
	r.exec(`DELETE FROM commands`)
	explain(late.FireID, fire.Delivered, "Retention has removed command "+late.CommandID.String())
	if _, err := r.fires.Explain(context.Background(), r.project.No, uuid.New()); err == nil || !strings.Contains(err.Error(), "fire not found") {
		t.Error(err)
	}
}
