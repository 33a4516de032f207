package frame

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame/canonical"
	"signalbox/appliance/fault"
)

// Marshal returns m in the canonical protobuf JSON mapping: lowerCamelCase keys, symbolic enum names, no unset fields.
// m is an envelope, or a message that a file holds. The bytes are not stable; never compare or hash what a second call
// returns. A message that the mapping cannot hold is Invalid.
func Marshal(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{}.Marshal(m)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s: has a string, time or duration that protobuf JSON cannot hold", m.ProtoReflect().Descriptor().Name())
	}
	return b, nil
}

// Deterministic returns the deterministic binary form of m (daemon protocol 2.2), without unknown fields. It panics if a
// string of m is not valid UTF-8; no message that was decoded or found valid has one.
func Deterministic(m proto.Message) []byte { return canonical.Bytes(m) }

// Digest returns the SHA-256 of the deterministic binary form of m as 64 lowercase hex digits.
func Digest(m proto.Message) string { return canonical.Sum(m) }

// PayloadIdentity returns what makes two sends of a command the same payload: the deterministic binary form of c with
// attempt cleared, and its SHA-256 as 64 lowercase hex digits (daemon protocol 2.6).
func PayloadIdentity(c *pb.Command) (payload []byte, sha256 string) {
	if c.GetAttempt() != 0 {
		c = proto.CloneOf(c)
		c.Attempt = 0
	}
	payload = canonical.Bytes(c)
	return payload, canonical.SumOf(payload)
}

// Equal reports whether a and b hold the same known fields. It is the comparison for repeated events and updates, and
// with attempt cleared for repeated commands.
func Equal(a, b proto.Message) bool {
	if proto.Equal(a, b) {
		return true
	}
	if a.ProtoReflect().Descriptor() != b.ProtoReflect().Descriptor() {
		return false
	}
	return string(canonical.Bytes(a)) == string(canonical.Bytes(b))
}

// TakeToken returns the token of a registration and clears the field, so that the message can be shown to anything else
// (daemon protocol 2.5). Call it before the message reaches any other code.
func TakeToken(r *pb.RegisterRequest) []byte {
	token := []byte(r.GetToken())
	if r != nil {
		r.Token = ""
	}
	return token
}
