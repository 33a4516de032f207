package directory

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// heap is the memory in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestTenThousandResources(t *testing.T) {
	const n = 10_000
	d := setup(t, nil)
	for i := range n {
		name := fmt.Sprintf("film %05d", i)
		data := []byte(name)
		raw := torrenttest.Make(torrenttest.Options{Version: torrenttest.V1, Name: name, Single: true}, []torrenttest.Entry{{Path: name, Data: data}})
		if err := os.WriteFile(filepath.Join(d.metainfo, name+".torrent"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.root, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := heap()
	start := time.Now()
	l, err := d.ListResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("first list %v", time.Since(start))
	if len(l.Resources) != n {
		t.Fatalf("%d resources", len(l.Resources))
	}
	for i, r := range l.Resources {
		if r.GetContentRootId() != "main" || (i > 0 && l.Resources[i-1].GetResource().GetResourceId() >= r.GetResource().GetResourceId()) {
			t.Fatalf("resource %d: %v", i, r)
		}
	}
	start = time.Now()
	again, err := d.ListResources(t.Context())
	if err != nil || again.Token != l.Token {
		t.Fatalf("%v, tokens equal: %t", err, again.Token == l.Token)
	}
	t.Logf("second list %v", time.Since(start))
	if used := heap() - before; used > 100<<20 {
		t.Errorf("two lists and what is kept use %d MiB", used>>20)
	} else {
		t.Logf("%d MiB kept", used>>20)
	}
	runtime.KeepAlive(l)
	runtime.KeepAlive(again)
}

func TestTwoHundredThousandFiles(t *testing.T) {
	const dirsOf, perDir = 200, 1000
	d := setup(t, nil)
	seed := func(i int) string { return filepath.Join(filepath.Dir(d.root), fmt.Sprint("seed", i)) }
	for i := range dirsOf {
		if i%40 == 0 { // a file system allows only so many names for one file
			write(t, seed(i/40), []byte(fmt.Sprint("content ", i)))
		}
		dir := filepath.Join(d.root, "big", fmt.Sprintf("d%03d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for k := range perDir {
			if err := os.Link(seed(i/40), filepath.Join(dir, fmt.Sprintf("file %04d", k))); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The digests are known, for reading as many files is the engine's own test.
	for i := range dirsOf / 40 {
		st, err := d.o.Roots[0].Dir.Lstat(fmt.Sprintf("big/d%03d/file 0000", i*40))
		if err != nil {
			t.Fatal(err)
		}
		v := hashcache.Value{SHA256: sha256.Sum256([]byte(fmt.Sprint("content ", i*40))), Digested: true}
		if err := d.o.Cache.Put(t.Context(), []hashcache.Entry{{Key: hashcache.KeyOf(st), Value: v}}); err != nil {
			t.Fatal(err)
		}
	}
	before := heap()
	start := time.Now()
	tr, err := d.ContentTree(t.Context(), treeID("main", "big"), backend.TreeOptions{CachedOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tree %v", time.Since(start))
	if tr.Files.Len() != torrent.MaxFiles || len(tr.Header.GetResource().GetIdentity().GetTreeFingerprint()) != 64 {
		t.Fatalf("%d files, %v", tr.Files.Len(), tr.Header)
	}
	last := ""
	for i := range tr.Files.Len() {
		e := tr.Files.Entry(i)
		if e.GetPath() <= last || e.GetIndex() != uint32(i) {
			t.Fatalf("entry %d: %v after %q", i, e, last)
		}
		last = e.GetPath()
	}
	if used := heap() - before; used > 150<<20 {
		t.Errorf("the tree uses %d MiB", used>>20)
	} else {
		t.Logf("%d MiB kept", used>>20)
	}
	runtime.KeepAlive(tr)
	write(t, filepath.Join(d.root, "big/one too many"), nil)
	_, err = d.ContentTree(t.Context(), treeID("main", "big"), backend.TreeOptions{})
	if got := backend.CodeOf(err); got != archivepb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED {
		t.Errorf("one file too many: %v (%v)", got, err)
	}
}
