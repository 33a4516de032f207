package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Key is woken after every commit that gave a schedule an earlier next slot: the Scheduler looks again.
type Key struct{}

// Observer counts what the Scheduler does. Methods are called after the commit and must not block.
type Observer interface {
	// Fired counts a fire: how long after its slot it was decided, and whether it waits for an agent.
	Fired(project uuid.UUID, origin Origin, lag time.Duration, buffered bool)
	// Misfired counts slots that were passed over.
	Misfired(project uuid.UUID, reason MisfireReason, slots int64)
}

// SchedulerOptions are the settings of a Scheduler. Zero values take the defaults.
type SchedulerOptions struct {
	Clock clock.Clock
	// Grace is how late a slot may be decided and still counts as on time; 0 is 60 s.
	Grace time.Duration
	// CatchUpMost is how many missed slots fire_all_missed fires for one schedule; 0 is 1000.
	CatchUpMost int
	// CatchUpRate is how many missed slots are fired a second, over all schedules; 0 is 100.
	CatchUpRate int
	Observer    Observer // nil counts nothing
	// Trouble is told of a failure that is tried again: nil tells nobody. It must not block.
	Trouble func(op string, err error)
}

// Bounds of one transaction of the Scheduler, and of its sleep.
const (
	batchFires = 100    // fires
	batchScan  = 20_000 // slots looked at of one schedule
	// clockLook is the longest sleep without a look at the clock. It reads no database: it is there because a timer does not
	// notice a clock that is set or a machine that was suspended.
	clockLook = 30 * time.Second
	// setBack is how far the clock goes back before what was decided ahead of it is decided anew.
	setBack = 2 * time.Second
	// aside is how long a schedule that cannot be decided is left alone.
	aside = time.Minute
	// retryAfter is the wait after a failure of the database.
	retryAfter = time.Second
)

// Scheduler decides the slots of our schedules as they come due. One runs in a process; two would do no harm, since a slot
// is decided in one transaction with the fire that it makes.
type Scheduler struct {
	st      agent.Store[Tx, ReadTx]
	starter Starter
	log     agent.AuditAppender
	hub     *wake.Hub
	opts    SchedulerOptions

	// Of Run alone.
	last      time.Time           // when the clock was looked at
	looked    bool                // what was decided ahead of the clock was looked for since the clock went back
	catchUpAt time.Time           // missed slots are fired from then on, by the rate
	asides    map[int64]time.Time // schedules left alone, until when
}

// NewScheduler returns a Scheduler. It starts nothing.
func NewScheduler(st agent.Store[Tx, ReadTx], starter Starter, log agent.AuditAppender, hub *wake.Hub, opts SchedulerOptions) *Scheduler {
	if opts.Clock == nil {
		opts.Clock = clock.System()
	}
	if opts.Grace <= 0 {
		opts.Grace = time.Minute
	}
	if opts.CatchUpMost <= 0 {
		opts.CatchUpMost = 1000
	}
	if opts.CatchUpRate <= 0 {
		opts.CatchUpRate = 100
	}
	if opts.Observer == nil {
		opts.Observer = countNothing{}
	}
	if opts.Trouble == nil {
		opts.Trouble = func(string, error) {}
	}
	return &Scheduler{st: st, starter: starter, log: log, hub: hub, opts: opts, asides: map[int64]time.Time{}}
}

type countNothing struct{}

func (countNothing) Fired(uuid.UUID, Origin, time.Duration, bool) {}
func (countNothing) Misfired(uuid.UUID, MisfireReason, int64)     {}

// Run decides slots until ctx ends, then returns nil. It sleeps until the next slot exactly and is woken through Key; while
// nothing is due it reads nothing.
func (s *Scheduler) Run(ctx context.Context) error {
	watch := s.hub.Watch(Key{})
	defer watch.Stop()
	timer := s.opts.Clock.NewTimer(0)
	defer timer.Stop()
	for until := (time.Time{}); ; {
		select {
		case <-timer.C():
			if now := s.opts.Clock.Now(); now.Before(until) && !s.wentBack(now) {
				timer.ResetAt(now.Add(min(until.Sub(now), clockLook)))
				continue
			}
		case <-watch.C():
		case <-ctx.Done():
			return nil
		}
		next, err := s.Step(ctx)
		now := s.opts.Clock.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.opts.Trouble("decide schedules", err)
			until = now.Add(retryAfter)
		case next.IsZero():
			until = now.Add(100 * 365 * 24 * time.Hour)
		default:
			until = next
		}
		timer.ResetAt(now.Add(min(until.Sub(now), clockLook)))
	}
}

// wentBack notes the time and tells whether the clock was set back since the last look.
func (s *Scheduler) wentBack(now time.Time) bool {
	if now.Before(s.last.Add(-setBack)) {
		s.looked = false
		s.catchUpAt = time.Time{}
		clear(s.asides)
	}
	s.last = now
	return !s.looked
}

// Step decides everything that is due now, in transactions of at most 100 fires each, and returns when there is more to do;
// the zero time when there is no further slot. Slots on time go before missed ones. For use by Run and by tests; not
// concurrently.
func (s *Scheduler) Step(ctx context.Context) (next time.Time, err error) {
	if s.wentBack(s.opts.Clock.Now()) {
		if err := s.rewind(ctx); err != nil {
			return time.Time{}, err
		}
		s.looked = true
	}
	for of := onTime; of < lanes; {
		now := s.opts.Clock.Now()
		if of != onTime && now.Before(s.catchUpAt) {
			break
		}
		done, err := s.decideBatch(ctx, of)
		if err != nil {
			return time.Time{}, err
		}
		if done.late > 0 {
			s.catchUpAt = now.Add(time.Duration(done.late) * time.Second / time.Duration(s.opts.CatchUpRate))
		}
		if of++; done.schedules > 0 {
			of = onTime
		}
	}
	return s.nextTime(ctx)
}

// nextTime is when there is something to do next.
func (s *Scheduler) nextTime(ctx context.Context) (next time.Time, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		now := tx.Now()
		if next, err = tx.ScheduleNextRun(now); err != nil {
			return err
		}
		earlier := func(at time.Time) {
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
		// What is due and was left: schedules put aside, and missed slots that wait for their turn.
		for _, at := range s.asides {
			earlier(at)
		}
		due, err := tx.SchedulesDue(DueQuery{UpTo: now, Limit: len(s.asides) + 1})
		for _, d := range due {
			if _, left := s.asides[d.Schedule.No]; !left {
				at := now
				if s.catchUpAt.After(at) {
					at = s.catchUpAt
				}
				earlier(at)
			}
		}
		return err
	})
	return next, err
}

// rewind lets schedules that were decided ahead of the clock begin again now: the clock was wrong then, and nothing of them
// is held up until it comes there again. Slots that were fired are not fired twice: their fires are there.
func (s *Scheduler) rewind(ctx context.Context) error {
	for after := int64(0); ; {
		var found []Schedule
		ahead := func(tx ReadTx) (err error) {
			found, err = tx.SchedulesAhead(tx.Now().Add(s.opts.Grace), after, batchFires)
			return err
		}
		if err := s.st.View(ctx, ahead); err != nil || len(found) == 0 {
			return err
		}
		err := s.st.Update(ctx, "rewind schedules", func(tx Tx) error {
			if err := ahead(tx); err != nil {
				return err
			}
			for _, row := range found {
				t, err := row.Timing()
				if err != nil {
					continue // the decision on its next slot will say so
				}
				row.DecidedAt = tx.Now()
				row.NextRunAt = following(t, row.DecidedAt)
				if err := tx.ScheduleDecided(row); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("rewind schedules: %w", err)
		}
		if len(found) < batchFires {
			return nil
		}
		after = found[len(found)-1].No
	}
}

// passing tells whether an error is the database's and will pass, or ends everything: it is not about one schedule.
func passing(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.Canceled, fault.OutcomeUnknown, fault.Corrupt:
		return true
	}
	return false
}
