// Package backendtest is the conformance suite of backends: what the daemon relies on, whoever holds the content.
package backendtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/archive/verify"
)

// Fixture is an empty backend with one content root.
type Fixture struct {
	Backend backend.Backend
	RootID  string
	RootDir string // the content root in the file system
	// Pass lets the time pass that Quiesce waits for. It is called beside a running call and may be nil.
	Pass func()
}

// Run runs the suite; open makes a fixture of its own for each test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, Fixture){
		"describe":        describe,
		"unknown":         unknown,
		"life":            life,
		"damage":          damage,
		"missing file":    missing,
		"other place":     otherPlace,
		"selection":       selection,
		"revision":        revision,
		"quiesce":         quiesce,
		"paths":           paths,
		"hostile torrent": hostile,
		"many at once":    manyAtOnce,
		"secrets":         secrets,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func entries() []torrenttest.Entry {
	return []torrenttest.Entry{
		{Path: "a/one", Data: torrenttest.Bytes(1, 50_000)},
		{Path: "a/two", Data: torrenttest.Bytes(2, 70_001)},
		{Path: "b", Data: torrenttest.Bytes(3, 16_384)},
		{Path: "empty"},
	}
}

// versions returns the torrent versions that the backend can hold.
func versions(t *testing.T, b backend.Backend) []torrenttest.Version {
	t.Helper()
	d, err := b.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := []torrenttest.Version{torrenttest.V1, torrenttest.Hybrid}
	if slices.Contains(d.Capabilities, "content.v2") {
		out = append(out, torrenttest.V2)
	}
	return out
}

// content lays content below a directory of the root and makes its torrent.
func content(t *testing.T, f Fixture, v torrenttest.Version, dir, name string) []byte {
	t.Helper()
	torrenttest.Lay(t, filepath.Join(f.RootDir, dir, name), entries())
	return torrenttest.Make(torrenttest.Options{Version: v, Name: name}, entries())
}

func add(t *testing.T, f Fixture, raw []byte, dir string) string {
	t.Helper()
	id, err := f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: f.RootID, Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func tree(t *testing.T, f Fixture, id string) *backend.Tree {
	t.Helper()
	tr, err := f.Backend.ContentTree(t.Context(), id, backend.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func list(t *testing.T, f Fixture) *backend.Listing {
	t.Helper()
	l, err := f.Backend.ListResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func summaryOf(l *backend.Listing, id string) *archivepb.ResourceSummary {
	for _, r := range l.Resources {
		if r.GetResource().GetResourceId() == id {
			return r
		}
	}
	return nil
}

func wantCode(t *testing.T, what string, err error, code archivepb.ErrorCode) {
	t.Helper()
	if got := backend.CodeOf(err); err == nil || got != code {
		t.Errorf("%s: got %v (%v), want %v", what, got, err, code)
	}
	if err != nil && backend.Detail(err).GetMessage() == "" {
		t.Errorf("%s: an error without a message", what)
	}
}

var capability = regexp.MustCompile(`^[a-z0-9_]+(\.[a-z0-9_]+)*$`)

func describe(t *testing.T, f Fixture) {
	d, err := f.Backend.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.Kind == "" || d.Version == "" || d.MaxFiles < 1 || !sort.StringsAreSorted(d.Capabilities) {
		t.Errorf("%+v", d)
	}
	for _, c := range d.Capabilities {
		if !capability.MatchString(c) || len(c) > 64 {
			t.Errorf("capability %q", c)
		}
	}
	if l := list(t, f); l.Token == "" || len(l.Resources) != 0 {
		t.Errorf("an empty backend lists %d resources, token %q", len(l.Resources), l.Token)
	}
}

func unknown(t *testing.T, f Fixture) {
	b, ctx, notFound := f.Backend, t.Context(), archivepb.ErrorCode_ERROR_CODE_NOT_FOUND
	const id = "torrent:0000000000000000000000000000000000000000"
	_, err := b.ContentTree(ctx, id, backend.TreeOptions{})
	wantCode(t, "ContentTree", err, notFound)
	_, err = b.Metainfo(ctx, id)
	wantCode(t, "Metainfo", err, notFound)
	_, err = b.Check(ctx, id, nil)
	wantCode(t, "Check", err, notFound)
	_, err = b.Activate(ctx, id)
	wantCode(t, "Activate", err, notFound)
	wantCode(t, "Quiesce", b.Quiesce(ctx, id), notFound)
	wantCode(t, "Unquiesce", b.Unquiesce(ctx, id, archivepb.BackendState_BACKEND_STATE_SEEDING), notFound)
	if left, err := b.RemoveEntry(ctx, id, "job"); err != nil || len(left) != 0 {
		t.Errorf("RemoveEntry of a resource that is gone: %v, %v", left, err)
	}
}

// life takes a resource from AddStopped to RemoveEntry.
func life(t *testing.T, f Fixture) {
	for i, v := range versions(t, f.Backend) {
		name := fmt.Sprint("set", i)
		before := list(t, f)
		raw := content(t, f, v, "sub/dir", name)
		disk := stat(t, f)
		m, err := torrent.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		id := add(t, f, raw, "sub/dir")
		if again := add(t, f, raw, "sub/dir"); again != id || len(id) < 1 || len(id) > 160 {
			t.Fatalf("added twice: %q and %q", id, again)
		}
		added := list(t, f)
		if added.Token == before.Token || list(t, f).Token != added.Token {
			t.Error("the change token does not follow the list")
		}
		checkSummary(t, f, summaryOf(added, id), m, "sub/dir")
		if s := summaryOf(added, id).GetBackendState(); s == archivepb.BackendState_BACKEND_STATE_SEEDING || s == archivepb.BackendState_BACKEND_STATE_DOWNLOADING {
			t.Errorf("AddStopped started it: %v", s)
		}
		var last verify.Progress
		r, err := f.Backend.Check(t.Context(), id, func(p verify.Progress) { last = p })
		if err != nil || r.Err != nil {
			t.Fatalf("Check: %v, %v", err, r)
		}
		if last.Bytes != last.TotalBytes || last.Bytes != 50_000+70_001+16_384 {
			t.Errorf("last progress of Check: %+v", last)
		}
		checkTree(t, f, tree(t, f, id), m)
		if tr := tree(t, f, id); tr.Header.GetContentRevision() != r.ContentRevision {
			t.Error("Check and ContentTree tell different revisions")
		}
		got, err := f.Backend.Metainfo(t.Context(), id)
		if err != nil || string(got) != string(raw) {
			t.Errorf("Metainfo: %d bytes, %v", len(got), err)
		}
		for range 2 {
			state, err := f.Backend.Activate(t.Context(), id)
			if err != nil || state != archivepb.BackendState_BACKEND_STATE_SEEDING {
				t.Errorf("Activate: %v, %v", state, err)
			}
		}
		if s := tree(t, f, id).Header.GetBackendState(); s != archivepb.BackendState_BACKEND_STATE_SEEDING {
			t.Errorf("state after Activate: %v", s)
		}
		first, err := f.Backend.RemoveEntry(t.Context(), id, "job-1")
		if err != nil {
			t.Fatal(err)
		}
		second, err := f.Backend.RemoveEntry(t.Context(), id, "job-1")
		if err != nil || !slices.Equal(first, second) {
			t.Errorf("RemoveEntry again: %v, %v, first %v", second, err, first)
		}
		if summaryOf(list(t, f), id) != nil {
			t.Error("the entry is still listed")
		}
		if now := stat(t, f); now != disk {
			t.Errorf("content was touched:\n%s\nwas\n%s", now, disk)
		}
	}
}

// stat describes all content below the root, the backend's own directory apart.
func stat(t *testing.T, f Fixture) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(f.RootDir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".archive-control" {
			return filepath.SkipDir
		}
		if d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		fmt.Fprintf(&b, "%s %d %v %d %x\n", p, info.Sys().(*syscall.Stat_t).Ino, info.ModTime(), len(data), data[:min(len(data), 8)])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func checkSummary(t *testing.T, f Fixture, s *archivepb.ResourceSummary, m *torrent.Metainfo, dir string) {
	t.Helper()
	if s == nil {
		t.Fatal("the resource is not listed")
	}
	id := s.GetResource().GetIdentity()
	if id.GetInfohashV1() != m.V1Hex() || id.GetInfohashV2() != m.V2Hex() || id.GetDisplayName() != m.Name {
		t.Errorf("identity %v", id)
	}
	if s.GetContentRootId() != f.RootID || s.GetRelativeDir() != dir || s.GetPartialSelection() || s.GetLogicalBytes() != 50_000+70_001+16_384 || s.GetSelectedBytes() != s.GetLogicalBytes() {
		t.Errorf("summary %v", s)
	}
}

func checkTree(t *testing.T, f Fixture, tr *backend.Tree, m *torrent.Metainfo) {
	t.Helper()
	h := tr.Header
	if h.GetTorrent().String() != m.Facts().String() || !h.GetMetainfoAvailable() || len(h.GetFiles()) != 0 || len(h.GetContentRevision()) != 64 {
		t.Errorf("header %v", h)
	}
	if h.GetTotals().GetCompletedSelected() != h.GetTotals().GetSelected() || h.GetTotals().GetFileCount() != uint64(tr.Files.Len()) {
		t.Errorf("totals %v", h.GetTotals())
	}
	if tr.Files.Len() != len(m.Files) {
		t.Fatalf("%d entries, the torrent has %d", tr.Files.Len(), len(m.Files))
	}
	for i := range tr.Files.Len() {
		e := tr.Files.Entry(i)
		file, span := m.Files[e.GetIndex()], m.Span(int(e.GetIndex()))
		if e.GetPath() != file.Path || e.GetLogicalBytes() != uint64(file.Bytes) || e.GetContentRevision() != h.GetContentRevision() ||
			int(e.GetFirstPiece()) != span.First || int(e.GetLastPiece()) != span.Last {
			t.Errorf("entry %v of %+v", e, file)
		}
		if file.Kind == torrent.Padding {
			if !e.GetPadding() || e.GetKind() != archivepb.FileKind_FILE_KIND_PADDING || e.GetSelected() {
				t.Errorf("padding %v", e)
			}
			continue
		}
		if !e.GetSelected() || e.GetCompletedBytes() != e.GetLogicalBytes() || e.GetPresent() != archivepb.DiskPresence_DISK_PRESENCE_FINAL_NAME ||
			e.GetDiskBytes() != e.GetLogicalBytes() || e.GetLinkCount() != 1 || e.GetMtime() == nil {
			t.Errorf("entry %v", e)
		}
		if info, err := os.Stat(filepath.Join(f.RootDir, tr.Files.DiskPath(i))); err != nil || info.Size() != file.Bytes {
			t.Errorf("disk path %q: %v", tr.Files.DiskPath(i), err)
		}
	}
}

func damage(t *testing.T, f Fixture) {
	for i, v := range versions(t, f.Backend) {
		name := fmt.Sprint("set", i)
		raw := content(t, f, v, "", name)
		path := filepath.Join(f.RootDir, name, "a/two")
		data := torrenttest.Bytes(2, 70_001)
		data[60_000] ^= 1
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		disk := stat(t, f)
		id := add(t, f, raw, "")
		r, err := f.Backend.Check(t.Context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, "Check", r.Err, archivepb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE)
		if got := backend.Detail(r.Err).GetDetails()["path"]; got != name+"/a/two" {
			t.Errorf("Check blames %q", got)
		}
		_, err = f.Backend.Activate(t.Context(), id)
		wantCode(t, "Activate", err, archivepb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE)
		tr := tree(t, f, id)
		if s := tr.Header.GetBackendState(); s != archivepb.BackendState_BACKEND_STATE_STOPPED_INCOMPLETE {
			t.Errorf("state %v", s)
		}
		for i := range tr.Files.Len() {
			e := tr.Files.Entry(i)
			if damaged := e.GetPath() == name+"/a/two"; damaged && e.GetCompletedBytes() >= e.GetLogicalBytes() {
				t.Errorf("entry %v", e)
			}
		}
		if now := stat(t, f); now != disk {
			t.Errorf("content was touched:\n%s\nwas\n%s", now, disk)
		}
	}
}

func missing(t *testing.T, f Fixture) {
	raw := content(t, f, torrenttest.Hybrid, "", "set")
	if err := os.Remove(filepath.Join(f.RootDir, "set/b")); err != nil {
		t.Fatal(err)
	}
	id := add(t, f, raw, "")
	r, err := f.Backend.Check(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, "Check", r.Err, archivepb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE)
	if got := backend.Detail(r.Err).GetDetails()["path"]; got != "set/b" {
		t.Errorf("Check blames %q", got)
	}
	_, err = f.Backend.Activate(t.Context(), id)
	wantCode(t, "Activate", err, archivepb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE)
	if _, err := os.Lstat(filepath.Join(f.RootDir, "set/b")); err == nil {
		t.Error("the missing file was made")
	}
}

func otherPlace(t *testing.T, f Fixture) {
	raw := content(t, f, torrenttest.V1, "here", "set")
	content(t, f, torrenttest.V1, "there", "set")
	id := add(t, f, raw, "here")
	_, err := f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: f.RootID, Dir: "there"}})
	wantCode(t, "another place", err, archivepb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT)
	if tr := tree(t, f, id); tr.Location.Dir != "here" {
		t.Errorf("it moved to %q", tr.Location.Dir)
	}
	_, err = f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: "no such root"}})
	wantCode(t, "no such root", err, archivepb.ErrorCode_ERROR_CODE_PATH_UNMAPPED)
	_, err = f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: f.RootID, Dir: "../x"}})
	wantCode(t, "a place outside", err, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE)
}

func selection(t *testing.T, f Fixture) {
	raw := content(t, f, torrenttest.Hybrid, "", "set")
	m, err := torrent.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	var set archivepb.IndexSet
	for i, file := range m.Files {
		if file.Kind == torrent.Regular && file.Path != "set/a/two" {
			set.Ranges = append(set.Ranges, &archivepb.IndexRange{First: uint32(i), Last: uint32(i)})
		}
	}
	if err := os.Remove(filepath.Join(f.RootDir, "set/a/two")); err != nil {
		t.Fatal(err)
	}
	a := backend.Addition{Metainfo: raw, Location: backend.Location{RootID: f.RootID}, Selected: &set}
	id, err := f.Backend.AddStopped(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := f.Backend.Check(t.Context(), id, nil); err != nil || r.Err != nil {
		t.Fatalf("Check of a partial selection: %v, %v", err, r)
	}
	tr := tree(t, f, id)
	for i := range tr.Files.Len() {
		e := tr.Files.Entry(i)
		out := e.GetPath() == "set/a/two" || e.GetPadding()
		if e.GetSelected() == out || (!out && e.GetCompletedBytes() != e.GetLogicalBytes()) {
			t.Errorf("entry %v", e)
		}
	}
	if s := summaryOf(list(t, f), id); !s.GetPartialSelection() || s.GetCompletedSelectedBytes() != 50_000+16_384 {
		t.Errorf("summary %v", s)
	}
	if again, err := f.Backend.AddStopped(t.Context(), a); err != nil || again != id {
		t.Errorf("added again: %q, %v", again, err)
	}
	a.Selected = nil
	_, err = f.Backend.AddStopped(t.Context(), a)
	wantCode(t, "another selection", err, archivepb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT)
}

func revision(t *testing.T, f Fixture) {
	raw := content(t, f, torrenttest.V1, "", "set")
	id := add(t, f, raw, "")
	one := tree(t, f, id).Header.GetContentRevision()
	if two := tree(t, f, id).Header.GetContentRevision(); one != two {
		t.Error("the revision changes by itself")
	}
	if _, err := f.Backend.Activate(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if two := tree(t, f, id).Header.GetContentRevision(); one != two {
		t.Error("seeding changes the revision")
	}
	token := list(t, f).Token
	path := filepath.Join(f.RootDir, "set/b")
	if err := os.WriteFile(path, torrenttest.Bytes(9, 16_384), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Unix(1_000_000_000, 0)); err != nil { // whatever the tick of the file system
		t.Fatal(err)
	}
	if two := tree(t, f, id).Header.GetContentRevision(); one == two {
		t.Error("a written file does not change the revision")
	}
	if list(t, f).Token == token {
		t.Error("a written file does not change the token")
	}
}

func quiesce(t *testing.T, f Fixture) {
	id := add(t, f, content(t, f, torrenttest.V1, "", "set"), "")
	state := tree(t, f, id).Header.GetBackendState()
	for range 2 {
		done := make(chan error, 1)
		go func() { done <- f.Backend.Quiesce(t.Context(), id) }()
		if f.Pass != nil {
			f.Pass()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := f.Backend.Unquiesce(t.Context(), id, state); err != nil {
			t.Fatal(err)
		}
	}
	if now := tree(t, f, id).Header.GetBackendState(); now != state {
		t.Errorf("state %v, was %v", now, state)
	}
}

func paths(t *testing.T, f Fixture) {
	for _, dir := range []string{"", "a", "a/b c/ä"} {
		l := backend.Location{RootID: f.RootID, Dir: dir}
		p, err := f.Backend.UnmapPath(l)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Backend.MapPath(p); err != nil || got != l {
			t.Errorf("%v became %q and %v, %v", l, p, got, err)
		}
	}
	for _, p := range []string{"/no/such/place", "", "relative"} {
		_, err := f.Backend.MapPath(p)
		wantCode(t, fmt.Sprintf("MapPath %q", p), err, archivepb.ErrorCode_ERROR_CODE_PATH_UNMAPPED)
	}
	_, err := f.Backend.UnmapPath(backend.Location{RootID: "no such root"})
	wantCode(t, "UnmapPath", err, archivepb.ErrorCode_ERROR_CODE_PATH_UNMAPPED)
	_, err = f.Backend.UnmapPath(backend.Location{RootID: f.RootID, Dir: "../x"})
	wantCode(t, "UnmapPath", err, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE)
}

func hostile(t *testing.T, f Fixture) {
	before := list(t, f).Token
	for _, path := range []string{"../x", "a/../../x", "/etc/x"} {
		info := map[string]any{"name": "n", "piece length": 16384, "pieces": make([]byte, 20),
			"files": []any{map[string]any{"length": 1, "path": []any{path}}}}
		raw := torrenttest.Encode(map[string]any{"announce": torrenttest.Announce, "info": info})
		_, err := f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: f.RootID}})
		wantCode(t, path, err, archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE)
	}
	_, err := f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: []byte("junk"), Location: backend.Location{RootID: f.RootID}})
	wantCode(t, "junk", err, archivepb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT)
	if list(t, f).Token != before {
		t.Error("a refused torrent changed the list")
	}
}

func manyAtOnce(t *testing.T, f Fixture) {
	raw := content(t, f, torrenttest.Hybrid, "", "set")
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			id, err := f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw, Location: backend.Location{RootID: f.RootID}})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = id
			if _, err := f.Backend.ContentTree(t.Context(), id, backend.TreeOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := f.Backend.Activate(t.Context(), id); err != nil {
				t.Error(err)
			}
			if _, err := f.Backend.ListResources(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("IDs %v", ids)
	}
	if l := list(t, f); len(l.Resources) != 1 {
		t.Errorf("%d resources", len(l.Resources))
	}
}

// secrets looks for the announce URL in all that a backend says.
func secrets(t *testing.T, f Fixture) {
	raw := content(t, f, torrenttest.Hybrid, "", "set")
	id := add(t, f, raw, "")
	tr := tree(t, f, id)
	said := []string{fmt.Sprint(list(t, f).Resources), tr.Header.String()}
	for i := range tr.Files.Len() {
		said = append(said, tr.Files.Entry(i).String())
	}
	for n := range 40 {
		_, err := f.Backend.AddStopped(t.Context(), backend.Addition{Metainfo: raw[:n*len(raw)/40], Location: backend.Location{RootID: f.RootID}})
		if err == nil {
			t.Errorf("a torrent cut at %d was taken", n*len(raw)/40)
		}
		said = append(said, fmt.Sprintf("%v %+v", err, err), backend.Detail(err).String())
	}
	for _, s := range said {
		for _, part := range []string{"tracker.invalid", "passkey", "0123456789abcdef"} {
			if strings.Contains(s, part) {
				t.Errorf("%q holds %q", s, part)
			}
		}
	}
}
