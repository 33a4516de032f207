package bulkretry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func (r *rig) refused(q bulkretry.Request, code fault.Code, say string) {
	r.t.Helper()
	_, err := r.service.Start(context.Background(), operator, q)
	if !fault.Is(err, code) || !strings.Contains(fault.Message(err), say) {
		r.t.Errorf("refused with %v, want %s", err, say)
	}
}

func (r *rig) plan(q bulkretry.Request) bulkretry.Plan {
	r.t.Helper()
	q.DryRun = true
	s, err := r.service.Start(context.Background(), operator, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Plan
}

// A filter that is started twice retries nothing twice: what is under way or has succeeded is left out, what failed or was
// given up is taken again, and so is a task that failed again after its retry.
func TestTheSameFilterTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.MaxInFlight = 3
	r.build()
	r.fail(taskIDs(5)...)
	r.refuse["t-2"] = true
	first := r.start(r.request(""))
	r.refused(r.request(""), fault.Invalid, "no task but 5 tasks whose retry is under way")
	if p := r.plan(r.request("")); p.Count != 0 || p.LeftOut != 5 {
		t.Errorf("while all wait: %+v", p)
	}
	r.turn()
	if _, err := r.claim(); err != nil { // of t-1, t-2 and t-3; their answers are owed
		t.Fatal(err)
	}
	if _, err := r.service.Cancel(context.Background(), operator, r.project.No, first.Parent.ID); err != nil {
		t.Fatal(err)
	}
	// t-4 and t-5 are given up, the others still under way.
	if p := r.plan(r.request("")); p.Count != 2 || p.LeftOut != 3 || p.Tasks[0].TaskID != "t-4" {
		t.Errorf("after the cancel: %+v", p)
	}
	for len(r.owed) > 0 {
		if err := r.pay(); err != nil {
			t.Fatal(err)
		}
	}
	second := r.start(r.request(""))
	if second.Total != 3 { // t-2 failed
		t.Errorf("the second takes %d tasks", second.Total)
	}
	r.refuse = map[string]bool{}
	r.work()
	if b := r.get(second); b.Completed != 3 {
		t.Errorf("the second: %+v", b)
	}
	r.refused(r.request(""), fault.Invalid, "no task but 5 tasks")
	r.clock.Advance(time.Second)
	r.fail("t-3") // again
	named := r.request("")
	named.Filter.TaskIDs = []string{"t-1", "t-3"}
	if p := r.plan(named); p.Count != 1 || p.LeftOut != 1 || p.Tasks[0].TaskID != "t-3" {
		t.Errorf("named tasks: %+v", p)
	}
	if third := r.start(r.request("")); third.Total != 1 {
		t.Errorf("the third takes %d tasks", third.Total)
	}
	r.work()
	for task, want := range map[string]int{"t-1": 1, "t-2": 2, "t-3": 2, "t-4": 1, "t-5": 1} {
		if r.retried[task] != want {
			t.Errorf("%s was retried %d times, want %d", task, r.retried[task], want)
		}
	}
}

// Of two starts at once that mean the same tasks, one starts: the other has counted what is not there any more.
func TestTwoStartsAtOnce(t *testing.T) {
	t.Parallel()
	var during func()
	r := newRig(t, func(o *store.Options) {
		o.Hooks.Queued = func(op string) {
			if then := during; op == "write bulk retry" && then != nil {
				during = nil
				then()
			}
		}
	})
	r.fail(taskIDs(5)...)
	during = func() { r.start(r.request("")) }
	r.refused(r.request(""), fault.Conflict, "took 5 tasks of these")
	if n := r.count(`SELECT count(*) FROM bulk_retries`); n != 1 {
		t.Errorf("%d bulk retries are stored", n)
	}
	r.work()
	for task, n := range r.retried {
		if n != 1 {
			t.Errorf("%s was retried %d times", task, n)
		}
	}
}

// Without until a filter ends at the moment of the count; a start that says so retries what was counted.
func TestUntilIsTheMomentOfTheCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fail("t-1", "t-2")
	p := r.plan(r.request(""))
	if p.Count != 2 || !p.Until.Equal(start.Add(time.Microsecond)) {
		t.Errorf("plan %+v", p)
	}
	r.clock.Advance(time.Second)
	r.fail("t-3")
	q := r.request("")
	q.Filter.Until = p.Until
	b := r.start(q)
	if b.Total != 2 || !strings.Contains(string(b.Filter), `"until":"2026-03-01T12:00:00.000001`) {
		t.Errorf("started %d tasks of %s", b.Total, b.Filter)
	}
	// A repeat under a key asks for the same, whenever it comes.
	one := r.start(r.request("k"))
	r.clock.Advance(time.Minute)
	if two := r.start(r.request("k")); two.Parent.ID != one.Parent.ID || one.Total != 1 {
		t.Errorf("the repeat of %s is %s", one.Parent.ID, two.Parent.ID)
	}
}

// The keys of children are kept for them. Commands from before the rule that have one stand in nobody's way, and their own
// repeats are answered as before.
func TestKeysOfChildrenAreReserved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fail("t-1", "t-2", "t-3")
	r.refused(r.request("bulk-retry:mine"), fault.Invalid, "must not begin with bulk-retry:")
	b := r.start(r.request(""))
	key := fmt.Sprintf("bulk-retry:%s:1", b.Parent.ID)
	issue := agent.IssueRequest{ProjectNo: r.project.No, AgentID: r.worker.ID, Action: "retry_task", IdempotencyKey: &key,
		Payload: []byte(`{"engine":"celery","task_id":"t-1"}`)}
	_, err := r.cmds.Issue(context.Background(), operator, issue)
	if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != "idempotency_key" {
		t.Errorf("issued: %v", err)
	}
	if n := r.count(`SELECT count(*) FROM commands WHERE parent_no IS NULL AND action = 'retry_task'`); n != 0 {
		t.Errorf("%d commands are stored", n)
	}
	// One that was stored before: the same command, so that a child would be taken for its repeat.
	plain := "plain"
	issue.IdempotencyKey = &plain
	old, err := r.cmds.Issue(context.Background(), operator, issue)
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE commands SET idempotency_key = ? WHERE command_no = ?`, key, old.Command.No)
	r.turn()
	issue.IdempotencyKey = &key
	again, err := r.cmds.Issue(context.Background(), operator, issue)
	if err != nil || !again.Replayed || again.Command.ID != old.Command.ID {
		t.Errorf("the repeat of the older command: %+v, %v", again, err)
	}
	childKey := fmt.Sprintf("bulk-retry:%s:2", b.Parent.ID)
	issue.IdempotencyKey, issue.Payload = &childKey, []byte(`{"engine":"celery","task_id":"t-2"}`)
	if _, err := r.cmds.Issue(context.Background(), operator, issue); !fault.Is(err, fault.Invalid) {
		t.Errorf("the key of a child: %v", err)
	}
	r.work()
	if b = r.get(b); b.Completed != 3 || b.Parent.Status != agent.Completed {
		t.Errorf("it ended as %+v", b)
	}
}

// Who cancels what has ended is told what it is and how it ended.
func TestCancelOfAnEndedBulkRetry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fail("t-1")
	b := r.start(r.request(""))
	r.work()
	_, err := r.service.Cancel(context.Background(), operator, r.project.No, b.Parent.ID)
	if want := fmt.Sprintf("bulk retry %s is completed: it cannot be cancelled", b.Parent.ID); !fault.Is(err, fault.Conflict) ||
		fault.Message(err) != want || fault.Details(err)["status"] != "completed" {
		t.Errorf("refused with %v", err)
	}
	e, err := r.cmds.Explain(context.Background(), r.project.No, b.Parent.ID)
	if err != nil || strings.Contains(strings.Join(e.Sentences, "\n"), "agent acked") { // no agent ever sees it
		t.Errorf("explained as %q, %v", e.Sentences, err)
	}
}

// A start that nobody can serve says why at once, and so does the count before it.
func TestAStartSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.disconnect(r.worker)
	r.fail("t-1", "t-2", "t-3")
	const reason = "no agent can retry tasks of celery now: agent a has no session"
	if p := r.plan(r.request("")); p.WaitReason != reason {
		t.Errorf("the plan waits for %q", p.WaitReason)
	}
	b := r.start(r.request(""))
	if b.WaitReason != reason || r.get(b).WaitReason != reason {
		t.Errorf("it waits for %q, stored %q", b.WaitReason, r.get(b).WaitReason)
	}
	e, err := r.cmds.Explain(context.Background(), r.project.No, b.Parent.ID)
	if err != nil || !strings.Contains(e.Summary, reason) {
		t.Errorf("explained as %q, %v", e.Summary, err)
	}
	r.connect(r.worker)
	r.turn()
	if b = r.get(b); b.WaitReason != "" || b.InFlight != 2 {
		t.Errorf("with its agent: %+v", b)
	}
}
