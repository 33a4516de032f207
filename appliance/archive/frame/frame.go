// Package frame checks and decodes the frames of the daemon protocol and the JSON files of a job directory (daemon
// protocol 2.2, 7.2). It is pure: bytes in, a message or the first failed check out. Checks 1 and 2, the type and length
// of a WebSocket frame, belong to the socket.
package frame

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
)

// Side is the sender of a frame.
type Side uint8

// The two sides of a connection.
const (
	FromClient Side = iota + 1
	FromControl
)

// Options say what a receiver knows of the connection a frame came from.
type Options struct {
	From       Side
	Registered bool // registration is complete; before it only a registration or its answer is valid

	// Client is the registered client; empty before registration on control. PeerMinor is the minor of the version the
	// peer registered with and OwnMinor the receiver's own; both count only if Registered is set.
	Client              string
	PeerMinor, OwnMinor uint32

	MaxChunkEntries int // entries of an inventory chunk; 0 is the highest a limit may be
	MaxCursors      int // cursors of a registration; 0 is the highest a limit may be
}

// Frame is a frame that passed the checks.
type Frame struct {
	Envelope *pb.Envelope

	// Refusal is set for a command that the receiver must answer with REJECTED and this error instead of doing anything
	// (2.6): its command_id is valid, but something else of it is unknown or outside its rules. A command for another
	// client comes without one; the receiver decides on it.
	Refusal *pb.ErrorDetail
	// Partial tells, beside a Refusal, that the command had an unknown key or enum name, so that Envelope does not hold all
	// of it and a digest of its payload proves nothing: a repeat is a DUPLICATE whatever it holds. An unknown key alone is
	// no reason for a Refusal if the peer announced a higher minor.
	Partial bool
}

// The directions of the payloads by field number (2.3).
var directions = map[int32]Side{
	16: FromClient, 17: FromControl, 18: FromControl, 20: FromClient, 21: FromControl, 24: FromControl, 25: FromClient,
	28: FromClient, 29: FromControl, 30: FromClient, 32: FromClient, 36: FromClient, 37: FromControl,
	40: FromClient | FromControl,
}

const (
	fieldRegisterRequest  = 16
	fieldRegisterResponse = 17
	fieldRegisterRejected = 18
)

// Decode checks one frame in the order of 2.2, from check 3 on, and returns its envelope, or the first failed check. It
// needs no more memory than a fixed multiple of the frame. The stale generation of a registered client is no failed
// check: the receiver compares connection_generation and drops the frame.
func Decode(data []byte, o Options) (*Frame, *Violation) {
	limit := bounds{entries: o.MaxChunkEntries, cursors: o.MaxCursors}
	if limit.entries <= 0 {
		limit.entries = valid.MaxChunkEntries
	}
	if limit.cursors <= 0 {
		limit.cursors = valid.MaxActiveCursors
	}
	found, v := scan(data, roleEnvelope, limit)
	if v != nil {
		return nil, v
	}
	f, v := decode(data, &found, o)
	if v != nil {
		v.EnvelopeID, v.ClientID = uuidAt(data, found.envelopeID), uuidAt(data, found.clientID)
	}
	return f, v
}

// decode is what follows the scan.
func decode(data []byte, found *found, o Options) (*Frame, *Violation) {
	if v := heading(found, o); v != nil {
		return nil, v
	}
	e := new(pb.Envelope)
	ahead := o.Registered && o.PeerMinor > o.OwnMinor
	lost, v := parse(data, e, ahead)
	if v != nil {
		return nil, v
	}
	if e.Payload == nil {
		return nil, violation(7, -1, "no payload")
	}
	return message(e, lost, ahead, o)
}

// heading checks what the scan found at the top of the envelope, before a message is built: the major version, a second
// payload and the direction.
func heading(f *found, o Options) *Violation {
	if f.major != "" && f.major != valid.MajorText {
		v := violation(8, -1, "version.major: must be "+valid.MajorText)
		v.Code = pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH
		return v
	}
	switch {
	case f.second != 0 && f.second == f.payload:
		return violation(6, f.secondAt, "both spellings of one field")
	case f.second != 0:
		return violation(7, f.secondAt, "a second payload")
	case f.payload == 0:
		return nil // check 5 goes first
	case directions[f.payload]&o.From == 0:
		return violation(8, f.payloadAt, "a payload of the other direction")
	case o.Registered && (f.payload == fieldRegisterRequest || f.payload == fieldRegisterResponse || f.payload == fieldRegisterRejected):
		return violation(8, f.payloadAt, "a registration after the registration")
	case !o.Registered && o.From == FromClient && f.payload != fieldRegisterRequest:
		return violation(8, f.payloadAt, "a payload before the registration")
	case !o.Registered && o.From == FromControl && f.payload != fieldRegisterResponse && f.payload != fieldRegisterRejected:
		return violation(8, f.payloadAt, "a payload before the registration")
	}
	return nil
}

// lost is what of a command did not fit into the message.
type lost struct{ keys, enums bool }

// parse is checks 5 and 6.
func parse(data []byte, m proto.Message, ahead bool) (lost, *Violation) {
	err := protojson.Unmarshal(data, m)
	if err == nil {
		return lost{}, nil
	}
	f := schemaFaults(data, m.ProtoReflect().Descriptor())
	switch {
	case f.key >= 0 && !ahead:
		return lost{}, violation(5, f.key, "an unknown field")
	case f.enum >= 0:
		return lost{}, violation(5, f.enum, "an unknown enum name")
	case f.spellings >= 0:
		return lost{}, violation(6, f.spellings, "both spellings of one field")
	case f.key < 0 && f.inCommand < 0 && f.commandEnum < 0:
		return lost{}, violation(5, position(data, err), "a value that does not fit its field")
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m); err != nil {
		return lost{}, violation(5, position(data, err), "a value that does not fit its field")
	}
	return lost{keys: f.inCommand >= 0, enums: f.commandEnum >= 0}, nil
}

// message is check 8.
func message(e *pb.Envelope, l lost, ahead bool, o Options) (*Frame, *Violation) {
	if err := valid.Envelope(e); err != nil {
		return nil, refused(err)
	}
	if o.Client != "" && e.ClientId != o.Client {
		return nil, violation(8, -1, "client_id: must be the client of this connection")
	}
	if o.Registered && e.Version.Minor != o.PeerMinor {
		return nil, violation(8, -1, "version: must be the one of the registration")
	}
	f := &Frame{Envelope: e}
	c := e.GetCommand()
	if c == nil {
		if err := valid.Payload(e); err != nil {
			return nil, refused(err)
		}
		return f, nil
	}
	if err := valid.CommandID(c); err != nil {
		return nil, refused(err)
	}
	if l.enums || l.keys && !ahead {
		f.Partial = true
		f.Refusal = valid.Detail(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "the command has a field or value that this version does not know")
		return f, nil
	}
	if err := valid.Command(c); err != nil {
		f.Refusal = valid.AsError(err).Detail()
		f.Partial = l.keys
	}
	return f, nil
}

// refused turns an error of package valid into a violation of check 8.
func refused(err error) *Violation {
	v := violation(8, -1, err.Error())
	if valid.AsError(err).Code == pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH {
		v.Code = pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH
	}
	return v
}

// DecodeFile checks the bytes of a manifest or ready marker and fills m with them: checks 3 to 6 and 8, with no unknown
// fields (7.2). Code of the violation is MANIFEST_INVALID, or PATH_UNSAFE for a path.
func DecodeFile(data []byte, m proto.Message) *Violation {
	const invalid = pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID
	if _, v := scan(data, roleNone, bounds{}); v != nil {
		v.Code = invalid
		return v
	}
	if _, v := parse(data, m, false); v != nil {
		v.Code = invalid
		return v
	}
	if err := valid.Message(m); err != nil {
		v := violation(8, -1, err.Error())
		v.Code = invalid
		if code := valid.AsError(err).Code; code == pb.ErrorCode_ERROR_CODE_PATH_UNSAFE {
			v.Code = code
		}
		return v
	}
	return nil
}
