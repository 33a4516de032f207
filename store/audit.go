package store

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
)

var (
	_ audit.PruneTx = (*Tx)(nil)
	_ audit.ReadTx  = (*ReadTx)(nil)
)

const (
	metaAuditAnchor = "audit_anchor"
	metaAuditHead   = "audit_head"
)

const auditColumns = `l.audit_no, l.event_id, coalesce(l.project_no, 0), l.user_id, l.action, l.target_type, l.target_id,
	l.result, l.outcome, l.metadata, l.source_ip, l.user_agent, l.occurred_at, l.key_id, l.mac`

func auditDest(r *audit.Row) []any {
	return []any{&r.No, &r.EventID, &r.ProjectNo, &r.UserID, &r.Action, &r.TargetType, &r.TargetID,
		&r.Result, &r.Outcome, &r.Metadata, &r.SourceIP, &r.UserAgent, &r.At, &r.KeyID, &r.Mac}
}

// noRowIsZero turns NotFound into nothing at all.
func noRowIsZero(err error) error {
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// LastAudit returns number and mac of the last audit row; 0 and nil when there is none.
func (r *reader) LastAudit() (no int64, mac []byte, err error) {
	err = r.QueryRow(`SELECT audit_no, mac FROM audit_log ORDER BY audit_no DESC LIMIT 1`).Scan(&no, &mac)
	return no, mac, noRowIsZero(err)
}

// AuditAnchor returns the mark of what retention removed; nil when nothing was.
func (r *reader) AuditAnchor() ([]byte, error) { return r.auditMark(metaAuditAnchor) }

// AuditHead returns the mark of the last row ever appended; nil when none was.
func (r *reader) AuditHead() ([]byte, error) { return r.auditMark(metaAuditHead) }

func (r *reader) auditMark(key string) (mark []byte, err error) {
	err = r.QueryRow(`SELECT value FROM meta WHERE key = ?`, key).Scan(&mark)
	return mark, noRowIsZero(err)
}

// SetAuditAnchor stores the mark of what retention removed.
func (tx *Tx) SetAuditAnchor(mark []byte) error { return tx.setAuditMark(metaAuditAnchor, mark) }

// SetAuditHead stores the mark of the last row.
func (tx *Tx) SetAuditHead(mark []byte) error { return tx.setAuditMark(metaAuditHead, mark) }

func (tx *Tx) setAuditMark(key string, mark []byte) error {
	_, err := tx.Exec(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
		key, mark)
	return err
}

// InsertAudit appends a row under the number it has.
func (tx *Tx) InsertAudit(r *audit.Row) error {
	var project *int64
	if r.ProjectNo != 0 {
		project = &r.ProjectNo
	}
	_, err := tx.Exec(`INSERT INTO audit_log (audit_no, event_id, project_no, user_id, action, target_type, target_id, result,
		outcome, metadata, source_ip, user_agent, occurred_at, key_id, mac) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		r.No, r.EventID, project, r.UserID, r.Action, r.TargetType, r.TargetID, r.Result,
		r.Outcome, string(r.Metadata), r.SourceIP, r.UserAgent, r.At, r.KeyID, r.Mac)
	return err
}

// AuditRows returns up to limit rows above number after, oldest first.
func (r *reader) AuditRows(after int64, limit int) ([]audit.Row, error) {
	rows, err := r.Query(`SELECT `+auditColumns+` FROM audit_log l WHERE l.audit_no > ? ORDER BY l.audit_no LIMIT ?`,
		after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []audit.Row
	for rows.Next() {
		var row audit.Row
		if err := rows.Scan(auditDest(&row)...); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// AuditRecords returns up to limit rows that match, with low <= number < high, newest first.
func (r *reader) AuditRecords(f audit.Filter, low, high int64, limit int) ([]audit.Record, error) {
	query, args := auditQuery(f, low, high, limit)
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []audit.Record
	for rows.Next() {
		var rec audit.Record
		var project uuid.NullUUID
		if err := rows.Scan(append(auditDest(&rec.Row), &project)...); err != nil {
			return nil, err
		}
		if project.Valid {
			rec.ProjectID = &project.UUID
		}
		out = append(out, rec)
	}
	return out, rows.Err()
}

// auditQuery composes the query of a filter: a text per combination of conditions, values bound.
func auditQuery(f audit.Filter, low, high int64, limit int) (string, []any) {
	var b strings.Builder
	b.WriteString(`SELECT ` + auditColumns + `, p.id FROM audit_log l LEFT JOIN projects p ON p.project_no = l.project_no
		WHERE l.audit_no >= ? AND l.audit_no < ?`)
	args := []any{low, high}
	where := func(condition string, values ...any) {
		b.WriteString(` AND ` + condition)
		args = append(args, values...)
	}
	if f.ProjectNo != 0 {
		where(`l.project_no = ?`, f.ProjectNo)
	}
	if f.ActionPrefix != "" {
		where(`substr(l.action, 1, length(?)) = ?`, f.ActionPrefix, f.ActionPrefix)
	}
	if f.Outcome != "" {
		where(`l.outcome = ?`, f.Outcome)
	}
	if f.UserID != "" {
		where(`l.user_id = ?`, f.UserID)
	}
	if !f.Since.IsZero() {
		where(`l.occurred_at >= ?`, f.Since)
	}
	b.WriteString(` ORDER BY l.audit_no DESC LIMIT ?`)
	return b.String(), append(args, limit)
}

// AuditAt returns number and time of the lowest row numbered no or above; 0 and the zero time when there is none.
func (r *reader) AuditAt(no int64) (found int64, at time.Time, err error) {
	err = r.QueryRow(`SELECT audit_no, occurred_at FROM audit_log WHERE audit_no >= ? ORDER BY audit_no LIMIT 1`, no).
		Scan(&found, &at)
	return found, at, noRowIsZero(err)
}

// OldestAudits returns the last of the oldest limit rows that lies before the first of them written at or after the
// time; 0 when there is none.
func (r *reader) OldestAudits(before time.Time, limit int) (no int64, mac []byte, err error) {
	rows, err := r.Query(`SELECT audit_no, occurred_at, mac FROM audit_log ORDER BY audit_no LIMIT ?`, limit)
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		var at time.Time
		var m []byte
		if err := rows.Scan(&n, &at, &m); err != nil {
			return 0, nil, err
		}
		if !at.Before(before) {
			break
		}
		no, mac = n, m
	}
	return no, mac, rows.Err()
}

// DeleteAudits removes every audit row up to and including number no, and says how many there were.
func (tx *Tx) DeleteAudits(no int64) (int64, error) {
	res, err := tx.Exec(`DELETE FROM audit_log WHERE audit_no <= ?`, no)
	return res.RowsAffected(), err
}
