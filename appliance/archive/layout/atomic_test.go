package layout_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/layout"
)

func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir)
	w, err := layout.WriteAtomic(r, "manifest.json", []byte("content"))
	must(t, err)
	if w.SHA256 != sum("content") || w.Bytes != 7 || !w.Durable {
		t.Errorf("%+v", w)
	}
	info, err := os.Stat(filepath.Join(dir, "manifest.json"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	again, err := layout.WriteAtomic(r, "manifest.json", []byte("content"))
	if err != nil || again != w {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	for _, other := range []string{"Content", "content and more", ""} {
		_, err = layout.WriteAtomic(r, "manifest.json", []byte(other))
		mustCode(t, "other content", err, manifestInvalid)
	}
	must(t, r.Symlink("manifest.json", "link"))
	must(t, r.Link("manifest.json", r, "second"))
	for _, name := range []string{"link", "manifest.json"} { // the second has two names now
		_, err = layout.WriteAtomic(r, name, []byte("content"))
		mustCode(t, "write over "+name, err, manifestInvalid)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "manifest.json")); err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
	if got := listing(t, dir); !slices.Equal(got, []string{"link", "manifest.json", "second"}) {
		t.Errorf("left %q", got)
	}
}

func TestWriteAtomicFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		hook func(dir string) beneath.Hook
		want beneath.Code
		left []string
	}{
		{"full disk", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpWrite, "", 1, syscall.ENOSPC) }, beneath.NoSpace, nil},
		{"write", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpWrite, "", 1, syscall.EIO) }, beneath.WriteError, nil},
		{"flush", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpSync, "", 1, syscall.EIO) }, beneath.WriteError, nil},
		{"flush without space", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpSync, "", 1, syscall.ENOSPC) }, beneath.WriteError, nil},
		{"close", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpClose, "*tmp*", 1, syscall.EIO) }, beneath.WriteError, nil},
		{"rename", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpRename, "", 1, syscall.EIO) }, beneath.WriteError, nil},
		{"directory flush", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpSyncDir, "", 1, syscall.EIO) }, beneath.WriteError, []string{"name"}},
		{"read back", func(string) beneath.Hook { return beneathtest.Fail(beneath.OpRead, "", 1, syscall.EIO) }, beneath.ReadError, []string{"name"}},
		{"other bytes read back", func(dir string) beneath.Hook {
			return beneathtest.At(beneath.OpRead, "", 1, func(string) error {
				return os.WriteFile(filepath.Join(dir, "name"), []byte("CONTENT"), 0o600)
			})
		}, beneath.WriteError, []string{"name"}},
		{"a name that appears", func(dir string) beneath.Hook {
			return beneathtest.At(beneath.OpRename, "", 1, func(string) error {
				return os.WriteFile(filepath.Join(dir, "name"), []byte("foreign"), 0o600)
			})
		}, manifestInvalid, []string{"name"}},
	} {
		dir := t.TempDir()
		_, err := layout.WriteAtomic(beneathtest.Open(t, dir, c.hook(dir)), "name", []byte("content"))
		mustCode(t, c.name, err, c.want)
		if got := listing(t, dir); !slices.Equal(got, c.left) {
			t.Errorf("%s: left %q", c.name, got)
		}
	}
	dir := t.TempDir()
	w, err := layout.WriteAtomic(beneathtest.Open(t, dir, beneathtest.Always(beneath.OpSyncDir, "", syscall.EINVAL)), "name", []byte("content"))
	if err != nil || w.Durable {
		t.Errorf("without directory flush: %+v, %v", w, err)
	}
	w, err = layout.WriteAtomic(beneathtest.Open(t, t.TempDir(), beneathtest.Always(beneath.OpRename, "", syscall.EINVAL)), "name", []byte("content"))
	if err != nil || w.SHA256 != sum("content") {
		t.Errorf("without a no-replace rename: %+v, %v", w, err)
	}
}

// A process that dies before any one of its calls leaves no manifest or a whole one, and a marker only beside a whole
// manifest; and the same work done again in the same directory comes to its end.
func TestDeathAtEveryCall(t *testing.T) {
	m := manifest()
	for n := 1; ; n++ {
		dir := t.TempDir()
		plain := beneathtest.Open(t, dir)
		put(t, plain)
		hook, reached := beneathtest.Stop(n + 2) // after those that open the root
		r, err := beneath.Open(dir, beneath.Options{Hook: hook})
		must(t, err)
		w, err := layout.WriteManifest(r, m)
		if err == nil {
			_, err = layout.WriteMarker(r, m, w, now)
		}
		r.Close()
		if err == nil { // nothing was left to do but to close what was read back
			if n < 30 {
				t.Fatalf("only %d calls", n)
			}
			break
		}
		if !reached() {
			t.Fatal(err)
		}
		job := filepath.Join(dir, layout.JobDir(jobID, 3))
		marker, _ := os.ReadFile(filepath.Join(job, layout.MarkerFile))
		_, found, err := layout.ReadManifest(plain, jobID, 3)
		switch {
		case beneath.IsNotFound(err):
			if marker != nil {
				t.Fatalf("call %d: a marker without a manifest", n)
			}
			if _, err := layout.Receive(t.Context(), plain, jobID, 3, expect()); !layout.IsNotReady(err) {
				t.Fatalf("call %d: %v", n, err)
			}
			found, err = layout.WriteManifest(plain, m)
			must(t, err)
		case err != nil:
			t.Fatalf("call %d: %v", n, err)
		}
		if marker == nil {
			_, err = layout.WriteMarker(plain, m, found, now)
			must(t, err)
		}
		if _, err := layout.Receive(t.Context(), plain, jobID, 3, expect()); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
	}
}

func TestManifestNeedsItsPayload(t *testing.T) {
	r := beneathtest.Open(t, t.TempDir())
	put(t, r)
	must(t, r.Unlink(layout.JobDir(jobID, 3)+"/payload/00000005"))
	_, err := layout.WriteManifest(r, manifest())
	mustCode(t, "missing payload", err, beneath.NotFound)
	beneathtest.Write(t, r, layout.JobDir(jobID, 3)+"/payload/00000005", []byte("longer than the manifest says"))
	_, err = layout.WriteManifest(r, manifest())
	mustCode(t, "longer payload", err, integrity)
	if _, _, err := layout.ReadManifest(r, jobID, 3); !beneath.IsNotFound(err) {
		t.Error(err)
	}
	bad := manifest()
	bad.Totals.Files++
	_, err = layout.WriteManifest(r, bad)
	mustCode(t, "wrong totals", err, manifestInvalid)
}

func TestPayloadIsFlushedBeforeTheManifest(t *testing.T) {
	dir := t.TempDir()
	put(t, beneathtest.Open(t, dir))
	var calls []string
	r := beneathtest.Open(t, dir, func(op beneath.Op, name string) error {
		switch op {
		case beneath.OpSync, beneath.OpSyncDir, beneath.OpRename:
			name = strings.TrimPrefix(name, layout.JobDir(jobID, 3)+"/")
			if i := strings.Index(name, ".tmp-"); i > 0 {
				name = name[:i]
			}
			calls = append(calls, fmt.Sprint(op, " ", name))
		}
		return nil
	})
	seal(t, r, manifest())
	job := layout.JobDir(jobID, 3)
	want := []string{"fsync payload/00000000", "fsync payload/00000005", "fsync aux/metainfo", "fsync directory payload", "fsync directory aux",
		"fsync directory " + job, "fsync manifest.json", "rename manifest.json", "fsync directory " + job,
		"fsync ready.json", "rename ready.json", "fsync directory " + job}
	if !slices.Equal(calls, want) {
		t.Errorf("calls\n%s\nwant\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
}

func TestJobDirs(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir)
	none := func(id string, attempt uint32) error { return errors.New("found " + id) }
	must(t, layout.JobDirs(r, none))
	must(t, layout.CreateJobDir(r, jobID, 1))
	must(t, layout.CreateJobDir(r, jobID, 2))
	mustCode(t, "an attempt again", layout.CreateJobDir(r, jobID, 2), beneath.PathConflict)
	must(t, r.Mkdir("jobs/other", 0o700))
	beneathtest.Write(t, r, "jobs/"+otherJob+"-1", nil)
	found := map[string]bool{}
	must(t, layout.JobDirs(r, func(id string, attempt uint32) error { found[layout.JobDir(id, attempt)] = true; return nil }))
	if len(found) != 2 || !found[layout.JobDir(jobID, 1)] || !found[layout.JobDir(jobID, 2)] {
		t.Error(found)
	}
	info, err := os.Stat(filepath.Join(dir, layout.JobDir(jobID, 1)))
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Error(info.Mode())
	}
	for range 2 {
		must(t, layout.CreateWorkDir(r, jobID))
	}
	if got := listing(t, filepath.Join(dir, beneath.ControlDir)); !slices.Equal(got, []string{"work"}) {
		t.Error(got)
	}
}

func TestTooLargeToWrite(t *testing.T) {
	r := beneathtest.Open(t, t.TempDir())
	_, err := layout.WriteAtomic(r, "name", make([]byte, layout.MaxManifest+1))
	mustCode(t, "too large", err, manifestInvalid)
}
