package rawjson

import (
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	base := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]time.Time{
		"2026-01-02T03:04:05Z":                base,
		"2026-01-02T03:04:05.5Z":              base.Add(500 * time.Millisecond),
		"2026-01-02T03:04:05.678901Z":         base.Add(678901 * time.Microsecond),
		"2026-01-02T03:04:05.123456789Z":      base.Add(123456789),
		"2026-01-02T03:04:05.250000+00:00":    base.Add(250 * time.Millisecond),
		"2026-01-02T04:34:05+01:30":           base,
		"2026-01-01T22:04:05-0500":            base,
		"2026-01-02T05:04:05+02":              base,
		"2024-02-29T00:00:00Z":                time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"0001-01-01T00:00:00Z":                time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC),
		"9999-12-31T23:59:59.999999999-23:59": time.Date(10000, 1, 1, 23, 58, 59, 999999999, time.UTC),
	} {
		if got, err := ParseTime(in); err != nil || !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("%s: got %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "now", "2026-01-02", "2026-01-02T03:04Z", "2026-01-02T03:04:05", "2026-01-02 03:04:05Z",
		"2026-01-02t03:04:05Z", "2026-01-02T03:04:05z", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05.1234567890Z",
		"2026-01-02T03:04:05,5Z", "2026-02-29T00:00:00Z", "2026-04-31T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z",
		"2026-01-00T00:00:00Z", "2026-01-32T00:00:00Z", "2026-01-02T24:00:00Z", "2026-01-02T03:60:05Z", "2026-01-02T03:04:60Z",
		"0000-01-01T00:00:00Z", "2026-01-02T03:04:05+1", "2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05+00:60",
		"2026-01-02T03:04:05+00:0", "2026-01-02T03:04:05+00:00:00", "2026-01-02T03:04:05+:00", "2026-01-02T03:04:05 Z",
		"2026-01-02T03:04:05ZZ", "2026-01-02T03:04:05Z ", " 2026-01-02T03:04:05Z", "-026-01-02T03:04:05Z", "2026-1-002T03:04:05Z",
		"2026-01-02T03:04:05.5", "２026-01-02T03:04:05Z"} {
		if got, err := ParseTime(in); err != ErrTime {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
	if got, err := ParseTimeOrUTC("2026-01-02T03:04:05.5"); err != nil || !got.Equal(base.Add(500*time.Millisecond)) {
		t.Errorf("naive time: got %v, %v", got, err)
	}
	if got, err := ParseTimeOrUTC("2026-01-02T04:04:05+01:00"); err != nil || !got.Equal(base) {
		t.Errorf("time with offset: got %v, %v", got, err)
	}
	if _, err := ParseTimeOrUTC("2026-01-02T03:04:05x"); err != ErrTime {
		t.Errorf("trailing text: got %v", err)
	}
}

func TestFormatTime(t *testing.T) {
	east := time.FixedZone("", 3600)
	for want, in := range map[string]time.Time{
		"2026-01-02T03:04:05Z":        time.Date(2026, 1, 2, 3, 4, 5, 999, time.UTC),
		"2026-01-02T03:04:05.000250Z": time.Date(2026, 1, 2, 4, 4, 5, 250000, east),
		"2026-01-02T03:04:05.999999Z": time.Date(2026, 1, 2, 3, 4, 5, 999999999, time.UTC),
	} {
		if got := FormatTime(in); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if back, err := ParseTime(want); err != nil || !back.Equal(in.Truncate(time.Microsecond)) {
			t.Errorf("%s reads back as %v, %v", want, back, err)
		}
	}
}

func TestValueTime(t *testing.T) {
	root := parse(t, `{"good":"2026-01-02T03:04:0\u0035Z","naive":"2026-01-02T03:04:05","number":5}`)
	if got, ok := root.Get("good").Time(); !ok || !got.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("got %v, %v", got, ok)
	}
	for _, key := range []string{"naive", "number", "absent"} {
		if got, ok := root.Get(key).Time(); ok {
			t.Errorf("%s: got %v", key, got)
		}
	}
}
