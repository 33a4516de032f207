package decide

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// isLease reports whether accepting the command opens a lease.
func (r *Command) isLease() bool { return r.Kind == archive.ExecuteStep || r.Kind == archive.CancelJob }

// unacked reports whether the row still wants an acknowledgement and is sent until it has one.
func (r *Command) unacked() bool {
	return r.Status == Pending || r.Status == Sent || r.Status == Parked
}

// closed reports whether nothing can come of the row any more: its terminal event is stored, its retirement is
// acknowledged, or it was rejected.
func (r *Command) closed() bool {
	return r.Status == Rejected || r.Status == Closed || r.Lease == leaseSettled || r.Lease == leaseRetired
}

// open reports whether the row is an acknowledged lease that is neither settled nor retired.
func (r *Command) open() bool { return r.isLease() && r.Status == Accepted && !r.closed() }

// unconfirmed reports whether the row was taken back and yet may have arrived: withdrawn or superseded, its fate not
// confirmed by the daemon.
func (r *Command) unconfirmed() bool {
	return (r.Status == Withdrawn || r.Status == Superseded) && r.EverSent && !r.closed()
}

// unclosed reports whether the lease of the row may exist at the daemon.
func (r *Command) unclosed() bool {
	return r.isLease() && !r.closed() && (r.EverSent || r.Status == Accepted)
}

func terminal(s pb.JobState) bool { return s == completed || s == failed || s == cancelled }

// effective returns the state that WAITING keeps, or the state itself.
func (j *Job) effective() pb.JobState {
	if j.State == waiting {
		return j.Kept
	}
	return j.State
}

// roles returns the participants of the job in order.
func (j *Job) roles() []pb.ParticipantRole {
	var out []pb.ParticipantRole
	for i := range j.Parties {
		if r := j.Parties[i].Role; r != 0 {
			out = append(out, r)
		}
	}
	return out
}

// executor returns the participant that executes a step.
func (j *Job) executor(step pb.JobStep) pb.ParticipantRole {
	if step == pb.JobStep_JOB_STEP_TRANSFER {
		if j.Carrier == source {
			return source
		}
		return target
	}
	return archive.Executor(step, 0)
}

// assignSent reports whether an AssignJob may have reached the participant.
func (j *Job) assignSent(role pb.ParticipantRole) bool {
	return slices.ContainsFunc(j.Commands, func(r Command) bool {
		return r.Role == role && r.Kind == archive.AssignJob && r.EverSent && r.Status != Rejected
	})
}

// has reports whether the participant has the job, as far as control knows.
func (j *Job) has(p *Participant) bool {
	return !p.Closed && !p.Absent && (p.Assigned || p.Reported != nil || j.assignSent(p.Role))
}

// everAcked reports whether any command of the job was ever accepted there, or the job was in the daemon's cursor.
func (j *Job) everAcked(p *Participant) bool {
	return p.Assigned || slices.ContainsFunc(j.Commands, func(r Command) bool {
		return r.Role == p.Role && r.Kind != archive.RequestJobSnapshot && (r.Status == Accepted || r.Status == Closed)
	})
}

// commitSent reports whether a COMMIT or RELEASE was ever sent to the participant (4.2 row 4, 4.4).
func (j *Job) commitSent(role pb.ParticipantRole) bool {
	return slices.ContainsFunc(j.Commands, func(r Command) bool {
		return r.Role == role && r.Kind == archive.ExecuteStep && archive.Commits(r.Step) && (r.EverSent || r.Status == Accepted || r.Status == Closed)
	})
}

// irreversibleOut reports whether a COMMIT, RELEASE or PURGE was ever sent there and is not closed (4.2 rows 10, 13a).
func (j *Job) irreversibleOut(role pb.ParticipantRole) bool {
	return slices.ContainsFunc(j.Commands, func(r Command) bool {
		return r.Role == role && r.Kind == archive.ExecuteStep && archive.Irreversible(r.Step) && r.unclosed()
	})
}

// pendingReconcile returns the participant's unacknowledged ReconcileJob; at most one exists.
func (j *Job) pendingReconcile(role pb.ParticipantRole) *Command {
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Role == role && r.Kind == archive.ReconcileJob && r.unacked() {
			return r
		}
	}
	return nil
}

// openSnapshot returns the participant's snapshot request without an answer.
func (j *Job) openSnapshot(role pb.ParticipantRole) *Command {
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Role == role && r.Kind == archive.RequestJobSnapshot && (r.unacked() || r.Status == Accepted) {
			return r
		}
	}
	return nil
}

// reconciling reports whether a ReconcileJob or a snapshot of the participant is open. A HOLD does not count: it is not
// followed by a decision.
func (j *Job) reconciling(role pb.ParticipantRole) bool {
	r := j.pendingReconcile(role)
	return r != nil && r.Disposition != hold || j.openSnapshot(role) != nil
}

// undecided reports whether no event of the participant may be applied and no command sent to it (4.1).
func (j *Job) undecided(p *Participant) bool { return !p.Decided || j.reconciling(p.Role) }

// lastAttempt returns the highest step_attempt of a step.
func (j *Job) lastAttempt(step pb.JobStep) uint32 {
	var n uint32
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Kind == archive.ExecuteStep && r.Step == step {
			n = max(n, r.Attempt)
		}
	}
	return n
}

// executing returns the ExecuteStep row that keeps another from being made (2.6): not yet sent, or unretired and without
// its terminal event.
func (j *Job) executing() *Command {
	for i := range j.Commands {
		if r := &j.Commands[i]; r.Kind == archive.ExecuteStep && !r.closed() && (r.unacked() || r.EverSent || r.Status == Accepted) {
			return r
		}
	}
	return nil
}

// change is a job on its way from one state to the next, with the actions so far.
type change struct {
	job     Job
	actions []Action
}

func begin(j *Job) *change {
	c := &change{job: *j}
	c.job.Commands = slices.Clone(j.Commands)
	return c
}

func (c *change) do(a Action) { c.actions = append(c.actions, a) }

func (c *change) party(role pb.ParticipantRole) *Participant { return c.job.Party(role) }

// each calls f for the rows of a participant; role 0 means all.
func (c *change) each(role pb.ParticipantRole, f func(*Command)) {
	for i := range c.job.Commands {
		if r := &c.job.Commands[i]; role == 0 || r.Role == role {
			f(r)
		}
	}
}

func (c *change) acknowledge(r *Command) {
	r.Status, r.Lease = Accepted, leaseNone
	if r.isLease() {
		r.Lease = leaseOpen
	}
	c.do(Acknowledge{r.ID})
}

func (c *change) closeLease(r *Command) {
	r.Status = Closed
	if r.isLease() {
		r.Lease = leaseSettled
	}
	c.do(CloseLease{r.ID})
}

func (c *change) retire(r *Command) {
	if r.unacked() {
		r.Status = Superseded
	}
	r.Lease = leaseRetired
	c.do(Retire{r.ID})
}

func (c *change) supersede(r *Command) {
	r.Status = Superseded
	c.do(Supersede{r.ID})
}

// dropRows supersedes the unacknowledged rows of a participant that are of one of the kinds.
func (c *change) dropRows(role pb.ParticipantRole, kinds ...archive.CommandKind) {
	c.each(role, func(r *Command) {
		if r.unacked() && slices.Contains(kinds, r.Kind) {
			c.supersede(r)
		}
	})
}

// withdrawSteps withdraws the unacknowledged ExecuteStep rows.
func (c *change) withdrawSteps() {
	c.each(0, func(r *Command) {
		if r.Kind == archive.ExecuteStep && r.unacked() {
			r.Status = Withdrawn
			c.do(Withdraw{r.ID})
		}
	})
}

// closeSteps closes the step leases of a participant that a CancelJob ended, those whose acknowledgement never came too.
func (c *change) closeSteps(role pb.ParticipantRole) {
	c.each(role, func(r *Command) {
		if r.Kind == archive.ExecuteStep && !r.closed() && (r.EverSent || r.Status == Accepted) {
			c.closeLease(r)
		}
	})
}

func (c *change) add(r Command) {
	r.Status = Pending
	c.job.Commands = append(c.job.Commands, r)
}

// assign makes an AssignJob row. The job is new to the daemon: there is nothing to decide under its present connection.
func (c *change) assign(p *Participant) {
	p.Decided = p.Online
	c.do(Assign{p.Role})
	c.add(Command{Role: p.Role, Kind: archive.AssignJob})
}

func (c *change) execute(role pb.ParticipantRole, step pb.JobStep) {
	a := Execute{Role: role, Step: step, Attempt: c.job.lastAttempt(step) + 1, Expected: c.job.Position}
	c.job.StepAttempt = a.Attempt
	c.do(a)
	c.add(Command{Role: role, Kind: archive.ExecuteStep, Step: step, Attempt: a.Attempt, Expected: a.Expected})
}

func (c *change) cancel(role pb.ParticipantRole) {
	a := Cancel{Role: role, Cleanup: c.job.Cleanup, Expected: c.job.Position}
	c.do(a)
	c.add(Command{Role: role, Kind: archive.CancelJob, Expected: a.Expected})
}

func (c *change) closeJob(role pb.ParticipantRole, expected Position) {
	a := Close{Role: role, Final: c.job.State, Discard: c.job.State == completed || c.job.Cleanup == discardFiles, Expected: expected}
	c.do(a)
	c.add(Command{Role: role, Kind: archive.CloseJob, Final: a.Final, Expected: expected})
}

// reconcile makes a ReconcileJob row in the place of an unacknowledged one.
func (c *change) reconcile(a Reconcile) {
	c.dropRows(a.Role, archive.ReconcileJob)
	c.do(a)
	c.add(Command{Role: a.Role, Kind: archive.ReconcileJob, Disposition: a.Disposition, Position: a.Authoritative.Position,
		Retires: a.Retire, Expected: a.Expected, Final: a.Authoritative.State})
}

// retireSet returns the ids that a ReconcileJob names: all in the lists of K and every unclosed lease of the daemon.
func (c *change) retireSet(role pb.ParticipantRole, k *Cursor) []uuid.UUID {
	var out []uuid.UUID
	if k != nil {
		out = union(k.Open, k.Settled)
	}
	c.each(role, func(r *Command) {
		if r.unclosed() && !slices.Contains(out, r.ID) {
			out = append(out, r.ID)
		}
	})
	return out
}

func union(a, b []uuid.UUID) []uuid.UUID {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func sameSet(a, b []uuid.UUID) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(id uuid.UUID) bool { return !slices.Contains(b, id) })
}
