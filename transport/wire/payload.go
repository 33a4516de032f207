package wire

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
)

// HelloAck is the answer to a hello (agent protocol B.3).
type HelloAck struct {
	BrainVersion  string // at most 40 characters; major.minor like the agent's keeps its log quiet
	AgentID       uuid.UUID
	ProjectID     uuid.UUID
	SessionID     uuid.UUID     // its lowercase text is what both sides bind into signatures
	Heartbeat     time.Duration // 1 s to 1 h; sent in whole seconds, rounded down
	MaxFrameBytes int           // 1024..67108864
}

// AppendHelloAck appends the complete unsigned hello_ack frame.
func AppendHelloAck(dst []byte, now time.Time, a HelloAck) []byte {
	dst = append(dst, `{"v":2,"id":"hack_`...)
	dst = hex.AppendEncode(dst, a.SessionID[:6])
	dst = append(dst, `","ts":"`...)
	dst = AppendTime(dst, now)
	dst = append(dst, `","type":"hello_ack","payload":{"protocol_version":"`+ProtocolVersion+`","brain_version":`...)
	dst = rawjson.AppendString(dst, cut(a.BrainVersion, 40))
	dst = append(dst, `,"agent_id":"`...)
	dst = append(dst, a.AgentID.String()...)
	dst = append(dst, `","project_id":"`...)
	dst = append(dst, a.ProjectID.String()...)
	dst = append(dst, `","session_id":"`...)
	dst = append(dst, a.SessionID.String()...)
	dst = append(dst, `","heartbeat_interval_seconds":`...)
	dst = strconv.AppendInt(dst, int64(min(max(a.Heartbeat/time.Second, 1), 3600)), 10)
	dst = append(dst, `,"max_frame_size_bytes":`...)
	dst = strconv.AppendInt(dst, int64(min(max(a.MaxFrameBytes, 1024), 67108864)), 10)
	return append(dst, `}}`...)
}

// EventBatchAckID is the frame id of the acknowledgement of an event_batch (agent protocol D.1).
func EventBatchAckID(batchID string) string { return CutID("eba_" + batchID) }

// ErrorID is the frame id of an error about a frame (agent protocol D.1).
func ErrorID(frameID string) string { return CutID("err_" + frameID) }

// AppendEventBatchAck appends the payload of an event_batch_ack in canonical form: batchID is the id of the event_batch,
// received the number of its events, accepted how many of them were new. Duplicates count as rejected.
func AppendEventBatchAck(dst []byte, batchID string, received, accepted int) []byte {
	dst = strconv.AppendInt(append(dst, `{"accepted":`...), int64(accepted), 10)
	dst = rawjson.AppendString(append(dst, `,"acked_id":`...), CutID(batchID))
	dst = strconv.AppendInt(append(dst, `,"received":`...), int64(received), 10)
	dst = strconv.AppendInt(append(dst, `,"rejected":`...), int64(received-accepted), 10)
	return append(dst, '}')
}

// AppendError appends the payload of an error frame in canonical form. A fatal error makes the agent end the session.
func AppendError(dst []byte, code, message string, fatal bool) []byte {
	dst = rawjson.AppendString(append(dst, `{"code":`...), cut(code, 80))
	dst = strconv.AppendBool(append(dst, `,"fatal":`...), fatal)
	dst = rawjson.AppendString(append(dst, `,"message":`...), cut(message, 8192))
	return append(dst, '}')
}
