package daemon

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// decideReconcile is the rules of ReconcileJob (2.6, 3.5) for a job that is known and has not ended.
func decideReconcile(c *pb.Command, f Facts) Outcome {
	x, row, p := c.GetReconcileJob(), f.Job.Row, c.GetPrecondition()
	a := x.GetAuthoritative()
	switch {
	case a.GetJobId() != c.GetJobId():
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "reconcile_job.authoritative.job_id: is not that of the command")
	case a.GetRole() != row.Role:
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "reconcile_job.authoritative.role: is not that of the assignment")
	case a.GetRevision() > highestCounter || a.GetLastEventSequence() > highestCounter:
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "reconcile_job.authoritative: the revision or sequence is too high")
	case p.GetExpectedRevision() < row.ConfirmedRevision:
		return rejected(pb.ErrorCode_ERROR_CODE_STALE_REVISION, "control has confirmed revision %d, the command expects %d",
			row.ConfirmedRevision, p.GetExpectedRevision())
	case p.GetExpectedLastEventSequence() < row.ConfirmedSequence:
		return rejected(pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE, "control has confirmed event %d, the command expects %d",
			row.ConfirmedSequence, p.GetExpectedLastEventSequence())
	}
	switch x.GetDisposition() {
	case pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME, pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION:
		return resume(c, f)
	case pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD:
		// Leases, cursor and flag stay; the worker stops and is started anew by a RESUME that leaves its lease open.
		o := accepted()
		row.State = pb.JobState_JOB_STATE_MANUAL
		o.Job, o.Interrupt = &row, true
		o.Leases = remembered(c, f)
		return o
	case pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON:
		return abandon(c, f)
	}
	return rejected(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "the disposition is unknown here")
}

// pastCommit reports whether the open lease has made its irreversible decision.
func pastCommit(row JobRow, l Lease) bool {
	return row.Committed && l.State == pb.LeaseState_LEASE_STATE_OPEN && l.Kind == LeaseStep && archive.Commits(l.Step)
}

func resume(c *pb.Command, f Facts) Outcome {
	x, row := c.GetReconcileJob(), f.Job.Row
	a := x.GetAuthoritative()
	if row.Undone {
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job was cancelled here, which cannot be taken back")
	}
	if row.Committed && !a.GetCommitted() {
		return rejected(pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT, "the job is committed here")
	}
	named := x.GetRetireCommandIds()
	for _, l := range f.Job.Leases {
		if slices.Contains(named, l.CommandID.String()) && pastCommit(row, l) {
			return rejected(pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT, "lease %s is past its commit point", l.CommandID)
		}
	}
	for _, id := range f.Job.Unacked {
		if !slices.Contains(named, id.String()) {
			return rejected(pb.ErrorCode_ERROR_CODE_BUSY, "events of lease %s, which is not named, are not confirmed", id)
		}
	}
	o := accepted()
	stays := false
	for _, l := range f.Job.Leases {
		open := l.State == pb.LeaseState_LEASE_STATE_OPEN
		if !slices.Contains(named, l.CommandID.String()) {
			stays = stays || open
			continue
		}
		o.Interrupt = o.Interrupt || open
		l.State = pb.LeaseState_LEASE_STATE_RETIRED
		o.Leases = append(o.Leases, l)
		o.DropEvents = append(o.DropEvents, l.CommandID)
	}
	o.Leases = append(o.Leases, remembered(c, f)...)
	o.Job = adopt(row, a)
	o.DropAbove = &o.Job.Sequence
	if stays {
		o.Job.State, o.Work = pb.JobState_JOB_STATE_RUNNING, true
	}
	return o
}

// adopt gives the row control's cursor; the commit flag only ever goes up.
func adopt(row JobRow, a *pb.JobCursor) *JobRow {
	row.Revision, row.Sequence = a.GetRevision(), a.GetLastEventSequence()
	row.ConfirmedRevision, row.ConfirmedSequence = row.Revision, row.Sequence
	row.TrimmedThrough = min(row.TrimmedThrough, row.Sequence)
	row.Committed = row.Committed || a.GetCommitted()
	if row.CommitEvidenceSHA256 == "" && row.Committed {
		row.CommitEvidenceSHA256 = a.GetCommitEvidenceSha256()
	}
	row.State = pb.JobState_JOB_STATE_ASSIGNED
	return &row
}

// abandon ends the job and leaves every file. A lease past its commit point is given up only once the job is held: a
// person has looked then.
func abandon(c *pb.Command, f Facts) Outcome {
	row, end := f.Job.Row, c.GetReconcileJob().GetAuthoritative().GetState()
	if end != pb.JobState_JOB_STATE_COMPLETED && end != pb.JobState_JOB_STATE_FAILED {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "reconcile_job.authoritative.state: must be COMPLETED or FAILED to abandon")
	}
	for _, l := range f.Job.Leases {
		if pastCommit(row, l) && row.State != pb.JobState_JOB_STATE_MANUAL {
			return rejected(pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT, "lease %s is past its commit point", l.CommandID)
		}
	}
	o := accepted()
	for _, l := range f.Job.Leases {
		if l.State != pb.LeaseState_LEASE_STATE_RETIRED {
			l.State = pb.LeaseState_LEASE_STATE_RETIRED
			o.Leases = append(o.Leases, l)
		}
	}
	o.Leases = append(o.Leases, remembered(c, f)...)
	row.State, row.Ended = end, true
	o.Job, o.DropOutbox, o.Interrupt = &row, true, true
	return o
}

// remembered gives the leases for named IDs that were never seen: they are refused when they come. IDs of other jobs are
// left alone.
func remembered(c *pb.Command, f Facts) []Lease {
	job := uuid.MustParse(c.GetJobId())
	var out []Lease
	for _, text := range c.GetReconcileJob().GetRetireCommandIds() {
		id, err := uuid.Parse(text)
		if err != nil {
			continue
		}
		if _, known := f.Named[id]; !known && !slices.ContainsFunc(out, func(l Lease) bool { return l.CommandID == id }) {
			out = append(out, Lease{CommandID: id, JobID: job, State: pb.LeaseState_LEASE_STATE_RETIRED})
		}
	}
	return out
}

// decideRestore takes in a job that this daemon has lost.
func decideRestore(c *pb.Command, f Facts) Outcome {
	x := c.GetReconcileJob()
	a := x.GetAuthoritative()
	row, refusal := f.newJob(c, x.GetDefinition(), a.GetRole(), a.GetDefinitionSha256())
	if refusal != nil {
		return *refusal
	}
	if a.GetJobId() != c.GetJobId() || a.GetRevision() < 1 || a.GetRevision() > highestCounter || a.GetLastEventSequence() > highestCounter {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "reconcile_job.authoritative: is no cursor of the job")
	}
	o := accepted()
	o.NewJob = adopt(*row, a)
	o.NewJob.TrimmedThrough = a.GetLastEventSequence() // the events up to here were lost
	o.Leases = remembered(c, f)
	return o
}
