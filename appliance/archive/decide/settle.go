package decide

import (
	"slices"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Three reasons to wait follow from the job itself and are looked at anew after every change. The others last until their
// condition is cleared.
func derived(r pb.WaitReason) bool { return r == waitOffline || r == waitUnacked || r == waitReconcile }

// settle brings the job to rest after a change: it leaves and enters WAITING, commands what comes next and ends the job.
// Every state that control acts in (ASSIGNING, RUNNING, CANCELLING) either has a command on its way, an open lease, or a
// reason to wait.
func (c *change) settle() {
	for c.settleOnce() {
	}
}

// settleOnce reports whether the job moved and is to be looked at again.
func (c *change) settleOnce() bool {
	j := &c.job
	switch j.State {
	case waiting:
		if !derived(j.Wait) {
			return false
		}
		if j.Wait = c.blocked(j.Kept); j.Wait != 0 {
			return false
		}
		c.unwait()
		if j.State == preflight {
			c.do(RunChecks{})
		}
		return j.State != preflight
	case assigning:
		return c.settleAssigning()
	case running, stalled:
		return c.settleRunning()
	case cancelling:
		return c.settleCancelling()
	}
	return false
}

// stop moves the job to WAITING when something of itself keeps it from going on.
func (c *change) stop() bool {
	reason := c.blocked(c.job.State)
	if reason != 0 {
		c.wait(reason, codeNone)
	}
	return reason != 0
}

// blocked returns why a job in a state cannot go on, UNSPECIFIED when it can.
func (c *change) blocked(state pb.JobState) pb.WaitReason {
	j := &c.job
	for _, role := range c.actors(state) {
		if p := j.Party(role); p != nil && !p.Online {
			return waitOffline
		}
	}
	if state == preflight {
		return 0
	}
	if slices.ContainsFunc(j.Commands, func(r Command) bool { return r.Status == Parked }) {
		return waitUnacked
	}
	for _, role := range j.roles() {
		p := j.Party(role)
		if j.reconciling(role) || p.Online && !p.Decided && (j.has(p) || state == assigning && !p.Assigned) {
			return waitReconcile
		}
	}
	return 0
}

// actors returns the participants that must act next in a state (2.5).
func (c *change) actors(state pb.JobState) []pb.ParticipantRole {
	j := &c.job
	switch state {
	case preflight:
		return j.roles()
	case assigning:
		return slices.DeleteFunc(j.roles(), func(r pb.ParticipantRole) bool { return j.Party(r).Assigned })
	case running, stalled:
		if r := j.executing(); r != nil {
			return []pb.ParticipantRole{r.Role}
		}
		if _, role, ok := NextStep(j); ok {
			return []pb.ParticipantRole{role}
		}
	case cancelling:
		if role, ok := NextWindDown(j); ok {
			return []pb.ParticipantRole{role}
		}
	}
	return nil
}

// NextStep returns the step to command next and its executor; false when all are completed.
func NextStep(j *Job) (pb.JobStep, pb.ParticipantRole, bool) {
	step := j.Step()
	if step == noStep {
		return noStep, 0, false
	}
	return step, j.executor(step), true
}

// NextWindDown returns the participant that the CancelJob goes to, one at a time (3.4): first the one whose step is active,
// the next only when that one is wound down. False: every participant is.
func NextWindDown(j *Job) (pb.ParticipantRole, bool) {
	for i := range j.Commands { // the one that is being asked stays the one, whatever its step came to
		if r := &j.Commands[i]; r.Kind == archive.CancelJob && (r.unacked() || r.open()) && !j.woundDown(j.Party(r.Role)) {
			return r.Role, true
		}
	}
	first := pb.ParticipantRole(0)
	if r := j.executingOrWithdrawn(); r != nil {
		first = r.Role
	} else if _, role, ok := NextStep(j); ok {
		first = role
	}
	order := j.roles()
	slices.SortStableFunc(order, func(a, b pb.ParticipantRole) int {
		switch {
		case a == first && b != first:
			return -1
		case b == first && a != first:
			return 1
		}
		return 0
	})
	for _, role := range order {
		if p := j.Party(role); !j.woundDown(p) {
			return role, true
		}
	}
	return 0, false
}

// woundDown reports whether nothing is left to undo: it answered, the job has ended there, or it never got an AssignJob.
func (j *Job) woundDown(p *Participant) bool {
	return p.WoundDown || p.Closed || !p.Assigned && p.Reported == nil && !j.assignSent(p.Role)
}

// executingOrWithdrawn returns the ExecuteStep row that is or may be executed.
func (j *Job) executingOrWithdrawn() *Command {
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Kind == archive.ExecuteStep && (r.unclosed() || r.unacked()) {
			return r
		}
	}
	return nil
}

func (c *change) settleAssigning() bool {
	j := &c.job
	all := true
	for _, role := range j.roles() {
		p := j.Party(role)
		if p.Assigned {
			c.dropRows(role, archive.AssignJob)
			continue
		}
		all = false
		if !slices.ContainsFunc(j.Commands, func(r Command) bool { return r.Role == role && r.Kind == archive.AssignJob && r.unacked() }) &&
			p.Online && !j.undecided(p) {
			c.assign(p)
		}
	}
	if all {
		j.State = running
		return true
	}
	c.stop()
	return false
}

func (c *change) settleRunning() bool {
	j := &c.job
	step, role, more := NextStep(j)
	if !more {
		c.end(completed)
		return false
	}
	if c.stop() {
		return false
	}
	if r := j.executing(); r != nil {
		if j.routeAwaited(r) {
			c.wait(waitRoute, codeNone)
			return false
		}
		if r.unconfirmed() {
			// It may have arrived: another ExecuteStep is allowed only once its retirement is acknowledged (2.6).
			p := j.Party(r.Role)
			a := Reconcile{Role: r.Role, Disposition: resume, Authoritative: c.authoritativeOf(p, assigned), Expected: j.Position,
				Definition: j.Definition, Code: codeLease}
			if k := p.Reported; k != nil {
				a.Expected = a.Expected.Max(k.Position)
			}
			a.Retire = append(a.Retire, r.ID)
			c.reconcile(a)
			return true
		}
		return false
	}
	switch {
	case step == release && !j.VerifyFresh && !j.Committed:
		// 3.2: the evidence expired before RELEASE started; VERIFY comes again first.
		j.Completed, _ = archive.Position(j.Operation, pb.JobStep_JOB_STEP_VERIFY)
		j.Failures, j.Allowance = 0, archive.StepAttempts
		return true
	case step == transfer && j.RouteDown: // 3.2, 6.3: running ones go on; new ones wait
		c.wait(waitRoute, codeNone)
		return false
	case step == purge && !j.RetentionOver:
		c.wait(waitRetention, codeNone)
		return false
	}
	c.execute(role, step)
	return false
}

// routeAwaited reports whether the row is a TRANSFER that waits for the route: one that was sent is not taken back.
func (j *Job) routeAwaited(r *Command) bool {
	return j.RouteDown && r.Step == transfer && r.Status == Pending && !r.EverSent
}

func (c *change) settleCancelling() bool {
	j := &c.job
	if j.Committed { // there is nothing to wind down
		c.commitArrived(0)
		return true
	}
	for _, role := range j.roles() {
		if j.woundDown(j.Party(role)) {
			c.dropRows(role, archive.CancelJob)
		}
	}
	role, more := NextWindDown(j)
	if !more {
		c.end(j.Outcome)
		return false
	}
	if c.stop() {
		return false
	}
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Role == role && r.Kind == archive.CancelJob && (r.unacked() || r.open()) {
			return false
		}
	}
	c.cancel(role)
	return false
}

// end makes the job terminal: reservations are released and every participant that has the job is told (3.4).
func (c *change) end(state pb.JobState) {
	j := &c.job
	op := j.Operation
	j.State, j.Kept, j.Wait, j.Outcome = state, noState, 0, noState
	if state == completed {
		j.Code = codeNone
	}
	c.do(Release{})
	for _, role := range j.roles() {
		c.dropRows(role, archive.AssignJob, archive.CancelJob)
		if p := j.Party(role); j.has(p) {
			c.closeJob(role, j.Position)
		} else {
			p.Closed = true
		}
	}
	if state == completed && (op == pb.JobOperation_JOB_OPERATION_TRANSFER || op == pb.JobOperation_JOB_OPERATION_ADOPT) {
		c.do(FollowUp{})
	}
}

// releaseWhenClosed releases the reservation of a job that a person ended once every participant has acknowledged it.
func (c *change) releaseWhenClosed() {
	for _, role := range c.job.roles() {
		if p := c.job.Party(role); c.job.has(p) {
			return
		}
	}
	c.do(Release{})
}

// MaySend reports whether a row that wants sending may go out now: its participant is decided (4.1), nothing of 4.6 holds
// it back, and the job is in the state that made it. What decides a job may always go.
func MaySend(j *Job, r *Command) bool {
	if !r.unacked() || r.Status == Parked {
		return false
	}
	if r.Kind == archive.ReconcileJob || r.Kind == archive.RequestJobSnapshot {
		return true
	}
	p := j.Party(r.Role)
	if p == nil || j.undecided(p) || j.pendingReconcile(r.Role) != nil {
		return false
	}
	state := j.State
	if state == waiting && derived(j.Wait) {
		state = j.Kept
	}
	if j.OldCopy && !terminal(state) { // 4.6
		for _, role := range j.roles() {
			if !j.Party(role).Registered {
				return false
			}
		}
	}
	switch r.Kind {
	case archive.AssignJob:
		return state == assigning
	case archive.ExecuteStep:
		return state == running || state == stalled
	case archive.CancelJob:
		return state == cancelling
	case archive.CloseJob:
		return terminal(state)
	}
	return false
}
