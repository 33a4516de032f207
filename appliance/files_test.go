package appliance

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"signalbox/appliance/secret"
)

func TestSecretIsMadeOnceHoweverManyStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), SecretFile)
	var mu sync.Mutex
	var all sync.WaitGroup
	seen, made := map[string]bool{}, 0
	for range 20 {
		all.Go(func() {
			text, minted, err := ensureSecret(path, secret.NewToken)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if minted {
				made++
			}
			seen[text.Reveal()] = true
		})
	}
	all.Wait()
	if len(seen) != 1 || made != 1 {
		t.Errorf("%d secrets in use, made %d times", len(seen), made)
	}
}

func TestFilesAreWholeAndLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, AddressesFile)
	for _, content := range []string{"one", "two"} {
		if err := replaceFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%q, %v", got, err)
		}
	}
	if err := createFile(path, []byte("three")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a file: %v", err)
	}
	left := filepath.Join(dir, ".secret.key.123.tmp") // of a crash
	if err := os.WriteFile(left, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeTemporary(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != AddressesFile {
		t.Errorf("left: %v, %v", entries, err)
	}
}
