package bulkretry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
)

func (r *rig) tasks(b bulkretry.BulkRetry) []bulkretry.TaskRow {
	r.t.Helper()
	rows, err := r.service.Tasks(context.Background(), r.project.No, b.Parent.ID, "", 0, 100)
	if err != nil {
		r.t.Fatal(err)
	}
	return rows
}

// An answer after the time of its command changes no count: the task says what came later. One that comes after a cancel,
// in time, still counts, and the result of the parent follows.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fail(taskIDs(4)...)
	r.refuse["t-2"] = true
	b := r.start(r.request(""))
	r.turn()
	if n, err := r.claim(); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if err := r.sweep(commandTimeout + time.Second); err != nil {
		t.Fatal(err)
	}
	late := r.owed
	r.owed = nil
	r.turn()
	if n, err := r.claim(); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := r.service.Cancel(context.Background(), operator, r.project.No, b.Parent.ID); err != nil {
		t.Fatal(err)
	}
	r.owed = append(late, r.owed...)
	for len(r.owed) > 0 {
		before := r.get(b)
		if err := r.pay(); err != nil {
			t.Fatal(err)
		}
		if now := r.get(b); len(r.owed) >= 2 && (now.TimedOut != 2 || now.Completed != before.Completed) {
			t.Errorf("a late answer moved the counts: %+v", now)
		}
	}
	r.turn()
	b = r.get(b)
	if b.Parent.Status != agent.Cancelled || b.TimedOut != 2 || b.Completed != 2 || b.InFlight != 0 {
		t.Errorf("it ended as %+v", b)
	}
	want := []struct {
		status bulkretry.TaskStatus
		say    string
	}{{bulkretry.TimedOut, "later it said that it had retried the task"},
		{bulkretry.TimedOut, "later it said that it could not retry the task: no such task"}, {bulkretry.Completed, ""}, {bulkretry.Completed, ""}}
	for i, row := range r.tasks(b) {
		text := ""
		if row.Error != nil {
			text = *row.Error
		}
		if row.Status != want[i].status || !strings.Contains(text, want[i].say) {
			t.Errorf("task %d is %s: %q", i+1, row.Status, text)
		}
	}
	for task, n := range r.retried {
		if n != 1 {
			t.Errorf("%s was retried %d times", task, n)
		}
	}
	// The next bulk retry knows what the agent said late: only t-2 is left.
	if p := r.plan(r.request("")); p.Count != 1 || p.LeftOut != 3 || p.Tasks[0].TaskID != "t-2" {
		t.Errorf("the next plan: %+v", p)
	}
}

// An answer after the parent timed out counts as well, and reaches its result.
func TestAnAnswerAfterTheParentTimedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.ParentTimeout = 30 * time.Second // shorter than a command may take
	r.build()
	r.fail("t-1", "t-2", "t-3")
	b := r.start(r.request(""))
	r.turn()
	if n, err := r.claim(); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	r.clock.Advance(31 * time.Second)
	r.turn()
	if b = r.get(b); b.Parent.Status != agent.TimedOut || b.InFlight != 2 || b.Cancelled != 1 {
		t.Fatalf("it ended as %+v", b)
	}
	for len(r.owed) > 0 {
		if err := r.pay(); err != nil {
			t.Fatal(err)
		}
	}
	if b = r.get(b); b.Completed != 2 || b.InFlight != 0 || b.Parent.Status != agent.TimedOut {
		t.Errorf("after the answers %+v", b)
	}
}

// Retention removes a bulk retry with its parent, and children on their own: neither trips over the other.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fail("t-1", "t-2", "t-3")
	r.disconnect(r.worker)
	b := r.start(r.request(""))
	r.connect(r.worker)
	r.turn()
	if _, err := r.claim(); err != nil {
		t.Fatal(err)
	}
	if err := r.pay(); err != nil { // t-1; t-2 stays with the agent
		t.Fatal(err)
	}
	if err := r.sweep(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	prune := func() int {
		t.Helper()
		n, err := r.cmds.PruneCommands(context.Background(), r.clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := prune(); n != 1 { // the child that ended
		t.Errorf("%d commands removed while it is open", n)
	}
	if rows := r.tasks(b); rows[0].Status != bulkretry.Completed || rows[0].CommandNo == 0 || rows[0].IssuedAt != nil {
		t.Errorf("a task without its child: %+v", rows[0])
	}
	// It goes on without the child that is gone, and that one is not issued again.
	r.work()
	if b = r.get(b); b.Completed != 3 || b.Parent.Status != agent.Completed {
		t.Fatalf("it ended as %+v", b)
	}
	if r.retried["t-1"] != 1 {
		t.Errorf("t-1 was retried %d times", r.retried["t-1"])
	}
	r.clock.Advance(time.Hour)
	prune()
	for _, table := range []string{"commands", "bulk_retries", "bulk_retry_tasks"} {
		if n := r.count(`SELECT count(*) FROM ` + table); n != 0 {
			t.Errorf("%d rows of %s are left", n, table)
		}
	}
	r.turn()
	if _, err := r.service.Get(context.Background(), r.project.No, b.Parent.ID); err == nil {
		t.Error("the bulk retry is still found")
	}
}
