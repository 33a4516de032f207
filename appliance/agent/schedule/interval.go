package schedule

import (
	"strconv"
	"strings"
	"time"

	"signalbox/appliance/fault"
)

// Bounds of an interval.
const (
	minInterval = time.Second
	maxInterval = 366 * 24 * time.Hour
)

// grid is the slots anchor + k × every. A time before the anchor, which a clock that was ahead has made, has slots too:
// what counts from the future would be held up until then.
type grid struct {
	anchor time.Time
	every  time.Duration
}

func (g grid) Next(after time.Time) (time.Time, bool) {
	// In microseconds: a time.Duration ends after 292 years.
	every := g.every.Microseconds()
	from := after.UnixMicro() - g.anchor.UnixMicro()
	k := from/every + 1
	if from%every < 0 { // division rounds towards zero
		k--
	}
	next := time.UnixMicro(g.anchor.UnixMicro() + k*every).UTC()
	return next, next.Year() <= 9999
}

var intervalUnits = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// parseInterval reads "30", "30s", "1h30m", "15 minutes", "every 15 minutes", "every minute".
func parseInterval(text string) (time.Duration, error) {
	rest := strings.ToLower(strings.TrimSpace(text))
	rest, every := strings.CutPrefix(rest, "every ")
	var sum time.Duration
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n := int64(1)
		switch {
		case digits > 0:
			var err error
			if n, err = strconv.ParseInt(rest[:digits], 10, 64); err != nil {
				return 0, badInterval()
			}
		case !every || sum > 0:
			return 0, badInterval()
		}
		rest = strings.TrimSpace(rest[digits:])
		letters := len(rest) - len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))
		word := rest[:letters]
		rest = rest[letters:]
		unit, ok := intervalUnits[word]
		if !ok && len(word) > 2 {
			unit, ok = intervalUnits[strings.TrimSuffix(word, "s")]
		}
		if word == "" && sum == 0 && rest == "" { // a bare number is seconds
			unit, ok = time.Second, true
		}
		if !ok || n < 0 || n > int64(maxInterval/unit) {
			return 0, badInterval()
		}
		sum += time.Duration(n) * unit
	}
	if sum < minInterval || sum > maxInterval {
		return 0, badInterval()
	}
	return sum, nil
}

func badInterval() error {
	return fault.Field("expression", "of an interval must be whole seconds, a duration or words, such as 30, 90s, 1h30m, 2d or "+
		"every 15 minutes, from 1 second to 366 days")
}
