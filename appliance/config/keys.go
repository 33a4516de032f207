package config

import (
	"errors"
	"fmt"
	"strings"
)

// maxSocketPath is the longest path that fits into a Linux socket address beside its closing zero.
const maxSocketPath = 107

// Key describes one setting.
type Key struct {
	// Path is the TOML path, such as "agent.command_timeout".
	Path string
	// Env are the SIGNALBOX_ variables that set the key, the one derived from Path first.
	Env []string
	// Z4J are the variables of the z4j server that set the key too.
	Z4J []string
	// Flag is the command line flag without dashes.
	Flag string
	// Kind names the type, Rule the accepted values, Default the default as a TOML literal.
	Kind, Rule, Default string
	// Doc says what the key does, Why when one would change it.
	Doc, Why string
	// Reload is true when a running appliance takes a new value on SIGHUP.
	Reload bool
	// Secret is true when the value is never shown and may come from a file.
	Secret bool
}

// Section is the TOML table of the key; empty for a key at the top.
func (k Key) Section() string {
	s, _, ok := strings.Cut(k.Path, ".")
	if !ok {
		return ""
	}
	return s
}

// Name is the last part of the path.
func (k Key) Name() string { return k.Path[strings.LastIndexByte(k.Path, '.')+1:] }

// Keys lists every setting in the order of the example file.
func Keys() []Key {
	bound := bind(Default())
	out := make([]Key, len(bound))
	for i, b := range bound {
		out[i] = b.Key
	}
	return out
}

// binding is a key tied to the field of one Config.
type binding struct {
	Key
	value
}

type option func(*binding)

// bind returns every key tied to the fields of c. It is the one table behind loading, checking and documentation.
func bind(c *Config) []binding {
	var all []binding
	all = append(all, bindTop(c)...)
	all = append(all, bindServer(&c.Server)...)
	all = append(all, bindMetrics(&c.Metrics)...)
	all = append(all, bindLog(&c.Log)...)
	all = append(all, bindSecret(&c.Secret)...)
	all = append(all, bindStore(&c.Store)...)
	all = append(all, bindAgentCommands(&c.Agent)...)
	all = append(all, bindAgentRetries(&c.Agent)...)
	all = append(all, bindAgentSessions(&c.Agent)...)
	all = append(all, bindAgentRecords(&c.Agent)...)
	all = append(all, bindSchedules(&c.Schedules)...)
	all = append(all, bindRoom(&c.Room)...)
	all = append(all, bindArchive(&c.Archive)...)
	return all
}

func key(path string, v value, doc, why string, opts ...option) binding {
	b := binding{value: v, Key: Key{
		Path: path, Doc: doc, Why: why, Kind: v.kind(), Rule: v.rule(), Default: v.literal(),
		Env:  []string{"SIGNALBOX_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))},
		Flag: strings.NewReplacer(".", "-", "_", "-").Replace(path),
	}}
	for _, o := range opts {
		o(&b)
	}
	return b
}

// z4j adds variables of the z4j server.
func z4j(names ...string) option { return func(b *binding) { b.Z4J = append(b.Z4J, names...) } }

// short adds a shorter SIGNALBOX_ variable and, derived from it, a shorter flag.
func short(name string) option {
	return func(b *binding) {
		b.Env = append(b.Env, name)
		b.Flag = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "SIGNALBOX_"), "_", "-"))
	}
}

func reload(b *binding) { b.Reload = true }
func secret(b *binding) { b.Secret = true }

func bindTop(c *Config) []binding {
	return []binding{
		key("data_dir", textValue{p: &c.DataDir, text: "a directory path", ok: checkDataDir},
			"Directory of the database, minted secrets, the admin socket and addresses.json; created with mode 0700.",
			"Put it on the disk whose fsync you trust; every acknowledgement waits for it."),
	}
}

func bindServer(s *Server) []binding {
	return []binding{
		key("server.listen", textValue{p: &s.Listen, text: "host:port; port 0 lets the system choose", ok: checkListen},
			"TCP address of the main listener: agents, REST API and health.",
			"Change it to be reached from other machines; off loopback it needs TLS files or behind_proxy.",
			short("SIGNALBOX_LISTEN"), z4j("Z4J_BIND_HOST", "Z4J_BIND_PORT")),
		key("server.admin_socket", textValue{p: &s.AdminSocket, text: "a path of at most 107 bytes, or empty", ok: checkSocket},
			"Path of the local admin socket (mode 0600); empty means signalbox.sock in the data directory.",
			"Set it when the data directory's path is too long for a socket address."),
		key("server.tls_cert_file", textValue{p: &s.TLSCertFile, text: "a PEM file, or empty", ok: checkPath},
			"Certificate chain of the main listener, read again when it changes.",
			"Set it together with tls_key_file to serve TLS without a proxy.", reload),
		key("server.tls_key_file", textValue{p: &s.TLSKeyFile, text: "a PEM file, or empty", ok: checkPath},
			"Private key of the main listener, read again when it changes.",
			"Set it together with tls_cert_file.", reload),
		key("server.behind_proxy", boolValue{&s.BehindProxy},
			"States that a proxy in front terminates TLS, which permits a plain listener off loopback.",
			"Turn it on behind nginx, Caddy or a load balancer, and list that proxy in trusted_proxies."),
		key("server.allowed_hosts", hostsValue(&s.AllowedHosts),
			"Host header allowlist; other hosts are answered with 400. Empty allows every host.",
			"Set it to your public names to stop DNS rebinding.", z4j("Z4J_ALLOWED_HOSTS")),
		key("server.trusted_proxies", prefixesValue(&s.TrustedProxies),
			"Peers whose X-Forwarded-For header names the client. Empty trusts nobody.",
			"List your proxy, or rate limits and allowlists see its address instead of the client's.",
			z4j("Z4J_TRUSTED_PROXIES")),
		key("server.agent_ip_allowlist", prefixesValue(&s.AgentIPAllowlist),
			"Addresses that may connect as agents, judged before the token. Empty means no restriction; loopback is not exempt.",
			"Set it when workers live in known networks.", z4j("Z4J_AGENT_IP_ALLOWLIST"), reload),
		key("server.api_ip_allowlist", prefixesValue(&s.APIIPAllowlist),
			"Addresses that may use the REST API. Empty means no restriction; loopback is not exempt.",
			"Set it to the networks of your operators and scripts.", z4j("Z4J_API_IP_ALLOWLIST"), reload),
		key("server.dashboard_ip_allowlist", prefixesValue(&s.DashboardIPAllowlist),
			"Addresses that may open dashboard pages; checked and kept, but this version serves none.",
			"Set it to the networks of your operators.", z4j("Z4J_DASHBOARD_IP_ALLOWLIST"), reload),
		key("server.drain_timeout", durationValue{&s.DrainTimeout, seconds(1), seconds(600)},
			"How long a shutdown waits for requests and sessions before it ends them.",
			"Keep it below the patience of your service manager."),
		key("server.max_payload_size", sizeValue{&s.MaxPayloadSize, 128, 0},
			"Largest HTTP request body, except on /agent/events and on the routes of rooms, which take what rooms keep; larger bodies get 413.",
			"Raise it when operators send large command parameters.", z4j("Z4J_MAX_PAYLOAD_SIZE_BYTES")),
		key("server.events_body_limit", sizeValue{&s.EventsBodyLimit, 8 * KiB, GiB},
			"Largest body of POST /agent/events, where one upload carries up to 500 frames.",
			"Lower it to bound memory when many long-poll agents upload at once."),
	}
}

func bindMetrics(m *Metrics) []binding {
	return []binding{
		key("metrics.enabled", boolValue{&m.Enabled},
			"Allows /metrics to be served. By itself it opens nothing: listen or public says where.",
			"Turn it off to keep /metrics shut whatever listen and public say.", z4j("Z4J_METRICS_ENABLED")),
		key("metrics.listen", textValue{p: &m.Listen, text: "host:port, or empty", ok: optional(checkListen)},
			"Own listener for /metrics; empty means none.",
			"Set it, for example to 127.0.0.1:7701, to scrape without touching the public port. Off loopback it needs auth_token."),
		key("metrics.auth_token", secretValue{p: &m.AuthToken, text: "16 to 1024 printable characters without spaces, or empty", judge: checkToken},
			"Bearer token that a scraper must present.",
			"Required as soon as /metrics can be reached from other machines.",
			z4j("Z4J_METRICS_AUTH_TOKEN"), secret, reload),
		key("metrics.public", boolValue{&m.Public},
			"Serves /metrics on the main listener as well; needs auth_token.",
			"Turn it on when only the main port is reachable.", z4j("Z4J_METRICS_PUBLIC")),
	}
}

func bindLog(l *Log) []binding {
	return []binding{
		key("log.level", enumValue[LogLevel]{&l.Level, &l.Level, LogLevels()},
			"Lowest level that is written.",
			"Use debug to follow single sessions; SIGHUP takes it without a restart.", reload),
		key("log.format", enumValue[LogFormat]{&l.Format, &l.Format, LogFormats()},
			"Form of log lines; auto is text on a terminal and JSON otherwise.",
			"Force json when a terminal is attached but a collector reads."),
	}
}

func bindSecret(s *Secrets) []binding {
	return []binding{
		key("secret.secret", secretValue{p: &s.Secret, text: "at least 32 bytes, or empty", judge: masterSecretRule},
			"Master secret behind agent tokens and project secrets; empty means one is minted into secret.key in the data directory.",
			"Set it, best by SIGNALBOX_SECRET_FILE, to keep it apart from the data.",
			short("SIGNALBOX_SECRET"), z4j("Z4J_SECRET"), secret),
		key("secret.previous_secrets", secretsValue(&s.PreviousSecrets),
			"Former master secrets, newest first; tokens and API keys made under them stay valid, and their audit rows verify.",
			"Move the old secret here when you rotate; drop it once no token, API key or kept audit row is of its time.",
			short("SIGNALBOX_PREVIOUS_SECRETS"), z4j("Z4J_PREVIOUS_SECRETS"), secret),
	}
}

func checkDataDir(s string) error {
	if s == "" {
		return errors.New("must not be empty")
	}
	return checkPath(s)
}

func checkPath(s string) error {
	if strings.ContainsRune(s, 0) {
		return errors.New("must not contain a zero byte")
	}
	return nil
}

func checkSocket(s string) error {
	if len(s) > maxSocketPath {
		return fmt.Errorf("a socket path holds at most %d bytes, got %d", maxSocketPath, len(s))
	}
	return checkPath(s)
}

func optional(rule func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return rule(s)
	}
}

// checkToken keeps a bearer token to what a header carries unharmed.
func checkToken(s Secret) error {
	t := s.Reveal()
	if len(t) < 16 || len(t) > 1024 {
		return fmt.Errorf("must be 16 to 1024 characters long, got %d", len(t))
	}
	for i := range len(t) {
		if t[i] <= ' ' || t[i] > '~' {
			return errors.New("must consist of printable ASCII characters without spaces")
		}
	}
	return nil
}
