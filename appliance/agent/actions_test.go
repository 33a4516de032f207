package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

func parsedPayload(t *testing.T, text string) rawjson.Value {
	t.Helper()
	doc, err := rawjson.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return doc.Root()
}

func TestClosedLists(t *testing.T) {
	t.Parallel()
	want := []string{"cancel_task", "reconcile_task", "schedule.disable", "schedule.enable", "schedule.fire", "schedule.resync",
		"schedule.trigger_now", "schedule.trigger_now.via_scheduler"}
	got := RedeliverableActions()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("redeliverable: %v", got)
	}
	var retry, capable []string
	for _, a := range Actions() {
		if a.RetryFamily {
			retry = append(retry, a.Name)
		}
		if a.Capability != "" {
			capable = append(capable, a.Name+"="+a.Capability)
		}
		if len(a.Name) > 60 || a.Doc == "" || a.TargetType == "" || a.Role == "" {
			t.Errorf("%s: incomplete", a.Name)
		}
		if a.EngineRequired && a.EnginePath == "engine" && a.field("engine") == nil {
			t.Errorf("%s: needs an engine that it has no field for", a.Name)
		}
	}
	if !slices.Equal(retry, []string{"retry_task", "bulk_retry"}) {
		t.Errorf("retry family: %v", retry)
	}
	if !slices.Equal(capable, []string{"retry_task=retry_task", "cancel_task=cancel_task", "requeue_dead_letter=requeue_dead_letter",
		"bulk_retry=bulk_retry", "dlq.list=list_dead_letters"}) {
		t.Errorf("capabilities: %v", capable)
	}
	if a, _ := LookupAction("purge_queue"); a.Role != Admin {
		t.Errorf("purge_queue needs %s", a.Role)
	}
}

// okPayloads has one accepted payload for every action; a new action must be added here.
var okPayloads = map[string]string{
	"retry_task":                         `{"engine":"celery","task_id":"t1"}`,
	"cancel_task":                        `{"engine":"celery","task_id":"t1"}`,
	"requeue_dead_letter":                `{"engine":"celery","task_id":"t1"}`,
	"bulk_retry":                         `{"filter":{"engine":"celery","task_ids":["a"]}}`,
	"purge_queue":                        `{"queue":"default","observed_depth":3}`,
	"restart_worker":                     `{"worker_name":"celery@h"}`,
	"pool_grow":                          `{"worker_name":"celery@h","delta":2}`,
	"pool_shrink":                        `{"worker_name":"celery@h","delta":2}`,
	"add_consumer":                       `{"worker_name":"celery@h","queue":"q"}`,
	"cancel_consumer":                    `{"worker_name":"celery@h","queue":"q"}`,
	"rate_limit":                         `{"task_name":"a.b","rate":"10/m"}`,
	"submit_task":                        `{"name":"a.b","args":[1],"kwargs":{"x":1}}`,
	"reconcile_task":                     `{"engine":"celery","task_id":"t1"}`,
	"dlq.list":                           `{"engine":"celery","queue":"q"}`,
	"schedule.fire":                      `{"schedule_id":"s","engine":"celery","fire_id":"f","fired_at":"x"}`,
	"schedule.trigger_now":               `{"scheduler":"beat","schedule_id":"s"}`,
	"schedule.trigger_now.via_scheduler": `{"scheduler":"beat","schedule_id":"s"}`,
	"schedule.enable":                    `{"scheduler":"beat","schedule_id":"s"}`,
	"schedule.disable":                   `{"scheduler":"beat","schedule_id":"s"}`,
	"schedule.delete":                    `{"scheduler":"beat","schedule_id":"s"}`,
	"schedule.resync":                    `{"scheduler":"beat"}`,
	"schedule.external.activate":         `{"owner":"o"}`,
	"schedule.external.control":          `{"owner":"o"}`,
}

func TestEveryActionAcceptsItsPayload(t *testing.T) {
	t.Parallel()
	for _, a := range Actions() {
		if err := a.Check(parsedPayload(t, okPayloads[a.Name])); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
	}
}

func TestPayloadRules(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 64<<10)
	for _, tc := range []struct{ action, payload, field string }{
		{"retry_task", `[]`, "payload"},
		{"retry_task", `{"task_id":"t"}`, "engine"},
		{"retry_task", `{"engine":"celery"}`, "task_id"},
		{"retry_task", `{"engine":"celery","task_id":""}`, "task_id"},
		{"retry_task", `{"engine":"celery","task_id":7}`, "task_id"},
		{"retry_task", `{"engine":"celery","task_id":"` + strings.Repeat("t", 201) + `"}`, "task_id"},
		{"retry_task", `{"engine":"celery","task_id":"a\u0000b"}`, "task_id"},
		{"retry_task", `{"engine":"celery","task_id":"t","priorty":"high"}`, "priorty"},
		{"retry_task", `{"engine":"celery","task_id":"t","args":[1]}`, "args"},
		{"retry_task", `{"engine":"celery","task_id":"t","override_args":[1]}`, "override_args"},
		{"retry_task", `{"engine":"celery","task_id":"t","override_kwargs":{}}`, "override_args"},
		{"retry_task", `{"engine":"celery","task_id":"t","override_args":{},"override_kwargs":{}}`, "override_args"},
		{"retry_task", `{"engine":"celery","task_id":"t","override_args":["` + big + `"],"override_kwargs":{}}`, "override_args"},
		{"retry_task", `{"engine":"celery","task_id":"t","override_args":[],"override_kwargs":{"__z4j_x":1}}`, "override_kwargs"},
		{"retry_task", `{"engine":"celery","task_id":"t","override_args":[[{"__z4j_x":1}]],"override_kwargs":{}}`, "override_args"},
		{"retry_task", `{"engine":"celery","task_id":"t","eta_seconds":86401}`, "eta_seconds"},
		{"retry_task", `{"engine":"celery","task_id":"t","eta_seconds":-1}`, "eta_seconds"},
		{"retry_task", `{"engine":"celery","task_id":"t","eta_seconds":1.0}`, "eta_seconds"},
		{"retry_task", `{"engine":"celery","task_id":"t","eta_seconds":1,"eta":5}`, "eta"},
		{"bulk_retry", `{"filter":{}}`, "filter"},
		{"bulk_retry", `{"filter":[]}`, "filter"},
		{"bulk_retry", `{"filter":{"nothing":1}}`, "filter"},
		{"bulk_retry", `{"filter":{"engine":"celery","task_ids":[]}}`, "filter.task_ids"},
		{"bulk_retry", `{"filter":{"engine":"celery","task_ids":[7]}}`, "filter.task_ids"},
		{"bulk_retry", `{"filter":{"engine":"celery","state":7}}`, "filter.state"},
		{"bulk_retry", `{"filter":{"engine":"celery","since":"yesterday"}}`, "filter.since"},
		{"bulk_retry", `{"filter":{"engine":"celery"},"max":0}`, "max"},
		{"bulk_retry", `{"filter":{"engine":"celery"},"max":10001}`, "max"},
		{"purge_queue", `{"queue":"q","confirm_token":""}`, "confirm_token"},
		{"purge_queue", `{"queue":"q","force":"yes"}`, "force"},
		{"purge_queue", `{"queue":"q","observed_depth":-1}`, "observed_depth"},
		{"pool_grow", `{"worker_name":"w","delta":0}`, "delta"},
		{"pool_grow", `{"worker_name":"w","delta":101}`, "delta"},
		{"restart_worker", `{"worker_name":"` + strings.Repeat("w", 201) + `"}`, "worker_name"},
		{"rate_limit", `{"task_name":"t","rate":"01/s"}`, "rate"},
		{"rate_limit", `{"task_name":"t","rate":"10/d"}`, "rate"},
		{"rate_limit", `{"task_name":"t","rate":"0/s"}`, "rate"},
		{"rate_limit", `{"task_name":"t","rate":"` + strings.Repeat("1", 21) + `"}`, "rate"},
		{"submit_task", `{"name":"t","kwargs":{"__z4j_a":1}}`, "kwargs"},
		{"dlq.list", `{"engine":"celery","cursor":"\u00e9"}`, "cursor"},
		{"dlq.list", `{"engine":"celery","limit":201}`, "limit"},
		{"schedule.enable", `{"scheduler":"beat"}`, "schedule_id"},
	} {
		a, ok := LookupAction(tc.action)
		if !ok {
			t.Fatalf("no action %s", tc.action)
		}
		err := a.Check(parsedPayload(t, tc.payload))
		if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != tc.field {
			t.Errorf("%s %.80s: got %v, want a refusal of %s", tc.action, tc.payload, err, tc.field)
		}
	}
}

func TestRatePattern(t *testing.T) {
	t.Parallel()
	a, _ := LookupAction("rate_limit")
	for _, rate := range []string{"0", "1", "10", "10/s", "10/m", "999/h"} {
		if err := a.Check(parsedPayload(t, `{"task_name":"t","rate":"`+rate+`"}`)); err != nil {
			t.Errorf("%s: %v", rate, err)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	const id = "7b0c5b7a-3c1f-4a52-9d6e-0d2f4b6a8c1e"
	for _, tc := range []struct{ route, body, action, payload string }{
		{"retry-task", `{"task_id":"t","engine":"celery","agent_id":"` + id + `","eta_seconds":5}`, "retry_task", `{"engine":"celery","eta_seconds":5,"task_id":"t"}`},
		{"pool-resize", `{"agent_id":"` + id + `","worker_name":"w","delta":-7}`, "pool_shrink", `{"delta":7,"worker_name":"w"}`},
		{"pool-resize", `{"agent_id":"` + id + `","worker_name":"w","delta":100}`, "pool_grow", `{"delta":100,"worker_name":"w"}`},
		{"purge-queue", `{"agent_id":"` + id + `","queue":"q","observed_depth":4,"idempotency_key":null}`, "purge_queue", `{"observed_depth":4,"queue":"q"}`},
	} {
		r, err := ParseRoute(tc.route, []byte(tc.body))
		if err != nil || r.Action != tc.action || string(r.Payload) != tc.payload || r.AgentID != uuid.MustParse(id) {
			t.Errorf("%s %s: %+v %s, %v", tc.route, tc.body, r, r.Payload, err)
		}
	}
	for _, tc := range []struct{ route, body, field string }{
		{"retry-task", `nonsense`, "body"},
		{"retry-task", `[]`, "body"},
		{"retry-task", `{}`, "agent_id"},
		{"retry-task", `{"agent_id":"x"}`, "agent_id"},
		{"retry-task", `{"agent_id":"` + id + `","idempotency_key":5}`, "idempotency_key"},
		{"pool-resize", `{"agent_id":"` + id + `","worker_name":"w","delta":0}`, "delta"},
		{"pool-resize", `{"agent_id":"` + id + `","worker_name":"w","delta":-101}`, "delta"},
		{"pool-resize", `{"agent_id":"` + id + `","worker_name":"w","delta":1.5}`, "delta"},
	} {
		_, err := ParseRoute(tc.route, []byte(tc.body))
		if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != tc.field {
			t.Errorf("%s %s: got %v, want a refusal of %s", tc.route, tc.body, err, tc.field)
		}
	}
	for _, route := range []string{"", "nothing", "bulk_retry"} {
		if _, err := ParseRoute(route, []byte(`{}`)); !fault.Is(err, fault.NotFound) {
			t.Errorf("route %q: %v", route, err)
		}
	}
}

func TestGenericBody(t *testing.T) {
	t.Parallel()
	const id = "7b0c5b7a-3c1f-4a52-9d6e-0d2f4b6a8c1e"
	r, err := ParseGeneric([]byte(`{"agent_id":"` + id + `","action":"cancel_task","target_type":"task","target_id":"celery:t","payload":{"engine":"celery","task_id":"t"},"idempotency_key":"k"}`))
	if err != nil || r.Action != "cancel_task" || *r.TargetID != "celery:t" || r.TargetType != "task" || *r.IdempotencyKey != "k" {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, tc := range []struct{ body, field string }{
		{`{"agent_id":"` + id + `"}`, "action"},
		{`{"agent_id":"` + id + `","action":7}`, "action"},
		{`{"agent_id":"` + id + `","action":"a","payload":[]}`, "payload"},
		{`{"agent_id":"` + id + `","action":"a","target_id":7}`, "target_id"},
		{`{"agent_id":"` + id + `","action":"a","more":7}`, "more"},
	} {
		if _, err := ParseGeneric([]byte(tc.body)); !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != tc.field {
			t.Errorf("%s: got %v, want a refusal of %s", tc.body, err, tc.field)
		}
	}
}

func TestDraftTargets(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	for _, tc := range []struct {
		r      IssueRequest
		target *string
		field  string
	}{
		{IssueRequest{Action: "cancel_task", Payload: []byte(`{"engine":"celery","task_id":"t"}`)}, text("celery:t"), ""},
		{IssueRequest{Action: "bulk_retry", Payload: []byte(`{"filter":{"engine":"celery"}}`)}, nil, ""},
		{IssueRequest{Action: "rate_limit", Payload: []byte(`{"rate":"1","task_name":"` + strings.Repeat("n", 300) + `"}`)}, text(strings.Repeat("n", 200)), ""},
		{IssueRequest{Action: "dlq.list", Payload: []byte(`{"engine":"celery"}`)}, nil, ""},
		{IssueRequest{Action: "schedule.external.control", TargetID: text("owner"), Payload: []byte(`{}`)}, text("owner"), ""},
		{IssueRequest{Action: "cancel_task", TargetID: text("celery:u"), Payload: []byte(`{"engine":"celery","task_id":"t"}`)}, nil, "target_id"},
		{IssueRequest{Action: "cancel_task", TargetType: "queue", Payload: []byte(`{"engine":"celery","task_id":"t"}`)}, nil, "target_type"},
		{IssueRequest{Action: "bulk_retry", TargetID: text("x"), Payload: []byte(`{"filter":{"engine":"celery"}}`)}, nil, "target_id"},
		{IssueRequest{Action: "no_such"}, nil, "action"},
		{IssueRequest{Action: "cancel_task", Payload: []byte(`{`)}, nil, "payload"},
		{IssueRequest{Action: "cancel_task", IdempotencyKey: text(""), Payload: []byte(`{"engine":"celery","task_id":"t"}`)}, nil, "idempotency_key"},
		{IssueRequest{Action: "cancel_task", IdempotencyKey: text(strings.Repeat("k", 201)), Payload: []byte(`{"engine":"celery","task_id":"t"}`)}, nil, "idempotency_key"},
	} {
		d, err := newDraft(tc.r)
		if tc.field != "" {
			if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != tc.field {
				t.Errorf("%s %s: got %v, want a refusal of %s", tc.r.Action, tc.r.Payload, err, tc.field)
			}
			continue
		}
		if err != nil || !equalText(d.targetID, tc.target) {
			t.Errorf("%s %s: %v", tc.r.Action, tc.r.Payload, err)
		}
	}
}

func TestWireFrame(t *testing.T) {
	t.Parallel()
	by, target := "local", "celery:t"
	cmd := Command{Action: "cancel_task", TargetType: "task", TargetID: &target, IssuedBy: &by, Payload: []byte(`{"engine":"celery","task_id":"t"}`)}
	for _, tc := range []struct {
		name string
		cmd  Command
		want string
	}{
		{"engine", cmd, `{"action":"cancel_task","delivery_claim_token":null,"issued_by":"local","parameters":{"engine":"celery","task_id":"t"},"target":{"engine":"celery","id":"celery:t","type":"task"},"timeout_seconds":60}`},
		{"filter engine", Command{Action: "bulk_retry", TargetType: "bulk", Payload: []byte(`{"filter":{"engine":"rq"},"max":1}`)},
			`{"action":"bulk_retry","delivery_claim_token":null,"issued_by":null,"parameters":{"filter":{"engine":"rq"},"max":1},"target":{"engine":"rq","id":null,"type":"bulk"},"timeout_seconds":60}`},
		{"scheduler", Command{Action: "schedule.enable", TargetType: "schedule", TargetID: &by, Payload: []byte(`{"schedule_id":"local","scheduler":"beat"}`)},
			`{"action":"schedule.enable","delivery_claim_token":null,"issued_by":null,"parameters":{"schedule_id":"local","scheduler":"beat"},"target":{"id":"local","scheduler":"beat","type":"schedule"},"timeout_seconds":60}`},
	} {
		got, err := WirePayload(tc.cmd, 60)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v", tc.name, got, err)
		}
		canonical, err := rawjson.Canonical(got)
		if err != nil || string(canonical) != string(got) {
			t.Errorf("%s is not canonical: %v", tc.name, err)
		}
	}
}
