package store

import (
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

const sqlFindTask = `SELECT task_no, name, state, priority, received_at, started_at, finished_at FROM tasks
WHERE project_no = ? AND engine = ? AND task_id = ?`

// FindTask reads what the projection needs; the zero TaskHead when there is no such task.
func (r *reader) FindTask(projectNo int64, engine, taskID string) (h agent.TaskHead, err error) {
	rows, err := r.Query(sqlFindTask, projectNo, engine, taskID)
	if err != nil {
		return h, err
	}
	defer rows.Close()
	if !rows.Next() {
		return h, rows.Err()
	}
	var received, started, finished sql.NullInt64
	err = rows.Scan(&h.No, &h.Name, &h.State, &h.Priority, &received, &started, &finished)
	h.ReceivedAt, h.StartedAt, h.FinishedAt = optionalTime(received), optionalTime(started), optionalTime(finished)
	return h, err
}

// NextTaskNo is the number that the next new task gets: one more than any before, deleted ones included.
func (r *reader) NextTaskNo() (int64, error) {
	n, err := r.sequence("tasks")
	return n + 1, err
}

const sqlInsertTask = `INSERT INTO tasks (task_no, id, project_no, engine, task_id, name, queue, state, priority, args, kwargs,
result, exception, traceback, retry_count, eta, received_at, started_at, finished_at, runtime_ms, worker_name,
parent_task_id, root_task_id, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// InsertTask stores a task under t.No.
func (tx *Tx) InsertTask(projectNo int64, t *agent.Task) error {
	_, err := tx.Exec(sqlInsertTask, t.No, t.ID[:], projectNo, t.Engine, t.TaskID, t.Name, t.Queue, t.State, t.Priority,
		taskJSON(t.Args), taskJSON(t.Kwargs), taskJSON(t.Result), t.Exception, t.Traceback, t.RetryCount, timeArg(t.ETA),
		timeArg(t.ReceivedAt), timeArg(t.StartedAt), timeArg(t.FinishedAt), t.RuntimeMS, t.WorkerName, t.ParentTaskID,
		t.RootTaskID, t.CreatedAt.UnixMicro(), t.UpdatedAt.UnixMicro())
	return err
}

// taskColumn is one group of UpdateTask. Values that an event may leave out keep what is stored: the projection works on
// a TaskHead, which does not have them.
type taskColumn struct {
	field agent.TaskFields
	set   string
	args  func(t *agent.Task, args []any) []any
}

var taskColumns = []taskColumn{
	{agent.TaskFieldState, "state = ?", func(t *agent.Task, a []any) []any { return append(a, t.State) }},
	{agent.TaskFieldReceived, `received_at = ?, args = coalesce(?, args), kwargs = coalesce(?, kwargs),
queue = coalesce(?, queue), name = ?, parent_task_id = coalesce(?, parent_task_id), root_task_id = coalesce(?, root_task_id)`,
		func(t *agent.Task, a []any) []any {
			return append(a, timeArg(t.ReceivedAt), taskJSON(t.Args), taskJSON(t.Kwargs), t.Queue, t.Name, t.ParentTaskID,
				t.RootTaskID)
		}},
	{agent.TaskFieldStarted, "started_at = ?, worker_name = coalesce(?, worker_name)",
		func(t *agent.Task, a []any) []any { return append(a, timeArg(t.StartedAt), t.WorkerName) }},
	{agent.TaskFieldFinished, "finished_at = ?", func(t *agent.Task, a []any) []any { return append(a, timeArg(t.FinishedAt)) }},
	{agent.TaskFieldOutcome, "result = ?, runtime_ms = ?",
		func(t *agent.Task, a []any) []any { return append(a, taskJSON(t.Result), t.RuntimeMS) }},
	{agent.TaskFieldException, "exception = ?, traceback = ?",
		func(t *agent.Task, a []any) []any { return append(a, t.Exception, t.Traceback) }},
	{agent.TaskFieldRetry, "retry_count = ?", func(t *agent.Task, a []any) []any { return append(a, t.RetryCount) }},
	{agent.TaskFieldPriority, "priority = ?", func(t *agent.Task, a []any) []any { return append(a, t.Priority) }},
}

// taskUpdates holds the statement of every combination of groups, without and with a guard; the texts must be few and
// constant, for each is prepared once.
var taskUpdates = sync.OnceValue(func() [2][]string {
	var texts [2][]string
	for mask := range 1 << len(taskColumns) {
		var b strings.Builder
		b.WriteString("UPDATE tasks SET ")
		for _, c := range taskColumns {
			if agent.TaskFields(mask)&c.field != 0 {
				b.WriteString(c.set + ", ")
			}
		}
		b.WriteString("updated_at = ? WHERE task_no = ?")
		texts[0] = append(texts[0], b.String())
		b.WriteString(" AND state = ? AND received_at IS ? AND started_at IS ? AND finished_at IS ?")
		texts[1] = append(texts[1], b.String())
	}
	return texts
})

// UpdateTask writes the groups of columns named by set. With a guard it does so only while state and times of the row
// are those of the guard, and reports whether they were.
func (tx *Tx) UpdateTask(t *agent.Task, set agent.TaskFields, guard *agent.TaskHead) (bool, error) {
	args := make([]any, 0, 24)
	for _, c := range taskColumns {
		if set&c.field != 0 {
			args = c.args(t, args)
		}
	}
	args = append(args, t.UpdatedAt.UnixMicro(), t.No)
	text := taskUpdates()[0][set]
	if guard != nil {
		text = taskUpdates()[1][set]
		args = append(args, guard.State, timeArg(guard.ReceivedAt), timeArg(guard.StartedAt), timeArg(guard.FinishedAt))
	}
	res, err := tx.Exec(text, args...)
	return res.RowsAffected() == 1, err
}

const sqlRelinkEvents = `UPDATE events SET task_no = ? WHERE task_no = ?`

// RelinkEvents gives the events of one task number another.
func (tx *Tx) RelinkEvents(from, to int64) error {
	_, err := tx.Exec(sqlRelinkEvents, to, from)
	return err
}

const sqlTaskSelect = `SELECT t.task_no, t.id, p.id, t.engine, t.task_id, t.name, t.queue, t.state, t.priority, t.args, t.kwargs,
t.result, t.exception, t.traceback, t.retry_count, t.eta, t.received_at, t.started_at, t.finished_at, t.runtime_ms,
t.worker_name, t.parent_task_id, t.root_task_id, t.tags, t.created_at, t.updated_at
FROM tasks t CROSS JOIN projects p ON p.project_no = t.project_no`

// ListTasks returns a page of tasks, newest first.
func (r *reader) ListTasks(projectNo int64, f agent.TaskFilter, page agent.Page) ([]agent.Task, error) {
	text, args := tasksQuery(projectNo, f, page)
	rows, err := r.Query(text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.Task
	for rows.Next() {
		t, err := scanTask(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, rows.Err()
}

func tasksQuery(projectNo int64, f agent.TaskFilter, page agent.Page) (string, []any) {
	q := query{}
	q.tasks(projectNo, f)
	if !page.After.IsZero() {
		q.and("t.id < ?", page.After.ID)
	}
	return q.text(sqlTaskSelect) + ` ORDER BY t.id DESC LIMIT ?`, append(q.args, page.Limit)
}

// tasks adds the conditions of a filter.
func (q *query) tasks(projectNo int64, f agent.TaskFilter) {
	q.and("t.project_no = ?", projectNo)
	if f.State == agent.TaskFailure {
		q.and("t.state = 'failure'") // as a literal it may use the index of failures
	} else {
		q.equal("t.state", f.State)
	}
	q.equal("t.priority", f.Priority)
	q.equal("t.name", f.Name)
	q.equal("t.queue", f.Queue)
	q.equal("t.worker_name", f.Worker)
	if f.Search != "" {
		like := "%" + likeEscaper.Replace(f.Search) + "%"
		q.and(`(t.name LIKE ? ESCAPE '\' OR t.task_id LIKE ? ESCAPE '\')`, like, like)
	}
	if !f.Since.IsZero() {
		q.and("t.created_at >= ?", f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		q.and("t.created_at < ?", f.Until.UnixMicro())
	}
}

var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// GetTask finds a task by its identity.
func (r *reader) GetTask(projectNo int64, engine, taskID string) (agent.Task, error) {
	return scanTask(r.QueryRow(sqlTaskSelect+` WHERE t.project_no = ? AND t.engine = ? AND t.task_id = ?`, projectNo, engine,
		taskID))
}

// TasksOfRoot returns the tasks whose root is rootID, and the root itself, in order of arrival.
func (r *reader) TasksOfRoot(projectNo int64, engine, rootID string, limit int) ([]agent.TaskNode, error) {
	const text = `SELECT task_id, name, state, parent_task_id, root_task_id, received_at, finished_at FROM (
SELECT * FROM tasks WHERE project_no = ?1 AND root_task_id = ?3 AND root_task_id IS NOT NULL AND engine = ?2
UNION SELECT * FROM tasks WHERE project_no = ?1 AND engine = ?2 AND task_id = ?3) ORDER BY task_no LIMIT ?4`
	rows, err := r.Query(text, projectNo, engine, rootID, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.TaskNode
	for rows.Next() {
		var n agent.TaskNode
		var received, finished sql.NullInt64
		if err := rows.Scan(&n.TaskID, &n.Name, &n.State, &n.ParentTaskID, &n.RootTaskID, &received, &finished); err != nil {
			return nil, err
		}
		n.ReceivedAt, n.FinishedAt = optionalTime(received), optionalTime(finished)
		out = append(out, n)
	}
	return out, rows.Err()
}

const sqlDeleteTask = `DELETE FROM tasks WHERE project_no = ? AND id = ?`

// DeleteTask removes one task of the project and reports whether it was there.
func (tx *Tx) DeleteTask(projectNo int64, id uuid.UUID) (bool, error) {
	res, err := tx.Exec(sqlDeleteTask, projectNo, id)
	return res.RowsAffected() == 1, err
}

// TaskIDs lists tasks that pass the filter with ids in (after, upTo], oldest first.
func (r *reader) TaskIDs(projectNo int64, f agent.TaskFilter, after, upTo uuid.UUID, limit int) ([]uuid.UUID, error) {
	q := query{}
	q.tasks(projectNo, f)
	q.and("t.id > ? AND t.id <= ?", after, upTo)
	return r.scanIDs(q.text(`SELECT t.id FROM tasks t`)+` ORDER BY t.id LIMIT ?`, append(q.args, limit)...)
}

// DeleteTasks removes those of the tasks that pass the filter.
func (tx *Tx) DeleteTasks(projectNo int64, f agent.TaskFilter, ids []uuid.UUID) (removed int, err error) {
	q := query{}
	q.tasks(projectNo, f)
	q.and("t.id = ?", uuid.Nil)
	text := q.text(`DELETE FROM tasks AS t`)
	for _, id := range ids {
		q.args[len(q.args)-1] = id
		res, err := tx.Exec(text, q.args...)
		if err != nil {
			return 0, err
		}
		removed += int(res.RowsAffected())
	}
	return removed, nil
}

const sqlPruneTasksScan = `SELECT t.task_no, t.id, t.updated_at,
EXISTS (SELECT 1 FROM events e WHERE e.task_no = t.task_no)
FROM tasks t WHERE t.project_no = ? AND t.id > ? AND t.id < ? ORDER BY t.id LIMIT ?`

const sqlDeleteTaskNo = `DELETE FROM tasks WHERE task_no = ?`

// PruneTasks looks at the scan next tasks in (after, before), oldest first, and removes those that were not changed
// since the cutoff and have no events left. next is the last one looked at, the nil UUID at the end.
func (tx *Tx) PruneTasks(projectNo int64, cutoff time.Time, after, before uuid.UUID, scan int) (removed int, next uuid.UUID, err error) {
	rows, err := tx.Query(sqlPruneTasksScan, projectNo, after, before, scan)
	if err != nil {
		return 0, next, err
	}
	defer rows.Close()
	var gone []int64
	seen := 0
	for rows.Next() {
		var no int64
		var updated time.Time
		var events bool
		if err := rows.Scan(&no, &next, &updated, &events); err != nil {
			return 0, next, err
		}
		if seen++; !events && updated.Before(cutoff) {
			gone = append(gone, no)
		}
	}
	if err := rows.Err(); err != nil {
		return 0, next, err
	}
	if err := rows.Close(); err != nil {
		return 0, next, err
	}
	for _, no := range gone {
		if _, err := tx.Exec(sqlDeleteTaskNo, no); err != nil {
			return 0, next, err
		}
	}
	if seen < scan {
		next = uuid.Nil
	}
	return len(gone), next, nil
}

// scanner is a row of a query.
type scanner interface{ Scan(dest ...any) error }

func scanTask(s scanner) (t agent.Task, err error) {
	var eta, received, started, finished sql.NullInt64
	err = s.Scan(&t.No, &t.ID, &t.ProjectID, &t.Engine, &t.TaskID, &t.Name, &t.Queue, &t.State, &t.Priority, &t.Args,
		&t.Kwargs, &t.Result, &t.Exception, &t.Traceback, &t.RetryCount, &eta, &received, &started, &finished, &t.RuntimeMS,
		&t.WorkerName, &t.ParentTaskID, &t.RootTaskID, &t.Tags, &t.CreatedAt, &t.UpdatedAt)
	t.ETA, t.ReceivedAt, t.StartedAt, t.FinishedAt = optionalTime(eta), optionalTime(received), optionalTime(started),
		optionalTime(finished)
	return t, err
}

// optionalTime is a nullable column of microseconds as a pointer.
func optionalTime(n sql.NullInt64) *time.Time {
	if !n.Valid {
		return nil
	}
	t := time.UnixMicro(n.Int64).UTC()
	return &t
}

// timeArg binds an optional time.
func timeArg(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMicro()
}

// taskJSON binds optional JSON: columns of STRICT tables take text, not blobs.
func taskJSON(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}
