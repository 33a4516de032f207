package wire

import (
	"strconv"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
)

// AppendHello appends the complete hello frame of an agent. Absent optional fields are left out; Host must be a JSON
// object or nil, and HostName is ignored when Host is set.
func AppendHello(dst []byte, h *Hello) []byte {
	dst = rawjson.AppendString(append(dst, `{"v":2,"id":`...), h.ID)
	dst = rawjson.AppendString(append(dst, `,"ts":null,"type":"hello","payload":{"protocol_version":`...), h.ProtocolVersion)
	dst = rawjson.AppendString(append(dst, `,"agent_version":`...), h.AgentVersion)
	dst = rawjson.AppendString(append(dst, `,"framework":`...), h.Framework)
	dst = appendStrings(append(dst, `,"engines":`...), h.Engines)
	dst = appendStrings(append(dst, `,"schedulers":`...), h.Schedulers)
	dst = append(dst, `,"capabilities":{`...)
	first := true
	for adapter, tokens := range h.Capabilities {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendStrings(append(rawjson.AppendString(dst, adapter), ':'), tokens)
	}
	dst = append(dst, `},"host":`...)
	switch {
	case h.Host != nil:
		dst = append(dst, h.Host...)
	case h.HostName != "":
		dst = append(rawjson.AppendString(append(dst, `{"name":`...), h.HostName), '}')
	default:
		dst = append(dst, "{}"...)
	}
	if h.WorkerID != nil {
		dst = rawjson.AppendString(append(dst, `,"worker_id":`...), *h.WorkerID)
	}
	if h.WorkerRole != nil {
		dst = rawjson.AppendString(append(dst, `,"worker_role":`...), *h.WorkerRole)
	}
	if h.WorkerPID != nil {
		dst = strconv.AppendInt(append(dst, `,"worker_pid":`...), *h.WorkerPID, 10)
	}
	if h.WorkerStartedAt != nil {
		dst = append(AppendTime(append(dst, `,"worker_started_at":"`...), *h.WorkerStartedAt), '"')
	}
	dst = appendStrings(append(dst, `,"runtime_features":`...), h.RuntimeFeatures)
	return append(dst, `}}`...)
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = rawjson.AppendString(dst, s)
	}
	return append(dst, ']')
}

// ParseHelloAck reads the first message that a client receives. SessionID.String() is the text to bind into signatures.
// Every error is ErrMalformed or ErrVersionSkew and names the field and the rule.
func ParseHelloAck(b []byte) (HelloAck, error) {
	f, err := ParseFrame(b)
	if err != nil {
		return HelloAck{}, err
	}
	defer f.Release()
	if f.Type != TypeHelloAck {
		return HelloAck{}, malformed("the first frame must be a hello_ack, got %s", f.Type)
	}
	if err := checkVersion(f.Doc.Root().Get("v")); err != nil {
		return HelloAck{}, err
	}
	r := reader{obj: f.Payload}
	if v := r.required("protocol_version", maxVersionLen); r.err == nil && v != ProtocolVersion {
		r.fail("protocol_version", "must be %q", ProtocolVersion)
	}
	a := HelloAck{
		BrainVersion: r.required("brain_version", maxVersionLen),
		AgentID:      r.uuid("agent_id"),
		ProjectID:    r.uuid("project_id"),
		SessionID:    r.uuid("session_id"),
		Heartbeat:    time.Duration(r.integer("heartbeat_interval_seconds", 1, 3600)) * time.Second,
	}
	a.MaxFrameBytes = int(r.integer("max_frame_size_bytes", 1024, 67108864))
	return a, r.err
}

func (r *reader) uuid(field string) uuid.UUID {
	s := r.required(field, MaxIDLen)
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		r.fail(field, "must be a lowercase UUID")
	}
	return id
}

func (r *reader) integer(field string, low, high int64) int64 {
	v := r.obj.Get(field)
	n, ok := v.Int64()
	if !ok || n < low || n > high {
		r.fail(field, "must be an integer in %d..%d", low, high)
	}
	return n
}
