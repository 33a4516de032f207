package store

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"signalbox/appliance/clock"
)

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	goleak.VerifyTestMain(m)
}

const testSchema = `
-- Facts about the database itself.
CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT;
CREATE TABLE items (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  uid BLOB UNIQUE CHECK (uid IS NULL OR length(uid) = 16), -- of the peer
  name TEXT NOT NULL,
  at INTEGER,
  data BLOB
) STRICT;
CREATE TABLE parts (
  id INTEGER PRIMARY KEY,
  item INTEGER NOT NULL REFERENCES items(id),
  n INTEGER NOT NULL CHECK (n > 0)
) STRICT;
CREATE INDEX parts_by_item ON parts(item);
`

// tempOptions are those of an empty database. Its log is checkpointed when that is asked for, and inside a COMMIT: the clock of
// the upkeep stands, so that a test which looks at the files does not meet a checkpoint because it has taken long.
func tempOptions(t testing.TB) Options {
	t.Helper()
	return Options{Path: filepath.Join(t.TempDir(), "data", "test.db"), Schema: testSchema, Upkeep: clock.NewFake(time.Unix(0, 0))}
}

func openTest(t testing.TB, change func(*Options)) *DB {
	t.Helper()
	o := tempOptions(t)
	if change != nil {
		change(&o)
	}
	return openWith(t, o)
}

func openWith(t testing.TB, o Options) *DB {
	t.Helper()
	db, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// insert adds an item by name inside a transaction.
func insert(name string) func(*Tx) error {
	return func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO items(name, at) VALUES(?, ?)", name, tx.Now())
		return err
	}
}

func mustUpdate(t testing.TB, db *DB, fn func(*Tx) error) {
	t.Helper()
	if err := db.Update(context.Background(), "test", fn); err != nil {
		t.Fatalf("update: %v", err)
	}
}

// itemNames are the stored names in order of their ids.
func itemNames(t testing.TB, db *DB) []string {
	t.Helper()
	var names []string
	err := db.View(context.Background(), func(tx *ReadTx) error {
		var err error
		names, err = tx.testNames()
		return err
	})
	if err != nil {
		t.Fatalf("view: %v", err)
	}
	return names
}

// testNames shows how a query is written once for both kinds of transaction.
func (r *reader) testNames() ([]string, error) {
	rows, err := r.Query("SELECT name FROM items ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		names = append(names, n)
	}
	return names, rows.Err()
}
