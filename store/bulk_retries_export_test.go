package store

import (
	"github.com/google/uuid"

	"signalbox/appliance/agent/bulkretry"
)

// The texts of statements, for the test of their plans.
const (
	SQLBulkNamed         = sqlBulkNamed
	SQLBulkTaken         = sqlBulkTaken
	SQLBulkRetriesOpen   = sqlBulkRetriesOpen
	SQLBulkRetriesStaged = sqlBulkRetriesStaged
	SQLBulkRetryCounts   = sqlBulkRetryCounts
	SQLBulkTaskOf        = sqlBulkTaskOf
	SQLBulkRemoveTasks   = sqlBulkRemoveTasks
	SQLBulkCloseTasks    = sqlBulkCloseTasks
	SQLTasksStarted      = sqlTasksStarted
	SQLOpenTargets       = sqlOpenTargets
)

// BulkCandidatesQuery is the statement of BulkRetryCandidates.
func BulkCandidatesQuery(f bulkretry.Filter) string {
	text, _ := bulkCandidatesQuery(1, f, uuid.Nil)
	return text
}

// BulkListQuery is the statement of BulkRetryList.
func BulkListQuery(open, after bool) string { return bulkListQuery(open, after) }

// BulkRowsQuery is the statement of BulkRetryTasks.
func BulkRowsQuery(status bulkretry.TaskStatus) string { return bulkRowsQuery(status) }

// BulkRetryOfQuery is the statement of BulkRetryOf.
func BulkRetryOfQuery() string { return sqlBulkRetry + ` WHERE b.command_no = ?` }
