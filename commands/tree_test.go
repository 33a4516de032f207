package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/config"
	"signalbox/appliance/fault"
)

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

func TestEveryCommandIsDocumented(t *testing.T) {
	t.Parallel()
	leaves := 0
	walk(newRootCommand(newOptions(Stdio{}, Assets{})), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short must be a phrase without a full stop, got %q", path, cmd.Short)
		}
		if cmd.Example == "" {
			t.Errorf("%s: has no Example", path)
		}
		if cmd.RunE == nil || cmd.Run != nil {
			t.Errorf("%s: must use RunE", path)
		}
		if cmd.HasSubCommands() {
			return
		}
		leaves++
		if cmd.InheritedFlags().Lookup("json") == nil {
			t.Errorf("%s: has no --json", path)
		}
		for _, line := range strings.Split(cmd.Example, "\n") {
			if strings.Contains(line, "signalbox ") && !strings.Contains(line, strings.TrimPrefix(path, "signalbox ")) &&
				cmd.Parent().HasParent() && !strings.Contains(cmd.Example, path) {
				t.Errorf("%s: example shows another command: %s", path, line)
			}
		}
	})
	if leaves < 50 {
		t.Errorf("found %d leaf commands, which is too few to be the whole tree", leaves)
	}
}

// Examples must parse: a flag that was renamed has to be renamed there too.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	words := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	walk(newRootCommand(newOptions(Stdio{}, Assets{})), func(cmd *cobra.Command) {
		text := strings.ReplaceAll(cmd.Example, "\\\n", " ")
		for _, line := range strings.Split(text, "\n") {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "   #")
			line, _, _ = strings.Cut(line, " > ")
			line, _, _ = strings.Cut(line, " < ")
			line, _, _ = strings.Cut(line, " | ")
			rest, ok := strings.CutPrefix(line, "signalbox ")
			if !ok || strings.HasPrefix(rest, "serve") || strings.HasPrefix(rest, "bench") {
				continue
			}
			var args []string
			for _, w := range words.FindAllString(rest, -1) {
				args = append(args, strings.Trim(w, `'"`))
			}
			root := newRootCommand(newOptions(Stdio{}, Assets{}))
			target, left, err := root.Find(args)
			if err == nil {
				err = target.ParseFlags(left)
			}
			if err == nil {
				err = target.ValidateArgs(target.Flags().Args())
			}
			if err != nil && !strings.Contains(line, "…") {
				t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
			}
		}
	})
}

func TestEveryFaultHasAnExitCode(t *testing.T) {
	t.Parallel()
	want := map[fault.Code]int{
		fault.Internal: ExitFailed, fault.Invalid: ExitUsage, fault.Unauthenticated: ExitAuth, fault.Forbidden: ExitAuth,
		fault.IPDenied: ExitAuth, fault.ProjectInactive: ExitAuth, fault.NotFound: ExitNotFound, fault.Conflict: ExitConflict,
		fault.Stale: ExitConflict, fault.TooLarge: ExitUsage, fault.RateLimited: ExitDegraded, fault.Incompatible: ExitFailed,
		fault.AdapterError: ExitFailed, fault.AgentOffline: ExitDegraded, fault.Timeout: ExitTimeout,
		fault.Unavailable: ExitDegraded, fault.Canceled: ExitFailed, fault.OutcomeUnknown: ExitFailed,
		fault.Corrupt: ExitFailed, fault.Gone: ExitNotFound,
	}
	for _, code := range fault.All() {
		err := fmt.Errorf("do it: %w", fault.New(code, "no"))
		if got, ok := want[code]; !ok || exitCode(err) != got {
			t.Errorf("%s exits with %d, want %d (listed: %t)", code, exitCode(err), got, ok)
		}
	}
}

func TestExitCodesOfOwnErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err  error
		want int
	}{
		{nil, ExitOK},
		{errors.New("anything"), ExitFailed},
		{usagef("flag"), ExitUsage},
		{&usageError{err: fault.New(fault.NotFound, "no")}, ExitUsage},
		{fmt.Errorf("ask: %w", &unreachableError{err: errors.New("refused")}), ExitUnreachable},
		{exitf(ExitTimeout, "late"), ExitTimeout},
		{context.Canceled, ExitFailed},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v exits with %d, want %d", tt.err, got, tt.want)
		}
	}
}

// run executes one command line against a fresh fake and returns what it wrote.
type run struct {
	fake *fakeServer
	dir  string
	url  string
}

func newRun(t *testing.T) *run {
	t.Helper()
	dir := shortDir(t)
	f := newFakeServer()
	return &run{fake: f, dir: dir, url: f.listen(t, dir)}
}

func (r *run) options(in string, terminal bool) (opts *options, out, talk *bytes.Buffer) {
	out, talk = &bytes.Buffer{}, &bytes.Buffer{}
	opts = newOptions(Stdio{In: strings.NewReader(in), Out: out, Err: talk, IsTerminal: terminal, InIsTerminal: terminal,
		Env: []string{"SIGNALBOX_DATA_DIR=" + r.dir}}, Assets{})
	opts.retryDelay = time.Millisecond
	return opts, out, talk
}

func TestConfirmationOnATerminal(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]int{"y\n": ExitOK, "YES\n": ExitOK, "n\n": ExitFailed, "\n": ExitFailed, "": ExitFailed} {
		r := newRun(t)
		opts, _, talk := r.options(answer, true)
		if got := opts.execute(t.Context(), []string{"projects", "archive", "default"}); got != want {
			t.Errorf("answer %q: exit code %d, want %d: %s", answer, got, want, talk)
		}
		if active := r.fake.projects[0]["is_active"] == true; active != (want == ExitFailed) {
			t.Errorf("answer %q: project active = %t", answer, active)
		}
	}
}

func TestHealthcheckFallsBackToTheAddressFile(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	elsewhere := t.TempDir()
	if err := os.WriteFile(filepath.Join(elsewhere, "addresses.json"), []byte(`{"http":"`+r.url+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, out, talk := r.options("", false)
	if got := opts.execute(t.Context(), []string{"healthcheck", "--data-dir", elsewhere}); got != ExitOK {
		t.Fatalf("exit code %d: %s%s", got, out, talk)
	}
}

func TestCompletionAsksTheServer(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	opts, _, _ := r.options("", false)
	if got := opts.execute(t.Context(), []string{"agents", "mint", "web-1"}); got != ExitOK {
		t.Fatalf("mint: exit code %d", got)
	}
	for _, args := range [][]string{{"roomagents", "register", "build-bot"}, {"rooms", "create", "plaza", "--description", "builds"}} {
		if opts, _, talk := r.options("", false); opts.execute(t.Context(), args) != ExitOK {
			t.Fatalf("%v: %s", args, talk)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"__complete", "rooms", "say", "p"}, "plaza\tbuilds"},
		{[]string{"__complete", "rooms", "invite", "plaza", "b"}, "build-bot\tno_session"},
		{[]string{"__complete", "people", "show", "op"}, "operator@localhost\tOperator"},
		{[]string{"__complete", "agents", "show", "w"}, "web-1\tunknown"},
		{[]string{"__complete", "commands", "list", "--agent", ""}, "web-1\tunknown"},
		{[]string{"__complete", "agents", "list", "--project", "d"}, "default\tDefault"},
		{[]string{"__complete", "projects", "archive", ""}, "default\tDefault"},
	} {
		opts, out, talk := r.options("", false)
		if got := opts.execute(t.Context(), tt.args); got != ExitOK || !strings.Contains(out.String(), tt.want+"\n") {
			t.Errorf("%v: exit code %d, got %q, want %q in it: %s", tt.args, got, out, tt.want, talk)
		}
	}
}

func TestTimesAreRelativeOnATerminalOnly(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		terminal bool
		after    time.Duration
		want     string
	}{
		{false, time.Hour, "2030-01-02T03:04:05.000000Z"},
		{true, 0, "now"},
		{true, 5 * time.Second, "5s ago"},
		{true, 3*time.Minute + 4*time.Second, "3m04s ago"},
		{true, 26 * time.Hour, "26h00m ago"},
		{true, 80 * time.Hour, "3d ago"},
		{true, -90 * time.Second, "in 1m30s"},
	} {
		opts := newOptions(Stdio{IsTerminal: tt.terminal}, Assets{})
		opts.now = func() time.Time { return at.Add(tt.after) }
		if got := opts.out.when(&at); got != tt.want {
			t.Errorf("terminal %t, %s later: %q, want %q", tt.terminal, tt.after, got, tt.want)
		}
	}
	if got := newOptions(Stdio{}, Assets{}).out.when(nil); got != "-" {
		t.Errorf("no time is %q, want -", got)
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 3, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"15m": "2030-03-10T11:45:00Z", "2h": "2030-03-10T10:00:00Z", "7d": "2030-03-03T12:00:00Z",
		"2029-01-01T00:00:00+02:00": "2028-12-31T22:00:00Z",
	} {
		got, err := parseSince(text, at)
		if err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %v %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"soon", "-5m", "2029-01-01", "d", "-1d"} {
		if got, err := parseSince(text, at); err == nil {
			t.Errorf("%q is taken as %s", text, got)
		}
	}
}

func TestTerminalControlNeverReachesATable(t *testing.T) {
	t.Parallel()
	if got := oneLine("a\x1b[31mb\nc\td\u009b"); got != "a?[31mb c d?" {
		t.Errorf("got %q", got)
	}
	if got := oneLine("cod\u202egpj.exe\u2066\u2028x"); got != "cod?gpj.exe? x" {
		t.Errorf("got %q", got)
	}
	if got := printable("one\x07\r\ntwo"); got != "one?\ntwo" {
		t.Errorf("got %q", got)
	}
}

// What servers and peers word reaches stderr as text, too: errors, notices and questions.
func TestTerminalControlNeverReachesStderr(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;title\a\u009b31m"
	var said strings.Builder
	o := newOptions(Stdio{In: strings.NewReader("y\n"), Out: io.Discard, Err: &said, InIsTerminal: true}, Assets{})
	o.report(nil, errors.New("one\n"+evil))
	o.out.say("notice %s", evil)
	if err := (&confirmation{}).ask(o, "End "+evil+"?"); err != nil {
		t.Error(err)
	}
	want := "signalbox: one\n?]0;title??31m\nnotice ?]0;title??31m\nEnd ?]0;title??31m? [y/N] "
	if said.String() != want {
		t.Errorf("%q, want %q", said.String(), want)
	}
}

func TestShellQuote(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"abc=": "abc=", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'"} {
		if got := shellQuote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestAddressURL(t *testing.T) {
	t.Parallel()
	for _, tt := range [][3]string{
		{"http", "127.0.0.1:7700", "http://127.0.0.1:7700"},
		{"https", "0.0.0.0:7700", "https://127.0.0.1:7700"},
		{"http", "[::]:80", "http://127.0.0.1:80"},
		{"http", "http://x:1/", "http://x:1"},
		{"http", "nonsense", ""},
	} {
		if got := addressURL(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%s %s: %q, want %q", tt[0], tt[1], got, tt[2])
		}
	}
}

// The variables of clients must not be unknown settings to serve.
func TestClientVariablesAreNoSettings(t *testing.T) {
	t.Parallel()
	var env []string
	for _, name := range clientEnv {
		env = append(env, name+"=x")
	}
	opts := newOptions(Stdio{Env: env}, Assets{})
	if _, _, _, err := opts.loadConfig(nil); err != nil {
		t.Errorf("loading the configuration: %v", err)
	}
	for _, key := range config.Keys() {
		for _, name := range append(key.Env, key.Z4J...) {
			for _, client := range clientEnv {
				if name == client {
					t.Errorf("%s is a setting too", name)
				}
			}
		}
	}
}

// Flags of the settings must not hide global ones: config show --json has to mean the output.
func TestSettingFlagsDoNotHideGlobalFlags(t *testing.T) {
	t.Parallel()
	root := newRootCommand(newOptions(Stdio{}, Assets{}))
	for _, key := range config.Keys() {
		if key.Path != "data_dir" && root.PersistentFlags().Lookup(key.Flag) != nil {
			t.Errorf("--%s of %s hides a global flag", key.Flag, key.Path)
		}
	}
}
