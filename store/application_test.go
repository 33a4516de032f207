package store_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/fstest"

	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/store/storetest"
)

// TestProgramsKeepToTheirOwnFiles opens a database of each kind as the other: both refuse and change nothing.
func TestProgramsKeepToTheirOwnFiles(t *testing.T) {
	t.Parallel()
	const schema = "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT;"
	own := func(path string) store.Options {
		return store.Options{Path: path, Schema: schema, Migrations: fstest.MapFS{}, ApplicationID: 0x53674279}
	}
	appliance := func(path string) store.Options { return store.Options{Path: path, Schema: storetest.Schema(t)} }
	for name, test := range map[string]struct{ first, second func(string) store.Options }{
		"another program's as the appliance's": {own, appliance},
		"the appliance's as another program's": {appliance, own},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.db")
			for i, o := range []store.Options{test.first(path), test.second(path), test.first(path)} {
				db, err := store.Open(context.Background(), o)
				if i == 1 {
					if !fault.Is(err, fault.Conflict) {
						t.Fatalf("opened by another program: %v, want a conflict", err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("opened by its own program: %v", err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
