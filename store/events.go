package store

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

var (
	_ agent.RouterTx      = (*Tx)(nil)
	_ agent.RouterReadTx  = (*ReadTx)(nil)
	_ agent.RecordsTx     = (*Tx)(nil)
	_ agent.RecordsReadTx = (*ReadTx)(nil)
)

// Whichever of the two identities is taken, the event is stored already.
const sqlInsertEvent = `INSERT INTO events (id, project_no, agent_no, task_no, engine, task_id, kind, occurred_at,
time_replaced, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`

// InsertEvent stores an event unless one of the same identity is stored already, and sets its position.
func (tx *Tx) InsertEvent(e *agent.NewEvent) (added bool, err error) {
	var taskNo any
	if e.TaskNo != 0 {
		taskNo = e.TaskNo
	}
	res, err := tx.Exec(sqlInsertEvent, e.ID[:], e.ProjectNo, e.AgentNo, taskNo, e.Engine, e.TaskID, e.Kind,
		e.OccurredAt.UnixMicro(), e.TimeReplaced, e.Payload)
	if err != nil || res.RowsAffected() != 1 {
		return false, err
	}
	e.No = res.LastInsertID()
	return true, nil
}

// CROSS fixes the order of the joins: the events lead, in the order that is asked for.
const sqlEventColumns = `SELECT e.event_no, e.id, p.id, a.id, e.engine, e.task_id, e.kind, e.occurred_at, e.payload
FROM events e CROSS JOIN projects p ON p.project_no = e.project_no CROSS JOIN agents a ON a.agent_no = e.agent_no`

// ListEvents returns a page of events, newest first by (occurred_at, id).
func (r *reader) ListEvents(projectNo int64, f agent.EventFilter, page agent.Page) ([]agent.Event, error) {
	var taskNo int64
	if f.Engine != "" && f.TaskID != "" {
		// The events of one task are few and have their own index, but only while the task's row exists.
		h, err := r.FindTask(projectNo, f.Engine, f.TaskID)
		if err != nil {
			return nil, err
		}
		if taskNo = h.No; taskNo != 0 {
			f.Engine, f.TaskID = "", ""
		}
	}
	text, args := eventsQuery(projectNo, taskNo, f, page)
	return r.events(text, args...)
}

// eventsQuery is the statement of ListEvents. With a task's number it reads by that alone: a condition on the project
// would tempt the planner to walk the project's whole history.
func eventsQuery(projectNo, taskNo int64, f agent.EventFilter, page agent.Page) (string, []any) {
	q := query{}
	if taskNo != 0 {
		q.and("e.task_no = ?", taskNo)
	} else {
		q.and("e.project_no = ?", projectNo)
	}
	q.events(f)
	if !page.After.IsZero() {
		q.and("(e.occurred_at, e.id) < (?, ?)", page.After.At.UnixMicro(), page.After.ID)
	}
	if !f.Since.IsZero() {
		q.and("e.occurred_at >= ?", f.Since.UnixMicro())
	}
	return q.text(sqlEventColumns) + ` ORDER BY e.occurred_at DESC, e.id DESC LIMIT ?`, append(q.args, page.Limit)
}

// EventsBetween returns the project's events with positions in (after, upTo], oldest first.
func (r *reader) EventsBetween(projectNo, after, upTo int64, f agent.EventFilter, limit int) ([]agent.Event, error) {
	text, args := streamQuery(projectNo, after, upTo, f, limit)
	return r.events(text, args...)
}

func streamQuery(projectNo, after, upTo int64, f agent.EventFilter, limit int) (string, []any) {
	q := query{}
	q.and("e.event_no > ? AND e.event_no <= ?", after, upTo)
	// The unary plus keeps the planner on the log itself: any index on the project is ordered by time, not by position.
	q.and("+e.project_no = ?", projectNo)
	q.events(f)
	if !f.Since.IsZero() {
		q.and("+e.occurred_at >= ?", f.Since.UnixMicro())
	}
	return q.text(sqlEventColumns) + ` ORDER BY e.event_no LIMIT ?`, append(q.args, limit)
}

func (q *query) events(f agent.EventFilter) {
	q.equal("e.engine", f.Engine)
	q.equal("e.task_id", f.TaskID)
	q.equal("e.kind", f.Kind)
	if f.AgentID != uuid.Nil {
		q.and("e.agent_no = (SELECT agent_no FROM agents WHERE id = ?)", f.AgentID)
	}
}

func (r *reader) events(text string, args ...any) ([]agent.Event, error) {
	rows, err := r.Query(text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.Event
	for rows.Next() {
		var e agent.Event
		if err := rows.Scan(&e.No, &e.ID, &e.ProjectID, &e.AgentID, &e.Engine, &e.TaskID, &e.Kind, &e.OccurredAt,
			&e.Payload); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, rows.Err()
}

const (
	sqlSequence  = `SELECT seq FROM sqlite_sequence WHERE name = ?`
	sqlMetaInt   = `SELECT CAST(value AS TEXT) FROM meta WHERE key = ?`
	sqlRaiseMeta = `INSERT INTO meta (key, value) VALUES (?1, CAST(?2 AS BLOB))
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE CAST(CAST(value AS TEXT) AS INTEGER) < CAST(?2 AS INTEGER)`
)

// EventBounds returns the ends of the project's log of events.
func (r *reader) EventBounds(projectNo int64) (b agent.EventBounds, err error) {
	if b.Head, err = r.sequence("events"); err != nil {
		return b, err
	}
	var text string
	err = r.QueryRow(sqlMetaInt, eventsPrunedKey(projectNo)).Scan(&text)
	if fault.Is(err, fault.NotFound) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	b.Pruned, err = strconv.ParseInt(text, 10, 64)
	return b, mapError(err)
}

func eventsPrunedKey(projectNo int64) string {
	return "events_pruned:" + strconv.FormatInt(projectNo, 10)
}

// sequence returns the highest number that an AUTOINCREMENT table ever gave.
func (r *reader) sequence(table string) (int64, error) {
	var n int64
	err := r.QueryRow(sqlSequence, table).Scan(&n)
	if fault.Is(err, fault.NotFound) {
		return 0, nil
	}
	return n, err
}

const sqlEventsExpired = `SELECT EXISTS (SELECT 1 FROM events WHERE project_no = ? AND occurred_at < ?)`

// EventsExpired tells whether the project has events before the cutoff.
func (r *reader) EventsExpired(projectNo int64, cutoff time.Time) (found bool, err error) {
	err = r.QueryRow(sqlEventsExpired, projectNo, cutoff.UnixMicro()).Scan(&found)
	return found, err
}

const sqlPruneEvents = `DELETE FROM events WHERE event_no IN
(SELECT event_no FROM events WHERE project_no = ? AND occurred_at < ? ORDER BY occurred_at, id LIMIT ?) RETURNING event_no`

// PruneEvents removes at most limit of the project's oldest events before the cutoff, and raises the low watermark of
// its log to the highest position removed.
func (tx *Tx) PruneEvents(projectNo int64, cutoff time.Time, limit int) (removed int, err error) {
	rows, err := tx.Query(sqlPruneEvents, projectNo, cutoff.UnixMicro(), limit)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var highest int64
	for rows.Next() {
		var no int64
		if err := rows.Scan(&no); err != nil {
			return 0, err
		}
		highest = max(highest, no)
		removed++
	}
	if err := rows.Close(); err != nil || removed == 0 {
		return 0, err
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	_, err = tx.Exec(sqlRaiseMeta, eventsPrunedKey(projectNo), strconv.FormatInt(highest, 10))
	return removed, err
}

const sqlRetention = `SELECT project_no, retention_days FROM projects ORDER BY project_no`

// Retention lists the projects with how long they keep their records, archived ones included.
func (r *reader) Retention() ([]agent.ProjectRetention, error) {
	rows, err := r.Query(sqlRetention)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.ProjectRetention
	for rows.Next() {
		var p agent.ProjectRetention
		if err := rows.Scan(&p.ProjectNo, &p.Days); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, rows.Err()
}

// query collects conditions with their arguments.
type query struct {
	conds []string
	args  []any
}

func (q *query) and(cond string, args ...any) {
	q.conds = append(q.conds, cond)
	q.args = append(q.args, args...)
}

// equal adds a condition unless the value is empty.
func (q *query) equal(column, value string) {
	if value != "" {
		q.and(column+" = ?", value)
	}
}

// text returns the statement with its conditions.
func (q *query) text(head string) string {
	if len(q.conds) == 0 {
		return head
	}
	return head + " WHERE " + strings.Join(q.conds, " AND ")
}
