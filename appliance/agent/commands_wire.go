package agent

import (
	"strconv"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// appendTarget appends the target of a command frame in canonical JSON: type and id, the engine when the payload names one,
// and the scheduler for actions that are addressed to one (agent protocol E.2, L23).
func appendTarget(dst []byte, cmd Command, payload rawjson.Value) []byte {
	dst = append(dst, '{')
	if engine := payloadEngine(payload); engine != "" {
		dst = append(dst, `"engine":`...)
		dst = append(rawjson.AppendString(dst, engine), ',')
	}
	dst = append(dst, `"id":`...)
	dst = appendOptional(dst, cmd.TargetID)
	if scheduler, ok := payload.Get("scheduler").Str(); ok {
		dst = append(dst, `,"scheduler":`...)
		dst = rawjson.AppendString(dst, scheduler)
	}
	dst = append(dst, `,"type":`...)
	dst = rawjson.AppendString(dst, cmd.TargetType)
	return append(dst, '}')
}

// payloadEngine is the engine that a payload names, "" when it names none.
func payloadEngine(payload rawjson.Value) string {
	if engine, ok := payload.Get("filter").Get("engine").Str(); ok {
		return engine
	}
	engine, _ := payload.Get("engine").Str()
	return engine
}

// WirePayload is the payload of a command frame (agent protocol D.3) in canonical JSON.
func WirePayload(cmd Command, timeoutSeconds int) ([]byte, error) {
	doc, err := rawjson.Parse(cmd.Payload)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "stored payload of command %s is not JSON", cmd.ID)
	}
	defer doc.Release()
	dst := make([]byte, 0, len(cmd.Payload)+256)
	dst = append(dst, `{"action":`...)
	dst = rawjson.AppendString(dst, cmd.Action)
	dst = append(dst, `,"delivery_claim_token":null,"issued_by":`...)
	dst = appendOptional(dst, cmd.IssuedBy)
	dst = append(dst, `,"parameters":`...)
	dst = rawjson.AppendCanonical(dst, doc.Root())
	dst = append(dst, `,"target":`...)
	dst = appendTarget(dst, cmd, doc.Root())
	dst = append(dst, `,"timeout_seconds":`...)
	dst = strconv.AppendInt(dst, int64(timeoutSeconds), 10)
	return append(dst, '}'), nil
}

func appendOptional(dst []byte, s *string) []byte {
	if s == nil {
		return append(dst, "null"...)
	}
	return rawjson.AppendString(dst, *s)
}
