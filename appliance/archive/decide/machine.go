package decide

import (
	"strings"

	"signalbox/appliance/archive"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

// Advance is the control state machine (3.4). It returns the job after the event and what to write in the same transaction.
// An event that its state does not take is refused with a Conflict fault, one that names what does not exist with Invalid;
// the returned job is then the given one.
func Advance(j Job, e Event) (Job, []Action, error) {
	c := begin(&j)
	if err := c.advance(e); err != nil {
		return j, nil, err
	}
	c.settle()
	return c.job, c.actions, nil
}

func (c *change) advance(e Event) error {
	switch e := e.(type) {
	case OperatorStart:
		return c.start()
	case OperatorCancel:
		return c.cancelJob()
	case OperatorGrant:
		return c.grant(e)
	case OperatorResume:
		return c.resumeJob()
	case OperatorAccept:
		return c.endByPerson(completed, AcceptedAs)
	case OperatorAbandon:
		return c.endByPerson(failed, Abandoned)
	case ChecksPassed:
		return c.checksPassed(e)
	case ChecksFailed:
		return c.checksFailed(e)
	case Acked:
		return c.acked(e)
	case Exhausted:
		return c.exhausted(e)
	case Happened:
		return c.happened(e)
	case CommitSeen:
		return c.commitSeen(e)
	case EventRefused:
		return c.eventRefused(e)
	case ConflictSeen:
		return c.conflictSeen(e)
	case Offline:
		return c.offline(e)
	case Cleared:
		return c.cleared()
	case RouteLost:
		return nil // settle looks at it
	case Displaced:
		return c.displaced()
	}
	return fault.New(fault.Invalid, "event: unknown")
}

// stateText is the state in the words of the protocol.
func stateText(s pb.JobState) string { return strings.TrimPrefix(s.String(), "JOB_STATE_") }

// refuse is the error of an event that the state of the job does not take.
func (c *change) refuse(what string) error {
	return fault.New(fault.Conflict, "the job is %s: it cannot be %s", stateText(c.job.State), what)
}

// PENDING | operator starts | PREFLIGHT | reserve resource and destination
func (c *change) start() error {
	if c.job.State != pending {
		return c.refuse("started")
	}
	c.job.State = preflight
	c.do(Reserve{})
	c.do(Audit{Started})
	c.do(RunChecks{})
	return nil
}

func (c *change) cancelJob() error {
	j := &c.job
	switch s := j.effective(); {
	case j.State == pending || j.State == preflight:
		// PENDING, PREFLIGHT | operator cancels | CANCELLED | release reservation
		j.State, j.Code = cancelled, codeCancelled
		for _, role := range j.roles() {
			j.Party(role).Closed = true
		}
		c.do(Audit{CancelAsked})
		c.do(Release{})
		return nil
	case s == cancelling:
		return fault.New(fault.Conflict, "the job is being cancelled already")
	case j.State == manual || terminal(j.State):
		return c.refuse("cancelled")
	case j.Committed:
		return fault.New(fault.Conflict, "the job is committed: it can only go forward")
	}
	// ASSIGNING, RUNNING, STALLED, WAITING; not committed | operator cancels | CANCELLING (CANCELLED) | wind-down
	c.do(Audit{CancelAsked})
	c.startWindDown(cancelled, codeCancelled)
	return nil
}

// startWindDown moves the job to CANCELLING. Unacknowledged ExecuteStep rows are withdrawn; they count as possibly executed
// until the daemon's cursor shows otherwise. An unacknowledged AssignJob is not sent again.
func (c *change) startWindDown(outcome pb.JobState, code pb.ErrorCode) {
	j := &c.job
	j.State, j.Kept, j.Wait, j.Outcome, j.Code = cancelling, noState, 0, outcome, code
	for _, role := range j.roles() {
		j.Party(role).Resuming = false
		c.dropRows(role, archive.AssignJob)
	}
	c.withdrawSteps()
}

func (c *change) grant(e OperatorGrant) error {
	j := &c.job
	if e.Attempts == 0 {
		return fault.Field("attempts", "must be at least 1")
	}
	if j.State != waiting {
		return c.refuse("granted attempts")
	}
	granted := false
	// WAITING(COMMAND_UNACKED) | new allowance by a person | as kept
	c.each(0, func(r *Command) {
		if r.Status == Parked {
			r.Status = Sent
			c.do(Grant{r.ID})
			granted = true
		}
	})
	switch j.Wait {
	case waitSpace, waitBackoff, waitBackend: // WAITING, other reasons | condition cleared: a person says so, before its time
		if err := c.cleared(); err != nil {
			return err
		}
		granted = true
	case waitOperator:
		// WAITING(OPERATOR_HOLD) | a person grants attempts | as kept
		j.Allowance = j.Failures + e.Attempts
		c.unwait()
		if j.State == preflight {
			c.do(RunChecks{})
		}
		granted = true
	}
	if !granted {
		return fault.New(fault.Conflict, "the job does not wait for anything that trying again could end")
	}
	c.do(Audit{Granted})
	return nil
}

// MANUAL | operator resumes | WAITING(RECONCILING), then ASSIGNING or RUNNING | ReconcileJob RESUME to all that have the
// job, AssignJob to the others
func (c *change) resumeJob() error {
	j := &c.job
	switch {
	case j.State != manual:
		return c.refuse("resumed")
	case j.Definition == "":
		return fault.New(fault.Conflict, "the job has no definition here: it can be accepted as completed or abandoned")
	case j.Undone:
		return fault.New(fault.Conflict, "a daemon has undone its part: the job can be accepted as completed or abandoned")
	}
	for _, role := range j.roles() {
		if p := j.Party(role); p.Closed || p.State == cancelled || p.State == cancelling || terminalEnd(p) {
			return fault.New(fault.Conflict, "the job has ended at a daemon: it can be accepted as completed or abandoned")
		}
	}
	j.State, j.Kept, j.Wait, j.Code = waiting, running, waitReconcile, codeNone
	c.do(Audit{Resumed})
	for _, role := range j.roles() {
		p := j.Party(role)
		c.dropRows(role, archive.ReconcileJob) // a HOLD
		p.WoundDown = false
		if c.job.has(p) {
			p.Resuming, p.Decided = true, false
			c.resumeParty(p)
			continue
		}
		// Its daemon said that it has no such job: what it was given is gone, and the job is new to it.
		j.Kept = assigning
		p.Assigned, p.Position, p.Decided = false, Position{}, p.Online
		c.each(role, func(r *Command) {
			if r.isLease() && !r.closed() {
				c.retire(r)
			}
		})
	}
	return nil
}

// resumeParty starts to let one daemon go on. A cursor that is not older than what control has of the daemon is decided
// by the tables, at once or at its next registration; otherwise the answer to a RESUME brings a fresh one.
func (c *change) resumeParty(p *Participant) {
	j := &c.job
	if k := p.Reported; k != nil && !p.Position.Ahead(k.Position) {
		if p.Online {
			c.do(DecideAgain{Role: p.Role})
		}
		return
	}
	a := Reconcile{Role: p.Role, Disposition: resume, Authoritative: c.authoritativeOf(p, assigned), Expected: j.Position,
		Definition: j.Definition, Code: codeManual}
	c.each(p.Role, func(r *Command) {
		if r.isLease() && r.unconfirmed() {
			a.Retire = append(a.Retire, r.ID)
		}
	})
	c.reconcile(a)
}

// MANUAL | operator accepts as completed, or abandons | COMPLETED, FAILED | ReconcileJob ABANDON rows; reservation kept
// until all are acknowledged
func (c *change) endByPerson(state pb.JobState, what Decision) error {
	j := &c.job
	if j.State != manual {
		return c.refuse("ended by a person")
	}
	j.State, j.EndedByPerson = state, true
	c.do(Audit{what})
	for _, role := range j.roles() {
		p := j.Party(role)
		if p.Reported != nil && p.Reported.Committed { // the person has seen it
			p.Committed, j.Committed = true, true
		}
		c.dropRows(role, archive.ReconcileJob)
		if j.has(p) && !terminalEnd(p) {
			c.abandon(p, codeManual)
		} else {
			p.Closed = true
		}
	}
	c.releaseWhenClosed()
	return nil
}

// PREFLIGHT | all checks pass | ASSIGNING | write definition; AssignJob rows for all participants
func (c *change) checksPassed(e ChecksPassed) error {
	j := &c.job
	if j.State != preflight {
		return c.refuse("assigned")
	}
	if e.Definition == "" {
		return fault.Field("definition", "is required")
	}
	j.State, j.Definition, j.Position = assigning, e.Definition, Position{Revision: 1}
	j.Allowance = max(j.Allowance, archive.StepAttempts)
	c.do(StoreDefinition{})
	for _, role := range j.roles() {
		c.assign(j.Party(role))
	}
	return nil
}

func (c *change) checksFailed(e ChecksFailed) error {
	j := &c.job
	if j.State != preflight {
		return c.refuse("failed by its checks")
	}
	if e.Wait == 0 { // PREFLIGHT | permanent failure | FAILED | release reservation
		j.State, j.Code = failed, e.Code
		for _, role := range j.roles() {
			j.Party(role).Closed = true
		}
		c.do(Release{})
		return nil
	}
	// PREFLIGHT | transient failure | WAITING | reason, next try
	reason := e.Wait
	if reason == waitOffline && c.blocked(preflight) == 0 {
		reason = waitBackoff // it came back in the meantime
	}
	c.wait(reason, e.Code)
	return nil
}

func (c *change) exhausted(e Exhausted) error {
	r := c.job.Command(e.ID)
	if r == nil {
		return fault.Field("command", "is unknown")
	}
	if r.unacked() { // any active | command attempts exhausted | WAITING(COMMAND_UNACKED)
		r.Status = Parked
		c.do(Park{r.ID})
	}
	return nil
}

func (c *change) offline(e Offline) error {
	p := c.party(e.Role)
	if p == nil {
		return fault.Field("role", "the job has no such participant")
	}
	// any active | the client that must act next is offline | WAITING(CLIENT_OFFLINE) | nothing resent
	p.Online, p.Decided, p.Expecting = false, false, false
	return nil
}

// WAITING, other reasons | condition cleared | as kept
func (c *change) cleared() error {
	j := &c.job
	if j.State != waiting {
		return c.refuse("let go on")
	}
	if j.Wait == waitOperator {
		return fault.New(fault.Conflict, "the job waits for a person")
	}
	if !derived(j.Wait) {
		c.unwait()
		if j.State == preflight {
			c.do(RunChecks{})
		}
	}
	return nil
}

// displaced holds a job whose reservation went back to a job that a conflict made MANUAL again (3.4, last row).
func (c *change) displaced() error {
	j := &c.job
	switch s := j.effective(); {
	case s == cancelling || s == manual || s == pending || terminal(s):
		return c.refuse("displaced")
	}
	c.wait(waitOperator, codeBusy)
	return nil
}

// eventRefused: a refused event is not acknowledged; a ReconcileJob RESUME with control's job cursor names the leases that
// control holds open there and the event's own (2.8).
func (c *change) eventRefused(e EventRefused) error {
	j, p := &c.job, c.party(e.Role)
	switch {
	case p == nil:
		return fault.Field("role", "the job has no such participant")
	case j.State == manual || terminal(j.State) || j.Definition == "":
		return c.refuse("reconciled for an event")
	case j.reconciling(e.Role):
		return nil // its answer decides
	}
	a := Reconcile{Role: e.Role, Disposition: resume, Authoritative: c.authoritativeOf(p, assigned), Expected: j.Position,
		Definition: j.Definition, Code: e.Code}
	if k := p.Reported; k != nil {
		a.Expected = a.Expected.Max(k.Position)
	}
	c.each(e.Role, func(r *Command) {
		if r.open() {
			a.Retire = append(a.Retire, r.ID)
		}
	})
	a.Retire = union(a.Retire, nonNil(e.Command))
	p.Decided = false
	c.reconcile(a)
	return nil
}

// conflictSeen: commit claims that cannot both be true hold any job, an ended one too.
func (c *change) conflictSeen(e ConflictSeen) error {
	if c.party(e.Role) == nil {
		return fault.Field("role", "the job has no such participant")
	}
	if s := c.job.State; s == pending || s == preflight {
		return c.refuse("held")
	}
	c.conflict(e.Role, e.Code)
	return nil
}

func (c *change) conflict(role pb.ParticipantRole, code pb.ErrorCode) {
	c.manual(code)
	c.holdAll()
	kind := archive.AlertManual
	switch code {
	case codeCommit:
		kind = archive.AlertCommitConflict
	case codeLost:
		kind = archive.AlertStateLost
	case codeCommand:
		kind = archive.AlertCommandConflict
	}
	c.do(Alert{kind, role, code})
}
