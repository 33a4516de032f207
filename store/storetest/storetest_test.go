package storetest_test

import (
	"context"
	"errors"
	"testing"

	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/store/storetest"
)

func setMeta(db *store.DB, key string) error {
	return db.Update(context.Background(), "test", func(tx *store.Tx) error {
		_, err := tx.Exec("INSERT INTO meta(key, value) VALUES(?, x'01')", key)
		return err
	})
}

func hasMeta(t *testing.T, db *store.DB, key string) bool {
	t.Helper()
	var n int
	err := db.View(context.Background(), func(tx *store.ReadTx) error {
		return tx.QueryRow("SELECT count(*) FROM meta WHERE key = ?", key).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

func TestRealSchemaSurvivesReopen(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	epoch := db.Epoch()
	if err := setMeta(db, "kept"); err != nil {
		t.Fatal(err)
	}
	db = storetest.Reopen(t, db)
	if db.Epoch() != epoch || !hasMeta(t, db, "kept") {
		t.Error("reopening lost the epoch or a row")
	}
	if problems, err := db.IntegrityCheck(context.Background(), false); err != nil || len(problems) != 0 {
		t.Errorf("integrity: %v, %v", problems, err)
	}
}

func TestFailpoints(t *testing.T) {
	t.Parallel()
	var before, after storetest.Failpoint
	db := storetest.Open(t, storetest.WithBeforeCommit(&before), storetest.WithAfterCommit(&after))
	boom := errors.New("boom")
	before.Arm(boom, 1)
	if err := setMeta(db, "a"); !fault.Is(err, fault.Unavailable) || !errors.Is(err, boom) || hasMeta(t, db, "a") {
		t.Errorf("before COMMIT: %v", err)
	}
	after.Arm(boom, 1)
	if err := setMeta(db, "b"); !fault.Is(err, fault.OutcomeUnknown) || !errors.Is(err, boom) || !hasMeta(t, db, "b") {
		t.Errorf("after COMMIT: %v", err)
	}
	if err := setMeta(db, "c"); err != nil || before.Hits() != 3 || after.Hits() != 2 {
		t.Errorf("disarmed: %v, %d and %d passages", err, before.Hits(), after.Hits())
	}
}
