package appliance

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// worker is one bounded job that is done again and again.
type worker struct {
	name  string
	every time.Duration
	once  func(context.Context) (int, error) // how many rows it changed
}

// run does the job at its interval, the first time after a random part of it, so that the workers of a restart do not
// all start at once. Trouble is logged and tried again at the next turn; a damaged database ends the appliance by the
// store's own alarm.
func (w worker) run(ctx context.Context, c clock.Clock, log zerolog.Logger) error {
	timer := c.NewTimer(time.Duration(rand.Int64N(int64(min(w.every, time.Minute)))))
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
		n, err := w.once(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			log.Warn().Err(err).Str("worker", w.name).Msg("background work failed; it will be tried again")
		case n > 0:
			log.Debug().Str("worker", w.name).Int("rows", n).Msg("background work done")
		}
		timer.Reset(w.every)
	}
}

// deadlines ends commands when their time is over. It sleeps until the next deadline exactly, wakes when an earlier one
// is set, and looks at the given interval besides, for the deadline that was missed while the database was in trouble.
func deadlines(ctx context.Context, commands *agent.Commands, hub *wake.Hub, every time.Duration, c clock.Clock, log zerolog.Logger) error {
	watch := hub.Watch(agent.SweepKey{})
	defer watch.Stop()
	timer := c.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-watch.C():
		case <-ctx.Done():
			return nil
		}
		next, err := sweep(ctx, commands)
		if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Canceled) {
			log.Warn().Err(err).Msg("command deadlines not swept; trying again")
		}
		if next.IsZero() && err == nil {
			timer.Stop() // nothing is open: only a new command can set a deadline
			continue
		}
		look := c.Now().Add(every)
		if !next.IsZero() && next.Before(look) {
			look = next
		}
		timer.ResetAt(look)
	}
}

func sweep(ctx context.Context, commands *agent.Commands) (next time.Time, err error) {
	if _, err := commands.SweepTimeouts(ctx); err != nil {
		return time.Time{}, err
	}
	return commands.NextDeadline(ctx)
}
