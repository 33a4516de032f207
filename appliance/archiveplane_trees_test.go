package appliance_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// noise is content that does not repeat.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	g := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7})
	_, _ = g.Read(b)
	return b
}

// listing describes every file below a directory that is no control directory of the product: name, size and content.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if d.IsDir() {
			if name == ".archive-control" {
				return fs.SkipDir
			}
			return nil
		}
		content, err := os.ReadFile(path)
		out[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sameListing compares two listings.
func sameListing(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, content := range want {
		if other, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		} else if other != content {
			t.Errorf("%s has other content: %d bytes, want %d", name, len(other), len(content))
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there and should not be", name)
		}
	}
}

// leftovers are the job directories and work areas of a machine.
func leftovers(t *testing.T, m *machine) []string {
	t.Helper()
	var out []string
	for _, place := range []string{"receive/jobs", "outbox/jobs", "content/.archive-control/work"} {
		entries, err := os.ReadDir(filepath.Join(m.Dir, filepath.FromSlash(place)))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				out = append(out, m.Name+":"+place+"/"+e.Name())
			}
		}
	}
	return out
}

// decodeInto reads a JSON document.
func decodeInto(t *testing.T, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// untouched remembers every file below a directory that is no control directory of the product, and returns what fails
// the test when one of them has another name, content, time or inode, or when there are others.
func untouched(t *testing.T, dir string) (check func()) {
	t.Helper()
	look := func() map[string]string {
		out := listing(t, dir)
		for name, content := range out {
			st, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name)))
			if err != nil {
				t.Fatal(err)
			}
			out[name] = fmt.Sprintf("%x %v %d", sha256.Sum256([]byte(content)), st.ModTime().UnixNano(), inode(t, filepath.Join(dir, filepath.FromSlash(name))))
		}
		return out
	}
	before := look()
	return func() {
		t.Helper()
		after := look()
		for name, was := range before {
			if after[name] != was {
				t.Errorf("%s below %s is not what it was: %q, was %q", name, dir, after[name], was)
			}
		}
		for name := range after {
			if _, ok := before[name]; !ok {
				t.Errorf("%s is new below %s", name, dir)
			}
		}
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st.Ino
}
