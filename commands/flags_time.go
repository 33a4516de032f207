package commands

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// errDuration is what is said of every duration that cannot be read.
var errDuration = errors.New("write a duration with its unit, such as 30s, 5m, 12h or 2d")

// parseDuration reads a duration that is not negative: Go's, with whole days in front if wanted ("2d", "1d12h"). A day has 24
// hours.
func parseDuration(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	sum, rest := time.Duration(0), text
	if before, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(before, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/day) {
			return 0, errDuration
		}
		if sum, rest = time.Duration(n)*day, after; rest == "" {
			return sum, nil
		}
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil:
		return 0, errDuration
	case d < 0 || strings.ContainsAny(rest, "+-"):
		return 0, errors.New("must not be negative")
	case sum > math.MaxInt64-d:
		return 0, errDuration
	}
	return sum + d, nil
}

// durationFlag is a flag whose value is a duration.
type durationFlag struct{ into *time.Duration }

// durationVar defines a duration flag. Every one of the command line is made by it, so that all take and refuse the same.
func durationVar(fs *pflag.FlagSet, into *time.Duration, name string, value time.Duration, usage string) {
	*into = value
	fs.Var(&durationFlag{into}, name, usage)
}

func (f *durationFlag) String() string {
	if f.into == nil || *f.into == 0 {
		return "0" // not shown as a default
	}
	return shortDuration(*f.into)
}

func (f *durationFlag) Type() string { return "duration" }

func (f *durationFlag) Set(text string) error {
	d, err := parseDuration(text)
	if err == nil {
		*f.into = d
	}
	return err
}

// shortDuration writes a duration without units that are 0: 5m, not 5m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// parseTime reads the value of a flag that is one moment.
func parseTime(flag, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, usagef("%s: %q: write an RFC 3339 time with its zone, such as 2027-06-01T08:00:00+02:00 or 2027-06-01T06:00:00Z", flag, text)
	}
	return t, nil
}

// parseSince reads a duration before now or an RFC 3339 time.
func parseSince(text string, now time.Time) (time.Time, error) {
	if d, err := parseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	return time.Time{}, usagef("--since: %q: write a duration back from now with its unit, such as 90s, 15m, 2h or 7d, or an RFC 3339 time "+
		"with its zone, such as 2027-06-01T06:00:00Z", text)
}

// wordFlagError says which flag cannot be read, with which value and why, without Go's words for it.
func wordFlagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag, why := invalid.GetFlag(), invalid.Unwrap()
	switch flag.Value.Type() {
	case "int", "int64", "uint64":
		why = errors.New("must be a whole number")
	case "float64":
		why = errors.New("must be a number")
	case "bool":
		why = errors.New("must be true or false")
	}
	return fmt.Errorf("--%s: %q: %w", flag.Name, invalid.GetValue(), why)
}
