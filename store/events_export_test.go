package store

import "signalbox/appliance/agent"

// The texts of statements, for the test of their plans.
const (
	SQLPruneEvents    = sqlPruneEvents
	SQLPruneTasksScan = sqlPruneTasksScan
	SQLEventsExpired  = sqlEventsExpired
	SQLPendingGroups  = sqlPendingGroups
)

// EventsQuery is the statement of ListEvents; taskNo is that of the filter's task, 0 for none.
func EventsQuery(f agent.EventFilter, taskNo int64, page agent.Page) string {
	text, _ := eventsQuery(1, taskNo, f, page)
	return text
}

// StreamQuery is the statement of EventsBetween.
func StreamQuery(f agent.EventFilter) string {
	text, _ := streamQuery(1, 0, 1, f, 1)
	return text
}

// TasksQuery is the statement of ListTasks.
func TasksQuery(f agent.TaskFilter, page agent.Page) string {
	text, _ := tasksQuery(1, f, page)
	return text
}
