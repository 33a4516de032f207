package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

func TestUpdateIsVisibleToView(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	mustUpdate(t, db, insert("a"))
	mustUpdate(t, db, insert("b"))
	if got, want := itemNames(t, db), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Fatalf("stored %v, want %v", got, want)
	}
	if len(db.Epoch()) != 32 {
		t.Fatalf("epoch %q", db.Epoch())
	}
}

// held is a database whose writer stands inside a first update until released, so that a test can fill the queue
// behind it.
type held struct {
	*DB
	queued  chan string
	release func()
	first   chan error
}

// hold opens a database and blocks its writer.
func hold(t *testing.T, change func(*Options)) *held {
	t.Helper()
	h := &held{queued: make(chan string, 100), first: make(chan error, 1)}
	h.DB = openTest(t, func(o *Options) {
		if change != nil {
			change(o)
		}
		o.Limits.BatchTime = time.Hour // while held the batch grows old
		o.Hooks.Queued = func(op string) { h.queued <- op }
	})
	gate, inside := make(chan struct{}), make(chan struct{})
	h.release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(h.release)
	go func() {
		h.first <- h.Update(context.Background(), "hold", func(*Tx) error {
			close(inside)
			<-gate
			return nil
		})
	}()
	<-inside
	<-h.queued
	return h
}

// submit starts an update and returns when it is in the queue.
func (h *held) submit(ctx context.Context, fn func(*Tx) error) chan error {
	out := make(chan error, 1)
	go func() { out <- h.Update(ctx, "test", fn) }()
	<-h.queued
	return out
}

func TestGroupCommitUndoesOnlyTheFailingCaller(t *testing.T) {
	t.Parallel()
	var batches []int
	h := hold(t, func(o *Options) {
		o.Hooks.BeforeCommit = func(ops []string) error { batches = append(batches, len(ops)); return nil }
	})
	refused := fault.New(fault.Stale, "old lease")
	fail := func(tx *Tx) error {
		if err := insert("undone")(tx); err != nil {
			return err
		}
		return refused
	}
	boom := func(tx *Tx) error {
		if err := insert("panicked")(tx); err != nil {
			return err
		}
		panic("boom")
	}
	var after atomic.Int32
	ok := func(name string) func(*Tx) error {
		return func(tx *Tx) error {
			tx.AfterCommit(func() { after.Add(1) })
			return insert(name)(tx)
		}
	}
	ctx := context.Background()
	calls := []struct {
		ch   chan error
		code fault.Code
	}{
		{h.submit(ctx, ok("one")), ""},
		{h.submit(ctx, fail), fault.Stale},
		{h.submit(ctx, boom), fault.Internal},
		{h.submit(ctx, func(tx *Tx) error {
			tx.AfterCommit(func() { t.Error("after-commit of a refused update ran") })
			_, err := tx.Exec("INSERT INTO items(id, name) VALUES(1, 'twice')")
			return err
		}), fault.Conflict},
		{h.submit(ctx, ok("two")), ""},
	}
	h.release()
	if err := <-h.first; err != nil {
		t.Fatal(err)
	}
	for i, c := range calls {
		if err := <-c.ch; fault.CodeOf(err) != c.code {
			t.Errorf("call %d: %v, want code %q", i, err, c.code)
		}
	}
	if got, want := itemNames(t, h.DB), []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("stored %v, want %v", got, want)
	}
	if !slices.Equal(batches, []int{3}) { // the holder and two others in one commit
		t.Errorf("commits of %v callers, want one of 3", batches)
	}
	if after.Load() != 2 {
		t.Errorf("%d after-commit calls, want 2", after.Load())
	}
}

func TestFirstCallerFailingLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	err := db.Update(context.Background(), "test", func(tx *Tx) error {
		if err := insert("undone")(tx); err != nil {
			return err
		}
		return errors.New("no")
	})
	if err == nil {
		t.Fatal("no error")
	}
	mustUpdate(t, db, insert("kept"))
	if got := itemNames(t, db); !slices.Equal(got, []string{"kept"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestNothingIsToldBeforeCommit(t *testing.T) {
	t.Parallel()
	var told, hooked atomic.Bool
	db := openTest(t, func(o *Options) {
		o.Hooks.BeforeCommit = func([]string) error {
			if told.Load() || hooked.Load() {
				t.Error("reply or after-commit before COMMIT")
			}
			return nil
		}
		o.Hooks.AfterCommitBeforeReply = func([]string) error {
			if told.Load() || hooked.Load() {
				t.Error("reply or after-commit before the hook behind COMMIT")
			}
			return nil
		}
	})
	for i := range 20 {
		told.Store(false)
		hooked.Store(false)
		mustUpdate(t, db, func(tx *Tx) error {
			tx.AfterCommit(func() { hooked.Store(true) })
			return insert(fmt.Sprint(i))(tx)
		})
		if !hooked.Load() {
			t.Fatal("reply before the after-commit function")
		}
		told.Store(true)
	}
}

func TestCancelCountsOnlyInTheQueue(t *testing.T) {
	t.Parallel()
	h := hold(t, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("client went away")
	waiting := h.submit(ctx, insert("never"))
	cancel(why)
	if err := <-waiting; !fault.Is(err, fault.Canceled) || !errors.Is(err, why) {
		t.Fatalf("cancelled in the queue: %v", err)
	}
	if err := h.Update(ctx, "test", insert("never")); !fault.Is(err, fault.Canceled) {
		t.Fatalf("cancelled before: %v", err)
	}
	inCtx, inCancel := context.WithCancel(context.Background())
	running := h.submit(inCtx, func(tx *Tx) error {
		inCancel() // inside the batch it has no effect
		return insert("applied")(tx)
	})
	h.release()
	if err := errors.Join(<-running, <-h.first); err != nil {
		t.Fatalf("cancelled in the batch: %v", err)
	}
	if got := itemNames(t, h.DB); !slices.Equal(got, []string{"applied"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestFullQueueBlocksByContext(t *testing.T) {
	t.Parallel()
	h := hold(t, func(o *Options) { o.Limits.Queue = 1 })
	queued := h.submit(context.Background(), insert("queued"))
	ctx, cancel := context.WithCancel(context.Background())
	blocked := make(chan error, 1)
	go func() { blocked <- h.Update(ctx, "test", insert("blocked")) }()
	cancel()
	if err := <-blocked; !fault.Is(err, fault.Canceled) {
		t.Fatalf("blocked at a full queue: %v", err)
	}
	h.release()
	if err := <-queued; err != nil {
		t.Fatal(err)
	}
}

func TestNestedUpdateIsRefused(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	ctx := context.Background()
	err := db.Update(ctx, "outer", func(tx *Tx) error {
		if err := insert("outer")(tx); err != nil {
			return err
		}
		return db.Update(ctx, "inner", insert("inner"))
	})
	if !fault.Is(err, fault.Internal) {
		t.Fatalf("nested update: %v", err)
	}
	mustUpdate(t, db, func(tx *Tx) error {
		tx.AfterCommit(func() {
			if err := db.Update(ctx, "inner", insert("inner")); !fault.Is(err, fault.Internal) {
				t.Errorf("update in after-commit: %v", err)
			}
		})
		return insert("kept")(tx)
	})
	mustUpdate(t, db, insert("last"))
	if got := itemNames(t, db); !slices.Equal(got, []string{"kept", "last"}) {
		t.Fatalf("stored %v", got)
	}
}

// TestNestedUpdateIsRefusedLateInABatch: also when the batch had run for long before, as with a slow disk, so that nobody waited
// when the suspicion came.
func TestNestedUpdateIsRefusedLateInABatch(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	nested := func() error {
		<-*db.writer.suspect.Load()
		return db.Update(ctx, "inner", insert("inner"))
	}
	err := db.Update(context.Background(), "outer", func(tx *Tx) error {
		tx.AfterCommit(func() {
			if err := db.Update(ctx, "inner", insert("inner")); !fault.Is(err, fault.Internal) {
				t.Errorf("update in after-commit: %v", err)
			}
		})
		if err := nested(); !fault.Is(err, fault.Internal) {
			t.Errorf("nested update: %v", err)
		}
		return insert("kept")(tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, db, insert("last"))
	if got := itemNames(t, db); !slices.Equal(got, []string{"kept", "last"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestPanicAfterCommitIsContained(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	ran := false
	mustUpdate(t, db, func(tx *Tx) error {
		tx.AfterCommit(func() { panic("boom") })
		tx.AfterCommit(func() { ran = true })
		return insert("a")(tx)
	})
	if !ran {
		t.Error("the panic kept a later function from running")
	}
	mustUpdate(t, db, insert("b"))
}

func TestEndedWriterGoroutineRefusesInsteadOfHanging(t *testing.T) {
	t.Parallel()
	fatal := make(chan error, 1)
	db := openTest(t, func(o *Options) { o.OnFatal = func(err error) { fatal <- err } })
	err := db.Update(context.Background(), "exit", func(tx *Tx) error {
		if err := insert("never")(tx); err != nil {
			return err
		}
		runtime.Goexit()
		return nil
	})
	if !fault.Is(err, fault.OutcomeUnknown) {
		t.Errorf("update that ended the goroutine: %v", err)
	}
	if err := <-fatal; !fault.Is(err, fault.Internal) {
		t.Errorf("told %v", err)
	}
	if err := db.Update(context.Background(), "test", insert("late")); !fault.Is(err, fault.Internal) {
		t.Errorf("update afterwards: %v", err)
	}
	if got := itemNames(t, db); len(got) != 0 {
		t.Errorf("stored %v", got)
	}
}

// TestTransactionTimeFollowsTheClock holds a small step back, so that what was written later never looks earlier, and takes
// over a clock that was set back for good: times that stood still until it caught up would let no deadline come.
func TestTransactionTimeFollowsTheClock(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC)
	for name, c := range map[string]struct {
		moves []time.Duration // of the clock, before each transaction
		want  []time.Duration // the transaction's time, after start
	}{
		"forward":                      {[]time.Duration{0, time.Second, 24 * time.Hour}, []time.Duration{0, time.Second, 24*time.Hour + time.Second}},
		"a small step back":            {[]time.Duration{0, -maxHold, maxHold / 2, maxHold}, []time.Duration{0, 0, 0, maxHold / 2}},
		"small steps do not add up":    {[]time.Duration{0, -maxHold, -time.Microsecond}, []time.Duration{0, 0, -maxHold - time.Microsecond}},
		"set back":                     {[]time.Duration{0, -time.Hour, time.Second}, []time.Duration{0, -time.Hour, time.Second - time.Hour}},
		"forward by mistake, and back": {[]time.Duration{0, 24 * time.Hour, -24 * time.Hour}, []time.Duration{0, 24 * time.Hour, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := clock.NewFake(start)
			db := openTest(t, func(o *Options) { o.Clock = fake })
			for i, d := range c.moves {
				fake.Advance(d)
				var wrote, read time.Time
				mustUpdate(t, db, func(tx *Tx) error {
					if wrote = tx.Now(); wrote != tx.Now() {
						t.Error("two times in one transaction")
					}
					return nil
				})
				if err := db.View(context.Background(), func(tx *ReadTx) error { read = tx.Now(); return nil }); err != nil {
					t.Fatal(err)
				}
				if want := start.Truncate(time.Microsecond).Add(c.want[i]); wrote != want || read != want {
					t.Errorf("transaction %d: written at %v, read at %v, want %v", i, wrote, read, want)
				}
			}
		})
	}
}

func TestArgumentsAndColumnsConvert(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	id := uuid.New()
	at := time.Date(2026, 5, 6, 7, 8, 9, 1000, time.FixedZone("x", 3600))
	mustUpdate(t, db, func(tx *Tx) error {
		args := []any{id, "full", at, []byte(nil)}
		res, err := tx.Exec("INSERT INTO items(uid, name, at, data) VALUES(?, ?, ?, ?)", args...)
		if err != nil {
			return err
		}
		if res.RowsAffected() != 1 || res.LastInsertID() != 1 || args[0] != id {
			t.Errorf("result %+v, args %v", res, args)
		}
		_, err = tx.Exec("INSERT INTO items(uid, name, at) VALUES(?, 'empty', ?)", uuid.NullUUID{}, time.Time{})
		return err
	})
	err := db.View(context.Background(), func(tx *ReadTx) error {
		var gotID uuid.UUID
		var gotAt time.Time
		var data []byte
		if err := tx.QueryRow("SELECT uid, at, data FROM items WHERE uid = ?", id).Scan(&gotID, &gotAt, &data); err != nil {
			return err
		}
		if gotID != id || !gotAt.Equal(at) || gotAt.Location() != time.UTC || data != nil {
			t.Errorf("read %v %v %v", gotID, gotAt, data)
		}
		gotAt = at
		if err := tx.QueryRow("SELECT at FROM items WHERE uid IS NULL AND name = 'empty'").Scan(&gotAt); err != nil {
			return err
		}
		if !gotAt.IsZero() {
			t.Errorf("NULL time read as %v", gotAt)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSameQueryNestsAndLeaksAreErrors(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	mustUpdate(t, db, insert("a"))
	mustUpdate(t, db, insert("b"))
	mustUpdate(t, db, func(tx *Tx) error {
		rows, err := tx.Query("SELECT name FROM items ORDER BY id")
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if inner, err := tx.testNames(); err != nil || len(inner) != 2 {
				t.Errorf("inner query: %v, %v", inner, err)
			}
			if inner, err := tx.testNames(); err != nil || len(inner) != 2 {
				t.Errorf("inner query again: %v, %v", inner, err)
			}
		}
		return rows.Err()
	})
	var kept *Tx
	err := db.Update(context.Background(), "leak", func(tx *Tx) error {
		kept = tx
		if err := insert("undone")(tx); err != nil {
			return err
		}
		_, err := tx.Query("SELECT name FROM items")
		return err
	})
	if !fault.Is(err, fault.Internal) {
		t.Errorf("rows left open: %v", err)
	}
	if _, err := kept.Exec("DELETE FROM items"); !fault.Is(err, fault.Internal) {
		t.Errorf("use after the end: %v", err)
	}
	if got := itemNames(t, db); len(got) != 2 {
		t.Errorf("stored %v", got)
	}
}

func TestBatchLimits(t *testing.T) {
	t.Parallel()
	var batches []int
	h := hold(t, func(o *Options) {
		o.Limits.BatchCallers = 2
		o.Hooks.BeforeCommit = func(ops []string) error { batches = append(batches, len(ops)); return nil }
	})
	var all []chan error
	for i := range 4 {
		all = append(all, h.submit(context.Background(), insert(fmt.Sprint(i))))
	}
	h.release()
	for _, ch := range all {
		if err := <-ch; err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(batches, []int{2, 2, 1}) {
		t.Fatalf("commits of %v callers", batches)
	}
}

func TestClosedDatabaseRefuses(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	h := hold(t, func(o *Options) { o.Registerer = reg })
	waiting := h.submit(context.Background(), insert("queued"))
	closed := make(chan error, 1)
	go func() { closed <- h.Close() }()
	h.release()
	if err := errors.Join(<-waiting, <-closed, h.Close()); err != nil {
		t.Fatalf("close with a full queue: %v", err)
	}
	ctx := context.Background()
	if err := h.Update(ctx, "test", insert("late")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("update after close: %v", err)
	}
	if err := h.View(ctx, func(*ReadTx) error { return nil }); !fault.Is(err, fault.Unavailable) {
		t.Errorf("view after close: %v", err)
	}
	if err := h.Checkpoint(ctx); !fault.Is(err, fault.Unavailable) {
		t.Errorf("checkpoint after close: %v", err)
	}
	if n := testutil.ToFloat64(h.metrics.ops.WithLabelValues("test", "ok")); n != 1 {
		t.Errorf("counted %v writes", n)
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}
