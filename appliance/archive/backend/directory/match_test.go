package directory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/torrent/torrenttest"
)

func files(seed byte) []torrenttest.Entry {
	return []torrenttest.Entry{
		{Path: "a", Data: torrenttest.Bytes(seed, 40_000)},
		{Path: "d/b", Data: torrenttest.Bytes(seed+1, 20_000)},
		{Path: "d/c", Data: torrenttest.Bytes(seed+2, 100)},
	}
}

func makeTorrent(name string, seed byte) []byte {
	return torrenttest.Make(torrenttest.Options{Version: torrenttest.V1, Name: name}, files(seed))
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// rewrite writes a file so that its mtime changes, however coarse the file system's clock is.
func rewrite(t testing.TB, path string, data []byte) {
	t.Helper()
	write(t, path, data)
	if err := os.Chtimes(path, time.Time{}, time.Unix(1_000_000_000, 0)); err != nil {
		t.Fatal(err)
	}
}

func (d *dirs) list(t testing.TB) []*archivepb.ResourceSummary {
	t.Helper()
	l, err := d.ListResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l.Resources
}

// say is a line a resource, in order of names.
func say(rs []*archivepb.ResourceSummary) string {
	var out []string
	for _, r := range rs {
		kind, _, _ := strings.Cut(r.GetResource().GetResourceId(), ":")
		state := strings.TrimPrefix(r.GetBackendState().String(), "BACKEND_STATE_")
		out = append(out, fmt.Sprintf("%s %s %s:%s %s", kind, r.GetResource().GetIdentity().GetDisplayName(), r.GetContentRootId(), r.GetRelativeDir(), state))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func wantList(t testing.TB, d *dirs, want ...string) {
	t.Helper()
	if got := say(d.list(t)); got != strings.Join(want, "\n") {
		t.Errorf("listed:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

func TestMatchByNameAndSizes(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	lay := func(dir, name string, seed byte) { torrenttest.Lay(t, filepath.Join(d.root, dir, name), files(seed)) }
	write(t, filepath.Join(d.metainfo, "top.torrent"), makeTorrent("top", 1))
	lay("", "top", 1)
	write(t, filepath.Join(d.metainfo, "deep.torrent"), makeTorrent("deep", 2))
	lay("x/y", "deep", 2)
	write(t, filepath.Join(d.metainfo, "too deep.torrent"), makeTorrent("too deep", 3))
	lay("x/y/z/w", "too deep", 3)
	write(t, filepath.Join(d.metainfo, "part.torrent"), makeTorrent("part", 4))
	write(t, filepath.Join(d.root, "p/part/a"), make([]byte, 40_000))
	write(t, filepath.Join(d.metainfo, "nowhere.torrent"), makeTorrent("nowhere", 5))
	write(t, filepath.Join(d.root, "q/nowhere/a"), make([]byte, 40_001))
	write(t, filepath.Join(d.root, "loose.bin"), []byte("x"))
	write(t, filepath.Join(d.root, "tree/f"), []byte("x"))
	write(t, filepath.Join(d.root, ".archive-control/work/job/f"), []byte("x"))
	wantList(t, d,
		"torrent deep main:x/y STOPPED_INCOMPLETE",
		"torrent nowhere : STOPPED_INCOMPLETE",
		"torrent part main:p STOPPED_INCOMPLETE",
		"torrent too deep : STOPPED_INCOMPLETE",
		"torrent top main: STOPPED_INCOMPLETE",
		"tree loose.bin main: NOT_MANAGED",
		"tree q main: NOT_MANAGED",
		"tree tree main: NOT_MANAGED")
	for _, r := range d.list(t) {
		if id := r.GetResource(); r.GetContentRootId() != "" && strings.HasPrefix(id.GetResourceId(), "torrent:") {
			if _, err := d.ContentTree(t.Context(), id.GetResourceId(), backend.TreeOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	wantList(t, d,
		"torrent deep main:x/y STOPPED_COMPLETE",
		"torrent nowhere : STOPPED_INCOMPLETE",
		"torrent part main:p STOPPED_INCOMPLETE",
		"torrent too deep : STOPPED_INCOMPLETE",
		"torrent top main: STOPPED_COMPLETE",
		"tree loose.bin main: NOT_MANAGED",
		"tree q main: NOT_MANAGED",
		"tree tree main: NOT_MANAGED")
}

func TestAmbiguousPlacesAreListedNotGuessed(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	write(t, filepath.Join(d.metainfo, "s.torrent"), makeTorrent("s", 1))
	torrenttest.Lay(t, filepath.Join(d.root, "one/s"), files(1))
	torrenttest.Lay(t, filepath.Join(d.root, "two/s"), files(7)) // same sizes, other bytes
	wantList(t, d, "torrent s : ERROR", "tree one main: NOT_MANAGED", "tree two main: NOT_MANAGED")
	id := d.list(t)[0].GetResource().GetResourceId()
	_, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
	if det := backend.Detail(err); det.GetCode() != archivepb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT || det.GetDetails()["places"] != "main:one/s, main:two/s" {
		t.Errorf("%v", det)
	}
	// A full place wins over a partial one.
	if err := os.Truncate(filepath.Join(d.root, "two/s/a"), 100); err != nil {
		t.Fatal(err)
	}
	wantList(t, d, "torrent s main:one STOPPED_INCOMPLETE", "tree two main: NOT_MANAGED")
	// So does the sidecar over everything.
	write(t, filepath.Join(d.metainfo, "s.torrent.json"), []byte(`{"root_id":"main","relative_dir":"two","category":"films","labels":["x"]}`))
	wantList(t, d, "torrent s main:two STOPPED_INCOMPLETE", "tree one main: NOT_MANAGED")
	if r := d.list(t)[0]; r.GetCategory() != "films" || len(r.GetLabels()) != 1 {
		t.Errorf("%v", r)
	}
}

func TestBadTorrentFilesAndSidecarsAreRefusedByName(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for name, data := range map[string]string{
		"junk.torrent": "junk", "empty.torrent": "", "hostile.torrent": "d8:announce19:http://x/passkey123" + string(torrenttest.Encode(map[string]any{"info": map[string]any{
			"name": "..", "piece length": 16384, "length": 1, "pieces": make([]byte, 20)}}))[1:],
		"fine.torrent": string(makeTorrent("fine", 1)), "fine.torrent.json": `{"relative_dir":"../up"}`,
		"more.torrent": string(makeTorrent("more", 2)), "more.torrent.json": `{"unknown":1}`,
		"root.torrent": string(makeTorrent("root", 3)), "root.torrent.json": `{"root_id":"elsewhere"}`,
		"range.torrent": string(makeTorrent("range", 4)), "range.torrent.json": `{"selected":[[2,1]]}`,
		"after.torrent": string(makeTorrent("after", 5)), "after.torrent.json": `{} {}`,
	} {
		write(t, filepath.Join(d.metainfo, name), []byte(data))
	}
	if err := os.Symlink(filepath.Join(d.metainfo, "junk.torrent"), filepath.Join(d.metainfo, "link.torrent")); err != nil {
		t.Fatal(err)
	}
	wantList(t, d)
	refused := fmt.Sprint(d.Refused())
	for _, name := range []string{"junk", "empty", "hostile", "fine", "more", "root", "range", "after"} {
		if !strings.Contains(refused, name+".torrent") {
			t.Errorf("%s is not named: %s", name, refused)
		}
	}
	if strings.Contains(refused, "passkey") || strings.Contains(refused, "link.torrent") || len(d.Refused()) != 8 {
		t.Errorf("%d: %s", len(d.Refused()), refused)
	}
}

func TestOneResourceForAllFilesOfATorrent(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	raw := makeTorrent("s", 1)
	for _, path := range []string{"metainfo/a.torrent", "metainfo/b.torrent", "library/c.torrent"} {
		write(t, filepath.Join(filepath.Dir(d.root), path), raw)
	}
	torrenttest.Lay(t, filepath.Join(d.root, "s"), files(1))
	id := d.list(t)[0].GetResource().GetResourceId()
	if _, err := d.Check(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	wantList(t, d, "torrent s main: SEEDING")
	trashed, err := d.RemoveEntry(t.Context(), id, "job")
	if err != nil || len(trashed) != 3 {
		t.Fatalf("%v, %v", trashed, err)
	}
	for _, x := range trashed {
		if x.RootID != "main" || strings.HasSuffix(x.Name, ".torrent") {
			t.Errorf("%+v", x)
		}
		if got, err := os.ReadFile(filepath.Join(d.root, x.Name)); err != nil || string(got) != string(raw) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	wantList(t, d, "tree s main: NOT_MANAGED")
	for _, dir := range []string{d.metainfo, d.library} {
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestSharedFiles(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	torrenttest.Lay(t, filepath.Join(d.root, "s"), files(1))
	write(t, filepath.Join(d.metainfo, "one.torrent"), makeTorrent("s", 1))
	write(t, filepath.Join(d.metainfo, "two.torrent"), torrenttest.Make(torrenttest.Options{Version: torrenttest.V1, Name: "s", Private: true}, files(1)))
	if err := os.MkdirAll(filepath.Join(d.root, "library"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(d.root, "s/d/b"), filepath.Join(d.root, "library/film")); err != nil {
		t.Fatal(err)
	}
	torrenttest.Lay(t, filepath.Join(d.root, "other"), files(9))
	byName := map[string][]string{}
	for _, r := range d.list(t) {
		name := r.GetResource().GetIdentity().GetDisplayName()
		byName[name] = append(byName[name], r.GetResource().GetResourceId())
	}
	if len(byName["s"]) != 2 {
		t.Fatalf("%v", byName)
	}
	shared := func(id string) string {
		tr, err := d.ContentTree(t.Context(), id, backend.TreeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range tr.Files.Len() {
			if e := tr.Files.Entry(i); strings.HasSuffix(e.GetPath(), "/b") && e.GetLinkCount() != 2 && byName["other"][0] != id {
				t.Errorf("link count of %v", e)
			}
		}
		return fmt.Sprint(tr.Header.GetSharedWith())
	}
	sorted := func(ids ...string) string { slices.Sort(ids); return fmt.Sprint(ids) }
	if got, want := shared(byName["s"][0]), sorted(byName["s"][1], byName["library"][0]); got != want {
		t.Errorf("shared with %s, want %s", got, want)
	}
	if got, want := shared(byName["library"][0]), sorted(byName["s"]...); got != want {
		t.Errorf("the library is shared with %s, want %s", got, want)
	}
	if got := shared(byName["other"][0]); got != "[]" {
		t.Errorf("unshared content is shared with %s", got)
	}
}
