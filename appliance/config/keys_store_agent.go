package config

import "time"

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func bindStore(s *Store) []binding {
	return []binding{
		key("store.readers", intValue{&s.Readers, 1, 16},
			"Read-only database connections.",
			"More readers take time from the one writer; raise it only when reads queue on many cores."),
		key("store.batch_max_writes", intValue{&s.BatchMaxWrites, 1, 4096},
			"Most waiting writes that share one commit.",
			"Lower it to shorten the longest commit."),
		key("store.batch_max_rows", intValue{&s.BatchMaxRows, 1, 100000},
			"Changed rows after which a commit takes in no further write.",
			"Lower it to shorten the longest commit."),
		key("store.queue_max_writes", intValue{&s.QueueMaxWrites, 16, 1000000},
			"Most writes that wait for the writer; whoever brings a further one waits for room.",
			"Raise it to ride out longer stalls of the disk at the price of memory."),
	}
}

func bindAgentCommands(a *Agent) []binding {
	return []binding{
		key("agent.command_timeout", durationValue{&a.CommandTimeout, seconds(1), seconds(86400)},
			"How long an issued command may take; frames to agents carry at most 3600 s of it.",
			"Raise it for slow actions. Must not be below redispatch_min_interval.", z4j("Z4J_COMMAND_TIMEOUT_SECONDS")),
		key("agent.command_timeout_sweep", durationValue{&a.CommandTimeoutSweep, seconds(1), seconds(300)},
			"Interval at which overdue commands are timed out.",
			"Lower it to notice sooner.", z4j("Z4J_COMMAND_TIMEOUT_SWEEP_SECONDS")),
		key("agent.redispatch_window", durationValue{&a.RedispatchWindow, seconds(1), seconds(3600)},
			"How long after dispatch a redeliverable command counts as possibly lost and is sent again to a poll.",
			"Raise it when responses to long-polls get lost for long.", z4j("Z4J_AGENT_LONGPOLL_REDISPATCH_SECONDS")),
		key("agent.redispatch_min_interval", durationValue{&a.RedispatchMinInterval, seconds(1), seconds(3600)},
			"Least gap between two sends of the same command.",
			"Must be strictly below redispatch_window and not above command_timeout.",
			z4j("Z4J_AGENT_LONGPOLL_REDISPATCH_MIN_INTERVAL_SECONDS")),
		key("agent.registry_reconcile_interval", durationValue{&a.RegistryReconcileInterval, seconds(1), seconds(600)},
			"Interval of the slow look for pending commands whose wake-up got lost.",
			"Rarely; delivery itself is woken by the commit.", z4j("Z4J_REGISTRY_RECONCILE_INTERVAL_SECONDS")),
	}
}

func bindAgentSessions(a *Agent) []binding {
	return []binding{
		key("agent.offline_timeout", durationValue{&a.OfflineTimeout, seconds(1), seconds(3600)},
			"Silence after which an agent counts as offline; agents send a heartbeat every 10 s.",
			"Raise it on unreliable networks.", z4j("Z4J_AGENT_OFFLINE_TIMEOUT_SECONDS")),
		key("agent.health_sweep", durationValue{&a.HealthSweep, seconds(1), seconds(300)},
			"Interval at which silent agents are marked offline.",
			"Lower it to notice sooner.", z4j("Z4J_AGENT_HEALTH_SWEEP_SECONDS")),
		key("agent.stale_prune_days", intValue{&a.StalePruneDays, 0, 3650},
			"Days of silence after which an agent is pruned; 0 keeps agents for ever.",
			"Lower it when agents are minted per deployment.", z4j("Z4J_AGENT_STALE_PRUNE_DAYS")),
		key("agent.hygiene_sweep", durationValue{&a.HygieneSweep, seconds(60), 30 * 24 * time.Hour},
			"Interval of the sweep that prunes stale agents and old workers.",
			"Lower it to prune sooner.", z4j("Z4J_AGENT_HYGIENE_SWEEP_SECONDS")),
		key("agent.ws_max_frame", sizeValue{&a.WSMaxFrame, 8 * KiB, 32 * MiB},
			"Largest WebSocket frame from an agent. The smaller of ws_max_frame and ws_frame_limit wins.",
			"Raise both when task results are large.", z4j("Z4J_WS_MAX_FRAME_BYTES")),
		key("agent.ws_frame_limit", sizeValue{&a.WSFrameLimit, KiB, 0},
			"Second cap of a WebSocket frame, the same setting under its other name. The smaller of the two wins.",
			"Raise it together with ws_max_frame.", z4j("Z4J_MAX_WS_FRAME_BYTES")),
		key("agent.ws_per_agent_cap", intValue{&a.WSPerAgentCap, 0, 10000},
			"Most concurrent sockets of one agent; 0 means no cap.",
			"Raise it when many worker processes share one agent.", z4j("Z4J_WS_PER_AGENT_CONCURRENCY_CAP")),
		key("agent.ws_idle_timeout", durationValue{&a.WSIdleTimeout, seconds(15), seconds(3600)},
			"A socket on which nothing arrives for this long is closed.",
			"Raise it when agents have their heartbeat loop off.", z4j("Z4J_WS_IDLE_TIMEOUT_SECONDS")),
		key("agent.ws_first_frame_timeout", durationValue{&a.WSFirstFrameTimeout, seconds(1), seconds(60)},
			"How long a new socket may wait before it says hello.",
			"Raise it on very slow links."),
		key("agent.ws_ingest_queue", intValue{&a.WSIngestQueue, 16, 50000},
			"Most frames of one socket that wait to be stored before reading pauses.",
			"Lower it to bound memory with many busy agents.", z4j("Z4J_WS_INGEST_QUEUE_MAXSIZE")),
		key("agent.longpoll_sessions", intValue{&a.LongPollSessions, 1, 1000000},
			"Most long-poll sessions remembered in all; beyond it the oldest idle one gives way, or the probe gets 503.",
			"Raise it when more long-poll workers than this connect."),
		key("agent.longpoll_sessions_per_agent", intValue{&a.LongPollSessionsPerAgent, 1, 10000},
			"Most long-poll sessions of one agent.",
			"Raise it when many worker processes share one agent."),
		key("agent.longpoll_session_idle", durationValue{&a.LongPollSessionIdle, seconds(30), seconds(86400)},
			"How long an idle long-poll session is remembered.",
			"Rarely; a forgotten session costs its agent one more probe."),
		key("agent.rate_limits", boolValue{&a.RateLimits},
			"Turns the rate buckets per client address on.",
			"Turn it off for load tests, or when a proxy in front limits already."),
		key("agent.connect_rate_limit", intValue{&a.ConnectRateLimit, 1, 1000000},
			"WebSocket connects and long-poll requests together, per client address and 60 s.",
			"Raise it when many workers share one address."),
		key("agent.bulk_rate_limit", intValue{&a.BulkRateLimit, 1, 1000000},
			"Bulk actions per client address and 60 s.",
			"Raise it for scripted clean-ups."),
	}
}

func bindAgentRecords(a *Agent) []binding {
	return []binding{
		key("agent.default_page_size", intValue{&a.DefaultPageSize, 1, 1000},
			"Records in a REST page when the request names no limit.",
			"Raise it for fewer requests.", z4j("Z4J_REST_DEFAULT_PAGE_SIZE")),
		key("agent.max_page_size", intValue{&a.MaxPageSize, 1, 5000},
			"Most records in a REST page. Must not be below default_page_size.",
			"Lower it to bound the cost of one request.", z4j("Z4J_REST_MAX_PAGE_SIZE")),
		key("agent.event_retention_days", intValue{&a.EventRetentionDays, 1, 3650},
			"Days for which events are kept.",
			"The size of the database follows it.", z4j("Z4J_EVENT_RETENTION_DAYS")),
		key("agent.audit_retention_days", intValue{&a.AuditRetentionDays, 1, 3650},
			"Days for which audit rows are kept.",
			"Raise it to what your auditors ask for.", z4j("Z4J_AUDIT_RETENTION_DAYS")),
		key("agent.redaction_extra_key_patterns", patternsValue(&a.RedactionExtraKeyPatterns),
			"Further keys whose values are redacted before an event is stored; matched anywhere in the key, in any case.",
			"Add the names your tasks use for personal or secret data.", z4j("Z4J_REDACTION_EXTRA_KEY_PATTERNS")),
	}
}
