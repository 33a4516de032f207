package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent/schedule"
)

var (
	_ schedule.Tx     = (*Tx)(nil)
	_ schedule.ReadTx = (*ReadTx)(nil)
)

const scheduleColumns = `s.schedule_no, s.id, s.project_no, p.id, s.engine, s.scheduler, s.name, s.task_name, s.kind, s.expression,
	s.timezone, s.queue, s.priority, s.args, s.kwargs, s.is_enabled, s.catch_up, s.external_id, s.source, s.source_hash, s.anchor_at,
	s.decided_at, s.next_run_at, s.last_run_at, s.total_runs, s.consecutive_failures, s.disabled_reason, s.created_at, s.updated_at`

const fromSchedules = ` FROM schedules s JOIN projects p ON p.project_no = s.project_no`

// A schedule that was deleted is there until its history is gone, and no read finds it.
const liveSchedule = ` AND s.deleted_at IS NULL`

// scheduleRow is where a schedule's columns are scanned to.
type scheduleRow struct {
	s          schedule.Schedule
	next, last time.Time
}

func (r *scheduleRow) dest() []any {
	s := &r.s
	return []any{&s.No, &s.ID, &s.ProjectNo, &s.ProjectID, &s.Engine, &s.Scheduler, &s.Name, &s.TaskName, &s.Kind, &s.Expression,
		&s.Timezone, &s.Queue, &s.Priority, &s.Args, &s.Kwargs, &s.IsEnabled, &s.CatchUp, &s.ExternalID, &s.Source, &s.SourceHash, &s.AnchorAt,
		&s.DecidedAt, &r.next, &r.last, &s.TotalRuns, &s.ConsecutiveFailures, &s.DisabledReason, &s.CreatedAt, &s.UpdatedAt}
}

func (r *scheduleRow) schedule() schedule.Schedule {
	r.s.NextRunAt, r.s.LastRunAt = nonZero(r.next), nonZero(r.last)
	return r.s
}

func (r *reader) schedule(where string, args ...any) (schedule.Schedule, error) {
	var row scheduleRow
	err := r.QueryRow(`SELECT `+scheduleColumns+fromSchedules+` WHERE `+where+liveSchedule, args...).Scan(row.dest()...)
	if err != nil {
		return schedule.Schedule{}, err
	}
	return row.schedule(), nil
}

func (r *reader) schedules(query string, args ...any) ([]schedule.Schedule, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []schedule.Schedule{}
	for rows.Next() {
		var row scheduleRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		out = append(out, row.schedule())
	}
	return out, rows.Err()
}

// ScheduleByNo finds a schedule by its number.
func (r *reader) ScheduleByNo(no int64) (schedule.Schedule, error) {
	return r.schedule(`s.schedule_no = ?`, no)
}

// ScheduleByID finds a schedule of the project.
func (r *reader) ScheduleByID(projectNo int64, id uuid.UUID) (schedule.Schedule, error) {
	return r.schedule(`s.id = ? AND s.project_no = ?`, id, projectNo)
}

// ScheduleByName finds a schedule by its name in its project and scheduler.
func (r *reader) ScheduleByName(projectNo int64, scheduler, name string) (schedule.Schedule, error) {
	return r.schedule(`s.project_no = ? AND s.scheduler = ? AND s.name = ?`, projectNo, scheduler, name)
}

// ScheduleList returns a page by name and id.
func (r *reader) ScheduleList(projectNo int64, f schedule.Filter, page schedule.Page) ([]schedule.Schedule, error) {
	query := `SELECT ` + scheduleColumns + fromSchedules + ` WHERE s.project_no = ?` + liveSchedule
	args := []any{projectNo}
	add := func(condition string, values ...any) {
		query += ` AND ` + condition
		args = append(args, values...)
	}
	if f.Engine != "" {
		add(`s.engine = ?`, f.Engine)
	}
	if f.Scheduler != "" {
		add(`s.scheduler = ?`, f.Scheduler)
	}
	if f.Source != "" {
		add(`s.source = ?`, f.Source)
	}
	if f.Enabled != nil {
		add(`s.is_enabled = ?`, *f.Enabled)
	}
	if page.AfterName != "" {
		add(`(s.name, s.id) > (?, ?)`, page.AfterName, page.AfterID)
	}
	return r.schedules(query+` ORDER BY s.name, s.id LIMIT ?`, append(args, page.Limit)...)
}

// ScheduleIDsBetween returns ids of the project's schedules in [from, to], at most limit.
func (r *reader) ScheduleIDsBetween(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM schedules WHERE id BETWEEN ? AND ? AND +project_no = ? AND deleted_at IS NULL
		ORDER BY id LIMIT ?`, from, to, projectNo, limit)
}

// ScheduleIDsNamed returns the ids of the project's schedules of the name, at most limit.
func (r *reader) ScheduleIDsNamed(projectNo int64, name string, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM schedules WHERE project_no = ? AND name = ? AND deleted_at IS NULL ORDER BY id LIMIT ?`,
		projectNo, name, limit)
}

// SchedulesDue returns schedules that are due, the earliest next slot first. Only those of our own scheduler have a next slot.
func (r *reader) SchedulesDue(q schedule.DueQuery) ([]schedule.Due, error) {
	query := `SELECT ` + scheduleColumns + `, p.is_active` + fromSchedules + ` WHERE s.next_run_at <= ?`
	args := []any{q.UpTo}
	if !q.After.IsZero() {
		query += ` AND s.next_run_at > ?`
		args = append(args, q.After)
	}
	if q.FireAll != nil {
		query += ` AND (s.catch_up = 'fire_all_missed') = ?`
		args = append(args, *q.FireAll)
	}
	rows, err := r.Query(query+` ORDER BY s.next_run_at, s.schedule_no LIMIT ?`, append(args, q.Limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []schedule.Due
	for rows.Next() {
		var row scheduleRow
		var active bool
		if err := rows.Scan(append(row.dest(), &active)...); err != nil {
			return nil, err
		}
		out = append(out, schedule.Due{Schedule: row.schedule(), ProjectActive: active})
	}
	return out, rows.Err()
}

// ScheduleNextRun returns the earliest next slot after the time.
func (r *reader) ScheduleNextRun(after time.Time) (at time.Time, err error) {
	err = r.QueryRow(`SELECT min(next_run_at) FROM schedules WHERE next_run_at > ?`, after).Scan(&at)
	return at, err
}

// SchedulesAhead returns enabled schedules of ours that are decided beyond the time. It reads every schedule: it is for the
// start and for a clock that was set back.
func (r *reader) SchedulesAhead(beyond time.Time, aboveNo int64, limit int) ([]schedule.Schedule, error) {
	return r.schedules(`SELECT `+scheduleColumns+fromSchedules+` WHERE s.schedule_no > ? AND s.scheduler = '`+schedule.Own+`'
		AND s.is_enabled = 1 AND s.decided_at > ? ORDER BY s.schedule_no LIMIT ?`, aboveNo, beyond, limit)
}

// ScheduleMissed returns how many slots of a schedule were passed over since the time.
func (r *reader) ScheduleMissed(scheduleNo int64, since time.Time) (n int64, err error) {
	err = r.QueryRow(`SELECT coalesce(sum(slots), 0) FROM schedule_misfires WHERE schedule_no = ? AND at >= ?`, scheduleNo, since).Scan(&n)
	return n, err
}

// ScheduleMisfires returns the newest misfires of a schedule, newest first.
func (r *reader) ScheduleMisfires(scheduleNo int64, limit int) ([]schedule.Misfire, error) {
	rows, err := r.Query(`SELECT misfire_no, schedule_no, at, first_slot, last_slot, slots, reason FROM schedule_misfires
		WHERE schedule_no = ? ORDER BY misfire_no DESC LIMIT ?`, scheduleNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []schedule.Misfire{}
	for rows.Next() {
		var m schedule.Misfire
		if err := rows.Scan(&m.No, &m.ScheduleNo, &m.At, &m.FirstSlot, &m.LastSlot, &m.Slots, &m.Reason); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

const sqlSchedulesDeleted = `SELECT schedule_no FROM schedules WHERE deleted_at IS NOT NULL ORDER BY deleted_at, schedule_no LIMIT ?`

// SchedulesDeleted lists schedules that were deleted and are still there, the first deleted first.
func (r *reader) SchedulesDeleted(limit int) ([]int64, error) {
	return r.numbers(sqlSchedulesDeleted, limit)
}

// ScheduleControllers returns the online agents of the project that list a scheduler adapter, the most recently seen first.
func (r *reader) ScheduleControllers(projectNo int64) ([]schedule.Controller, error) {
	rows, err := r.Query(`SELECT id, scheduler_adapters FROM agents WHERE project_no = ? AND revoked_at IS NULL AND state = 'online'
		AND scheduler_adapters <> '[]' ORDER BY last_seen_at DESC, agent_no`, projectNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []schedule.Controller
	for rows.Next() {
		var c schedule.Controller
		var list string
		if err := rows.Scan(&c.AgentID, &list); err != nil {
			return nil, err
		}
		if err := fromJSON(list, &c.Schedulers); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, rows.Err()
}
