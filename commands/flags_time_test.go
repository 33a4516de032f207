package commands

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestDurationsAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"0": 0, "0s": 0, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute,
		"250ms": 250 * time.Millisecond, "2d": 48 * time.Hour, "1d12h": 36 * time.Hour, "0d": 0, "106751d": 106751 * 24 * time.Hour} {
		if got, err := parseDuration(text); got != want || err != nil {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "d", "1.5d", "-1s", "-1d", "1d-1h", "1d+1h", "1h1d", "5 m", "1w", "106752d", "106751d24h", "99999999999d",
		"9999999h9999999h", "week", "1d2"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
	now := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{"1d12h": now.Add(-36 * time.Hour), "90s": now.Add(-90 * time.Second),
		"2026-01-01T00:00:00+01:00": time.Date(2025, 12, 31, 23, 0, 0, 0, time.UTC)} {
		if got, err := parseSince(text, now); !got.Equal(want) || err != nil {
			t.Errorf("--since %q is %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestDurationsAreWrittenShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{5 * time.Minute: "5m", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Second: "10s",
		70 * time.Second: "1m10s", 20 * time.Minute: "20m", 48 * time.Hour: "48h", 10 * time.Hour: "10h", time.Millisecond: "1ms", 0: "0s"} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}

// A flag that cannot be read is named as it was typed, with its value and the rule, and not in the words of Go's libraries.
func TestUnreadableFlags(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"notifications rules create n --group 1":      `--group: "1": write a duration with its unit, such as 30s, 5m, 12h or 2d`,
		"status --request-timeout soon":               `--request-timeout: "soon": write a duration with its unit`,
		"failures list --since yesterday":             `--since: "yesterday": write a duration back from now with its unit, such as 90s, 15m, 2h or 7d, or an RFC 3339`,
		"fires list --since 2027-06-01":               `--since: "2027-06-01": write a duration back`,
		"fires list --since -2h":                      `--since: "-2h": write a duration back`,
		"fires list --limit many":                     `--limit: "many": must be a whole number`,
		"fires list --state half":                     `--state: "half": must be one of buffered, `,
		"status --json=perhaps":                       `--json: "perhaps": must be true or false`,
		"schedules create n --args 7":                 `--args: "7": must be a JSON list`,
		"serve --schedules-grace 1":                   `schedules.grace: must be a duration with a unit, such as "60s" or "1h30m", got "1" (flag --schedules-grace)`,
		"commands issue submit-task --name n --eta 8": `--eta: "8": write an RFC 3339 time with its zone, such as 2027-06-01T08:00:00+02:00`,
		"commands issue schedule-fire --schedule-id s --task t --engine e --scheduled-for 8": `--scheduled-for: "8": write an RFC 3339 time`,
		"commands issue retry-task --engine e --task-id t --delay -5s":                       `--delay: "-5s": must not be negative`,
	} {
		var talk bytes.Buffer
		opts := newOptions(Stdio{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &talk, Env: []string{"SIGNALBOX_DATA_DIR=/nowhere",
			"SIGNALBOX_PROJECT=p"}}, Assets{})
		if code := opts.execute(t.Context(), strings.Fields(line)); code != ExitUsage || !strings.HasPrefix(talk.String(), "signalbox: "+want) {
			t.Errorf("%s: exit code %d, want %q: %s", line, code, want, &talk)
		}
	}
}

// All durations of the command line are read by the one kind of flag; the settings of serve have their own, the configuration's.
func TestDurationFlagsAreOfOneKind(t *testing.T) {
	t.Parallel()
	found := 0
	walk(newRootCommand(newOptions(Stdio{}, Assets{})), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			found++
			_, ours := f.Value.(*durationFlag)
			if _, setting := f.Value.(*settingFlag); !ours && !setting {
				t.Errorf("%s --%s: is a %T", cmd.CommandPath(), f.Name, f.Value)
			}
		})
	})
	if found < 15 {
		t.Errorf("%d duration flags found", found)
	}
}
