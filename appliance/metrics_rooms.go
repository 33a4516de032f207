package appliance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/store"
	"signalbox/transport/roommcp"
)

// roomMetrics observes the rooms plane. What is written to streams is counted by roomconn.
type roomMetrics struct {
	log zerolog.Logger

	attaches     *prometheus.CounterVec
	ends         *prometheus.CounterVec
	queued       *prometheus.CounterVec
	dropped      prometheus.Counter
	items        *prometheus.CounterVec
	stalls       prometheus.Counter
	stallSeconds prometheus.Counter
}

// roomTransports are what connections are read over.
var roomTransports = []connection.Transport{connection.WebSocket, connection.SSE, roommcp.Transport}

func newRoomMetrics(reg prometheus.Registerer, a *Appliance) (*roomMetrics, error) {
	opts := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(opts(name, help), labels)
	}
	r := &a.rooms
	m := &roomMetrics{
		log:          a.log.With().Str("part", "rooms").Logger(),
		attaches:     vec("signalbox_room_attaches_total", "Attaches of room agents; again to a connection that was there.", "transport", "again"),
		ends:         vec("signalbox_room_ends_total", "Ended connections of room agents, and displaced streams, by code.", "code"),
		queued:       vec("signalbox_room_events_queued_total", "Events queued, one for each receiver.", "kind"),
		dropped:      prometheus.NewCounter(opts("signalbox_room_events_dropped_total", "Events that retention removed, read or not.")),
		items:        vec("signalbox_room_items_total", "Items stored in the logs of rooms.", "kind", "sender"),
		stalls:       prometheus.NewCounter(opts("signalbox_room_stalls_total", "Times that the server stood still, as sweeps of connections noticed.")),
		stallSeconds: prometheus.NewCounter(opts("signalbox_room_stall_seconds_total", "How long the server stood still.")),
	}
	for _, t := range roomTransports {
		m.attaches.WithLabelValues(string(t), "false")
		m.attaches.WithLabelValues(string(t), "true")
	}
	for _, code := range []string{room.CodeTakenOver, room.CodeHeartbeatLapsed, room.CodeClosed} {
		m.ends.WithLabelValues(code)
	}
	for _, kind := range []room.EventKind{room.EventMessage, room.EventCommand, room.EventJoin} {
		m.queued.WithLabelValues(kind.String())
	}
	for _, sender := range []room.ActorKind{room.KindAgent, room.KindPerson, room.KindPlatform} {
		m.items.WithLabelValues(string(room.ItemMessage), string(sender))
	}
	for _, sender := range []room.ActorKind{room.KindAgent, room.KindPerson} {
		m.items.WithLabelValues(string(room.ItemJoin), string(sender))
	}
	m.items.WithLabelValues(string(room.ItemCommand), string(room.KindPerson))
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.attaches, m.ends, m.queued, m.dropped, m.items, m.stalls, m.stallSeconds,
		connectionGauge{r},
		scraped("signalbox_room_agents", "Registered room agents.", func(ctx context.Context) (float64, error) {
			agents, _, err := a.roomCounts(ctx)
			return float64(agents), err
		}),
		scraped("signalbox_rooms", "Rooms, archived ones too.", func(ctx context.Context) (float64, error) {
			_, rooms, err := a.roomCounts(ctx)
			return float64(rooms), err
		}),
		gauge("signalbox_room_agents_connected", "Room agents that have a live connection.", func() float64 {
			return float64(r.connections.Counts().Agents)
		}),
		gauge("signalbox_room_media_bytes", "Bytes of the files of messages.", func() float64 { return float64(r.media.Used()) }),
		gauge("signalbox_room_mcp_sessions", "Open MCP sessions.", func() float64 { return float64(r.mcpSessions()) }),
	} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register metrics of rooms: %w", err)
	}
	return m, nil
}

// roomCounts counts what is registered.
func (a *Appliance) roomCounts(ctx context.Context) (agents, rooms int64, err error) {
	err = a.db.View(ctx, func(tx *store.ReadTx) (err error) {
		agents, rooms, err = tx.RoomCounts()
		return err
	})
	return agents, rooms, err
}

// connectionGauge counts live connections when it is asked.
type connectionGauge struct{ rooms *rooms }

var connectionsDesc = prometheus.NewDesc("signalbox_room_connections", "Live connections of room agents.",
	[]string{"transport", "state"}, nil)

// Describe names the gauge.
func (g connectionGauge) Describe(out chan<- *prometheus.Desc) { out <- connectionsDesc }

// Collect counts.
func (g connectionGauge) Collect(out chan<- prometheus.Metric) {
	n := g.rooms.connections.Counts()
	for _, t := range roomTransports {
		for state, count := range map[string]int{"attached": n.Attached[t], "detached": n.Detached[t]} {
			out <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(count), string(t), state)
		}
	}
}

// Attached follows an attach.
func (m *roomMetrics) Attached(i connection.Info, again bool) {
	m.attaches.WithLabelValues(string(i.Transport), fmt.Sprint(again)).Inc()
	m.log.Info().Str("agent", i.AgentName).Str("connection", i.ConnectionID).Int64("generation", i.Generation).
		Str("transport", string(i.Transport)).Bool("again", again).Msg("room connection attached")
}

// Ended follows the end of a connection or of a displaced stream.
func (m *roomMetrics) Ended(i connection.Info, e connection.End) {
	m.ends.WithLabelValues(e.Code).Inc()
	m.log.Info().Str("agent", i.AgentName).Str("connection", i.ConnectionID).Int64("generation", i.Generation).
		Str("code", e.Code).Str("reason", e.Reason).Msg("room connection ended")
}

// Stalled follows a stall of the server.
func (m *roomMetrics) Stalled(d time.Duration) {
	m.stalls.Inc()
	m.stallSeconds.Add(d.Seconds())
	m.log.Warn().Dur("stall_ms", d).Msg("the server stood still; room connections are given that time")
}

// Queued counts events.
func (m *roomMetrics) Queued(kind room.EventKind, receivers int) {
	m.queued.WithLabelValues(kind.String()).Add(float64(receivers))
}

// Dropped counts events that retention took.
func (m *roomMetrics) Dropped(events int64) { m.dropped.Add(float64(events)) }

// appended counts items.
func (m *roomMetrics) appended(kind room.ItemKind, sender room.ActorKind) {
	m.items.WithLabelValues(string(kind), string(sender)).Inc()
}
