package valid

import (
	"errors"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/pathrule"
)

// IsUUID reports whether s is a UUID as the protocol writes it: 36 characters, lowercase, hyphenated, not the nil UUID.
func IsUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	nonzero := false
	for i := range len(s) {
		c := s[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
			continue
		}
		if !isHexDigit(c) {
			return false
		}
		nonzero = nonzero || c != '0'
	}
	return nonzero
}

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if !isHexDigit(s[i]) {
			return false
		}
	}
	return true
}

func isHexDigit(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

func (c *checker) uuid(field, s string) {
	if !IsUUID(s) {
		c.fail(field, "must be a lowercase UUID, not the nil UUID")
	}
}

func (c *checker) uuidOrEmpty(field, s string) {
	if s != "" && !IsUUID(s) {
		c.fail(field, "must be empty or a lowercase UUID, not the nil UUID")
	}
}

func (c *checker) uuids(field string, list []string, most int) {
	if most > 0 && len(list) > most {
		c.fail(field, "must have at most "+itoa(most)+" elements")
	}
	for i, s := range list {
		if !IsUUID(s) {
			c.fail(field+"["+itoa(i)+"]", "must be a lowercase UUID, not the nil UUID")
			return
		}
	}
}

func (c *checker) hash(field, s string) {
	if !isHex(s, 64) {
		c.fail(field, "must be 64 lowercase hex digits")
	}
}

func (c *checker) hashOrEmpty(field, s string) { c.hexOrEmpty(field, s, 64) }

func (c *checker) hexOrEmpty(field, s string, n int) {
	if s != "" && !isHex(s, n) {
		c.fail(field, "must be empty or "+itoa(n)+" lowercase hex digits")
	}
}

func (c *checker) size(field, s string, least, most int) {
	switch {
	case len(s) >= least && len(s) <= most:
	case least == 0:
		c.fail(field, "must have at most "+itoa(most)+" bytes")
	default:
		c.fail(field, "must have "+itoa(least)+" to "+itoa(most)+" bytes")
	}
}

// strings checks the size of every element.
func (c *checker) sizes(field string, list []string, least, most int) {
	for i, s := range list {
		if len(s) < least || len(s) > most {
			c.size(field+"["+itoa(i)+"]", s, least, most)
			return
		}
	}
}

// enum is an enum of the schema.
type enum interface {
	~int32
	Descriptor() protoreflect.EnumDescriptor
}

// known checks that a value has a name. Zero has one.
func known[E enum](c *checker, field string, v E, names map[int32]string) {
	if _, ok := names[int32(v)]; !ok {
		c.failAs(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, field, "is a value that this version does not know")
	}
}

// chosen checks that a value has a name and is not zero.
func chosen[E enum](c *checker, field string, v E, names map[int32]string) {
	if v == 0 {
		c.failAs(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, field, "is required")
		return
	}
	known(c, field, v, names)
}

// chosenAll checks every element.
func chosenAll[E enum](c *checker, field string, list []E, names map[int32]string) {
	for i, v := range list {
		if _, ok := names[int32(v)]; !ok || v == 0 {
			chosen(c, field+"["+itoa(i)+"]", v, names)
			return
		}
	}
}

// The range of timestamps (daemon protocol 2.2).
var (
	earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
)

// time checks a timestamp if it is set.
func (c *checker) time(field string, t *timestamppb.Timestamp) {
	if t == nil {
		return
	}
	if t.Seconds < earliest || t.Seconds > latest || t.Nanos < 0 || t.Nanos > 999_999_999 {
		c.fail(field, "must be a time from 2000-01-01 to 9999-12-31")
	}
}

func (c *checker) timeRequired(field string, t *timestamppb.Timestamp) {
	if t == nil {
		c.fail(field, "is required")
	}
	c.time(field, t)
}

// day is the longest duration where a rule gives no other.
const day = 24 * time.Hour

// duration checks a duration if it is set.
func (c *checker) duration(field string, d *durationpb.Duration, longest time.Duration) {
	if d == nil {
		return
	}
	if d.CheckValid() != nil || d.Seconds < 0 || d.Nanos < 0 || d.Seconds > int64(longest/time.Second) || d.AsDuration() > longest {
		c.fail(field, "must be a duration from 0 to "+itoa(int(longest/time.Hour))+" hours")
	}
}

// path checks the syntax of a relative path (daemon protocol 7.4).
func (c *checker) path(field, s string) {
	var broken *pathrule.Error
	if err := pathrule.Check(s); errors.As(err, &broken) {
		c.failAs(broken.Code, field, broken.Rule)
	}
}

func (c *checker) pathOrEmpty(field, s string) {
	if s != "" {
		c.path(field, s)
	}
}

// component checks a name that is one component of a path.
func (c *checker) component(field, s string) {
	if strings.Contains(s, "/") {
		c.failAs(pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, field, "must be one path component")
	}
	c.path(field, s)
}

// printable checks that a text has no control characters.
func (c *checker) printable(field, s string) {
	if strings.ContainsFunc(s, unicode.IsControl) {
		c.fail(field, "must not have control characters")
	}
}

// The limits of capabilities (daemon protocol 2.4).
const (
	MaxCapabilities    = 64
	MaxCapabilityBytes = 64
)

// capabilities checks a list of capability names; each may be in it once.
func (c *checker) capabilities(field string, list []string) {
	if len(list) > MaxCapabilities {
		c.fail(field, "must have at most "+itoa(MaxCapabilities)+" elements")
		return
	}
	for i, s := range list {
		if !isCapability(s) {
			c.fail(field+"["+itoa(i)+"]", "must be lowercase words of a-z, 0-9 and _ joined by dots, at most 64 bytes")
			return
		}
		for _, earlier := range list[:i] {
			if earlier == s {
				c.fail(field+"["+itoa(i)+"]", "must not be in the list twice")
				return
			}
		}
	}
}

func isCapability(s string) bool {
	if len(s) == 0 || len(s) > MaxCapabilityBytes {
		return false
	}
	word := false
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', '0' <= b && b <= '9', b == '_':
			word = true
		case b == '.' && word:
			word = false
		default:
			return false
		}
	}
	return word
}

func isKey(s string, most int, letters byte) bool {
	if len(s) == 0 || len(s) > most {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if (b < letters || b > letters+25) && (b < '0' || b > '9') && b != '_' {
			return false
		}
	}
	return true
}
