package store

import (
	"context"
	"errors"
	"slices"
	"testing"

	"signalbox/appliance/fault"
)

func TestViewIsASnapshot(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	mustUpdate(t, db, insert("before"))
	err := db.View(context.Background(), func(tx *ReadTx) error {
		first, err := tx.testNames()
		if err != nil {
			return err
		}
		mustUpdate(t, db, insert("during"))
		second, err := tx.testNames()
		if err != nil {
			return err
		}
		if !slices.Equal(first, second) || len(first) != 1 {
			t.Errorf("snapshot moved from %v to %v", first, second)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := itemNames(t, db); len(got) != 2 {
		t.Fatalf("stored %v", got)
	}
}

func TestViewCannotWrite(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	for _, q := range []string{"INSERT INTO items(name) VALUES('x') RETURNING id", "CREATE TEMP TABLE x(a)", "DELETE FROM items RETURNING id"} {
		err := db.View(context.Background(), func(tx *ReadTx) error {
			rows, err := tx.Query(q)
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				t.Errorf("%s gave a row", q)
			}
			return rows.Err()
		})
		if err == nil {
			t.Errorf("%s worked", q)
		}
	}
	mustUpdate(t, db, insert("a"))
}

func TestViewCountsContext(t *testing.T) {
	t.Parallel()
	db := openTest(t, func(o *Options) { o.Readers = 1 })
	mustUpdate(t, db, func(tx *Tx) error {
		for range 3 * cancelEvery {
			if err := insert("x")(tx); err != nil {
				return err
			}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	err := db.View(ctx, func(tx *ReadTx) error {
		waiting, give := context.WithCancel(context.Background())
		give()
		if err := db.View(waiting, func(*ReadTx) error { return nil }); !fault.Is(err, fault.Canceled) {
			t.Errorf("waiting for the only reader: %v", err)
		}
		rows, err := tx.Query("SELECT id FROM items")
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			n++
			cancel()
		}
		return rows.Err()
	})
	if !fault.Is(err, fault.Canceled) || n == 0 || n > cancelEvery {
		t.Fatalf("cancelled view: %v after %d rows", err, n)
	}
	if got := itemNames(t, db); len(got) != 3*cancelEvery {
		t.Fatalf("reader unusable afterwards: %d rows", len(got))
	}
}

func TestPanicInViewGivesTheReaderBack(t *testing.T) {
	t.Parallel()
	db := openTest(t, func(o *Options) { o.Readers = 1 })
	mustUpdate(t, db, insert("a"))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not reach the caller")
			}
		}()
		_ = db.View(context.Background(), func(tx *ReadTx) error {
			_, err := tx.Query("SELECT name FROM items")
			panic(errors.Join(errors.New("boom"), err))
		})
	}()
	if got := itemNames(t, db); len(got) != 1 {
		t.Fatalf("stored %v", got)
	}
}

func TestDamageFoundByAReaderStopsWriting(t *testing.T) {
	t.Parallel()
	fatal := make(chan error, 2)
	db := openTest(t, func(o *Options) { o.OnFatal = func(err error) { fatal <- err } })
	damage := fault.New(fault.Corrupt, "damaged")
	for range 2 {
		if err := db.View(context.Background(), func(*ReadTx) error { return damage }); !errors.Is(err, damage) {
			t.Fatal(err)
		}
	}
	if err := <-fatal; !fault.Is(err, fault.Corrupt) {
		t.Fatalf("told %v", err)
	}
	if err := db.Update(context.Background(), "test", insert("x")); !fault.Is(err, fault.Corrupt) {
		t.Fatalf("update on a damaged file: %v", err)
	}
	if len(fatal) != 0 {
		t.Error("told twice")
	}
}

func TestDamageFoundByTheWriterFailsTheBatch(t *testing.T) {
	t.Parallel()
	fatal := make(chan error, 1)
	h := hold(t, func(o *Options) { o.OnFatal = func(err error) { fatal <- err } })
	ctx := context.Background()
	before := h.submit(ctx, insert("before"))
	finder := h.submit(ctx, func(*Tx) error { return fault.New(fault.Corrupt, "damaged") })
	after := h.submit(ctx, insert("after"))
	h.release()
	for name, ch := range map[string]chan error{"holder": h.first, "before": before, "finder": finder, "after": after} {
		if err := <-ch; !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	<-fatal
	if got := itemNames(t, h.DB); len(got) != 0 {
		t.Errorf("stored %v", got)
	}
}
