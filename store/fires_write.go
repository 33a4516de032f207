package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent/fire"
)

func commandOrNull(id *uuid.UUID) uuid.NullUUID {
	if id == nil {
		return uuid.NullUUID{}
	}
	return uuid.NullUUID{UUID: *id, Valid: true}
}

// InsertFire stores a new fire and returns its number.
func (tx *Tx) InsertFire(f fire.Fire) (int64, error) {
	res, err := tx.Exec(`INSERT INTO fires (id, fire_id, schedule_no, project_no, origin, slot_at, command_id, command_no, status,
		scheduled_for, fired_at, acked_at, latency_ms, finished_at, error_code, error_message)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.ID, f.FireID, f.ScheduleNo, f.ProjectNo, string(f.Origin), orNull(f.SlotAt), commandOrNull(f.CommandID),
		numberOrNull(f.CommandNo), string(f.Status), f.ScheduledFor, f.FiredAt, orNull(f.AckedAt), f.LatencyMS, orNull(f.FinishedAt),
		f.ErrorCode, f.ErrorMessage)
	return res.LastInsertID(), err
}

// UpdateFire stores what changes of a fire where it still has the status of before.
func (tx *Tx) UpdateFire(before fire.Status, f fire.Fire) (bool, error) {
	res, err := tx.Exec(`UPDATE fires SET status = ?, command_id = ?, command_no = ?, acked_at = ?, latency_ms = ?, finished_at = ?,
		error_code = ?, error_message = ? WHERE fire_no = ? AND status = ?`,
		string(f.Status), commandOrNull(f.CommandID), numberOrNull(f.CommandNo), orNull(f.AckedAt), f.LatencyMS, orNull(f.FinishedAt),
		f.ErrorCode, f.ErrorMessage, f.No, string(before))
	return res.RowsAffected() == 1, err
}

// InsertPending puts a fire into the buffer.
func (tx *Tx) InsertPending(p fire.Pending) error {
	_, err := tx.Exec(`INSERT INTO pending_fires (id, fire_no, schedule_no, project_no, engine, payload, scheduled_for, enqueued_at,
		expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, p.ID, p.FireNo, p.ScheduleNo, p.ProjectNo, p.Engine, string(p.Payload),
		p.ScheduledFor, p.EnqueuedAt, p.ExpiresAt)
	return err
}

// DeletePending takes a fire out of the buffer.
func (tx *Tx) DeletePending(no int64) error {
	_, err := tx.Exec(`DELETE FROM pending_fires WHERE pending_fire_no = ?`, no)
	return err
}

// PendingBoundExpiry brings every expires_at after the time forward to it.
func (tx *Tx) PendingBoundExpiry(latest time.Time) error {
	_, err := tx.Exec(`UPDATE pending_fires SET expires_at = ? WHERE expires_at > ?`, latest, latest)
	return err
}

// PruneFires removes fires that were fired before the cutoff and are not buffered among the next scan rows. Numbers grow with
// time, so that one older than the cutoff tells of those before it, also where a clock that was ahead has dated them.
func (tx *Tx) PruneFires(afterNo int64, cutoff time.Time, scan int) (removed int, next int64, err error) {
	rows, err := tx.Query(`SELECT fire_no, fired_at FROM fires WHERE fire_no > ? ORDER BY fire_no LIMIT ?`, afterNo, scan)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	seen, upTo, last, more := 0, afterNo, afterNo, true
	for more && rows.Next() {
		var no int64
		var fired time.Time
		if err := rows.Scan(&no, &fired); err != nil {
			return 0, 0, err
		}
		switch {
		case fired.Before(cutoff):
			upTo = no
		case !fired.After(tx.Now()): // the later ones are younger
			more = false
		}
		seen, last = seen+1, no
	}
	if err := rows.Err(); err != nil {
		return 0, 0, err
	}
	if err := rows.Close(); err != nil {
		return 0, 0, err
	}
	if more && seen == scan {
		if next = upTo; next == afterNo {
			next = last
		}
	}
	if upTo == afterNo {
		return 0, next, nil
	}
	res, err := tx.Exec(`DELETE FROM fires WHERE fire_no > ? AND fire_no <= ? AND status <> 'buffered'`, afterNo, upTo)
	return int(res.RowsAffected()), next, err
}

// SetDeclaredEngines replaces what was declared of an agent.
func (tx *Tx) SetDeclaredEngines(agentNo int64, by string, engines []string) error {
	if _, err := tx.Exec(`DELETE FROM declared_engines WHERE agent_no = ?`, agentNo); err != nil {
		return err
	}
	for _, e := range engines {
		if _, err := tx.Exec(`INSERT INTO declared_engines (agent_no, engine, declared_by, declared_at) VALUES (?, ?, ?, ?)`,
			agentNo, e, stringOrNull(by), tx.Now()); err != nil {
			return err
		}
	}
	return nil
}
