package store

import (
	"time"

	"signalbox/appliance/agent/schedule"
)

// InsertSchedule stores a schedule and returns its number.
func (tx *Tx) InsertSchedule(s schedule.Schedule) (int64, error) {
	res, err := tx.Exec(`INSERT INTO schedules (id, project_no, engine, scheduler, name, task_name, kind, expression, timezone, queue,
		priority, args, kwargs, is_enabled, catch_up, external_id, source, source_hash, anchor_at, decided_at, next_run_at, last_run_at,
		total_runs, consecutive_failures, disabled_reason, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		s.ID, s.ProjectNo, s.Engine, s.Scheduler, s.Name, s.TaskName, string(s.Kind), s.Expression, s.Timezone, s.Queue,
		s.Priority, string(s.Args), string(s.Kwargs), s.IsEnabled, string(s.CatchUp), s.ExternalID, s.Source, s.SourceHash, s.AnchorAt,
		s.DecidedAt, orNull(s.NextRunAt), orNull(s.LastRunAt), s.TotalRuns, s.ConsecutiveFailures, s.DisabledReason, s.CreatedAt, s.UpdatedAt)
	return res.LastInsertID(), err
}

// UpdateSchedule stores every changeable field.
func (tx *Tx) UpdateSchedule(s schedule.Schedule) error {
	_, err := tx.Exec(`UPDATE schedules SET engine = ?, name = ?, task_name = ?, kind = ?, expression = ?, timezone = ?, queue = ?,
		priority = ?, args = ?, kwargs = ?, is_enabled = ?, catch_up = ?, external_id = ?, source = ?, source_hash = ?, anchor_at = ?,
		decided_at = ?, next_run_at = ?, last_run_at = ?, total_runs = ?, consecutive_failures = ?, disabled_reason = ?, updated_at = ?
		WHERE schedule_no = ?`,
		s.Engine, s.Name, s.TaskName, string(s.Kind), s.Expression, s.Timezone, s.Queue, s.Priority, string(s.Args), string(s.Kwargs),
		s.IsEnabled, string(s.CatchUp), s.ExternalID, s.Source, s.SourceHash, s.AnchorAt, s.DecidedAt, orNull(s.NextRunAt),
		orNull(s.LastRunAt), s.TotalRuns, s.ConsecutiveFailures, s.DisabledReason, s.UpdatedAt, s.No)
	return err
}

// DeleteSchedule takes a schedule away: nothing finds it from here on, it fires no more, and its name is free. What is left
// of it is PurgeSchedule's.
func (tx *Tx) DeleteSchedule(no int64) error {
	_, err := tx.Exec(`UPDATE schedules SET deleted_at = ?, is_enabled = 0, next_run_at = NULL, updated_at = ? WHERE schedule_no = ?`,
		tx.Now(), tx.Now(), no)
	return err
}

// What a deleted schedule leaves, in the order in which it goes: what waits in the buffer first.
var sqlPurgeSchedule = [...]string{
	`DELETE FROM pending_fires WHERE pending_fire_no IN (SELECT pending_fire_no FROM pending_fires WHERE schedule_no = ? LIMIT ?)`,
	`DELETE FROM fires WHERE fire_no IN (SELECT fire_no FROM fires WHERE schedule_no = ? LIMIT ?)`,
	`DELETE FROM schedule_misfires WHERE misfire_no IN (SELECT misfire_no FROM schedule_misfires WHERE schedule_no = ? LIMIT ?)`,
}

// PurgeSchedule removes at most limit rows of what a deleted schedule has left, and the schedule when nothing is.
func (tx *Tx) PurgeSchedule(no int64, limit int) (removed int, gone bool, err error) {
	for _, query := range sqlPurgeSchedule {
		res, err := tx.Exec(query, no, limit-removed)
		if err != nil {
			return removed, false, err
		}
		if removed += int(res.RowsAffected()); removed >= limit {
			return removed, false, nil
		}
	}
	_, err = tx.Exec(`DELETE FROM schedules WHERE schedule_no = ? AND deleted_at IS NOT NULL`, no)
	return removed, err == nil, err
}

// ScheduleDecided stores what a decision changes. A schedule that was disabled stays without a next slot.
func (tx *Tx) ScheduleDecided(s schedule.Schedule) error {
	_, err := tx.Exec(`UPDATE schedules SET decided_at = ?, next_run_at = CASE WHEN is_enabled = 1 THEN ? END, last_run_at = ?, total_runs = ?
		WHERE schedule_no = ?`, s.DecidedAt, orNull(s.NextRunAt), orNull(s.LastRunAt), s.TotalRuns, s.No)
	return err
}

// ScheduleDisable disables a schedule by itself and says why.
func (tx *Tx) ScheduleDisable(no int64, reason string) (bool, error) {
	res, err := tx.Exec(`UPDATE schedules SET is_enabled = 0, next_run_at = NULL, disabled_reason = ?, updated_at = ?
		WHERE schedule_no = ? AND is_enabled = 1`, reason, tx.Now(), no)
	return res.RowsAffected() == 1, err
}

// ScheduleCountFailure adds n to the schedule's consecutive failures; n 0 sets them to 0.
func (tx *Tx) ScheduleCountFailure(no int64, n int) error {
	_, err := tx.Exec(`UPDATE schedules SET consecutive_failures = CASE WHEN ? = 0 THEN 0 ELSE consecutive_failures + ? END
		WHERE schedule_no = ?`, n, n, no)
	return err
}

// InsertMisfire records slots that were passed over.
func (tx *Tx) InsertMisfire(m schedule.Misfire) error {
	_, err := tx.Exec(`INSERT INTO schedule_misfires (schedule_no, at, first_slot, last_slot, slots, reason) VALUES (?, ?, ?, ?, ?, ?)`,
		m.ScheduleNo, m.At, m.FirstSlot, m.LastSlot, m.Slots, string(m.Reason))
	return err
}

const sqlPruneMisfires = `DELETE FROM schedule_misfires WHERE misfire_no IN
	(SELECT misfire_no FROM schedule_misfires WHERE at < ? ORDER BY at LIMIT ?)`

// PruneMisfires removes at most limit misfires older than the time, the oldest first.
func (tx *Tx) PruneMisfires(before time.Time, limit int) (int, error) {
	res, err := tx.Exec(sqlPruneMisfires, before, limit)
	return int(res.RowsAffected()), err
}
