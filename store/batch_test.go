package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"signalbox/appliance/fault"
)

func TestFailedCommitAppliesNothing(t *testing.T) {
	t.Parallel()
	arm := make(chan error, 1)
	take := func([]string) error {
		select {
		case err := <-arm:
			return err
		default:
			return nil
		}
	}
	db := openTest(t, func(o *Options) { o.Hooks.BeforeCommit = take })
	arm <- errors.New("no commit")
	err := db.Update(context.Background(), "test", func(tx *Tx) error {
		tx.AfterCommit(func() { t.Error("after-commit of a failed commit ran") })
		return insert("a")(tx)
	})
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("failed commit: %v", err)
	}
	mustUpdate(t, db, insert("b"))
	if got := itemNames(t, db); !slices.Equal(got, []string{"b"}) {
		t.Fatalf("stored %v", got)
	}
}

func TestUnknownOutcomeIsToldApart(t *testing.T) {
	t.Parallel()
	fail := true
	db := openTest(t, func(o *Options) {
		o.Hooks.AfterCommitBeforeReply = func([]string) error {
			if fail {
				fail = false
				return errors.New("lost the reply")
			}
			return nil
		}
	})
	if err := db.Update(context.Background(), "test", insert("a")); !fault.Is(err, fault.OutcomeUnknown) {
		t.Fatalf("ambiguous commit: %v", err)
	}
	mustUpdate(t, db, insert("b"))
	if got := itemNames(t, db); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("stored %v", got)
	}
}

// TestHooksByOutcome: what announces a change runs when it is durable, what only says "look again" also when nobody knows;
// neither runs for what was not applied. Both run before Update returns, in the order of the calls.
func TestHooksByOutcome(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		before, after, own error
		code               fault.Code
		want               []string
	}{
		"committed":         {want: []string{"hint 1", "told", "hint 2"}},
		"unknown":           {after: boom, code: fault.OutcomeUnknown, want: []string{"hint 1", "hint 2"}},
		"failed commit":     {before: boom, code: fault.Unavailable},
		"refused by itself": {own: fault.New(fault.Conflict, "no"), code: fault.Conflict},
	} {
		db := openTest(t, func(o *Options) {
			o.Hooks.BeforeCommit = func([]string) error { return tt.before }
			o.Hooks.AfterCommitBeforeReply = func([]string) error { return tt.after }
		})
		var ran []string
		note := func(s string) func() { return func() { ran = append(ran, s) } }
		err := db.Update(context.Background(), "test", func(tx *Tx) error {
			tx.Hint(note("hint 1"))
			tx.Hint(func() { panic("contained") })
			tx.AfterCommit(note("told"))
			tx.Hint(note("hint 2"))
			if err := insert("a")(tx); err != nil {
				return err
			}
			return tt.own
		})
		if tt.code == "" && err != nil || tt.code != "" && !fault.Is(err, tt.code) {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(ran, tt.want) {
			t.Errorf("%s: ran %q, want %q", name, ran, tt.want)
		}
	}
}

// TestHintsOfABatch: of callers that share a COMMIT of unknown outcome, those run whose work may be there.
func TestHintsOfABatch(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	h := hold(t, func(o *Options) {
		o.Hooks.AfterCommitBeforeReply = func([]string) error {
			if fail.Load() {
				return errors.New("boom")
			}
			return nil
		}
	})
	fail.Store(true)
	var ran []string
	hinted := func(name string, own error) func(*Tx) error {
		return func(tx *Tx) error {
			tx.Hint(func() { ran = append(ran, name) })
			if err := insert(name)(tx); err != nil {
				return err
			}
			return own
		}
	}
	ctx := context.Background()
	a := h.submit(ctx, hinted("a", nil))
	b := h.submit(ctx, hinted("b", fault.New(fault.Conflict, "no")))
	c := h.submit(ctx, hinted("c", nil))
	h.release()
	for _, done := range []chan error{a, b, c} {
		if err := <-done; !fault.Is(err, fault.OutcomeUnknown) {
			t.Errorf("outcome %v", err)
		}
	}
	if !slices.Equal(ran, []string{"a", "c"}) {
		t.Errorf("ran %q", ran)
	}
}

func TestDiskFullFailsTheBatchAndPasses(t *testing.T) {
	t.Parallel()
	h := hold(t, nil)
	ctx := context.Background()
	small := h.submit(ctx, insert("small"))
	big := h.submit(ctx, func(tx *Tx) error {
		var pages int64
		if err := tx.QueryRow("PRAGMA page_count").Scan(&pages); err != nil {
			return err
		}
		if err := tx.QueryRow(fmt.Sprintf("PRAGMA max_page_count(%d)", pages+1)).Scan(&pages); err != nil {
			return err
		}
		_, err := tx.Exec("INSERT INTO items(name, data) VALUES('big', randomblob(100000))")
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("full: %v", err)
		}
		// Whether SQLite undid the statement or everything is its choice; nothing may run outside a transaction.
		_, _ = tx.Exec("INSERT INTO items(name) VALUES('stray')")
		return err
	})
	h.release()
	bigErr, smallErr := <-big, <-small
	if !fault.Is(bigErr, fault.Unavailable) {
		t.Fatalf("big: %v", bigErr)
	}
	var want []string
	if smallErr == nil {
		want = []string{"small"}
	} else if !fault.Is(smallErr, fault.Unavailable) {
		t.Fatalf("small: %v", smallErr)
	}
	if got := itemNames(t, h.DB); !slices.Equal(got, want) {
		t.Fatalf("stored %v, want %v", got, want)
	}
	mustUpdate(t, h.DB, func(tx *Tx) error {
		var n int64
		return tx.QueryRow("PRAGMA max_page_count(1000000)").Scan(&n)
	})
	mustUpdate(t, h.DB, insert("later"))
}

func TestRollbackByTheDatabaseFailsEveryCaller(t *testing.T) {
	t.Parallel()
	h := hold(t, nil)
	ctx := context.Background()
	before := h.submit(ctx, insert("before"))
	culprit := h.submit(ctx, func(tx *Tx) error {
		// ON CONFLICT ROLLBACK ends the transaction the way a full disk does.
		_, err := tx.Exec("INSERT OR ROLLBACK INTO items(id, name) SELECT id, 'x' FROM items LIMIT 1")
		if err == nil {
			t.Error("no conflict")
		}
		if _, err := tx.Exec("INSERT INTO items(name) VALUES('stray')"); err == nil {
			t.Error("a statement ran outside the transaction")
		}
		if err := tx.QueryRow("SELECT 1").Scan(new(int)); err == nil {
			t.Error("a query ran outside the transaction")
		}
		return nil
	})
	h.release()
	for name, ch := range map[string]chan error{"holder": h.first, "before": before, "culprit": culprit} {
		if err := <-ch; !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v, want Unavailable", name, err)
		}
	}
	if got := itemNames(t, h.DB); len(got) != 0 {
		t.Errorf("stored %v", got)
	}
	mustUpdate(t, h.DB, insert("after"))
}
