package store

import (
	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
)

// The texts of statements about schedules and fires, for the test of their plans.
const (
	SQLFiresOfSchedule  = sqlFiresOfSchedule
	SQLSchedulesDeleted = sqlSchedulesDeleted
	SQLPruneMisfires    = sqlPruneMisfires
	SQLPendingToReplay  = sqlPendingToReplay
)

// SQLPurgeSchedule are the statements of PurgeSchedule.
func SQLPurgeSchedule() []string { return sqlPurgeSchedule[:] }

// FiresQuery is the statement of Fires.
func FiresQuery(f fire.Filter, page agent.Page) string {
	text, _ := firesQuery(1, f, page)
	return text
}
