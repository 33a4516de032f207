package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/store"
	"signalbox/store/storetest"
)

// TestPlansOfRecords holds the lists and the retention of large tables to their indexes: none of them may sort or scan
// a whole table to give one page. The by-task list alone sorts, the few events of one task.
func TestPlansOfRecords(t *testing.T) {
	db := storetest.Open(t)
	plan := func(query string, args ...any) string {
		t.Helper()
		var out []string
		if err := db.View(context.Background(), func(tx *store.ReadTx) error {
			rows, err := tx.Query("EXPLAIN QUERY PLAN "+query, args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var id, parent, unused int
				var detail string
				if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
					return err
				}
				out = append(out, detail)
			}
			return rows.Err()
		}); err != nil {
			t.Fatal(err)
		}
		return strings.Join(out, "; ")
	}
	after := agent.Page{Limit: 5, After: agent.Cursor{At: time.Now(), ID: uuid.New()}}
	for _, c := range []struct {
		name, query string
		has         string
		sorts       bool
	}{
		{"events", store.EventsQuery(agent.EventFilter{}, 0, after), "e USING INDEX events_identity (project_no=? AND", false},
		{"events of a kind", store.EventsQuery(agent.EventFilter{Kind: "k"}, 0, after), "e USING INDEX events_identity", false},
		{"events of an agent", store.EventsQuery(agent.EventFilter{AgentID: uuid.New()}, 0, after), "e USING INDEX events_identity", false},
		{"events of a task", store.EventsQuery(agent.EventFilter{}, 7, after), "e USING INDEX events_of_task (task_no=?)", true},
		{"stream", store.StreamQuery(agent.EventFilter{Engine: "e", TaskID: "t"}), "e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", false},
		{"tasks", store.TasksQuery(agent.TaskFilter{}, after), "t USING INDEX sqlite_autoindex_tasks_1 (project_no=? AND id<?)", false},
		{"failures", store.TasksQuery(agent.TaskFilter{State: "failure"}, after), "t USING INDEX tasks_failed (project_no=? AND id<?)", false},
		{"prune events", store.SQLPruneEvents, "events USING COVERING INDEX events_identity (project_no=? AND occurred_at<?)", false},
		{"prune tasks", store.SQLPruneTasksScan, "t USING INDEX sqlite_autoindex_tasks_1 (project_no=? AND id>? AND id<?)", false},
		{"expired events", store.SQLEventsExpired, "events USING COVERING INDEX events_identity", false},
		{"groups of buffered fires", store.SQLPendingGroups, "b USING COVERING INDEX pending_fires_replay (project_no=? AND engine>?)", false},
	} {
		got := plan(c.query, make([]any, strings.Count(c.query, "?"))...)
		if !strings.Contains(got, c.has) {
			t.Errorf("%s: plan %s\nlacks %s", c.name, got, c.has)
		}
		if sorts := strings.Contains(got, "TEMP B-TREE"); sorts != c.sorts {
			t.Errorf("%s: sorts %v: %s", c.name, sorts, got)
		}
	}
}
