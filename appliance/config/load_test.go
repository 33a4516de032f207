package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// write puts text into a file of the test's own directory and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustLoad loads and expects no error.
func mustLoad(t *testing.T, opts LoadOptions) (*Config, *Origins, []Warning) {
	t.Helper()
	c, o, w, err := Load(opts)
	if err != nil {
		t.Fatalf("load: %s", err)
	}
	return c, o, w
}

// problems loads and returns the lines of the error, with the directory of file cut off.
func problems(t *testing.T, opts LoadOptions) []string {
	t.Helper()
	c, o, _, err := Load(opts)
	if err == nil {
		return nil
	}
	if c != nil || o != nil {
		t.Error("a configuration came with an error")
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error of type %T", err)
	}
	text := err.Error()
	if opts.File != "" {
		text = strings.ReplaceAll(text, filepath.Dir(opts.File)+"/", "")
	}
	return strings.Split(text, "\n")
}

func TestNothingSetGivesDefaults(t *testing.T) {
	c, o, w := mustLoad(t, LoadOptions{})
	if ch := Diff(Default(), c); len(ch.Reloadable)+len(ch.Restart) > 0 || len(w) > 0 {
		t.Errorf("changes %v, warnings %v", ch, w)
	}
	if got := o.Of("server.listen").String(); got != "default" {
		t.Errorf("origin %q", got)
	}
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults are invalid: %s", err)
	}
}

func TestPrecedence(t *testing.T) {
	file := write(t, "s.toml", "[agent]\n\ncommand_timeout = \"20s\"\n")
	z := "Z4J_COMMAND_TIMEOUT_SECONDS=30"
	s := "SIGNALBOX_AGENT_COMMAND_TIMEOUT=40s"
	for _, tc := range []struct {
		name   string
		opts   LoadOptions
		want   time.Duration
		origin string
		warns  int
	}{
		{"default", LoadOptions{}, time.Minute, "default", 0},
		{"file", LoadOptions{File: file}, 20 * time.Second, file + ":3", 0},
		{"file by variable", LoadOptions{Env: []string{"SIGNALBOX_CONFIG=" + file}}, 20 * time.Second, file + ":3", 0},
		{"z4j over file", LoadOptions{File: file, Env: []string{z}}, 30 * time.Second, "env Z4J_COMMAND_TIMEOUT_SECONDS", 0},
		{"own over z4j", LoadOptions{File: file, Env: []string{z, s}}, 40 * time.Second, "env SIGNALBOX_AGENT_COMMAND_TIMEOUT", 1},
		{"same value warns not", LoadOptions{Env: []string{"Z4J_COMMAND_TIMEOUT_SECONDS=40", s}}, 40 * time.Second,
			"env SIGNALBOX_AGENT_COMMAND_TIMEOUT", 0},
		{"flag over all", LoadOptions{File: file, Env: []string{s}, Flags: map[string]string{"agent.command_timeout": "50s"}},
			50 * time.Second, "flag --agent-command-timeout", 0},
		{"empty variable is not set", LoadOptions{Env: []string{"SIGNALBOX_AGENT_COMMAND_TIMEOUT="}}, time.Minute, "default", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, o, w := mustLoad(t, tc.opts)
			if got := c.Agent.CommandTimeout.Std(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if got := o.Of("agent.command_timeout").String(); got != tc.origin {
				t.Errorf("origin %q, want %q", got, tc.origin)
			}
			if len(w) != tc.warns {
				t.Errorf("warnings %v, want %d", w, tc.warns)
			}
		})
	}
}

func TestDifferingVariablesAreNamed(t *testing.T) {
	_, _, w := mustLoad(t, LoadOptions{Env: []string{"Z4J_EVENT_RETENTION_DAYS=5", "SIGNALBOX_AGENT_EVENT_RETENTION_DAYS=6"}})
	if len(w) != 1 {
		t.Fatalf("warnings %v", w)
	}
	want := "agent.event_retention_days: SIGNALBOX_AGENT_EVENT_RETENTION_DAYS wins over Z4J_EVENT_RETENTION_DAYS, and they differ"
	if w[0].String() != want {
		t.Errorf("got %q, want %q", w[0], want)
	}
}

// TestEveryKeyFromEverySource sets each key by each of its names and finds it set with the right origin.
func TestEveryKeyFromEverySource(t *testing.T) {
	for i, k := range Keys() {
		b := bind(Default())[i]
		text := otherValue(b)
		want := bind(Default())[i]
		if err := want.set(text); err != nil {
			t.Fatal(err)
		}
		check := func(name string, opts LoadOptions, origin string) {
			t.Helper()
			l := newLoader(opts.Env)
			if opts.File != "" {
				l.readFile(opts.File)
			}
			l.applyZ4J()
			l.applyEnv(nil)
			l.applyFlags(opts.Flags)
			if len(l.problems) > 0 {
				t.Errorf("%s by %s: %v", k.Path, name, l.problems)
			}
			if got := l.byPath[k.Path]; got.plain() != want.plain() {
				t.Errorf("%s by %s: got %s, want %s", k.Path, name, got.literal(), want.literal())
			}
			if got := l.origins.Of(k.Path).String(); got != origin {
				t.Errorf("%s by %s: origin %q, want %q", k.Path, name, got, origin)
			}
		}
		for _, env := range k.Env {
			check(env, LoadOptions{Env: []string{env + "=" + text}}, "env "+env)
			if k.Secret {
				env += "_FILE"
				check(env, LoadOptions{Env: []string{env + "=" + write(t, "secret", text+"\r\n")}}, "env "+env)
			}
		}
		for _, env := range k.Z4J {
			if k.Path == "server.listen" {
				continue
			}
			legacy := text
			if k.Kind == "duration" {
				legacy = strings.TrimSuffix(text, "s")
			}
			check(env, LoadOptions{Env: []string{env + "=" + legacy}}, "env "+env)
			if k.Secret {
				env += "_FILE"
				check(env, LoadOptions{Env: []string{env + "=" + write(t, "secret", text+"\n")}}, "env "+env)
			}
		}
		check("flag", LoadOptions{Flags: map[string]string{k.Path: text}}, "flag --"+k.Flag)
		literal := want.literal()
		if k.Secret {
			literal = `"` + text + `"`
			if k.Kind != "secret" {
				literal = "[" + literal + "]"
			}
		}
		file := write(t, "s.toml", "\n"+k.Path+" = "+literal+"\n")
		check("file", LoadOptions{File: file}, file+":2")
		if k.Secret {
			sec := write(t, "secret", text+"\n")
			check("flag file", LoadOptions{Flags: map[string]string{k.Path + "_file": sec}}, "flag --"+k.Flag+"-file")
			file := write(t, "s.toml", k.Path+"_file = '"+sec+"'\n")
			check("key file", LoadOptions{File: file}, file+":1")
		}
	}
}

func TestEveryProblemAtOnceWithItsPlace(t *testing.T) {
	file := write(t, "s.toml", strings.Join([]string{
		`data_dri = "x"`,
		`listen = "127.0.0.1:1"`,
		`[server]`,
		`listen = 7700`,
		`max_payload_size = "1 furlong"`,
		`agent_ip_allowlist = ["10.0.0.0/8", "nonsense", 5]`,
		`api_ip_allowlist = ["nonsense", "fe80::1%eth0"]`,
		`[agent]`,
		`command_timeot = "5s"`,
		`redispatch_window = 60`,
		`rate_limits = "yes"`,
		`longpoll_sessions = 1.5`,
		`redaction_extra_key_patterns = "x"`,
		`[log]`,
		`level = "loud"`,
		`format = 1`,
		`[stor]`,
		`readers = 2`,
		`[secret]`,
		`secret = 5`,
	}, "\n"))
	got := problems(t, LoadOptions{
		File: file,
		Env: []string{"SIGNALBOX_AGENT_HEALTH_SWEEP=10", "Z4J_WS_IDLE_TIMEOUT_SECONDS=5", "SIGNALBOX_AGENT_MAX_PAGESIZE=5",
			"SIGNALBOX_SERVER_BEHIND_PROXY=perhaps", "Z4J_EVENT_RETENTION_DAYS=many", "SIGNALBOX_TEST_X=1"},
		KnownEnv: []string{"SIGNALBOX_TEST_*"},
		Flags:    map[string]string{"store.reader": "2"},
	})
	want := []string{
		`data_dri: unknown key; did you mean data_dir? (s.toml:1)`,
		`listen: unknown key; did you mean server.listen? (s.toml:2)`,
		`agent.command_timeot: unknown key; did you mean agent.command_timeout? (s.toml:9)`,
		`stor: unknown key; did you mean store? (s.toml:17)`,
		`SIGNALBOX_AGENT_MAX_PAGESIZE: unknown variable; did you mean SIGNALBOX_AGENT_MAX_PAGE_SIZE?`,
		`store.reader: unknown setting; did you mean store.readers?`,
		`server.listen: must be a string, got an integer (s.toml:4)`,
		`server.behind_proxy: must be true or false, got "perhaps" (env SIGNALBOX_SERVER_BEHIND_PROXY)`,
		`server.agent_ip_allowlist: entry 3: must be a string, got an integer (s.toml:6)`,
		`server.api_ip_allowlist: entry 1: "nonsense" is neither an IP address nor a CIDR range; entry 2: "fe80::1%eth0" has a ` +
			`zone id, which an address range cannot have (s.toml:7)`,
		`server.max_payload_size: must be a size in bytes, such as 8192, "8KiB" or "32MiB", got "1 furlong" (s.toml:5)`,
		`log.level: must be one of trace, debug, info, warn, error, got "loud" (s.toml:15)`,
		`log.format: must be a string, got an integer (s.toml:16)`,
		`secret.secret: must be a string, got an integer (s.toml:20)`,
		`agent.redispatch_window: must be a duration string such as "60s", got an integer (s.toml:10)`,
		`agent.health_sweep: must be a duration with a unit, such as "60s" or "1h30m", got "10" (env SIGNALBOX_AGENT_HEALTH_SWEEP)`,
		`agent.ws_idle_timeout: must be 15s to 1h, got 5s (env Z4J_WS_IDLE_TIMEOUT_SECONDS)`,
		`agent.longpoll_sessions: must be an integer, got a float (s.toml:12)`,
		`agent.rate_limits: must be true or false, got a string (s.toml:11)`,
		`agent.event_retention_days: must be a whole number, got "many" (env Z4J_EVENT_RETENTION_DAYS)`,
		`agent.redaction_extra_key_patterns: must be an array of strings, got a string (s.toml:13)`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFileShapes(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"syntax error", "[server]\nlisten = \n", "s.toml:2:"},
		{"duplicate key", "data_dir='a'\ndata_dir='b'\n", "s.toml"},
		{"section as value", "agent = 5\n", "agent: must be a table, [agent], got an integer (s.toml:1)"},
		{"section as array", "[[agent]]\nx=1\n", "agent: must be a table, [agent], got an array (s.toml:1)"},
		{"key as table", "[server.listen]\nx=1\n", "server.listen: must be a string, got a table (s.toml:1)"},
		{"dotted name in quotes", "\"server.listen\" = 'a:1'\n", "server.listen: unknown key"},
		{"far from everything", "zzzzzzzzzzzzzzzzzzzzzzzzzzzz = 1\n", "zzzzzzzzzzzzzzzzzzzzzzzzzzzz: unknown key (s.toml:1)"},
		{"inline table", "server = {listen = 'x',\n}\n", "server.listen: must be host:port, got \"x\" (s.toml:1)"},
		{"table in an inline table", "server = {\n  drain_timeout = '1s',\n  tls = {x = 1}}\n", "server.tls: unknown key"},
		{"boolean for a string", "data_dir = true\n", "data_dir: must be a string, got a boolean (s.toml:1)"},
		{"token file", "[metrics]\n\nauth_token_file = '/nonexistent/file'\n", "metrics.auth_token: read the secret file: open /nonexistent/file"},
		{"date", "data_dir = 2020-01-01\n", "data_dir: must be a string, got a date or time (s.toml:1)"},
		{"huge integer", "agent.longpoll_sessions = 99999999999\n", "agent.longpoll_sessions: must be 1 to 1000000, got 99999999999"},
		{"float size", "server.max_payload_size = 1.5\n", "server.max_payload_size: must be a size such as"},
		{"secret file of wrong type", "[secret]\nsecret_file = 5\n", "secret.secret_file: must be a string, got an integer (s.toml:2)"},
		{"secret twice", "[secret]\nsecret = '" + strings.Repeat("x", 32) + "'\nsecret_file = 'f'\n",
			"secret.secret: secret.secret and secret.secret_file are both set; set only one (s.toml:3)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := problems(t, LoadOptions{File: write(t, "s.toml", tc.text)})
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("got %q, want one with %q", got, tc.want)
			}
		})
	}
	if got := problems(t, LoadOptions{File: filepath.Join(t.TempDir(), "none.toml")}); len(got) != 1 ||
		!strings.Contains(got[0], "none.toml: read the configuration file: ") {
		t.Errorf("missing file: %q", got)
	}
	big := write(t, "big.toml", strings.Repeat("#\n", maxConfigFile))
	if got := problems(t, LoadOptions{File: big}); len(got) != 1 || !strings.Contains(got[0], "larger than 256KiB") {
		t.Errorf("big file: %q", got)
	}
}

func TestSecretFileMistakes(t *testing.T) {
	good := write(t, "secret", strings.Repeat("x", 32)+"\n")
	for _, tc := range []struct {
		name string
		opts LoadOptions
		want string
	}{
		{"both forms", LoadOptions{Env: []string{"SIGNALBOX_SECRET=a", "SIGNALBOX_SECRET_FILE=" + good}},
			"secret.secret: SIGNALBOX_SECRET and SIGNALBOX_SECRET_FILE are both set; set only one (env SIGNALBOX_SECRET)"},
		{"both forms of z4j", LoadOptions{Env: []string{"Z4J_SECRET=a", "Z4J_SECRET_FILE=" + good}},
			"secret.secret: Z4J_SECRET and Z4J_SECRET_FILE are both set; set only one (env Z4J_SECRET)"},
		{"missing", LoadOptions{Env: []string{"Z4J_SECRET_FILE=/nonexistent/file"}}, "read the secret file: open /nonexistent/file"},
		{"empty", LoadOptions{Env: []string{"Z4J_SECRET_FILE=" + write(t, "e", "\n")}}, "is empty (env Z4J_SECRET_FILE)"},
		{"missing by flag", LoadOptions{Flags: map[string]string{"secret.secret_file": "/nonexistent/file"}},
			"(flag --secret-file)"},
		{"both forms by flag", LoadOptions{Flags: map[string]string{"secret.secret": strings.Repeat("x", 32), "secret.secret_file": good}},
			"secret.secret: --secret and --secret-file are both set; set only one (flag --secret)"},
		{"file of no secret", LoadOptions{Flags: map[string]string{"server.listen_file": "x"}},
			"server.listen_file: unknown setting; did you mean server.listen?"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := problems(t, tc.opts)
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("got %q, want one with %q", got, tc.want)
			}
		})
	}
	c, _, _ := mustLoad(t, LoadOptions{Env: []string{
		"Z4J_PREVIOUS_SECRETS_FILE=" + write(t, "p", strings.Repeat("a", 32)+"\n"+strings.Repeat("b", 32)+"\n")}})
	if p := c.Secret.PreviousSecrets; len(p) != 2 || p[1].Reveal() != strings.Repeat("b", 32) {
		t.Errorf("previous secrets: %d", len(p))
	}
}

func TestInitNeverOverwrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signalbox.toml")
	if err := Init(path, RenderExample()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, error %v", info.Mode(), err)
	}
	mustLoad(t, LoadOptions{File: path})
	if err := Init(path, []byte("x")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want fs.ErrExist", err)
	}
	if got, _ := os.ReadFile(path); string(got) != string(RenderExample()) {
		t.Error("the file was changed")
	}
}
