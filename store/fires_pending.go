package store

import (
	"math"
	"time"

	"signalbox/appliance/agent/fire"
)

const pendingColumns = `b.pending_fire_no, b.id, b.fire_no, b.schedule_no, b.project_no, b.engine, b.payload, b.scheduled_for,
	b.enqueued_at, b.expires_at`

func pendingDest(p *fire.Pending) []any {
	return []any{&p.No, &p.ID, &p.FireNo, &p.ScheduleNo, &p.ProjectNo, &p.Engine, &p.Payload, &p.ScheduledFor, &p.EnqueuedAt, &p.ExpiresAt}
}

// What a deleted schedule has left in the buffer is nobody's.
const (
	goneSchedules = `(SELECT schedule_no FROM schedules WHERE deleted_at IS NOT NULL)`
	livePending   = ` b.schedule_no NOT IN ` + goneSchedules
)

// A comparison of pairs would read all of the group that it leaves: SQLite takes only its first column to the index here.
const sqlPendingGroups = `WITH RECURSIVE g(project_no, engine) AS (
	SELECT * FROM (SELECT project_no, engine FROM pending_fires ORDER BY project_no, engine LIMIT 1)
	UNION ALL
	SELECT n.project_no, n.engine FROM g JOIN pending_fires n ON n.pending_fire_no = coalesce(
		(SELECT b.pending_fire_no FROM pending_fires b WHERE b.project_no = g.project_no AND b.engine > g.engine
			ORDER BY b.engine LIMIT 1),
		(SELECT b.pending_fire_no FROM pending_fires b WHERE b.project_no > g.project_no ORDER BY b.project_no, b.engine LIMIT 1)))
SELECT project_no, engine FROM g`

// PendingGroups lists the groups that have buffered fires. Each step of the recursion goes to the next group by the index,
// however many fires one has.
func (r *reader) PendingGroups() ([]fire.Group, error) {
	rows, err := r.Query(sqlPendingGroups)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fire.Group
	for rows.Next() {
		var g fire.Group
		if err := rows.Scan(&g.ProjectNo, &g.Engine); err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, rows.Err()
}

// PendingCount counts the buffered fires.
func (r *reader) PendingCount() (n int, err error) {
	err = r.QueryRow(`SELECT (SELECT count(*) FROM pending_fires) -
		(SELECT count(*) FROM pending_fires WHERE schedule_no IN ` + goneSchedules + `)`).Scan(&n)
	return n, err
}

// PendingOfFire finds a fire in the buffer.
func (r *reader) PendingOfFire(fireNo int64) (p fire.Pending, err error) {
	err = r.QueryRow(`SELECT `+pendingColumns+` FROM pending_fires b WHERE b.fire_no = ?`, fireNo).Scan(pendingDest(&p)...)
	return p, err
}

// PendingBuffers sums the buffer of the project up by engine; of one schedule when it is not 0.
func (r *reader) PendingBuffers(projectNo, scheduleNo int64) ([]fire.Buffer, error) {
	where, args := `project_no = ?`, []any{projectNo}
	if scheduleNo != 0 {
		where, args = `schedule_no = ? AND +project_no = ?`, []any{scheduleNo, projectNo}
	}
	rows, err := r.Query(`SELECT engine, count(*), min(scheduled_for), min(expires_at) FROM pending_fires
		WHERE `+where+` AND schedule_no NOT IN `+goneSchedules+` GROUP BY engine ORDER BY engine`, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fire.Buffer
	for rows.Next() {
		b := fire.Buffer{Group: fire.Group{ProjectNo: projectNo}}
		if err := rows.Scan(&b.Engine, &b.Fires, &b.Oldest, &b.Expiry); err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, rows.Err()
}

// PendingNextExpiry returns the earliest expires_at.
func (r *reader) PendingNextExpiry() (at time.Time, err error) {
	err = noRowIsZero(r.QueryRow(`SELECT b.expires_at FROM pending_fires b WHERE` + livePending + ` ORDER BY b.expires_at LIMIT 1`).Scan(&at))
	return at, err
}

// PendingExpiryAfter tells whether a fire's expires_at lies after the time.
func (r *reader) PendingExpiryAfter(latest time.Time) (found bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM pending_fires WHERE expires_at > ?)`, latest).Scan(&found)
	return found, err
}

// PendingExpired lists fires whose buffer time has run out, the earliest first.
func (r *reader) PendingExpired(now time.Time, limit int) ([]fire.Pending, error) {
	rows, err := r.Query(`SELECT `+pendingColumns+` FROM pending_fires b WHERE b.expires_at <= ? AND`+livePending+`
		ORDER BY b.expires_at, b.pending_fire_no LIMIT ?`, now, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fire.Pending
	for rows.Next() {
		var p fire.Pending
		if err := rows.Scan(pendingDest(&p)...); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, rows.Err()
}

// PendingBefore tells whether fires of the schedule wait in the buffer for the engine.
func (r *reader) PendingBefore(scheduleNo int64, engine string) (found bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM pending_fires WHERE schedule_no = ? AND engine = ?)`, scheduleNo, engine).Scan(&found)
	return found, err
}

// PendingToReplay lists the buffered fires of a group behind a place, the oldest scheduled_for first.
func (tx *Tx) PendingToReplay(g fire.Group, after fire.Position, limit int) ([]fire.Waiting, error) {
	from := int64(math.MinInt64) // a zero time would be bound as NULL
	if !after.ScheduledFor.IsZero() {
		from = after.ScheduledFor.UnixMicro()
	}
	rows, err := tx.Query(sqlPendingToReplay, g.ProjectNo, g.Engine, from, after.No, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []fire.Waiting
	for rows.Next() {
		var w fire.Waiting
		if err := rows.Scan(append(pendingDest(&w.Pending), &w.FireID, &w.ScheduleID, &w.CatchUp, &w.Newest)...); err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, rows.Err()
}

const sqlPendingToReplay = `SELECT ` + pendingColumns + `, f.fire_id, s.id, s.catch_up, b.pending_fire_no =
		(SELECT n.pending_fire_no FROM pending_fires n WHERE n.schedule_no = b.schedule_no AND n.engine = b.engine
			ORDER BY n.scheduled_for DESC, n.pending_fire_no DESC LIMIT 1)
	FROM pending_fires b JOIN fires f ON f.fire_no = b.fire_no JOIN schedules s ON s.schedule_no = b.schedule_no
	WHERE b.project_no = ? AND b.engine = ? AND (b.scheduled_for, b.pending_fire_no) > (?, ?) AND` + livePending + `
	ORDER BY b.scheduled_for, b.pending_fire_no LIMIT ?`
