package agent

import (
	"testing"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// FuzzIssueBodies reads strangers' bodies: they are refused with a named reason, or give a request whose stored and sent
// forms are JSON.
func FuzzIssueBodies(f *testing.F) {
	const id = `"agent_id":"7b0c5b7a-3c1f-4a52-9d6e-0d2f4b6a8c1e"`
	f.Add("retry-task", []byte(`{`+id+`,"engine":"celery","task_id":"t","override_args":[1],"override_kwargs":{"a":{"b":[2]}}}`))
	f.Add("pool-resize", []byte(`{`+id+`,"worker_name":"w","delta":-3}`))
	f.Add("bulk-retry", []byte(`{`+id+`,"filter":{"engine":"celery","task_ids":["a"],"x":1},"max":5}`))
	f.Add("purge-queue", []byte(`{`+id+`,"queue":"q","observed_depth":3}`))
	f.Add("", []byte(`{`+id+`,"action":"schedule.fire","target_id":"s","payload":{"schedule_id":"s","a":{"a":1,"a":2}}}`))
	f.Fuzz(func(t *testing.T, route string, body []byte) {
		parse := func() (IssueRequest, error) { return ParseRoute(route, body) }
		if route == "" {
			parse = func() (IssueRequest, error) { return ParseGeneric(body) }
		}
		r, err := parse()
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Invalid && c != fault.NotFound {
				t.Fatalf("refused with %s: %v", c, err)
			}
			return
		}
		d, err := newDraft(r)
		if err != nil {
			if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] == nil {
				t.Fatalf("refused without a field: %v", err)
			}
			return
		}
		defer d.doc.Release()
		payload, err := new(Commands).normalise(noTasks{}, d, &CommandAgent{})
		if err != nil {
			t.Fatal(err)
		}
		if same, err := d.matches(Command{Action: d.spec.Name, TargetType: d.targetType, TargetID: d.targetID, Payload: payload}, payload, CommandAgent{}); err != nil || !same {
			t.Fatalf("a request differs from itself: %v", err)
		}
		sent, err := WirePayload(Command{Action: r.Action, TargetType: d.targetType, TargetID: d.targetID, Payload: payload}, 60)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{payload, sent} {
			if c, err := rawjson.Canonical(b); err != nil || string(c) != string(b) {
				t.Fatalf("not canonical: %s, %v", b, err)
			}
		}
	})
}

// noTasks is a snapshot in which every task is unknown.
type noTasks struct{ CommandReadTx }

func (noTasks) Now() time.Time { return commandEpoch }

func (noTasks) CommandTask(int64, string, string) (CommandTask, error) {
	return CommandTask{}, fault.New(fault.NotFound, "no task")
}
