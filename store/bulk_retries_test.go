package store_test

import (
	"context"
	"strings"
	"testing"

	"signalbox/appliance/agent/bulkretry"
	"signalbox/store"
	"signalbox/store/storetest"
)

// TestPlansOfBulkRetries holds what bulk retries and the sweep of started tasks read to indexes: a step of one bulk retry costs
// nothing for what others, or the project's other tasks, amount to. None scans a table or sorts.
func TestPlansOfBulkRetries(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for name, c := range map[string]struct {
		query string
		has   []string
	}{
		"failures": {store.BulkCandidatesQuery(bulkretry.Filter{State: "failure", Name: "n", Engine: "e"}),
			[]string{"t USING INDEX tasks_failed (project_no=? AND id>?)", "r USING INDEX bulk_retry_tasks_of_task (task_id=? AND finished_at=?)",
				"b USING INTEGER PRIMARY KEY"}},
		"other tasks": {store.BulkCandidatesQuery(bulkretry.Filter{State: "retry"}),
			[]string{"t USING INDEX sqlite_autoindex_tasks_1 (project_no=? AND id>?)", "r USING INDEX bulk_retry_tasks_of_task"}},
		"a named task": {store.SQLBulkNamed, []string{"t USING INDEX tasks_identity (project_no=? AND engine=? AND task_id=?)",
			"r USING INDEX bulk_retry_tasks_of_task"}},
		"tasks that were taken": {store.SQLBulkTaken, []string{"m USING INDEX", "(bulk_retry_no=?)", "r USING INDEX bulk_retry_tasks_of_task"}},
		"by parent":             {store.BulkRetryOfQuery(), []string{"b USING INDEX", "(command_no=?)", "t USING COVERING INDEX bulk_retry_tasks_open"}},
		"open ones":             {store.SQLBulkRetriesOpen, []string{"b USING INDEX bulk_retries_open", "c USING INTEGER PRIMARY KEY"}},
		"staged ones":           {store.SQLBulkRetriesStaged, []string{"(command_no=?)"}},
		"counts":                {store.SQLBulkRetryCounts, []string{"bulk_retries_open"}},
		"list":                  {store.BulkListQuery(false, true), []string{"b USING INDEX bulk_retries_by_project (project_no=? AND bulk_retry_no<?)"}},
		"open list":             {store.BulkListQuery(true, false), []string{"b USING INDEX bulk_retries_"}},
		"tasks":                 {store.BulkRowsQuery(""), []string{"t USING INDEX", "(bulk_retry_no=? AND position>?)"}},
		"tasks that wait":       {store.BulkRowsQuery(bulkretry.Waiting), []string{"t USING INDEX bulk_retry_tasks_open (bulk_retry_no=? AND status=? AND position>?)"}},
		"tasks that failed":     {store.BulkRowsQuery(bulkretry.Failed), []string{"t USING INDEX", "(bulk_retry_no=? AND position>?)"}},
		"the task of a child":   {store.SQLBulkTaskOf, []string{"t USING INDEX", "(command_no=?)"}},
		"removal":               {store.SQLBulkRemoveTasks, []string{"b USING INTEGER PRIMARY KEY", "(bulk_retry_no=?)"}},
		"close":                 {store.SQLBulkCloseTasks, []string{"bulk_retry_tasks_open (bulk_retry_no=? AND status=?)"}},
		"started tasks":         {store.SQLTasksStarted, []string{"t USING INDEX tasks_started (started_at>? AND started_at<?)", "events_of_task"}},
		"open questions":        {store.SQLOpenTargets, []string{"commands_"}},
	} {
		var steps []string
		if err := db.View(context.Background(), func(tx *store.ReadTx) error {
			rows, err := tx.Query("EXPLAIN QUERY PLAN "+c.query, make([]any, strings.Count(c.query, "?"))...)
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
				steps = append(steps, detail)
			}
			return rows.Err()
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plan := strings.Join(steps, "; ")
		for _, part := range c.has {
			if !strings.Contains(plan, part) {
				t.Errorf("%s: plan %s\nlacks %s", name, plan, part)
			}
		}
		for _, step := range steps {
			// A scan of a partial index reads what is open alone.
			whole := strings.HasPrefix(step, "SCAN") && !strings.Contains(step, "_open") && !strings.Contains(step, "commands_deadline")
			if whole || strings.Contains(step, "TEMP B-TREE") && name != "open list" {
				t.Errorf("%s: %s in %s", name, step, plan)
			}
		}
	}
}
