package operation

import (
	"strings"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// instant reads an argument that is a time (H.5): ISO 8601, UTC when it says no offset; the time of day, or its seconds,
// may be left out. nil when it was not given.
func (r *request) instant(name string) (*time.Time, error) {
	s, ok := value[string](r, name)
	if !ok {
		return nil, nil
	}
	t, ok := parseInstant(s)
	if !ok {
		return nil, fault.Field(name, "must be a time in ISO 8601, such as 2026-01-31T09:30:00Z; %.80q is none", s)
	}
	return &t, nil
}

func parseInstant(s string) (time.Time, bool) {
	const day, minute = len("2006-01-02"), len("2006-01-02T15:04")
	full := s
	switch {
	case len(s) == day:
		full = s + "T00:00:00"
	case len(s) >= minute && (len(s) == minute || strings.IndexByte("Z+-", s[minute]) >= 0):
		full = s[:minute] + ":00" + s[minute:]
	}
	t, err := rawjson.ParseTimeOrUTC(full)
	return t, err == nil
}

// millis is a time on the wire (section 0).
func millis(t time.Time) int64 { return t.UnixMilli() }
