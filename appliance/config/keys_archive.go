package config

import (
	"errors"
	"time"
)

// Archive is the [archive] section: the settings of the archive plane (daemon protocol 2.5, 2.6, 5.2).
type Archive struct {
	// Enabled serves daemons.
	Enabled bool `toml:"enabled"`
	// Token is what every daemon presents; when empty the appliance mints one into daemon.token in the data directory.
	Token Secret `toml:"token"`
	// PreviousTokens are still accepted while daemons take the new one.
	PreviousTokens []Secret `toml:"previous_tokens"`
	// The liveness settings that daemons are told at registration.
	HeartbeatInterval    Duration `toml:"heartbeat_interval"`
	OfflineThreshold     Duration `toml:"offline_threshold"`
	StableReset          Duration `toml:"stable_reset"`
	ReconnectInitial     Duration `toml:"reconnect_initial"`
	ReconnectCap         Duration `toml:"reconnect_cap"`
	CommandRetry         Duration `toml:"command_retry"`
	CommandAttempts      int      `toml:"command_attempts"`
	RegistrationDeadline Duration `toml:"registration_deadline"`
	// What control offers of the limits of 5.2; the smaller of both offers holds.
	MaxEnvelopeSize      Size `toml:"max_envelope_size"`
	MaxChunkEntries      int  `toml:"max_chunk_entries"`
	MaxOutboundEnvelopes int  `toml:"max_outbound_envelopes"`
	MaxOutboundSize      Size `toml:"max_outbound_size"`
	MaxActiveJobs        int  `toml:"max_active_jobs"`
}

func defaultArchive() Archive {
	return Archive{
		Enabled:              true,
		HeartbeatInterval:    Duration(15 * time.Second),
		OfflineThreshold:     Duration(45 * time.Second),
		StableReset:          Duration(60 * time.Second),
		ReconnectInitial:     Duration(time.Second),
		ReconnectCap:         Duration(60 * time.Second),
		CommandRetry:         Duration(15 * time.Second),
		CommandAttempts:      3,
		RegistrationDeadline: Duration(10 * time.Second),
		MaxEnvelopeSize:      MiB,
		MaxChunkEntries:      500,
		MaxOutboundEnvelopes: 256,
		MaxOutboundSize:      8 * MiB,
		MaxActiveJobs:        256,
	}
}

// daemonTokenRule is the length of the token field of a registration.
func daemonTokenRule(token Secret) error {
	if n := len(token.Reveal()); n < 32 || n > 512 {
		return errors.New("must have 32 to 512 bytes")
	}
	return nil
}

func bindArchive(a *Archive) []binding {
	return []binding{
		key("archive.enabled", boolValue{&a.Enabled},
			"Serves archive daemons at /daemon/v2.",
			"Turn it off where no daemon is to connect; the path is then unknown."),
		key("archive.token", secretValue{p: &a.Token, text: "32 to 512 bytes, or empty", judge: daemonTokenRule},
			"The token that every daemon presents; empty means one is minted into daemon.token in the data directory.",
			"Set it, best by SIGNALBOX_ARCHIVE_TOKEN_FILE, to keep it apart from the data.", secret),
		key("archive.previous_tokens", secretsValue(&a.PreviousTokens),
			"Former tokens that are still accepted.",
			"Move the old token here when you rotate; drop it once every daemon has the new one.", secret),
		key("archive.heartbeat_interval", durationValue{&a.HeartbeatInterval, seconds(1), seconds(600)},
			"How often a daemon sends a heartbeat; daemons are told at registration.",
			"Raise it for many daemons on slow links."),
		key("archive.offline_threshold", durationValue{&a.OfflineThreshold, seconds(3), seconds(3600)},
			"Silence after which a daemon is offline and its jobs wait. Must be at least twice heartbeat_interval.",
			"Raise it where links drop for a minute at a time."),
		key("archive.stable_reset", durationValue{&a.StableReset, seconds(1), seconds(3600)},
			"How long a connection must last before a daemon's reconnect delay starts over.",
			"Rarely changed."),
		key("archive.reconnect_initial", durationValue{&a.ReconnectInitial, 10 * time.Millisecond, seconds(60)},
			"First delay before a daemon connects again; doubled for each try.",
			"Rarely changed."),
		key("archive.reconnect_cap", durationValue{&a.ReconnectCap, 10 * time.Millisecond, seconds(3600)},
			"Longest delay before a daemon connects again. Must not be below reconnect_initial.",
			"Rarely changed."),
		key("archive.command_retry", durationValue{&a.CommandRetry, seconds(1), seconds(600)},
			"Time without an acknowledgement after which a command is sent again.",
			"Raise it for daemons on slow disks."),
		key("archive.command_attempts", intValue{&a.CommandAttempts, 1, 100},
			"How often a command is sent without an acknowledgement before a person is asked.",
			"Rarely changed."),
		key("archive.registration_deadline", durationValue{&a.RegistrationDeadline, seconds(1), seconds(120)},
			"Time from the upgrade in which a daemon must have registered.",
			"Rarely changed."),
		key("archive.max_envelope_size", sizeValue{&a.MaxEnvelopeSize, 64 * KiB, 4 * MiB},
			"Largest message in either direction after registration; the smaller of both sides' offers holds.",
			"Raise it for jobs with finely fragmented selections."),
		key("archive.max_chunk_entries", intValue{&a.MaxChunkEntries, 50, 2000},
			"Most entries in one part of an inventory answer.",
			"Rarely changed."),
		key("archive.max_outbound_envelopes", intValue{&a.MaxOutboundEnvelopes, 64, 1024},
			"Most messages that wait for one slow daemon before its connection is closed.",
			"Rarely changed."),
		key("archive.max_outbound_size", sizeValue{&a.MaxOutboundSize, MiB, 32 * MiB},
			"Most bytes that wait for one slow daemon before its connection is closed.",
			"Rarely changed."),
		key("archive.max_active_jobs", intValue{&a.MaxActiveJobs, 16, 512},
			"Most jobs that one daemon takes part in at a time.",
			"Lower it for small machines."),
	}
}
