package schedule

import (
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // zones on machines that have none

	"signalbox/appliance/fault"
)

// Timing computes slots.
type Timing interface {
	// Next returns the first slot strictly after the time, in UTC; false when there is none. Its work is bounded.
	Next(after time.Time) (time.Time, bool)
}

// NewTiming reads the timing of a schedule: kind, expression, time zone, and where an interval counts from.
//
//   - cron: five fields of crontab(5), six with seconds first, or @hourly, @daily, @midnight, @weekly, @monthly, @yearly,
//     @annually. A day matches when the day of the month or the day of the week does, if both are restricted.
//   - interval: whole seconds (30), a duration (90s, 5m, 1h30m, 2d), or words (every 15 minutes), 1 s to 366 days. Slots lie
//     on the grid anchor + k × interval, in real time: no change of the clocks moves them.
//   - clocked: one moment, ISO 8601. Without an offset it is a local time of the zone.
//
// The error is Invalid and names expression, timezone or kind.
func NewTiming(kind Kind, expression, timezone string, anchor time.Time) (Timing, error) {
	loc, err := zone(timezone)
	if err != nil {
		return nil, err
	}
	switch kind {
	case Cron:
		return parseCron(expression, loc)
	case Interval:
		every, err := parseInterval(expression)
		if err != nil {
			return nil, err
		}
		return grid{anchor, every}, nil
	case Clocked:
		at, err := parseClocked(expression, loc)
		if err != nil {
			return nil, err
		}
		return moment(at), nil
	case Solar:
		return nil, fault.Field("kind", "solar schedules are not supported: no well-kept library computes them; use cron or clocked")
	}
	return nil, fault.Field("kind", "must be cron, interval or clocked")
}

// Timing reads the schedule's own timing.
func (s *Schedule) Timing() (Timing, error) {
	return NewTiming(s.Kind, s.Expression, s.Timezone, s.AnchorAt)
}

var zones sync.Map // name → *time.Location; only names that exist are kept, some 600

// zone finds a time zone by its IANA name.
func zone(name string) (*time.Location, error) {
	if loc, ok := zones.Load(name); ok {
		return loc.(*time.Location), nil
	}
	if name == "" || name == "Local" || len(name) > maxTimezone {
		return nil, badZone()
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, badZone()
	}
	zones.Store(name, loc)
	return loc, nil
}

func badZone() error {
	return fault.Field("timezone", "must be a time zone of the IANA database, such as UTC or Europe/Berlin")
}

// moment is one slot.
type moment time.Time

func (m moment) Next(after time.Time) (time.Time, bool) {
	if at := time.Time(m); at.After(after) {
		return at, true
	}
	return time.Time{}, false
}

// clockedForms are the local forms of a clocked expression.
var clockedForms = [...]string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"}

// parseClocked reads one moment, to the second. A local time that a change of the clocks leaves out is the moment of the
// change, one that comes twice is the first, as for cron.
func parseClocked(text string, loc *time.Location) (time.Time, error) {
	text = strings.TrimSpace(text)
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return checkYear(at.UTC().Truncate(time.Second))
	}
	for _, form := range clockedForms {
		if wall, err := time.Parse(form, text); err == nil {
			return checkYear(instantOf(wall, loc))
		}
	}
	return time.Time{}, fault.Field("expression", "of a clocked schedule must be one ISO 8601 time, such as 2027-01-31T08:00:00+01:00")
}

func checkYear(at time.Time) (time.Time, error) {
	if y := at.Year(); y < 1970 || y > 9999 {
		return time.Time{}, fault.Field("expression", "must lie in the years 1970 to 9999")
	}
	return at, nil
}
