package appliance

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/agent/schedule"
	"signalbox/store"
)

// schedules are the parts that fire schedules.
type schedules struct {
	service *schedule.Schedules
	runner  *schedule.Scheduler
	upkeep  *schedule.Schedules
}

// buildSchedules makes the scheduler and the service that people use.
func (a *Appliance) buildSchedules(context.Context) error {
	g, s := a.cfg.Schedules, &a.schedules
	m, err := newScheduleMetrics(a.registry)
	if err != nil {
		return err
	}
	st := store.Bind[schedule.Tx, schedule.ReadTx](a.db)
	o := schedule.Options{Clock: a.clock, TriggerEvery: g.TriggerInterval.Std(), Trouble: a.metrics.trouble}
	s.service = schedule.NewSchedules(st, a.fires.service, a.commands, a.auditLog, a.hub, o)
	s.upkeep = schedule.NewSchedules(store.BindUpkeep[schedule.Tx, schedule.ReadTx](a.db), a.fires.service, a.commands, a.auditLog, a.hub, o)
	s.runner = schedule.NewScheduler(st, a.fires.service, a.auditLog, a.hub,
		schedule.SchedulerOptions{Clock: a.clock, Grace: g.Grace.Std(), CatchUpMost: g.CatchUpMost, CatchUpRate: g.CatchUpRate,
			Observer: m, Trouble: a.metrics.trouble})
	return nil
}

func (a *Appliance) scheduleWorkers() []worker {
	return []worker{{"misfire retention", retentionEvery, func(ctx context.Context) (int, error) {
		return a.schedules.upkeep.PruneMisfires(ctx, a.daysAgo(a.cfg.Schedules.FiresRetentionDays))
	}}}
}

// scheduleBodyLimit is the cap of a body that brings schedules: 1000 of them with some arguments each, or one with all that
// it may have.
const scheduleBodyLimit = 4 << 20

// takesSchedules tells whether a request may bring schedules with their arguments.
func takesSchedules(r *http.Request) bool {
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1/projects/")
	if !ok {
		return false
	}
	_, path, _ = strings.Cut(path, "/")
	return path == "schedules" || strings.HasPrefix(path, "schedules/") || strings.HasPrefix(path, "schedules:")
}

// scheduleMetrics observes what the scheduler decides. Projects are labelled with their id.
type scheduleMetrics struct {
	slots    *prometheus.CounterVec
	misfires *prometheus.CounterVec
	lag      prometheus.Histogram
}

func newScheduleMetrics(reg prometheus.Registerer) (*scheduleMetrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &scheduleMetrics{
		slots:    counter("signalbox_schedule_slots_fired_total", "Slots of schedules that were fired, on time (slot) or late (catch_up).", "project", "origin"),
		misfires: counter("signalbox_schedule_misfired_slots_total", "Slots of schedules that were passed over.", "project", "reason"),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_schedule_lag_seconds",
			Help: "From a slot that is on time to the decision on it.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 13)}),
	}
	return m, errors.Join(reg.Register(m.slots), reg.Register(m.misfires), reg.Register(m.lag))
}

// Fired counts a slot that was fired.
func (m *scheduleMetrics) Fired(project uuid.UUID, origin schedule.Origin, lag time.Duration, _ bool) {
	m.slots.WithLabelValues(project.String(), string(origin)).Inc()
	if origin == schedule.OriginSlot {
		m.lag.Observe(lag.Seconds())
	}
}

// Misfired counts slots that were passed over.
func (m *scheduleMetrics) Misfired(project uuid.UUID, reason schedule.MisfireReason, slots int64) {
	m.misfires.WithLabelValues(project.String(), string(reason)).Add(float64(slots))
}
