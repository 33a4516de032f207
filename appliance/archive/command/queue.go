package command

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Handler is the part that a kind of command belongs to. Its methods run inside the queue's transactions: they touch only
// tx, and an error rolls everything back.
type Handler interface {
	// CommandAcked is told of the first answer, also of a late one; row has the new state, row.Before the old one. A
	// CONFLICT may follow an earlier answer that it contradicts.
	CommandAcked(tx Tx, link archive.Link, row Row, ack *pb.CommandAck) error
	// CommandExhausted is told when the attempts are used up and the command was parked.
	CommandExhausted(tx Tx, row Row) error
	// MaySend tells whether the command, whose payload is not loaded, may be sent on the link now. False leaves it as it is: whoever makes it sendable
	// later wakes archive.DaemonKey after the commit. For a command that was sent on an earlier connection, true also says
	// that it was compared with what the daemon reported (daemon protocol 4.3).
	MaySend(tx ReadTx, link archive.Link, row Row) (bool, error)
}

// Explainer is a Handler that can tell why MaySend says no.
type Explainer interface {
	// HeldBecause returns one sentence for an operator, or "" when it knows of nothing.
	HeldBecause(tx ReadTx, row Row) (string, error)
}

// Owners is what the queue asks of the registry; *registry.Registry is one.
type Owners interface {
	Owned(tx registry.FenceTx, link archive.Link) (registry.Owner, error)
	// Owner is Owned for what control does by itself: it notes no use of the generation.
	Owner(tx registry.FenceTx, link archive.Link) (registry.Owner, error)
	Current(daemonNo int64) (archive.Link, bool)
	Liveness() registry.Liveness
	RaiseAlert(tx registry.AlertTx, kind archive.AlertKind, daemonNo, jobNo int64, detail string) error
}

// Observer counts. Its methods must not block.
type Observer interface {
	Claimed(kind Kind, again bool)
	Answered(kind Kind, state State)
	Parked(kind Kind)
	// UnknownAck is an answer to a command that is not in the database.
	UnknownAck()
}

type nobody struct{}

func (nobody) Claimed(Kind, bool)   {}
func (nobody) Answered(Kind, State) {}
func (nobody) Parked(Kind)          {}
func (nobody) UnknownAck()          {}

// Options of a Queue.
type Options struct {
	Clock    clock.Clock
	Hub      *wake.Hub // required: woken with archive.DaemonKey after each commit that may have made something sendable
	Observer Observer  // may be nil
}

// Queue stores commands and hands them to connections. Its methods are safe for concurrent use; those that take a
// transaction belong to the function that runs it. Handlers must be set before the first connection.
type Queue struct {
	store    Store
	owners   Owners
	clock    clock.Clock
	hub      *wake.Hub
	observer Observer
	handlers map[Kind]Handler

	poke chan struct{}
	mu   sync.Mutex
	open map[*Sending]time.Time // when each is to look again; zero: only when woken
}

// NewQueue returns a queue without handlers.
func NewQueue(store Store, owners Owners, o Options) *Queue {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Hub == nil {
		o.Hub = wake.New()
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	return &Queue{store: store, owners: owners, clock: o.Clock, hub: o.Hub, observer: o.Observer, handlers: map[Kind]Handler{},
		poke: make(chan struct{}, 1), open: map[*Sending]time.Time{}}
}

// Handle makes h the handler of the kind.
func (q *Queue) Handle(kind Kind, h Handler) { q.handlers[kind] = h }

// Enqueue stores a command in the caller's transaction and wakes its daemon's connection after the commit. Conflict when
// its id, or the step attempt, exists.
func (q *Queue) Enqueue(tx Tx, n New) (Row, error) {
	c := n.Command
	kind := archive.KindOf(c)
	if q.handlers[kind] == nil {
		return Row{}, fault.New(fault.Internal, "nobody handles commands of kind %s", kind)
	}
	id, err := commandID(c)
	if err != nil {
		return Row{}, err
	}
	c.CommandId, c.ClientId, c.IssuedAt, c.Attempt = id.String(), n.Daemon.ID.String(), timestamppb.New(tx.Now()), 0
	row := Row{ID: id, Daemon: n.Daemon, JobNo: n.JobNo, Kind: kind, Step: c.GetExecuteStep().GetStep(),
		StepAttempt:      c.GetExecuteStep().GetStepAttempt(),
		ExpectedRevision: c.GetPrecondition().GetExpectedRevision(), ExpectedSequence: c.GetPrecondition().GetExpectedLastEventSequence(),
		Allowance: q.owners.Liveness().CommandAttempts, State: Pending, Lease: pb.LeaseState_LEASE_STATE_NONE, IssuedAt: tx.Now()}
	row.Payload, row.SHA256 = frame.PayloadIdentity(c)
	row.Size = len(row.Payload)
	if err := tx.DaemonCommandInsert(&row); err != nil {
		return Row{}, err
	}
	q.wakeAfter(tx, row.Daemon.No)
	return row, nil
}

func commandID(c *pb.Command) (uuid.UUID, error) {
	if c.CommandId == "" {
		return uuid.NewV7()
	}
	id, err := uuid.Parse(c.CommandId)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, fault.Field("command_id", "must be a UUID")
	}
	return id, nil
}

func (q *Queue) wakeAfter(tx archive.Writer, daemonNo int64) {
	tx.Hint(func() { q.hub.Wake(archive.DaemonKey(daemonNo)) })
}

// OfJob returns every command of the job, oldest first.
func (q *Queue) OfJob(tx ReadTx, jobNo int64) ([]Row, error) { return tx.DaemonCommandsOfJob(jobNo) }

// Withdraw takes an unanswered command back: it is never sent again. One that was answered is left as it is.
func (q *Queue) Withdraw(tx Tx, commandNo int64) error {
	return q.change(tx, commandNo, func(r *Row) bool {
		if !r.State.Unanswered() {
			return false
		}
		r.State = Withdrawn
		return true
	})
}

// Supersede ends an unanswered command that a newer decision replaces.
func (q *Queue) Supersede(tx Tx, commandNo int64) error {
	return q.change(tx, commandNo, func(r *Row) bool {
		if !r.State.Unanswered() {
			return false
		}
		r.State = Superseded
		return true
	})
}

// Retire ends the lease of a command, after its retirement was acknowledged, and closes it.
func (q *Queue) Retire(tx Tx, commandNo int64) error {
	return q.change(tx, commandNo, func(r *Row) bool {
		r.Lease = pb.LeaseState_LEASE_STATE_RETIRED
		r.State, r.ClosedAt = Closed, tx.Now()
		return true
	})
}

// Close ends a command whose work is done or that can no longer matter. An open lease is settled.
func (q *Queue) Close(tx Tx, commandNo int64) error {
	return q.change(tx, commandNo, func(r *Row) bool {
		if r.State == Closed {
			return false
		}
		if r.Lease == pb.LeaseState_LEASE_STATE_OPEN {
			r.Lease = pb.LeaseState_LEASE_STATE_SETTLED
		}
		r.State, r.ClosedAt = Closed, tx.Now()
		return true
	})
}

// Grant allows an unanswered command that many more sends; a parked one is sent again. Conflict when it was answered or
// taken back.
func (q *Queue) Grant(tx Tx, commandNo int64, attempts uint32) error {
	var answered error
	err := q.change(tx, commandNo, func(r *Row) bool {
		if !r.State.Unanswered() {
			answered = fault.New(fault.Conflict, "command %s is %s: there is nothing to send", r.ID, r.State)
			return false
		}
		r.Allowance = uint32(min(uint64(r.Attempts)+uint64(attempts), math.MaxInt32))
		if r.State == Parked {
			r.State = Sent
		}
		return true
	})
	if err == nil {
		err = answered
	}
	return err
}

// MarkAccepted records an acknowledgement that was found in a cursor of the daemon: the command is listed there as open or
// settled (daemon protocol 4.3). Answered and closed commands are left as they are.
func (q *Queue) MarkAccepted(tx Tx, commandNo int64) error {
	found := false
	err := q.change(tx, commandNo, func(r *Row) bool {
		if r.State.Answered() || r.State == Closed {
			return false
		}
		r.State, r.AckedAt, found = Accepted, tx.Now(), true
		if leases(r.Kind) {
			r.Lease = pb.LeaseState_LEASE_STATE_OPEN
		}
		return true
	})
	if err != nil || !found {
		return err
	}
	return tx.DaemonDeliveriesAcked(commandNo, tx.Now(), "found in the daemon's cursor")
}

func (q *Queue) change(tx Tx, commandNo int64, fn func(*Row) bool) error {
	row, err := tx.DaemonCommand(commandNo)
	if err != nil {
		return err
	}
	if !fn(&row) {
		return nil
	}
	if err := tx.DaemonCommandUpdate(&row); err != nil {
		return err
	}
	q.wakeAfter(tx, row.Daemon.No)
	return nil
}

// Prune deletes the closed commands of no job that ended before the time, in transactions of slice commands, and returns
// how many. It takes all of them: what waits for space asks once a minute, and more may come in an hour than one slice has.
func (q *Queue) Prune(ctx context.Context, before time.Time, slice int) (total int64, err error) {
	for {
		var n int64
		err := q.store.Update(ctx, "archive.prune_commands", func(tx Tx) error {
			n, err = tx.DaemonCommandsPrune(before, slice)
			return err
		})
		total += n
		if err != nil || n < int64(slice) {
			return total, err
		}
	}
}
