package session

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts ends as they happen and reads the gauges from the sessions when asked, so that a Send touches none.
type metrics struct {
	group  *Group
	reg    prometheus.Registerer
	closes *prometheus.CounterVec
	panics *prometheus.CounterVec
	live   *prometheus.Desc
	queued *prometheus.Desc
}

func newMetrics(g *Group, reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		group: g, reg: reg,
		closes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_session_closes_total",
			Help: "Ended sessions by kind and reason."}, []string{"kind", "reason"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_session_panics_total",
			Help: "Panics in session handlers by kind."}, []string{"kind"}),
		live: prometheus.NewDesc("signalbox_sessions", "Live sessions by kind.", []string{"kind"}, nil),
		queued: prometheus.NewDesc("signalbox_session_queue_bytes",
			"Bytes waiting to be written to sessions, by kind.", []string{"kind"}, nil),
	}
	if reg == nil {
		return m, nil
	}
	for i, c := range m.all() {
		if err := reg.Register(c); err != nil {
			for _, done := range m.all()[:i] {
				reg.Unregister(done)
			}
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) all() []prometheus.Collector { return []prometheus.Collector{m.closes, m.panics, m} }

func (m *metrics) unregister() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all() {
		m.reg.Unregister(c)
	}
}

// prepare makes the series of a kind exist from the start, so that the first close is an increase from zero.
func (m *metrics) prepare(kind string) {
	for _, r := range Reasons() {
		m.closes.WithLabelValues(kind, r.String())
	}
	m.panics.WithLabelValues(kind)
}

// Describe is for prometheus.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	c <- m.live
	c <- m.queued
}

// Collect is for prometheus.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	type figures struct{ live, bytes int }
	kinds := map[string]figures{}
	m.group.mu.Lock()
	for _, p := range m.group.planes {
		kinds[p.opts.Kind] = figures{live: p.live}
	}
	m.group.mu.Unlock()
	for _, s := range m.group.Sessions() {
		f := kinds[s.Kind()]
		f.bytes += s.QueuedBytes()
		kinds[s.Kind()] = f
	}
	for kind, f := range kinds {
		c <- prometheus.MustNewConstMetric(m.live, prometheus.GaugeValue, float64(f.live), kind)
		c <- prometheus.MustNewConstMetric(m.queued, prometheus.GaugeValue, float64(f.bytes), kind)
	}
}
