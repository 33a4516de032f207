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
	gaps               *prometheus.CounterVec
	closes             *prometheus.CounterVec
	wsEvents, ssEvents prometheus.Counter
}

// NewMetrics registers signalbox_room_streams, signalbox_room_events_delivered_total, signalbox_room_gaps_total,
// signalbox_room_stream_refusals_total and signalbox_room_stream_closes_total with reg, unless that is nil.
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
	m.gaps = newGaps()
	if reg != nil {
		reg.MustRegister(m.gaps, m.streams, m.events, m.refusals, m.closes)
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

// Delivered counts one event that was handed over.
func (m *Metrics) Delivered(t connection.Transport) {
	switch t {
	case connection.WebSocket:
		m.wsEvents.Inc()
	case connection.SSE:
		m.ssEvents.Inc()
	default:
		m.events.WithLabelValues(string(t)).Inc()
	}
}

// newGaps is signalbox_room_gaps_total.
func newGaps() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_room_gaps_total",
		Help: "Gaps that room agents were told of."}, []string{"reason"})
	v.WithLabelValues(gapReason(false))
	v.WithLabelValues(gapReason(true))
	return v
}

// Gap counts a gap that an agent was told of: of a numbering that was reset, or of retention.
func (m *Metrics) Gap(reset bool) { m.gaps.WithLabelValues(gapReason(reset)).Inc() }

func gapReason(reset bool) string {
	if reset {
		return "reset"
	}
	return "retention"
}

func (m *Metrics) refused(t connection.Transport, status int) {
	m.refusals.WithLabelValues(string(t), strconv.Itoa(status)).Inc()
}
