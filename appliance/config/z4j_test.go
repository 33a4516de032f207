package config

import (
	"slices"
	"strings"
	"testing"
)

func TestBindHostAndPort(t *testing.T) {
	file := write(t, "s.toml", "[server]\nlisten = \"127.0.0.2:8000\"\n")
	for _, tc := range []struct {
		name, file   string
		env          []string
		want, origin string
	}{
		{"both", "", []string{"Z4J_BIND_HOST=::1", "Z4J_BIND_PORT=80"}, "[::1]:80", "env Z4J_BIND_HOST, Z4J_BIND_PORT"},
		{"bracketed", "", []string{"Z4J_BIND_HOST=[::1]", "Z4J_BIND_PORT=80"}, "[::1]:80", "env Z4J_BIND_HOST, Z4J_BIND_PORT"},
		{"host", "", []string{"Z4J_BIND_HOST=localhost"}, "localhost:7700", "env Z4J_BIND_HOST"},
		{"port over file", file, []string{"Z4J_BIND_PORT=80"}, "127.0.0.2:80", "env Z4J_BIND_PORT"},
		{"own variable wins", file, []string{"Z4J_BIND_PORT=80", "SIGNALBOX_LISTEN=127.0.0.1:0"}, "127.0.0.1:0", "env SIGNALBOX_LISTEN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, o, _ := mustLoad(t, LoadOptions{File: tc.file, Env: tc.env})
			if got := c.Server.Listen; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if got := o.Of("server.listen").String(); got != tc.origin {
				t.Errorf("origin %s, want %s", got, tc.origin)
			}
		})
	}
	got := problems(t, LoadOptions{Env: []string{"Z4J_BIND_HOST=0.0.0.0"}})
	if len(got) != 1 || got[0] != openListen("0.0.0.0:7700")+" (env Z4J_BIND_HOST)" {
		t.Errorf("got %q", got)
	}
	broken := write(t, "s.toml", "server.listen = 'nonsense'\n")
	c, _, _ := mustLoad(t, LoadOptions{File: broken, Env: []string{"Z4J_BIND_PORT=81"}})
	if c.Server.Listen != "127.0.0.1:81" {
		t.Errorf("got %s", c.Server.Listen)
	}
}

func TestZ4JVariablesWithoutKey(t *testing.T) {
	for _, tc := range []struct{ env, warning, problem string }{
		{"Z4J_REGISTRY_BACKEND=local", "", ""},
		{"Z4J_REGISTRY_BACKEND=postgres_notify", "Z4J_REGISTRY_BACKEND: postgres_notify has no effect: one process holds every session", ""},
		{"Z4J_REGISTRY_BACKEND=redis", "", `Z4J_REGISTRY_BACKEND: must be local or postgres_notify, got "redis"`},
		{"Z4J_RATELIMIT_ENABLED=false", "Z4J_RATELIMIT_ENABLED: is accepted and has no effect; use agent.rate_limits and the limits beside it", ""},
		{"Z4J_PENDING_FIRES_RETENTION_DAYS=7", "Z4J_PENDING_FIRES_RETENTION_DAYS: is accepted but not used yet", ""},
		{"Z4J_PENDING_FIRES_RETENTION_DAYS=0", "", `Z4J_PENDING_FIRES_RETENTION_DAYS: must be a whole number from 1 to 365, got "0"`},
		{"Z4J_PENDING_FIRES_REPLAY_INTERVAL_SECONDS=301", "", `must be a whole number from 1 to 300, got "301"`},
		{"Z4J_SCHEDULE_FIRES_RETENTION_DAYS=1.5", "", `must be a whole number from 1 to 3650, got "1.5"`},
		{"Z4J_SCHEDULE_CIRCUIT_BREAKER_THRESHOLD=0", "Z4J_SCHEDULE_CIRCUIT_BREAKER_THRESHOLD: is accepted but not used yet", ""},
		{"Z4J_SCHEDULE_CIRCUIT_BREAKER_INTERVAL_SECONDS=4", "", `from 5 to 3600, got "4"`},
		{"Z4J_BULK_RETRY_SCAN_SECONDS=0.1", "", ""},
		{"Z4J_BULK_RETRY_SCAN_SECONDS=NaN", "", `agent.bulk_retry_scan: must be a number of seconds, got "NaN" (env Z4J_BULK_RETRY_SCAN_SECONDS)`},
		{"Z4J_BULK_RETRY_MAX_IN_FLIGHT=257", "", `agent.bulk_retry_max_in_flight: must be 1 to 256, got 257`},
		{"Z4J_BULK_RETRY_PARENT_TIMEOUT_SECONDS=900", "", ""},
		{"Z4J_BULK_RETRY_SCAN_BATCH=64", "", ""},
		{"Z4J_BRAIN_URL=http://x", "", ""},
		{"Z4J_BUFFER_MAX_EVENTS=5", "", ""},
		{"Z4J_COMAND_TIMEOUT_SECONDS=5", "Z4J_COMAND_TIMEOUT_SECONDS: is not a setting of this server; did you mean Z4J_COMMAND_TIMEOUT_SECONDS?", ""},
		{"Z4J_COMMAND_TIMEOUT_SECONDS=60s", "", `agent.command_timeout: must be a whole number of seconds, got "60s" (env Z4J_COMMAND_TIMEOUT_SECONDS)`},
		{"Z4J_AGENT_IP_ALLOWLIST=[\"10.0.0.0/8\",\"::ffff:192.0.2.1\"]", "", ""},
		{"Z4J_AGENT_IP_ALLOWLIST=[\"10.0.0.0/8\"", "", "must be a JSON array of strings or a comma-separated list"},
		{"PATH=/bin", "", ""},
	} {
		t.Run(tc.env, func(t *testing.T) {
			_, _, w, err := Load(LoadOptions{Env: []string{tc.env}})
			var warnings []string
			for _, x := range w {
				warnings = append(warnings, x.String())
			}
			if tc.warning == "" && len(warnings) > 0 || tc.warning != "" && !slices.Equal(warnings, []string{tc.warning}) {
				t.Errorf("warnings %q, want %q", warnings, tc.warning)
			}
			if (err == nil) != (tc.problem == "") || err != nil && !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("error %v, want %q", err, tc.problem)
			}
		})
	}
}
