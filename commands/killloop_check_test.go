package commands

import (
	"database/sql"
	"testing"

	"github.com/google/uuid"
	_ "modernc.org/sqlite"
)

// checkLedger compares the database with what the clients know.
func checkLedger(t *testing.T, path string, led *ledger) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity_check: %q %v", verdict, err)
	}
	checkEvents(t, db, led)
	checkCommands(t, db, led)
}

// checkEvents: acknowledged ⊆ stored ⊆ sent, and one row for every identity.
func checkEvents(t *testing.T, db *sql.DB, led *ledger) {
	t.Helper()
	stored := map[string]int{}
	rows, err := db.Query("SELECT task_id, kind FROM events")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var task, kind string
		if err := rows.Scan(&task, &kind); err != nil {
			t.Fatal(err)
		}
		stored[task+" "+kind]++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	lost, twice, foreign := 0, 0, 0
	for key := range led.acked {
		if stored[key] == 0 {
			lost++
		}
	}
	for key, n := range stored {
		if n > 1 {
			twice++
		}
		if led.sent[key] == 0 {
			foreign++
		}
	}
	if lost+twice+foreign > 0 || len(led.acked) == 0 {
		t.Errorf("events: %d acknowledged, %d of them lost; %d stored, %d of them more than once, %d never sent",
			len(led.acked), lost, len(stored), twice, foreign)
	}
}

// checkCommands: none lost, none run that was not claimed, none of the at-most-once kind handed over twice, every
// acknowledged result stored, every command ended.
func checkCommands(t *testing.T, db *sql.DB, led *ledger) {
	t.Helper()
	type row struct {
		status     string
		deliveries int
		ended      int64 // microseconds
	}
	stored := map[string]row{}
	rows, err := db.Query(`SELECT c.id, c.status, (SELECT count(*) FROM deliveries d WHERE d.command_no = c.command_no),
coalesce(c.completed_at, 0) FROM commands c`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id []byte
		var r row
		if err := rows.Scan(&id, &r.status, &r.deliveries, &r.ended); err != nil {
			t.Fatal(err)
		}
		u, err := uuid.FromBytes(id)
		if err != nil {
			t.Fatal(err)
		}
		stored[u.String()] = r
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for id, action := range led.issued {
		if _, ok := stored[id]; !ok {
			t.Errorf("command %s (%s) was accepted and is lost", id, action)
		}
	}
	for key, ids := range led.keys {
		for _, id := range ids[1:] {
			if id != ids[0] {
				t.Errorf("idempotency key %s made two commands", key)
			}
		}
	}
	for id, n := range led.executed {
		r, ok := stored[id]
		switch {
		case !ok || r.deliveries == 0:
			t.Errorf("command %s reached its agent and was never claimed", id)
		case led.actions[id] == "restart_worker" && n > 1:
			t.Errorf("command %s may be handed over once and was %d times", id, n)
		case n > r.deliveries:
			t.Errorf("command %s arrived %d times, the ledger has %d deliveries", id, n, r.deliveries)
		}
	}
	for id, at := range led.results {
		// A command that was handed over again and again may meet its deadline before its result: a late result is
		// acknowledged and changes nothing. One that was acknowledged before the command ended must have ended it.
		r := stored[id]
		if late := r.status == "timeout" && at.UnixMicro() > r.ended; r.status != "completed" && !late {
			t.Errorf("command %s: its result was acknowledged and it is %q", id, r.status)
		}
	}
	for id, r := range stored {
		if r.status == "pending" || r.status == "dispatched" {
			t.Errorf("command %s is still %s", id, r.status)
		}
	}
	if len(led.executed) == 0 || len(led.results) == 0 {
		t.Errorf("the loop executed %d commands and had %d results acknowledged: it tested nothing", len(led.executed), len(led.results))
	}
}
