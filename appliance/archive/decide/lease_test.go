package decide

import (
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
)

func advanced(t *testing.T, j Job, e Event) (Job, []Action) {
	t.Helper()
	after, actions, err := Advance(j, e)
	if err != nil {
		t.Fatal(err)
	}
	return after, actions
}

func unackedStep(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Sent, leaseNone }

// TestManualWithdrawsSteps: nothing is commanded while a person is asked, not even what was on its way.
func TestManualWithdrawsSteps(t *testing.T) {
	t.Parallel()
	j, actions := advanced(t, jobIn(running).with(unackedStep), ConflictSeen{target, codeCommit})
	if got := show(actions); j.Command(stepID).Status != Withdrawn || got != "withdraw, hold source, hold target, alert commit_conflict" {
		t.Errorf("the step is %s: %s", j.Command(stepID).Status, got)
	}
}

// TestCancelClosesSteps: an accepted CancelJob closes the step lease at the daemon, and so does its end for a step whose
// acknowledgement never came.
func TestCancelClosesSteps(t *testing.T) {
	t.Parallel()
	j, _ := advanced(t, jobIn(cancelling), Acked{ID: cancelID, Status: accepted})
	if r := j.Command(stepID); r.Lease != leaseSettled || r.Status != Closed || !j.Command(cancelID).open() || !j.Undone {
		t.Errorf("after the acknowledgement: %+v", r)
	}
	j, _ = advanced(t, cancelAcked().with(func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Withdrawn, leaseNone }), happened(stepCancelled))
	if r := j.Command(stepID); r.Lease != leaseSettled || !j.Party(target).WoundDown {
		t.Errorf("after STEP_CANCELLED: %+v", r)
	}
}

// TestUnconfirmedStepIsRetiredFirst: a withdrawn ExecuteStep may have arrived; the next waits until its retirement is
// acknowledged (2.6).
func TestUnconfirmedStepIsRetiredFirst(t *testing.T) {
	t.Parallel()
	j, actions := advanced(t, jobIn(waiting).with(func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Withdrawn, leaseNone }), Cleared{})
	if got := show(actions); stateOf(j) != "WAITING(RECONCILING) of RUNNING" || got != "resume target" {
		t.Fatalf("%s: %s", stateOf(j), got)
	}
	if r := actions[0].(Reconcile); len(r.Retire) != 1 || r.Retire[0] != stepID {
		t.Errorf("it retires %v", r.Retire)
	}
	j.Commands[len(j.Commands)-1].ID = resumeID
	j, actions = advanced(t, j, Acked{ID: resumeID, Status: accepted, Cursor: &Cursor{Position: j.Position, Job: j.ID, State: assigned, Role: target, Definition: definitionA}})
	if got := show(actions); got != "retire, decide target" {
		t.Fatalf("after the acknowledgement: %s", got)
	}
	out := Decide(Input{Job: &j, Role: target, K: j.Party(target).Reported})
	if got := details(out); out.Row != Row14 || got != "go-ahead, execute MATERIALIZE 2" {
		t.Errorf("after the decision: %s %s", out.Row, got)
	}
}

// TestCommittedJobIsNeverWoundDown holds even for a job that should not exist.
func TestCommittedJobIsNeverWoundDown(t *testing.T) {
	t.Parallel()
	j, actions := advanced(t, jobIn(cancelling).with(func(j *Job) { j.Committed, j.Parties[1].Committed = true, true }), Offline{source})
	if got := show(actions); stateOf(j) != "RUNNING" || got != "supersede, audit job.cancel_withdrawn" {
		t.Errorf("%s: %s", stateOf(j), got)
	}
}

// TestOfflineForgetsTheDecision: what was decided belonged to the generation that is gone.
func TestOfflineForgetsTheDecision(t *testing.T) {
	t.Parallel()
	j, _ := advanced(t, jobIn(running).with(func(j *Job) { j.Parties[0].Expecting = true }), Offline{source})
	if p := j.Party(source); p.Online || p.Decided || p.Expecting {
		t.Errorf("%+v", p)
	}
}

// TestLateAnswers: what a daemon did counts, whatever became of the row.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	// A withdrawn step was accepted after all: its lease is open, its events count.
	j, _ := advanced(t, jobIn(cancelling).with(func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Withdrawn, leaseNone }), Acked{ID: stepID, Status: accepted})
	if !j.Command(stepID).open() {
		t.Errorf("a withdrawn step: %+v", j.Command(stepID))
	}
	// A retired lease stays retired.
	j, _ = advanced(t, jobIn(running).with(func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Superseded, leaseRetired }), Acked{ID: stepID, Status: accepted})
	if r := j.Command(stepID); r.Lease != leaseRetired || r.Status != Accepted {
		t.Errorf("a retired step: %+v", r)
	}
	// A superseded ReconcileJob was accepted: the daemon's leases are retired.
	late := retiring().with(func(j *Job) { j.Commands[3].Status = Superseded })
	j, actions := advanced(t, late, Acked{ID: resumeID, Status: accepted})
	if j.Command(stepID).Lease != leaseRetired || show(actions) != "retire, decide target" {
		t.Errorf("a superseded RESUME: %s", show(actions))
	}
	// The same answer twice changes nothing.
	again, actions := advanced(t, j, Acked{ID: resumeID, Status: accepted})
	if len(actions) != 0 || stateOf(again) != stateOf(j) {
		t.Errorf("an answer that was given before: %s", show(actions))
	}
	// A step that was accepted once and is in no list of the daemon's cursor is decided again (13a).
	k := &Cursor{Position: Position{5, 9}, Job: testID(1), State: assigned, Role: target, Definition: definitionA}
	j, actions = advanced(t, jobIn(running).with(unackedStep), Acked{ID: stepID, Status: accepted, Cursor: k})
	if show(actions) != "decide target" {
		t.Fatalf("a lease that is not there: %s", show(actions))
	}
	if out := Decide(Input{Job: &j, Role: target, K: j.Party(target).Reported}); out.Row != Row13a {
		t.Errorf("a lease that is not there: row %s", out.Row)
	}
}

// TestEndedByPerson: the reservation is kept until every daemon has acknowledged, and only a commit that nobody knew of
// opens the job again.
func TestEndedByPerson(t *testing.T) {
	t.Parallel()
	j, actions := advanced(t, jobIn(manual), OperatorAbandon{})
	if got := show(actions); got != "audit job.abandon, abandon source, abandon target" {
		t.Fatal(got)
	}
	ids := []uuid.UUID{testID(201), testID(202)}
	n := len(j.Commands)
	j.Commands[n-2].ID, j.Commands[n-1].ID = ids[0], ids[1]
	j, actions = advanced(t, j, Acked{ID: ids[0], Status: accepted})
	if got := show(actions); got != "" {
		t.Errorf("one is missing: %s", got)
	}
	k := Cursor{Position: Position{6, 10}, Job: j.ID, State: failed, Role: target, Definition: definitionA}
	done, actions := advanced(t, j, Acked{ID: ids[1], Status: accepted, Cursor: &k})
	if got := show(actions); got != "retire, release" || done.State != failed {
		t.Errorf("all have acknowledged: %s", got)
	}
	k.Committed = true
	again, actions := advanced(t, j, Acked{ID: ids[1], Status: accepted, Cursor: &k})
	if got := show(actions); got != "retire, release, decide target" {
		t.Fatalf("a commit that nobody knew of: %s", got)
	}
	out := Decide(Input{Job: &again, Role: target, K: again.Party(target).Reported})
	if out.Row != Row4 || out.Job.State != manual {
		t.Errorf("a commit that nobody knew of: row %s, %s", out.Row, stateOf(out.Job))
	}
	final, actions := advanced(t, out.Job, OperatorAccept{})
	if got := show(actions); final.State != completed || got != "audit job.complete, release" {
		t.Errorf("decided again: %s, %s", stateOf(final), got)
	}
	if out := Decide(Input{Job: &final, Role: target, K: &k, Registration: true}); out.Job.State != completed {
		t.Errorf("the same claim once more: row %s, %s", out.Row, stateOf(out.Job))
	}
}

// TestVerifyAgain: EVICT verifies again when the evidence is too old before RELEASE starts (3.2).
func TestVerifyAgain(t *testing.T) {
	t.Parallel()
	j := evicting(true).with(func(j *Job) {
		j.Completed, j.VerifyFresh = 0, false
		j.Commands[2].Role, j.Commands[2].Step = target, verifyStep
	})
	done := happened(stepCompleted, func(h *Happened) { h.Step = verifyStep })
	after, actions := advanced(t, j, done)
	if got := show(actions); got != "evidence, execute VERIFY 2" || after.Completed != 0 {
		t.Errorf("old evidence: %s", got)
	}
	after, actions = advanced(t, j.with(func(j *Job) { j.VerifyFresh = true }), done)
	if got := show(actions); got != "evidence, execute RELEASE 1" || after.Completed != 1 {
		t.Errorf("fresh evidence: %s", got)
	}
	if after.Commands[len(after.Commands)-1].Role != source || after.Commands[len(after.Commands)-1].Kind != archive.ExecuteStep {
		t.Error("RELEASE goes to the source")
	}
}

// TestLateAnswerToASnapshotRequest: the snapshot came before the answer to its request and was applied, or a newer decision
// took the request's place. The job waits for no snapshot then.
func TestLateAnswerToASnapshotRequest(t *testing.T) {
	t.Parallel()
	for _, was := range []Status{Superseded, Withdrawn} {
		j := jobIn(running).with(func(j *Job) {
			j.Commands = append(j.Commands, Command{ID: snapshotID, Role: target, Kind: archive.RequestJobSnapshot, Status: was, EverSent: true})
		})
		j, _ = advanced(t, j, Acked{ID: snapshotID, Status: accepted})
		if r := j.Command(snapshotID); j.State != running || r.Status != Closed || j.reconciling(target) {
			t.Errorf("%s: %v, the request is %s", was, j.State, r.Status)
		}
	}
}
