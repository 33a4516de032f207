package rawjson

import (
	"errors"
	"time"
)

// ErrTime is the class of every error of ParseTime.
var ErrTime = errors.New("not a timestamp of the form YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)")

// ParseTime reads an ISO 8601 instant (agent protocol C.5): an upper-case Z or a numeric offset is required, up to nine
// fraction digits are allowed, and the date must exist. The result is in UTC.
func ParseTime(s string) (time.Time, error) {
	t, zoned, ok := parseTime(s)
	if !ok || !zoned {
		return time.Time{}, ErrTime
	}
	return t, nil
}

// ParseTimeOrUTC is ParseTime that reads a time without an offset as UTC, the rule for the occurred_at of events (agent
// protocol D.4).
func ParseTimeOrUTC(s string) (time.Time, error) {
	t, _, ok := parseTime(s)
	if !ok {
		return time.Time{}, ErrTime
	}
	return t, nil
}

func parseTime(s string) (t time.Time, zoned, ok bool) {
	const shape = "0000-00-00T00:00:00"
	if len(s) < len(shape) {
		return time.Time{}, false, false
	}
	for i := range len(shape) {
		if shape[i] == '0' && (s[i] < '0' || s[i] > '9') || shape[i] != '0' && s[i] != shape[i] {
			return time.Time{}, false, false
		}
	}
	year, month, day := number(s[:4]), number(s[5:7]), number(s[8:10])
	hour, minute, sec := number(s[11:13]), number(s[14:16]), number(s[17:19])
	if year < 1 || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || sec > 59 {
		return time.Time{}, false, false
	}
	nanos, rest, ok := fraction(s[len(shape):])
	if !ok {
		return time.Time{}, false, false
	}
	var offset time.Duration
	if zoned = rest != ""; zoned {
		if offset, ok = zone(rest); !ok {
			return time.Time{}, false, false
		}
	}
	t = time.Date(year, time.Month(month), day, hour, minute, sec, nanos, time.UTC)
	if t.Day() != day { // 30 February rolls over into March
		return time.Time{}, false, false
	}
	return t.Add(-offset), zoned, true
}

// number reads digits that were checked before.
func number(s string) int {
	n := 0
	for i := range len(s) {
		n = n*10 + int(s[i]-'0')
	}
	return n
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// fraction reads an optional ".fffffffff" of one to nine digits.
func fraction(s string) (nanos int, rest string, ok bool) {
	if s == "" || s[0] != '.' {
		return 0, s, true
	}
	s = s[1:]
	n := leadingDigits(s)
	if n == 0 || n > 9 {
		return 0, s, false
	}
	nanos = number(s[:n])
	for range 9 - n {
		nanos *= 10
	}
	return nanos, s[n:], true
}

// zone reads Z, ±HH:MM, ±HHMM or ±HH.
func zone(s string) (offset time.Duration, ok bool) {
	if s == "Z" {
		return 0, true
	}
	if len(s) < 3 || s[0] != '+' && s[0] != '-' || leadingDigits(s[1:3]) != 2 {
		return 0, false
	}
	minutes := 0
	if rest := s[3:]; rest != "" {
		if rest[0] == ':' {
			rest = rest[1:]
		}
		if len(rest) != 2 || leadingDigits(rest) != 2 {
			return 0, false
		}
		minutes = number(rest)
	}
	hours := number(s[1:3])
	if hours > 23 || minutes > 59 {
		return 0, false
	}
	offset = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if s[0] == '-' {
		offset = -offset
	}
	return offset, true
}

// AppendTime appends an instant as frames carry it: UTC, six fraction digits, or none when the microseconds are zero
// (agent protocol C.5). Anything finer is cut off.
func AppendTime(dst []byte, t time.Time) []byte {
	t = t.UTC().Truncate(time.Microsecond)
	if t.Nanosecond() == 0 {
		return t.AppendFormat(dst, "2006-01-02T15:04:05Z")
	}
	return t.AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
}

// Time reads a string value by ParseTime; ok is false for any other kind and for a bad timestamp.
func (v Value) Time() (t time.Time, ok bool) {
	s, ok := v.Str()
	if !ok {
		return time.Time{}, false
	}
	t, err := ParseTime(s)
	return t, err == nil
}

// FormatTime is AppendTime into a string.
func FormatTime(t time.Time) string { return string(AppendTime(nil, t)) }
