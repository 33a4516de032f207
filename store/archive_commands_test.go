package store

import (
	"context"
	"os"
	"strings"
	"testing"
)

// What a connection asks at every hint must not depend on how many commands there ever were.
func TestWaitingCommandsAreFoundByIndex(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	db := openTest(t, func(o *Options) { o.Schema = string(schema) })
	for _, query := range []string{daemonCommandsToSend, daemonCommandsWaiting} {
		err := db.View(context.Background(), func(tx *ReadTx) error {
			rows, err := tx.Query("EXPLAIN QUERY PLAN "+query, 1)
			if err != nil {
				return err
			}
			defer rows.Close()
			var plan []string
			for rows.Next() {
				var id, parent, unused int
				var detail string
				if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
					return err
				}
				plan = append(plan, detail)
			}
			if text := strings.Join(plan, "; "); !strings.Contains(text, "daemon_commands_open") || strings.Contains(text, "SCAN c") {
				t.Errorf("plan: %s", text)
			}
			return rows.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
