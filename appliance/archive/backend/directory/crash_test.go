package directory

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/clock"
)

// changes lists the operations that change a file system.
var changes = map[beneath.Op]bool{beneath.OpCreate: true, beneath.OpMkdir: true, beneath.OpRename: true, beneath.OpLink: true,
	beneath.OpUnlink: true, beneath.OpChmod: true, beneath.OpSync: true, beneath.OpSyncDir: true, beneath.OpWrite: true, beneath.OpRmdir: true}

// dying lets the first n changing operations happen and none after, as a crash does.
type dying struct {
	mu   sync.Mutex
	left int
	died bool
}

func (d *dying) hook(op beneath.Op, _ string) error {
	if !changes[op] {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		d.died = true
		return syscall.EIO
	}
	d.left--
	return nil
}

// reopen makes a backend on the directories as the next process would.
func reopen(t *testing.T, base string, hook beneath.Hook) *Backend {
	t.Helper()
	open := func(name string) *beneath.Root {
		r, err := beneath.Open(filepath.Join(base, name), beneath.Options{Hook: hook})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	b, err := New(Options{Roots: []Root{{ID: "main", Dir: open("content")}}, Library: open("library"),
		Clock: clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// contents lists every regular file below a directory with its bytes.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		out[strings.TrimPrefix(p, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCrashAtEveryChange stops the life of an entry after every single change to the file system and lets the next
// process repeat the call: it must come to the same end, and content must never be touched.
func TestCrashAtEveryChange(t *testing.T) {
	t.Parallel()
	raw := makeTorrent("s", 1)
	calls := []func(b *Backend, id string) error{
		func(b *Backend, _ string) error {
			_, err := b.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: "main"}, Category: "x"})
			return err
		},
		func(b *Backend, id string) error { _, err := b.Activate(t.Context(), id); return err },
		func(b *Backend, id string) error { _, err := b.RemoveEntry(t.Context(), id, "job"); return err },
	}
	points := 0
	for which := range calls {
		for n := 0; ; n++ {
			base := t.TempDir()
			torrenttest.Lay(t, filepath.Join(base, "content/s"), files(1))
			if err := os.Mkdir(filepath.Join(base, "library"), 0o755); err != nil {
				t.Fatal(err)
			}
			id := ""
			d := &dying{left: n}
			for i, call := range calls {
				var err error
				if i == which {
					err = call(reopen(t, base, d.hook), id)
					if d.died == (err == nil) {
						t.Fatalf("call %d after %d changes: died %t, %v", i, n, d.died, err)
					}
				}
				if i != which || err != nil {
					if err := call(reopen(t, base, nil), id); err != nil {
						t.Fatalf("call %d again after %d changes: %v", i, n, err)
					}
				}
				if i == 0 {
					l, err := reopen(t, base, nil).ListResources(t.Context())
					if err != nil || len(l.Resources) != 1 {
						t.Fatalf("%v, %v", l, err)
					}
					id = l.Resources[0].GetResource().GetResourceId()
					if l.Resources[0].GetCategory() != "x" {
						t.Errorf("after %d changes: %v", n, l.Resources[0])
					}
				}
				checkAfter(t, base, i, id, string(raw), fmt.Sprintf("call %d died after %d changes", which, n))
			}
			if !d.died {
				points += n
				break
			}
		}
	}
	if points < 20 {
		t.Errorf("only %d points of death were tried", points)
	}
}

// checkAfter looks at what is there after a call of the life above.
func checkAfter(t *testing.T, base string, call int, id, raw, when string) {
	t.Helper()
	all := contents(t, base)
	for _, e := range files(1) {
		if all["content/s/"+e.Path] != string(e.Data) {
			t.Fatalf("%s: content %s was touched", when, e.Path)
		}
	}
	own, lib := "content/.archive-control/torrents/"+hashOf(id)+".torrent", "library/"+hashOf(id)+".torrent"
	want := map[string]bool{own: call < 2, lib: call == 1}
	for name, there := range want {
		if got, ok := all[name]; ok != there || (ok && got != raw) {
			t.Fatalf("%s, after call %d: %s is there: %t", when, call, name, ok)
		}
	}
	trashed := 0
	for name, data := range all {
		if strings.HasPrefix(name, "content/.archive-control/trash/job/") && data == raw {
			trashed++
		}
	}
	if call == 2 && trashed != 2 {
		t.Fatalf("%s: %d torrent files in the trash", when, trashed)
	}
	l, err := reopen(t, base, nil).ListResources(t.Context())
	if err != nil || len(l.Resources) != 1 {
		t.Fatalf("%s: %v, %v", when, l, err)
	}
	managed := l.Resources[0].GetBackendState() != archivepb.BackendState_BACKEND_STATE_NOT_MANAGED
	if managed != (call < 2) {
		t.Fatalf("%s: %v", when, l.Resources[0])
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	torrenttest.Lay(t, filepath.Join(d.root, "s"), files(1))
	id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: makeTorrent("s", 1), Location: backend.Location{RootID: "main"}})
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(d.library, hashOf(id)+".torrent")
	write(t, foreign, []byte("not ours"))
	_, err = d.Activate(t.Context(), id)
	if got := backend.CodeOf(err); got != archivepb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT {
		t.Errorf("%v (%v)", got, err)
	}
	if got, _ := os.ReadFile(foreign); string(got) != "not ours" {
		t.Errorf("the file is now %q", got)
	}
	wantList(t, d, "torrent s main: STOPPED_COMPLETE")
}

func TestActivateNoticesChangesAfterTheProof(t *testing.T) {
	t.Parallel()
	change := func() {}
	d := setup(t, func(o *Options) { o.proven = func() { change() } })
	torrenttest.Lay(t, filepath.Join(d.root, "s"), files(1))
	id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: makeTorrent("s", 1), Location: backend.Location{RootID: "main"}})
	if err != nil {
		t.Fatal(err)
	}
	change = func() { rewrite(t, filepath.Join(d.root, "s/d/b"), torrenttest.Bytes(77, 20_000)) }
	_, err = d.Activate(t.Context(), id)
	if got := backend.CodeOf(err); got != archivepb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT {
		t.Errorf("%v (%v)", got, err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.library, "*")); len(left) != 0 {
		t.Errorf("the library holds %v", left)
	}
}

func TestLibraryRefusesPartialSelections(t *testing.T) {
	t.Parallel()
	for _, library := range []bool{true, false} {
		d := setup(t, func(o *Options) {
			if !library {
				o.Library = nil
			}
		})
		torrenttest.Lay(t, filepath.Join(d.root, "s"), files(1)[:1])
		raw := torrenttest.Make(torrenttest.Options{Version: torrenttest.V2, Name: "s"}, files(1))
		id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: "main"},
			Selected: &archivepb.IndexSet{Ranges: []*archivepb.IndexRange{{First: 0, Last: 0}}}})
		if err != nil {
			t.Fatal(err)
		}
		state, err := d.Activate(t.Context(), id)
		if library {
			if got := backend.CodeOf(err); got != archivepb.ErrorCode_ERROR_CODE_UNSAFE_STATE {
				t.Errorf("%v (%v)", got, err)
			}
			if left, _ := filepath.Glob(filepath.Join(d.library, "*")); len(left) != 0 {
				t.Errorf("the library holds %v", left)
			}
		} else if err != nil || state != archivepb.BackendState_BACKEND_STATE_SEEDING {
			t.Errorf("%v, %v", state, err)
		}
	}
}

func TestSecretFilesAreClosed(t *testing.T) {
	t.Parallel()
	d := setup(t, func(o *Options) { o.LibraryMode = 0o640 })
	torrenttest.Lay(t, filepath.Join(d.root, "s"), files(1))
	id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: makeTorrent("s", 1), Location: backend.Location{RootID: "main"}})
	if err == nil {
		_, err = d.Activate(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{
		filepath.Join(d.root, torrentsDir):                             0o700,
		filepath.Join(d.root, torrentsDir, hashOf(id)+".torrent"):      0o600,
		filepath.Join(d.root, torrentsDir, hashOf(id)+".torrent.json"): 0o600,
		filepath.Join(d.library, hashOf(id)+".torrent"):                0o640,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

func TestTreesBelowTheTop(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	write(t, filepath.Join(d.root, "films/old/one/f"), []byte("x"))
	a := backend.Addition{Name: "one", Location: backend.Location{RootID: "main", Dir: "films/old"}}
	id, err := d.AddStopped(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.AddStopped(t.Context(), a); err != nil || again != id {
		t.Errorf("%q, %v", again, err)
	}
	wantList(t, d, "tree one main:films/old NOT_MANAGED")
	tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
	if err != nil || tr.Files.Entry(0).GetPath() != "one/f" || tr.Files.DiskPath(0) != "films/old/one/f" {
		t.Errorf("%v, %v", tr, err)
	}
	if s, err := d.Activate(t.Context(), id); err != nil || s != archivepb.BackendState_BACKEND_STATE_NOT_MANAGED {
		t.Errorf("%v, %v", s, err)
	}
	if c, err := d.Check(t.Context(), id, nil); err != nil || c.Err != nil || c.ContentRevision != tr.Header.GetContentRevision() {
		t.Errorf("%v, %v", c, err)
	}
	if trashed, err := d.RemoveEntry(t.Context(), id, "job"); err != nil || len(trashed) != 1 {
		t.Errorf("%v, %v", trashed, err)
	}
	wantList(t, d, "tree films main: NOT_MANAGED")
	for name, bad := range map[string]backend.Addition{
		"no name":   {Location: backend.Location{RootID: "main"}},
		"missing":   {Name: "nothing", Location: backend.Location{RootID: "main"}},
		"two parts": {Name: "films/old", Location: backend.Location{RootID: "main"}},
		"up":        {Name: "..", Location: backend.Location{RootID: "main"}},
		"reserved":  {Name: ".archive-control", Location: backend.Location{RootID: "main"}},
		"selection": {Name: "films", Location: backend.Location{RootID: "main"}, Selected: &archivepb.IndexSet{}},
	} {
		if _, err := d.AddStopped(t.Context(), bad); err == nil || backend.CodeOf(err) == archivepb.ErrorCode_ERROR_CODE_INTERNAL {
			t.Errorf("%s: %v", name, err)
		}
	}
}
