package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRules(t *testing.T) {
	second := Duration(time.Second)
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"no data directory", func(c *Config) { c.DataDir = "" }, []string{"data_dir: must not be empty"}},
		{"zero byte", func(c *Config) { c.Server.TLSCertFile, c.Server.TLSKeyFile = "a\x00", "b" },
			[]string{"server.tls_cert_file: must not contain a zero byte"}},
		{"long data directory", func(c *Config) { c.DataDir = "/" + strings.Repeat("d", 95) },
			[]string{"data_dir: signalbox.sock in it has a path of 111 bytes, and a socket path holds at most 107; set server.admin_socket to a shorter one"}},
		{"longest data directory", func(c *Config) { c.DataDir = "/" + strings.Repeat("d", 91) }, nil},
		{"long directory, short socket", func(c *Config) { c.DataDir, c.Server.AdminSocket = strings.Repeat("d", 200), "/run/s" }, nil},
		{"long socket", func(c *Config) { c.Server.AdminSocket = strings.Repeat("s", 108) },
			[]string{"server.admin_socket: a socket path holds at most 107 bytes, got 108"}},
		{"listen without port", func(c *Config) { c.Server.Listen = "127.0.0.1" },
			[]string{`server.listen: must be host:port, got "127.0.0.1"`}},
		{"listen with wild port", func(c *Config) { c.Server.Listen = "127.0.0.1:70000" },
			[]string{`server.listen: the port must be 0 to 65535, got "70000"`}},
		{"listen with named port", func(c *Config) { c.Server.Listen = "127.0.0.1:http" },
			[]string{`server.listen: the port must be 0 to 65535, got "http"`}},
		{"listen with wild host", func(c *Config) { c.Server.Listen = "a b:1" },
			[]string{`server.listen: "a b" is neither an IP address nor a host name`}},
		{"port 0", func(c *Config) { c.Server.Listen = "127.0.0.1:0" }, nil},
		{"localhost", func(c *Config) { c.Server.Listen = "LocalHost:80" }, nil},
		{"IPv6 loopback", func(c *Config) { c.Server.Listen = "[::1]:80" }, nil},
		{"mapped loopback", func(c *Config) { c.Server.Listen = "[::ffff:127.0.0.1]:80" }, nil},
		{"all addresses", func(c *Config) { c.Server.Listen = ":80" }, []string{openListen(":80")}},
		{"wildcard", func(c *Config) { c.Server.Listen = "0.0.0.0:80" }, []string{openListen("0.0.0.0:80")}},
		{"IPv6 wildcard", func(c *Config) { c.Server.Listen = "[::]:80" }, []string{openListen("[::]:80")}},
		{"other name", func(c *Config) { c.Server.Listen = "host:80" }, []string{openListen("host:80")}},
		{"open behind a proxy", func(c *Config) { c.Server.Listen, c.Server.BehindProxy = ":80", true }, nil},
		{"open with TLS", func(c *Config) { c.Server.Listen, c.Server.TLSCertFile, c.Server.TLSKeyFile = ":80", "c", "k" }, nil},
		{"certificate alone", func(c *Config) { c.Server.TLSCertFile = "c" },
			[]string{"server.tls_key_file: must be set too, because server.tls_cert_file is set"}},
		{"key alone", func(c *Config) { c.Server.TLSKeyFile = "k" },
			[]string{"server.tls_cert_file: must be set too, because server.tls_key_file is set"}},
		{"raw prefix", func(c *Config) { c.Server.TrustedProxies = Prefixes{netip.MustParsePrefix("10.1.1.1/8")} },
			[]string{"server.trusted_proxies: entry 1: 10.1.1.1/8 is not a canonical range"}},
		{"zero prefix", func(c *Config) { c.Server.APIIPAllowlist = Prefixes{{}} },
			[]string{"server.api_ip_allowlist: entry 1: invalid Prefix is not a canonical range"}},
		{"long list", func(c *Config) {
			c.Server.AgentIPAllowlist = slices.Repeat(Prefixes{netip.MustParsePrefix("10.0.0.0/8")}, 1025)
		}, []string{"server.agent_ip_allowlist: must have at most 1024 entries, got 1025"}},
		{"bad host", func(c *Config) { c.Server.AllowedHosts = Hosts{"a b"} },
			[]string{`server.allowed_hosts: entry 1: "a b" is not a host name; give it without scheme, port and path`}},
		{"small payload", func(c *Config) { c.Server.MaxPayloadSize = 127 },
			[]string{"server.max_payload_size: must be at least 128, got 127"}},
		{"public metrics without token", func(c *Config) { c.Metrics.Public = true },
			[]string{"metrics.public: needs metrics.auth_token, because the main listener is open to strangers"}},
		{"open metrics without token", func(c *Config) { c.Metrics.Listen = ":9" },
			[]string{"metrics.listen: :9 can be reached from other machines and needs metrics.auth_token"}},
		{"open metrics with token", func(c *Config) {
			c.Metrics.Listen, c.Metrics.Public, c.Metrics.AuthToken = ":9", true, NewSecret("0123456789abcdef")
		}, nil},
		{"metrics off", func(c *Config) { c.Metrics.Listen, c.Metrics.Public, c.Metrics.Enabled = ":9", true, false }, nil},
		{"local metrics", func(c *Config) { c.Metrics.Listen = "127.0.0.1:9" }, nil},
		{"short token", func(c *Config) { c.Metrics.AuthToken = NewSecret("short") },
			[]string{"metrics.auth_token: must be 16 to 1024 characters long, got 5"}},
		{"token with space", func(c *Config) { c.Metrics.AuthToken = NewSecret("0123456789abcdef ") },
			[]string{"metrics.auth_token: must consist of printable ASCII characters without spaces"}},
		{"short secret", func(c *Config) { c.Secret.Secret = NewSecret(strings.Repeat("x", 31)) },
			[]string{"secret.secret: must be at least 32 bytes long, got 31"}},
		{"long enough secret", func(c *Config) { c.Secret.Secret = NewSecret(strings.Repeat("x", 32)) }, nil},
		{"short previous secrets", func(c *Config) { c.Secret.PreviousSecrets = []Secret{NewSecret("a"), {}} },
			[]string{"secret.previous_secrets: entry 1: must be at least 32 bytes long, got 1; entry 2: must be at least 32 bytes long, got 0"}},
		{"bad pattern", func(c *Config) { c.Agent.RedactionExtraKeyPatterns = []string{"("} },
			[]string{"agent.redaction_extra_key_patterns: entry 1: \"(\" is not a regular expression: error parsing regexp: missing closing ): `(?i)(`"}},
		{"empty pattern", func(c *Config) { c.Agent.RedactionExtraKeyPatterns = []string{"ok", ""} },
			[]string{"agent.redaction_extra_key_patterns: entry 2: must be 1 to 200 characters long"}},
		{"gap equals window", func(c *Config) { c.Agent.RedispatchMinInterval = 60 * second }, []string{
			"agent.redispatch_min_interval: must be strictly below agent.redispatch_window (Z4J_AGENT_LONGPOLL_REDISPATCH_SECONDS, " +
				"SIGNALBOX_AGENT_REDISPATCH_WINDOW, default) = 1m, got agent.redispatch_min_interval (Z4J_AGENT_LONGPOLL_REDISPATCH_MIN_" +
				"INTERVAL_SECONDS, SIGNALBOX_AGENT_REDISPATCH_MIN_INTERVAL, default) = 1m"}},
		{"gap just below window", func(c *Config) { c.Agent.RedispatchMinInterval = 59 * second }, nil},
		{"timeout equals gap", func(c *Config) { c.Agent.CommandTimeout = 10 * second }, nil},
		{"timeout below gap", func(c *Config) { c.Agent.CommandTimeout = 9 * second }, []string{
			"agent.command_timeout: must not be below agent.redispatch_min_interval (Z4J_AGENT_LONGPOLL_REDISPATCH_MIN_INTERVAL_SECONDS, " +
				"SIGNALBOX_AGENT_REDISPATCH_MIN_INTERVAL, default) = 10s, got agent.command_timeout (Z4J_COMMAND_TIMEOUT_SECONDS, " +
				"SIGNALBOX_AGENT_COMMAND_TIMEOUT, default) = 9s"}},
		{"one mistake is told once", func(c *Config) { c.Agent.RedispatchMinInterval = 2 * 3600 * second },
			[]string{"agent.redispatch_min_interval: must be 1s to 1h, got 2h"}},
		{"page sizes", func(c *Config) { c.Agent.DefaultPageSize = 501 }, []string{
			"agent.default_page_size: must not be above agent.max_page_size (Z4J_REST_MAX_PAGE_SIZE, SIGNALBOX_AGENT_MAX_PAGE_SIZE, default) " +
				"= 500, got agent.default_page_size (Z4J_REST_DEFAULT_PAGE_SIZE, SIGNALBOX_AGENT_DEFAULT_PAGE_SIZE, default) = 501"}},
		{"short daemon token", func(c *Config) { c.Archive.Token = NewSecret(strings.Repeat("x", 31)) },
			[]string{"archive.token: must have 32 to 512 bytes"}},
		{"threshold below two heartbeats", func(c *Config) { c.Archive.OfflineThreshold = 29 * second }, []string{
			"archive.offline_threshold: must be at least twice archive.heartbeat_interval (SIGNALBOX_ARCHIVE_HEARTBEAT_INTERVAL, default) = " +
				"15s, got 29s"}},
		{"cap below initial", func(c *Config) { c.Archive.ReconnectInitial = 61 * second / 2; c.Archive.ReconnectCap = 30 * second }, []string{
			"archive.reconnect_cap: must not be below archive.reconnect_initial (SIGNALBOX_ARCHIVE_RECONNECT_INITIAL, default) = 30.5s, got 30s"}},
		{"session registry", func(c *Config) { c.Agent.LongPollSessions = 15 }, []string{
			"agent.longpoll_sessions_per_agent: must not be above agent.longpoll_sessions (SIGNALBOX_AGENT_LONGPOLL_SESSIONS, default) = 15, got 16"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Default()
			tc.change(c)
			var got []string
			if err := c.Validate(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func openListen(addr string) string {
	return "server.listen: " + addr + " can be reached from other machines without TLS; set server.tls_cert_file and " +
		"server.tls_key_file, or server.behind_proxy = true when a proxy in front terminates TLS"
}

// TestRanges holds every numeric key to the bounds the agent protocol documents (K): both ends pass, one beyond fails.
func TestRanges(t *testing.T) {
	s := func(n int64) int64 { return n * int64(time.Second) }
	documented := map[string][2]int64{
		"agent.command_timeout":             {s(1), s(86400)},
		"agent.command_timeout_sweep":       {s(1), s(300)},
		"agent.redispatch_window":           {s(1), s(3600)},
		"agent.redispatch_min_interval":     {s(1), s(3600)},
		"agent.offline_timeout":             {s(1), s(3600)},
		"agent.health_sweep":                {s(1), s(300)},
		"agent.stale_prune_days":            {0, 3650},
		"agent.ws_max_frame":                {8192, 33554432},
		"agent.ws_frame_limit":              {1024, 0},
		"agent.ws_per_agent_cap":            {0, 10000},
		"agent.ws_idle_timeout":             {s(15), s(3600)},
		"agent.ws_ingest_queue":             {16, 50000},
		"server.max_payload_size":           {128, 0},
		"agent.registry_reconcile_interval": {s(1), s(600)},
		"agent.default_page_size":           {1, 1000},
		"agent.max_page_size":               {1, 5000},
		"agent.event_retention_days":        {1, 3650},
	}
	for _, b := range bind(Default()) {
		var low, high int64
		var put func(int64)
		switch v := b.value.(type) {
		case intValue:
			low, high, put = int64(v.min), int64(v.max), func(n int64) { *v.p = int(n) }
		case durationValue:
			low, high, put = int64(v.min), int64(v.max), func(n int64) { *v.p = Duration(n) }
		case sizeValue:
			low, high, put = int64(v.min), int64(v.max), func(n int64) { *v.p = Size(n) }
		default:
			continue
		}
		if want, ok := documented[b.Path]; ok && want != [2]int64{low, high} {
			t.Errorf("%s: range %d to %d, want %v", b.Path, low, high, want)
		}
		delete(documented, b.Path)
		for n, ok := range map[int64]bool{low: true, low - 1: false, high: true, high + 1: high == 0} {
			if high == 0 && n == 0 {
				continue
			}
			put(n)
			if err := b.check(); (err == nil) != (ok && n >= low) {
				t.Errorf("%s = %d: %v", b.Path, n, err)
			}
		}
	}
	if len(documented) > 0 {
		t.Errorf("keys not found: %v", documented)
	}
}

func TestCrossRuleNamesTheSourcesOfBothSettings(t *testing.T) {
	file := write(t, "s.toml", "[agent]\nredispatch_min_interval = \"50s\"\n")
	got := problems(t, LoadOptions{File: file, Env: []string{"Z4J_COMMAND_TIMEOUT_SECONDS=40"}})
	want := "agent.command_timeout: must not be below agent.redispatch_min_interval (Z4J_AGENT_LONGPOLL_REDISPATCH_MIN_INTERVAL_SECONDS, " +
		"SIGNALBOX_AGENT_REDISPATCH_MIN_INTERVAL, set by s.toml:2) = 50s, got agent.command_timeout (Z4J_COMMAND_TIMEOUT_SECONDS, " +
		"SIGNALBOX_AGENT_COMMAND_TIMEOUT, set by env Z4J_COMMAND_TIMEOUT_SECONDS) = 40s (env Z4J_COMMAND_TIMEOUT_SECONDS)"
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnreadValueBreaksNoFurtherRule(t *testing.T) {
	got := problems(t, LoadOptions{Env: []string{"SIGNALBOX_AGENT_REDISPATCH_WINDOW=x", "SIGNALBOX_AGENT_REDISPATCH_MIN_INTERVAL=60s"}})
	if len(got) != 1 || !strings.HasPrefix(got[0], "agent.redispatch_window: must be a duration") {
		t.Errorf("got %q", got)
	}
}

func TestWarnings(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		want []string
	}{
		{"proxy without trust", []string{"SIGNALBOX_SERVER_BEHIND_PROXY=1"}, []string{
			"server.trusted_proxies: is empty behind a proxy: rate limits and allowlists see the proxy's address instead of the client's"}},
		{"trusting everyone", []string{"Z4J_TRUSTED_PROXIES=[\"0.0.0.0/0\",\"::/0\"]"}, []string{
			"server.trusted_proxies: 0.0.0.0/0 trusts everyone: any client can forge its address",
			"server.trusted_proxies: ::/0 trusts everyone: any client can forge its address"}},
		{"one frame cap raised", []string{"Z4J_WS_MAX_FRAME_BYTES=2097152"}, []string{
			"agent.ws_max_frame: 2MiB has no effect above agent.ws_frame_limit = 1MiB, because the smaller wins"}},
		{"the other frame cap raised", []string{"Z4J_MAX_WS_FRAME_BYTES=2097152"}, []string{
			"agent.ws_frame_limit: 2MiB has no effect above agent.ws_max_frame = 1MiB, because the smaller wins"}},
		{"one frame cap lowered", []string{"Z4J_MAX_WS_FRAME_BYTES=2048"}, nil},
		{"metrics on the main listener twice", []string{"SIGNALBOX_METRICS_LISTEN=127.0.0.1:7700", "Z4J_METRICS_PUBLIC=true",
			"Z4J_METRICS_AUTH_TOKEN=0123456789abcdef"}, []string{"metrics.listen: is the main listener already; leave it empty"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, w := mustLoad(t, LoadOptions{Env: tc.env})
			var got []string
			for _, x := range w {
				got = append(got, x.String())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDerivedValues(t *testing.T) {
	c := Default()
	c.Agent.WSFrameLimit = 2048
	if got := c.Agent.FrameCap(); got != 2048 {
		t.Errorf("frame cap %d", got)
	}
	c.Agent.WSFrameLimit = 2 * MiB
	if got := c.Agent.FrameCap(); got != 1<<20 {
		t.Errorf("frame cap %d", got)
	}
	if got := c.AdminSocketPath(); got != "signalbox-data/signalbox.sock" {
		t.Errorf("socket %s", got)
	}
	c.Server.AdminSocket = "/run/x.sock"
	if got := c.AdminSocketPath(); got != "/run/x.sock" {
		t.Errorf("socket %s", got)
	}
	if c.Server.TLS() {
		t.Error("TLS without files")
	}
}
