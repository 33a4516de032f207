package decide

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// Ids of the commands in the test jobs.
var (
	assignSource = testID(101)
	assignTarget = testID(102)
	stepID       = testID(103)
	cancelID     = testID(104)
	closeID      = testID(105)
	resumeID     = testID(106)
	snapshotID   = testID(107)
)

const (
	stageStep       = pb.JobStep_JOB_STEP_STAGE
	materializeStep = pb.JobStep_JOB_STEP_MATERIALIZE
	commitStep      = pb.JobStep_JOB_STEP_COMMIT
	verifyStep      = pb.JobStep_JOB_STEP_VERIFY
	accepted        = pb.AckStatus_ACK_STATUS_ACCEPTED
	rejected        = pb.AckStatus_ACK_STATUS_REJECTED
	conflicted      = pb.AckStatus_ACK_STATUS_CONFLICT
	codeTimeout     = pb.ErrorCode_ERROR_CODE_TIMEOUT
	codeRead        = pb.ErrorCode_ERROR_CODE_READ_ERROR
	codeUnsupported = pb.ErrorCode_ERROR_CODE_UNSUPPORTED
)

// TestEveryRowOfTheMachine walks the table of 3.4 from the top.
func TestEveryRowOfTheMachine(t *testing.T) {
	t.Parallel()
	lastStep := func(j *Job) { // COMMIT is active
		j.Completed = 4
		j.Commands[2].Step = commitStep
	}
	commits := func(h *Happened) { h.Step, h.Committed, h.CommitEvidence = commitStep, true, definitionB }
	unacked := func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Sent, leaseNone }
	pendingStep := func(j *Job) {
		j.Commands[2].Status, j.Commands[2].EverSent, j.Commands[2].Lease = Pending, false, leaseNone
	}
	for _, row := range []struct {
		name    string
		job     Job
		event   Event
		want    string
		actions string
	}{
		{"PENDING | operator starts", jobIn(pending), OperatorStart{}, "PREFLIGHT", "reserve, audit job.start, check"},
		{"PENDING | operator cancels", jobIn(pending), OperatorCancel{}, "CANCELLED", "audit job.cancel, release"},
		{"PREFLIGHT | operator cancels", jobIn(preflight), OperatorCancel{}, "CANCELLED", "audit job.cancel, release"},
		{"PREFLIGHT | all checks pass", jobIn(preflight), ChecksPassed{definitionA}, "ASSIGNING", "define, assign source, assign target"},
		{"PREFLIGHT | all checks pass, one went offline", jobIn(preflight).with(func(j *Job) { j.Parties[0].Online = false }), ChecksPassed{definitionA},
			"WAITING(CLIENT_OFFLINE) of ASSIGNING", "define, assign source, assign target"},
		{"PREFLIGHT | permanent failure", jobIn(preflight), ChecksFailed{Code: codeUnsafe}, "FAILED", "release"},
		{"PREFLIGHT | transient failure", jobIn(preflight), ChecksFailed{codeSpace, waitSpace}, "WAITING(NO_SPACE) of PREFLIGHT", ""},
		{"ASSIGNING | one AssignJob acknowledged", jobIn(assigning), Acked{ID: assignSource, Status: accepted}, "ASSIGNING", ""},
		{"ASSIGNING | all AssignJob acknowledged", jobIn(assigning).with(func(j *Job) { j.Parties[0].Assigned, j.Commands[0].Status = true, Accepted }),
			Acked{ID: assignTarget, Status: accepted}, "RUNNING", "execute STAGE 1"},
		{"ASSIGNING | REJECTED other than STALE_*", jobIn(assigning), Acked{ID: assignTarget, Status: rejected, Code: codeBusy}, "CANCELLING(FAILED)",
			"supersede, cancel source"},
		{"ASSIGNING | REJECTED with STALE_*", jobIn(assigning), Acked{ID: assignTarget, Status: rejected, Code: codeRevision},
			"WAITING(RECONCILING) of ASSIGNING", "decide target"},
		{"RUNNING | STEP_STARTED", jobIn(running), happened(stepStarted), "RUNNING", ""},
		{"RUNNING | PROGRESS", jobIn(running), happened(progressed), "RUNNING", ""},
		{"RUNNING | STALLED", jobIn(running), happened(stalledEvent), "STALLED", ""},
		{"STALLED | RESUMED", jobIn(stalled), happened(resumedEvent), "RUNNING", ""},
		{"STALLED | PROGRESS with moved counters", jobIn(stalled), happened(progressed, moved), "RUNNING", ""},
		{"STALLED | PROGRESS without", jobIn(stalled), happened(progressed), "STALLED", ""},
		{"RUNNING | STEP_COMPLETED, more steps", jobIn(running), happened(stepCompleted), "RUNNING", "evidence, execute VERIFY 1"},
		{"STALLED | STEP_COMPLETED, more steps", jobIn(stalled), happened(stepCompleted), "RUNNING", "evidence, execute VERIFY 1"},
		{"RUNNING | STEP_COMPLETED, last step", jobIn(running).with(lastStep), happened(stepCompleted, commits), "COMPLETED",
			"evidence, release, close source, close target, follow up"},
		{"RUNNING | STEP_COMPLETED, PURGE next", evicting(false), happenedAt(source, release), "WAITING(RETENTION) of RUNNING", "evidence"},
		{"RUNNING | STEP_COMPLETED, PURGE next, retention over", evicting(true), happenedAt(source, release), "RUNNING", "evidence, execute PURGE 1"},
		{"RUNNING | STEP_FAILED retryable, attempts left", jobIn(running), happened(stepFailed, withCode(codeTimeout)), "WAITING(RETRY_BACKOFF) of RUNNING", ""},
		{"RUNNING | STEP_FAILED retryable, its own reason", jobIn(running), happened(stepFailed, withCode(pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY)),
			"WAITING(ROUTE_NOT_READY) of RUNNING", ""},
		{"RUNNING | STEP_COMPLETED, TRANSFER next, its route not ready", transferNext(Accepted), happened(stepCompleted, func(h *Happened) {
			h.Role, h.Step = source, stageStep
		}), "WAITING(ROUTE_NOT_READY) of RUNNING", "evidence"},
		{"RUNNING | the route stops being ready before TRANSFER was sent", transferring(Pending), RouteLost{}, "WAITING(ROUTE_NOT_READY) of RUNNING", ""},
		{"RUNNING | the route stops being ready after TRANSFER was sent", transferring(Sent), RouteLost{}, "RUNNING", ""},
		{"WAITING(ROUTE_NOT_READY) | the route is ready", transferring(Pending).with(routeWait), Cleared{}, "RUNNING", ""},
		{"WAITING(ROUTE_NOT_READY) | the route is ready, TRANSFER not commanded yet", transferNext(Closed).with(routeWait), Cleared{}, "RUNNING",
			"execute TRANSFER 1"},
		{"RUNNING | STEP_FAILED NO_SPACE, none left", jobIn(running).with(func(j *Job) { j.Failures = 4 }), happened(stepFailed, withCode(codeSpace)),
			"WAITING(NO_SPACE) of RUNNING", ""},
		{"RUNNING | STEP_FAILED retryable, none left", jobIn(running).with(func(j *Job) { j.Failures = 4 }), happened(stepFailed, withCode(codeTimeout)),
			"WAITING(OPERATOR_HOLD) of RUNNING", ""},
		{"STALLED | STEP_FAILED permanent, not committed", jobIn(stalled), happened(stepFailed, withCode(codeRead)), "CANCELLING(FAILED)", "cancel target"},
		{"RUNNING | STEP_FAILED permanent, committed", jobIn(running).with(func(j *Job) { j.Committed, j.Parties[1].Committed = true, true }),
			happened(stepFailed, withCode(codeRead), committing), "MANUAL", "hold source, hold target, alert manual"},
		{"RUNNING | HELD", jobIn(running), happened(held, withCode(codeLost)), "MANUAL", "hold source, alert state_lost"},
		{"CANCELLING | HELD", jobIn(cancelling), happened(held, withCode(codeLost)), "MANUAL", "supersede, hold source, alert state_lost"},
		{"RUNNING | the acting client is offline", jobIn(running), Offline{target}, "WAITING(CLIENT_OFFLINE) of RUNNING", ""},
		{"RUNNING | the other client is offline", jobIn(running), Offline{source}, "RUNNING", ""},
		{"CANCELLING | the acting client is offline", jobIn(cancelling), Offline{target}, "WAITING(CLIENT_OFFLINE) of CANCELLING", ""},
		{"ASSIGNING | a client is offline", jobIn(assigning), Offline{source}, "WAITING(CLIENT_OFFLINE) of ASSIGNING", ""},
		{"RUNNING | command attempts exhausted", jobIn(running).with(unacked), Exhausted{stepID}, "WAITING(COMMAND_UNACKED) of RUNNING", ""},
		{"RUNNING | refused event", jobIn(running), EventRefused{target, stepID, codeSequence}, "WAITING(RECONCILING) of RUNNING", "resume target"},
		{"WAITING(COMMAND_UNACKED) | late acknowledgement", parkedStep(), Acked{ID: stepID, Status: accepted}, "RUNNING", ""},
		{"WAITING(COMMAND_UNACKED) | new allowance", parkedStep(), OperatorGrant{3}, "RUNNING", "grant, audit job.grant"},
		{"WAITING(RETRY_BACKOFF) | condition cleared", jobIn(waiting), Cleared{}, "RUNNING", "execute MATERIALIZE 2"},
		{"WAITING(NO_SPACE) | a person has it tried now", jobIn(waiting).with(func(j *Job) { j.Wait, j.Failures = waitSpace, 1 }), OperatorGrant{2}, "RUNNING",
			"audit job.grant, execute MATERIALIZE 2"},
		{"WAITING(OPERATOR_HOLD) | a person grants attempts", jobIn(waiting).with(func(j *Job) { j.Wait, j.Failures = waitOperator, 5 }), OperatorGrant{2}, "RUNNING",
			"audit job.grant, execute MATERIALIZE 2"},
		{"WAITING(OPERATOR_HOLD) | a person cancels", jobIn(waiting).with(func(j *Job) { j.Wait = waitOperator }), OperatorCancel{}, "CANCELLING(CANCELLED)",
			"audit job.cancel, cancel target"},
		{"RUNNING | retirement of the active lease acknowledged", retiring(), Acked{ID: resumeID, Status: accepted}, "WAITING(RECONCILING) of RUNNING",
			"retire, decide target"},
		{"RUNNING | REJECTED BUSY", jobIn(running).with(unacked), Acked{ID: stepID, Status: rejected, Code: codeBusy}, "WAITING(RECONCILING) of RUNNING", "decide target"},
		{"RUNNING | REJECTED COMMIT_CONFLICT", retiring(), Acked{ID: resumeID, Status: rejected, Code: codeCommit}, "WAITING(RECONCILING) of RUNNING", "decide target"},
		{"RUNNING | REJECTED with another code", jobIn(running).with(unacked), Acked{ID: stepID, Status: rejected, Code: codeUnsupported}, "CANCELLING(FAILED)",
			"cancel target"},
		{"RUNNING, committed | REJECTED with another code", jobIn(running).with(unacked).with(func(j *Job) { j.Committed = true }),
			Acked{ID: stepID, Status: rejected, Code: codeUnsupported}, "MANUAL", "hold source, hold target, alert manual"},
		{"ASSIGNING, committed before it was resumed | REJECTED", jobIn(assigning).with(func(j *Job) { j.Committed, j.Parties[0].Committed = true, true }),
			Acked{ID: assignTarget, Status: rejected, Code: codeUnsafe}, "MANUAL", "supersede, hold source, alert manual"},
		{"CANCELLING | late rejection of a withdrawn step", jobIn(cancelling).with(func(j *Job) { j.Commands[2].Status = Withdrawn }),
			Acked{ID: stepID, Status: rejected, Code: codeUnsupported}, "CANCELLING(CANCELLED)", ""},
		{"CANCELLING | the CancelJob is rejected with another code", jobIn(cancelling), Acked{ID: cancelID, Status: rejected, Code: codeUnsupported}, "MANUAL",
			"hold source, hold target, alert manual"},
		{"RUNNING | CONFLICT", jobIn(running).with(unacked), Acked{ID: stepID, Status: conflicted}, "MANUAL", "hold source, hold target, alert command_conflict"},
		{"COMPLETED | CONFLICT", jobIn(completed), Acked{ID: closeID, Status: conflicted}, "MANUAL", "reserve again, hold source, hold target, alert command_conflict"},
		{"RUNNING | operator cancels, step unacknowledged", jobIn(running).with(unacked), OperatorCancel{}, "CANCELLING(CANCELLED)",
			"audit job.cancel, withdraw, cancel target"},
		{"RUNNING | operator cancels, step never sent", jobIn(running).with(pendingStep), OperatorCancel{}, "CANCELLING(CANCELLED)",
			"audit job.cancel, withdraw, cancel target"},
		{"ASSIGNING | operator cancels", jobIn(assigning), OperatorCancel{}, "CANCELLING(CANCELLED)", "audit job.cancel, supersede, supersede, cancel source"},
		{"STALLED | operator cancels", jobIn(stalled), OperatorCancel{}, "CANCELLING(CANCELLED)", "audit job.cancel, cancel target"},
		{"CANCELLING | events of a step lease", jobIn(cancelling), happened(progressed), "CANCELLING(CANCELLED)", ""},
		{"CANCELLING | STEP_COMPLETED", jobIn(cancelling), happened(stepCompleted), "CANCELLING(CANCELLED)", "evidence"},
		{"CANCELLING | STEP_FAILED", jobIn(cancelling), happened(stepFailed, withCode(codeRead)), "CANCELLING(CANCELLED)", ""},
		{"CANCELLING | commit evidence arrives", jobIn(cancelling).with(lastStep), happened(stepCompleted, commits), "COMPLETED",
			"evidence, supersede, audit job.cancel_withdrawn, release, close source, close target, follow up"},
		{"CANCELLING | commit flag arrives", jobIn(cancelling).with(lastStep), CommitSeen{Role: target}, "RUNNING", "supersede, audit job.cancel_withdrawn"},
		{"CANCELLING | commit flag arrives, another has undone", jobIn(cancelling).with(lastStep).with(func(j *Job) { j.Undone = true }), CommitSeen{Role: target},
			"MANUAL", "supersede, hold source, hold target, alert commit_conflict"},
		{"CANCELLING | the first participant wound down", cancelAcked(), happened(stepCancelled), "CANCELLING(CANCELLED)", "cancel source"},
		{"CANCELLING | every participant wound down", cancelAcked().with(func(j *Job) { j.Parties[0].WoundDown = true }), happened(stepCancelled), "CANCELLED",
			"release, close source, close target"},
		{"CANCELLING (FAILED) | every participant wound down", cancelAcked().with(func(j *Job) { j.Parties[0].WoundDown, j.Outcome = true, failed }),
			happened(stepCancelled), "FAILED", "release, close source, close target"},
		{"MANUAL | events of an open lease", jobIn(manual), happened(progressed), "MANUAL", ""},
		{"MANUAL | STEP_COMPLETED", jobIn(manual), happened(stepCompleted), "MANUAL", "evidence"},
		{"MANUAL | operator resumes", jobIn(manual), OperatorResume{}, "WAITING(RECONCILING) of RUNNING", "audit job.resume, decide source, decide target"},
		{"MANUAL | operator resumes, one has lost the job", jobIn(manual).with(func(j *Job) { j.Parties[0].Absent, j.Parties[0].Reported = true, nil }), OperatorResume{},
			"WAITING(RECONCILING) of ASSIGNING", "audit job.resume, decide target"},
		{"MANUAL | operator resumes, cursors are old", jobIn(manual).with(func(j *Job) { j.Parties[1].Position = Position{5, 12} }), OperatorResume{},
			"WAITING(RECONCILING) of RUNNING", "audit job.resume, decide source, resume target"},
		{"MANUAL | operator accepts", jobIn(manual), OperatorAccept{}, "COMPLETED", "audit job.complete, abandon source, abandon target"},
		{"MANUAL | operator abandons", jobIn(manual), OperatorAbandon{}, "FAILED", "audit job.abandon, abandon source, abandon target"},
		{"FAILED | conflict by rows 4-7", jobIn(failed), ConflictSeen{target, codeCommit}, "MANUAL",
			"reserve again, supersede, hold source, hold target, alert commit_conflict"},
		{"RUNNING | displaced", jobIn(running), Displaced{}, "WAITING(OPERATOR_HOLD) of RUNNING", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			j, actions, err := Advance(row.job, row.event)
			if err != nil {
				t.Fatal(err)
			}
			if got := stateOf(j); got != row.want {
				t.Errorf("the job is %s, want %s", got, row.want)
			}
			if got := show(actions); got != row.actions {
				t.Errorf("actions are\n  %s\nwant\n  %s", got, row.actions)
			}
			if n := executing(&j); n > 1 {
				t.Errorf("%d ExecuteSteps are unretired", n)
			}
		})
	}
}

// events is one of every kind, in the variants that the states treat apart.
func events() map[string]Event {
	return map[string]Event{
		"start": OperatorStart{}, "cancel": OperatorCancel{}, "grant": OperatorGrant{2}, "resume": OperatorResume{}, "accept": OperatorAccept{},
		"abandon": OperatorAbandon{}, "checks passed": ChecksPassed{definitionA}, "checks failed": ChecksFailed{Code: codeUnsafe},
		"checks wait": ChecksFailed{codeSpace, waitSpace}, "cleared": Cleared{}, "displaced": Displaced{},
		"offline target": Offline{target}, "offline source": Offline{source},
		"conflict": ConflictSeen{target, codeCommit}, "refused event": EventRefused{target, stepID, codeSequence}, "commit seen": CommitSeen{Role: target},
		"started": happened(stepStarted), "progress": happened(progressed, moved), "stalled": happened(stalledEvent), "resumed": happened(resumedEvent),
		"completed": happened(stepCompleted), "failed retryable": happened(stepFailed, withCode(codeTimeout)), "failed": happened(stepFailed, withCode(codeRead)),
		"held": happened(held, withCode(codeLost)), "cancelled": happened(stepCancelled),
		"assign accepted": Acked{ID: assignTarget, Status: accepted}, "assign rejected": Acked{ID: assignTarget, Status: rejected, Code: codeBusy},
		"step accepted": Acked{ID: stepID, Status: accepted}, "step rejected": Acked{ID: stepID, Status: rejected, Code: codeUnsupported},
		"step stale": Acked{ID: stepID, Status: rejected, Code: codeSequence}, "step conflict": Acked{ID: stepID, Status: conflicted},
		"cancel accepted": Acked{ID: cancelID, Status: accepted}, "cancel unsafe": Acked{ID: cancelID, Status: rejected, Code: codeUnsafe},
		"cancel unsupported": Acked{ID: cancelID, Status: rejected, Code: codeUnsupported}, "cancel unknown": Acked{ID: cancelID, Status: rejected, Code: codeNotFound},
		"close accepted": Acked{ID: closeID, Status: accepted}, "close busy": Acked{ID: closeID, Status: rejected, Code: codeBusy},
		"close unknown":   Acked{ID: closeID, Status: rejected, Code: codeNotFound},
		"resume accepted": Acked{ID: resumeID, Status: accepted}, "resume refused": Acked{ID: resumeID, Status: rejected, Code: codeCommit},
		"snapshot refused": Acked{ID: snapshotID, Status: rejected, Code: codeUnsafe},
		"step exhausted":   Exhausted{stepID}, "cancel exhausted": Exhausted{cancelID},
	}
}

var allStates = []pb.JobState{pending, preflight, assigning, running, stalled, waiting, cancelling, manual, completed, failed, cancelled}

// TestEveryEventInEveryState: a pair is defined or refused with a fault that says why; a refusal changes nothing; what is
// defined keeps the invariants. The exceptions to "defined" are the pairs below, no others.
func TestEveryEventInEveryState(t *testing.T) {
	t.Parallel()
	refusedIn := map[string][]pb.JobState{
		"start":         {preflight, assigning, running, stalled, waiting, cancelling, manual, completed, failed, cancelled},
		"cancel":        {cancelling, manual, completed, failed, cancelled},
		"grant":         {pending, preflight, assigning, running, stalled, cancelling, manual, completed, failed, cancelled},
		"resume":        {pending, preflight, assigning, running, stalled, waiting, cancelling, completed, failed, cancelled},
		"checks passed": {pending, assigning, running, stalled, waiting, cancelling, manual, completed, failed, cancelled},
		"cleared":       {pending, preflight, assigning, running, stalled, cancelling, manual, completed, failed, cancelled},
		"displaced":     {pending, cancelling, manual, completed, failed, cancelled},
		"conflict":      {pending, preflight},
		"refused event": {pending, preflight, manual, completed, failed, cancelled},
		"commit seen":   {pending, preflight, completed, failed, cancelled},
	}
	refusedIn["accept"], refusedIn["abandon"] = refusedIn["resume"], refusedIn["resume"]
	refusedIn["checks failed"], refusedIn["checks wait"] = refusedIn["checks passed"], refusedIn["checks passed"]
	over := []pb.JobState{pending, preflight, completed, failed, cancelled}
	for _, name := range []string{"started", "progress", "stalled", "resumed", "completed", "failed retryable", "failed", "held"} {
		refusedIn[name] = append([]pb.JobState{assigning}, over...) // without a lease there is no event
	}
	for name, e := range events() {
		for _, state := range allStates {
			before := jobIn(state)
			j, actions, err := Advance(before, e)
			id := ""
			switch e := e.(type) {
			case Acked:
				id = e.ID.String()
			case Exhausted:
				id = e.ID.String()
			case Happened:
				id = e.Command.String()
			}
			unknown := id != "" && before.Command(uuid.MustParse(id)) == nil
			switch want := slices.Contains(refusedIn[name], state) || unknown; {
			case want && err == nil:
				t.Errorf("%s in %s: not refused", name, stateText(state))
			case !want && err != nil:
				t.Errorf("%s in %s: %v", name, stateText(state), err)
			case err != nil:
				if code := fault.CodeOf(err); code != fault.Conflict && code != fault.Invalid {
					t.Errorf("%s in %s: refused with %s", name, stateText(state), code)
				}
				if stateOf(j) != stateOf(before) || len(actions) > 0 {
					t.Errorf("%s in %s: a refusal changed the job", name, stateText(state))
				}
				continue
			}
			if p := invariants(&before, nil, 0, Outcome{Job: j, Actions: actions}); p != "" && !slices.ContainsFunc(actions, isDecideAgain) {
				t.Errorf("%s in %s: %s (%s)", name, stateText(state), p, show(actions))
			}
		}
	}
}

func isDecideAgain(a Action) bool { _, ok := a.(DecideAgain); return ok }

// TestEveryStateHasAWayOut: from every state that is not terminal a terminal one is reached by events and decisions.
func TestEveryStateHasAWayOut(t *testing.T) {
	t.Parallel()
	next := map[pb.JobState]map[pb.JobState]bool{}
	for _, state := range allStates {
		next[state] = map[pb.JobState]bool{}
		variants := []Job{jobIn(state)}
		for _, kept := range []pb.JobState{preflight, assigning, running, cancelling} {
			if state == waiting {
				variants = append(variants, jobIn(kept).with(func(j *Job) { j.State, j.Kept, j.Wait = waiting, kept, waitBackoff }))
			}
		}
		variants = append(variants, jobIn(state).with(func(j *Job) { j.Committed, j.Parties[1].Committed = true, true }),
			jobIn(state).with(func(j *Job) { j.Parties[0].WoundDown = true }))
		for _, j := range variants {
			for _, e := range events() {
				if after, _, err := Advance(j, e); err == nil {
					next[state][after.State] = true
				}
			}
		}
	}
	out := map[pb.JobState]bool{completed: true, failed: true, cancelled: true}
	for range allStates {
		for state, to := range next {
			for s := range to {
				out[state] = out[state] || out[s]
			}
		}
	}
	for _, state := range allStates {
		if !out[state] {
			t.Errorf("no way out of %s", stateText(state))
		}
	}
}
