package appliance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/transport"
)

// maxLabelValues bounds the values of a label that agents choose; what comes after them counts as "other".
const maxLabelValues = 500

const otherLabel = "other"

// labelSet keeps the values that a label may take.
type labelSet struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

func (s *labelSet) value(v string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.seen[v]; ok {
		return v
	}
	if len(s.seen) >= maxLabelValues {
		return otherLabel
	}
	if s.seen == nil {
		s.seen = map[string]struct{}{}
	}
	s.seen[v] = struct{}{}
	return v
}

// metrics observes the agent plane, by the names of agent protocol I.5. Projects are labelled with their id.
type metrics struct {
	transport *transport.Metrics
	log       zerolog.Logger

	events    *prometheus.CounterVec
	tasks     *prometheus.CounterVec
	durations *prometheus.HistogramVec
	commands  *prometheus.CounterVec
	claims    *prometheus.CounterVec
	late      *prometheus.CounterVec
	depth     *prometheus.GaugeVec
	swallowed *prometheus.CounterVec
	dropped   *prometheus.CounterVec

	taskNames, queueNames, engines labelSet
}

// scrapeTimeout bounds the reads of one scrape.
const scrapeTimeout = 2 * time.Second

func newMetrics(reg prometheus.Registerer, a *Appliance) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		log:       a.log.With().Str("part", "agent").Logger(),
		events:    counter("z4j_events_ingested_total", "New events stored.", "project", "engine", "kind"),
		tasks:     counter("z4j_tasks_total", "Tasks that ended, by the kind of the event that said so.", "project", "task_name", "state"),
		commands:  counter("z4j_commands_total", "Commands by what became of them: pending counts issues, the others ends.", "project", "action", "status"),
		claims:    counter("signalbox_command_deliveries_total", "Hand-overs of commands to sessions.", "transport", "redelivery"),
		late:      counter("z4j_command_late_results_total", "Results of commands that had ended already, by the status they had.", "status"),
		swallowed: counter("z4j_swallowed_exceptions_total", "Failures that their caller was not told of.", "module", "site"),
		dropped:   counter("signalbox_frames_dropped_total", "Verified frames refused for good.", "type"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "z4j_task_duration_seconds", Help: "Reported run time of succeeded tasks.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 14)}, []string{"project", "task_name"}),
		depth: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "z4j_queue_depth", Help: "Depth of a queue as last reported."},
			[]string{"project", "engine", "queue"}),
	}
	all := []prometheus.Collector{m.events, m.tasks, m.durations, m.commands, m.claims, m.late, m.depth, m.swallowed, m.dropped,
		scraped("z4j_agents_online", "Agents that are online.", func(ctx context.Context) (float64, error) {
			n, err := a.directory.CountAgents(ctx)
			return float64(n.Online), err
		}),
		scraped("z4j_workers_online", "Workers of all projects that are online.", func(ctx context.Context) (float64, error) {
			n, err := a.records.CountWorkersOnline(ctx)
			return float64(n), err
		}),
		scraped("signalbox_commands_pending", "Commands that nobody has claimed.", func(ctx context.Context) (float64, error) {
			n, err := a.commands.Counts(ctx)
			return float64(n.Pending), err
		}),
		scraped("signalbox_commands_dispatched", "Commands that are handed over and not ended.", func(ctx context.Context) (float64, error) {
			n, err := a.commands.Counts(ctx)
			return float64(n.Dispatched), err
		}),
		scraped("signalbox_command_oldest_unacked_seconds", "Age of the oldest hand-over that no agent has acknowledged; 0 without one.", func(ctx context.Context) (float64, error) {
			n, err := a.commands.Counts(ctx)
			if err != nil || n.OldestUnacked.IsZero() {
				return 0, err
			}
			return a.clock.Now().Sub(n.OldestUnacked).Seconds(), nil
		}),
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	for _, s := range []agent.Status{agent.Completed, agent.Failed, agent.TimedOut, agent.Cancelled} {
		m.late.WithLabelValues(string(s))
	}
	var err error
	m.transport, err = transport.NewMetrics(reg)
	return m, err
}

// scraped is a gauge whose value is read from the database when it is asked for; -1 says that it could not be read.
func scraped(name, help string, read func(context.Context) (float64, error)) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		v, err := read(ctx)
		if err != nil {
			return -1
		}
		return v
	})
}

// trouble takes a failure that its caller was not told of.
func (m *metrics) trouble(op string, err error) {
	m.swallowed.WithLabelValues("agent", op).Inc()
	m.log.Warn().Err(err).Str("op", op).Msg("minor write failed")
}

// EventsStored counts new events.
func (m *metrics) EventsStored(project uuid.UUID, engine, kind string, n int) {
	m.events.WithLabelValues(project.String(), m.engines.value(engine), kind).Add(float64(n))
}

// TaskEnded counts tasks and their run times.
func (m *metrics) TaskEnded(project uuid.UUID, taskName, kind string, runtime time.Duration) {
	name := m.taskNames.value(taskName)
	m.tasks.WithLabelValues(project.String(), name, kind).Inc()
	if runtime >= 0 {
		m.durations.WithLabelValues(project.String(), name).Observe(runtime.Seconds())
	}
}

// QueueDepth keeps the last reported depth.
func (m *metrics) QueueDepth(project uuid.UUID, engine, queue string, depth int64) {
	m.depth.WithLabelValues(project.String(), m.engines.value(engine), m.queueNames.value(queue)).Set(float64(depth))
}

// maxLoggedFrame bounds what a frame for the log brings into it.
const maxLoggedFrame = 2 << 10

// FrameLogged writes registry_delta and error frames down.
func (m *metrics) FrameLogged(p agent.Peer, f agent.Frame) {
	raw := f.Payload.Raw()
	m.log.Info().Str("agent", p.AgentID.String()).Str("type", f.Type).Str("payload", string(raw[:min(len(raw), maxLoggedFrame)])).
		Msg("frame of an agent")
}

// FrameDropped counts frames refused for good.
func (m *metrics) FrameDropped(p agent.Peer, frameType string, err error) {
	m.dropped.WithLabelValues(frameType).Inc()
	m.log.Info().Err(err).Str("agent", p.AgentID.String()).Str("type", frameType).Msg("frame refused for good")
}

// StatusDropped counts agent_status frames above what is kept.
func (m *metrics) StatusDropped(agent.Peer) { m.dropped.WithLabelValues(agent.FrameAgentStatus).Inc() }

// CommandIssued counts new commands.
func (m *metrics) CommandIssued(project uuid.UUID, action string) {
	m.commands.WithLabelValues(project.String(), action, string(agent.Pending)).Inc()
}

// CommandClaimed counts hand-overs.
func (m *metrics) CommandClaimed(t agent.Transport, redelivery bool) {
	m.claims.WithLabelValues(string(t), fmt.Sprint(redelivery)).Inc()
}

// CommandEnded counts commands that became terminal.
func (m *metrics) CommandEnded(project uuid.UUID, action string, status agent.Status) {
	m.commands.WithLabelValues(project.String(), action, string(status)).Inc()
}

// CommandLateResult counts results that came too late.
func (m *metrics) CommandLateResult(status agent.Status) {
	m.late.WithLabelValues(string(status)).Inc()
}
