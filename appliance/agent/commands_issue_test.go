package agent_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func TestIssueToAnOnlineAgent(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	sessions, stream := r.hub.Watch(agent.AgentKey(r.agent.No)), r.hub.Watch(agent.ProjectCommands(r.project.No))
	defer sessions.Stop()
	defer stream.Stop()
	c := r.issue("cancel_task", cancelPayload)
	if c.Status != agent.Pending || !c.IssuedAt.Equal(rigStart) || !c.TimeoutAt.Equal(rigStart.Add(time.Minute)) || *c.TargetID != "celery:t" || *c.IssuedBy != "local" {
		t.Errorf("issued %+v", c)
	}
	stored := r.get(c)
	if string(stored.Payload) != cancelPayload || stored.AgentID != r.agent.ID || stored.ProjectID != r.project.ID || stored.RetryEngine != "" {
		t.Errorf("stored %+v", stored)
	}
	if !hinted(sessions) || !hinted(stream) {
		t.Error("issue woke nobody")
	}
	if got := r.audits(); !slices.Equal(got, []string{"command.issue.cancel_task"}) {
		t.Errorf("audited %v", got)
	}
	if got := r.events(c); !slices.Equal(got, []string{"issued"}) {
		t.Errorf("timeline %v", got)
	}
}

func TestIssueToAnAbsentAgentKeepsTheRow(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	r.setup(func(tx *store.Tx) error { return r.setState(tx, r.agent.No, agent.Offline) })
	// A parked poll is no presence; only its uploads are.
	r.presence.set(r.agent.ID, agent.SessionInfo{Transport: agent.LongPoll, Polling: true})
	got, err := r.cmds.Issue(context.Background(), r.by, r.request("cancel_task", cancelPayload))
	wantFault(t, err, fault.AgentOffline)
	if d := fault.Details(err); d["command_id"] != got.Command.ID.String() || d["agent_id"] != r.agent.ID.String() {
		t.Errorf("details %v", d)
	}
	if r.get(got.Command).Status != agent.Pending || len(r.audits()) != 1 {
		t.Error("the row was not kept or not audited")
	}
	if cl := r.claimOne(r.peer(agent.LongPoll)); cl.Command.ID != got.Command.ID {
		t.Errorf("the next poll took %s", cl.Command.ID)
	}
	r.presence.set(r.agent.ID, agent.SessionInfo{Transport: agent.WebSocket})
	if _, err := r.cmds.Issue(context.Background(), r.by, r.request("cancel_task", cancelPayload)); err != nil {
		t.Errorf("issue with a live socket: %v", err)
	}
}

func TestRefusedIssuesLeaveNothing(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	other := r.addProject("other")
	foreign := r.addAgent(other, "foreign", agent.Online)
	revoked := r.addAgent(r.project, "revoked", agent.Online)
	archived := r.addProject("archived")
	inArchived := r.addAgent(archived, "a", agent.Online)
	r.setup(func(tx *store.Tx) error {
		if _, err := tx.RevokeAgent(revoked.No); err != nil {
			return err
		}
		_, err := tx.Exec(`UPDATE projects SET is_active = 0 WHERE project_no = ?`, archived.No)
		return err
	})
	r.report(r.agent, map[string][]string{"celery": {"retry_task"}, "huey": {"retry_task", "retry_by_reference_v1"}})
	operator := r.by
	operator.Role = agent.Operator
	for _, tc := range []struct {
		name    string
		by      agent.Principal
		change  func(*agent.IssueRequest)
		action  string
		payload string
		code    fault.Code
	}{
		{"unknown agent", r.by, func(q *agent.IssueRequest) { q.AgentID = uuid.New() }, "cancel_task", cancelPayload, fault.NotFound},
		{"foreign agent", r.by, func(q *agent.IssueRequest) { q.AgentID = foreign.ID }, "cancel_task", cancelPayload, fault.NotFound},
		{"revoked agent", r.by, func(q *agent.IssueRequest) { q.AgentID = revoked.ID }, "cancel_task", cancelPayload, fault.NotFound},
		{"archived project", r.by, func(q *agent.IssueRequest) { q.ProjectNo, q.AgentID = archived.No, inArchived.ID }, "cancel_task", cancelPayload, fault.NotFound},
		{"unknown project", r.by, func(q *agent.IssueRequest) { q.ProjectNo, q.ProjectSlug = 0, "nowhere" }, "cancel_task", cancelPayload, fault.NotFound},
		{"unknown action", r.by, nil, "explode", `{}`, fault.Invalid},
		{"bad field", r.by, nil, "cancel_task", `{"engine":"celery"}`, fault.Invalid},
		{"engine not reported", r.by, nil, "cancel_task", `{"engine":"rq","task_id":"t"}`, fault.Invalid},
		{"capability not reported", r.by, nil, "cancel_task", cancelPayload, fault.Invalid},
		{"contract not reported", r.by, nil, "retry_task", cancelPayload, fault.Invalid},
		{"arguments missing", r.by, nil, "retry_task", `{"engine":"huey","task_id":"t"}`, fault.Conflict},
		{"role too low", operator, nil, "purge_queue", `{"queue":"q"}`, fault.Forbidden},
	} {
		q := r.request(tc.action, tc.payload)
		if tc.change != nil {
			tc.change(&q)
		}
		got, err := r.cmds.Issue(context.Background(), tc.by, q)
		if fault.CodeOf(err) != tc.code || got.Command.ID != uuid.Nil {
			t.Errorf("%s: got %v, want %s", tc.name, err, tc.code)
		}
	}
	if r.rows("commands")+r.rows("command_transitions")+r.rows("audit_log") != 0 {
		t.Error("a refused request left rows")
	}
}

func TestStoredPayloads(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	r.setup(func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO tasks (id, project_no, engine, task_id, name, state, priority, args, created_at, updated_at)
			VALUES (?, ?, 'celery', 'known', 'shop.pay', 'failure', 'high', '[1]', 0, 0)`, uuid.New(), r.project.No)
		return err
	})
	for _, tc := range []struct{ action, payload, want string }{
		{"retry_task", `{"task_id":"known","engine":"celery","eta_seconds":90}`,
			`{"args":null,"engine":"celery","eta":1772366490,"eta_seconds":90,"kwargs":null,"original_had_args":true,"override_args":null,"override_kwargs":null,"priority":"high","task_id":"known","task_name":"shop.pay"}`},
		{"retry_task", `{"task_id":"unknown","engine":"celery","override_args":[1.50],"override_kwargs":{"b":1,"a":2}}`,
			`{"args":null,"engine":"celery","eta":null,"eta_seconds":null,"kwargs":null,"original_had_args":null,"override_args":[1.5],"override_kwargs":{"a":2,"b":1},"priority":null,"task_id":"unknown","task_name":null}`},
		{"purge_queue", `{"queue":"q","confirm_token":"abc"}`, `{"confirm_token":"abc","force":false,"queue":"q"}`},
		{"purge_queue", `{"queue":"q","force":true}`, `{"confirm_token":null,"force":true,"queue":"q"}`},
		{"rate_limit", `{"task_name":"a","rate":"0"}`, `{"rate":"0","task_name":"a","worker_name":null}`},
		{"bulk_retry", `{"filter":{"secret":1,"engine":"celery","task_ids":["b","a"]}}`, `{"filter":{"engine":"celery","task_ids":["b","a"]},"max":1000}`},
	} {
		c := r.get(r.issue(tc.action, tc.payload))
		if string(c.Payload) != tc.want {
			t.Errorf("%s %s:\n got %s\nwant %s", tc.action, tc.payload, c.Payload, tc.want)
		}
		if family := tc.action == "retry_task" || tc.action == "bulk_retry"; (c.RetryEngine == "celery") != family {
			t.Errorf("%s: retry engine %q", tc.action, c.RetryEngine)
		}
	}
	if !slices.Contains(r.audits(), "command.bulk_retry.filter_keys_rejected") {
		t.Error("dropped filter keys were not audited")
	}
	a := r.get(r.issue("purge_queue", `{"queue":"q","observed_depth":7}`))
	b := r.get(r.issue("purge_queue", `{"queue":"q","observed_depth":8}`))
	if len(a.Payload) != len(`{"confirm_token":"","force":false,"queue":"q"}`)+64 || string(a.Payload) == string(b.Payload) {
		t.Errorf("computed confirmations: %s and %s", a.Payload, b.Payload)
	}
}

// keyed issues under the idempotency key "k".
func (r *commandRig) keyed(a agent.Agent, action, payload string) (agent.Issued, error) {
	q := r.request(action, payload)
	key := "k"
	q.IdempotencyKey, q.AgentID = &key, a.ID
	return r.cmds.Issue(context.Background(), r.by, q)
}

func (r *commandRig) replayed(a agent.Agent, action, payload string) agent.Command {
	r.t.Helper()
	got, err := r.keyed(a, action, payload)
	if err != nil || !got.Replayed {
		r.t.Fatalf("repeat of %s: replayed %v, %v", action, got.Replayed, err)
	}
	return got.Command
}

func TestRepeatComparesTheRequest(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	other := r.addAgent(r.project, "worker-2", agent.Online)
	const payload = `{"engine":"celery","task_id":"t","eta_seconds":5}`
	first, err := r.keyed(r.agent, "retry_task", payload)
	if err != nil || first.Replayed {
		t.Fatalf("first: %+v, %v", first, err)
	}
	r.clock.Advance(3 * time.Second)   // the absolute time differs now
	r.setup(func(tx *store.Tx) error { // and the task has become known
		_, err := tx.Exec(`INSERT INTO tasks (id, project_no, engine, task_id, name, state, priority, created_at, updated_at)
			VALUES (?, ?, 'celery', 't', 'shop.pay', 'failure', 'high', 0, 0)`, uuid.New(), r.project.No)
		return err
	})
	if c := r.replayed(r.agent, "retry_task", `{"eta_seconds":5, "task_id":"t", "engine":"celery"}`); c.ID != first.Command.ID {
		t.Errorf("another command %s", c.ID)
	}
	for name, repeat := range map[string]func() (agent.Issued, error){
		"payload": func() (agent.Issued, error) {
			return r.keyed(r.agent, "retry_task", `{"engine":"celery","task_id":"t","eta_seconds":6}`)
		},
		"target": func() (agent.Issued, error) {
			return r.keyed(r.agent, "retry_task", `{"engine":"celery","task_id":"u","eta_seconds":5}`)
		},
		"action": func() (agent.Issued, error) { return r.keyed(r.agent, "cancel_task", cancelPayload) },
		"agent":  func() (agent.Issued, error) { return r.keyed(other, "retry_task", payload) },
	} {
		_, err := repeat()
		if !fault.Is(err, fault.Conflict) || fault.Details(err)["command_id"] != first.Command.ID.String() {
			t.Errorf("other %s: %v", name, err)
		}
	}
	if n := r.rows("commands"); n != 1 {
		t.Errorf("%d commands", n)
	}
	if got := r.audits(); len(got) != 1 {
		t.Errorf("repeats were audited: %v", got)
	}
}

func TestRepeatOfEachStatus(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	first, err := r.keyed(r.agent, "cancel_task", cancelPayload)
	if err != nil {
		t.Fatal(err)
	}
	w := r.hub.Watch(agent.AgentKey(r.agent.No))
	defer w.Stop()
	hinted(w)
	if c := r.replayed(r.agent, "cancel_task", cancelPayload); c.Status != agent.Pending || !hinted(w) {
		t.Errorf("pending: %s, or nobody woken", c.Status)
	}
	r.claimOne(p)
	if c := r.replayed(r.agent, "cancel_task", cancelPayload); c.Status != agent.Dispatched {
		t.Errorf("in flight: %s", c.Status)
	}
	r.clock.Advance(time.Minute) // stale, and its deadline is now: the sweep has not run
	if c := r.replayed(r.agent, "cancel_task", cancelPayload); c.Status != agent.Pending || !c.TimeoutAt.Equal(r.clock.Now().Add(time.Minute)) {
		t.Errorf("stale: %s until %v", c.Status, c.TimeoutAt)
	}
	r.clock.Advance(time.Minute + time.Second)
	if n, err := r.cmds.SweepTimeouts(context.Background()); n != 1 || err != nil {
		t.Fatalf("sweep: %d, %v", n, err)
	}
	c := r.replayed(r.agent, "cancel_task", cancelPayload)
	if stored := r.get(c); stored.Status != agent.Pending || stored.Error != nil || stored.CompletedAt != nil {
		t.Errorf("timed out: %+v", stored)
	}
	r.claimOne(p)
	r.apply(p, c.ID.String(), `{"status":"success","result":{"ok":true}}`)
	if c := r.replayed(r.agent, "cancel_task", cancelPayload); c.Status != agent.Completed || string(c.Result) != `{"ok":true}` {
		t.Errorf("completed: %+v", c)
	}
	if c.ID != first.Command.ID || r.rows("commands") != 1 {
		t.Error("a repeat made another command")
	}
	if got := r.outcomes(c); !slices.Equal(got, []agent.DeliveryOutcome{"superseded", "success"}) {
		t.Errorf("ledger %v", got)
	}
}

func TestRepeatedFireIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	other := r.addAgent(r.project, "worker-2", agent.Online)
	if _, err := r.keyed(r.agent, "schedule.fire", `{"schedule_id":"s","fired_at":"a"}`); err != nil {
		t.Fatal(err)
	}
	r.claimOne(r.peer(agent.WebSocket))
	if c := r.replayed(other, "schedule.fire", `{"schedule_id":"s","fired_at":"b"}`); c.AgentID != r.agent.ID {
		t.Error("taken over while in flight")
	}
	r.clock.Advance(time.Minute)
	c := r.replayed(other, "schedule.fire", `{"schedule_id":"s","fired_at":"c"}`)
	if stored := r.get(c); stored.AgentID != other.ID || stored.Status != agent.Pending {
		t.Errorf("stored %+v", stored)
	}
	if res := r.claim(r.peer(agent.WebSocket), 10); len(res.Claimed) != 0 {
		t.Error("the old agent still got it")
	}
}

func TestTimedOutAtMostOnceIsNotRepeated(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	if _, err := r.keyed(r.agent, "restart_worker", restartPayload); err != nil {
		t.Fatal(err)
	}
	r.clock.Advance(2 * time.Minute)
	if _, err := r.cmds.SweepTimeouts(context.Background()); err != nil {
		t.Fatal(err)
	}
	if c := r.replayed(r.agent, "restart_worker", restartPayload); c.Status != agent.TimedOut {
		t.Errorf("status %s", c.Status)
	}
}
