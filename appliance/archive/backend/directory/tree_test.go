package directory

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/archive/verify"
)

func (d *dirs) only(t testing.TB) *archivepb.ResourceSummary {
	t.Helper()
	l := d.list(t)
	if len(l) != 1 {
		t.Fatalf("%d resources: %s", len(l), say(l))
	}
	return l[0]
}

func TestTreeFingerprintIsKnownOnceHashed(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	write(t, filepath.Join(d.root, "t/b.txt"), []byte("bb"))
	write(t, filepath.Join(d.root, "t/b/a"), []byte("a"))
	if err := os.Symlink("../b.txt", filepath.Join(d.root, "t/b/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(d.root, "t/empty dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := torrent.NewTreeFingerprint()
	f.File("t/b.txt", 2, sha256.Sum256([]byte("bb")))
	f.File("t/b/a", 1, sha256.Sum256([]byte("a")))
	f.Symlink("t/b/link", "t/b.txt")
	want, err := f.Sum()
	if err != nil {
		t.Fatal(err)
	}
	r := d.only(t)
	id := r.GetResource().GetResourceId()
	if i := r.GetResource().GetIdentity(); i.GetTreeFingerprint() != "" || i.GetDisplayName() != "t" || r.GetContentRevision() != "" || r.GetFileCount() != 3 {
		t.Fatalf("%v", r)
	}
	_, err = d.ContentTree(t.Context(), id, backend.TreeOptions{CachedOnly: true})
	if det := backend.Detail(err); det.GetCode() != archivepb.ErrorCode_ERROR_CODE_BUSY || !det.GetRetryable() {
		t.Fatalf("%v", det)
	}
	var last verify.Progress
	tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{Progress: func(p verify.Progress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	if last != (verify.Progress{Bytes: 3, TotalBytes: 3, Files: 2, TotalFiles: 2}) {
		t.Errorf("progress %+v", last)
	}
	if got := tr.Header.GetResource().GetIdentity().GetTreeFingerprint(); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	var lines []string
	for i := range tr.Files.Len() {
		e := tr.Files.Entry(i)
		lines = append(lines, fmt.Sprintf("%d %s %v %d %s", e.GetIndex(), e.GetPath(), e.GetKind(), e.GetCompletedBytes(), e.GetSymlinkTarget()))
	}
	if got := strings.Join(lines, "\n"); got != "0 t/b.txt FILE_KIND_REGULAR 2 \n1 t/b/a FILE_KIND_REGULAR 1 \n2 t/b/link FILE_KIND_SYMLINK 0 t/b.txt" {
		t.Errorf("entries:\n%s", got)
	}
	again := d.only(t)
	if again.GetResource().GetIdentity().GetTreeFingerprint() != want || again.GetContentRevision() != tr.Header.GetContentRevision() || again.GetResource().GetResourceId() != id {
		t.Errorf("%v", again)
	}
	if _, err := d.ContentTree(t.Context(), id, backend.TreeOptions{CachedOnly: true}); err != nil {
		t.Error(err)
	}
	rewrite(t, filepath.Join(d.root, "t/b/a"), []byte("A"))
	if now := d.only(t); now.GetResource().GetIdentity().GetTreeFingerprint() != "" || now.GetContentRevision() != "" {
		t.Errorf("the fingerprint outlived a write: %v", now)
	}
}

func TestHostileTrees(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), []byte("secret"))
	for name, c := range map[string]struct {
		make func(dir string) error
		code archivepb.ErrorCode
	}{
		"link up":       {func(dir string) error { return os.Symlink("../../x", dir+"/l") }, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
		"link absolute": {func(dir string) error { return os.Symlink(outside, dir+"/l") }, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
		"link sideways": {func(dir string) error { return os.Symlink("../other/f", dir+"/l") }, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
		"pipe":          {func(dir string) error { return syscall.Mkfifo(dir+"/p", 0o600) }, archivepb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT},
		"newline":       {func(dir string) error { return os.WriteFile(dir+"/a\nb", nil, 0o600) }, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
		"not UTF-8":     {func(dir string) error { return os.WriteFile(dir+"/\xff", nil, 0o600) }, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
		"backslash":     {func(dir string) error { return os.WriteFile(dir+`/..\x`, nil, 0o600) }, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
	} {
		d := setup(t, nil)
		write(t, filepath.Join(d.root, "t/f"), []byte("x"))
		if err := c.make(filepath.Join(d.root, "t")); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(d.root, "fine"), []byte("x"))
		wantList(t, d, "tree fine main: NOT_MANAGED", "tree t main: ERROR")
		_, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{})
		if got := backend.CodeOf(err); got != c.code {
			t.Errorf("%s: %v (%v)", name, got, err)
		}
	}
	d := setup(t, nil)
	if err := os.Symlink(outside, filepath.Join(d.root, "toplink")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.root, "\xff"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantList(t, d, "tree \uFFFD main: ERROR")
}

// TestPlantedLinks puts links where a torrent has directories and files.
func TestPlantedLinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	torrenttest.Lay(t, outside, files(1))
	for name, plant := range map[string]func(root string) error{
		"content": func(root string) error { return os.Symlink(outside, root+"/s") },
		"directory": func(root string) error {
			return os.Symlink(filepath.Join(outside, "d"), root+"/s/d")
		},
		"file": func(root string) error { return os.Symlink(filepath.Join(outside, "a"), root+"/s/a") },
	} {
		d := setup(t, nil)
		if name != "content" {
			write(t, filepath.Join(d.root, "s/x"), []byte("x"))
		}
		if err := plant(d.root); err != nil {
			t.Fatal(err)
		}
		id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: makeTorrent("s", 1), Location: backend.Location{RootID: "main"}})
		if err != nil {
			t.Fatal(err)
		}
		tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
		if err == nil {
			for i := range tr.Files.Len() {
				if e := tr.Files.Entry(i); e.GetPresent() == archivepb.DiskPresence_DISK_PRESENCE_FINAL_NAME || e.GetCompletedBytes() != 0 {
					t.Errorf("%s: %v was reached through a link", name, e)
				}
			}
		} else if backend.CodeOf(err) != archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE && backend.CodeOf(err) != archivepb.ErrorCode_ERROR_CODE_NOT_FOUND {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := d.Activate(t.Context(), id); err == nil {
			t.Errorf("%s: content behind a link was activated", name)
		}
	}
}

func TestTorrentLinksMustLeadWhereTheyShould(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	list := append(files(1), torrenttest.Entry{Path: "e/good", Target: "d/b"}, torrenttest.Entry{Path: "e/wrong", Target: "a"})
	torrenttest.Lay(t, filepath.Join(d.root, "s"), list)
	if err := os.Remove(filepath.Join(d.root, "s/e/wrong")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(d.root, "s/e/wrong")); err != nil {
		t.Fatal(err)
	}
	id, err := d.AddStopped(t.Context(), backend.Addition{Location: backend.Location{RootID: "main"},
		Metainfo: torrenttest.Make(torrenttest.Options{Version: torrenttest.Hybrid, Name: "s"}, list)})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i := range tr.Files.Len() {
		e := tr.Files.Entry(i)
		if e.GetKind() != archivepb.FileKind_FILE_KIND_SYMLINK {
			continue
		}
		seen++
		want := archivepb.DiskPresence_DISK_PRESENCE_FINAL_NAME
		if strings.HasSuffix(e.GetPath(), "wrong") {
			want = archivepb.DiskPresence_DISK_PRESENCE_ABSENT
		}
		if e.GetPresent() != want || e.GetSymlinkTarget() == "" {
			t.Errorf("%v", e)
		}
	}
	if seen != 2 {
		t.Errorf("%d links", seen)
	}
}

// counting counts the reads of content.
func counting(o *Options, t *testing.T, dir string, reads *atomic.Int64) {
	r, err := beneath.Open(dir, beneath.Options{Hook: func(op beneath.Op, path string) error {
		if op == beneath.OpRead && !strings.HasPrefix(path, controlDir) {
			reads.Add(1)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	o.Roots[0].Dir = r
}

// linkUntilNoticed gives a file more names until its ctime moves, which takes one tick of the file system's clock.
func linkUntilNoticed(t *testing.T, root *beneath.Root, name string) {
	t.Helper()
	before, err := root.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if err := root.Link(name, root, fmt.Sprint("linked ", i)); err != nil {
			t.Fatal(err)
		}
		if err := root.Unlink(fmt.Sprint("linked ", i)); err != nil {
			t.Fatal(err)
		}
		if after, err := root.Lstat(name); err != nil || after.CtimeNS != before.CtimeNS {
			if err != nil || !after.Unchanged(before) {
				t.Fatalf("%+v became %+v, %v", before, after, err)
			}
			return
		}
	}
}

func TestContentIsReadOnce(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]torrenttest.Options{
		"unaligned": {Version: torrenttest.V1, Name: "s"}, "aligned": {Version: torrenttest.Hybrid, Name: "s"}, "v2": {Version: torrenttest.V2, Name: "s"},
	} {
		var reads atomic.Int64
		var root string
		cache := hashcache.NewMemory()
		d := setup(t, func(o *Options) {
			root = o.Roots[0].Dir.Dir()
			counting(o, t, root, &reads)
			o.Cache = cache
		})
		torrenttest.Lay(t, filepath.Join(root, "s"), files(1))
		id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: torrenttest.Make(o, files(1)), Location: backend.Location{RootID: "main"}})
		if err != nil {
			t.Fatal(err)
		}
		get := func() int64 {
			t.Helper()
			before := reads.Load()
			tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if s := tr.Header.GetBackendState(); s != archivepb.BackendState_BACKEND_STATE_STOPPED_COMPLETE {
				t.Errorf("%s: %v", name, s)
			}
			return reads.Load() - before
		}
		if n := get(); n != 3 {
			t.Errorf("%s: %d reads at first", name, n)
		}
		if n := get(); n != 0 {
			t.Errorf("%s: %d reads with a cache", name, n)
		}
		// A new link changes the ctime. What shares no piece with the file is not read again.
		linkUntilNoticed(t, d.o.Roots[0].Dir, "s/a")
		want := int64(1)
		if name == "unaligned" {
			want = 3
		}
		if n := get(); n != want {
			t.Errorf("%s: %d reads after a link, want %d", name, n, want)
		}
		if n := get(); n != 0 {
			t.Errorf("%s: %d reads with a cache", name, n)
		}
	}
}

func TestProvenContentIsNotReadAgain(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	var root string
	d := setup(t, func(o *Options) { root = o.Roots[0].Dir.Dir(); counting(o, t, root, &reads) })
	torrenttest.Lay(t, filepath.Join(root, "s"), files(1))
	raw := makeTorrent("s", 1)
	m, err := torrent.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	open := opener{&snapshot{res: &resource{}, root: d.o.Roots[0].Dir, files: []diskFile{{path: "s/a"}, {path: "s/d/b"}, {path: "s/d/c"}}}, func(i int) int { return i }}
	r, err := verify.Run(t.Context(), verify.Content{Torrent: m}, open, verify.Options{Clock: d.clock})
	if err != nil || r.FirstBad != -1 {
		t.Fatal(err)
	}
	before := reads.Load()
	id, err := d.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: "main"}, Proven: r})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := d.Activate(t.Context(), id); err != nil || s != archivepb.BackendState_BACKEND_STATE_SEEDING {
		t.Fatalf("%v, %v", s, err)
	}
	if n := reads.Load() - before; n != 0 {
		t.Errorf("%d reads of proven content", n)
	}
	// A proof about files that changed since is worth nothing.
	rewrite(t, filepath.Join(root, "s/d/b"), torrenttest.Bytes(99, 20_000))
	if err := d.learnProven(t.Context(), id, r); err != nil {
		t.Fatal(err)
	}
	c, err := d.Check(t.Context(), id, nil)
	if err != nil || c.Err == nil {
		t.Errorf("%v, %v", c, err)
	}
	tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
	if err != nil || tr.Header.GetBackendState() != archivepb.BackendState_BACKEND_STATE_STOPPED_INCOMPLETE {
		t.Errorf("%v, %v", tr, err)
	}
}

func TestProvenTreesAreNotReadAgain(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	write(t, filepath.Join(d.root, "t/a"), []byte("aa"))
	write(t, filepath.Join(d.root, "t/b"), []byte("bb"))
	if err := os.Symlink("a", filepath.Join(d.root, "t/a link")); err != nil {
		t.Fatal(err)
	}
	open := opener{&snapshot{res: &resource{}, root: d.o.Roots[0].Dir, files: []diskFile{{path: "t/b"}, {path: "t/a"}}}, func(i int) int { return i }}
	r, err := verify.Run(t.Context(), verify.Content{Files: []verify.Entry{{Path: "t/b", Bytes: 2}, {Path: "t/a", Bytes: 2}}}, open, verify.Options{Clock: d.clock})
	if err != nil || r.FirstBad != -1 {
		t.Fatal(err)
	}
	id, err := d.AddStopped(t.Context(), backend.Addition{Name: "t", Location: backend.Location{RootID: "main"}, Proven: r})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{CachedOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	f := torrent.NewTreeFingerprint()
	f.File("t/a", 2, sha256.Sum256([]byte("aa")))
	f.Symlink("t/a link", "t/a")
	f.File("t/b", 2, sha256.Sum256([]byte("bb")))
	if want, err := f.Sum(); err != nil || tr.Header.GetResource().GetIdentity().GetTreeFingerprint() != want {
		t.Errorf("%v, %v", tr.Header, err)
	}
}

func TestFileThatChangesWhileItIsHashed(t *testing.T) {
	t.Parallel()
	var root string
	var once atomic.Bool
	d := setup(t, func(o *Options) {
		root = o.Roots[0].Dir.Dir()
		r, err := beneath.Open(root, beneath.Options{Hook: func(op beneath.Op, path string) error {
			if op == beneath.OpRead && path == "t/f" && once.CompareAndSwap(false, true) {
				return os.WriteFile(filepath.Join(root, "t/f"), []byte("longer than before"), 0o600)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		o.Roots[0].Dir = r
	})
	write(t, filepath.Join(root, "t/f"), []byte("before"))
	_, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{})
	if det := backend.Detail(err); det.GetCode() != archivepb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT || det.GetDetails()["path"] != "t/f" {
		t.Fatalf("%v", det)
	}
	tr, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{})
	if err != nil || tr.Header.GetTotals().GetLogical() != 18 {
		t.Errorf("%v, %v", tr, err)
	}
}

func TestUnreadableSector(t *testing.T) {
	t.Parallel()
	var root string
	d := setup(t, func(o *Options) {
		root = o.Roots[0].Dir.Dir()
		r, err := beneath.Open(root, beneath.Options{Hook: func(op beneath.Op, path string) error {
			if op == beneath.OpRead && path == "s/d/b" {
				return syscall.EIO
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		o.Roots[0].Dir = r
	})
	torrenttest.Lay(t, filepath.Join(root, "s"), files(1))
	write(t, filepath.Join(d.metainfo, "s.torrent"), makeTorrent("s", 1))
	id := d.only(t).GetResource().GetResourceId()
	for _, call := range []func() error{
		func() error { _, err := d.Check(t.Context(), id, nil); return err },
		func() error { _, err := d.ContentTree(t.Context(), id, backend.TreeOptions{}); return err },
	} {
		if det := backend.Detail(call()); det.GetCode() != archivepb.ErrorCode_ERROR_CODE_READ_ERROR || det.GetRetryable() || !strings.Contains(det.GetMessage(), "s/d/b") {
			t.Errorf("%v", det)
		}
	}
}

func TestQuiesceNoticesChanges(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string) error{
		"written": func(dir string) error { return os.WriteFile(dir+"/f", []byte("longer"), 0o600) },
		"touched": func(dir string) error { return os.Chtimes(dir+"/f", time.Time{}, time.Unix(5, 5)) },
		"added":   func(dir string) error { return os.WriteFile(dir+"/g", nil, 0o600) },
		"removed": func(dir string) error { return os.Remove(dir + "/e") },
	} {
		d := setup(t, nil)
		write(t, filepath.Join(d.root, "t/e"), []byte("x"))
		write(t, filepath.Join(d.root, "t/f"), []byte("x"))
		done := make(chan error)
		go func() { done <- d.Quiesce(t.Context(), treeID("main", "t")) }()
		d.clock.BlockUntil(1)
		if err := change(filepath.Join(d.root, "t")); err != nil {
			t.Fatal(err)
		}
		d.clock.Advance(5 * time.Second)
		if det := backend.Detail(<-done); det.GetCode() != archivepb.ErrorCode_ERROR_CODE_UNSAFE_STATE || !strings.HasPrefix(det.GetDetails()["path"], "t/") {
			t.Errorf("%s: %v", name, det)
		}
	}
	d := setup(t, nil)
	write(t, filepath.Join(d.root, "t/e"), []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Quiesce(ctx, treeID("main", "t")) }()
	d.clock.BlockUntil(1)
	cancel()
	if err := <-done; backend.CodeOf(err) != archivepb.ErrorCode_ERROR_CODE_CANCELLED {
		t.Errorf("%v", err)
	}
}

func TestQuiesceNoticesWriters(t *testing.T) {
	t.Parallel()
	d := setup(t, func(o *Options) { o.CheckOpenFiles = true })
	path := filepath.Join(d.root, "t/f")
	write(t, path, []byte("x"))
	quiesce := func() error {
		done := make(chan error)
		go func() { done <- d.Quiesce(t.Context(), treeID("main", "t")) }()
		d.clock.BlockUntil(1)
		d.clock.Advance(5 * time.Second)
		return <-done
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := quiesce(); err != nil {
		t.Errorf("a reader: %v", err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	det := backend.Detail(quiesce())
	if det.GetCode() != archivepb.ErrorCode_ERROR_CODE_UNSAFE_STATE || det.GetDetails()["path"] != "t/f" || det.GetDetails()["pid"] != fmt.Sprint(os.Getpid()) {
		t.Errorf("a writer: %v", det)
	}
	writer.Close()
	if err := quiesce(); err != nil {
		t.Errorf("after the writer: %v", err)
	}
}

func TestKeysOfYoungFilesAreNotTrusted(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 5)
	for name, c := range map[string]struct {
		ctime, mtime time.Time
		want         time.Duration
	}{
		"old":           {at.Add(-time.Second), at.Add(-time.Hour), 0},
		"just old":      {at.Add(-tick), at.Add(-tick), 0},
		"young":         {at.Add(-time.Millisecond), at.Add(-time.Hour), tick - time.Millisecond},
		"whole seconds": {time.Unix(999, 0), time.Unix(5, 0), coarseTick - time.Second - 5},
		"future":        {at.Add(time.Hour), at, time.Hour + tick},
	} {
		k := hashcache.Key{CtimeNS: c.ctime.UnixNano(), MtimeNS: c.mtime.UnixNano()}
		if got := youth(k, at); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	// Hashing waits until the key may be trusted, so that the next call need not read again.
	d := setup(t, nil)
	write(t, filepath.Join(d.root, "t/f"), []byte("x"))
	st, err := d.o.Roots[0].Dir.Lstat("t/f")
	if err != nil {
		t.Fatal(err)
	}
	d.clock.Advance(time.Unix(0, st.CtimeNS).Sub(d.clock.Now()))
	done := make(chan error)
	go func() {
		_, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{})
		done <- err
	}()
	d.clock.BlockUntil(1)
	d.clock.Advance(coarseTick)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{CachedOnly: true}); err != nil {
		t.Error(err)
	}
}

// A file whose times lie in the future, because they were copied or a clock was set back, is read once like any other: what
// was equal for longer than any tick is not in the middle of one.
func TestTimesInTheFutureAreTrustedOnceTheyStand(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]time.Duration{"mtime": 0, "both": 2 * time.Hour} {
		d := setup(t, nil)
		path := filepath.Join(d.root, "t/f")
		write(t, path, []byte("x"))
		future := time.Now().Add(24 * time.Hour)
		if err := os.Chtimes(path, future, future); err != nil {
			t.Fatal(err)
		}
		st, err := d.o.Roots[0].Dir.Lstat("t/f")
		if err != nil {
			t.Fatal(err)
		}
		d.clock.Advance(time.Unix(0, st.CtimeNS).Add(-early).Sub(d.clock.Now()))
		read := func() error {
			done := make(chan error)
			go func() {
				_, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{})
				done <- err
			}()
			d.clock.BlockUntil(1)
			d.clock.Advance(coarseTick)
			return <-done
		}
		if err := read(); err != nil {
			t.Fatal(name, err)
		}
		if _, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{CachedOnly: true}); err != nil {
			t.Errorf("%s: it is read again: %v", name, err)
		}
		write(t, path, []byte("y")) // now its times are of today
		if _, err := d.ContentTree(t.Context(), treeID("main", "t"), backend.TreeOptions{CachedOnly: true}); err == nil {
			t.Errorf("%s: the change was not seen", name)
		}
	}
}
