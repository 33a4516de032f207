package wire

import (
	"strconv"

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
