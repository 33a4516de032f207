package store

import (
	"database/sql"
	"time"

	"signalbox/appliance/agent"
)

const sqlTasksStarted = `SELECT t.task_no, t.project_no, t.engine, t.task_id, t.started_at,
		(SELECT e.agent_no FROM events e WHERE e.task_no = t.task_no ORDER BY e.event_no DESC LIMIT 1) AS reporter,
		coalesce((SELECT a.revoked_at IS NOT NULL FROM agents a WHERE a.agent_no =
			(SELECT e.agent_no FROM events e WHERE e.task_no = t.task_no ORDER BY e.event_no DESC LIMIT 1)), 0)
		FROM tasks t INDEXED BY tasks_started JOIN projects p ON p.project_no = +t.project_no
		WHERE t.state = 'started' AND t.started_at < ?1 AND t.started_at >= ?2 AND (t.started_at > ?2 OR t.task_no > ?3)
		AND p.is_active = 1 ORDER BY t.started_at, t.task_no LIMIT ?4`

const sqlOpenTargets = `SELECT project_no, coalesce(target_id, '') FROM commands WHERE ` + openCommands + ` AND action = ?`

// CommandTasksStarted lists tasks of active projects that began before the cutoff and are still started, behind a place.
// The plus keeps it on the index of started tasks, which holds what runs now.
func (r *reader) CommandTasksStarted(before, at time.Time, after int64, limit int) ([]agent.StartedTask, error) {
	rows, err := r.Query(sqlTasksStarted, before.UnixMicro(), microsOrZero(at), after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.StartedTask
	for rows.Next() {
		var t agent.StartedTask
		var reporter sql.NullInt64
		if err := rows.Scan(&t.No, &t.ProjectNo, &t.Engine, &t.TaskID, &t.StartedAt, &reporter, &t.Revoked); err != nil {
			return nil, err
		}
		t.ReporterNo = reporter.Int64
		out = append(out, t)
	}
	return out, rows.Err()
}

func microsOrZero(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// CommandsOpenTargets returns the targets of the open commands of an action, with their projects.
func (r *reader) CommandsOpenTargets(action string) (map[string]bool, error) {
	rows, err := r.Query(sqlOpenTargets, action)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]bool{}
	for rows.Next() {
		var project int64
		var target string
		if err := rows.Scan(&project, &target); err != nil {
			return nil, err
		}
		out[agent.OpenTarget(project, target)] = true
	}
	return out, rows.Err()
}
