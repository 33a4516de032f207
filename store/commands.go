package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

var (
	_ agent.CommandTx     = (*Tx)(nil)
	_ agent.CommandReadTx = (*ReadTx)(nil)
)

const commandColumns = `c.command_no, c.id, c.project_no, p.id, coalesce(c.agent_no, 0), a.id, c.issued_by, c.action,
	c.target_type, c.target_id, c.payload, coalesce(c.retry_engine, ''), c.idempotency_key, c.status, c.result, c.error,
	c.issued_at, c.dispatched_at, c.acked_at, c.completed_at, c.timeout_at, c.source_ip, coalesce(c.parent_no, 0)`

const fromCommands = ` FROM commands c JOIN projects p ON p.project_no = c.project_no
	LEFT JOIN agents a ON a.agent_no = c.agent_no`

// handedCommands are the open commands whose deadline the sweep keeps: the parents of bulk retries have no agent, and their
// deadline is that of the whole.
const handedCommands = openCommands + ` AND agent_no IS NOT NULL`

// openCommands is the condition of the partial indexes over open commands.
const openCommands = `status IN ('pending', 'dispatched')`

// redeliverable is agent.RedeliverableActions as an SQL list.
var redeliverable = sqlList(agent.RedeliverableActions())

// sqlList quotes names of our own, which hold no quotes.
func sqlList(names []string) string {
	out := "("
	for i, name := range names {
		if i > 0 {
			out += ", "
		}
		out += "'" + name + "'"
	}
	return out + ")"
}

// commandRow is where a command's columns are scanned to.
type commandRow struct {
	c                            agent.Command
	agentID                      uuid.NullUUID
	dispatched, acked, completed time.Time
}

func (r *commandRow) dest() []any {
	c := &r.c
	return []any{&c.No, &c.ID, &c.ProjectNo, &c.ProjectID, &c.AgentNo, &r.agentID, &c.IssuedBy, &c.Action,
		&c.TargetType, &c.TargetID, &c.Payload, &c.RetryEngine, &c.IdempotencyKey, &c.Status, &c.Result, &c.Error,
		&c.IssuedAt, &r.dispatched, &r.acked, &r.completed, &c.TimeoutAt, &c.SourceIP, &c.ParentNo}
}

func (r *commandRow) command() agent.Command {
	c := r.c
	c.AgentID = r.agentID.UUID
	c.DispatchedAt, c.AckedAt, c.CompletedAt = nonZero(r.dispatched), nonZero(r.acked), nonZero(r.completed)
	return c
}

func (r *reader) command(where string, args ...any) (agent.Command, error) {
	var row commandRow
	err := r.QueryRow(`SELECT `+commandColumns+fromCommands+` WHERE `+where, args...).Scan(row.dest()...)
	if err != nil {
		return agent.Command{}, err
	}
	return row.command(), nil
}

// CommandByNo finds a command by its number.
func (r *reader) CommandByNo(no int64) (agent.Command, error) {
	return r.command(`c.command_no = ?`, no)
}

// CommandByID finds a command of the project.
func (r *reader) CommandByID(projectNo int64, id uuid.UUID) (agent.Command, error) {
	return r.command(`c.id = ? AND c.project_no = ?`, id, projectNo)
}

// CommandOfAgent finds a command under its own agent and project only.
func (r *reader) CommandOfAgent(projectNo, agentNo int64, id uuid.UUID) (agent.Command, error) {
	return r.command(`c.id = ? AND c.project_no = ? AND c.agent_no = ?`, id, projectNo, agentNo)
}

// CommandByKey finds a command by its idempotency key.
func (r *reader) CommandByKey(projectNo int64, idempotencyKey string) (agent.Command, error) {
	return r.command(`c.project_no = ? AND c.idempotency_key = ?`, projectNo, idempotencyKey)
}

// CommandList returns a page of the project's commands, newest first. Numbers grow with the time of issue, so the order
// of numbers is the order of the list.
func (r *reader) CommandList(projectNo int64, f agent.CommandFilter, page agent.Page) ([]agent.Command, error) {
	query := `SELECT ` + commandColumns + fromCommands + ` WHERE c.project_no = ?`
	args := []any{projectNo}
	add := func(condition string, values ...any) {
		query += ` AND ` + condition
		args = append(args, values...)
	}
	if f.Status != "" {
		add(`c.status = ?`, string(f.Status))
	}
	if f.AgentID != uuid.Nil {
		add(`a.id = ?`, f.AgentID)
	}
	if f.Action != "" {
		add(`c.action = ?`, f.Action)
	}
	if !f.Since.IsZero() {
		add(`c.issued_at >= ?`, f.Since)
	}
	if !page.After.IsZero() {
		var no int64
		err := noRowIsZero(r.QueryRow(`SELECT command_no FROM commands WHERE id = ? AND project_no = ?`, page.After.ID,
			projectNo).Scan(&no))
		switch {
		case err != nil:
			return nil, err
		case no > 0:
			add(`c.command_no < ?`, no)
		default: // retention has removed it: its time still tells the place
			add(`c.issued_at < ?`, page.After.At)
		}
	}
	rows, err := r.Query(query+` ORDER BY c.command_no DESC LIMIT ?`, append(args, page.Limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.Command{}
	for rows.Next() {
		var row commandRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		out = append(out, row.command())
	}
	return out, rows.Err()
}

// CommandsWithPrefix returns ids of the project's commands in [from, to]. The plus keeps the query on the index of ids:
// a prefix leaves few of them, a project has many.
func (r *reader) CommandsWithPrefix(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM commands WHERE id BETWEEN ? AND ? AND +project_no = ? ORDER BY id LIMIT ?`,
		from, to, projectNo, limit)
}

// CommandCounts counts the open commands.
func (r *reader) CommandCounts() (n agent.CommandCounts, err error) {
	err = r.QueryRow(`SELECT count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'dispatched'),
		min(dispatched_at) FILTER (WHERE status = 'dispatched' AND acked_at IS NULL)
		FROM commands WHERE `+openCommands).Scan(&n.Pending, &n.Dispatched, &n.OldestUnacked)
	return n, err
}

// CommandsDeliverable lists what a session may try to claim: the children of bulk retries, then the others, each in the
// order of issue. Rows past their deadline are the sweep's.
func (r *reader) CommandsDeliverable(q agent.Deliverable) ([]agent.DeliverableRow, error) {
	engines, err := jsonList(q.RetryEngines)
	if err != nil {
		return nil, err
	}
	const served = ` AND (retry_engine IS NULL OR retry_engine IN (SELECT value FROM json_each(?))) ORDER BY issued_at, command_no LIMIT ?`
	out, err := r.deliverable(nil, `SELECT command_no, status FROM commands WHERE agent_no = ? AND parent_no IS NOT NULL
		AND status = 'pending' AND timeout_at >= ?`+served, q.AgentNo, r.now, engines, q.Limit)
	if err != nil || len(out) == q.Limit {
		return out, err
	}
	return r.deliverable(out, `SELECT command_no, status FROM commands WHERE agent_no = ? AND `+openCommands+`
		AND parent_no IS NULL AND timeout_at >= ?
		AND (status = 'pending' OR (? AND dispatched_at BETWEEN ? AND ? AND action IN `+redeliverable+`))`+served,
		q.AgentNo, r.now, q.Redispatch, q.SentAfter, q.SentUpTo, engines, q.Limit-len(out))
}

func (r *reader) deliverable(out []agent.DeliverableRow, text string, args ...any) ([]agent.DeliverableRow, error) {
	rows, err := r.Query(text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var row agent.DeliverableRow
		if err := rows.Scan(&row.CommandNo, &row.Status); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// CommandNextDispatchedAt returns the earliest hand-over after the time among the agent's dispatched rows of
// redeliverable actions that live at least until interval after it.
func (r *reader) CommandNextDispatchedAt(agentNo int64, after time.Time, interval time.Duration) (at time.Time, err error) {
	err = r.QueryRow(`SELECT min(dispatched_at) FROM commands WHERE agent_no = ? AND `+openCommands+`
		AND status = 'dispatched' AND action IN `+redeliverable+` AND dispatched_at > ? AND dispatched_at + ? <= timeout_at`,
		agentNo, after, interval.Microseconds()).Scan(&at)
	return at, err
}

// CommandsExpired lists open commands whose deadline lies before now, the longest over first.
func (r *reader) CommandsExpired(now time.Time, limit int) ([]int64, error) {
	return r.numbers(`SELECT command_no FROM commands WHERE `+handedCommands+` AND timeout_at < ?
		ORDER BY timeout_at LIMIT ?`, now, limit)
}

// CommandDeadlineAfter tells whether an open command's deadline lies after the time.
func (r *reader) CommandDeadlineAfter(latest time.Time) (found bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM commands WHERE `+handedCommands+` AND timeout_at > ?)`, latest).Scan(&found)
	return found, err
}

// CommandsBoundDeadlines brings every deadline of an open command that lies after the time forward to it.
func (tx *Tx) CommandsBoundDeadlines(latest time.Time) error {
	_, err := tx.Exec(`UPDATE commands SET timeout_at = ? WHERE `+handedCommands+` AND timeout_at > ?`, latest, latest)
	return err
}

// CommandsStranded lists dispatched, unacked commands of redeliverable actions whose deadline lies ahead of now and whose
// last hand-over was to a WebSocket session.
func (r *reader) CommandsStranded(now time.Time, limit int) ([]int64, error) {
	return r.numbers(`SELECT c.command_no FROM commands c WHERE `+openCommands+` AND c.status = 'dispatched'
		AND c.timeout_at >= ? AND c.acked_at IS NULL AND c.action IN `+redeliverable+`
		AND (SELECT d.transport FROM deliveries d WHERE d.command_no = c.command_no ORDER BY d.attempt DESC LIMIT 1) = 'ws'
		ORDER BY c.timeout_at LIMIT ?`, now, limit)
}

// CommandsPendingAgents lists the agents above the number that have a pending command, by number.
func (r *reader) CommandsPendingAgents(above int64, limit int) ([]int64, error) {
	return r.numbers(`SELECT DISTINCT agent_no FROM commands WHERE `+openCommands+` AND status = 'pending'
		AND agent_no > ? ORDER BY agent_no LIMIT ?`, above, limit)
}

// CommandNextDeadline returns the earliest deadline of an open command.
func (r *reader) CommandNextDeadline() (at time.Time, err error) {
	err = r.QueryRow(`SELECT min(timeout_at) FROM commands WHERE ` + handedCommands).Scan(&at)
	return at, err
}
