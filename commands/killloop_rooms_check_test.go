package commands

import (
	"database/sql"
	"testing"

	"github.com/google/uuid"
)

// ledgerDB reads the database beside the server.
type ledgerDB struct {
	*sql.DB
	seen  int64             // highest item_no read
	items map[string]string // id -> body, as far as read
}

func openLedgerDB(t *testing.T, path string) *ledgerDB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &ledgerDB{DB: db, items: map[string]string{}}
}

// each reads the rows of a query.
func (db *ledgerDB) each(t *testing.T, row func(*sql.Rows) error, query string, args ...any) {
	t.Helper()
	rows, err := db.Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// readItems reads the items that came since the last time.
func (db *ledgerDB) readItems(t *testing.T) {
	t.Helper()
	db.each(t, func(rows *sql.Rows) error {
		var id uuid.UUID
		var body string
		err := rows.Scan(&db.seen, &id, &body)
		db.items[id.String()] = body
		return err
	}, "SELECT item_no, id, body FROM room_items WHERE item_no > ? ORDER BY item_no", db.seen)
}

// heads are the last numbers issued, by agent.
func (db *ledgerDB) heads(t *testing.T, l *roomLedger) map[uuid.UUID]int64 {
	t.Helper()
	heads := map[uuid.UUID]int64{}
	db.each(t, func(rows *sql.Rows) error {
		var id uuid.UUID
		var head int64
		err := rows.Scan(&id, &head)
		heads[id] = head
		return err
	}, `SELECT id, max(head, coalesce((SELECT max(sequence) FROM room_events e WHERE e.room_agent_no = a.room_agent_no), 0))
FROM room_agents a`)
	return heads
}

// checkRestart is what must hold after every start: what clients know is in the database.
func (l *roomLedger) checkRestart(t *testing.T, db *ledgerDB) {
	t.Helper()
	l.mu.Lock()
	known := map[string]string{}
	for body, id := range l.acked {
		known[body] = id
	}
	cursors := make([]int64, len(l.receivers))
	for i, r := range l.receivers {
		cursors[i] = r.cursor
	}
	for _, w := range l.wrong {
		t.Error(w)
	}
	l.wrong = nil
	l.mu.Unlock()
	db.readItems(t)
	for body, id := range known {
		if stored, ok := db.items[id]; !ok || stored != body {
			t.Errorf("%s was acknowledged as %s and is lost", body, id)
		}
	}
	heads := db.heads(t, l)
	for i, r := range l.receivers {
		if head := heads[r.cfg.AgentID]; head < cursors[i] {
			t.Errorf("%s has received event %d, and the last one numbered is %d", r.name, cursors[i], head)
		}
	}
}

// check compares the ledgers with the database of a server that is down and whose receivers had read everything.
func (l *roomLedger) check(t *testing.T, db *ledgerDB) {
	t.Helper()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity_check: %q %v", verdict, err)
	}
	l.checkRestart(t, db)
	if len(l.acked) == 0 || l.repeats == 0 {
		t.Errorf("%d posts acknowledged, %d after a repetition: it tested nothing", len(l.acked), l.repeats)
	}
	for _, body := range l.twice {
		t.Errorf("the request of %s was answered with two items", body)
	}
	stored := map[string]int{}
	for _, body := range db.items {
		if body != "" {
			stored[body]++
		}
	}
	for body, n := range stored {
		if n > 1 {
			t.Errorf("%s is stored %d times", body, n)
		}
		if l.sent[body] == 0 {
			t.Errorf("%s is stored and was never sent", body)
		}
	}
	for _, r := range l.receivers {
		l.checkReceiver(t, db, r)
	}
	// Every item is queued for everybody who was in the room, and for its sender not.
	var missing int
	if err := db.QueryRow(`SELECT count(*) FROM (SELECT m.room_agent_no, i.item_no FROM room_items i
JOIN room_members m ON m.room_no = i.room_no AND m.joined_position < i.position
WHERE NOT (i.sender_kind = 'agent' AND i.sender_no = m.room_agent_no)
EXCEPT SELECT room_agent_no, item_no FROM room_events)`).Scan(&missing); err != nil {
		t.Fatal(err)
	}
	if missing > 0 {
		t.Errorf("%d events were never queued", missing)
	}
}

// checkReceiver: what was queued was received, under the same numbers, and each room in its order.
func (l *roomLedger) checkReceiver(t *testing.T, db *ledgerDB, r *killReceiver) {
	t.Helper()
	last, order, wrong := r.start, map[int64]int64{}, 0
	db.each(t, func(rows *sql.Rows) error {
		var sequence, room, position int64
		var id uuid.UUID
		var kind string
		if err := rows.Scan(&sequence, &id, &kind, &room, &position); err != nil {
			return err
		}
		want := id.String()
		if kind == "room_join" {
			want = ""
		}
		switch {
		case sequence != last+1:
			t.Errorf("%s: number %d follows %d", r.name, sequence, last)
		case sequence >= int64(len(r.items)):
			wrong++
		case r.items[sequence] != want:
			t.Errorf("%s: event %d was received as %s and is %s", r.name, sequence, r.items[sequence], want)
		case position <= order[room]:
			t.Errorf("%s: event %d has position %d of its room, after %d", r.name, sequence, position, order[room])
		}
		last, order[room] = sequence, position
		return nil
	}, `SELECT e.sequence, i.id, i.kind, i.room_no, i.position FROM room_events e JOIN room_items i USING (item_no)
WHERE e.room_agent_no = (SELECT room_agent_no FROM room_agents WHERE id = ?) AND e.sequence > ?
ORDER BY e.sequence`, r.cfg.AgentID[:], r.start)
	if wrong > 0 || last != r.cursor || last == r.start {
		t.Errorf("%s: %d events queued, the last received is %d, %d never were", r.name, last, r.cursor, wrong)
	}
}
