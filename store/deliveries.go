package store

import (
	"time"

	"signalbox/appliance/agent"
)

// openDeliveries holds for attempts that have not ended.
const openDeliveries = ` AND outcome IN ('in_flight', 'acked')`

// CommandDeliveries returns the ledger of a command, oldest first.
func (r *reader) CommandDeliveries(commandNo int64) ([]agent.Delivery, error) {
	rows, err := r.Query(`SELECT delivery_no, command_no, attempt, transport, session_id, worker_id, claimed_at, sent_at,
		acked_at, finished_at, outcome, reason FROM deliveries WHERE command_no = ? ORDER BY attempt`, commandNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.Delivery{}
	for rows.Next() {
		var d agent.Delivery
		var sent, acked, finished time.Time
		err := rows.Scan(&d.No, &d.CommandNo, &d.Attempt, &d.Transport, &d.Session, &d.Worker, &d.ClaimedAt, &sent, &acked,
			&finished, &d.Outcome, &d.Reason)
		if err != nil {
			return nil, err
		}
		d.SentAt, d.AckedAt, d.FinishedAt = nonZero(sent), nonZero(acked), nonZero(finished)
		out = append(out, d)
	}
	return out, rows.Err()
}

// InsertDelivery appends an attempt to the ledger and ends the open ones before it.
func (tx *Tx) InsertDelivery(d agent.Delivery) (int64, error) {
	if err := tx.FinishDeliveries(d.CommandNo, d.ClaimedAt, agent.DeliverySuperseded, nil); err != nil {
		return 0, err
	}
	res, err := tx.Exec(`INSERT INTO deliveries (command_no, attempt, transport, session_id, worker_id, claimed_at, outcome)
		SELECT ?, 1 + coalesce(max(attempt), 0), ?, ?, ?, ?, ? FROM deliveries WHERE command_no = ?`,
		d.CommandNo, string(d.Transport), d.Session, d.Worker, d.ClaimedAt, string(d.Outcome), d.CommandNo)
	return res.LastInsertID(), err
}

// MarkDeliverySent stamps an attempt once.
func (tx *Tx) MarkDeliverySent(deliveryNo int64, at time.Time) error {
	_, err := tx.Exec(`UPDATE deliveries SET sent_at = ? WHERE delivery_no = ? AND sent_at IS NULL`, at, deliveryNo)
	return err
}

// AckDeliveries marks the open attempts of a command that were not acked yet.
func (tx *Tx) AckDeliveries(commandNo int64, at time.Time) error {
	_, err := tx.Exec(`UPDATE deliveries SET acked_at = ?, outcome = 'acked' WHERE command_no = ? AND outcome = 'in_flight'`,
		at, commandNo)
	return err
}

// FinishDelivery ends one attempt when it is still open.
func (tx *Tx) FinishDelivery(deliveryNo int64, at time.Time, outcome agent.DeliveryOutcome, reason *string) (bool, error) {
	res, err := tx.Exec(`UPDATE deliveries SET finished_at = ?, outcome = ?, reason = ? WHERE delivery_no = ?`+openDeliveries,
		at, string(outcome), reason, deliveryNo)
	return res.RowsAffected() == 1, err
}

// FinishDeliveries ends every open attempt of a command.
func (tx *Tx) FinishDeliveries(commandNo int64, at time.Time, outcome agent.DeliveryOutcome, reason *string) error {
	_, err := tx.Exec(`UPDATE deliveries SET finished_at = ?, outcome = ?, reason = ? WHERE command_no = ?`+openDeliveries,
		at, string(outcome), reason, commandNo)
	return err
}
