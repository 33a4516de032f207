package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/archive"

	pb "signalbox/appliance/archive/archivepb"
)

// jobIn is a TRANSFER with both daemons online and decided, in a state, as it usually is there. MATERIALIZE is active at the
// target under an open lease.
func jobIn(state pb.JobState) Job {
	j := Job{ID: testID(1), Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, Carrier: target, Definition: definitionA, Cleanup: discardFiles,
		State: state, Position: Position{5, 9}, Completed: 2, StepAttempt: 1, Allowance: archive.StepAttempts, RetentionOver: true, VerifyFresh: true}
	party := func(role pb.ParticipantRole, at Position) Participant {
		return Participant{Role: role, Online: true, Decided: true, Assigned: true, State: assigned, Position: at, Registered: true}
	}
	j.Parties = [2]Participant{party(source, Position{3, 5}), party(target, Position{5, 9})}
	j.Commands = []Command{
		{ID: assignSource, Role: source, Kind: archive.AssignJob, Status: Accepted, EverSent: true},
		{ID: assignTarget, Role: target, Kind: archive.AssignJob, Status: Accepted, EverSent: true},
	}
	step := Command{ID: stepID, Role: target, Kind: archive.ExecuteStep, Step: materializeStep, Attempt: 1, Status: Accepted, EverSent: true,
		Lease: leaseOpen, Expected: Position{5, 9}}
	switch state {
	case pending, preflight:
		j.Definition, j.Position, j.Completed, j.Commands = "", Position{}, 0, nil
		for i := range j.Parties {
			j.Parties[i] = Participant{Role: j.Parties[i].Role, Online: true, Decided: true}
		}
	case assigning:
		j.Position, j.Completed = Position{Revision: 1}, 0
		for i := range j.Parties {
			j.Parties[i].Assigned, j.Parties[i].Position, j.Parties[i].State = false, Position{}, noState
			j.Commands[i].Status = Sent
		}
	case waiting:
		j.Kept, j.Wait = running, waitBackoff
		step.Status, step.Lease = Closed, leaseSettled
		j.Commands = append(j.Commands, step)
	case cancelling:
		j.Outcome, j.Code = cancelled, codeCancelled
		j.Commands = append(j.Commands, step, Command{ID: cancelID, Role: target, Kind: archive.CancelJob, Status: Sent, EverSent: true,
			Expected: Position{5, 9}})
	case manual:
		j.Code = codeUnsafe
		j.Parties[0].State, j.Parties[1].State = manual, manual
		for i := range j.Parties {
			p := &j.Parties[i]
			p.Reported = &Cursor{Position: p.Position, Job: j.ID, State: manual, Role: p.Role, Definition: definitionA}
		}
		j.Parties[1].Reported.Open = []uuid.UUID{stepID}
		j.Commands = append(j.Commands, step)
	case completed, failed, cancelled:
		step.Status, step.Lease = Closed, leaseSettled
		j.Completed = 5
		j.Commands = append(j.Commands, step, Command{ID: closeID, Role: target, Kind: archive.CloseJob, Status: Sent, EverSent: true,
			Expected: Position{5, 9}, Final: state})
	default:
		j.Parties[1].State = running
		j.Commands = append(j.Commands, step)
	}
	return j
}

func (j Job) with(f func(*Job)) Job {
	j.Commands = slices.Clone(j.Commands)
	f(&j)
	return j
}

func happened(kind pb.JobEventKind, more ...func(*Happened)) Happened {
	h := Happened{Role: target, Command: stepID, Kind: kind, Step: materializeStep, Position: Position{5 + revisionStep(kind), 10}}
	if kind == stepCancelled {
		h.Command, h.Step = cancelID, noStep
	}
	for _, f := range more {
		f(&h)
	}
	return h
}

func withCode(code pb.ErrorCode) func(*Happened) { return func(h *Happened) { h.Code = code } }

func moved(h *Happened) { h.Moved = true }

func committing(h *Happened) { h.Committed = true }

// show writes the interesting actions of a result as short words.
func show(actions []Action) string {
	var out []string
	for _, a := range actions {
		switch a := a.(type) {
		case Execute:
			out = append(out, fmt.Sprintf("execute %s %d", strings.TrimPrefix(a.Step.String(), "JOB_STEP_"), a.Attempt))
		case Cancel:
			out = append(out, "cancel "+roleText(a.Role))
		case Assign:
			out = append(out, "assign "+roleText(a.Role))
		case Close:
			out = append(out, "close "+roleText(a.Role))
		case Reconcile:
			out = append(out, strings.ToLower(strings.TrimPrefix(a.Disposition.String(), "RECONCILE_DISPOSITION_"))+" "+roleText(a.Role))
		case DecideAgain:
			out = append(out, "decide "+roleText(a.Role))
		case StoreEvidence:
			out = append(out, "evidence")
		case Withdraw:
			out = append(out, "withdraw")
		case Supersede:
			out = append(out, "supersede")
		case Retire:
			out = append(out, "retire")
		case Release:
			out = append(out, "release")
		case Reserve:
			out = append(out, "reserve")
		case ReserveAgain:
			out = append(out, "reserve again")
		case RunChecks:
			out = append(out, "check")
		case StoreDefinition:
			out = append(out, "define")
		case FollowUp:
			out = append(out, "follow up")
		case Grant:
			out = append(out, "grant")
		case Audit:
			out = append(out, "audit "+string(a.What))
		case Alert:
			out = append(out, "alert "+string(a.Kind))
		}
	}
	return strings.Join(out, ", ")
}

func roleText(r pb.ParticipantRole) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "PARTICIPANT_ROLE_"))
}

func stateOf(j Job) string {
	s := stateText(j.State)
	switch j.State {
	case waiting:
		s += "(" + strings.TrimPrefix(j.Wait.String(), "WAIT_REASON_") + ") of " + stateText(j.Kept)
	case cancelling:
		s += "(" + stateText(j.Outcome) + ")"
	}
	return s
}

// transferNext is a job whose STAGE row is in a status; the route is not ready.
func transferNext(stage Status) Job {
	return jobIn(running).with(func(j *Job) {
		j.Completed, j.RouteDown = 0, true
		j.Commands[2].Role, j.Commands[2].Step, j.Commands[2].Status = source, stageStep, stage
		if stage == Closed {
			j.Completed, j.Commands[2].Lease = 1, leaseSettled
		}
	})
}

// transferring is a job whose TRANSFER row is in a status; the route is not ready.
func transferring(status Status) Job {
	return jobIn(running).with(func(j *Job) {
		j.Completed, j.RouteDown = 1, true
		j.Commands[2].Step, j.Commands[2].Status, j.Commands[2].Lease, j.Commands[2].EverSent = transfer, status, leaseNone, status != Pending
	})
}

func routeWait(j *Job) { j.State, j.Kept, j.Wait, j.RouteDown = waiting, running, waitRoute, false }

func evicting(retentionOver bool) Job {
	return jobIn(running).with(func(j *Job) {
		j.Operation, j.Completed, j.RetentionOver = pb.JobOperation_JOB_OPERATION_EVICT, 1, retentionOver
		j.Commands[2].Role, j.Commands[2].Step = source, release
	})
}

func happenedAt(role pb.ParticipantRole, step pb.JobStep) Happened {
	return happened(stepCompleted, func(h *Happened) { h.Role, h.Step, h.Committed, h.CommitEvidence = role, step, true, definitionB })
}

func parkedStep() Job {
	return jobIn(waiting).with(func(j *Job) {
		j.Wait = waitUnacked
		j.Commands[2].Status, j.Commands[2].Lease = Parked, leaseNone
	})
}

func retiring() Job {
	return jobIn(running).with(func(j *Job) {
		j.State, j.Kept, j.Wait = waiting, running, waitReconcile
		j.Parties[1].Decided = false
		j.Commands = append(j.Commands, Command{ID: resumeID, Role: target, Kind: archive.ReconcileJob, Disposition: resume, Status: Sent, EverSent: true,
			Position: Position{5, 9}, Retires: []uuid.UUID{stepID}})
	})
}

func cancelAcked() Job {
	return jobIn(cancelling).with(func(j *Job) {
		j.Commands[2].Status, j.Commands[2].Lease = Closed, leaseSettled
		j.Commands[3].Status, j.Commands[3].Lease = Accepted, leaseOpen
		j.Parties[1].State = cancelling
	})
}
