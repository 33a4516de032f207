package agentconn

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/agent"
)

// Metrics of both transports: z4j_ws_connections, z4j_inmemory_state_items{kind="longpoll_sessions"} and
// signalbox_agent_verify_failures_total{transport}.
type Metrics struct {
	reg            prometheus.Registerer
	verifyFailures *prometheus.CounterVec
}

// NewMetrics registers the counters; the gauges follow when the transports are made.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{reg: reg, verifyFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_agent_verify_failures_total",
		Help: "Sessions ended by a frame whose signature or replay check failed."}, []string{"transport"})}
	for _, t := range []agent.Transport{agent.WebSocket, agent.LongPoll} {
		m.verifyFailures.WithLabelValues(string(t))
	}
	if err := reg.Register(m.verifyFailures); err != nil {
		return nil, fmt.Errorf("register agent transport metrics: %w", err)
	}
	return m, nil
}

func (m *Metrics) watchWebSocket(w *WebSocket) {
	m.gauge(prometheus.GaugeOpts{Name: "z4j_ws_connections", Help: "Connected worker slots."}, w.Count)
}

func (m *Metrics) watchLongPoll(l *LongPoll) {
	m.gauge(prometheus.GaugeOpts{Name: "z4j_inmemory_state_items", Help: "Entries of bounded tables in memory.",
		ConstLabels: prometheus.Labels{"kind": "longpoll_sessions"}}, l.Count)
}

// gauge registers a gauge that reads the table when it is scraped. A second transport of the same kind, which only
// tests make, is not counted.
func (m *Metrics) gauge(o prometheus.GaugeOpts, read func() int) {
	err := m.reg.Register(prometheus.NewGaugeFunc(o, func() float64 { return float64(read()) }))
	var dup prometheus.AlreadyRegisteredError
	if err != nil && !errors.As(err, &dup) {
		panic(fmt.Sprintf("register %s: %v", o.Name, err))
	}
}
