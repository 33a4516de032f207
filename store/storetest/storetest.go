// Package storetest gives tests real databases: files in a temporary directory, with the real schema.
package storetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"signalbox/store"
)

// Schema is the text of schema.sql at the root of the module.
func Schema(t testing.TB) string {
	t.Helper()
	text, err := readSchema()
	if err != nil {
		t.Fatalf("schema.sql: %v", err)
	}
	return text
}

var readSchema = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			b, err := os.ReadFile(filepath.Join(dir, "schema.sql"))
			return string(b), err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod in any parent directory")
		}
		dir = parent
	}
})

// Option changes what Open opens.
type Option func(*store.Options)

// Open opens a new database with the real schema in a temporary directory and closes it with the test.
func Open(t testing.TB, opts ...Option) *store.DB {
	t.Helper()
	o := store.Options{Path: filepath.Join(t.TempDir(), "signalbox.db")}
	for _, opt := range opts {
		opt(&o)
	}
	if o.Schema == "" {
		o.Schema = Schema(t)
	}
	return open(t, o)
}

// Reopen closes db and opens its file again, as a restart of the appliance would. Options are not carried over.
func Reopen(t testing.TB, db *store.DB, opts ...Option) *store.DB {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	path := db.Path()
	return Open(t, append([]Option{func(o *store.Options) { o.Path = path }}, opts...)...)
}

func open(t testing.TB, o store.Options) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open %s: %v", o.Path, err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// Failpoint is a switch for a hook: while it is armed, the point it guards fails.
type Failpoint struct {
	mu   sync.Mutex
	err  error
	left int
	hits int
}

// Arm has the next n passages fail with err.
func (f *Failpoint) Arm(err error, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.left = err, n
}

// Hits is the number of passages so far, failed or not.
func (f *Failpoint) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Pass is one passage: nil unless armed.
func (f *Failpoint) Pass() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hits++
	if f.left == 0 {
		return nil
	}
	f.left--
	return f.err
}

// WithBeforeCommit has f guard the moment before COMMIT: failing there applies nothing (Unavailable).
func WithBeforeCommit(f *Failpoint) Option {
	return func(o *store.Options) { o.Hooks.BeforeCommit = func([]string) error { return f.Pass() } }
}

// WithAfterCommit has f guard the moment between COMMIT and the replies: failing there applies everything and tells
// OutcomeUnknown.
func WithAfterCommit(f *Failpoint) Option {
	return func(o *store.Options) { o.Hooks.AfterCommitBeforeReply = func([]string) error { return f.Pass() } }
}
