package roomconn

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/room/connection"
	"signalbox/transport/session"
)

// Metrics count what the streams do.
type Metrics struct {
	streams            *prometheus.GaugeVec
	events             *prometheus.CounterVec
	refusals           *prometheus.CounterVec
	closes             *prometheus.CounterVec
	wsEvents, ssEvents prometheus.Counter
}

// NewMetrics registers signalbox_room_streams, signalbox_room_events_delivered_total, signalbox_room_stream_refusals_total
// and signalbox_room_stream_closes_total with reg, unless that is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "signalbox_room_streams",
			Help: "Streams of room agents that are attached."}, []string{"transport"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_room_events_delivered_total",
			Help: "Events written to streams of room agents."}, []string{"transport"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_room_stream_refusals_total",
			Help: "Streams of room agents refused at open, by status."}, []string{"transport", "status"}),
		closes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_room_stream_closes_total",
			Help: "Ended streams of room agents by reason."}, []string{"transport", "reason"}),
	}
	for _, t := range []connection.Transport{connection.WebSocket, connection.SSE} {
		m.streams.WithLabelValues(string(t))
		for _, r := range session.Reasons() {
			if t == connection.WebSocket || slices.Contains(streamReasons, r) {
				m.closes.WithLabelValues(string(t), r.String())
			}
		}
	}
	m.wsEvents = m.events.WithLabelValues(string(connection.WebSocket))
	m.ssEvents = m.events.WithLabelValues(string(connection.SSE))
	if reg != nil {
		reg.MustRegister(m.streams, m.events, m.refusals, m.closes)
	}
	return m
}

func (m *Metrics) opened(t connection.Transport) { m.streams.WithLabelValues(string(t)).Inc() }

// streamReasons are what a stream of SSE ends for; sockets end for any.
var streamReasons = []session.Reason{session.PeerGone, session.WriteFailed, session.Draining, session.Internal, session.Replaced,
	session.Lapsed, session.Evicted}

func (m *Metrics) closed(t connection.Transport, why session.Reason) {
	m.streams.WithLabelValues(string(t)).Dec()
	m.closes.WithLabelValues(string(t), why.String()).Inc()
}

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
