package archive

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Word is a value of the schema as people and programs outside of the protocol read it: in lower case, without the prefix of
// its enum. It is "" for UNSPECIFIED and for a value that this version does not know.
func Word(e protoreflect.Enum) string { return EnumWord(e.Descriptor(), e.Number()) }

// EnumWord is Word of a number.
func EnumWord(d protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	v := d.Values().ByNumber(n)
	if v == nil || n == 0 {
		return ""
	}
	prefix := strings.TrimSuffix(string(d.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

// Clip returns the longest prefix of s of at most n bytes that ends at a character, with bytes that are no UTF-8 replaced.
func Clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// SizeText is a size in bytes for people: "44 B", "1.5 GiB".
func SizeText(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := uint64(unit), 0
	for v := n / unit; v >= unit; v /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

// TimeText is how far a time is from now, to the second: "2m5s ago", "in 15s", "now"; "never" for the zero time.
func TimeText(at, now time.Time) string {
	if at.IsZero() {
		return "never"
	}
	d := now.Sub(at).Round(time.Second)
	switch {
	case d > 0:
		return d.String() + " ago"
	case d < 0:
		return "in " + (-d).String()
	}
	return "now"
}
