package route

import (
	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
)

var _ command.Handler = (*Routes)(nil)

// Queued is the command queue as routes use it.
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

// grantAttempts is how often a command that a person sends again goes out.
const grantAttempts = 3

// Grant implements Commands.
func (q Queued) Grant(tx Tx, commandNo int64) error {
	return q.Queue.Grant(any(tx).(command.Tx), commandNo, grantAttempts)
}

// CommandAcked implements command.Handler.
func (r *Routes) CommandAcked(tx command.Tx, _ archive.Link, row command.Row, ack *pb.CommandAck) error {
	own := any(tx).(Tx)
	if row.State == command.Accepted {
		return r.commandAccepted(own, row.ID)
	}
	if row.State == command.Rejected || row.State == command.Conflict {
		return r.commandRejected(own, row.ID, ack.GetError())
	}
	return nil
}

// CommandExhausted implements command.Handler.
func (r *Routes) CommandExhausted(tx command.Tx, row command.Row) error {
	return r.commandExhausted(any(tx).(Tx), row.ID)
}

// MaySend implements command.Handler: route commands wait for nothing. The commands of one daemon go out in their order,
// and a repeated one is recognised by its ID.
func (r *Routes) MaySend(command.ReadTx, archive.Link, command.Row) (bool, error) { return true, nil }
