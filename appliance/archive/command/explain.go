package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Explanation is what is known of a command's delivery.
type Explanation struct {
	Row        Row
	Daemon     string     // its name
	Job        uuid.UUID  // uuid.Nil: the command is of no job
	Deliveries []Delivery // oldest first
	// Waiting says, for a command that has no answer, why it is not being sent now or what is waited for; else empty.
	Waiting string

	Summary  string // one sentence
	WaitsFor string // "daemon nas", or "nothing" when the command is over
	// NextAction is what a person can do about the command by itself; its job, if it has one, knows more.
	NextAction string
}

// Over tells whether nothing of the command is waited for any more.
func (e Explanation) Over() bool {
	return !e.Row.State.Unanswered() && e.Row.State != Conflict && !e.Row.LeaseOpen()
}

// Explain tells the story of a command; NotFound when it does not exist.
func (q *Queue) Explain(ctx context.Context, id uuid.UUID) (e Explanation, err error) {
	err = q.store.View(ctx, func(tx ReadTx) error {
		row, err := tx.DaemonCommandByID(id)
		if err != nil {
			return err
		}
		e, err = q.explain(tx, row)
		return err
	})
	return e, err
}

// maxFound is how many ids Find returns at most.
const maxFound = 10

// Find returns the ids of commands in [low, high], at most 10, ascending.
func (q *Queue) Find(ctx context.Context, low, high uuid.UUID) (ids []uuid.UUID, err error) {
	err = q.store.View(ctx, func(tx ReadTx) error {
		ids, err = tx.DaemonCommandsBetween(low, high, maxFound)
		return err
	})
	return ids, err
}

func (q *Queue) explain(tx ReadTx, row Row) (e Explanation, err error) {
	e.Row = row
	if e.Deliveries, err = tx.DaemonDeliveries(row.No); err != nil {
		return e, err
	}
	if e.Daemon, e.Job, err = tx.DaemonCommandOwners(row.No); err != nil {
		return e, err
	}
	if row.State.Unanswered() {
		if e.Waiting, err = q.waiting(tx, row); err != nil {
			return e, err
		}
	}
	e.words(tx.Now())
	return e, nil
}

func (q *Queue) waiting(tx ReadTx, row Row) (string, error) {
	owner, err := tx.RegistryOwner(row.Daemon.No)
	if err != nil {
		return "", err
	}
	link, ok := q.owners.Current(row.Daemon.No)
	switch {
	case row.State == Parked:
		return fmt.Sprintf("All %d sends are used up without an answer; a late answer is still taken.", row.Allowance), nil
	case !owner.Online || !ok:
		return "The daemon is offline: nothing is sent, and no attempt is spent.", nil
	case owner.Paused && row.Kind == archive.AssignJob:
		return "Two databases answer to the daemon's id; it gets no new assignments until one of them stays.", nil
	}
	h := q.handlers[row.Kind]
	if h == nil {
		return "Nobody handles this kind of command.", nil
	}
	may, err := h.MaySend(tx, link, row)
	switch {
	case err != nil:
		return "", err
	case !may:
		if x, ok := h.(Explainer); ok {
			if why, err := x.HeldBecause(tx, row); why != "" || err != nil {
				return why, err
			}
		}
		return "It is held until what comes before it is settled.", nil
	case row.State == Pending:
		return "It is sent as soon as the connection takes it.", nil
	case row.Attempts >= row.Allowance:
		return fmt.Sprintf("Send %d of %d was the last one; sending ends when no answer comes.", row.Attempts, row.Allowance), nil
	}
	return fmt.Sprintf("There is no answer to send %d of %d; the next follows %s after the last, or after a reconnect.", row.Attempts,
		row.Allowance, q.owners.Liveness().CommandRetry.Round(time.Second)), nil
}

// words says where the command stands.
func (e *Explanation) words(now time.Time) {
	r, who := &e.Row, "daemon "+e.Daemon
	e.WaitsFor, e.NextAction = "nothing", "Nothing: the command is over."
	if !e.Over() {
		e.WaitsFor = who
		e.NextAction = fmt.Sprintf("Look at the daemon: `signalbox daemons show %s`.", r.Daemon.ID)
	}
	switch r.State {
	case Pending:
		e.Summary = fmt.Sprintf("The command was not sent to %s yet.", who)
	case Sent:
		e.Summary = fmt.Sprintf("The command was sent to %s, %d of at most %d times, last %s, and is not answered.", who, r.Attempts,
			r.Allowance, archive.TimeText(r.LastSentAt, now))
	case Parked:
		e.Summary = fmt.Sprintf("The command was sent to %s as often as allowed, %d times, last %s, and is not answered.", who, r.Attempts,
			archive.TimeText(r.LastSentAt, now))
	case Accepted:
		e.Summary = fmt.Sprintf("The command was accepted by %s %s.", who, archive.TimeText(r.AckedAt, now))
		if r.LeaseOpen() {
			e.Summary = fmt.Sprintf("The command was accepted by %s %s, and its work has not ended.", who, archive.TimeText(r.AckedAt, now))
		}
	case Rejected:
		e.Summary = fmt.Sprintf("The command was refused by %s: %s.", who, strings.TrimSuffix(r.Ack.GetError().GetMessage(), "."))
	case Conflict:
		e.Summary = fmt.Sprintf("What %s answered contradicts what control knows of the command.", who)
	case Withdrawn:
		e.Summary = "The command was taken back: it is not sent any more."
	case Superseded:
		e.Summary = "A newer decision has taken the place of the command."
	case Closed:
		e.Summary = "The command is over."
	}
}

// LeaseOpen tells whether a lease of the command is open at the daemon, as far as control knows.
func (r Row) LeaseOpen() bool { return r.Lease == pb.LeaseState_LEASE_STATE_OPEN }
