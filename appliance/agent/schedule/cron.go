package schedule

import (
	"strings"
	"time"

	"github.com/netresearch/go-cron"

	"signalbox/appliance/fault"
)

// searchYears is how far ahead a cron expression must have a slot. 29 February on a given weekday may be 40 years away.
const searchYears = 41

// cronParser reads crontab(5), with seconds as an optional first field. The library computes on wall clocks without a time
// zone here: what a change of the clocks does to a slot is decided below, by one rule.
var cronParser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
	cron.Descriptor | cron.DowOrDom).WithMaxSearchYears(searchYears)

// allHours are the bits of an hour field that matches every hour.
const allHours = 1<<24 - 1

// wallClock is a cron timing: local times of a zone.
//
// Where the hour field names hours, each matching local time is one slot a day: one that the clocks skip is due at the
// moment of the change (all that are skipped together are one slot), one that comes twice is due the first time.
// Where the hour field matches every hour, slots follow real time: every matching moment that the clock shows, in the
// repeated hour twice, in the skipped hour none.
type wallClock struct {
	spec  *cron.SpecSchedule
	loc   *time.Location
	hours bool // every hour matches
}

func parseCron(expression string, loc *time.Location) (Timing, error) {
	// Lower case: the library takes the H of THU for a hash.
	text := strings.ToLower(strings.TrimSpace(expression))
	bad := fault.Field("expression", "of a cron schedule must have the five fields of crontab, six with seconds first, or be one of "+
		"@hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually; the time zone is not part of it: timezone names it")
	if strings.Contains(text, "tz=") || strings.HasPrefix(text, "@every") {
		return nil, bad
	}
	parsed, err := cronParser.Parse(text)
	if err != nil {
		if n := len(strings.Fields(text)); n == 5 || n == 6 {
			bad = fault.Field("expression", "has a field that crontab does not know: minutes are 0-59, hours 0-23, days of the month 1-31, "+
				"months 1-12 or jan-dec, days of the week 0-7 or sun-sat, each *, a value, a range 1-5, a list 1,3 or a step */2; of six "+
				"fields the first is seconds")
		}
		bad.Err = err
		return nil, bad
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, bad
	}
	spec.Location = time.UTC
	w := wallClock{spec, loc, spec.Hour&allHours == allHours}
	return w, nil
}

// Next implements Timing.
func (w wallClock) Next(after time.Time) (time.Time, bool) {
	if w.hours {
		return w.nextReal(after)
	}
	return w.nextLocal(after)
}

// wall is the local time of a moment, spelled as if it were UTC.
func wall(at time.Time, loc *time.Location) time.Time {
	_, offset := at.In(loc).Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// nextReal walks the zone's periods of one offset: inside each, wall clock and real time run alike.
func (w wallClock) nextReal(after time.Time) (time.Time, bool) {
	for at, from := after, wall(after, w.loc); ; {
		offset, _, end := period(at, w.loc)
		next := w.spec.Next(from)
		if next.IsZero() {
			return time.Time{}, false
		}
		if slot := next.Add(-offset); end.IsZero() || slot.Before(end) {
			return slot, true
		}
		// From the first moment of the next period on, by its clock.
		at, from = end, wall(end, w.loc).Add(-time.Nanosecond)
	}
}

// period is the stretch of one offset around a moment, in UTC; a zero bound is open.
func period(at time.Time, loc *time.Location) (offset time.Duration, start, end time.Time) {
	local := at.In(loc)
	_, seconds := local.Zone()
	start, end = local.ZoneBounds()
	if !start.IsZero() {
		start = start.UTC()
	}
	if !end.IsZero() {
		end = end.UTC()
	}
	return time.Duration(seconds) * time.Second, start, end
}

// nextLocal takes the matching wall clocks in order. Their moments never go back, so the first one after the time is next.
func (w wallClock) nextLocal(after time.Time) (time.Time, bool) {
	from := wall(after, w.loc)
	for {
		next := w.spec.Next(from)
		if next.IsZero() {
			return time.Time{}, false
		}
		if slot := instantOf(next, w.loc); slot.After(after) {
			return slot, true
		}
		from = next
	}
}

// instantOf is the first moment at which a zone's clock shows the wall clock or a later one: its first pass when it comes
// twice, the change of the clocks when that skips it.
func instantOf(wallTime time.Time, loc *time.Location) time.Time {
	// No offset has more than 26 hours: no earlier period shows the wall clock.
	for at := wallTime.Add(-26 * time.Hour); ; {
		offset, start, end := period(at, loc)
		if end.IsZero() || end.Add(offset).After(wallTime) {
			if slot := wallTime.Add(-offset); start.IsZero() || slot.After(start) {
				return slot
			}
			return start
		}
		at = end
	}
}
