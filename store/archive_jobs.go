package store

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive/job"
	"signalbox/appliance/fault"
)

var (
	_ job.Tx     = (*Tx)(nil)
	_ job.ReadTx = (*ReadTx)(nil)
)

// jobBytesOrNull is NULL for no bytes.
func jobBytesOrNull(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// jobFound turns the NotFound of a query for one row into false.
func jobFound(err error) (bool, error) {
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

const jobColumns = `job_no, id, operation, coalesce(parent_job_no, 0), coalesce(source_daemon_no, 0),
	coalesce(target_daemon_no, 0), coalesce(route_no, 0), title, request, placeholder, definition,
	coalesce(definition_sha256, ''), state, kept_state, wait_reason, wait_detail, retry_at, outcome, error, revision,
	last_sequence, plan_position, step_attempt, step_failures, step_allowance, committed, undone, progress,
	overall_permille, moved_at, retain_until, ended_by_person, created_by, created_at, started_at, ended_at`

func jobScan(scan func(...any) error) (j job.Job, err error) {
	err = scan(&j.No, &j.ID, &j.Operation, &j.ParentNo, &j.SourceNo, &j.TargetNo, &j.RouteNo, &j.Title, &j.Request,
		&j.Placeholder, &j.Definition, &j.Digest, &j.State, &j.Kept, &j.Wait, &j.WaitDetail, &j.RetryAt, &j.Outcome,
		&j.Error, &j.Revision, &j.Sequence, &j.Position, &j.Attempt, &j.Failures, &j.Allowance, &j.Committed, &j.Undone,
		&j.Progress, &j.Permille, &j.MovedAt, &j.RetainUntil, &j.ByPerson, &j.CreatedBy, &j.CreatedAt, &j.StartedAt,
		&j.EndedAt)
	return j, err
}

// JobByNo implements job.ReadTx.
func (r *reader) JobByNo(no int64) (job.Job, error) {
	return jobScan(r.QueryRow(`SELECT `+jobColumns+` FROM archive_jobs WHERE job_no = ?`, no).Scan)
}

// JobByID implements job.ReadTx.
func (r *reader) JobByID(id uuid.UUID) (job.Job, bool, error) {
	j, err := jobScan(r.QueryRow(`SELECT `+jobColumns+` FROM archive_jobs WHERE id = ?`, id).Scan)
	ok, err := jobFound(err)
	return j, ok, err
}

// JobList implements job.ReadTx.
func (r *reader) JobList(f job.Filter, before int64, limit int) ([]job.Job, error) {
	query := `SELECT ` + jobColumns + ` FROM archive_jobs WHERE job_no < ?`
	args := []any{before}
	if len(f.States) > 0 {
		query += ` AND state IN (?` + strings.Repeat(`, ?`, len(f.States)-1) + `)`
		for _, s := range f.States {
			args = append(args, int32(s))
		}
	}
	if f.DaemonNo != 0 {
		query += ` AND (source_daemon_no = ? OR target_daemon_no = ?)`
		args = append(args, f.DaemonNo, f.DaemonNo)
	}
	if f.Operation != 0 {
		query += ` AND operation = ?`
		args = append(args, int32(f.Operation))
	}
	rows, err := r.Query(query+` ORDER BY job_no DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Job
	for rows.Next() {
		j, err := jobScan(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, rows.Err()
}

// JobInsert implements job.Tx.
func (tx *Tx) JobInsert(j *job.Job) error {
	res, err := tx.Exec(`INSERT INTO archive_jobs (id, operation, parent_job_no, source_daemon_no, target_daemon_no, route_no,
			title, request, placeholder, state, created_by, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, j.ID, int32(j.Operation), roomNoOrNull(j.ParentNo), roomNoOrNull(j.SourceNo),
		roomNoOrNull(j.TargetNo), roomNoOrNull(j.RouteNo), j.Title, j.Request, j.Placeholder, int32(j.State), j.CreatedBy, j.CreatedAt)
	if err != nil {
		return err
	}
	j.No = res.LastInsertID()
	return tx.JobUpdate(j)
}

// JobUpdate implements job.Tx.
func (tx *Tx) JobUpdate(j *job.Job) error {
	_, err := tx.Exec(`UPDATE archive_jobs SET source_daemon_no = ?, target_daemon_no = ?, route_no = ?, title = ?,
			placeholder = ?, definition = ?, definition_sha256 = ?, state = ?, kept_state = ?, wait_reason = ?, wait_detail = ?,
			retry_at = ?, outcome = ?, error = ?, revision = ?, last_sequence = ?, plan_position = ?, step_attempt = ?,
			step_failures = ?, step_allowance = ?, committed = ?, undone = ?, progress = ?, overall_permille = ?, moved_at = ?,
			retain_until = ?, ended_by_person = ?, started_at = ?, ended_at = ?
		WHERE job_no = ?`, roomNoOrNull(j.SourceNo), roomNoOrNull(j.TargetNo), roomNoOrNull(j.RouteNo), j.Title, j.Placeholder,
		jobBytesOrNull(j.Definition), stringOrNull(j.Digest), int32(j.State), int32(j.Kept), int32(j.Wait), j.WaitDetail, j.RetryAt,
		int32(j.Outcome), jobBytesOrNull(j.Error), j.Revision, j.Sequence, j.Position, j.Attempt, j.Failures, j.Allowance,
		j.Committed, j.Undone, jobBytesOrNull(j.Progress), j.Permille, j.MovedAt, j.RetainUntil, j.ByPerson, j.StartedAt, j.EndedAt,
		j.No)
	return err
}

const participantColumns = `job_no, daemon_no, role, revision, sequence, confirmed_revision, confirmed_sequence, state,
	committed, commit_evidence_sha256, assigned, wound_down, closed, absent, expecting, resuming, decided_generation, reported, reported_at, state_epoch`

// JobParticipants implements job.ReadTx.
func (r *reader) JobParticipants(jobNo int64) ([]job.Participant, error) {
	rows, err := r.Query(`SELECT `+participantColumns+` FROM archive_participants WHERE job_no = ?
		ORDER BY role, daemon_no`, jobNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Participant
	for rows.Next() {
		var p job.Participant
		var epoch uuid.NullUUID
		if err := rows.Scan(&p.JobNo, &p.DaemonNo, &p.Role, &p.Revision, &p.Sequence, &p.ConfirmedRevision,
			&p.ConfirmedSequence, &p.State, &p.Committed, &p.CommitDigest, &p.Assigned, &p.WoundDown, &p.Closed, &p.Absent, &p.Expecting, &p.Resuming, &p.Decided,
			&p.Reported, &p.ReportedAt, &epoch); err != nil {
			return nil, err
		}
		p.Epoch = epoch.UUID
		out = append(out, p)
	}
	return out, rows.Err()
}

// JobInsertParticipant implements job.Tx.
func (tx *Tx) JobInsertParticipant(p *job.Participant) error {
	if _, err := tx.Exec(`INSERT INTO archive_participants (job_no, daemon_no, role) VALUES (?, ?, ?)`, p.JobNo, p.DaemonNo,
		int32(p.Role)); err != nil {
		return err
	}
	return tx.JobUpdateParticipant(p)
}

// JobUpdateParticipant implements job.Tx.
func (tx *Tx) JobUpdateParticipant(p *job.Participant) error {
	_, err := tx.Exec(`UPDATE archive_participants SET revision = ?, sequence = ?, confirmed_revision = ?,
			confirmed_sequence = ?, state = ?, committed = ?, commit_evidence_sha256 = ?, assigned = ?, wound_down = ?, closed = ?, absent = ?, expecting = ?, resuming = ?,
			decided_generation = ?, reported = ?, reported_at = ?, state_epoch = ?
		WHERE job_no = ? AND daemon_no = ? AND role = ?`, p.Revision, p.Sequence, p.ConfirmedRevision, p.ConfirmedSequence,
		int32(p.State), p.Committed, p.CommitDigest, p.Assigned, p.WoundDown, p.Closed, p.Absent, p.Expecting, p.Resuming, p.Decided, jobBytesOrNull(p.Reported),
		p.ReportedAt, uuid.NullUUID{UUID: p.Epoch, Valid: p.Epoch != uuid.Nil}, p.JobNo, p.DaemonNo, int32(p.Role))
	return err
}

// jobActiveAt is the condition of a job that control believes active at a daemon.
const jobActiveAt = `archive_participants p JOIN archive_jobs j ON j.job_no = p.job_no
	WHERE p.daemon_no = ? AND p.closed = 0 AND (j.state < 90 OR p.assigned = 1)`

// JobsAt implements job.ReadTx.
func (r *reader) JobsAt(daemonNo int64) ([]int64, error) {
	return r.numbers(`SELECT DISTINCT j.job_no FROM `+jobActiveAt+` ORDER BY j.job_no`, daemonNo)
}

// JobCountAt implements job.ReadTx.
func (r *reader) JobCountAt(daemonNo int64) (n int, err error) {
	err = r.QueryRow(`SELECT count(DISTINCT j.job_no) FROM `+jobActiveAt, daemonNo).Scan(&n)
	return n, err
}

// JobUndecidedAt implements job.ReadTx.
func (r *reader) JobUndecidedAt(daemonNo int64) (found bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM `+jobActiveAt+` AND p.decided_generation = 0
		AND j.state NOT IN (10, 11, 60))`, daemonNo).Scan(&found)
	return found, err
}

// JobsUsing implements job.ReadTx.
func (r *reader) JobsUsing(routeNo int64) ([]int64, error) {
	return r.numbers(`SELECT job_no FROM archive_jobs WHERE state < 90 AND route_no = ? ORDER BY job_no`, routeNo)
}

// JobsWaiting implements job.ReadTx.
func (r *reader) JobsWaiting(reason int32, after int64, limit int) ([]int64, error) {
	return r.numbers(`SELECT job_no FROM archive_jobs WHERE state = 40 AND wait_reason = ? AND job_no > ?
		ORDER BY job_no LIMIT ?`, reason, after, limit)
}

// JobsIn implements job.ReadTx.
func (r *reader) JobsIn(state int32, after int64, limit int) ([]int64, error) {
	return r.numbers(`SELECT job_no FROM archive_jobs WHERE state = ? AND job_no > ? ORDER BY job_no LIMIT ?`, state, after,
		limit)
}

// JobsDue implements job.ReadTx.
func (r *reader) JobsDue(at time.Time, limit int) ([]int64, error) {
	return r.numbers(`SELECT job_no FROM archive_jobs WHERE state < 90 AND retry_at <= ? ORDER BY retry_at, job_no LIMIT ?`,
		at, limit)
}

// JobBoundRetries implements job.Tx.
func (tx *Tx) JobBoundRetries(latest time.Time) error {
	_, err := tx.Exec(`UPDATE archive_jobs SET retry_at = ? WHERE state < 90 AND retry_at > ? AND NOT (state = 40 AND wait_reason = 90)`,
		latest, latest)
	return err
}

// JobNextDue implements job.ReadTx.
func (r *reader) JobNextDue() (at time.Time, err error) {
	var t *int64
	err = r.QueryRow(`SELECT min(retry_at) FROM archive_jobs WHERE state < 90`).Scan(&t)
	if err != nil || t == nil {
		return at, err
	}
	return time.UnixMicro(*t).UTC(), nil
}

// JobCounts implements job.ReadTx.
func (r *reader) JobCounts() (map[int32]int64, error) {
	rows, err := r.Query(`SELECT state, count(*) FROM archive_jobs GROUP BY state`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[int32]int64{}
	for rows.Next() {
		var state int32
		var n int64
		if err := rows.Scan(&state, &n); err != nil {
			return nil, err
		}
		out[state] = n
	}
	return out, rows.Err()
}
