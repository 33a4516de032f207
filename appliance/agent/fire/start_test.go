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
)

func TestRouting(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		agents func(r *rig)
		want   string // agent; "" is buffered
	}{
		{"no agent", func(*rig) {}, ""},
		{"offline", func(r *rig) { r.agent("a", agent.Offline, "celery") }, ""},
		{"never heard of", func(r *rig) { r.agent("a", agent.Unknown, "celery") }, ""},
		{"online and lists it", func(r *rig) { r.agent("a", agent.Online, "rq", "celery") }, "a"},
		{"lists another", func(r *rig) { r.agent("a", agent.Online, "celery2", "xcelery") }, ""},
		{"long-poll only: online, unreported", func(r *rig) { r.agent("a", agent.Online) }, ""},
		{"revoked", func(r *rig) {
			a := r.agent("a", agent.Online, "celery")
			r.exec(`UPDATE agents SET revoked_at = 1 WHERE agent_no = ?`, a.No)
		}, ""},
		{"most recently seen first", func(r *rig) {
			r.agent("a", agent.Online, "celery")
			r.clock.Advance(time.Second)
			r.agent("b", agent.Online, "celery")
			r.clock.Advance(-time.Millisecond)
			r.agent("c", agent.Online, "celery")
		}, "b"},
		{"declared", func(r *rig) { r.declare(r.agent("a", agent.Online), "celery") }, "a"},
		{"declared, another engine", func(r *rig) { r.declare(r.agent("a", agent.Online), "rq") }, ""},
		{"declared, offline", func(r *rig) { r.declare(r.agent("a", agent.Offline), "celery") }, ""},
		{"declared, and since reported", func(r *rig) { r.declare(r.agent("a", agent.Online, "rq"), "celery") }, ""},
		{"declared, reported without any engine", func(r *rig) {
			a := r.agent("a", agent.Online)
			r.declare(a, "celery")
			r.exec(`UPDATE agents SET last_connect_at = 1 WHERE agent_no = ?`, a.No)
		}, ""},
		{"reported wins over declared", func(r *rig) {
			r.agent("a", agent.Online, "celery")
			r.clock.Advance(time.Second)
			r.declare(r.agent("b", agent.Online), "celery")
		}, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			tc.agents(r)
			s := r.schedule("report", "celery", schedule.FireAll)
			got := r.slot(s, start)
			f := r.get(got.FireID)
			if tc.want == "" {
				if !got.Buffered || got.CommandID != nil || f.Status != fire.Buffered || r.count(`SELECT count(*) FROM pending_fires`) != 1 ||
					r.count(`SELECT count(*) FROM commands`) != 0 {
					t.Fatalf("%+v, %+v", got, f)
				}
				return
			}
			if got.Buffered || got.CommandID == nil || f.Status != fire.Delivered || r.count(`SELECT count(*) FROM pending_fires`) != 0 {
				t.Fatalf("%+v, %+v", got, f)
			}
			name := r.count(`SELECT agent_no FROM agents WHERE name = ?`, tc.want)
			if cmd := r.command(*got.CommandID); cmd.AgentNo != int64(name) {
				t.Errorf("went to agent %d, want %s", cmd.AgentNo, tc.want)
			}
		})
	}
}

func (r *rig) declare(a agent.Agent, engines ...string) fire.Declaration {
	r.t.Helper()
	d, err := r.fires.Declare(context.Background(), agent.LocalPrincipal(), r.project.No, a.ID, engines)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func TestTheCommandOfAFire(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	r.clock.Advance(1500 * time.Millisecond)
	got := r.slot(s, start)
	cmd := r.command(*got.CommandID)
	want := `{"args":[1,"a"],"engine":"celery","fire_id":"` + got.FireID.String() + `","fired_at":"2026-03-01T12:00:01.500000+00:00",` +
		`"kwargs":{"k":null},"queue":null,"schedule_id":"` + s.ID.String() + `","schedule_name":"report",` +
		`"scheduled_for":"2026-03-01T12:00:00+00:00","task_name":"tasks.report"}`
	if string(cmd.Payload) != want {
		t.Errorf("payload %s\nwant    %s", cmd.Payload, want)
	}
	if cmd.Action != "schedule.fire" || cmd.TargetType != "schedule" || *cmd.TargetID != s.ID.String() || cmd.Status != agent.Pending ||
		*cmd.IdempotencyKey != "schedule:"+s.ID.String()+":fire:"+got.FireID.String() {
		t.Errorf("%+v", cmd)
	}
	if n := r.count(`SELECT count(*) FROM audit_log WHERE action = 'command.issue.schedule.fire'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	f := r.get(got.FireID)
	if f.SlotAt == nil || !f.SlotAt.Equal(start) || !f.FiredAt.Equal(start.Add(1500*time.Millisecond)) || *f.CommandID != cmd.ID || f.Origin != schedule.OriginSlot {
		t.Errorf("%+v", f)
	}
}

func TestAFireIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	first := r.slot(s, start)
	if first.Repeated {
		t.Fatalf("%+v", first)
	}
	again := r.slot(s, start)
	if !again.Repeated || again.FireID != first.FireID || *again.CommandID != *first.CommandID || again.Buffered {
		t.Errorf("%+v, first %+v", again, first)
	}
	at := start
	other := r.start(schedule.NewFire{Schedule: s, Origin: schedule.OriginCatchUp, SlotAt: &at, ScheduledFor: at, FireID: uuid.New()})
	if !other.Repeated || other.FireID != first.FireID {
		t.Errorf("another id for the same slot: %+v", other)
	}
	if n := r.count(`SELECT count(*) FROM fires`) + r.count(`SELECT count(*) FROM commands`); n != 2 {
		t.Errorf("%d rows of fires and commands", n)
	}
	// By hand: as often as one likes.
	for range 2 {
		if f := r.start(schedule.NewFire{Schedule: s, Origin: schedule.OriginTrigger, ScheduledFor: start, FireID: uuid.New()}); f.Repeated {
			t.Errorf("%+v", f)
		}
	}
}

func TestACommandThatCannotBeIssuedFailsTheFire(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.Skip)
	key := "schedule:" + s.ID.String() + ":fire:" + schedule.SlotFireID(s.ID, start).String()
	_, err := r.cmds.Issue(context.Background(), agent.LocalPrincipal(), agent.IssueRequest{ProjectNo: r.project.No, AgentID: a.ID,
		Action: "restart_worker", Payload: []byte(`{"worker_name":"w"}`), IdempotencyKey: &key})
	if err != nil {
		t.Fatal(err)
	}
	f := r.want(r.slot(s, start).FireID, fire.Failed)
	if *f.ErrorCode != fire.CodeRefused || !strings.Contains(*f.ErrorMessage, "agent a: idempotency_key") || f.FinishedAt == nil || f.CommandID != nil {
		t.Errorf("%+v", f)
	}
	if n := r.count(`SELECT consecutive_failures FROM schedules`); n != 1 {
		t.Errorf("%d failures counted", n)
	}
}

func TestWithALongPollAgentAlone(t *testing.T) { // F.8
	t.Parallel()
	r := newRig(t)
	a := r.agent("lp", agent.Online)
	(*r.live)[a.ID] = []agent.SessionInfo{{Transport: agent.LongPoll, Session: "n", Polling: true}}
	s := r.schedule("report", "celery", schedule.FireAll)
	got := r.slot(s, start)
	f := r.want(got.FireID, fire.Buffered)
	e, err := r.fires.Explain(context.Background(), r.project.No, f.FireID)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(e.Sentences, "\n")
	if e.WaitingFor != fire.WaitsForAgent || !strings.Contains(text, "Long-poll agents report no inventory, so no fire is routed to them") ||
		!strings.Contains(text, "signalbox agents declare-engines lp celery") || !e.ExpiresAt.Equal(start.Add(retention)) ||
		len(e.Candidates) != 1 || e.Candidates[0].Eligible || e.Candidates[0].Reason != "it is connected over long-poll, where agents report no inventory" {
		t.Errorf("%+v\n%s", e, text)
	}
	// It is nothing that the agent could be told in its name: a command that names it is admitted.
	if _, err := r.cmds.Issue(context.Background(), agent.LocalPrincipal(), agent.IssueRequest{ProjectNo: r.project.No, AgentID: a.ID,
		Action: "cancel_task", Payload: []byte(`{"engine":"celery","task_id":"t"}`)}); err != nil {
		t.Error(err)
	}
}
