package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

func TestOpenModesAndSettings(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	mustUpdate(t, db, insert("a"))
	for path, want := range map[string]os.FileMode{
		filepath.Dir(db.path): 0o700, db.path: 0o600, db.path + "-wal": 0o600, db.path + "-shm": 0o600, db.path + ".lock": 0o600,
	} {
		i, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if i.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(path), i.Mode().Perm(), want)
		}
	}
	app, err1 := db.writer.conn.int64("PRAGMA application_id")
	version, err2 := db.writer.conn.int64("PRAGMA user_version")
	if err := errors.Join(err1, err2); err != nil || app != applicationID || version < firstVersion {
		t.Errorf("application id %#x, version %d, %v", app, version, err)
	}
}

func TestPragmasAreVerified(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	c, err := openConn(context.Background(), db.path, roleReader)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	if err := c.script("PRAGMA synchronous = OFF"); err != nil {
		t.Fatal(err)
	}
	if err := verifyPragmas(context.Background(), c.sc, roleReader); err == nil || !strings.Contains(err.Error(), "synchronous") {
		t.Errorf("verify with synchronous off: %v", err)
	}
}

func TestPathWithOddCharacters(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a b%20?c#d")
	db := openWith(t, Options{Path: filepath.Join(dir, "x y?.db"), Schema: testSchema})
	mustUpdate(t, db, insert("a"))
	if _, err := os.Stat(filepath.Join(dir, "x y?.db-wal")); err != nil {
		t.Fatal(err)
	}
}

func TestSecondOpenNamesTheOwner(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	_, err := Open(context.Background(), Options{Path: db.path, Schema: testSchema})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Message(err), strconv.Itoa(os.Getpid())) {
		t.Fatalf("second open: %v", err)
	}
	mustUpdate(t, db, insert("a"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	openWith(t, Options{Path: db.path, Schema: testSchema})
}

func TestForeignFilesAreRefusedUnchanged(t *testing.T) {
	t.Parallel()
	makeDB := func(statements string) func(string) error {
		return func(path string) error {
			d, err := sql.Open("sqlite", path)
			if err != nil {
				return err
			}
			_, err = d.Exec(statements)
			return errors.Join(err, d.Close())
		}
	}
	write := func(b []byte) func(string) error {
		return func(path string) error { return os.WriteFile(path, b, 0o600) }
	}
	tests := map[string]func(string) error{
		"text":             write([]byte("hello, this is no database\n")),
		"long text":        write([]byte(strings.Repeat("x", 4096))),
		"other sqlite":     makeDB("CREATE TABLE a(b)"),
		"other id":         makeDB("PRAGMA application_id = 77; CREATE TABLE a(b)"),
		"other id, no row": makeDB("PRAGMA application_id = 77"),
		"version only":     makeDB("PRAGMA user_version = 3"),
		"newer":            makeDB(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = 99; CREATE TABLE a(b)", applicationID)),
	}
	for name, make := range tests {
		path := filepath.Join(t.TempDir(), "x.db")
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(context.Background(), Options{Path: path, Schema: testSchema})
		if !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
		if after, err := os.ReadFile(path); err != nil || !slices.Equal(before, after) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
	}
}

// Scripts of the test: version 2 adds a column, version 3 a table.
const (
	schemaV1 = `CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT;
CREATE TABLE a (id INTEGER PRIMARY KEY, x TEXT NOT NULL) STRICT;
CREATE TABLE kids (a INTEGER NOT NULL REFERENCES a(id)) STRICT;`
	schemaV3 = `CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT;
CREATE TABLE a (
  id INTEGER PRIMARY KEY,
  x  TEXT NOT NULL CHECK (x <> 'two  words -- not a comment'), -- rebuilt
  y  INTEGER NOT NULL DEFAULT 7
) STRICT;
CREATE TABLE kids (a INTEGER NOT NULL REFERENCES a(id)) STRICT;
CREATE TABLE b (id INTEGER PRIMARY KEY /* a rowid */) STRICT;
CREATE INDEX a_by_x ON a(x);`
	scriptV2 = `CREATE TABLE a_new (id INTEGER PRIMARY KEY, x TEXT NOT NULL CHECK (x <> 'two  words -- not a comment'), y INTEGER NOT NULL DEFAULT 7) STRICT;
INSERT INTO a_new(id, x) SELECT id, x FROM a;
DROP TABLE a;
ALTER TABLE a_new RENAME TO a;`
	scriptV3 = `CREATE TABLE b (id INTEGER PRIMARY KEY) STRICT; CREATE INDEX a_by_x ON a(x);`
)

func scriptFS(texts ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i, s := range texts {
		m[fmt.Sprintf("%04d_step.sql", i+2)] = &fstest.MapFile{Data: []byte(s)}
	}
	return m
}

// oldDatabase makes a version 1 database with a row and returns its path.
func oldDatabase(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "old.db")
	db, err := Open(context.Background(), Options{Path: path, Schema: schemaV1, Migrations: scriptFS()})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(context.Background(), "test", func(tx *Tx) error {
		if _, err := tx.Exec("INSERT INTO a(id, x) VALUES(5, 'kept')"); err != nil {
			return err
		}
		_, err := tx.Exec("INSERT INTO kids(a) VALUES(5)")
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func checkMigrated(t *testing.T, db *DB) {
	t.Helper()
	err := db.View(context.Background(), func(tx *ReadTx) error {
		var x string
		var y, version, kids int
		err := errors.Join(tx.QueryRow("SELECT x, y FROM a WHERE id = 5").Scan(&x, &y),
			tx.QueryRow("PRAGMA user_version").Scan(&version), tx.QueryRow("SELECT count(*) FROM kids").Scan(&kids))
		if x != "kept" || y != 7 || version != 3 || kids != 1 {
			t.Errorf("after migrating: %q %d, version %d, %d kids", x, y, version, kids)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t)
	o := Options{Path: path, Schema: schemaV3, Migrations: scriptFS(scriptV2, scriptV3)}
	db := openWith(t, o)
	checkMigrated(t, db)
	epoch := db.Epoch()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	baks := snapshots(t, path)
	if len(baks) != 1 || !strings.Contains(baks[0], "old.db.pre-v2-") {
		t.Fatalf("snapshots %v", baks)
	}
	if i, err := os.Stat(baks[0]); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("snapshot: %v, %v", i, err)
	}
	again := openWith(t, o)
	if again.Epoch() != epoch || len(snapshots(t, path)) != 1 {
		t.Error("a second open changed the epoch or took another snapshot")
	}
	// The snapshot is a whole database of the old version, with a numbering of its own.
	restored := openWith(t, Options{Path: baks[0], Schema: schemaV3, Migrations: scriptFS(scriptV2, scriptV3)})
	checkMigrated(t, restored)
	if restored.Epoch() == epoch {
		t.Error("a restored snapshot kept the epoch")
	}
}

func snapshots(t *testing.T, path string) []string {
	t.Helper()
	got, err := filepath.Glob(path + ".pre-v*.bak*")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestOnlyTheNewestSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fake := clock.NewFake(start)
	stop := errors.New("stop here")
	for range keptSnapshots + 2 {
		fake.Advance(time.Second)
		_, err := Open(context.Background(), Options{Path: path, Schema: schemaV3, Migrations: scriptFS(scriptV2, scriptV3), Clock: fake,
			Hooks: Hooks{BeforeMigrationCommit: func(int) error { return stop }}})
		if !errors.Is(err, stop) {
			t.Fatalf("open: %v", err)
		}
	}
	got := snapshots(t, path)
	if len(got) != keptSnapshots || !strings.Contains(got[0], "T000003.") {
		t.Fatalf("kept %v", got)
	}
}

func TestBadMigrationsLeaveTheOldVersion(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t)
	tests := map[string]struct {
		scripts fstest.MapFS
		schema  string
		code    fault.Code
		text    string
	}{
		"broken reference": {scriptFS("DELETE FROM a"), schemaV1, fault.Invalid, "kids row 1 has no a"},
		"syntax":           {scriptFS("CREATE TABLE c(d); NONSENSE"), schemaV1, fault.Internal, "0002_step.sql"},
		"gap":              {fstest.MapFS{"0003_x.sql": {Data: []byte("SELECT 1")}}, schemaV1, fault.Internal, "number 2 is missing"},
		"name":             {fstest.MapFS{"two.sql": {Data: []byte("SELECT 1")}}, schemaV1, fault.Internal, "NNNN_what_it_does.sql"},
	}
	for name, tt := range tests {
		_, err := Open(context.Background(), Options{Path: path, Schema: tt.schema, Migrations: tt.scripts})
		if err == nil || !fault.Is(err, tt.code) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	checkMigrated(t, openWith(t, Options{Path: path, Schema: schemaV3, Migrations: scriptFS(scriptV2, scriptV3)}))
}

func TestSchemaDriftIsShown(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t)
	_, err := Open(context.Background(), Options{Path: path, Schema: schemaV3, Migrations: scriptFS()})
	for _, want := range []string{"table a\n  - CREATE TABLE a(id", "  + CREATE TABLE a(id", "table b\n  - CREATE TABLE b(", "index a_by_x\n  - "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("drift: %v\nlacks %q", err, want)
		}
	}
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("drift: %v", err)
	}
	openWith(t, Options{Path: path, Schema: schemaV1, Migrations: scriptFS()})
}

func TestNormaliseSQL(t *testing.T) {
	t.Parallel()
	same := [][2]string{
		{"CREATE TABLE a (b  TEXT)", "CREATE TABLE a(b TEXT )"},
		{"CREATE TABLE \"a\"(b)", "CREATE TABLE a(b)"},
		{"CREATE TABLE a(b -- note\n, c)", "CREATE TABLE a(b,c)"},
		{"CREATE/* x */TABLE a(b)", "CREATE TABLE a(b)"},
		{"x 'it''s'", "x  'it''s'"},
	}
	for _, s := range same {
		if a, b := normaliseSQL(s[0]), normaliseSQL(s[1]); a != b {
			t.Errorf("%q and %q differ: %q, %q", s[0], s[1], a, b)
		}
	}
	other := [][2]string{
		{"CHECK (x = 'a  b')", "CHECK (x = 'a b')"},
		{"a b", "ab"},
		{"CHECK (x = '-- a')", "CHECK (x = '-- b')"},
		{`"select"x`, `selectx`},
		{`"a b"`, `a b`},
	}
	for _, s := range other {
		if a, b := normaliseSQL(s[0]), normaliseSQL(s[1]); a == b {
			t.Errorf("%q and %q became the same %q", s[0], s[1], a)
		}
	}
	for _, s := range []string{"'", `"`, "--", "/*", "''", `""`, "'a", "/", "-"} {
		normaliseSQL(s)
	}
}
