package store

import (
	"context"
	"testing"
)

// binder is what a service of a test writes through.
type binder interface {
	Exec(query string, args ...any) (Result, error)
}

func TestBindChoosesTheLane(t *testing.T) {
	t.Parallel()
	db := openTest(t, nil)
	callers, upkeep := Bind[binder, *ReadTx](db), BindUpkeep[binder, *ReadTx](db)
	if callers.lane() != db.writer.queue || upkeep.lane() != db.writer.bg {
		t.Error("upkeep stands in the way of callers, or callers behind upkeep")
	}
	for _, b := range []Bound[binder, *ReadTx]{callers, upkeep} {
		if err := b.Update(context.Background(), "bound", func(tx binder) error {
			_, err := tx.Exec(`SELECT 1`)
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}
