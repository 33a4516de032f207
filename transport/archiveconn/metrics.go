package archiveconn

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
)

// Metrics count what the archive plane's connections do. They are the observers of the registry and of the queue too.
type Metrics struct {
	reg           prometheus.Registerer
	frames        *prometheus.CounterVec
	violations    *prometheus.CounterVec
	registrations *prometheus.CounterVec
	commands      *prometheus.CounterVec
	failures      *prometheus.CounterVec
	takeovers     prometheus.Counter
	offline       prometheus.Counter
	stale         prometheus.Counter
	dropped       prometheus.Counter
	unknownAcks   prometheus.Counter
}

var (
	_ registry.Observer = (*Metrics)(nil)
	_ command.Observer  = (*Metrics)(nil)
)

// payloads are the names of an envelope's payloads by field number.
var payloads = func() map[protoreflect.FieldNumber]string {
	names := map[protoreflect.FieldNumber]string{}
	fields := (&pb.Envelope{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fields.Len() {
		names[fields.Get(i).Number()] = string(fields.Get(i).Name())
	}
	return names
}()

// payloadName is the field name of what the envelope carries.
func payloadName(e *pb.Envelope) string {
	m := e.ProtoReflect()
	f := m.WhichOneof(m.Descriptor().Oneofs().ByName("payload"))
	if f == nil {
		return "none"
	}
	return string(f.Name())
}

// NewMetrics registers signalbox_archive_* with reg, unless that is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_archive_" + name, Help: help})
	}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_archive_" + name, Help: help}, labels)
	}
	m := &Metrics{reg: reg,
		frames: vector("frames_total", "Envelopes of daemons by direction and payload; those that failed a check are not among them.",
			"direction", "payload"),
		violations: vector("frame_refusals_total", "Frames of daemons refused, by the number of the check (daemon protocol 2.2).", "check"),
		registrations: vector("registrations_total", "Registrations of daemons by result: ok, or why they were refused.",
			"result"),
		commands: vector("commands_total", "Commands for daemons by kind and what happened: sent, resent, accepted, rejected, conflict, parked.",
			"kind", "event"),
		failures:    vector("background_failures_total", "Background writes of the registry that failed and are tried again.", "what"),
		takeovers:   counter("takeovers_total", "Sockets replaced by a newer connection of the same daemon."),
		offline:     counter("offline_total", "Daemons marked offline for silence."),
		stale:       counter("stale_messages_total", "Messages dropped because their generation was not current."),
		dropped:     counter("dropped_messages_total", "Messages not stored for a passing reason of ours."),
		unknownAcks: counter("unknown_acks_total", "Acknowledgements of commands that are not in the database."),
	}
	for _, name := range payloads {
		m.frames.WithLabelValues("in", name)
		m.frames.WithLabelValues("out", name)
	}
	for check := 1; check <= 8; check++ {
		m.violations.WithLabelValues(strconv.Itoa(check))
	}
	m.registrations.WithLabelValues("ok")
	if reg != nil {
		reg.MustRegister(m.frames, m.violations, m.registrations, m.commands, m.failures, m.takeovers, m.offline, m.stale, m.dropped,
			m.unknownAcks)
	}
	return m
}

// watch registers the gauge of sockets without a registration.
func (m *Metrics) watch(unregistered func() int) {
	m.gauge("unregistered_sockets", "Sockets of daemons that have not registered.", unregistered)
}

// WatchRegistered registers the gauge of registered sockets.
func (m *Metrics) WatchRegistered(count func() int) {
	m.gauge("registered_sockets", "Sockets of registered daemons.", count)
}

func (m *Metrics) gauge(name, help string, read func() int) {
	if m.reg == nil {
		return
	}
	m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "signalbox_archive_" + name, Help: help},
		func() float64 { return float64(read()) }))
}

func (m *Metrics) received(e *pb.Envelope) { m.frames.WithLabelValues("in", payloadName(e)).Inc() }

func (m *Metrics) sent(payload proto.Message) {
	m.frames.WithLabelValues("out", sentNames[payload.ProtoReflect().Descriptor().Name()]).Inc()
}

// sentNames are the payload names by message.
var sentNames = func() map[protoreflect.Name]string {
	names := map[protoreflect.Name]string{}
	fields := (&pb.Envelope{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fields.Len() {
		names[fields.Get(i).Message().Name()] = string(fields.Get(i).Name())
	}
	return names
}()

func (m *Metrics) violation(check int) { m.violations.WithLabelValues(strconv.Itoa(check)).Inc() }

func (m *Metrics) refused(result string) { m.registrations.WithLabelValues(result).Inc() }

// Registered counts an accepted registration.
func (m *Metrics) Registered(takeover bool) {
	m.registrations.WithLabelValues("ok").Inc()
	if takeover {
		m.takeovers.Inc()
	}
}

// Refused is counted where the answer is sent.
func (m *Metrics) Refused(pb.ErrorCode) {}

// MarkedOffline counts a daemon that was silent too long.
func (m *Metrics) MarkedOffline() { m.offline.Inc() }

// Failed counts a background write that is tried again.
func (m *Metrics) Failed(what string, _ error) { m.failures.WithLabelValues(what).Inc() }

// Claimed counts a send.
func (m *Metrics) Claimed(kind command.Kind, again bool) {
	event := "sent"
	if again {
		event = "resent"
	}
	m.commands.WithLabelValues(kind.String(), event).Inc()
}

// Answered counts an answer.
func (m *Metrics) Answered(kind command.Kind, state command.State) {
	m.commands.WithLabelValues(kind.String(), string(state)).Inc()
}

// Parked counts a command without sends left.
func (m *Metrics) Parked(kind command.Kind) {
	m.commands.WithLabelValues(kind.String(), "parked").Inc()
}

// UnknownAck counts an answer to nobody.
func (m *Metrics) UnknownAck() { m.unknownAcks.Inc() }
