package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time written as a Go duration string ("60s", "1h30m").
type Duration time.Duration

// Std returns the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes the duration without trailing zero units: "1m", not "1m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a Go duration string; a bare number has no unit and is refused.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("must be a duration with a unit, such as \"60s\" or \"1h30m\", got %q", text)
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, written as a number or with a unit: "8KiB", "1MiB", "32MB".
type Size int64

// Binary units.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// sizeUnits lists the accepted units, longest suffix first where one ends in another.
func sizeUnits() []struct {
	suffix string
	bytes  Size
} {
	return []struct {
		suffix string
		bytes  Size
	}{
		{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
		{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
	}
}

// Bytes returns the size as a plain number of bytes.
func (s Size) Bytes() int64 { return int64(s) }

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	if s != 0 {
		for _, u := range sizeUnits()[:3] {
			if s%u.bytes == 0 {
				return strconv.FormatInt(int64(s/u.bytes), 10) + u.suffix
			}
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText writes what UnmarshalText reads.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a whole number of bytes with an optional unit.
func (s *Size) UnmarshalText(text []byte) error {
	t, unit := strings.TrimSpace(string(text)), Size(1)
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(t, u.suffix); ok {
			t, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(t, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("must be a size in bytes, such as 8192, \"8KiB\" or \"32MiB\", got %q", text)
	}
	if n > math.MaxInt64/int64(unit) {
		return fmt.Errorf("size %q is too large", text)
	}
	*s = Size(n) * unit
	return nil
}

// LogLevel is the lowest level that is written.
type LogLevel string

// The log levels.
const (
	LevelTrace LogLevel = "trace"
	LevelDebug LogLevel = "debug"
	LevelInfo  LogLevel = "info"
	LevelWarn  LogLevel = "warn"
	LevelError LogLevel = "error"
)

// LogLevels lists the levels from the most to the least talkative.
func LogLevels() []LogLevel {
	return []LogLevel{LevelTrace, LevelDebug, LevelInfo, LevelWarn, LevelError}
}

// UnmarshalText accepts one of LogLevels in any case.
func (l *LogLevel) UnmarshalText(text []byte) error { return parseEnum(l, text, LogLevels()) }

// LogFormat is the form of log lines.
type LogFormat string

// The log formats.
const (
	FormatAuto LogFormat = "auto"
	FormatText LogFormat = "text"
	FormatJSON LogFormat = "json"
)

// LogFormats lists the formats.
func LogFormats() []LogFormat { return []LogFormat{FormatAuto, FormatText, FormatJSON} }

// UnmarshalText accepts one of LogFormats in any case.
func (f *LogFormat) UnmarshalText(text []byte) error { return parseEnum(f, text, LogFormats()) }

func parseEnum[T ~string](p *T, text []byte, choices []T) error {
	v := T(strings.ToLower(string(text)))
	for _, c := range choices {
		if v == c {
			*p = c
			return nil
		}
	}
	return fmt.Errorf("must be one of %s, got %q", joinChoices(choices), text)
}

func joinChoices[T ~string](choices []T) string {
	out := make([]string, len(choices))
	for i, c := range choices {
		out[i] = string(c)
	}
	return strings.Join(out, ", ")
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("must be true or false, got %q", text)
}

var errNotInteger = errors.New("must be a whole number")

func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%w, got %q", errNotInteger, text)
	}
	return n, nil
}
