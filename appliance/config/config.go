// Package config holds the settings of Signalbox: a typed struct with defaults, and one table of keys that drives
// loading (flag over environment over TOML over default), validation, display and the reference documentation.
//
// Nothing here is global: Load returns a value, and every part of the appliance is handed only its own section.
package config

import (
	"path/filepath"
	"time"
)

// Config is the whole configuration. Take it from Load or Default; treat it as immutable once it is shared.
type Config struct {
	// DataDir is the directory of the database, minted secrets, the admin socket and addresses.json. A relative path is
	// relative to the working directory of the process.
	DataDir string `toml:"data_dir"`
	// Server is the main listener and what it accepts.
	Server Server `toml:"server"`
	// Metrics says where Prometheus may scrape.
	Metrics Metrics `toml:"metrics"`
	// Log is the form and amount of logging.
	Log Log `toml:"log"`
	// Secret holds the master secrets.
	Secret Secrets `toml:"secret"`
	// Store tunes SQLite.
	Store Store `toml:"store"`
	// Agent is the agent plane.
	Agent Agent `toml:"agent"`
	// Schedules is the scheduler of the agent plane.
	Schedules Schedules `toml:"schedules"`
	// Room is the rooms plane.
	Room Room `toml:"room"`
	// Archive is the archive plane.
	Archive Archive `toml:"archive"`
}

// Room is the [room] section: the settings of the rooms plane (rooms protocol K).
type Room struct {
	// RetainedEvents and RetainedAge bound what waits for an agent (rooms protocol E.3).
	RetainedEvents int      `toml:"retained_events"`
	RetainedAge    Duration `toml:"retained_age"`
	// MessageSize is the largest body of a message.
	MessageSize Size `toml:"message_size"`
	// MediaSize is the largest attachment, MediaTotal what all of them may take; 0 means no bound.
	MediaSize  Size `toml:"media_size"`
	MediaTotal Size `toml:"media_total"`
	// SSE serves the stream of clients from before the WebSocket (rooms protocol G).
	SSE bool `toml:"sse"`
	// MCP serves rooms to hosts that speak MCP over HTTP.
	MCP bool `toml:"mcp"`
}

// Server is the [server] section: the main listener, TLS, and who may talk to it.
type Server struct {
	// Listen is the TCP address host:port; port 0 lets the system choose.
	Listen string `toml:"listen"`
	// AdminSocket is the path of the local admin socket; empty means signalbox.sock in the data directory. Use
	// Config.AdminSocketPath for the path in effect.
	AdminSocket string `toml:"admin_socket"`
	// TLSCertFile and TLSKeyFile are PEM files, both set or both empty.
	TLSCertFile string `toml:"tls_cert_file"`
	TLSKeyFile  string `toml:"tls_key_file"`
	// BehindProxy states that TLS ends at a proxy in front, which permits a plain listener off loopback.
	BehindProxy bool `toml:"behind_proxy"`
	// AllowedHosts is the Host header allowlist; empty allows every host.
	AllowedHosts Hosts `toml:"allowed_hosts"`
	// TrustedProxies are the peers whose X-Forwarded-For is believed (agent protocol I.3).
	TrustedProxies Prefixes `toml:"trusted_proxies"`
	// AgentIPAllowlist, APIIPAllowlist and DashboardIPAllowlist restrict the three surfaces (agent protocol I.3).
	AgentIPAllowlist     Prefixes `toml:"agent_ip_allowlist"`
	APIIPAllowlist       Prefixes `toml:"api_ip_allowlist"`
	DashboardIPAllowlist Prefixes `toml:"dashboard_ip_allowlist"`
	// DrainTimeout bounds an orderly shutdown.
	DrainTimeout Duration `toml:"drain_timeout"`
	// MaxPayloadSize caps every HTTP request body except /agent/events (agent protocol I.2) and those of the rooms plane.
	MaxPayloadSize Size `toml:"max_payload_size"`
	// EventsBodyLimit caps the body of /agent/events.
	EventsBodyLimit Size `toml:"events_body_limit"`
}

// Metrics is the [metrics] section.
type Metrics struct {
	// Enabled turns collection and every metrics endpoint on.
	Enabled bool `toml:"enabled"`
	// Listen is an own host:port for /metrics; empty means no own listener.
	Listen string `toml:"listen"`
	// AuthToken is the bearer token a scraper must present; empty means none is asked for.
	AuthToken Secret `toml:"auth_token"`
	// Public serves /metrics on the main listener too.
	Public bool `toml:"public"`
}

// Log is the [log] section.
type Log struct {
	// Level is the lowest level written.
	Level LogLevel `toml:"level"`
	// Format is text, json, or auto: text on a terminal and JSON otherwise.
	Format LogFormat `toml:"format"`
}

// Secrets is the [secret] section.
type Secrets struct {
	// Secret is the current master secret; when empty the appliance mints one into secret.key in the data directory.
	Secret Secret `toml:"secret"`
	// PreviousSecrets are still accepted, newest first, and never used for new material.
	PreviousSecrets []Secret `toml:"previous_secrets"`
}

// Store is the [store] section.
type Store struct {
	// Readers is the number of read-only connections.
	Readers int `toml:"readers"`
	// BatchMaxWrites is the most callers that share one commit.
	BatchMaxWrites int `toml:"batch_max_writes"`
	// BatchMaxRows is the number of changed rows after which a batch takes no further caller.
	BatchMaxRows int `toml:"batch_max_rows"`
	// QueueMaxWrites is the most writes that wait for the writer; more are refused as unavailable.
	QueueMaxWrites int `toml:"queue_max_writes"`
}

// Agent is the [agent] section: the settings of the agent plane (agent protocol K).
type Agent struct {
	// CommandTimeout is how long an issued command may take.
	CommandTimeout Duration `toml:"command_timeout"`
	// CommandTimeoutSweep is the interval of the time-out sweep.
	CommandTimeoutSweep Duration `toml:"command_timeout_sweep"`
	// RedispatchWindow is how long after dispatch a redeliverable command counts as possibly lost.
	RedispatchWindow Duration `toml:"redispatch_window"`
	// RedispatchMinInterval is the least gap between two sends of one command.
	RedispatchMinInterval Duration `toml:"redispatch_min_interval"`
	// BulkRetryMaxInFlight is the most commands of one bulk retry that are under way.
	BulkRetryMaxInFlight int `toml:"bulk_retry_max_in_flight"`
	// BulkRetryTimeout is how long a bulk retry lives without one of its commands ending.
	BulkRetryTimeout Duration `toml:"bulk_retry_timeout"`
	// BulkRetryScan is the interval of the slow look at open bulk retries.
	BulkRetryScan Duration `toml:"bulk_retry_scan"`
	// BulkRetryScanBatch is the number of open bulk retries read at once.
	BulkRetryScanBatch int `toml:"bulk_retry_scan_batch"`
	// BulkRetryConfirmAbove is the number of tasks above which a bulk retry must be confirmed.
	BulkRetryConfirmAbove int `toml:"bulk_retry_confirm_above"`
	// ReconcileSweep is the interval at which tasks that run for long are asked about; ReconcileAfter how long that is.
	ReconcileSweep Duration `toml:"reconcile_sweep"`
	ReconcileAfter Duration `toml:"reconcile_after"`
	// OfflineTimeout is the silence after which an agent is offline.
	OfflineTimeout Duration `toml:"offline_timeout"`
	// OfflineAlertGrace is how long an agent must be offline before rules are told.
	OfflineAlertGrace Duration `toml:"offline_alert_grace"`
	// HealthSweep is the interval of the liveness sweep.
	HealthSweep Duration `toml:"health_sweep"`
	// StalePruneDays is the age in days at which stale agents are pruned; 0 turns it off.
	StalePruneDays int `toml:"stale_prune_days"`
	// HygieneSweep is the interval of the pruning sweep.
	HygieneSweep Duration `toml:"hygiene_sweep"`
	// WSMaxFrame and WSFrameLimit both cap an inbound WebSocket frame; use FrameCap for the smaller.
	WSMaxFrame   Size `toml:"ws_max_frame"`
	WSFrameLimit Size `toml:"ws_frame_limit"`
	// WSPerAgentCap is the most concurrent sockets of one agent; 0 turns the cap off.
	WSPerAgentCap int `toml:"ws_per_agent_cap"`
	// WSIdleTimeout closes a socket on which nothing arrives.
	WSIdleTimeout Duration `toml:"ws_idle_timeout"`
	// WSFirstFrameTimeout bounds the wait for hello.
	WSFirstFrameTimeout Duration `toml:"ws_first_frame_timeout"`
	// WSIngestQueue is the most frames of one socket that wait to be stored.
	WSIngestQueue int `toml:"ws_ingest_queue"`
	// RateLimits turns the rate buckets on.
	RateLimits bool `toml:"rate_limits"`
	// ConnectRateLimit is WS connects and long-poll requests per client address and 60 s (agent protocol I.1).
	ConnectRateLimit int `toml:"connect_rate_limit"`
	// BulkRateLimit is bulk actions per client address and 60 s (agent protocol I.1).
	BulkRateLimit int `toml:"bulk_rate_limit"`
	// ChannelTestRateLimit is tests of notification channels per client address and 60 s (agent protocol I.1).
	ChannelTestRateLimit int `toml:"channel_test_rate_limit"`
	// NotificationRetentionDays is how long delivered and dead notifications are kept.
	NotificationRetentionDays int `toml:"notification_retention_days"`
	// DiskFreeWarning is the free space of the data directory below which rules about the appliance are told.
	DiskFreeWarning Size `toml:"disk_free_warning"`
	// DefaultPageSize and MaxPageSize bound REST listings.
	DefaultPageSize int `toml:"default_page_size"`
	MaxPageSize     int `toml:"max_page_size"`
	// EventRetentionDays and AuditRetentionDays are how long events and audit rows are kept.
	EventRetentionDays int `toml:"event_retention_days"`
	AuditRetentionDays int `toml:"audit_retention_days"`
	// FailureGroups is how many groups of failed tasks a project has at most.
	FailureGroups int `toml:"failure_groups"`
	// RedactionExtraKeyPatterns are regular expressions (RE2, matched case-insensitively) of further keys to redact.
	RedactionExtraKeyPatterns []string `toml:"redaction_extra_key_patterns"`
	// RegistryReconcileInterval is the slow look for pending commands whose wake-up was lost.
	RegistryReconcileInterval Duration `toml:"registry_reconcile_interval"`
	// LongPollSessions and LongPollSessionsPerAgent size the session registry (agent protocol F.7).
	LongPollSessions         int `toml:"longpoll_sessions"`
	LongPollSessionsPerAgent int `toml:"longpoll_sessions_per_agent"`
	// LongPollSessionIdle is how long an idle long-poll session is remembered.
	LongPollSessionIdle Duration `toml:"longpoll_session_idle"`
}

// Default returns the configuration that is in effect when nothing is set.
func Default() *Config {
	return &Config{
		DataDir: "signalbox-data",
		Server: Server{
			Listen:          "127.0.0.1:7700",
			DrainTimeout:    Duration(20 * time.Second),
			MaxPayloadSize:  8 * KiB,
			EventsBodyLimit: 32 * MiB,
		},
		Metrics: Metrics{Enabled: true},
		Log:     Log{Level: LevelInfo, Format: FormatAuto},
		Store: Store{
			Readers:        2,
			BatchMaxWrites: 1024,
			BatchMaxRows:   2000,
			QueueMaxWrites: 8192,
		},
		Agent:     defaultAgent(),
		Schedules: defaultSchedules(),
		Archive:   defaultArchive(),
		Room: Room{
			RetainedEvents: 2000,
			RetainedAge:    Duration(15 * time.Minute),
			MessageSize:    256 * KiB,
			MediaSize:      20 * MiB,
			SSE:            true,
			MCP:            true,
		},
	}
}

func defaultAgent() Agent {
	return Agent{
		BulkRetryMaxInFlight:      8,
		BulkRetryTimeout:          Duration(900 * time.Second),
		BulkRetryScan:             Duration(10 * time.Second),
		BulkRetryScanBatch:        64,
		BulkRetryConfirmAbove:     100,
		ReconcileSweep:            Duration(300 * time.Second),
		ReconcileAfter:            Duration(900 * time.Second),
		CommandTimeout:            Duration(60 * time.Second),
		CommandTimeoutSweep:       Duration(5 * time.Second),
		RedispatchWindow:          Duration(60 * time.Second),
		RedispatchMinInterval:     Duration(10 * time.Second),
		OfflineTimeout:            Duration(30 * time.Second),
		OfflineAlertGrace:         Duration(60 * time.Second),
		HealthSweep:               Duration(10 * time.Second),
		StalePruneDays:            30,
		HygieneSweep:              Duration(24 * time.Hour),
		WSMaxFrame:                MiB,
		WSFrameLimit:              MiB,
		WSPerAgentCap:             64,
		WSIdleTimeout:             Duration(90 * time.Second),
		WSFirstFrameTimeout:       Duration(10 * time.Second),
		WSIngestQueue:             2000,
		RateLimits:                true,
		ConnectRateLimit:          600,
		BulkRateLimit:             10,
		ChannelTestRateLimit:      20,
		NotificationRetentionDays: 30,
		DiskFreeWarning:           GiB,
		DefaultPageSize:           50,
		MaxPageSize:               500,
		EventRetentionDays:        30,
		AuditRetentionDays:        90,
		FailureGroups:             1000,
		RegistryReconcileInterval: Duration(30 * time.Second),
		LongPollSessions:          4096,
		LongPollSessionsPerAgent:  16,
		LongPollSessionIdle:       Duration(300 * time.Second),
	}
}

// AdminSocketPath is the path of the local admin socket in effect.
func (c *Config) AdminSocketPath() string {
	if c.Server.AdminSocket != "" {
		return c.Server.AdminSocket
	}
	return filepath.Join(c.DataDir, "signalbox.sock")
}

// TLS reports whether the main listener serves TLS itself.
func (s *Server) TLS() bool { return s.TLSCertFile != "" && s.TLSKeyFile != "" }

// FrameCap is the cap of an inbound WebSocket frame in bytes: the smaller of the two settings wins.
func (a *Agent) FrameCap() int64 { return min(a.WSMaxFrame, a.WSFrameLimit).Bytes() }
