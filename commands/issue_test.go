package commands

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"signalbox/appliance/agent"
	"signalbox/appliance/rawjson"
)

// verbRequest runs the flags of an issue verb and returns the body that would be sent.
func verbRequest(t *testing.T, line string) (route string, body []byte) {
	t.Helper()
	args := strings.Fields(line)
	for _, verb := range issueVerbs() {
		if verb.use != args[0] {
			continue
		}
		cmd := &cobra.Command{Use: verb.use}
		verb.flags(cmd)
		if err := cmd.ParseFlags(args[1:]); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		req, err := verb.request(cmd)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		req.body["agent_id"] = "11111111-1111-4111-8111-111111111111"
		body, err := marshal(req.body)
		if err != nil {
			t.Fatal(err)
		}
		return req.route, body
	}
	t.Fatalf("no verb %s", args[0])
	return "", nil
}

// Each verb makes what admission takes, and there is a verb for each action.
func TestIssueVerbsMakeWhatAdmissionTakes(t *testing.T) {
	t.Parallel()
	lines := map[string]string{ // line: action
		`retry-task --engine celery --task-id a`:                                                          "retry_task",
		`retry-task --engine celery --task-id a --args [1] --kwargs {} --delay 30s`:                       "retry_task",
		`cancel-task --engine celery --task-id a`:                                                         "cancel_task",
		`requeue-dead-letter --engine rq --task-id a`:                                                     "requeue_dead_letter",
		`bulk-retry --engine celery --state failure --queue q`:                                            "bulk_retry",
		`bulk-retry --filter {"engine":"celery"} --max 5`:                                                 "bulk_retry",
		`submit-task --name app.add`:                                                                      "submit_task",
		`submit-task --name app.add --args [1] --queue q --priority 3 --eta 2030-01-01T00:00:00.5Z`:       "submit_task",
		`reconcile-task --engine celery --task-id a`:                                                      "reconcile_task",
		`purge-queue --queue q --force`:                                                                   "purge_queue",
		`purge-queue --queue q --confirm-token ab --observed-depth 0 --engine celery`:                     "purge_queue",
		`restart-worker --worker w`:                                                                       "restart_worker",
		`pool-resize --worker w --grow 2`:                                                                 "pool_grow",
		`pool-resize --worker w --shrink 2 --engine celery`:                                               "pool_shrink",
		`add-consumer --worker w --queue q`:                                                               "add_consumer",
		`cancel-consumer --worker w --queue q`:                                                            "cancel_consumer",
		`rate-limit --task app.add --rate 10/m --worker w`:                                                "rate_limit",
		`rate-limit --task app.add --rate 0`:                                                              "rate_limit",
		`dlq-list --engine rq`:                                                                            "dlq.list",
		`dlq-list --engine rq --queue q --limit 200 --cursor x`:                                           "dlq.list",
		`schedule-fire --schedule-id s --task app.add --engine celery`:                                    "schedule.fire",
		`schedule-trigger-now --scheduler beat --schedule-id s`:                                           "schedule.trigger_now",
		`schedule-trigger-now --scheduler beat --schedule-id s --via-scheduler`:                           "schedule.trigger_now.via_scheduler",
		`schedule-enable --scheduler beat --schedule-id s`:                                                "schedule.enable",
		`schedule-disable --scheduler beat --schedule-id s --engine celery`:                               "schedule.disable",
		`schedule-delete --scheduler beat --schedule-id s`:                                                "schedule.delete",
		`schedule-resync --scheduler beat`:                                                                "schedule.resync",
		`schedule-external-activate --owner o --payload {"scheduler":"beat"}`:                             "schedule.external.activate",
		`schedule-external-control --owner o --payload {"scheduler":"beat"}`:                              "schedule.external.control",
		`raw --action cancel_task --payload {"engine":"celery","task_id":"a"}`:                            "cancel_task",
		`raw --action rate_limit --target-type task --target-id t --payload {"task_name":"t","rate":"0"}`: "rate_limit",
	}
	seen := map[string]bool{}
	for line, action := range lines {
		route, body := verbRequest(t, line)
		parse := func() (agent.IssueRequest, error) { return agent.ParseGeneric(body) }
		if route != "" {
			parse = func() (agent.IssueRequest, error) { return agent.ParseRoute(route, body) }
		}
		req, err := parse()
		if err != nil || req.Action != action {
			t.Errorf("%s: action %q, %v; want %s: %s", line, req.Action, err, action, body)
			continue
		}
		spec, ok := agent.LookupAction(req.Action)
		if !ok {
			t.Errorf("%s: no such action %s", line, req.Action)
			continue
		}
		if req.TargetType != "" && req.TargetType != spec.TargetType {
			t.Errorf("%s: target type %s, want %s", line, req.TargetType, spec.TargetType)
		}
		doc, err := rawjson.Parse(req.Payload)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if err := spec.Check(doc.Root()); err != nil {
			t.Errorf("%s: %v: %s", line, err, body)
		}
		doc.Release()
		seen[action] = true
	}
	for _, spec := range agent.Actions() {
		if !seen[spec.Name] {
			t.Errorf("no verb issues %s", spec.Name)
		}
	}
	used := map[string]bool{}
	for line := range lines {
		used[strings.Fields(line)[0]] = true
	}
	for _, verb := range issueVerbs() {
		if !used[verb.use] {
			t.Errorf("no line tries %s", verb.use)
		}
	}
}

// Numbers of a payload reach the server with the digits they were written in.
func TestPayloadTokensAreKept(t *testing.T) {
	t.Parallel()
	_, body := verbRequest(t, `submit-task --name app.add --args [1.0,9007199254740993,1e400]`)
	var got struct {
		Payload struct {
			Args json.RawMessage `json:"args"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if want := "[1.0,9007199254740993,1e400]"; string(got.Payload.Args) != want {
		t.Errorf("args are %s, want %s", got.Payload.Args, want)
	}
}
