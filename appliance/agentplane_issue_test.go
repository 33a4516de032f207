package appliance_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/agentclient"
)

// Agent protocol E.5, E.9: what is not admitted is refused with the status of its rule and leaves no row.
func TestRefusedCommandsLeaveNothing(t *testing.T) {
	s := appliancetest.Start(t)
	s.NewProject("other")
	s.NewProject("archived")
	m, gone, foreign := s.Mint("a"), s.Mint("gone"), s.MintIn("other", "b")
	reported := s.Mint("reported")
	dial(t, s.With(reported, func(c *agentclient.Config) {
		c.Engines = []string{"celery", "rq", "huey"}
		c.Capabilities = map[string][]string{"celery": {"retry_task"}, "rq": {"cancel_task", "retry_by_reference_v1"}, "huey": {"retry_task", "retry_by_reference_v1"}}
	}))
	s.Revoke(gone)
	s.Archive("archived")
	type fields = map[string]any
	with := func(base fields, changes fields) fields {
		out := maps.Clone(base)
		maps.Copy(out, changes)
		return out
	}
	retry := fields{"engine": "celery", "task_id": "t"}
	worker, consumer := fields{"worker_name": "w"}, fields{"worker_name": "w", "queue": "q"}
	resize := fields{"worker_name": "w", "delta": 1}
	rate := fields{"task_name": "t", "rate": "10/s"}
	bulk := fields{"filter": fields{"engine": "celery", "state": "failure"}}
	long := func(n int) string { return strings.Repeat("x", n) }
	type refusal struct {
		status int
		agent  any // nil: an agent that has reported nothing
		route  string
		body   fields
	}
	cases := map[string]refusal{
		"unknown agent":          {404, uuid.NewString(), "cancel-task", retry},
		"revoked agent":          {404, gone.ID.String(), "cancel-task", retry},
		"agent of another":       {404, foreign.ID.String(), "cancel-task", retry},
		"no agent":               {422, "", "cancel-task", retry},
		"agent no UUID":          {422, "a", "cancel-task", retry},
		"agent number":           {422, 7, "cancel-task", retry},
		"empty idempotency key":  {422, nil, "cancel-task", with(retry, fields{"idempotency_key": ""})},
		"long idempotency key":   {422, nil, "cancel-task", with(retry, fields{"idempotency_key": long(201)})},
		"idempotency key number": {422, nil, "cancel-task", with(retry, fields{"idempotency_key": 7})},
		"engine not reported":    {422, reported.ID.String(), "cancel-task", with(retry, fields{"engine": "dramatiq"})},
		"token not reported":     {422, reported.ID.String(), "cancel-task", retry},
		"contract not reported":  {422, reported.ID.String(), "retry-task", retry},
		"requeue not reported":   {422, reported.ID.String(), "requeue-dead-letter", retry},
		"bulk not reported":      {422, reported.ID.String(), "bulk-retry", bulk},
		"huey without arguments": {409, reported.ID.String(), "retry-task", with(retry, fields{"engine": "huey"})},
		"arq without arguments":  {409, nil, "retry-task", with(retry, fields{"engine": "arq"})},
		"no engine":              {422, nil, "cancel-task", fields{"task_id": "t"}},
		"empty engine":           {422, nil, "cancel-task", with(retry, fields{"engine": ""})},
		"engine pattern":         {422, nil, "cancel-task", with(retry, fields{"engine": "-celery"})},
		"long engine":            {422, nil, "retry-task", with(retry, fields{"engine": long(41)})},
		"engine number":          {422, nil, "retry-task", with(retry, fields{"engine": 7})},
		"no task_id":             {422, nil, "retry-task", fields{"engine": "celery"}},
		"empty task_id":          {422, nil, "requeue-dead-letter", with(retry, fields{"task_id": ""})},
		"long task_id":           {422, nil, "cancel-task", with(retry, fields{"task_id": long(201)})},
		"args without kwargs":    {422, nil, "retry-task", with(retry, fields{"override_args": []int{}})},
		"kwargs without args":    {422, nil, "retry-task", with(retry, fields{"override_kwargs": fields{}})},
		"args no list":           {422, nil, "retry-task", with(retry, fields{"override_args": fields{}, "override_kwargs": fields{}})},
		"reserved key":           {422, nil, "retry-task", with(retry, fields{"override_args": []int{}, "override_kwargs": fields{"__z4j_x": 1}})},
		"long eta":               {422, nil, "retry-task", with(retry, fields{"eta_seconds": 86401})},
		"negative eta":           {422, nil, "retry-task", with(retry, fields{"eta_seconds": -1})},
		"bulk without filter":    {400, nil, "bulk-retry", fields{}},
		"bulk max 0":             {422, nil, "bulk-retry", with(bulk, fields{"max": 0})},
		"bulk max 10001":         {422, nil, "bulk-retry", with(bulk, fields{"max": 10001})},
		"no queue":               {422, nil, "purge-queue", fields{}},
		"long queue":             {422, nil, "purge-queue", fields{"queue": long(201)}},
		"long confirm_token":     {422, nil, "purge-queue", fields{"queue": "q", "confirm_token": long(129)}},
		"force text":             {422, nil, "purge-queue", fields{"queue": "q", "force": "yes"}},
		"no worker":              {422, nil, "restart-worker", fields{}},
		"long worker":            {422, nil, "restart-worker", fields{"worker_name": long(201)}},
		"delta 0":                {422, nil, "pool-resize", with(resize, fields{"delta": 0})},
		"delta 101":              {422, nil, "pool-resize", with(resize, fields{"delta": 101})},
		"delta -101":             {422, nil, "pool-resize", with(resize, fields{"delta": -101})},
		"delta 1.5":              {422, nil, "pool-resize", with(resize, fields{"delta": 1.5})},
		"no delta":               {422, nil, "pool-resize", worker},
		"add no queue":           {422, nil, "add-consumer", worker},
		"cancel empty queue":     {422, nil, "cancel-consumer", with(consumer, fields{"queue": ""})},
		"rate 01":                {422, nil, "rate-limit", with(rate, fields{"rate": "01/s"})},
		"rate per day":           {422, nil, "rate-limit", with(rate, fields{"rate": "1/d"})},
		"rate 0/s":               {422, nil, "rate-limit", with(rate, fields{"rate": "0/s"})},
		"long rate":              {422, nil, "rate-limit", with(rate, fields{"rate": long(21)})},
		"long task_name":         {422, nil, "rate-limit", with(rate, fields{"task_name": long(501)})},
		"unknown route":          {404, nil, "sing", retry},
	}
	before := s.State()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			body := withAgent(m, c.body)
			switch c.agent {
			case nil:
			case "":
				delete(body, "agent_id")
			default:
				body["agent_id"] = c.agent
			}
			status, answer := s.Admin("POST", "/projects/default/commands/"+c.route, body)
			if status != c.status && (c.route != "sing" || status != 405) {
				t.Errorf("answered %d, want %d: %s", status, c.status, answer)
			}
			if c.status == 422 && c.agent == reported.ID.String() {
				wantAdmission(t, answer, reported.ID)
			}
		})
	}
	for _, body := range []string{``, `x`, `[]`, `{"agent_id":"` + m.ID.String() + `"`, `null`} {
		if status, answer := s.Admin("POST", "/projects/default/commands/cancel-task", body); status != 422 {
			t.Errorf("body %q answered %d %s", body, status, answer)
		}
	}
	for _, slug := range []string{"nowhere", "archived"} {
		if status, answer := s.Admin("POST", "/projects/"+slug+"/commands/cancel-task", withAgent(m, retry)); status != 404 {
			t.Errorf("project %s answered %d %s", slug, status, answer)
		}
	}
	s.Unchanged(before)
}

// wantAdmission checks the detail of agent protocol E.5.
func wantAdmission(t *testing.T, answer []byte, agent uuid.UUID) {
	t.Helper()
	var body struct{ Details, Detail map[string]any }
	_ = json.Unmarshal(answer, &body)
	if body.Details == nil {
		_ = json.Unmarshal(answer, &struct{ Details *map[string]any }{&body.Details})
	}
	for _, key := range []string{"error", "engine", "action", "agent_id"} {
		if body.Details[key] == nil {
			t.Errorf("no %s in %s", key, answer)
		}
	}
	if body.Details["agent_id"] != agent.String() {
		t.Errorf("agent in %s", answer)
	}
}

// Agent protocol E.5: with nobody there the command is kept, audited and answered 503; with an online agent it is 202.
func TestOfflineAgentKeepsTheCommand(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	status, answer := s.Admin("POST", "/projects/default/commands/cancel-task", withAgent(m, cancelFields("t")))
	if status != 503 || !strings.Contains(string(answer), "agent_offline") {
		t.Fatalf("answered %d %s", status, answer)
	}
	if n := s.Count("SELECT count(*) FROM commands WHERE status = 'pending'"); n != 1 {
		t.Errorf("%d commands", n)
	}
	if n := s.Count("SELECT count(*) FROM audit_log WHERE action = 'command.issue.cancel_task'"); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	lp := openLP(t, m.Config) // polls, though it is not online
	got, err := lp.Poll(t.Context(), 0, 50)
	must(t, err)
	if len(got) != 1 {
		t.Errorf("%d commands", len(got))
	}
	online(t, lp)
	if status, answer := s.Admin("POST", "/projects/default/commands/cancel-task", withAgent(m, cancelFields("t"))); status != 202 {
		t.Errorf("answered %d %s", status, answer)
	}
}

// Agent protocol E.8: a repeat finds the stored command; another request under the same key is a conflict.
func TestIdempotencyKeys(t *testing.T) {
	s := appliancetest.Start(t)
	m, other := s.Mint("a"), s.Mint("b")
	online(t, openLP(t, m.Config))
	online(t, openLP(t, other.Config))
	fields := cancelFields("t-1")
	fields["idempotency_key"] = "once"
	first := s.Issue(m, "cancel-task", fields)
	before := s.State()
	if again := s.Issue(m, "cancel-task", fields); again.ID != first.ID {
		t.Errorf("another command %s", again.ID)
	}
	conflicting := cancelFields("t-2")
	conflicting["idempotency_key"] = "once"
	for name, c := range map[string]struct {
		m      *appliancetest.Minted
		route  string
		fields map[string]any
	}{"target": {m, "cancel-task", conflicting}, "agent": {other, "cancel-task", fields}, "action": {m, "requeue-dead-letter", fields}} {
		status, answer := s.Admin("POST", "/projects/default/commands/"+c.route, withAgent(c.m, c.fields))
		if status != 409 || !strings.Contains(string(answer), "idempotency_key already in use") {
			t.Errorf("another %s: answered %d %s", name, status, answer)
		}
	}
	s.Unchanged(before)
}
