package work_test

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"signalbox/appliance/archive/beneath"
)

// line describes one name below a directory.
type line struct {
	mode  fs.FileMode
	size  int64
	mtime int64
	inode uint64
	sum   [32]byte
	link  string
}

// listing describes everything below a directory except the product's own.
func listing(t testing.TB, dir string) map[string]line {
	t.Helper()
	out := map[string]line{}
	must(t, filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, file)
		if name == beneath.ControlDir {
			return fs.SkipDir
		}
		if name == "." {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		l := line{mode: info.Mode(), inode: st.Ino}
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			l.size, l.sum, l.mtime = info.Size(), sha256.Sum256(b), info.ModTime().UnixNano()
		case info.Mode()&fs.ModeSymlink != 0:
			if l.link, err = os.Readlink(file); err != nil {
				return err
			}
		}
		out[name] = l
		return nil
	}))
	return out
}

// same compares two listings, down to the inodes.
func same(t testing.TB, what string, got, want map[string]line) {
	t.Helper()
	for name, w := range want {
		if g, ok := got[name]; !ok {
			t.Errorf("%s: %s is gone", what, name)
		} else if g != w {
			t.Errorf("%s: %s is %+v, was %+v", what, name, g, w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s is new", what, name)
		}
	}
}

// copied compares content and kinds, and leaves out what a copy has of its own.
func copied(t testing.TB, got, want map[string]line) {
	t.Helper()
	plain := func(m map[string]line) map[string]line {
		out := map[string]line{}
		for name, l := range m {
			l.inode = 0
			if l.mode.IsRegular() {
				l.mode &= 0o100
			} else {
				l.mode = l.mode.Type()
			}
			out[name] = l
		}
		return out
	}
	same(t, "copy", plain(got), plain(want))
}

// leftovers lists what a job has left in the product's own directories.
func leftovers(t testing.TB, s *side) []string {
	t.Helper()
	var out []string
	for id, dir := range s.paths {
		for _, own := range []string{"jobs", beneath.ControlDir + "/work", beneath.ControlDir + "/trash"} {
			entries, err := os.ReadDir(filepath.Join(dir, own))
			if err != nil {
				continue
			}
			for _, e := range entries {
				out = append(out, id+"/"+own+"/"+e.Name())
			}
		}
	}
	return out
}

func (r *rig) noLeftovers() {
	r.t.Helper()
	for _, s := range []*side{r.src, r.dst} {
		if left := leftovers(r.t, s); len(left) > 0 {
			r.t.Errorf("left: %s", strings.Join(left, ", "))
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
