package appliance

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/transport/archiveconn"
)

// archiveMetrics observes the archive plane. What passes over sockets is counted by archiveconn.
type archiveMetrics struct {
	log  zerolog.Logger
	conn *archiveconn.Metrics

	events    *prometheus.CounterVec
	refused   *prometheus.CounterVec
	moves     *prometheus.CounterVec
	decisions *prometheus.CounterVec
	entries   *prometheus.CounterVec
	queries   *prometheus.CounterVec
	trouble   *prometheus.CounterVec
}

var (
	_ job.Observer       = (*archiveMetrics)(nil)
	_ inventory.Observer = (*archiveMetrics)(nil)
)

func newArchiveMetrics(reg prometheus.Registerer, a *Appliance, log zerolog.Logger) (*archiveMetrics, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &archiveMetrics{log: log, conn: archiveconn.NewMetrics(reg),
		events:    vec("signalbox_archive_events_total", "Job events of daemons by what became of them: accepted, repeated, set_aside, dropped.", "kind", "fate"),
		refused:   vec("signalbox_archive_events_refused_total", "Job events that were refused, which begins a reconciliation.", "code"),
		moves:     vec("signalbox_archive_job_moves_total", "Changes of a job's state, by the new state.", "state"),
		decisions: vec("signalbox_archive_decisions_total", "Decisions of reconciliation, by the row of the protocol's table.", "row"),
		entries:   vec("signalbox_archive_inventory_entries_total", "Entries of complete inventory answers.", "scope"),
		queries:   vec("signalbox_archive_inventory_queries_total", "Inventory requests by how they ended.", "scope", "result"),
		trouble:   vec("signalbox_archive_trouble_total", "Background work of the archive plane that did not succeed and is tried again.", "what"),
	}
	for _, c := range []prometheus.Collector{m.events, m.refused, m.moves, m.decisions, m.entries, m.queries, m.trouble} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	m.conn.WatchRegistered(func() int { return a.archive.registry.AttachedCount() })
	return m, nil
}

// enumLabel is a value of the schema as a label.
func enumLabel(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func kindLabel(k pb.JobEventKind) string { return enumLabel(k.String(), "JOB_EVENT_KIND_") }

// Accepted implements job.Observer.
func (m *archiveMetrics) Accepted(kind pb.JobEventKind) {
	m.events.WithLabelValues(kindLabel(kind), "accepted").Inc()
}

// Repeated implements job.Observer.
func (m *archiveMetrics) Repeated() { m.events.WithLabelValues("any", "repeated").Inc() }

// SetAside implements job.Observer.
func (m *archiveMetrics) SetAside() { m.events.WithLabelValues("any", "set_aside").Inc() }

// Dropped implements job.Observer.
func (m *archiveMetrics) Dropped(string) { m.events.WithLabelValues("any", "dropped").Inc() }

// Refused implements job.Observer.
func (m *archiveMetrics) Refused(code pb.ErrorCode) {
	m.refused.WithLabelValues(enumLabel(code.String(), "ERROR_CODE_")).Inc()
}

// Moved implements job.Observer.
func (m *archiveMetrics) Moved(_, to pb.JobState) {
	m.moves.WithLabelValues(enumLabel(to.String(), "JOB_STATE_")).Inc()
}

// Decided implements job.Observer.
func (m *archiveMetrics) Decided(row string) { m.decisions.WithLabelValues(row).Inc() }

// Failed implements job.Observer.
func (m *archiveMetrics) Failed(what string, err error) { m.Trouble(what, err) }

func scopeLabel(s pb.InventoryScope) string { return enumLabel(s.String(), "INVENTORY_SCOPE_") }

// Completed implements inventory.Observer.
func (m *archiveMetrics) Completed(scope pb.InventoryScope, entries int64) {
	m.entries.WithLabelValues(scopeLabel(scope)).Add(float64(entries))
	m.queries.WithLabelValues(scopeLabel(scope), "complete").Inc()
}

// Ended implements inventory.Observer.
func (m *archiveMetrics) Ended(scope pb.InventoryScope, code pb.ErrorCode) {
	m.queries.WithLabelValues(scopeLabel(scope), enumLabel(code.String(), "ERROR_CODE_")).Inc()
}

// Trouble implements inventory.Observer.
func (m *archiveMetrics) Trouble(what string, err error) {
	m.trouble.WithLabelValues(what).Inc()
	m.log.Warn().Err(err).Str("work", what).Msg("background work failed; it will be tried again")
}
