package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// An older touch changes nothing, and neither does one that repeats what the row says to the second.
const sqlTouchWorker = `INSERT INTO workers (id, project_no, engine, name, state, last_heartbeat, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
ON CONFLICT (project_no, engine, name) DO UPDATE SET state = excluded.state, last_heartbeat = excluded.last_heartbeat,
updated_at = excluded.updated_at
WHERE last_heartbeat IS NULL OR excluded.last_heartbeat >= last_heartbeat + 1000000
OR (excluded.last_heartbeat >= last_heartbeat AND excluded.state <> state)`

// TouchWorker creates the row of a worker or moves its heartbeat forward.
func (tx *Tx) TouchWorker(projectNo int64, id uuid.UUID, w agent.WorkerTouch) error {
	_, err := tx.Exec(sqlTouchWorker, id[:], projectNo, w.Engine, w.Name, w.State, w.At.UnixMicro(), tx.now.UnixMicro())
	return err
}

const sqlSetWorkerDetails = `INSERT INTO workers (id, project_no, engine, name, hostname, pid, concurrency, queues, state,
last_heartbeat, active_tasks, metadata, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, coalesce(?7, '[]'), 'online', ?8, coalesce(?9, 0), coalesce(?10, '{}'), ?8, ?8)
ON CONFLICT (project_no, engine, name) DO UPDATE SET hostname = excluded.hostname, pid = coalesce(?5, pid),
concurrency = coalesce(?6, concurrency), queues = coalesce(?7, queues), state = 'online',
last_heartbeat = ?8, active_tasks = coalesce(?9, active_tasks),
metadata = coalesce(?10, metadata), updated_at = ?8`

// SetWorkerDetails creates or updates the row of a worker as online now; what was not reported stays as it is.
func (tx *Tx) SetWorkerDetails(projectNo int64, id uuid.UUID, d *agent.WorkerDetails) error {
	var queues, metadata any
	if d.Queues != nil {
		b, err := json.Marshal(d.Queues)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "encode the queues of a worker")
		}
		queues = string(b)
	}
	if d.Metadata != "" {
		metadata = d.Metadata
	}
	_, err := tx.Exec(sqlSetWorkerDetails, id[:], projectNo, d.Engine, d.Name, d.PID, d.Concurrency, queues,
		tx.now.UnixMicro(), d.Active, metadata)
	return err
}

const sqlTouchQueue = `INSERT INTO queues (id, project_no, engine, name, pending_count, last_seen_at, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
ON CONFLICT (project_no, engine, name) DO UPDATE SET last_seen_at = excluded.last_seen_at,
pending_count = coalesce(excluded.pending_count, pending_count)`

// TouchQueue creates the row of a queue or moves its last_seen_at to now; a depth becomes the pending count.
func (tx *Tx) TouchQueue(projectNo int64, id uuid.UUID, engine, name string, depth *int64) error {
	_, err := tx.Exec(sqlTouchQueue, id[:], projectNo, engine, name, depth, tx.now.UnixMicro())
	return err
}

const sqlWorkerSelect = `SELECT w.id, p.id, w.engine, w.name, w.hostname, w.pid, w.concurrency, w.queues, w.state,
w.last_heartbeat, w.load_average, w.active_tasks, w.processed, w.failed, w.succeeded, w.retried, w.metadata, w.created_at
FROM workers w JOIN projects p ON p.project_no = w.project_no WHERE w.project_no = ?`

// ListWorkers returns the project's workers by engine and name, at most limit.
func (r *reader) ListWorkers(projectNo int64, limit int) ([]agent.Worker, error) {
	rows, err := r.Query(sqlWorkerSelect+` ORDER BY w.engine, w.name LIMIT ?`, projectNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.Worker
	for rows.Next() {
		w, err := scanWorker(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, rows.Err()
}

// AnyWorkerSilent tells whether an online worker was last heard before the time, or is said to be heard in the future.
func (r *reader) AnyWorkerSilent(before time.Time) (any bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM workers WHERE state = 'online' AND last_heartbeat < ?)
		OR EXISTS (SELECT 1 FROM workers WHERE state = 'online' AND last_heartbeat > ?)`, before, r.now).Scan(&any)
	return any, err
}

// SilenceWorkers marks at most limit online workers unknown that were last heard before the time. Who is said to be heard
// in the future is heard now.
func (tx *Tx) SilenceWorkers(before time.Time, limit int) (int, error) {
	if _, err := tx.Exec(`UPDATE workers SET last_heartbeat = ? WHERE state = 'online' AND last_heartbeat > ?`, tx.Now(),
		tx.Now()); err != nil {
		return 0, err
	}
	res, err := tx.Exec(`UPDATE workers SET state = 'unknown', updated_at = ? WHERE worker_no IN
		(SELECT worker_no FROM workers WHERE state = 'online' AND last_heartbeat < ? LIMIT ?)`, tx.Now(), before, limit)
	return int(res.RowsAffected()), err
}

// CountWorkersOnline counts over all projects.
func (r *reader) CountWorkersOnline() (n int, err error) {
	err = r.QueryRow(`SELECT count(*) FROM workers WHERE state = 'online'`).Scan(&n)
	return n, err
}

// GetWorker finds a worker of the project.
func (r *reader) GetWorker(projectNo int64, id uuid.UUID) (agent.Worker, error) {
	return scanWorker(r.QueryRow(sqlWorkerSelect+` AND w.id = ?`, projectNo, id))
}

func scanWorker(s scanner) (w agent.Worker, err error) {
	var heartbeat time.Time
	var queues []byte
	err = s.Scan(&w.ID, &w.ProjectID, &w.Engine, &w.Name, &w.Hostname, &w.PID, &w.Concurrency, &queues, &w.State, &heartbeat,
		&w.LoadAverage, &w.ActiveTasks, &w.Processed, &w.Failed, &w.Succeeded, &w.Retried, &w.Metadata, &w.CreatedAt)
	if err != nil {
		return w, err
	}
	if !heartbeat.IsZero() {
		w.LastHeartbeat = &heartbeat
	}
	if err := json.Unmarshal(queues, &w.Queues); err != nil {
		return w, fault.Wrap(fault.Internal, err, "read the queues of a worker")
	}
	return w, nil
}

const sqlListQueues = `SELECT q.id, p.id, q.engine, q.name, q.broker_type, q.broker_url_hint, q.pending_count, q.last_seen_at,
q.created_at FROM queues q JOIN projects p ON p.project_no = q.project_no WHERE q.project_no = ?
ORDER BY q.engine, q.name LIMIT ?`

// ListQueues returns the project's queues by engine and name, at most limit.
func (r *reader) ListQueues(projectNo int64, limit int) ([]agent.Queue, error) {
	rows, err := r.Query(sqlListQueues, projectNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []agent.Queue
	for rows.Next() {
		var q agent.Queue
		if err := rows.Scan(&q.ID, &q.ProjectID, &q.Engine, &q.Name, &q.BrokerType, &q.BrokerURLHint, &q.PendingCount,
			&q.LastSeenAt, &q.CreatedAt); err != nil {
			return nil, err
		}
		out = append(out, q)
	}
	return out, rows.Err()
}

const (
	sqlPruneWorkers = `DELETE FROM workers WHERE worker_no IN
(SELECT worker_no FROM workers WHERE coalesce(last_heartbeat, created_at) < ? LIMIT ?)`
	sqlPruneQueues = `DELETE FROM queues WHERE queue_no IN (SELECT queue_no FROM queues WHERE last_seen_at < ? LIMIT ?)`
)

// PruneWorkers removes at most limit workers, and as many queues, that were not heard of since the cutoff, and returns
// the larger of the two counts.
func (tx *Tx) PruneWorkers(cutoff time.Time, limit int) (int, error) {
	workers, err := tx.Exec(sqlPruneWorkers, cutoff.UnixMicro(), limit)
	if err != nil {
		return 0, err
	}
	queues, err := tx.Exec(sqlPruneQueues, cutoff.UnixMicro(), limit)
	return int(max(workers.RowsAffected(), queues.RowsAffected())), err
}
