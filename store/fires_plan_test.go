package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/store"
	"signalbox/store/storetest"
)

// TestPlansOfFires holds the lists of fires, under every filter, and what goes through their history to their indexes: none
// reads more rows than it gives or removes, but for those that belong to another project, and none sorts.
func TestPlansOfFires(t *testing.T) {
	db := storetest.Open(t)
	plan := func(query string) (out []string) {
		t.Helper()
		if err := db.View(context.Background(), func(tx *store.ReadTx) error {
			rows, err := tx.Query("EXPLAIN QUERY PLAN "+query, make([]any, strings.Count(query, "?"))...)
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
		return out
	}
	type statement struct{ name, query, index string }
	statements := []statement{
		{"fires of a schedule", store.SQLFiresOfSchedule, "fires_of_schedule (schedule_no=?)"},
		{"deleted schedules", store.SQLSchedulesDeleted, "schedules_deleted (deleted_at>?)"},
		{"prune misfires", store.SQLPruneMisfires, "schedule_misfires_by_time (at<?)"},
		{"replay", store.SQLPendingToReplay, "pending_fires_replay (project_no=? AND engine=? AND scheduled_for>?)"},
		{"purge of the buffer", store.SQLPurgeSchedule()[0], "pending_fires_of_schedule (schedule_no=?)"},
		{"purge of fires", store.SQLPurgeSchedule()[1], "(schedule_no=?)"},
		{"purge of misfires", store.SQLPurgeSchedule()[2], "schedule_misfires_of_schedule (schedule_no=?)"},
	}
	for _, bySchedule := range []bool{false, true} {
		for _, byStatus := range []bool{false, true} {
			for _, since := range []bool{false, true} {
				for _, next := range []bool{false, true} {
					f, page := fire.Filter{}, agent.Page{Limit: 5}
					index, of, bounds := "fires_by_time", "project_no=?", ""
					if bySchedule {
						f.ScheduleID, index, of = uuid.New(), "fires_of_schedule", "schedule_no=?"
					}
					if byStatus {
						f.Status, of = fire.Failed, of+" AND status=?"
						if index += "_by_status"; !bySchedule {
							index = "fires_by_status"
						}
					}
					if since {
						f.Since, bounds = time.Now(), " AND fired_at>?"
					}
					if next {
						page.After = (&fire.Fire{No: 7, FiredAt: time.Now()}).Place()
						if since {
							bounds += " AND fired_at<?"
						} else {
							bounds = " AND fired_at<?"
						}
					}
					statements = append(statements, statement{fmt.Sprintf("schedule %v, status %v, since %v, next page %v", bySchedule, byStatus,
						since, next), store.FiresQuery(f, page), index + " (" + of + bounds + ")"})
				}
			}
		}
	}
	for _, s := range statements {
		got := plan(s.query)
		all := strings.Join(got, "\n")
		if !strings.Contains(all, s.index) || strings.Contains(all, "TEMP B-TREE") {
			t.Errorf("%s: the plan is\n%s\nwant %s, and no sorting", s.name, all, s.index)
		}
		for _, line := range got {
			if strings.HasPrefix(line, "SCAN") {
				t.Errorf("%s: %s", s.name, line)
			}
		}
	}
}
