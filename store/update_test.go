package store

import (
	"slices"
	"testing"
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
