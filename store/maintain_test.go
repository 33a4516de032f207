package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// fill stores n items of about 1 KiB.
func fill(t testing.TB, db *DB, n int) {
	t.Helper()
	mustUpdate(t, db, func(tx *Tx) error {
		for i := range n {
			if _, err := tx.Exec("INSERT INTO items(name, data) VALUES(?, zeroblob(1000))", fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestSlicesLetCallersThrough(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 100)
	slicesRun := 0
	err := db.Slices(context.Background(), "prune", func(tx *Tx) (bool, error) {
		slicesRun++
		res, err := tx.Exec("DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY id LIMIT 30)")
		return res.RowsAffected() == 30, err
	})
	if err != nil || slicesRun != 4 || len(itemNames(t, db)) != 0 {
		t.Fatalf("%d slices, %v, %d left", slicesRun, err, len(itemNames(t, db)))
	}
	stop := errors.New("stop")
	if err := db.Slices(context.Background(), "prune", func(*Tx) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := db.Slices(ctx, "prune", func(*Tx) (bool, error) { cancel(); return true, nil }); !fault.Is(err, fault.Canceled) {
		t.Fatal(err)
	}
}

func TestMaintenanceGivesWayButIsNotStarved(t *testing.T) {
	t.Parallel()
	caller, slice := &request{op: "caller"}, &request{op: "slice"}
	for unserved := range fairShare + 1 {
		w := &writer{queue: make(chan *request, 1), bg: make(chan *request, 1), stopping: make(chan struct{}), unserved: unserved}
		w.queue <- caller
		w.bg <- slice
		first, second := w.next(), w.next()
		want := []*request{caller, slice}
		if unserved == fairShare {
			want = []*request{slice, caller}
		}
		if !slices.Equal([]*request{first, second}, want) {
			t.Errorf("after %d commits of callers: %s, then %s", unserved, first.op, second.op)
		}
		close(w.stopping)
		if r := w.next(); r != nil {
			t.Errorf("stopped and empty: %s", r.op)
		}
	}
}

func TestPartialCheckpointIsNoError(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	mustUpdate(t, db, insert("before"))
	err := db.View(context.Background(), func(tx *ReadTx) error {
		if _, err := tx.testNames(); err != nil {
			return err
		}
		mustUpdate(t, db, insert("during"))
		return db.Checkpoint(context.Background())
	})
	if err != nil {
		t.Fatalf("checkpoint beside a reader: %v", err)
	}
	if n := testutil.ToFloat64(db.metrics.checkpoints.WithLabelValues("TRUNCATE", "partial")); n < 1 {
		t.Errorf("%v partial checkpoints counted", n)
	}
	mustUpdate(t, db, insert("after"))
}

func TestBackupWhileWriting(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 2000)
	ctx, cancel := context.WithCancel(context.Background())
	written := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := db.Update(context.Background(), "test", insert(fmt.Sprintf("during %d", n))); err != nil {
				t.Error(err)
				break
			}
		}
		written <- n
	}()
	path := filepath.Join(t.TempDir(), "copy.db")
	err := db.Backup(context.Background(), path)
	cancel()
	n := <-written
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("copy: %v, %v", i, err)
	}
	if err := db.Backup(context.Background(), path); !fault.Is(err, fault.Conflict) {
		t.Errorf("backup over a file: %v", err)
	}
	if left, _ := filepath.Glob(path + "?*"); len(left) != 0 {
		t.Errorf("left beside the copy: %v", left)
	}
	copied := openWith(t, Options{Path: path, Schema: testSchema})
	names := itemNames(t, copied)
	if len(names) < 2000 || len(names) > 2000+n || copied.Epoch() == db.Epoch() {
		t.Errorf("copy holds %d rows of %d, epoch %s", len(names), 2000+n, copied.Epoch())
	}
	if problems, err := copied.IntegrityCheck(context.Background(), false); err != nil || len(problems) != 0 {
		t.Errorf("copy: %v, %v", problems, err)
	}
	mustUpdate(t, db, insert("after"))
}

func TestCancelledBackupLeavesNothing(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 100)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := db.Backup(ctx, path); !fault.Is(err, fault.Canceled) {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
		t.Fatalf("left %v", left)
	}
	if err := db.Backup(context.Background(), filepath.Join(path, "no", "dir")); err == nil {
		t.Fatal("backup into nowhere worked")
	}
	mustUpdate(t, db, insert("a"))
}

func walSize(t *testing.T, db *DB) int64 {
	t.Helper()
	i, err := os.Stat(db.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return i.Size()
}

func TestCheckpointEmptiesTheLog(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 100)
	if walSize(t, db) == 0 {
		t.Fatal("no log")
	}
	if err := db.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := walSize(t, db); n != 0 {
		t.Fatalf("the log has %d bytes", n)
	}
	if len(itemNames(t, db)) != 100 {
		t.Fatal("rows lost")
	}
}

func TestCheckpointerActsOnSizeAndWhenIdle(t *testing.T) {
	t.Parallel()
	fake := clock.NewFake(time.Now())
	events := make(chan string, 1000)
	db := openTest(t, func(o *Options) {
		o.Upkeep = fake
		o.Limits.CheckpointBytes = 100 << 10
		o.Limits.IdleAfter = time.Second
		o.Hooks.Checkpointed = func(mode, result string) { events <- mode + " " + result }
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // time passes whenever somebody waits for it
		defer close(stopped)
		for {
			fake.BlockUntil(1)
			select {
			case <-stop:
				return
			default:
				fake.Advance(lookEvery)
			}
		}
	}()
	defer func() {
		close(stop)
		fake.NewTimer(time.Hour)
		<-stopped
	}()
	until := func(want string) (seen []string) {
		for e := range events {
			seen = append(seen, e)
			if e == want {
				return seen
			}
		}
		return seen
	}
	until("TRUNCATE complete") // the log of Open
	fill(t, db, 500)
	if seen := until("TRUNCATE complete"); len(seen) < 3 || seen[0] != "PASSIVE complete" {
		t.Errorf("checkpoints %v, want one for the size and two when idle", seen)
	}
	if n := walSize(t, db); n != 0 {
		t.Errorf("the log has %d bytes after idling", n)
	}
	if n := testutil.ToFloat64(db.metrics.checkpoints.WithLabelValues("TRUNCATE", "complete")); n != 2 {
		t.Errorf("%v truncating checkpoints", n)
	}
}

func TestLogStaysBoundedUnderLoad(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	var most int64
	for range 24 { // 48 MiB, three times what starts a checkpoint inside a COMMIT
		mustUpdate(t, db, func(tx *Tx) error {
			_, err := tx.Exec("INSERT INTO items(name, data) VALUES('x', zeroblob(2097152))")
			return err
		})
		most = max(most, walSize(t, db))
	}
	if limit := int64(2 * autoCheckpointPages * 4096); most > limit {
		t.Fatalf("the log grew to %d bytes, above %d", most, limit)
	}
}

func TestVacuumGivesPagesBack(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 3000)
	mustUpdate(t, db, func(tx *Tx) error { _, err := tx.Exec("DELETE FROM items"); return err })
	pages := func() (n int64) {
		t.Helper()
		err := db.View(context.Background(), func(tx *ReadTx) error { return tx.QueryRow("PRAGMA page_count").Scan(&n) })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := pages()
	if err := db.Vacuum(context.Background()); err != nil {
		t.Fatal(err)
	}
	if after := pages(); after > before/10 {
		t.Fatalf("%d pages of %d left", after, before)
	}
}

func TestIntegrityCheckReportsBrokenReferences(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	fill(t, db, 10)
	for _, quick := range []bool{true, false} {
		if problems, err := db.IntegrityCheck(context.Background(), quick); err != nil || len(problems) != 0 {
			t.Fatalf("sound database: %v, %v", problems, err)
		}
	}
	err := db.maintain(context.Background(), "break", func(c *conn) error {
		return c.script("PRAGMA foreign_keys = OFF; INSERT INTO parts(item, n) VALUES(12345, 1); PRAGMA foreign_keys = ON")
	})
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := db.IntegrityCheck(context.Background(), true); err != nil || len(problems) != 1 {
		t.Fatalf("broken reference: %v, %v", problems, err)
	}
}

// The driver is generated for one version of its C library: another one may crash or corrupt.
func TestDriverAndItsLibraryArePinnedTogether(t *testing.T) {
	t.Parallel()
	gomod, err := os.ReadFile(filepath.Join("..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s*(?:require\s+)?(modernc\.org/(?:sqlite|libc)) (v\S+)`).FindAllStringSubmatch(string(gomod), -1) {
		ours[m[1]] = m[2]
	}
	if ours["modernc.org/sqlite"] != pinnedSQLite || ours["modernc.org/libc"] != pinnedLibc {
		t.Errorf("go.mod has sqlite %s with libc %s, tested are %s with %s: look up the libc version in the new driver's go.mod and change both",
			ours["modernc.org/sqlite"], ours["modernc.org/libc"], pinnedSQLite, pinnedLibc)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("no build information")
	}
	for _, d := range info.Deps {
		if want, ok := ours[d.Path]; ok && (d.Version != want || d.Replace != nil) {
			t.Errorf("linked %s %s (replaced: %t), go.mod says %s", d.Path, d.Version, d.Replace != nil, want)
		}
	}
}

const (
	pinnedSQLite = "v1.62.0"
	pinnedLibc   = "v1.80.1" // from the go.mod of pinnedSQLite
)
