package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/fault"
)

// restoreTime names what restores of these tests keep.
var restoreTime = time.Date(2026, 6, 1, 12, 0, 0, 5000, time.UTC)

const restoreName = "20260601T120000.000005Z"

// closedWith makes a database with one item and closes it.
func closedWith(t *testing.T, item string) (path, epoch string) {
	t.Helper()
	db := openTest(t, nil)
	mustUpdate(t, db, insert(item))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return db.path, db.epoch
}

// dirState is every file of a directory by name and content. The lock is left out: it comes and stays.
func dirState(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".lock") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %x\n", e.Name(), sha256.Sum256(content))
	}
	return b.String()
}

// crashed leaves a database whose last commit is only in its log, as a kill does.
func crashed(t *testing.T, path, item string) {
	t.Helper()
	live := openTest(t, nil)
	mustUpdate(t, live, insert(item))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(live.path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if walSize(t, live) == 0 {
		t.Fatal("the log is empty, the test is void")
	}
}

func TestRestoreKeepsTheFormerDatabaseWithItsLog(t *testing.T) {
	t.Parallel()
	from, epoch := closedWith(t, "restored")
	path := filepath.Join(t.TempDir(), "data", "test.db")
	crashed(t, path, "former")
	r, err := Restore(context.Background(), from, path, restoreTime)
	if err != nil {
		t.Fatal(err)
	}
	if want := path + suffixBefore + restoreName; r.Kept != want || r.Path != path || r.Version != currentVersion(t) || r.Bytes == 0 {
		t.Errorf("%+v, want the former one at %s", r, want)
	}
	db := openWith(t, Options{Path: path, Schema: testSchema})
	if got := itemNames(t, db); !slices.Equal(got, []string{"restored"}) || db.Epoch() == epoch {
		t.Errorf("restored %v with epoch %s, which must not be %s", got, db.Epoch(), epoch)
	}
	former := openWith(t, Options{Path: r.Kept, Schema: testSchema})
	if got := itemNames(t, former); !slices.Equal(got, []string{"former"}) {
		t.Errorf("kept %v", got)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", i, err)
	}
}

func TestRestoreIntoAnEmptyPlace(t *testing.T) {
	t.Parallel()
	from, _ := closedWith(t, "restored")
	path := filepath.Join(t.TempDir(), "new", "test.db")
	r, err := Restore(context.Background(), from, path, restoreTime)
	if err != nil || r.Kept != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := itemNames(t, openWith(t, Options{Path: path, Schema: testSchema})); !slices.Equal(got, []string{"restored"}) {
		t.Errorf("restored %v", got)
	}
}

// TestRestoreSurvivesAKillAnywhere stops a restore after every step, also with steps that ran twice: before the copy
// has its name the next start finds the former database, afterwards the restored one, and the former one is kept whole.
func TestRestoreSurvivesAKillAnywhere(t *testing.T) {
	t.Parallel()
	steps := len(restoreSteps("x", restoreName))
	for done := -1; done <= steps; done++ {
		from, _ := closedWith(t, "restored")
		path := filepath.Join(t.TempDir(), "test.db")
		crashed(t, path, "former")
		if _, err := takeCopy(context.Background(), from, path+suffixRestoring); err != nil {
			t.Fatal(err)
		}
		want := []string{"former"}
		if done >= 0 {
			want = []string{"restored"}
			if err := os.Rename(path+suffixRestoring, path+suffixRestore+restoreName); err != nil {
				t.Fatal(err)
			}
			for i, step := range restoreSteps(path, restoreName)[:done] {
				if err := step(); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("killed after step %d: no database in place: %v", done, err)
		}
		db := openWith(t, Options{Path: path, Schema: testSchema})
		if got := itemNames(t, db); !slices.Equal(got, want) {
			t.Errorf("killed after step %d: %v, want %v", done, got, want)
		}
		if problems, err := db.IntegrityCheck(context.Background(), false); err != nil || len(problems) > 0 {
			t.Errorf("killed after step %d: %v, %v", done, problems, err)
		}
		if done < 0 {
			continue
		}
		former := openWith(t, Options{Path: path + suffixBefore + restoreName, Schema: testSchema})
		if got := itemNames(t, former); !slices.Equal(got, []string{"former"}) {
			t.Errorf("killed after step %d: kept %v", done, got)
		}
	}
}

func TestRestoreRefusesAndChangesNothing(t *testing.T) {
	t.Parallel()
	good, _ := closedWith(t, "restored")
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	withBytes := func(change func([]byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, change(slices.Clone(content)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	be32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte {
			b[at], b[at+1], b[at+2], b[at+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
			return b
		}
	}
	tests := map[string]struct {
		make func(t *testing.T, path string)
		want fault.Code
	}{
		"missing":     {func(*testing.T, string) {}, fault.NotFound},
		"directory":   {func(t *testing.T, path string) { _ = os.Mkdir(path, 0o700) }, fault.Invalid},
		"empty":       {withBytes(func([]byte) []byte { return nil }), fault.Conflict},
		"text":        {withBytes(func([]byte) []byte { return []byte(strings.Repeat("x", 4096)) }), fault.Conflict},
		"foreign":     {withBytes(be32(68, 77)), fault.Conflict},
		"newer":       {withBytes(be32(60, 99)), fault.Conflict},
		"cut":         {withBytes(func(b []byte) []byte { return b[:len(b)/2] }), fault.Corrupt},
		"broken page": {withBytes(func(b []byte) []byte { return append(b[:4096], make([]byte, len(b)-4096)...) }), fault.Corrupt},
		"with a log":  {func(t *testing.T, path string) { crashed(t, path, "x") }, fault.Conflict},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to := filepath.Join(t.TempDir(), "from.db"), filepath.Join(t.TempDir(), "test.db")
			c.make(t, from)
			crashed(t, to, "former")
			before := dirState(t, filepath.Dir(to))
			if _, err := Restore(context.Background(), from, to, restoreTime); !fault.Is(err, c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if after := dirState(t, filepath.Dir(to)); after != before {
				t.Errorf("changed\n%s to\n%s", before, after)
			}
		})
	}
}

func TestRestoreRefusesADatabaseInUse(t *testing.T) {
	t.Parallel()
	from, _ := closedWith(t, "restored")
	db := openTest(t, nil)
	mustUpdate(t, db, insert("former"))
	if _, err := Restore(context.Background(), from, db.path, restoreTime); !InUse(err) {
		t.Errorf("restore over a database in use: %v", err)
	}
	if _, err := OpenFile(context.Background(), db.path); !InUse(err) {
		t.Errorf("upkeep of a database in use: %v", err)
	}
	if _, err := Restore(context.Background(), db.path, db.path, restoreTime); !fault.Is(err, fault.Invalid) {
		t.Errorf("restore of itself: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	to := filepath.Join(t.TempDir(), "test.db")
	if _, err := Restore(ctx, from, to, restoreTime); !fault.Is(err, fault.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if got := dirState(t, filepath.Dir(to)); got != "" {
		t.Errorf("left %s", got)
	}
	if got := itemNames(t, db); !slices.Equal(got, []string{"former"}) {
		t.Errorf("the database holds %v", got)
	}
}

func TestUpkeepOfAStoppedDatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	if _, err := OpenFile(context.Background(), path); !fault.Is(err, fault.NotFound) {
		t.Errorf("no database: %v", err)
	}
	crashed(t, path, "in the log")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := f.IntegrityCheck(context.Background(), false)
	if err != nil || len(problems) > 0 || f.SchemaVersion() != currentVersion(t) || f.Path() != path {
		t.Errorf("%v, %v, version %d of %s", problems, err, f.SchemaVersion(), f.Path())
	}
	target := filepath.Join(t.TempDir(), "copy.db")
	if err := f.Backup(context.Background(), target); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || !slices.Equal(before, after) {
		t.Errorf("check and backup changed the file (%v)", err)
	}
	if got := itemNames(t, openWith(t, Options{Path: target, Schema: testSchema})); !slices.Equal(got, []string{"in the log"}) {
		t.Errorf("copied %v", got)
	}
	f.Close()
	if got := itemNames(t, openWith(t, Options{Path: path, Schema: testSchema})); !slices.Equal(got, []string{"in the log"}) {
		t.Errorf("left %v", got)
	}
}

func TestVacuumOfAStoppedDatabase(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 3000)
	mustUpdate(t, db, func(tx *Tx) error { _, err := tx.Exec("DELETE FROM items"); return err })
	size, free, err := db.Space(context.Background())
	if err != nil || free < 2<<20 {
		t.Fatalf("%d, %d, %v", size, free, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(context.Background(), db.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Vacuum(context.Background()); err != nil {
		t.Fatal(err)
	}
	left, leftFree, err := f.Space(context.Background())
	info, err2 := os.Stat(db.path)
	if err := errors.Join(err, err2); err != nil || leftFree != 0 || left > size-free || info.Size() != left {
		t.Errorf("%d bytes, %d free, after %d, %d: %v", left, leftFree, size, free, err)
	}
}

func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	path, _ := closedWith(t, "a")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[len(b)-4096:])
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	problems, err := f.IntegrityCheck(context.Background(), true)
	if len(problems) == 0 || err != nil {
		t.Errorf("found %v, %v", problems, err)
	}
}

func TestBackupRefusesBadTargets(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	mustUpdate(t, db, insert("a"))
	dir := filepath.Dir(db.path)
	stranger := filepath.Join(t.TempDir(), "copy.db.tmp")
	if err := os.WriteFile(stranger, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := dirState(t, dir)
	for path, want := range map[string]fault.Code{
		db.path: fault.Invalid, db.path + "-wal": fault.Invalid, db.path + "-journal": fault.Invalid, db.path + ".lock": fault.Invalid,
		filepath.Join(dir, "no", "copy.db"): fault.Invalid, filepath.Join(db.path, "copy.db"): fault.Invalid, stranger: fault.Conflict,
	} {
		if err := db.Backup(context.Background(), path); !fault.Is(err, want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if after := dirState(t, dir); after != before {
		t.Errorf("changed\n%s to\n%s", before, after)
	}
	if err := db.Backup(context.Background(), strings.TrimSuffix(stranger, ".tmp")); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(stranger); err != nil || string(b) != "mine" {
		t.Errorf("a stranger's file became %q, %v", b, err)
	}
}

// A copy whose disk fails is a failed copy, not a damaged database.
func TestFailingCopyLeavesTheDatabaseAtWork(t *testing.T) {
	t.Parallel()
	db := openTest(t, func(o *Options) { o.OnFatal = func(err error) { t.Errorf("fatal: %v", err) } })
	path := filepath.Join(t.TempDir(), "copy.db")
	broken := &fault.Error{Code: fault.Corrupt, Msg: "the copy's disk fails"}
	err := backup(context.Background(), db.path, path, func(ctx context.Context, fn func(*conn) error) error {
		return errors.Join(db.copying(ctx, fn), db.copying(ctx, func(*conn) error { return broken }))
	})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	if got := dirState(t, filepath.Dir(path)); got != "" {
		t.Errorf("left %s", got)
	}
	mustUpdate(t, db, insert("after"))
}

// currentVersion is the version that a database has after the last migration.
func currentVersion(t *testing.T) int {
	t.Helper()
	scripts, err := loadMigrations(nil)
	if err != nil {
		t.Fatal(err)
	}
	return scripts.version()
}
