package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/store"
	"signalbox/store/storetest"
)

// TestPlansOfNotifications holds what notifications run again and again to their indexes: the cost follows the rules and
// channels there are, or what is touched; never what was sent before, what waits, or agents that stay away.
func TestPlansOfNotifications(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	want := map[string][]string{
		"next group": {"SEARCH notification_groups USING COVERING INDEX notification_groups_due"},
		"due groups": {"SEARCH g USING INDEX notification_groups_due (due_at<?)", "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH p USING INTEGER PRIMARY KEY (rowid=?)"},
		"groups of a rule": {"SEARCH notification_groups USING COVERING INDEX sqlite_autoindex_notification_groups_1 (rule_no=?)"},
		"count":            {"SEARCH notification_groups USING INDEX sqlite_autoindex_notification_groups_1 (rule_no=? AND group_key=?)"},
		"channels of a rule": {"SEARCH notification_rule_channels USING COVERING INDEX sqlite_autoindex_notification_rule_channels_1 (rule_no=?)",
			"SEARCH notification_channels USING INTEGER PRIMARY KEY (rowid=?)"},
		"due channels":         {"SCAN c", "CORRELATED SCALAR SUBQUERY 1", "SEARCH n USING COVERING INDEX notifications_due (channel_no=?)"},
		"next message":         {"SEARCH c USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH n USING INDEX notifications_due (channel_no=?)"},
		"pending of a channel": {"SEARCH notifications USING COVERING INDEX notifications_due (channel_no=?)"},
		"pending":              {"SCAN notifications USING COVERING INDEX notifications_due"}, // of a scrape: what waits, not what was sent
		"resume":               {"SEARCH notifications USING INDEX notifications_due (channel_no=?)"},
		"expire":               {"SEARCH notifications USING INDEX notifications_due (channel_no=?)"},
		"end pending":          {"SEARCH notifications USING INDEX notifications_due (channel_no=?)"},
		"prune": {"SEARCH notifications USING INTEGER PRIMARY KEY (rowid=?)", "LIST SUBQUERY 1",
			"SEARCH notifications USING COVERING INDEX notifications_ended (ended_at>? AND ended_at<?)"},
		"offline": {"SCAN a USING INDEX agents_untold", "SEARCH p USING INTEGER PRIMARY KEY (rowid=?)"},
	}
	for name, statement := range store.NotifyStatements {
		var got []string
		if err := db.View(context.Background(), func(tx *store.ReadTx) error {
			rows, err := tx.Query("EXPLAIN QUERY PLAN "+statement, make([]any, parameters(statement))...)
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
				got = append(got, detail)
			}
			return rows.Err()
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.Join(got, "; ") != strings.Join(want[name], "; ") {
			t.Errorf("%s: plan\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want[name], "\n"))
		}
	}
}

// parameters is how many arguments a statement takes.
func parameters(statement string) int {
	n := 0
	for i := 1; strings.Contains(statement, fmt.Sprintf("?%d", i)); i++ {
		n = i
	}
	return max(n, strings.Count(statement, "?")*min(1, 1-min(n, 1)))
}

// TestOfflinePeriodsAreLookedAtOnce: a period leaves the index when it was looked at, and a new one of the same agent
// enters it.
func TestOfflinePeriodsAreLookedAtOnce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	since := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	var no int64
	update := func(fn func(tx *store.Tx) error) {
		t.Helper()
		if err := db.Update(context.Background(), "test", fn); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO projects (id, slug, name, environment, timezone, retention_days, is_active,
			default_scheduler_owner, created_at, updated_at) VALUES (?, 'one', 'One', 'test', 'UTC', 30, 1, 'celery', 0, 0)`, uuid.New())
		if err != nil {
			return err
		}
		project := res.LastInsertID()
		for i := range 3 {
			if res, err = tx.Exec(`INSERT INTO agents (id, project_no, name, token_hash, protocol_version, framework_adapter, engine_adapters,
				scheduler_adapters, capabilities, state, host, offline_since, created_at, updated_at)
				VALUES (?, ?, ?, ?, '2', 'bare', '[]', '[]', '{}', 'offline', '{}', ?, 0, 0)`, uuid.New(), project, fmt.Sprint("agent-", i),
				strings.Repeat(fmt.Sprint(i), 64), since.Add(time.Duration(i)*time.Second)); err != nil {
				return err
			}
		}
		no = res.LastInsertID()
		return nil
	})
	offline := func(want ...string) {
		t.Helper()
		var got []string
		if err := db.View(context.Background(), func(tx *store.ReadTx) error {
			all, err := tx.NotifyOffline(10)
			for _, a := range all {
				got = append(got, a.Name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("not looked at: %v, want %v", got, want)
		}
	}
	offline("agent-0", "agent-1", "agent-2")
	update(func(tx *store.Tx) error { return tx.NotifyMarkOffline(no, since.Add(2*time.Second)) })
	offline("agent-0", "agent-1")
	update(func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE agents SET offline_since = ? WHERE agent_no = ?`, since.Add(-time.Second), no)
		return err
	})
	offline("agent-2", "agent-0", "agent-1")
}
