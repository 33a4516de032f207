package store

import (
	"strconv"
	"time"

	"signalbox/appliance/agent"
)

// textOrNull binds JSON bytes to a TEXT column.
func textOrNull(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}

// stringOrNull binds a text whose empty form is NULL.
func stringOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// InsertCommand stores a new command and returns its number.
func (tx *Tx) InsertCommand(c agent.Command) (int64, error) {
	res, err := tx.Exec(`INSERT INTO commands (id, project_no, agent_no, issued_by, action, target_type, target_id, payload,
		retry_engine, idempotency_key, status, issued_at, timeout_at, source_ip, parent_no)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.ID, c.ProjectNo, numberOrNull(c.AgentNo), c.IssuedBy, c.Action, c.TargetType, c.TargetID, string(c.Payload),
		stringOrNull(c.RetryEngine), c.IdempotencyKey, string(c.Status), c.IssuedAt, c.TimeoutAt, c.SourceIP,
		numberOrNull(c.ParentNo))
	return res.LastInsertID(), err
}

// UpdateCommand stores the changeable fields of c where the row still has the status and hand-over of before.
func (tx *Tx) UpdateCommand(before, c agent.Command) (bool, error) {
	res, err := tx.Exec(`UPDATE commands SET status = ?, agent_no = ?, result = ?, error = ?, dispatched_at = ?,
		acked_at = ?, completed_at = ?, timeout_at = ?
		WHERE command_no = ? AND status = ? AND dispatched_at IS ?`,
		string(c.Status), numberOrNull(c.AgentNo), textOrNull(c.Result), c.Error, orNull(c.DispatchedAt), orNull(c.AckedAt),
		orNull(c.CompletedAt), c.TimeoutAt, c.No, string(before.Status), orNull(before.DispatchedAt))
	return res.RowsAffected() == 1, err
}

// InsertTransition appends to the timeline.
func (tx *Tx) InsertTransition(projectNo int64, t agent.Transition) error {
	_, err := tx.Exec(`INSERT INTO command_transitions (command_no, project_no, at, event, status, detail)
		VALUES (?, ?, ?, ?, ?, ?)`, t.CommandNo, projectNo, t.At, t.Event, string(t.Status), t.Detail)
	return err
}

// CommandReconcileTask corrects the state of a stored task.
func (tx *Tx) CommandReconcileTask(projectNo int64, engine, taskID, state string, asked time.Time, finishedAt *time.Time,
	exception *string) (from string, changed bool, err error) {
	var heard time.Time
	err = noRowIsZero(tx.QueryRow(`SELECT state, updated_at FROM tasks WHERE project_no = ? AND engine = ? AND task_id = ?`,
		projectNo, engine, taskID).Scan(&from, &heard))
	if err != nil || from == "" || from == state {
		return from, false, err
	}
	// A task that runs or waits has not finished, whatever was stored before; what was heard since may be its end.
	running := state == "pending" || state == "started"
	if running && heard.After(asked) {
		return from, false, nil
	}
	res, err := tx.Exec(`UPDATE tasks SET state = ?, finished_at = CASE WHEN ? THEN NULL ELSE coalesce(?, finished_at) END,
		exception = CASE WHEN ? = 'failure' THEN coalesce(?, exception) ELSE NULL END, updated_at = ?
		WHERE project_no = ? AND engine = ? AND task_id = ?`,
		state, running, orNull(finishedAt), state, exception, tx.Now(), projectNo, engine, taskID)
	return from, res.RowsAffected() == 1, err
}

// metaTransitionsPruned names a project's watermark: the highest transition that retention removed.
const metaTransitionsPruned = "transitions_pruned:"

func prunedKey(projectNo int64) string {
	return metaTransitionsPruned + strconv.FormatInt(projectNo, 10)
}

// PruneCommands removes terminal commands that ended before the cutoff among the next scan rows, with what hangs on
// them, and raises the projects' watermarks.
func (tx *Tx) PruneCommands(afterNo int64, cutoff time.Time, scan int) (removed int, next int64, err error) {
	rows, err := tx.Query(`SELECT command_no, project_no, issued_at, completed_at FROM commands WHERE command_no > ?
		ORDER BY command_no LIMIT ?`, afterNo, scan)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	type old struct{ no, project int64 }
	var doomed []old
	seen := 0
	for rows.Next() {
		var o old
		var issued, completed time.Time
		if err := rows.Scan(&o.no, &o.project, &issued, &completed); err != nil {
			return 0, 0, err
		}
		if !issued.Before(cutoff) { // a command cannot end before it was issued, nor can the later ones
			next = 0
			break
		}
		if seen++; seen == scan {
			next = o.no
		}
		if !completed.IsZero() && completed.Before(cutoff) {
			doomed = append(doomed, o)
		}
	}
	if err := rows.Err(); err != nil {
		return 0, 0, err
	}
	if err := rows.Close(); err != nil {
		return 0, 0, err
	}
	pruned := map[int64]int64{}
	for _, o := range doomed {
		var highest int64
		err := tx.QueryRow(`SELECT coalesce(max(transition_no), 0) FROM command_transitions WHERE command_no = ?`, o.no).Scan(&highest)
		if err != nil {
			return 0, 0, err
		}
		pruned[o.project] = max(pruned[o.project], highest)
		if _, err := tx.Exec(`DELETE FROM commands WHERE command_no = ?`, o.no); err != nil {
			return 0, 0, err
		}
	}
	for project, no := range pruned {
		if err := tx.raisePruned(project, no); err != nil {
			return 0, 0, err
		}
	}
	return len(doomed), next, nil
}

func (tx *Tx) raisePruned(projectNo, no int64) error {
	old, err := tx.prunedTransitions(projectNo)
	if err != nil || old >= no {
		return err
	}
	_, err = tx.Exec(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
		prunedKey(projectNo), []byte(strconv.FormatInt(no, 10)))
	return err
}

// prunedTransitions is the project's watermark, 0 when retention has removed nothing.
func (r *reader) prunedTransitions(projectNo int64) (int64, error) {
	var text []byte
	err := noRowIsZero(r.QueryRow(`SELECT value FROM meta WHERE key = ?`, prunedKey(projectNo)).Scan(&text))
	if err != nil || len(text) == 0 {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
