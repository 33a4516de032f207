package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
)

var (
	_ bulkretry.Tx     = (*Tx)(nil)
	_ bulkretry.ReadTx = (*ReadTx)(nil)
)

// openBulkTasks is the condition of the partial index over the tasks that a bulk retry has still to do with.
const openBulkTasks = `status IN ('waiting', 'issued')`

// retriedTasks is the condition, on r, of the partial index over the tasks whose retry is open or has succeeded.
const retriedTasks = `(r.status IN ('waiting', 'issued', 'completed') OR r.is_late = 1)`

// CommandAgents lists the agents of a project that are not revoked, by name.
func (r *reader) CommandAgents(projectNo int64) ([]agent.CommandAgent, error) {
	nos, err := r.numbers(`SELECT agent_no FROM agents WHERE project_no = ? AND revoked_at IS NULL ORDER BY name`, projectNo)
	if err != nil {
		return nil, err
	}
	out := make([]agent.CommandAgent, 0, len(nos))
	for _, no := range nos {
		a, err := r.CommandAgentByNo(no)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// CommandBulk finds the bulk retry that a command is the parent or a child of; the zero value when there is none.
func (r *reader) CommandBulk(commandNo int64) (b agent.BulkStanding, err error) {
	const columns = `SELECT b.command_no, c.id, c.status, b.total, b.completed, b.failed, b.timed_out, b.refused, b.cancelled,
		(SELECT count(*) FROM bulk_retry_tasks w WHERE w.bulk_retry_no = b.bulk_retry_no AND ` + openBulkTasks + ` AND w.status = 'issued'),
		coalesce(b.wait_reason, ''), `
	const from = ` FROM bulk_retries b JOIN commands c ON c.command_no = b.command_no`
	dest := []any{&b.ParentNo, &b.ParentID, &b.ParentStatus, &b.Total, &b.Completed, &b.Failed, &b.TimedOut, &b.Refused, &b.Cancelled,
		&b.InFlight, &b.WaitReason, &b.Position}
	err = noRowIsZero(r.QueryRow(columns+`0`+from+` WHERE b.command_no = ?`, commandNo).Scan(dest...))
	if err != nil || b.ParentNo != 0 {
		return b, err
	}
	err = noRowIsZero(r.QueryRow(columns+`t.position`+from+` JOIN bulk_retry_tasks t ON t.bulk_retry_no = b.bulk_retry_no
		WHERE t.command_no = ?`, commandNo).Scan(dest...))
	return b, err
}

// bulkTasksQuery adds the conditions of a bulk retry's filter, apart from the ids of tasks.
func bulkTasksQuery(projectNo int64, f bulkretry.Filter) query {
	q := query{}
	q.tasks(projectNo, agent.TaskFilter{State: f.State, Queue: f.Queue, Name: f.Name, Since: f.Since, Until: f.Until})
	q.equal("t.engine", f.Engine)
	return q
}

// sqlBulkTask tells with each task whether a bulk retry has taken it since it ended last.
const sqlBulkTask = `SELECT t.id, t.engine, t.task_id, t.name, coalesce(t.queue, ''), t.state, t.created_at, t.finished_at, EXISTS (
	SELECT 1 FROM bulk_retry_tasks r JOIN bulk_retries b ON b.bulk_retry_no = r.bulk_retry_no WHERE r.task_id = t.task_id
	AND r.finished_at IS t.finished_at AND ` + retriedTasks + ` AND b.project_no = t.project_no AND b.engine = t.engine
	AND b.command_no IS NOT NULL) FROM tasks t`

func bulkCandidatesQuery(projectNo int64, f bulkretry.Filter, after uuid.UUID) (string, []any) {
	q := bulkTasksQuery(projectNo, f)
	q.and("t.id > ?", after)
	return q.text(sqlBulkTask) + ` ORDER BY t.id LIMIT ?`, q.args
}

const sqlBulkNamed = sqlBulkTask + ` WHERE t.project_no = ? AND t.engine = ? AND t.task_id = ?`

// BulkRetryCandidates lists tasks that pass the filter after an id, oldest first.
func (r *reader) BulkRetryCandidates(projectNo int64, f bulkretry.Filter, after uuid.UUID, limit int) ([]bulkretry.Task, error) {
	text, args := bulkCandidatesQuery(projectNo, f, after)
	return r.bulkTasks(text, append(args, limit)...)
}

// BulkRetryNamed finds the tasks with an id of an engine.
func (r *reader) BulkRetryNamed(projectNo int64, engine, taskID string) (t bulkretry.Task, found bool, err error) {
	list, err := r.bulkTasks(sqlBulkNamed, projectNo, engine, taskID)
	if err != nil || len(list) == 0 {
		return t, false, err
	}
	return list[0], true, nil
}

func (r *reader) bulkTasks(text string, args ...any) ([]bulkretry.Task, error) {
	rows, err := r.Query(text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []bulkretry.Task
	for rows.Next() {
		var t bulkretry.Task
		var finished time.Time
		if err := rows.Scan(&t.ID, &t.Engine, &t.TaskID, &t.Name, &t.Queue, &t.State, &t.CreatedAt, &finished, &t.Retried); err != nil {
			return nil, err
		}
		t.FinishedAt = nonZero(finished)
		out = append(out, t)
	}
	return out, rows.Err()
}

// TaskEngines lists the engines that a project's tasks run on. It steps from one engine to the next through the index of
// task identities.
func (r *reader) TaskEngines(projectNo int64) ([]string, error) {
	var out []string
	for last := ""; ; {
		var engine string
		err := noRowIsZero(r.QueryRow(`SELECT engine FROM tasks WHERE project_no = ? AND engine > ? ORDER BY engine LIMIT 1`,
			projectNo, last).Scan(&engine))
		if err != nil || engine == "" {
			return out, err
		}
		out, last = append(out, engine), engine
	}
}

const sqlBulkRetry = `SELECT b.bulk_retry_no, coalesce(b.command_no, 0), b.project_no, coalesce(b.agent_no, 0), a.id, b.engine, b.filter,
	b.request, b.total, b.completed, b.failed, b.timed_out, b.refused, b.cancelled, b.is_open, coalesce(b.wait_reason, ''), b.created_at,
	b.ended_at, (SELECT count(*) FROM bulk_retry_tasks t WHERE t.bulk_retry_no = b.bulk_retry_no AND ` + openBulkTasks + `
	AND t.status = 'issued') FROM bulk_retries b LEFT JOIN agents a ON a.agent_no = b.agent_no`

func scanBulkRetry(s scanner) (b bulkretry.BulkRetry, err error) {
	var id uuid.NullUUID
	var ended time.Time
	var filter string
	err = s.Scan(&b.No, &b.CommandNo, &b.ProjectNo, &b.AgentNo, &id, &b.Engine, &filter, &b.Request, &b.Total, &b.Completed, &b.Failed,
		&b.TimedOut, &b.Refused, &b.Cancelled, &b.IsOpen, &b.WaitReason, &b.CreatedAt, &ended, &b.InFlight)
	b.Filter, b.EndedAt, b.AgentID = json.RawMessage(filter), nonZero(ended), id.UUID
	return b, err
}

// BulkRetryByNo finds a bulk retry by its number.
func (r *reader) BulkRetryByNo(no int64) (bulkretry.BulkRetry, error) {
	return scanBulkRetry(r.QueryRow(sqlBulkRetry+` WHERE b.bulk_retry_no = ?`, no))
}

// BulkRetryOf finds the bulk retry of a parent command.
func (r *reader) BulkRetryOf(commandNo int64) (bulkretry.BulkRetry, error) {
	return scanBulkRetry(r.QueryRow(sqlBulkRetry+` WHERE b.command_no = ?`, commandNo))
}

const (
	sqlBulkRetriesOpen = `SELECT b.bulk_retry_no, b.project_no, c.timeout_at FROM bulk_retries b JOIN commands c
		ON c.command_no = b.command_no WHERE b.is_open = 1 AND b.bulk_retry_no > ? ORDER BY b.bulk_retry_no LIMIT ?`
	sqlBulkRetriesStaged = `SELECT bulk_retry_no FROM bulk_retries WHERE command_no IS NULL ORDER BY bulk_retry_no LIMIT ?`
	sqlBulkRetryCounts   = `SELECT count(*), coalesce(sum(total - completed - failed - timed_out - refused - cancelled), 0)
		FROM bulk_retries WHERE is_open = 1`
)

// BulkRetriesOpen lists open bulk retries above a number, by number.
func (r *reader) BulkRetriesOpen(above int64, limit int) ([]bulkretry.Open, error) {
	rows, err := r.Query(sqlBulkRetriesOpen, above, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []bulkretry.Open
	for rows.Next() {
		var o bulkretry.Open
		if err := rows.Scan(&o.No, &o.ProjectNo, &o.Deadline); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, rows.Err()
}

// BulkRetriesStaged lists the bulk retries whose tasks were still being written.
func (r *reader) BulkRetriesStaged(limit int) ([]int64, error) {
	return r.numbers(sqlBulkRetriesStaged, limit)
}

// bulkListQuery is the statement of BulkRetryList; its arguments are project, id of the parent that a cursor names, limit.
func bulkListQuery(open, after bool) string {
	text := sqlBulkRetry + ` WHERE b.project_no = ? AND b.command_no IS NOT NULL`
	if open {
		text += ` AND b.is_open = 1`
	}
	if after {
		text += ` AND b.bulk_retry_no < coalesce((SELECT x.bulk_retry_no FROM bulk_retries x JOIN commands c ON c.command_no = x.command_no
			WHERE c.id = ?), 0)`
	}
	return text + ` ORDER BY b.bulk_retry_no DESC LIMIT ?`
}

// BulkRetryList returns a page of a project's bulk retries, newest first. The page's cursor holds the id of a parent.
func (r *reader) BulkRetryList(projectNo int64, open bool, page agent.Page) ([]bulkretry.BulkRetry, error) {
	args := []any{projectNo}
	if !page.After.IsZero() {
		args = append(args, page.After.ID)
	}
	rows, err := r.Query(bulkListQuery(open, !page.After.IsZero()), append(args, page.Limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []bulkretry.BulkRetry{}
	for rows.Next() {
		b, err := scanBulkRetry(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, rows.Err()
}

const sqlBulkRow = `SELECT t.bulk_retry_no, t.position, t.task_id, t.task_name, coalesce(t.command_no, 0), c.id, a.id, t.status,
	t.is_late, t.error, c.issued_at, c.completed_at FROM bulk_retry_tasks t LEFT JOIN commands c ON c.command_no = t.command_no
	LEFT JOIN agents a ON a.agent_no = c.agent_no`

func scanBulkRow(s scanner) (t bulkretry.TaskRow, err error) {
	var command, agentID uuid.NullUUID
	var issued, ended time.Time
	err = s.Scan(&t.BulkRetryNo, &t.Position, &t.TaskID, &t.TaskName, &t.CommandNo, &command, &agentID, &t.Status, &t.Late, &t.Error, &issued,
		&ended)
	t.CommandID, t.AgentID, t.IssuedAt, t.EndedAt = command.UUID, agentID.UUID, nonZero(issued), nonZero(ended)
	return t, err
}

const sqlBulkTaskOf = sqlBulkRow + ` WHERE t.command_no = ?`

// bulkRowsQuery is the statement of BulkRetryTasks.
func bulkRowsQuery(status bulkretry.TaskStatus) string {
	text := sqlBulkRow + ` WHERE t.bulk_retry_no = ? AND t.position > ?`
	switch status {
	case "":
	case bulkretry.Waiting, bulkretry.Issued:
		text += ` AND t.` + openBulkTasks + ` AND t.status = ?`
	default:
		text += ` AND t.status = ?`
	}
	return text + ` ORDER BY t.position LIMIT ?`
}

// BulkRetryTasks lists the tasks of a bulk retry after a position; "" is every status.
func (r *reader) BulkRetryTasks(no int64, status bulkretry.TaskStatus, after, limit int) ([]bulkretry.TaskRow, error) {
	args := []any{no, after}
	if status != "" {
		args = append(args, string(status))
	}
	rows, err := r.Query(bulkRowsQuery(status), append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []bulkretry.TaskRow
	for rows.Next() {
		t, err := scanBulkRow(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, rows.Err()
}

// BulkRetryTaskOf finds the task that a command is the child of.
func (r *reader) BulkRetryTaskOf(commandNo int64) (bulkretry.TaskRow, error) {
	return scanBulkRow(r.QueryRow(sqlBulkTaskOf, commandNo))
}

// BulkRetryCounts counts what is open over all projects: bulk retries, and tasks that they have still to do with.
func (r *reader) BulkRetryCounts() (n bulkretry.OpenCounts, err error) {
	err = r.QueryRow(sqlBulkRetryCounts).Scan(&n.BulkRetries, &n.Tasks)
	return n, err
}

// InsertBulkRetry stores a bulk retry that nobody sees yet and returns its number.
func (tx *Tx) InsertBulkRetry(b bulkretry.BulkRetry) (int64, error) {
	res, err := tx.Exec(`INSERT INTO bulk_retries (project_no, agent_no, engine, filter, request, total, is_open, created_at)
		VALUES (?, ?, ?, ?, ?, ?, 0, ?)`, b.ProjectNo, numberOrNull(b.AgentNo), b.Engine, string(b.Filter), b.Request, b.Total, tx.Now())
	return res.LastInsertID(), err
}

// InsertBulkRetryTasks stores tasks of a bulk retry from a position on.
func (tx *Tx) InsertBulkRetryTasks(no int64, position int, tasks []bulkretry.Task) error {
	for i := range tasks {
		if _, err := tx.Exec(`INSERT INTO bulk_retry_tasks (bulk_retry_no, position, task_id, task_name, finished_at, status)
			VALUES (?, ?, ?, ?, ?, 'waiting')`, no, position+i, tasks[i].TaskID, tasks[i].Name, timeArg(tasks[i].FinishedAt)); err != nil {
			return err
		}
	}
	return nil
}

const sqlBulkTaken = `SELECT count(*) FROM bulk_retry_tasks m JOIN bulk_retries o ON o.bulk_retry_no = m.bulk_retry_no
	JOIN bulk_retry_tasks r ON r.task_id = m.task_id AND r.finished_at IS m.finished_at AND ` + retriedTasks + `
	JOIN bulk_retries b ON b.bulk_retry_no = r.bulk_retry_no WHERE m.bulk_retry_no = ? AND r.bulk_retry_no <> m.bulk_retry_no
	AND b.project_no = o.project_no AND b.engine = o.engine AND b.command_no IS NOT NULL`

// BulkRetryTaken counts tasks of a bulk retry that another one has taken since they ended last.
func (r *reader) BulkRetryTaken(no int64) (n int, err error) {
	err = r.QueryRow(sqlBulkTaken, no).Scan(&n)
	return n, err
}

// OpenBulkRetry gives a bulk retry its parent: now it is there.
func (tx *Tx) OpenBulkRetry(no, commandNo int64) error {
	_, err := tx.Exec(`UPDATE bulk_retries SET command_no = ?, is_open = 1 WHERE bulk_retry_no = ?`, commandNo, no)
	return err
}

const (
	sqlBulkRemoveTasks = `DELETE FROM bulk_retry_tasks WHERE rowid IN (SELECT t.rowid FROM bulk_retry_tasks t
		JOIN bulk_retries b ON b.bulk_retry_no = t.bulk_retry_no WHERE t.bulk_retry_no = ? AND b.command_no IS NULL LIMIT ?)`
	sqlBulkCloseTasks = `UPDATE bulk_retry_tasks SET status = 'cancelled', error = ? WHERE bulk_retry_no = ? AND ` + openBulkTasks + `
		AND status = 'waiting'`
)

// RemoveBulkRetry removes a bulk retry that nobody has seen: at most limit of its tasks, and itself with the last of them.
// One that has its parent stays: who wrote it may not have heard that it was stored.
func (tx *Tx) RemoveBulkRetry(no int64, limit int) (done bool, err error) {
	res, err := tx.Exec(sqlBulkRemoveTasks, no, limit)
	if err != nil || res.RowsAffected() == int64(limit) {
		return false, err
	}
	_, err = tx.Exec(`DELETE FROM bulk_retries WHERE bulk_retry_no = ? AND command_no IS NULL`, no)
	return true, err
}

// UpdateBulkRetryTask stores status, child, lateness and error of a task.
func (tx *Tx) UpdateBulkRetryTask(t bulkretry.TaskRow) error {
	_, err := tx.Exec(`UPDATE bulk_retry_tasks SET status = ?, command_no = ?, is_late = ?, error = ? WHERE bulk_retry_no = ? AND position = ?`,
		string(t.Status), numberOrNull(t.CommandNo), t.Late, t.Error, t.BulkRetryNo, t.Position)
	return err
}

// bulkCounters are the columns that count tasks by how they ended.
var bulkCounters = map[bulkretry.TaskStatus]string{bulkretry.Completed: "completed", bulkretry.Failed: "failed",
	bulkretry.TimedOut: "timed_out", bulkretry.Refused: "refused", bulkretry.Cancelled: "cancelled"}

// CountBulkRetryTask counts a task that has ended.
func (tx *Tx) CountBulkRetryTask(no int64, status bulkretry.TaskStatus) error {
	column, ok := bulkCounters[status]
	if !ok {
		return nil
	}
	_, err := tx.Exec(`UPDATE bulk_retries SET `+column+` = `+column+` + 1 WHERE bulk_retry_no = ?`, no)
	return err
}

// SetBulkRetryWait stores why a bulk retry issues nothing; "": it does.
func (tx *Tx) SetBulkRetryWait(no int64, reason string) error {
	_, err := tx.Exec(`UPDATE bulk_retries SET wait_reason = ? WHERE bulk_retry_no = ? AND wait_reason IS NOT ?`,
		stringOrNull(reason), no, stringOrNull(reason))
	return err
}

// TouchBulkRetry moves the deadline of an open parent.
func (tx *Tx) TouchBulkRetry(commandNo int64, deadline time.Time) error {
	_, err := tx.Exec(`UPDATE commands SET timeout_at = ? WHERE command_no = ? AND `+openCommands, deadline, commandNo)
	return err
}

// CloseBulkRetry ends a bulk retry: what waits is cancelled.
func (tx *Tx) CloseBulkRetry(no int64, reason string) error {
	res, err := tx.Exec(sqlBulkCloseTasks, reason, no)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE bulk_retries SET cancelled = cancelled + ?, is_open = 0, ended_at = ?, wait_reason = NULL
		WHERE bulk_retry_no = ? AND is_open = 1`, res.RowsAffected(), tx.Now(), no)
	return err
}
