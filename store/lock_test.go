package store

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockEndsWhileAChildStarts: between fork and exec a child has the files of its parent.
func TestLockEndsWhileAChildStarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := unix.Dup(int(l.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if _, err := lockFile(path); !InUse(err) {
		t.Fatalf("a second holder: %v", err)
	}
	l.release()
	again, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}
