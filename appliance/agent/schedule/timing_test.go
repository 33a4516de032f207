package schedule_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
)

// slotsOf lists the slots in (from, to], at most 200.
func slotsOf(t *testing.T, kind schedule.Kind, expression, zone string, from, to time.Time) (out []time.Time) {
	t.Helper()
	timing, err := schedule.NewTiming(kind, expression, zone, from)
	if err != nil {
		t.Fatalf("%s %q: %v", kind, expression, err)
	}
	for at := from; len(out) < 200; {
		next, ok := timing.Next(at)
		if !ok || next.After(to) {
			break
		}
		if !next.After(at) {
			t.Fatalf("%q: slot %v after %v", expression, next, at)
		}
		out = append(out, next)
		at = next
	}
	return out
}

// TestDaysOnWhichClocksChange is the table of docs/schedules.md, slot by slot, in local time with the offset. Dots stand
// for the slots of the rest of the day, which are as on any other.
func TestDaysOnWhichClocksChange(t *testing.T) {
	table := []struct{ zone, day, expression, want string }{
		{"Europe/Berlin", "2027-03-28", "30 1 * * *", "01:30+01"},
		{"Europe/Berlin", "2027-03-28", "30 2 * * *", "03:00+02"},
		{"Europe/Berlin", "2027-03-28", "0 * * * *", "00:00+01 01:00+01 03:00+02 04:00+02 …"},
		{"Europe/Berlin", "2027-03-28", "*/30 * * * *", "00:00+01 00:30+01 01:00+01 01:30+01 03:00+02 03:30+02 …"},
		{"Europe/Berlin", "2027-03-28", "*/30 2 * * *", "03:00+02"},
		{"Europe/Berlin", "2027-03-28", "0 2,3 * * *", "03:00+02"},

		{"Europe/Berlin", "2027-10-31", "30 1 * * *", "01:30+02"},
		{"Europe/Berlin", "2027-10-31", "30 2 * * *", "02:30+02"},
		{"Europe/Berlin", "2027-10-31", "0 * * * *", "00:00+02 01:00+02 02:00+02 02:00+01 03:00+01 04:00+01 …"},
		{"Europe/Berlin", "2027-10-31", "*/30 * * * *", "00:00+02 00:30+02 01:00+02 01:30+02 02:00+02 02:30+02 02:00+01 02:30+01 03:00+01 …"},
		{"Europe/Berlin", "2027-10-31", "*/30 2 * * *", "02:00+02 02:30+02"},
		{"Europe/Berlin", "2027-10-31", "0 2,3 * * *", "02:00+02 03:00+01"},

		{"America/New_York", "2027-03-14", "30 1 * * *", "01:30-05"},
		{"America/New_York", "2027-03-14", "30 2 * * *", "03:00-04"},
		{"America/New_York", "2027-03-14", "0 * * * *", "00:00-05 01:00-05 03:00-04 04:00-04 …"},
		{"America/New_York", "2027-03-14", "*/30 * * * *", "00:00-05 00:30-05 01:00-05 01:30-05 03:00-04 03:30-04 …"},
		{"America/New_York", "2027-03-14", "*/30 2 * * *", "03:00-04"},
		{"America/New_York", "2027-03-14", "0 2,3 * * *", "03:00-04"},

		{"America/New_York", "2027-11-07", "30 1 * * *", "01:30-04"},
		{"America/New_York", "2027-11-07", "30 2 * * *", "02:30-05"},
		{"America/New_York", "2027-11-07", "0 * * * *", "00:00-04 01:00-04 01:00-05 02:00-05 03:00-05 …"},
		{"America/New_York", "2027-11-07", "*/30 * * * *", "00:00-04 00:30-04 01:00-04 01:30-04 01:00-05 01:30-05 02:00-05 …"},
		{"America/New_York", "2027-11-07", "*/30 1 * * *", "01:00-04 01:30-04"},
		{"America/New_York", "2027-11-07", "0 1,2 * * *", "01:00-04 02:00-05"},
	}
	docs, err := os.ReadFile("../../../docs/schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table {
		loc, err := time.LoadLocation(row.zone)
		if err != nil {
			t.Fatal(err)
		}
		day, err := time.ParseInLocation("2006-01-02", row.day, loc)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, slot := range slotsOf(t, schedule.Cron, row.expression, row.zone, day.Add(-time.Second), day.AddDate(0, 0, 1).Add(-time.Second)) {
			got = append(got, slot.In(loc).Format("15:04-07"))
		}
		want, more := strings.CutSuffix(row.want, " …")
		all := strings.Join(got, " ")
		if more && !strings.HasPrefix(all, want+" ") || !more && all != want {
			t.Errorf("%s %s %q:\n got %s\nwant %s", row.zone, row.day, row.expression, all, row.want)
		}
		line := "| " + row.zone + " | " + row.day + " | `" + row.expression + "` | " + strings.ReplaceAll(row.want, "-", "−") + " |"
		if !strings.Contains(string(docs), line) {
			t.Errorf("docs/schedules.md lacks the line\n%s", line)
		}
	}
}

// Every hour is a slot of the hourly schedules, and every day has one slot of a fixed time, through two years of changes
// and in zones with odd ones.
func TestEveryHourAndEveryDayHasItsSlot(t *testing.T) {
	from := time.Date(2026, 12, 31, 23, 0, 0, 0, time.UTC)
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo",
		"Africa/Casablanca", "Pacific/Apia"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		hourly, err := schedule.NewTiming(schedule.Cron, "@hourly", zone, from)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for at, ok := hourly.Next(from); ok && at.Year() < 2029; at, ok = hourly.Next(at) {
			n++
		}
		if want := 731 * 24; n < want-2 || n > want+2 { // Lord Howe changes by half an hour
			t.Errorf("%s: %d hourly slots in two years, want %d", zone, n, want)
		}
		for _, fixed := range []string{"30 1 * * *", "30 2 * * *", "0 0 * * *", "59 23 * * *"} {
			daily, err := schedule.NewTiming(schedule.Cron, fixed, zone, from)
			if err != nil {
				t.Fatal(err)
			}
			at, days := from, map[string]int{}
			for range 730 {
				next, ok := daily.Next(at)
				if !ok || len(days) > 0 && next.Sub(at) > 26*time.Hour {
					t.Fatalf("%s %q: slot %v after %v", zone, fixed, next, at)
				}
				days[next.In(loc).Format(time.DateOnly)]++
				at = next
			}
			if len(days) != 730 {
				t.Errorf("%s %q: slots on %d days of 730", zone, fixed, len(days))
			}
		}
	}
}

func TestTimingFromInsideTheRepeatedHour(t *testing.T) {
	second := time.Date(2027, 10, 31, 1, 15, 0, 0, time.UTC) // 02:15 in Berlin, the second time
	for expression, want := range map[string]string{
		"30 2 * * *":     "2027-11-01T01:30:00Z", // it was due in the first pass
		"30 * * * *":     "2027-10-31T01:30:00Z",
		"0 3 * * *":      "2027-10-31T02:00:00Z",
		"* * 2 * * *":    "2027-11-01T01:00:00Z",
		"*/10 2-3 * * *": "2027-10-31T02:00:00Z",
	} {
		timing, err := schedule.NewTiming(schedule.Cron, expression, "Europe/Berlin", second)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := timing.Next(second)
		if !ok || got.Format(time.RFC3339) != want {
			t.Errorf("%q: %v, want %s", expression, got, want)
		}
	}
}

func TestCronForms(t *testing.T) {
	from := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC) // a Friday
	for expression, want := range map[string]string{
		"*/15 * * * *":     "2027-01-01T00:15:00Z",
		"10 */15 * * * *":  "2027-01-01T00:00:10Z",
		"@daily":           "2027-01-02T00:00:00Z",
		"@Weekly":          "2027-01-03T00:00:00Z",
		"0 9 * * THU":      "2027-01-07T09:00:00Z",
		"0 9 * * mon-wed":  "2027-01-04T09:00:00Z",
		"0 0 13 * 5":       "2027-01-08T00:00:00Z", // the 13th or a Friday, as crontab has it
		"0 0 * * 7":        "2027-01-03T00:00:00Z",
		"0 0 29 2 *":       "2028-02-29T00:00:00Z",
		"0 0 1 MAR *":      "2027-03-01T00:00:00Z",
		"  5   4 * * *   ": "2027-01-01T04:05:00Z",
	} {
		if got := slotsOf(t, schedule.Cron, expression, "UTC", from, from.AddDate(2, 0, 0)); len(got) == 0 || got[0].Format(time.RFC3339) != want {
			t.Errorf("%q: %v, want %s first", expression, got[:min(1, len(got))], want)
		}
	}
	for _, bad := range []string{"", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "@every 5m", "@reboot", "TZ=UTC * * * * *",
		"a b c d e", "H * * * *", "*/0 * * * *"} {
		if _, err := schedule.NewTiming(schedule.Cron, bad, "UTC", from); !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != "expression" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, never := range []string{"0 0 30 2 *", "0 0 31 4,6,9,11 *"} {
		if got := slotsOf(t, schedule.Cron, never, "UTC", from, from.AddDate(100, 0, 0)); len(got) != 0 {
			t.Errorf("%q has slots: %v", never, got)
		}
	}
}

func TestIntervals(t *testing.T) {
	anchor := time.Date(2027, 3, 28, 0, 59, 30, 0, time.UTC)
	for expression, want := range map[string]time.Duration{
		"30": 30 * time.Second, "30s": 30 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour,
		"every 15 minutes": 15 * time.Minute, "15 minutes": 15 * time.Minute, "every minute": time.Minute, "Every 2 Hours": 2 * time.Hour,
		"1 day 6 hours": 30 * time.Hour, "every week": 168 * time.Hour, "every 10": 10 * time.Second,
	} {
		timing, err := schedule.NewTiming(schedule.Interval, expression, "Europe/Berlin", anchor)
		if err != nil {
			t.Errorf("%q: %v", expression, err)
			continue
		}
		for after, k := range map[time.Time]time.Duration{anchor.Add(-want): 0, anchor.Add(-want - 1): -1, anchor: 1, anchor.Add(want - 1): 1, anchor.Add(want): 2,
			anchor.Add(1000*want + 1): 1001} {
			if got, ok := timing.Next(after); !ok || !got.Equal(anchor.Add(k*want)) {
				t.Errorf("%q after %v: %v, want %v", expression, after, got, anchor.Add(k*want))
			}
		}
	}
	for _, bad := range []string{"", "0", "-5", "1.5", "0s", "500ms", "every", "minute", "367d", "5 parsecs", "5m5", "99999999999999999999", "every every 5m"} {
		if _, err := schedule.NewTiming(schedule.Interval, bad, "UTC", anchor); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestClockedAndRefusedKinds(t *testing.T) {
	from := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for expression, want := range map[string]string{
		"2027-06-01T08:00:00+02:00": "2027-06-01T06:00:00Z",
		"2027-06-01T08:00:00Z":      "2027-06-01T08:00:00Z",
		"2027-06-01T08:00":          "2027-06-01T06:00:00Z",
		"2027-06-01 08:00:01":       "2027-06-01T06:00:01Z",
		"2027-03-28T02:30":          "2027-03-28T01:00:00Z", // skipped: when the clocks change
		"2027-10-31T02:30":          "2027-10-31T00:30:00Z", // twice: the first time
	} {
		got := slotsOf(t, schedule.Clocked, expression, "Europe/Berlin", from, from.AddDate(10, 0, 0))
		if len(got) != 1 || got[0].Format(time.RFC3339) != want {
			t.Errorf("%q: %v, want %s once", expression, got, want)
		}
	}
	for _, c := range []struct {
		kind             schedule.Kind
		expression, zone string
		field            string
	}{
		{schedule.Clocked, "tomorrow", "UTC", "expression"}, {schedule.Clocked, "1969-12-31T00:00:00Z", "UTC", "expression"},
		{schedule.Solar, "sunset,52,13", "UTC", "kind"}, {"weekly", "* * * * *", "UTC", "kind"},
		{schedule.Cron, "* * * * *", "", "timezone"}, {schedule.Cron, "* * * * *", "Local", "timezone"},
		{schedule.Cron, "* * * * *", "Mars/Olympus", "timezone"}, {schedule.Cron, "* * * * *", "../etc/passwd", "timezone"},
	} {
		_, err := schedule.NewTiming(c.kind, c.expression, c.zone, from)
		if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != c.field {
			t.Errorf("%s %q %q: %v, want %s refused", c.kind, c.expression, c.zone, err, c.field)
		}
	}
}

func FuzzTiming(f *testing.F) {
	for _, s := range []string{"*/5 * * * *", "@hourly", "every 5 minutes", "2027-03-28T02:30", "0 0 30 2 *", "0 0 29 2 1"} {
		f.Add(s, "Europe/Berlin", int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, expression, zone string, at int64) {
		after := time.Unix(at%(200*365*86400), 0).UTC()
		for _, kind := range []schedule.Kind{schedule.Cron, schedule.Interval, schedule.Clocked} {
			timing, err := schedule.NewTiming(kind, expression, zone, after)
			if err != nil {
				if !fault.Is(err, fault.Invalid) {
					t.Fatalf("%s %q %q: %v", kind, expression, zone, err)
				}
				continue
			}
			if next, ok := timing.Next(after); ok && !next.After(after) {
				t.Fatalf("%s %q %q: %v is not after %v", kind, expression, zone, next, after)
			}
		}
	})
}

// TestCronRefusals: a wrong number of fields and a wrong field are told apart.
func TestCronRefusals(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"* * * *":              "must have the five fields",
		"* * * * * * *":        "must have the five fields",
		"@every 5s":            "must have the five fields",
		"TZ=UTC * * * * *":     "must have the five fields",
		"61 * * * *":           "minutes are 0-59",
		"0 1 l * *":            "days of the month 1-31",
		"0 1 * * mon#1":        "days of the week 0-7",
		"60 0 * * * *":         "the first is seconds",
		"@reboot":              "@hourly",
		"every day at 5 in am": "a field that crontab does not know",
	} {
		_, err := schedule.NewTiming(schedule.Cron, expression, "UTC", time.Unix(0, 0))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", expression, err, want)
		}
	}
}
