package config

import "time"

// Schedules is the [schedules] section: the embedded scheduler and the fires that it makes (agent protocol G, K).
type Schedules struct {
	// Grace is how late a slot may be and still counts as on time.
	Grace Duration `toml:"grace"`
	// CatchUpMost is how many missed slots fire_all_missed fires for one schedule.
	CatchUpMost int `toml:"catch_up_most"`
	// CatchUpRate is how many missed slots are fired a second, over all schedules.
	CatchUpRate int `toml:"catch_up_rate"`
	// TriggerInterval is the least time between two triggers of one schedule by hand; 0 is no bound.
	TriggerInterval Duration `toml:"trigger_interval"`
	// PendingFiresRetentionDays is how long a fire waits in the buffer for an agent that can take it.
	PendingFiresRetentionDays int `toml:"pending_fires_retention_days"`
	// PendingFiresReplayInterval is the slow look at buffered fires; replay itself is woken by events.
	PendingFiresReplayInterval Duration `toml:"pending_fires_replay_interval"`
	// FiresRetentionDays is how long the history of fires is kept.
	FiresRetentionDays int `toml:"fires_retention_days"`
	// CircuitBreakerThreshold is how many failed fires in a row disable a schedule; 0: none ever does.
	CircuitBreakerThreshold int `toml:"circuit_breaker_threshold"`
	// CircuitBreakerInterval is the slow look for schedules that have reached the threshold.
	CircuitBreakerInterval Duration `toml:"circuit_breaker_interval"`
}

func defaultSchedules() Schedules {
	return Schedules{Grace: Duration(time.Minute), CatchUpMost: 1000, CatchUpRate: 100, TriggerInterval: Duration(5 * time.Second),
		PendingFiresRetentionDays: 7, PendingFiresReplayInterval: Duration(10 * time.Second), FiresRetentionDays: 30,
		CircuitBreakerThreshold: 5, CircuitBreakerInterval: Duration(time.Minute)}
}

func bindSchedules(s *Schedules) []binding {
	return []binding{
		key("schedules.grace", durationValue{&s.Grace, seconds(1), time.Hour},
			"How late a slot of a schedule may be decided and still counts as on time; later ones are missed, and catch_up rules.",
			"Raise it when restarts take longer and nothing may be missed by schedules that skip."),
		key("schedules.catch_up_most", intValue{&s.CatchUpMost, 1, 100_000},
			"Most missed slots that a schedule with fire_all_missed fires; the oldest beyond it are passed over and reported.",
			"Raise it when every missed run of a frequent schedule matters."),
		key("schedules.catch_up_rate", intValue{&s.CatchUpRate, 1, 10_000},
			"Most missed slots that are fired in a second, over all schedules.",
			"Lower it to spare the workers after a long time down."),
		key("schedules.trigger_interval", durationValue{&s.TriggerInterval, 0, time.Hour},
			"Least time between two triggers of one schedule by hand; 0 means no bound.",
			"Raise it when scripts trigger more than they should."),
		key("schedules.pending_fires_retention_days", intValue{&s.PendingFiresRetentionDays, 1, 365},
			"Days for which a fire waits for an online agent that lists its engine before it ends as buffer_expired.",
			"Lower it when an old run is worse than none.", z4j("Z4J_PENDING_FIRES_RETENTION_DAYS")),
		key("schedules.pending_fires_replay_interval", durationValue{&s.PendingFiresReplayInterval, seconds(1), seconds(300)},
			"Interval of the slow look at buffered fires; replay itself is woken by the agent that comes.",
			"Rarely.", z4j("Z4J_PENDING_FIRES_REPLAY_INTERVAL_SECONDS")),
		key("schedules.fires_retention_days", intValue{&s.FiresRetentionDays, 1, 3650},
			"Days for which the history of fires is kept.",
			"Lower it with many frequent schedules: each fire is a row.", z4j("Z4J_SCHEDULE_FIRES_RETENTION_DAYS")),
		key("schedules.circuit_breaker_threshold", intValue{&s.CircuitBreakerThreshold, 0, 100},
			"Failed fires in a row that disable a schedule; 0 turns the circuit breaker off.",
			"Raise it for schedules that may fail for a while.", z4j("Z4J_SCHEDULE_CIRCUIT_BREAKER_THRESHOLD")),
		key("schedules.circuit_breaker_interval", durationValue{&s.CircuitBreakerInterval, seconds(5), seconds(3600)},
			"Interval of the slow look for schedules that have reached the threshold; a failure itself trips at once.",
			"Rarely.", z4j("Z4J_SCHEDULE_CIRCUIT_BREAKER_INTERVAL_SECONDS")),
	}
}
