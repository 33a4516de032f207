package daemonstore

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/fault"
	"signalbox/store"
)

const jobColumns = `job_id, definition, definition_sha256, role, revision, sequence, confirmed_revision, confirmed_sequence,
	trimmed_through, state, committed, commit_evidence_sha256, undone, ended, closing, ended_at`

func scanJob(scan func(...any) error) (daemon.JobRow, error) {
	var j daemon.JobRow
	var definition []byte
	var role, state int32
	if err := scan(&j.ID, &definition, &j.Digest, &role, &j.Revision, &j.Sequence, &j.ConfirmedRevision, &j.ConfirmedSequence,
		&j.TrimmedThrough, &state, &j.Committed, &j.CommitEvidenceSHA256, &j.Undone, &j.Ended, &j.Closing, &j.EndedAt); err != nil {
		return j, err
	}
	j.Role, j.State, j.Definition = pb.ParticipantRole(role), pb.JobState(state), &pb.JobDefinition{}
	return j, decode(definition, j.Definition)
}

// Job returns a job.
func (r *reader) Job(id uuid.UUID) (daemon.JobRow, bool, error) {
	j, err := scanJob(r.q.QueryRow("SELECT "+jobColumns+" FROM jobs WHERE job_id = ?", id).Scan)
	ok, err := found(err)
	return j, ok, err
}

// ActiveJobs returns the jobs that have not ended, oldest first.
func (r *reader) ActiveJobs() ([]daemon.JobRow, error) {
	rows, err := r.q.Query("SELECT " + jobColumns + " FROM jobs WHERE ended = 0 ORDER BY job_no")
	return collect(rows, err, func(rows *store.Rows) (daemon.JobRow, error) { return scanJob(rows.Scan) })
}

// WorkingJobs returns the jobs that a process must take up at its start.
func (r *reader) WorkingJobs() ([]uuid.UUID, error) {
	rows, err := r.q.Query(`SELECT job_id FROM jobs WHERE closing = 1 OR (ended = 0 AND EXISTS
		(SELECT 1 FROM leases l WHERE l.job_id = jobs.job_id AND l.state = 2)) ORDER BY job_no`)
	return collect(rows, err, func(rows *store.Rows) (id uuid.UUID, err error) { return id, rows.Scan(&id) })
}

// ClosingJobs returns the jobs that ended and whose files are still to be removed.
func (r *reader) ClosingJobs() ([]uuid.UUID, error) {
	rows, err := r.q.Query("SELECT job_id FROM jobs WHERE closing = 1 ORDER BY job_no")
	return collect(rows, err, func(rows *store.Rows) (id uuid.UUID, err error) { return id, rows.Scan(&id) })
}

// InsertJob stores a new job.
func (t *tx) InsertJob(j daemon.JobRow) error {
	definition, err := encode(j.Definition)
	if err != nil {
		return err
	}
	return t.exec("INSERT INTO jobs("+jobColumns+") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		j.ID, definition, j.Digest, int64(j.Role), int64(j.Revision), int64(j.Sequence), int64(j.ConfirmedRevision),
		int64(j.ConfirmedSequence), int64(j.TrimmedThrough), int64(j.State), j.Committed, j.CommitEvidenceSHA256, j.Undone, j.Ended,
		j.Closing, j.EndedAt)
}

// UpdateJob writes the job's state.
func (t *tx) UpdateJob(j daemon.JobRow) error {
	res, err := t.tx.Exec(`UPDATE jobs SET revision = ?, sequence = ?, confirmed_revision = ?, confirmed_sequence = ?,
		trimmed_through = ?, state = ?, committed = ?, commit_evidence_sha256 = ?, undone = ?, ended = ?, closing = ?, ended_at = ?
		WHERE job_id = ?`, int64(j.Revision), int64(j.Sequence), int64(j.ConfirmedRevision), int64(j.ConfirmedSequence),
		int64(j.TrimmedThrough), int64(j.State), j.Committed, j.CommitEvidenceSHA256, j.Undone, j.Ended, j.Closing, j.EndedAt, j.ID)
	if err == nil && res.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "job %s is not there", j.ID)
	}
	return err
}

const leaseColumns = "command_id, job_id, kind, step, attempt, state, started, end_sequence"

func scanLease(scan func(...any) error) (daemon.Lease, error) {
	var l daemon.Lease
	var step, state int32
	err := scan(&l.CommandID, &l.JobID, &l.Kind, &step, &l.Attempt, &state, &l.Started, &l.EndSequence)
	l.Step, l.State = pb.JobStep(step), pb.LeaseState(state)
	return l, err
}

// Lease returns a lease.
func (r *reader) Lease(id uuid.UUID) (daemon.Lease, bool, error) {
	l, err := scanLease(r.q.QueryRow("SELECT "+leaseColumns+" FROM leases WHERE command_id = ?", id).Scan)
	ok, err := found(err)
	return l, ok, err
}

// JobLeases returns the job's leases in the order they were made.
func (r *reader) JobLeases(job uuid.UUID) ([]daemon.Lease, error) {
	rows, err := r.q.Query("SELECT "+leaseColumns+" FROM leases WHERE job_id = ? ORDER BY lease_no", job)
	return collect(rows, err, func(rows *store.Rows) (daemon.Lease, error) { return scanLease(rows.Scan) })
}

// PutLease inserts or replaces the lease.
func (t *tx) PutLease(l daemon.Lease) error {
	return t.exec("INSERT INTO leases("+leaseColumns+`) VALUES(?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT(command_id) DO UPDATE SET state = excluded.state, started = excluded.started, end_sequence = excluded.end_sequence`,
		l.CommandID, l.JobID, int64(l.Kind), int64(l.Step), int64(l.Attempt), int64(l.State), l.Started, int64(l.EndSequence))
}

// CommitRecord returns the job's commit record, nil when there is none.
func (r *reader) CommitRecord(job uuid.UUID) (*daemon.CommitRecord, error) {
	var c daemon.CommitRecord
	var step int32
	err := r.q.QueryRow("SELECT commit_id, step, verify_sha256, action FROM commit_records WHERE job_id = ?", job).
		Scan(&c.CommitID, &step, &c.VerifyEvidenceSHA256, &c.Action)
	if ok, err := found(err); !ok {
		return nil, err
	}
	c.Step = pb.JobStep(step)
	return &c, nil
}

// PutCommitRecord stores the job's one commit record; Conflict when it has one.
func (t *tx) PutCommitRecord(job uuid.UUID, c daemon.CommitRecord) error {
	return t.exec("INSERT INTO commit_records(job_id, commit_id, step, verify_sha256, action, written_at) VALUES(?, ?, ?, ?, ?, ?)",
		job, c.CommitID, int64(c.Step), c.VerifyEvidenceSHA256, c.Action, t.Now())
}
