package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
)

var (
	_ fire.Tx     = (*Tx)(nil)
	_ fire.ReadTx = (*ReadTx)(nil)
)

const fireColumns = `f.fire_no, f.id, f.fire_id, f.schedule_no, s.id, s.name, f.project_no, s.engine, f.origin, f.slot_at,
	coalesce(f.command_no, 0), f.command_id, f.status, f.scheduled_for, f.fired_at, f.acked_at, f.latency_ms, f.finished_at,
	f.error_code, f.error_message`

const fromFires = ` FROM fires f JOIN schedules s ON s.schedule_no = f.schedule_no`

// Fires of a schedule that was deleted go in slices; meanwhile nobody is shown them.
const liveFires = fromFires + ` AND s.deleted_at IS NULL`

// fireRow is where a fire's columns are scanned to.
type fireRow struct {
	f                     fire.Fire
	command               uuid.NullUUID
	slot, acked, finished time.Time
}

func (r *fireRow) dest() []any {
	f := &r.f
	return []any{&f.No, &f.ID, &f.FireID, &f.ScheduleNo, &f.ScheduleID, &f.ScheduleName, &f.ProjectNo, &f.Engine, &f.Origin, &r.slot,
		&f.CommandNo, &r.command, &f.Status, &f.ScheduledFor, &f.FiredAt, &r.acked, &f.LatencyMS, &r.finished,
		&f.ErrorCode, &f.ErrorMessage}
}

func (r *fireRow) fire() fire.Fire {
	f := r.f
	if r.command.Valid {
		f.CommandID = &r.command.UUID
	}
	f.SlotAt, f.AckedAt, f.FinishedAt = nonZero(r.slot), nonZero(r.acked), nonZero(r.finished)
	return f
}

func (r *reader) fire(where string, args ...any) (fire.Fire, error) {
	var row fireRow
	err := r.QueryRow(`SELECT `+fireColumns+fromFires+` WHERE `+where, args...).Scan(row.dest()...)
	if err != nil {
		return fire.Fire{}, err
	}
	return row.fire(), nil
}

func (r *reader) fires(query string, args ...any) ([]fire.Fire, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []fire.Fire{}
	for rows.Next() {
		var row fireRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		out = append(out, row.fire())
	}
	return out, rows.Err()
}

// FireByFireID finds a fire by what the agent de-duplicates by, over all projects.
func (r *reader) FireByFireID(fireID uuid.UUID) (fire.Fire, error) {
	return r.fire(`f.fire_id = ?`, fireID)
}

// FireOfSlot finds the fire of a slot.
func (r *reader) FireOfSlot(scheduleNo int64, slot time.Time) (fire.Fire, error) {
	return r.fire(`f.schedule_no = ? AND f.slot_at = ?`, scheduleNo, slot)
}

// FireOfCommand finds the fire whose newest command it is; that of a deleted schedule is nobody's any more.
func (r *reader) FireOfCommand(commandNo int64) (fire.Fire, error) {
	return r.fire(`f.command_no = ?`+liveSchedule, commandNo)
}

// FireByNo finds a fire by its number.
func (r *reader) FireByNo(no int64) (fire.Fire, error) { return r.fire(`f.fire_no = ?`, no) }

// FireOfProject finds a fire of the project by its fire_id.
func (r *reader) FireOfProject(projectNo int64, fireID uuid.UUID) (fire.Fire, error) {
	return r.fire(`f.fire_id = ? AND f.project_no = ?`+liveSchedule, fireID, projectNo)
}

// FiresWithPrefix returns fire_ids of the project in [from, to].
func (r *reader) FiresWithPrefix(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT f.fire_id`+liveFires+` WHERE f.fire_id BETWEEN ? AND ? AND +f.project_no = ? ORDER BY f.fire_id LIMIT ?`,
		from, to, projectNo, limit)
}

// Fires returns a page of the project's fires, newest first; those of one moment by number. Every filter has an index that
// holds the order too.
func (r *reader) Fires(projectNo int64, f fire.Filter, page agent.Page) ([]fire.Fire, error) {
	text, args := firesQuery(projectNo, f, page)
	return r.fires(text, args...)
}

func firesQuery(projectNo int64, f fire.Filter, page agent.Page) (string, []any) {
	q, index := query{}, "fires_by_time"
	switch byStatus := f.Status != ""; {
	case f.ScheduleID != uuid.Nil && byStatus:
		index = "fires_of_schedule_by_status"
	case f.ScheduleID != uuid.Nil:
		index = "fires_of_schedule"
	case byStatus:
		index = "fires_by_status"
	}
	if f.ScheduleID != uuid.Nil {
		q.and("f.schedule_no = (SELECT schedule_no FROM schedules WHERE id = ?)", f.ScheduleID)
	}
	q.and("f.project_no = ?", projectNo)
	q.equal("f.status", string(f.Status))
	if !f.Since.IsZero() {
		q.and("f.fired_at >= ?", f.Since)
	}
	if !page.After.IsZero() {
		q.and("(f.fired_at, f.fire_no) < (?, ?)", page.After.At.UnixMicro(), fire.PlaceNo(page.After))
	}
	// Without statistics the planner takes the first index that gives the order, and reads what the other filters throw away.
	return q.text(`SELECT `+fireColumns+` FROM fires f INDEXED BY `+index+` JOIN schedules s ON s.schedule_no = f.schedule_no
		AND s.deleted_at IS NULL`) + ` ORDER BY f.fired_at DESC, f.fire_no DESC LIMIT ?`, append(q.args, page.Limit)
}

const sqlFiresOfSchedule = `SELECT ` + fireColumns + fromFires + ` WHERE f.schedule_no = ?
	ORDER BY f.fired_at DESC, f.fire_no DESC LIMIT ?`

const sqlFireRuns = `SELECT ` + fireColumns + ` FROM schedules s JOIN fires f ON f.fire_no IN
	(SELECT n.fire_no FROM fires n WHERE n.schedule_no = s.schedule_no ORDER BY n.fired_at DESC, n.fire_no DESC LIMIT ?)
	WHERE s.project_no = ? AND s.deleted_at IS NULL ORDER BY f.fired_at DESC, f.fire_no DESC LIMIT ?`

// FiresOfSchedule returns the newest fires of a schedule of the project.
func (r *reader) FiresOfSchedule(projectNo int64, schedule uuid.UUID, limit int) ([]fire.Fire, error) {
	var no int64
	if err := r.QueryRow(`SELECT schedule_no FROM schedules WHERE id = ? AND project_no = ? AND deleted_at IS NULL`, schedule,
		projectNo).Scan(&no); err != nil {
		return nil, err
	}
	return r.fires(sqlFiresOfSchedule, no, limit)
}

// FireRuns returns the newest fires of every schedule of the project.
func (r *reader) FireRuns(projectNo int64, perSchedule, limit int) ([]fire.Fire, error) {
	return r.fires(sqlFireRuns, perSchedule, projectNo, limit)
}

// FireTargets returns agents that may take a fire of the engine. Names of engines hold no quotes, so a quoted one in the
// JSON text of a list is an element of it.
func (r *reader) FireTargets(projectNo int64, engine string, limit int) ([]fire.Target, error) {
	const live = ` FROM agents a WHERE a.project_no = ? AND a.state = 'online' AND a.revoked_at IS NULL
		AND EXISTS (SELECT 1 FROM projects p WHERE p.project_no = a.project_no AND p.is_active = 1)`
	rows, err := r.Query(`SELECT a.agent_no, a.id, a.name, 0 AS declared, a.last_seen_at`+live+`
			AND instr(a.engine_adapters, '"' || ? || '"') > 0
		UNION ALL
		SELECT a.agent_no, a.id, a.name, 1, a.last_seen_at`+live+`
			AND a.last_connect_at IS NULL AND a.engine_adapters = '[]'
			AND EXISTS (SELECT 1 FROM declared_engines d WHERE d.agent_no = a.agent_no AND d.engine = ?)
		ORDER BY declared, 5 DESC, 1 LIMIT ?`, projectNo, engine, projectNo, engine, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fire.Target
	for rows.Next() {
		var t fire.Target
		var seen time.Time
		if err := rows.Scan(&t.AgentNo, &t.AgentID, &t.Name, &t.Declared, &seen); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, rows.Err()
}

// FireCommandsOpen counts the schedule.fire commands of an agent that have not ended.
func (r *reader) FireCommandsOpen(agentNo int64) (n int, err error) {
	err = r.QueryRow(`SELECT count(*) FROM commands WHERE agent_no = ? AND `+openCommands+` AND action = 'schedule.fire'`, agentNo).Scan(&n)
	return n, err
}

// DeclaredEngines lists what was declared of one agent, or of all of the project when agentNo is 0.
func (r *reader) DeclaredEngines(projectNo, agentNo int64) ([]fire.Declared, error) {
	rows, err := r.Query(`SELECT d.agent_no, d.engine, coalesce(d.declared_by, ''), d.declared_at FROM declared_engines d
		JOIN agents a ON a.agent_no = d.agent_no WHERE a.project_no = ? AND (? = 0 OR d.agent_no = ?)
		ORDER BY d.agent_no, d.engine`, projectNo, agentNo, agentNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fire.Declared
	for rows.Next() {
		var d fire.Declared
		if err := rows.Scan(&d.AgentNo, &d.Engine, &d.By, &d.At); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, rows.Err()
}

// SchedulesFailing lists enabled schedules with at least n consecutive failures.
func (r *reader) SchedulesFailing(n, limit int) ([]int64, error) {
	return r.numbers(`SELECT schedule_no FROM schedules WHERE is_enabled = 1 AND consecutive_failures >= ? ORDER BY schedule_no LIMIT ?`,
		n, limit)
}
