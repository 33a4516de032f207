package store

import (
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/fault"
)

var (
	_ command.Tx     = (*Tx)(nil)
	_ command.ReadTx = (*ReadTx)(nil)
)

// daemonCommandColumns are the columns of a row; the payload is one of two expressions.
func daemonCommandColumns(payload string) string {
	return `SELECT c.command_no, c.id, c.daemon_no, d.id, coalesce(c.job_no, 0), c.kind, c.step, c.step_attempt,
		` + payload + `, length(c.payload), c.payload_sha256, c.expected_revision, c.expected_sequence, c.attempts, c.allowance, c.state, c.ack, c.lease,
		c.issued_at, c.first_sent_at, c.last_sent_at, c.acked_at, c.closed_at
	FROM daemon_commands c JOIN daemons d ON d.daemon_no = c.daemon_no `
}

var (
	daemonCommandSelect = daemonCommandColumns(`c.payload`)
	// The condition on the state is that of the index, word for word: otherwise SQLite would scan the table.
	daemonCommandsToSend = daemonCommandColumns(`NULL`) + `WHERE c.daemon_no = ? AND c.state IN ('pending', 'sent', 'parked')
			AND c.state <> 'parked'
		ORDER BY CASE c.kind WHEN 19 THEN 0 WHEN 18 THEN 1 WHEN 25 THEN 2 ELSE 3 END, c.attempts = 0, c.command_no`
)

func scanDaemonCommand(scan func(...any) error) (r command.Row, err error) {
	var ack []byte
	err = scan(&r.No, &r.ID, &r.Daemon.No, &r.Daemon.ID, &r.JobNo, &r.Kind, &r.Step, &r.StepAttempt, &r.Payload, &r.Size, &r.SHA256,
		&r.ExpectedRevision, &r.ExpectedSequence, &r.Attempts, &r.Allowance, &r.State, &ack, &r.Lease, &r.IssuedAt,
		&r.FirstSentAt, &r.LastSentAt, &r.AckedAt, &r.ClosedAt)
	if err != nil || ack == nil {
		return r, err
	}
	r.Ack = &pb.CommandAck{}
	return r, unmarshalStored(ack, r.Ack)
}

func (r *reader) daemonCommands(query string, args ...any) ([]command.Row, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []command.Row
	for rows.Next() {
		row, err := scanDaemonCommand(rows.Scan)
		if err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, rows.Err()
}

// DaemonCommand implements command.ReadTx.
func (r *reader) DaemonCommand(commandNo int64) (command.Row, error) {
	return scanDaemonCommand(r.QueryRow(daemonCommandSelect+`WHERE c.command_no = ?`, commandNo).Scan)
}

// DaemonCommandByID implements command.ReadTx.
func (r *reader) DaemonCommandByID(id uuid.UUID) (command.Row, error) {
	return scanDaemonCommand(r.QueryRow(daemonCommandSelect+`WHERE c.id = ?`, id).Scan)
}

// DaemonCommandsBetween implements command.ReadTx.
func (r *reader) DaemonCommandsBetween(low, high uuid.UUID, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM daemon_commands WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?`, low, high, limit)
}

// DaemonCommandOwners implements command.ReadTx.
func (r *reader) DaemonCommandOwners(commandNo int64) (daemon string, job uuid.UUID, err error) {
	var id uuid.NullUUID
	err = r.QueryRow(`SELECT d.name, j.id FROM daemon_commands c JOIN daemons d ON d.daemon_no = c.daemon_no
		LEFT JOIN archive_jobs j ON j.job_no = c.job_no WHERE c.command_no = ?`, commandNo).Scan(&daemon, &id)
	return daemon, id.UUID, err
}

// DaemonCommandsOfJob implements command.ReadTx.
func (r *reader) DaemonCommandsOfJob(jobNo int64) ([]command.Row, error) {
	return r.daemonCommands(daemonCommandSelect+`WHERE c.job_no = ? ORDER BY c.command_no`, jobNo)
}

// DaemonCommandsToSend implements command.ReadTx. The order is that of daemon protocol 4.5: ReconcileJob (19), CancelJob
// (18), CloseJob (25), what was sent before, what is new.
func (r *reader) DaemonCommandsToSend(daemonNo int64) ([]command.Row, error) {
	return r.daemonCommands(daemonCommandsToSend, daemonNo)
}

const daemonCommandsWaiting = `SELECT EXISTS (SELECT 1 FROM daemon_commands c WHERE c.daemon_no = ?
	AND c.state IN ('pending', 'sent', 'parked') AND c.state <> 'parked')`

// DaemonCommandsWaiting implements command.ReadTx.
func (r *reader) DaemonCommandsWaiting(daemonNo int64) (waiting bool, err error) {
	err = r.QueryRow(daemonCommandsWaiting, daemonNo).Scan(&waiting)
	return waiting, err
}

// DaemonCommandInsert implements command.Tx.
func (tx *Tx) DaemonCommandInsert(r *command.Row) error {
	res, err := tx.Exec(`INSERT INTO daemon_commands (id, daemon_no, job_no, kind, step, step_attempt, payload, payload_sha256,
			expected_revision, expected_sequence, attempts, allowance, state, lease, issued_at)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`, r.ID, r.Daemon.No, numberOrNull(r.JobNo), int64(r.Kind), int64(r.Step),
		int64(r.StepAttempt), r.Payload, r.SHA256, int64(r.ExpectedRevision), int64(r.ExpectedSequence), int64(r.Attempts),
		int64(r.Allowance), string(r.State), int64(r.Lease), r.IssuedAt)
	if err != nil {
		return err
	}
	r.No = res.LastInsertID()
	return nil
}

// DaemonCommandUpdate implements command.Tx.
func (tx *Tx) DaemonCommandUpdate(r *command.Row) error {
	var ack []byte
	if r.Ack != nil {
		var err error
		if ack, err = marshalStored(r.Ack); err != nil {
			return err
		}
	}
	res, err := tx.Exec(`UPDATE daemon_commands SET attempts = ?, allowance = ?, state = ?, ack = ?, lease = ?, first_sent_at = ?,
			last_sent_at = ?, acked_at = ?, closed_at = ?
		WHERE command_no = ?`, int64(r.Attempts), int64(r.Allowance), string(r.State), ack, int64(r.Lease), r.FirstSentAt,
		r.LastSentAt, r.AckedAt, r.ClosedAt, r.No)
	if err == nil && res.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "there is no command number %d", r.No)
	}
	return err
}

// DaemonDeliveries implements command.ReadTx.
func (r *reader) DaemonDeliveries(commandNo int64) ([]command.Delivery, error) {
	rows, err := r.Query(`SELECT delivery_no, command_no, attempt, generation, claimed_at, sent_at, acked_at, outcome, reason
		FROM daemon_deliveries WHERE command_no = ? ORDER BY attempt`, commandNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []command.Delivery
	for rows.Next() {
		var d command.Delivery
		if err := rows.Scan(&d.No, &d.CommandNo, &d.Attempt, &d.Generation, &d.ClaimedAt, &d.SentAt, &d.AckedAt, &d.Outcome,
			&d.Reason); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, rows.Err()
}

// DaemonDeliveryInsert implements command.Tx.
func (tx *Tx) DaemonDeliveryInsert(d *command.Delivery) error {
	if _, err := tx.Exec(`UPDATE daemon_deliveries SET outcome = 'superseded', reason = 'not answered, sent again'
		WHERE command_no = ? AND outcome = 'in_flight'`, d.CommandNo); err != nil {
		return err
	}
	res, err := tx.Exec(`INSERT INTO daemon_deliveries (command_no, attempt, generation, claimed_at, outcome) VALUES (?,?,?,?,?)`,
		d.CommandNo, int64(d.Attempt), d.Generation, d.ClaimedAt, string(d.Outcome))
	if err != nil {
		return err
	}
	d.No = res.LastInsertID()
	return nil
}

// DaemonDeliverySent implements command.Tx.
func (tx *Tx) DaemonDeliverySent(deliveryNo int64, at time.Time) error {
	_, err := tx.Exec(`UPDATE daemon_deliveries SET sent_at = ?
		WHERE delivery_no = ? AND sent_at IS NULL AND outcome <> 'send_failed'`, at, deliveryNo)
	return err
}

// DaemonDeliveryFailed implements command.Tx.
func (tx *Tx) DaemonDeliveryFailed(deliveryNo int64, reason string) error {
	_, err := tx.Exec(`UPDATE daemon_deliveries SET outcome = 'send_failed', reason = ?
		WHERE delivery_no = ? AND outcome = 'in_flight' AND sent_at IS NULL`, reason, deliveryNo)
	return err
}

// DaemonDeliveriesAcked implements command.Tx.
func (tx *Tx) DaemonDeliveriesAcked(commandNo int64, at time.Time, reason string) error {
	if _, err := tx.Exec(`UPDATE daemon_deliveries SET outcome = 'acked', acked_at = ?2, reason = ?3
		WHERE command_no = ?1 AND attempt = (SELECT max(attempt) FROM daemon_deliveries WHERE command_no = ?1)
			AND outcome <> 'acked'`, commandNo, at, reason); err != nil {
		return err
	}
	_, err := tx.Exec(`UPDATE daemon_deliveries SET outcome = 'superseded', reason = 'answered through another send'
		WHERE command_no = ? AND outcome = 'in_flight'`, commandNo)
	return err
}

// DaemonCommandsPrune implements command.Tx.
func (tx *Tx) DaemonCommandsPrune(before time.Time, limit int) (int64, error) {
	res, err := tx.Exec(`DELETE FROM daemon_commands WHERE command_no IN (SELECT c.command_no FROM daemon_commands c
		WHERE c.job_no IS NULL AND c.state = 'closed' AND c.closed_at < ?
			AND NOT EXISTS (SELECT 1 FROM inventory_queries i WHERE i.command_no = c.command_no)
			AND NOT EXISTS (SELECT 1 FROM archive_timeline t WHERE t.command_no = c.command_no)
			AND NOT EXISTS (SELECT 1 FROM archive_events e WHERE e.command_no = c.command_no)
			AND NOT EXISTS (SELECT 1 FROM archive_evidence v WHERE v.command_no = c.command_no)
		ORDER BY c.command_no LIMIT ?)`, before, limit)
	return res.RowsAffected(), err
}
