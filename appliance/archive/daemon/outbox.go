package daemon

import (
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/clock"
)

// flow is the delivery of one job's outbox over one connection.
type flow struct {
	allowed  bool      // control has given the go-ahead on this connection (4.5)
	dirty    bool      // there may be something to send
	next     uint64    // sequence to send from
	starts   int       // how often delivery has started over
	ack      uint64    // the highest persisted_through seen
	resendAt time.Time // when unacknowledged events go out again; zero: none is out
}

// startOver delivers from the first unconfirmed event on. The session's mu is held.
func (f *flow) startOver() {
	f.dirty, f.next = true, 0
	f.starts++
}

// outboxPage bounds the events in memory at a time.
const outboxPage = 32

// flow returns the job's flow. s.mu is held.
func (s *session) flow(job uuid.UUID) *flow {
	f := s.flows[job]
	if f == nil {
		f = &flow{}
		s.flows[job] = f
	}
	return f
}

// allow lets the job's events out: a go-ahead, or a newly accepted ExecuteStep or CancelJob.
func (s *session) allow(job uuid.UUID) {
	s.mu.Lock()
	f := s.flow(job)
	f.allowed = true
	f.startOver()
	s.mu.Unlock()
	poke(s.dirty)
}

// outboxChanged tells the connection, if there is one, that the job has a new event. It does not block.
func (d *Daemon) outboxChanged(job uuid.UUID) {
	d.mu.Lock()
	s := d.session
	d.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	s.flow(job).dirty = true
	s.mu.Unlock()
	poke(s.dirty)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// eventAck takes in what control has stored and, with go_ahead, that the job is decided and its leases confirmed.
func (s *session) eventAck(a *pb.JobEventAck) error {
	job, err := uuid.Parse(a.GetJobId())
	if err != nil {
		return nil
	}
	var open []uuid.UUID
	known := false
	err = s.d.update(s.ctx, "daemon.event_ack", func(tx Tx) error {
		open = open[:0]
		row, ok, err := tx.Job(job)
		if known = ok && !row.Ended; err != nil || !known {
			return err
		}
		if _, err := tx.MarkAcked(job, min(a.GetPersistedThrough(), row.Sequence)); err != nil {
			return err
		}
		// What the other participant has added since is not confirmed to this one: no command has told of it.
		row.ConfirmedSequence = max(row.ConfirmedSequence, min(a.GetPersistedThrough(), row.Sequence))
		row.ConfirmedRevision = max(row.ConfirmedRevision, min(a.GetRevision(), row.Revision))
		trimmed, err := tx.TrimEvents(job, keptProgress)
		if err != nil {
			return err
		}
		row.TrimmedThrough = max(row.TrimmedThrough, trimmed)
		leases, err := tx.JobLeases(job)
		if err != nil {
			return err
		}
		for _, l := range leases {
			if l.State == pb.LeaseState_LEASE_STATE_OPEN {
				open = append(open, l.CommandID)
			}
		}
		return tx.UpdateJob(row)
	})
	if err != nil || !known {
		return err
	}
	if err := s.d.at(AckStored, job); err != nil {
		return err
	}
	s.mu.Lock()
	f := s.flow(job)
	if a.GetPersistedThrough() > f.ack {
		f.ack = a.GetPersistedThrough()
		if !f.resendAt.IsZero() {
			f.resendAt = s.d.o.Clock.Now().Add(s.retry)
		}
	}
	if a.GetGoAhead() {
		f.allowed = true
		f.startOver()
	}
	s.mu.Unlock()
	if a.GetGoAhead() {
		for _, l := range open {
			s.d.confirm(l, s)
		}
	}
	poke(s.dirty) // also to look whether anything is left to resend
	return nil
}

// pump delivers the outboxes of allowed jobs, and delivers them again when control does not confirm them in time (2.8).
func (s *session) pump() error {
	timer := s.d.o.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := s.deliverAll(); err != nil {
			return err
		}
		s.arm(timer)
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.dirty:
		case <-timer.C():
			s.due()
		}
	}
}

// arm sets the timer to the earliest resend.
func (s *session) arm(timer clock.Timer) {
	var at time.Time
	s.mu.Lock()
	for _, f := range s.flows {
		if !f.resendAt.IsZero() && (at.IsZero() || f.resendAt.Before(at)) {
			at = f.resendAt
		}
	}
	s.mu.Unlock()
	if at.IsZero() {
		timer.Stop()
		return
	}
	timer.ResetAt(at)
}

// due starts the flows over whose events were not confirmed in time.
func (s *session) due() {
	now := s.d.o.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.flows {
		if !f.resendAt.IsZero() && !f.resendAt.After(now) {
			f.startOver()
		}
	}
}

// deliverAll sends what the dirty flows have, one page of each at a time.
func (s *session) deliverAll() error {
	for {
		var jobs []uuid.UUID
		s.mu.Lock()
		for job, f := range s.flows {
			if f.allowed && f.dirty {
				jobs = append(jobs, job)
			}
		}
		s.mu.Unlock()
		if len(jobs) == 0 {
			return nil
		}
		for _, job := range jobs {
			if err := s.deliver(job); err != nil {
				return err
			}
		}
	}
}

// deliver sends one page of the job's outbox. Its rows are marked as sent before the bytes leave: from then on they do not
// change.
func (s *session) deliver(job uuid.UUID) error {
	s.mu.Lock()
	f := s.flow(job)
	from, starts := f.next, f.starts
	f.dirty = false
	s.mu.Unlock()
	var page []OutboxEvent
	err := s.d.update(s.ctx, "daemon.send", func(tx Tx) (err error) {
		row, ok, err := tx.Job(job)
		if page = nil; err != nil || !ok || row.Ended {
			return err
		}
		if page, err = tx.UnackedEvents(job, from, outboxPage); err != nil {
			return err
		}
		var fresh []uint64
		for _, e := range page {
			if !e.Sent {
				fresh = append(fresh, e.Event.GetSequence())
			}
		}
		return tx.MarkSent(job, fresh)
	})
	if err != nil {
		return err
	}
	for _, e := range page {
		if err := s.send(s.ctx, &pb.Envelope{Payload: &pb.Envelope_JobEvent{JobEvent: e.Event}}, Bulk, ""); err != nil {
			return err
		}
		if err := s.d.at(EventSent, job); err != nil {
			return err
		}
	}
	s.delivered(job, from, starts, page)
	return nil
}

// delivered moves the flow past the page, unless an acknowledgement has started it over meanwhile.
func (s *session) delivered(job uuid.UUID, from uint64, starts int, page []OutboxEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flow(job)
	switch {
	case len(page) > 0:
		f.resendAt = s.d.o.Clock.Now().Add(s.retry)
		if f.starts == starts {
			f.next = page[len(page)-1].Event.GetSequence() + 1
		}
		f.dirty = f.dirty || len(page) == outboxPage
	case from == 0:
		f.resendAt = time.Time{} // everything is confirmed
	}
}
