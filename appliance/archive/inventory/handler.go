package inventory

import (
	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
)

var _ command.Handler = (*Inventory)(nil)

// Queued is the command queue as the inventory uses it.
type Queued struct{ Queue *command.Queue }

// Enqueue implements Commands.
func (q Queued) Enqueue(tx Tx, daemon archive.DaemonRef, c *pb.Command) (int64, error) {
	row, err := q.Queue.Enqueue(any(tx).(command.Tx), command.New{Daemon: daemon, Command: c})
	return row.No, err
}

// Close implements Commands.
func (q Queued) Close(tx Tx, commandNo int64) error {
	return q.Queue.Close(any(tx).(command.Tx), commandNo)
}

// CommandAcked implements command.Handler.
func (i *Inventory) CommandAcked(tx command.Tx, link archive.Link, row command.Row, ack *pb.CommandAck) error {
	own := any(tx).(Tx)
	if row.State == command.Accepted {
		return i.Accepted(own, link, row.No)
	}
	if row.State == command.Rejected || row.State == command.Conflict {
		return i.Rejected(own, row.No, ack.GetError())
	}
	return nil
}

// CommandExhausted implements command.Handler.
func (i *Inventory) CommandExhausted(tx command.Tx, row command.Row) error {
	return i.Exhausted(any(tx).(Tx), row.No)
}

// MaySend implements command.Handler.
func (i *Inventory) MaySend(tx command.ReadTx, _ archive.Link, row command.Row) (bool, error) {
	return i.maySend(any(tx).(ReadTx), row.No)
}

// HeldBecause implements command.Explainer.
func (i *Inventory) HeldBecause(tx command.ReadTx, row command.Row) (string, error) {
	if ok, err := i.maySend(any(tx).(ReadTx), row.No); err != nil || ok {
		return "", err
	}
	return "The daemon has as many inventory queries to answer as it may.", nil
}
