package store

// NotifyStatements are the statements that notifications run again and again, for the test of their plans.
var NotifyStatements = map[string]string{
	"next group": sqlNotifyNextGroup, "due groups": sqlNotifyDueGroups, "groups of a rule": sqlNotifyGroups, "count": sqlNotifyCount,
	"channels of a rule": sqlNotifyRuleChannels, "due channels": sqlNotifyDueChannels, "next message": sqlNotifyNextOf,
	"pending of a channel": sqlNotifyPendingOf, "pending": sqlNotifyPendingCount, "resume": sqlNotifyResume,
	"expire": sqlNotifyExpire, "end pending": sqlNotifyEndPending, "prune": sqlNotifyPrune, "offline": sqlNotifyOffline,
}
