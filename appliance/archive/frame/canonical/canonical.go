// Package canonical makes the deterministic binary form of messages, which digests and stored payloads use.
package canonical

import (
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Bytes returns the deterministic binary form of m (daemon protocol 2.2): known fields in ascending number, defaults
// omitted, map entries sorted by key, repeated numbers packed, no unknown fields. It panics if a string of m is not valid
// UTF-8; no message that was decoded or found valid has one.
func Bytes(m proto.Message) []byte {
	if hasUnknown(m.ProtoReflect()) {
		m = proto.Clone(m)
		dropUnknown(m.ProtoReflect())
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic("canonical: a string is not valid UTF-8")
	}
	return b
}

// Sum returns the SHA-256 of the deterministic binary form of m as 64 lowercase hex digits.
func Sum(m proto.Message) string { return SumOf(Bytes(m)) }

// SumOf returns the SHA-256 of b as 64 lowercase hex digits.
func SumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	eachMessage(m, func(sub protoreflect.Message) bool {
		found = hasUnknown(sub)
		return !found
	})
	return found
}

func dropUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	eachMessage(m, func(sub protoreflect.Message) bool {
		dropUnknown(sub)
		return true
	})
}

// eachMessage calls f for the messages that the fields of m hold, until f returns false.
func eachMessage(m protoreflect.Message, f func(protoreflect.Message) bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() == nil {
				return true
			}
			ok := true
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				ok = f(v.Message())
				return ok
			})
			return ok
		case fd.Message() == nil:
			return true
		case fd.IsList():
			for i := range v.List().Len() {
				if !f(v.List().Get(i).Message()) {
					return false
				}
			}
			return true
		default:
			return f(v.Message())
		}
	})
}
