// Package wire is the agent protocol on the byte level: frames, signatures, the replay guard, and the payloads that the
// appliance writes (agent protocol C and D). It is pure: no sockets, no clock, no store. Times are passed in.
//
// A received frame goes through ParseFrame (steps 1 to 4 of agent protocol C.7) and then through the Verifier of its
// session (steps 5 to 7). A sent frame comes from the Signer of its session. Both sides of a connection use the same two
// types, so a client is built from the same parts.
package wire

import (
	"errors"
	"fmt"
	"time"

	"signalbox/appliance/rawjson"
)

// Version is the wire protocol version, the value of every frame's "v".
const Version = 2

// ProtocolVersion is Version as hello and hello_ack spell it.
const ProtocolVersion = "2"

// MaxIDLen is the longest frame id, in characters. Ids of frames we make are cut to it (agent protocol D.1).
const MaxIDLen = 64

// Type is the type of a frame.
type Type string

// The frame types (agent protocol D.1). TypeHello and TypeHelloAck are unsigned, all others are signed.
const (
	TypeHello         Type = "hello"
	TypeHelloAck      Type = "hello_ack"
	TypeEventBatch    Type = "event_batch"
	TypeEventBatchAck Type = "event_batch_ack"
	TypeHeartbeat     Type = "heartbeat"
	TypeAgentStatus   Type = "agent_status"
	TypeCommand       Type = "command"
	TypeCommandAck    Type = "command_ack"
	TypeCommandResult Type = "command_result"
	TypeRegistryDelta Type = "registry_delta"
	TypeError         Type = "error"
)

// Types lists every known type, for tables that must cover them.
func Types() []Type {
	return []Type{TypeHello, TypeHelloAck, TypeEventBatch, TypeEventBatchAck, TypeHeartbeat, TypeAgentStatus, TypeCommand,
		TypeCommandAck, TypeCommandResult, TypeRegistryDelta, TypeError}
}

// Signed reports whether frames of the type carry a signature.
func (t Type) Signed() bool { return t != TypeHello && t != TypeHelloAck }

// typeOf returns the constant for a type text, without allocating, or "" for an unknown one.
func typeOf(v rawjson.Value) Type {
	for _, t := range [...]Type{TypeEventBatch, TypeHeartbeat, TypeAgentStatus, TypeCommandAck, TypeCommandResult,
		TypeCommand, TypeEventBatchAck, TypeRegistryDelta, TypeError, TypeHello, TypeHelloAck} {
		if v.StrEqual(string(t)) {
			return t
		}
	}
	return ""
}

// The classes of refusal (agent protocol C.7 and C.8), for errors.Is. Errors name the step that failed and never quote
// the frame or a secret.
var (
	// ErrMalformed: not a frame. A WebSocket session ends, a long-poll upload counts the frame as accepted and drops it.
	ErrMalformed = errors.New("malformed frame")
	// ErrVersionSkew: a frame of another wire version. A WebSocket session ends, a long-poll upload rejects the frame and
	// keeps the session.
	ErrVersionSkew = errors.New("unsupported frame version")
	// ErrSignature: the hmac is missing or wrong. The session ends.
	ErrSignature = errors.New("frame signature does not verify")
	// ErrReplay: seq, nonce or ts is not acceptable. It is a signature-class failure: the session ends.
	ErrReplay = errors.New("frame replay guard")
)

// IsSignatureClass reports whether err must end the session as a failed verification: ErrSignature or ErrReplay.
func IsSignatureClass(err error) bool {
	return errors.Is(err, ErrSignature) || errors.Is(err, ErrReplay)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

func replay(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrReplay}, args...)...)
}

// Frame is a parsed frame. It refers to the bytes given to ParseFrame, which must stay unchanged while it is in use.
// Until a Verifier has accepted it, nothing in it may be trusted or acted on, hello apart.
type Frame struct {
	Type Type
	ID   string // "" when absent or not a string
	TS   string // the ts text; "" when absent or not a string
	// Time is TS as an instant, the zero Time when TS does not follow agent protocol C.5.
	Time  time.Time
	Nonce string // "" when absent or not a string
	Seq   int64  // 0 when absent, not a JSON integer, or outside 1..2^63-1
	HMAC  string // "" when absent or not a string
	// Payload is the payload object; Missing when it is absent or null, which reads as an empty object. For hello and
	// hello_ack it is whatever was sent.
	Payload rawjson.Value
	Doc     *rawjson.Doc
}

// Unsigned reports whether the frame is a hello or hello_ack, which are set aside before every other check.
func (f *Frame) Unsigned() bool { return !f.Type.Signed() }

// Raw returns the frame as it was received.
func (f *Frame) Raw() []byte { return f.Doc.Bytes() }

// Size returns the bytes of memory that the frame takes: a frame of tiny values takes many times its length.
func (f *Frame) Size() int { return f.Doc.Size() }

// Release hands the memory behind Doc and Payload back. The strings of the Frame stay valid, its Values do not.
func (f *Frame) Release() {
	f.Doc.Release()
	f.Doc, f.Payload = nil, rawjson.Value{}
}

// ParseFrame reads one frame by steps 1 to 4 of agent protocol C.7 and fails with ErrMalformed or ErrVersionSkew. A hello
// or hello_ack returns without an error as soon as its type is known, whatever its version and content: use ParseHello
// for the handshake. The frame is not authenticated yet.
//
// b must stay unchanged while the Frame is in use. Release may be called when done; after an error there is nothing to
// release.
func ParseFrame(b []byte) (Frame, error) {
	doc, err := rawjson.Parse(b)
	if err != nil {
		return Frame{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	f := Frame{Doc: doc}
	if err := f.read(doc.Root()); err != nil {
		doc.Release()
		return Frame{}, err
	}
	return f, nil
}

// members holds the last value of every member that the protocol gives a meaning.
type members struct{ v, typ, id, ts, nonce, seq, hmac, payload rawjson.Value }

func (f *Frame) read(root rawjson.Value) error {
	if root.Kind() != rawjson.Object {
		return malformed("a frame is a JSON object, got %s", root.Kind())
	}
	var m members
	for key, v := range root.EachRawMember() {
		switch string(key) {
		case "v":
			m.v = v
		case "type":
			m.typ = v
		case "id":
			m.id = v
		case "ts":
			m.ts = v
		case "nonce":
			m.nonce = v
		case "seq":
			m.seq = v
		case "hmac":
			m.hmac = v
		case "payload":
			m.payload = v
		}
	}
	f.Type = typeOf(m.typ)
	f.ID, _ = m.id.Str()
	f.TS, _ = m.ts.Str()
	f.Payload = m.payload
	if t, err := ParseTime(f.TS); err == nil {
		f.Time = t
	}
	if f.Type != "" && f.Unsigned() {
		return nil
	}
	if err := checkVersion(m.v); err != nil {
		return err
	}
	if f.Type == "" {
		if m.typ.Kind() != rawjson.String {
			return malformed("type must be a string, got %s", m.typ.Kind())
		}
		return malformed("type is unknown")
	}
	if m.payload.IsAbsent() {
		f.Payload = rawjson.Value{}
	} else if m.payload.Kind() != rawjson.Object {
		return malformed("payload must be an object, got %s", m.payload.Kind())
	}
	f.Nonce, _ = m.nonce.Str()
	f.HMAC, _ = m.hmac.Str()
	if n, ok := m.seq.Int64(); ok && n > 0 {
		f.Seq = n
	}
	return nil
}

func checkVersion(v rawjson.Value) error {
	if v.Kind() != rawjson.Int {
		return malformed("v must be an integer, got %s", v.Kind())
	}
	if n, ok := v.Int64(); !ok || n != Version {
		return fmt.Errorf("%w: v must be %d", ErrVersionSkew, Version)
	}
	return nil
}
