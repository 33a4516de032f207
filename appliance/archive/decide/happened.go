package decide

import (
	"github.com/google/uuid"

	"signalbox/appliance/archive"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// EventOf reads an accepted event for Advance; before is the progress of the job's last event that had one.
func EventOf(role pb.ParticipantRole, m *pb.JobEvent, before *pb.Progress) (Happened, error) {
	id, err := uuid.Parse(m.GetCommandId())
	if err != nil {
		return Happened{}, fault.Field("job_event.command_id", "must be a UUID")
	}
	h := Happened{Role: role, Command: id, Kind: m.GetKind(), Step: m.GetStep(), Position: Position{m.GetResultingRevision(), m.GetSequence()},
		Committed: m.GetCommitted(), Code: m.GetError().GetCode(), Moved: m.GetProgress() != nil && archive.Moved(before, m.GetProgress())}
	if m.GetKind() == stepCompleted && archive.Commits(m.GetStep()) {
		h.CommitEvidence = archive.EvidenceDigest(m.GetEvidence())
	}
	return h, nil
}

// happened applies an accepted event (2.8).
func (c *change) happened(e Happened) error {
	j, p, r := &c.job, c.party(e.Role), c.job.Command(e.Command)
	if p == nil || r == nil || r.Role != e.Role || !r.isLease() {
		return fault.Field("command", "is no lease of the participant")
	}
	s := j.effective()
	if s == pending || s == preflight || terminal(s) {
		return c.refuse("moved by an event")
	}
	j.Position, p.Position, p.Expecting = e.Position, e.Position, false
	if e.Committed {
		p.Committed, j.Committed = true, true
	}
	if e.CommitEvidence != "" {
		p.CommitEvidence = e.CommitEvidence
	}
	switch e.Kind {
	case stepStarted, progressed, resumedEvent:
		p.State = running
		// STALLED | RESUMED, or PROGRESS with moved counters | RUNNING
		if j.State == stalled && (e.Kind != progressed || e.Moved) {
			j.State = running
		}
	case stalledEvent: // RUNNING | STALLED | STALLED | keep fractions, counters and step
		p.State = stalled
		if j.State == running {
			j.State = stalled
		}
	case stepCompleted:
		p.State = assigned
		c.stepCompleted(r)
	case stepFailed:
		p.State = assigned
		c.closeLease(r)
		c.stepFailed(e)
	case stepCancelled:
		p.State = cancelled
		c.stepCancelled(r, p)
	case held: // any active | HELD | MANUAL | reservation kept
		p.State = manual
		c.closeLease(r)
		if j.State != manual {
			c.conflict(e.Role, e.Code)
		}
	default:
		return fault.Field("kind", "is unknown")
	}
	if e.Committed {
		c.commitArrived(e.Role)
	}
	return nil
}

// goOn ends a wait that the event has overtaken. A hold of the operator stays.
func (c *change) goOn() {
	if j := &c.job; j.State == stalled {
		j.State = running
	} else if j.State == waiting && !derived(j.Wait) && j.Wait != waitOperator && j.Kept != preflight {
		c.unwait()
	}
}

// RUNNING, STALLED | STEP_COMPLETED, more steps | RUNNING | evidence, cursor, next ExecuteStep row
// RUNNING, STALLED | STEP_COMPLETED, last step | COMPLETED
func (c *change) stepCompleted(r *Command) {
	j := &c.job
	c.closeLease(r)
	c.do(StoreEvidence{r.Step})
	if r.Step == j.Step() {
		j.Completed++
		j.StepAttempt, j.Failures, j.Allowance = 0, 0, archive.StepAttempts
	}
	switch j.effective() {
	case cancelling, manual: // events of an open lease | stored, no next step
	default:
		c.goOn()
	}
}

func (c *change) stepFailed(e Happened) {
	j := &c.job
	switch s := j.effective(); {
	case s == cancelling || s == manual: // stored; no next step
	case !archive.Retryable(e.Code) && j.Committed:
		// RUNNING, STALLED | STEP_FAILED permanent, committed | MANUAL | reservation kept
		c.conflict(e.Role, e.Code)
	case !archive.Retryable(e.Code):
		// RUNNING, STALLED | STEP_FAILED permanent, not committed | CANCELLING (FAILED) | wind-down
		c.startWindDown(failed, e.Code)
	case j.State == waiting && j.Wait == waitOperator:
		j.Failures++
	case e.Code == codeSpace:
		// STEP_FAILED retryable, attempts left (5 per step; NO_SPACE unlimited) | WAITING(the code's reason)
		c.goOn()
		c.wait(waitSpace, e.Code)
	default:
		j.Failures++
		c.goOn()
		if j.Failures < j.Allowance {
			c.wait(archive.WaitFor(e.Code), e.Code)
		} else { // STEP_FAILED retryable, none left | WAITING(OPERATOR_HOLD)
			c.wait(waitOperator, e.Code)
		}
	}
}

func (c *change) stepCancelled(r *Command, p *Participant) {
	j := &c.job
	c.closeSteps(p.Role)
	c.closeLease(r)
	p.WoundDown, j.Undone = true, true
	switch j.effective() {
	case cancelling: // the next participant follows, or the end
		c.goOn()
	case manual:
	default: // 4.2 row 7b: an undo cannot be taken back
		c.conflict(p.Role, codeLost)
	}
}

// commitSeen applies a commit flag that a valid snapshot showed without an event.
func (c *change) commitSeen(e CommitSeen) error {
	j, p := &c.job, c.party(e.Role)
	if p == nil {
		return fault.Field("role", "the job has no such participant")
	}
	if s := j.effective(); s == pending || s == preflight || terminal(s) {
		return c.refuse("committed")
	}
	p.Committed, j.Committed = true, true
	if e.CommitEvidence != "" {
		p.CommitEvidence = e.CommitEvidence
	}
	c.commitArrived(e.Role)
	return nil
}

// commitArrived: a job that was winding down goes forward, unless another participant has undone its part.
func (c *change) commitArrived(role pb.ParticipantRole) {
	j := &c.job
	if j.effective() != cancelling {
		return
	}
	if j.Undone {
		c.conflict(role, codeCommit)
		return
	}
	// CANCELLING | commit flag or commit evidence arrives, nobody has undone anything | RUNNING, or COMPLETED after the last
	// step | cancel is withdrawn and audited
	for _, r := range j.roles() {
		c.dropRows(r, archive.CancelJob)
	}
	j.State, j.Kept, j.Wait, j.Outcome, j.Code = running, noState, 0, noState, codeNone
	c.do(Audit{CancelWithdrawn})
}
