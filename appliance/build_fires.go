package appliance

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/agent/fire"
	"signalbox/store"
)

// fires are the parts that hand fires of schedules to agents.
type fires struct {
	service *fire.Fires
	upkeep  *fire.Fires
}

// fireCounter counts fires by what they became.
type fireCounter struct{ became *prometheus.CounterVec }

// FireBecame counts one.
func (c fireCounter) FireBecame(s fire.Status) { c.became.WithLabelValues(string(s)).Inc() }

// buildFires makes the service of fires and has it follow the commands.
func (a *Appliance) buildFires(context.Context) error {
	s := a.cfg.Schedules
	counter := fireCounter{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_schedule_fires_total",
		Help: "Fires of schedules by what they became; one fire counts once for each status it comes to."}, []string{"status"})}
	for _, status := range fire.Statuses() {
		if status != fire.StatusPending && status != fire.Accepted {
			counter.became.WithLabelValues(string(status))
		}
	}
	pending := scraped("signalbox_schedule_fires_pending", "Fires that wait in the buffer for an agent that lists their engine.",
		func(ctx context.Context) (float64, error) {
			n, err := a.fires.service.Waiting(ctx)
			return float64(n), err
		})
	if err := errors.Join(a.registry.Register(counter.became), a.registry.Register(pending)); err != nil {
		return err
	}
	o := fire.Options{Retention: time.Duration(s.PendingFiresRetentionDays) * 24 * time.Hour, ReplayInterval: s.PendingFiresReplayInterval.Std(),
		BreakerThreshold: s.CircuitBreakerThreshold, Clock: a.clock, Observer: counter, News: fireNews{a.notify.service}, Trouble: func(op string, err error) {
			a.log.Warn().Err(err).Str("part", "fires").Str("op", op).Msg("background work failed; it will be tried again")
		}}
	a.fires = fires{
		service: fire.New(store.Bind[fire.Tx, fire.ReadTx](a.db), a.commands, presence{a}, a.auditLog, a.hub, o),
		upkeep:  fire.New(store.BindUpkeep[fire.Tx, fire.ReadTx](a.db), a.commands, presence{a}, a.auditLog, a.hub, o),
	}
	a.commands.AddHook(a.fires.service)
	return nil
}

func (a *Appliance) fireWorkers() []worker {
	s := a.cfg.Schedules
	return []worker{
		{"circuit breakers", s.CircuitBreakerInterval.Std(), a.fires.service.TripBreakers},
		{"fire retention", retentionEvery, func(ctx context.Context) (int, error) {
			return a.fires.upkeep.Prune(ctx, a.daysAgo(s.FiresRetentionDays))
		}},
	}
}
