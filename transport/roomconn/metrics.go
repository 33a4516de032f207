package roomconn

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/room/connection"
)

// Metrics count what the streams do.
type Metrics struct {
	streams            *prometheus.GaugeVec
	events             *prometheus.CounterVec
	refusals           *prometheus.CounterVec
	wsEvents, ssEvents prometheus.Counter
}

// NewMetrics registers signalbox_room_streams, signalbox_room_events_delivered_total and
// signalbox_room_stream_refusals_total with reg, unless that is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "signalbox_room_streams",
			Help: "Streams of room agents that are attached."}, []string{"transport"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_room_events_delivered_total",
			Help: "Events written to streams of room agents."}, []string{"transport"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_room_stream_refusals_total",
			Help: "Streams of room agents refused at open, by status."}, []string{"transport", "status"}),
	}
	for _, t := range []connection.Transport{connection.WebSocket, connection.SSE} {
		m.streams.WithLabelValues(string(t))
	}
	m.wsEvents = m.events.WithLabelValues(string(connection.WebSocket))
	m.ssEvents = m.events.WithLabelValues(string(connection.SSE))
	if reg != nil {
		reg.MustRegister(m.streams, m.events, m.refusals)
	}
	return m
}

func (m *Metrics) opened(t connection.Transport) { m.streams.WithLabelValues(string(t)).Inc() }
func (m *Metrics) closed(t connection.Transport) { m.streams.WithLabelValues(string(t)).Dec() }

func (m *Metrics) delivered(t connection.Transport) {
	if t == connection.SSE {
		m.ssEvents.Inc()
		return
	}
	m.wsEvents.Inc()
}

func (m *Metrics) refused(t connection.Transport, status int) {
	m.refusals.WithLabelValues(string(t), strconv.Itoa(status)).Inc()
}
