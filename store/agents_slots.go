package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

const selectSlots = `SELECT w.id, a.id, p.id, nullif(w.worker_id, ''), w.role, w.framework, w.pid, w.started_at, w.state,
	w.last_seen_at, w.last_connect_at, w.created_at, w.updated_at
	FROM agent_workers w JOIN agents a ON a.agent_no = w.agent_no JOIN projects p ON p.project_no = a.project_no`

// AgentSlots returns the worker slots of one agent, or of every live agent of the project when agentNo is 0: at most
// limit of them, the latest connected first.
func (r *reader) AgentSlots(projectNo, agentNo int64, limit int) ([]agent.AgentWorker, error) {
	query, key := selectSlots+` WHERE a.project_no = ? AND a.revoked_at IS NULL`, projectNo
	if agentNo != 0 {
		query, key = selectSlots+` WHERE w.agent_no = ?`, agentNo
	}
	rows, err := r.Query(query+` ORDER BY w.last_connect_at DESC, w.agent_worker_no DESC LIMIT ?`, key, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.AgentWorker{}
	for rows.Next() {
		var w agent.AgentWorker
		var started time.Time
		if err := rows.Scan(&w.ID, &w.AgentID, &w.ProjectID, &w.WorkerID, &w.Role, &w.Framework, &w.PID, &started,
			&w.State, &w.LastSeenAt, &w.LastConnectAt, &w.CreatedAt, &w.UpdatedAt); err != nil {
			return nil, err
		}
		w.StartedAt = nonZero(started)
		out = append(out, w)
	}
	return out, rows.Err()
}

// SetSlotOnline inserts or updates the worker slot of a hello. id is used when the slot is new.
func (tx *Tx) SetSlotOnline(agentNo int64, id uuid.UUID, h agent.Hello) error {
	var role *string
	if h.WorkerRole != "" {
		role = &h.WorkerRole
	}
	now := tx.Now()
	_, err := tx.Exec(`INSERT INTO agent_workers (id, agent_no, worker_id, role, framework, pid, started_at, state,
		last_seen_at, last_connect_at, created_at, updated_at) VALUES (?,?,?,?,?,?,?,'online',?,?,?,?)
		ON CONFLICT (agent_no, worker_id) DO UPDATE SET role = excluded.role, framework = excluded.framework,
		pid = excluded.pid, started_at = excluded.started_at, state = 'online', last_seen_at = excluded.last_seen_at,
		last_connect_at = excluded.last_connect_at, updated_at = excluded.updated_at`,
		id, agentNo, h.WorkerID, role, h.Framework, h.WorkerPID, orNull(h.WorkerStartedAt), now, now, now, now)
	return err
}

// SetSlotOffline ends a slot unless another connection than that of connectedAt has it.
func (tx *Tx) SetSlotOffline(agentNo int64, worker string, connectedAt time.Time) error {
	_, err := tx.Exec(`UPDATE agent_workers SET state = 'offline', updated_at = ?
		WHERE agent_no = ? AND worker_id = ? AND state = 'online' AND last_connect_at = ?`,
		tx.Now(), agentNo, worker, connectedAt)
	return err
}

// SetAllSlotsOffline ends every slot and returns how many were online.
func (tx *Tx) SetAllSlotsOffline() (int, error) {
	res, err := tx.Exec(`UPDATE agent_workers SET state = 'offline', updated_at = ? WHERE state = 'online'`, tx.Now())
	return int(res.RowsAffected()), err
}

// DeleteSlots removes at most limit offline slots last seen before the time.
func (tx *Tx) DeleteSlots(before time.Time, limit int) (int, error) {
	res, err := tx.Exec(`DELETE FROM agent_workers WHERE agent_worker_no IN
		(SELECT agent_worker_no FROM agent_workers WHERE state = 'offline' AND last_seen_at < ? LIMIT ?)`, before, limit)
	return int(res.RowsAffected()), err
}
