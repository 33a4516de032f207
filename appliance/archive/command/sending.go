package command

import (
	"context"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/clock"
)

// Claimed is a command whose attempt is counted and that must now be written.
type Claimed struct {
	CommandNo  int64
	DeliveryNo int64
	Kind       Kind
	Command    *pb.Command // with attempt
}

// maxClaims bounds the commands of one claim, whatever their size.
const maxClaims = 32

// Sending hands the commands of one daemon to one connection, at the pace at which it writes. Next and Unsendable belong
// to the goroutine that writes; Close may come from any.
type Sending struct {
	q    *Queue
	link archive.Link
	wake func()

	sent map[int64]time.Time // command number: when it was last claimed on this connection, by the clock
	out  []int64             // deliveries of the last claim, to be stamped when the next is made
}

// Connect begins to send on a registered connection. wake is called, from any goroutine, when Next may have something
// because time has passed; it must not block. Hints after commits are not passed on: watch archive.DaemonKey for those.
func (q *Queue) Connect(link archive.Link, wake func()) *Sending {
	s := &Sending{q: q, link: link, wake: wake, sent: map[int64]time.Time{}}
	q.mu.Lock()
	q.open[s] = time.Time{}
	q.mu.Unlock()
	return s
}

// Next claims what may be sent now, in the order of daemon protocol 4.5: ReconcileJob, CancelJob, CloseJob, what was sent
// before, what is new. It takes commands until their payloads reach about maxBytes, at least one. The attempt of each is
// counted, and written to the ledger, before Next returns; the caller calls Next again only after it has written them. A
// command whose attempts are used up is parked instead, and its handler told. Stale: the link no longer owns the daemon.
func (s *Sending) Next(ctx context.Context, maxBytes int) ([]Claimed, error) {
	var (
		claimed []Claimed
		parked  []Kind
		again   []bool
		open    map[int64]time.Time
		due     time.Time
	)
	if idle, err := s.idle(ctx); idle || err != nil {
		return nil, err
	}
	now, retry := s.q.clock.Now(), s.q.owners.Liveness().CommandRetry
	err := s.q.store.Update(ctx, "archive.command_claim", func(tx Tx) error {
		claimed, parked, again, open, due = nil, nil, nil, map[int64]time.Time{}, time.Time{}
		owner, err := s.q.owners.Owner(tx, s.link)
		if err != nil {
			return err
		}
		if err := stamp(tx, s.out); err != nil {
			return err
		}
		rows, err := tx.DaemonCommandsToSend(s.link.Daemon.No)
		if err != nil {
			return err
		}
		for i := range rows { // what waits for its answer on this connection stays known, whatever is claimed now
			if at, ok := s.sent[rows[i].No]; ok {
				open[rows[i].No] = at
			}
		}
		room := maxBytes
		for i := range rows {
			row := &rows[i]
			if at, ok := s.sent[row.No]; ok && now.Before(at.Add(retry)) {
				due = earlier(due, at.Add(retry))
				continue
			}
			if owner.Paused && row.Kind == archive.AssignJob {
				continue
			}
			may, err := s.q.handlers[row.Kind].MaySend(tx, s.link, *row)
			if err != nil {
				return err
			}
			if !may {
				continue
			}
			if row.Attempts >= row.Allowance {
				if err := s.q.park(tx, row.No); err != nil {
					return err
				}
				parked = append(parked, row.Kind)
				continue
			}
			if len(claimed) == maxClaims || len(claimed) > 0 && row.Size > room {
				return nil // the caller comes back when it has written these
			}
			room -= row.Size
			c, err := claim(tx, row, s.link.Generation)
			if err != nil {
				return err
			}
			again = append(again, row.Attempts > 1)
			claimed = append(claimed, c)
			open[row.No] = now
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.sent, s.out = open, s.out[:0]
	for i, c := range claimed {
		s.out = append(s.out, c.DeliveryNo)
		s.q.observer.Claimed(c.Kind, again[i])
	}
	for _, k := range parked {
		s.q.observer.Parked(k)
	}
	if len(claimed) == 0 { // otherwise the caller comes back by itself
		s.q.plan(s, due)
	}
	return claimed, nil
}

// idle tells that nothing waits, which spares the writer a transaction at most of the hints. A command that comes
// meanwhile brings a hint of its own, after its commit.
func (s *Sending) idle(ctx context.Context) (bool, error) {
	if len(s.out) > 0 {
		return false, nil
	}
	waiting := false
	err := s.q.store.View(ctx, func(tx ReadTx) (err error) {
		waiting, err = tx.DaemonCommandsWaiting(s.link.Daemon.No)
		return err
	})
	return !waiting, err
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// stamp notes that the bytes of deliveries have left.
func stamp(tx Tx, deliveries []int64) error {
	for _, no := range deliveries {
		if err := tx.DaemonDeliverySent(no, tx.Now()); err != nil {
			return err
		}
	}
	return nil
}

// claim counts the attempt.
func claim(tx Tx, row *Row, generation int64) (Claimed, error) {
	full, err := tx.DaemonCommand(row.No)
	if err != nil {
		return Claimed{}, err
	}
	c, err := full.Command()
	if err != nil {
		return Claimed{}, err
	}
	row.Attempts++
	row.State, row.LastSentAt = Sent, tx.Now()
	if row.FirstSentAt.IsZero() {
		row.FirstSentAt = tx.Now()
	}
	c.Attempt = row.Attempts
	if err := tx.DaemonCommandUpdate(row); err != nil {
		return Claimed{}, err
	}
	d := Delivery{CommandNo: row.No, Attempt: row.Attempts, Generation: generation, ClaimedAt: tx.Now(), Outcome: InFlight}
	if err := tx.DaemonDeliveryInsert(&d); err != nil {
		return Claimed{}, err
	}
	return Claimed{CommandNo: row.No, DeliveryNo: d.No, Kind: row.Kind, Command: c}, nil
}

func (q *Queue) park(tx Tx, commandNo int64) error {
	row, err := tx.DaemonCommand(commandNo)
	if err != nil {
		return err
	}
	row.State = Parked
	if err := tx.DaemonCommandUpdate(&row); err != nil {
		return err
	}
	return q.handlers[row.Kind].CommandExhausted(tx, row)
}

// Unsendable parks a claimed command that cannot be put on the wire at all, and tells its handler. The reason is for
// operators.
func (s *Sending) Unsendable(ctx context.Context, c Claimed, reason string) error {
	return s.q.store.Update(ctx, "archive.command_unsendable", func(tx Tx) error {
		row, err := tx.DaemonCommand(c.CommandNo)
		if err != nil {
			return err
		}
		if err := tx.DaemonDeliveryFailed(c.DeliveryNo, reason); err != nil || row.State != Sent {
			return err
		}
		return s.q.park(tx, row.No)
	})
}

// Close ends the sending. What was claimed last and not stamped is noted as not sent; the attempt stays counted, for the
// bytes may have left (daemon protocol 3.7). Call it after the last Next has returned.
func (s *Sending) Close(ctx context.Context, reason string) error {
	s.q.mu.Lock()
	delete(s.q.open, s)
	s.q.mu.Unlock()
	if len(s.out) == 0 {
		return nil
	}
	return s.q.store.Update(ctx, "archive.command_unsent", func(tx Tx) error {
		for _, no := range s.out {
			if err := tx.DaemonDeliveryFailed(no, reason); err != nil {
				return err
			}
		}
		return nil
	})
}

// retryEvery is the pause before a claim that the database did not take is tried again.
const retryEvery = time.Second

// Later has the connection woken in a moment, for the writer that could not go on.
func (s *Sending) Later() { s.q.plan(s, s.q.clock.Now().Add(retryEvery)) }

// plan has the sending woken at due; zero: only by others.
func (q *Queue) plan(s *Sending, due time.Time) {
	q.mu.Lock()
	if _, live := q.open[s]; live {
		q.open[s] = due
	}
	q.mu.Unlock()
	if !due.IsZero() {
		select {
		case q.poke <- struct{}{}:
		default:
		}
	}
}

// Run wakes connections whose unanswered commands are due to be sent again, on one timer, until ctx ends; it returns nil
// then.
func (q *Queue) Run(ctx context.Context) error {
	var timer clock.Timer
	for {
		next, armed := q.due()
		var fire <-chan time.Time
		switch {
		case !armed && timer != nil:
			timer.Stop()
		case armed && timer == nil: // a timer that exists means something that waits
			timer = q.clock.NewTimer(time.Hour)
			defer timer.Stop()
			fallthrough
		case armed:
			timer.ResetAt(next)
			fire = timer.C()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-q.poke:
		case <-fire:
		}
	}
}

// due wakes who is due and returns the next time.
func (q *Queue) due() (next time.Time, armed bool) {
	now := q.clock.Now()
	var wake []*Sending
	q.mu.Lock()
	for s, at := range q.open {
		switch {
		case at.IsZero():
		case !now.Before(at):
			q.open[s] = time.Time{}
			wake = append(wake, s)
		case !armed || at.Before(next):
			next, armed = at, true
		}
	}
	q.mu.Unlock()
	for _, s := range wake {
		s.wake()
	}
	return next, armed
}
