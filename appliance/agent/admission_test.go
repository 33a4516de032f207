package agent

import (
	"testing"
	"time"

	"signalbox/appliance/fault"
)

func TestAdmission(t *testing.T) {
	t.Parallel()
	reported := CommandAgent{Name: "a", LastConnectAt: &commandEpoch, Engines: []string{"celery", "huey", "bare"}, Capabilities: map[string][]string{
		"celery": {"retry_task", "cancel_task", "bulk_retry", "retry_by_reference_v1"},
		"huey":   {"retry_task", "bulk_retry", "retry_by_reference_v1", "list_dead_letters"},
		"bare":   {"retry_task"},
	}}
	unreported := CommandAgent{Name: "lp"}
	for _, tc := range []struct {
		name    string
		agent   CommandAgent
		action  string
		payload string
		code    fault.Code
		reason  any // details.error
	}{
		{"reported", reported, "retry_task", `{"engine":"celery","task_id":"t"}`, "", nil},
		{"engine missing", reported, "retry_task", `{"task_id":"t"}`, fault.Invalid, nil},
		{"engine malformed", reported, "retry_task", `{"engine":"-celery","task_id":"t"}`, fault.Invalid, nil},
		{"engine malformed, unreported", unreported, "cancel_task", `{"engine":"a b","task_id":"t"}`, fault.Invalid, nil},
		{"filter engine missing", reported, "bulk_retry", `{"filter":{"state":"failure"}}`, fault.Invalid, nil},
		{"engine not reported", reported, "cancel_task", `{"engine":"rq","task_id":"t"}`, fault.Invalid, "engine_not_reported"},
		{"optional engine not reported", reported, "restart_worker", `{"engine":"rq","worker_name":"w"}`, fault.Invalid, "engine_not_reported"},
		{"no engine named", reported, "restart_worker", `{"worker_name":"w"}`, "", nil},
		{"capability missing", reported, "requeue_dead_letter", `{"engine":"celery","task_id":"t"}`, fault.Invalid, "capability_not_reported"},
		{"dead letters", reported, "dlq.list", `{"engine":"huey"}`, "", nil},
		{"dead letters missing", reported, "dlq.list", `{"engine":"celery"}`, fault.Invalid, "capability_not_reported"},
		{"retry contract missing", reported, "retry_task", `{"engine":"bare","task_id":"t"}`, fault.Invalid, "retry_contract_not_reported"},
		{"foreign engine without arguments", reported, "retry_task", `{"engine":"huey","task_id":"t"}`, fault.Conflict, "override_arguments_required"},
		{"foreign engine with arguments", reported, "retry_task", `{"engine":"huey","task_id":"t","override_args":[],"override_kwargs":{}}`, "", nil},
		{"foreign engine in bulk", reported, "bulk_retry", `{"filter":{"engine":"huey"}}`, fault.Conflict, "override_arguments_required"},
		{"unreported retry", unreported, "retry_task", `{"engine":"celery","task_id":"t"}`, "", nil},
		{"unreported dead letter", unreported, "requeue_dead_letter", `{"engine":"rq","task_id":"t"}`, "", nil},
		{"unreported foreign retry", unreported, "retry_task", `{"engine":"huey","task_id":"t"}`, fault.Conflict, "override_arguments_required"},
	} {
		spec, _ := LookupAction(tc.action)
		err := admit(&tc.agent, spec, parsedPayload(t, tc.payload))
		if got := fault.CodeOf(err); got != tc.code {
			t.Errorf("%s: got %q (%v), want %q", tc.name, got, err, tc.code)
		}
		if tc.reason != nil {
			d := fault.Details(err)
			if d["error"] != tc.reason || d["action"] != tc.action || d["engine"] == "" || d["agent_id"] != tc.agent.ID.String() {
				t.Errorf("%s: details %v", tc.name, d)
			}
		}
	}
}

func TestReplayCases(t *testing.T) {
	t.Parallel()
	const window = time.Minute
	for _, tc := range []struct {
		status        Status
		age           time.Duration
		redeliverable bool
		want          replayAction
	}{
		{Completed, time.Hour, true, replayReturn},
		{Failed, time.Hour, true, replayReturn},
		{Cancelled, time.Hour, true, replayReturn},
		{Dispatched, window - 1, true, replayReturn},
		{Dispatched, window, true, replayRevert},
		{Dispatched, window, false, replayReturn},
		{Pending, 0, false, replayDeliver},
		{TimedOut, time.Second, true, replayRevert},
		{TimedOut, time.Hour, false, replayReturn},
	} {
		c := commandIn(tc.status, tc.redeliverable)
		sent := commandEpoch.Add(-tc.age)
		if tc.status != Pending {
			c.DispatchedAt = &sent
		}
		if got := replayOf(c, commandEpoch, window); got != tc.want {
			t.Errorf("%s after %v (redeliverable %v): %d, want %d", tc.status, tc.age, tc.redeliverable, got, tc.want)
		}
	}
}

func TestStreamStart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		after int64
		b     StreamBounds
		next  int64
		gap   bool
	}{
		{"oldest of nothing", 0, StreamBounds{}, 0, false},
		{"oldest", 0, StreamBounds{Pruned: 90, First: 50, Head: 100}, 49, false},
		{"kept", 95, StreamBounds{Pruned: 90, First: 50, Head: 100}, 95, false},
		{"at the watermark", 90, StreamBounds{Pruned: 90, First: 50, Head: 100}, 90, false},
		{"below the watermark", 89, StreamBounds{Pruned: 90, First: 50, Head: 100}, 89, true},
		{"far below", 10, StreamBounds{Pruned: 90, First: 50, Head: 100}, 49, true},
		{"at the head", 100, StreamBounds{First: 50, Head: 100}, 100, false},
		{"beyond the head", 101, StreamBounds{First: 50, Head: 100}, 100, true},
		{"everything pruned", 10, StreamBounds{Pruned: 100, Head: 100}, 10, true},
	} {
		p := startStream(tc.after, tc.b)
		if p.Next != tc.next || p.Gap != tc.gap {
			t.Errorf("%s: next %d gap %v, want %d %v", tc.name, p.Next, p.Gap, tc.next, tc.gap)
		}
	}
}
