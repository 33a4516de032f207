package command

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Acked takes a daemon's answer, in one transaction with whatever its handler makes of it (daemon protocol 2.6). It is
// taken in every state, also after automatic delivery stopped; a repetition changes nothing. Stale: the link no longer owns
// the daemon. An answer to a command that this database does not know is counted and dropped.
func (q *Queue) Acked(ctx context.Context, link archive.Link, ack *pb.CommandAck) error {
	id, err := uuid.Parse(ack.CommandId)
	if err != nil {
		return fault.Field("command_ack.command_id", "must be a UUID")
	}
	var state State
	var row Row
	known := true
	err = q.store.Update(ctx, "archive.command_acked", func(tx Tx) error {
		state, known = "", true
		if _, err := q.owners.Owned(tx, link); err != nil {
			return err
		}
		row, err = tx.DaemonCommandByID(id)
		if fault.Is(err, fault.NotFound) || err == nil && row.Daemon.No != link.Daemon.No {
			known = false
			return nil
		}
		if err != nil {
			return err
		}
		state, err = q.take(tx, link, row, ack)
		return err
	})
	switch {
	case err != nil:
		return err
	case !known:
		q.observer.UnknownAck()
	case state != "":
		q.observer.Answered(row.Kind, state)
	}
	return nil
}

// take records the answer and returns the new state, "" when nothing changed.
func (q *Queue) take(tx Tx, link archive.Link, row Row, ack *pb.CommandAck) (State, error) {
	state, why := judge(row, ack)
	switch {
	case row.State == Closed:
		if row.Ack != nil {
			return "", nil
		}
		row.Ack, row.AckedAt = proto.CloneOf(ack), tx.Now()
		if err := tx.DaemonCommandUpdate(&row); err != nil {
			return "", err
		}
		return "", tx.DaemonDeliveriesAcked(row.No, tx.Now(), "the command was closed")
	case row.State == state || row.State == Conflict:
		return "", nil // a repetition, or a conflict that a person has to look at anyway
	}
	row.Before, row.State = row.State, state
	row.Ack, row.AckedAt = proto.CloneOf(ack), tx.Now()
	if state == Accepted && leases(row.Kind) {
		row.Lease = pb.LeaseState_LEASE_STATE_OPEN
	}
	if err := tx.DaemonCommandUpdate(&row); err != nil {
		return "", err
	}
	if err := tx.DaemonDeliveriesAcked(row.No, tx.Now(), ""); err != nil {
		return "", err
	}
	if state == Conflict {
		detail := fmt.Sprintf("command %s (%s): %s", row.ID, row.Kind, why)
		if err := q.owners.RaiseAlert(tx, archive.AlertCommandConflict, row.Daemon.No, row.JobNo, detail); err != nil {
			return "", err
		}
	}
	if err := q.handlers[row.Kind].CommandAcked(tx, link, row, row.Ack); err != nil {
		return "", err
	}
	q.wakeAfter(tx, row.Daemon.No) // what was held behind this answer may be sendable
	return state, nil
}

// judge is what an answer means for the row, and for a conflict why it is one.
func judge(row Row, ack *pb.CommandAck) (State, string) {
	status := ack.Status
	if status == pb.AckStatus_ACK_STATUS_DUPLICATE {
		status = ack.StoredStatus
	}
	var state State
	switch status {
	case pb.AckStatus_ACK_STATUS_ACCEPTED:
		state = Accepted
	case pb.AckStatus_ACK_STATUS_REJECTED:
		state = Rejected
	default:
		return Conflict, "the daemon holds another payload under this id"
	}
	// A command that the daemon could not read in full has the digest of what it could read.
	unread := state == Rejected && ack.Error.GetCode() == pb.ErrorCode_ERROR_CODE_UNSUPPORTED
	if ack.PayloadSha256 != row.SHA256 && !unread {
		return Conflict, "the daemon's digest of the payload is another one"
	}
	if row.State.Answered() && row.State != state && row.State != Conflict {
		return Conflict, fmt.Sprintf("the daemon answers %s after %s", state, row.State)
	}
	return state, ""
}
