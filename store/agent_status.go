package store

import (
	"time"

	"signalbox/appliance/agent"
)

const sqlAddAgentStatus = `INSERT INTO agent_status (agent_no, captured_at, received_at, payload) VALUES (?, ?, ?, ?)`

// AddAgentStatus appends to the history of an agent.
func (tx *Tx) AddAgentStatus(s agent.AgentStatusSample) error {
	_, err := tx.Exec(sqlAddAgentStatus, s.AgentNo, s.CapturedAt.UnixMicro(), s.ReceivedAt.UnixMicro(), s.Payload)
	return err
}

const sqlSetTelemetryLoss = `INSERT INTO telemetry_losses (agent_no, buffer_id, runtime_id, payload, first_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT (agent_no, buffer_id, runtime_id) DO UPDATE SET payload = excluded.payload, updated_at = excluded.updated_at
WHERE payload <> excluded.payload`

// SetTelemetryLoss keeps the newest figures of a buffer and runtime. Unchanged figures, as most heartbeats bring, write
// nothing.
func (tx *Tx) SetTelemetryLoss(agentNo int64, l *agent.TelemetryLoss) error {
	_, err := tx.Exec(sqlSetTelemetryLoss, agentNo, l.BufferID, l.RuntimeID, l.Payload, tx.now.UnixMicro())
	return err
}

// The oldest rows are those with the lowest numbers, so that only they are looked at.
const sqlPruneAgentStatus = `DELETE FROM agent_status WHERE received_at < ? AND status_no IN
(SELECT status_no FROM agent_status ORDER BY status_no LIMIT ?)`

// PruneAgentStatus removes samples received before the cutoff among the scan oldest, and returns how many.
func (tx *Tx) PruneAgentStatus(cutoff time.Time, scan int) (int, error) {
	res, err := tx.Exec(sqlPruneAgentStatus, cutoff.UnixMicro(), scan)
	return int(res.RowsAffected()), err
}

const sqlPruneTelemetryLosses = `DELETE FROM telemetry_losses WHERE (agent_no, buffer_id, runtime_id) IN
(SELECT agent_no, buffer_id, runtime_id FROM telemetry_losses WHERE updated_at < ? LIMIT ?)`

// PruneTelemetryLosses removes at most limit figures that were not renewed since the cutoff.
func (tx *Tx) PruneTelemetryLosses(cutoff time.Time, limit int) (int, error) {
	res, err := tx.Exec(sqlPruneTelemetryLosses, cutoff.UnixMicro(), limit)
	return int(res.RowsAffected()), err
}

const sqlPeerStanding = `SELECT a.revoked_at IS NOT NULL, a.state = 'online', a.last_seen_at, p.is_active
FROM agents a JOIN projects p ON p.project_no = a.project_no WHERE a.agent_no = ?`

// PeerStanding reads the standing of an agent; NotFound when there is no such agent.
func (r *reader) PeerStanding(agentNo int64) (agent.PeerStanding, error) {
	var s agent.PeerStanding
	var active bool
	err := r.QueryRow(sqlPeerStanding, agentNo).Scan(&s.Revoked, &s.Online, &s.LastSeenAt, &active)
	s.Archived = !active
	return s, err
}

const sqlPeerSeen = `UPDATE agents SET last_seen_at = ?1, state = 'online',
offline_since = NULL, updated_at = ?1 WHERE agent_no = ?2 AND revoked_at IS NULL`

// PeerSeen sets an agent online, seen now.
func (tx *Tx) PeerSeen(agentNo int64) error {
	_, err := tx.Exec(sqlPeerSeen, tx.now.UnixMicro(), agentNo)
	return err
}

const sqlPeerWorkerSeen = `UPDATE agent_workers SET last_seen_at = ?1, state = 'online', updated_at = ?1
WHERE agent_no = ?2 AND worker_id = ?3`

// PeerWorkerSeen sets the row of a worker slot online, seen now.
func (tx *Tx) PeerWorkerSeen(agentNo int64, workerID string) error {
	_, err := tx.Exec(sqlPeerWorkerSeen, tx.now.UnixMicro(), agentNo, workerID)
	return err
}

// AgentLosses returns what the agent says it lost, the most recently changed first.
func (r *reader) AgentLosses(agentNo int64, limit int) ([]agent.AgentLoss, error) {
	rows, err := r.Query(`SELECT buffer_id, runtime_id, first_at, updated_at, payload FROM telemetry_losses WHERE agent_no = ?
		ORDER BY updated_at DESC LIMIT ?`, agentNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.AgentLoss
	for rows.Next() {
		var l agent.AgentLoss
		if err := rows.Scan(&l.BufferID, &l.RuntimeID, &l.FirstAt, &l.UpdatedAt, &l.Payload); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, rows.Err()
}
