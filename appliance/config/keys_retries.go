package config

import "time"

func bindAgentRetries(a *Agent) []binding {
	return []binding{
		key("agent.bulk_retry_max_in_flight", intValue{&a.BulkRetryMaxInFlight, 1, 256},
			"Most commands of one bulk retry that are under way at once.",
			"Raise it when agents serve several workers; an agent executes its commands one after the other.",
			z4j("Z4J_BULK_RETRY_MAX_IN_FLIGHT")),
		key("agent.bulk_retry_timeout", durationValue{&a.BulkRetryTimeout, seconds(30), seconds(86400)},
			"How long a bulk retry waits for one of its commands to end before it is given up; each that ends starts the time again.",
			"Raise it when agents are away for longer.", z4j("Z4J_BULK_RETRY_PARENT_TIMEOUT_SECONDS")),
		key("agent.bulk_retry_scan", durationValue{&a.BulkRetryScan, time.Second / 10, seconds(60)},
			"Interval of the slow look at open bulk retries, for a hint that got lost.",
			"Rarely; the next command is issued when one ends or an agent comes.", z4j("Z4J_BULK_RETRY_SCAN_SECONDS")),
		key("agent.bulk_retry_scan_batch", intValue{&a.BulkRetryScanBatch, 1, 1000000},
			"Open bulk retries that the slow look reads at once.",
			"Rarely.", z4j("Z4J_BULK_RETRY_SCAN_BATCH")),
		key("agent.bulk_retry_confirm_above", intValue{&a.BulkRetryConfirmAbove, 0, 10000},
			"Number of tasks above which a bulk retry must say how many it means to retry.",
			"Lower it where a retry is costly; 0 asks always."),
		key("agent.reconcile_sweep", durationValue{&a.ReconcileSweep, seconds(30), seconds(3600)},
			"Interval at which tasks that run for long are asked about, at most 100 at a time.",
			"Lower it to notice lost tasks sooner.", z4j("Z4J_RECONCILIATION_SWEEP_SECONDS")),
		key("agent.reconcile_after", durationValue{&a.ReconcileAfter, seconds(60), seconds(86400)},
			"How long a task runs before its engine is asked what became of it.",
			"Raise it when tasks run for hours.", z4j("Z4J_RECONCILIATION_STALE_THRESHOLD_SECONDS")),
	}
}
