package notify

import (
	"context"
	"time"

	"signalbox/appliance/agent"
)

// offlineBatch is how many offline periods one transaction looks at.
const offlineBatch = 200

// WatchOffline collects agents that are offline for longer than the grace, each offline period once, until ctx ends. It
// sleeps until the earliest period is old enough and wakes when agents go offline. Nothing is told before the appliance
// has been up for the grace: until then agents had no chance to come back. Periods of archived projects pass in silence.
func (s *Service) WatchOffline(ctx context.Context) error {
	watch := s.hub.Watch(agent.AgentsOffline{})
	defer watch.Stop()
	timer := s.opts.Clock.NewTimer(0)
	defer timer.Stop()
	pause := storePause
	for {
		select {
		case <-timer.C():
		case <-watch.C():
		case <-ctx.Done():
			return nil
		}
		next, err := s.lookOffline(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			s.opts.Observer.NotifyTrouble("look for offline agents", err)
			timer.Reset(pause)
			pause = min(2*pause, maxStorePause)
			continue
		case next.IsZero():
			timer.Stop()
		default:
			timer.ResetAt(next)
		}
		pause = storePause
	}
}

// lookOffline collects what is due and returns when the next period is old enough; the zero time when there is none.
func (s *Service) lookOffline(ctx context.Context) (next time.Time, err error) {
	for {
		var due bool
		err := s.st.View(ctx, func(tx ReadTx) error {
			first, err := tx.NotifyOffline(1)
			next = time.Time{}
			if err == nil && len(first) > 0 {
				next = s.tellAt(&first[0], tx.Now())
				due = !next.After(tx.Now())
			}
			return err
		})
		if err != nil || !due {
			return next, err
		}
		if err := s.st.Update(ctx, "offline agents", s.tellOffline); err != nil {
			return next, err
		}
	}
}

// tellAt is when an offline period is old enough. One that begins in the future, because the clock was set back, counts
// from now on as far as anybody knows, and is told at once rather than never.
func (s *Service) tellAt(a *OfflineAgent, now time.Time) time.Time {
	if a.Since.After(now) {
		return now
	}
	from := a.Since
	if from.Before(s.start) && !s.start.After(now) {
		from = s.start
	}
	return from.Add(s.opts.Grace)
}

func (s *Service) tellOffline(tx Tx) error {
	agents, err := tx.NotifyOffline(offlineBatch)
	if err != nil {
		return err
	}
	for i := range agents {
		a := &agents[i]
		if s.tellAt(a, tx.Now()).After(tx.Now()) {
			break // the others are later
		}
		if err := tx.NotifyMarkOffline(a.No, a.Since); err != nil {
			return err
		}
		if !a.Active {
			continue
		}
		heard := "It was never heard."
		if !a.LastSeenAt.IsZero() {
			heard = "It was last heard at " + a.LastSeenAt.UTC().Format(time.RFC3339) + "."
		}
		err := s.Collect(tx, Occurrence{ProjectNo: a.ProjectNo, Trigger: AgentOffline, Name: a.Name, GroupKey: a.ID.String(),
			Title: "agent " + a.Name + " is offline", Detail: heard, At: a.Since,
			Links: map[string]string{"agent_id": a.ID.String(), "agent": a.Name, "offline_since": a.Since.UTC().Format(time.RFC3339)}})
		if err != nil {
			return err
		}
	}
	return nil
}
