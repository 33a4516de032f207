package appliance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// torrentRig is a rig whose machines read torrent files from a metainfo directory; vault also has a library.
func torrentRig(t *testing.T, library bool) *archiveRig {
	t.Helper()
	r := newArchiveRig(t)
	r.secrets = append(r.secrets, torrenttest.Announce)
	for _, m := range []*machine{r.nas, r.vault} {
		m.Config.Backend.MetainfoDir = m.Path("metainfo", "")
		if library {
			m.Config.Backend.LibraryDir = m.Path("library", "")
		}
		for _, dir := range []string{"metainfo", "library"} {
			if err := os.MkdirAll(m.Path(dir, ""), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.start()
	return r
}

// torrent puts a torrent and its content on nas.
func (r *archiveRig) torrent(o torrenttest.Options, entries ...torrenttest.Entry) {
	r.t.Helper()
	torrenttest.Lay(r.t, r.nas.Path("content", o.Name), entries)
	r.nas.Put("metainfo", o.Name+".torrent", torrenttest.Make(o, entries))
}

// TestArchiveTorrents copies torrents of every version; what activates them is the torrent file in the library.
func TestArchiveTorrents(t *testing.T) {
	t.Parallel()
	r := torrentRig(t, true)
	for i, version := range []torrenttest.Version{torrenttest.V1, torrenttest.V2, torrenttest.Hybrid} {
		name := fmt.Sprintf("pack%d", version)
		r.torrent(torrenttest.Options{Version: version, Name: name, Private: true}, torrenttest.Entry{Path: "a", Data: torrenttest.Bytes(byte(i), 40_000)},
			torrenttest.Entry{Path: "b/c", Data: torrenttest.Bytes(byte(i+10), 70_001)}, torrenttest.Entry{Path: "run", Data: torrenttest.Bytes(byte(i+20), 10), Attr: "x"})
		kept := untouched(t, r.nas.Path("content", ""))
		j := r.await(r.run(name, nil).ID, "completed")
		_, e := j.step("verify")
		if e["pieces_checked"] == 0.0 || e["pieces_good"] != e["pieces_checked"] {
			t.Errorf("version %d: verify %v", version, e)
		}
		text, err := os.ReadFile(r.nas.Path("metainfo", name+".torrent"))
		if err != nil {
			t.Fatal(err)
		}
		there := listing(t, r.vault.Path("library", ""))
		if len(there) != i+1 {
			t.Errorf("library: %d files", len(there))
		}
		found := false
		for _, other := range there {
			found = found || other == string(text)
		}
		if !found {
			t.Errorf("version %d: the torrent file is not in the library", version)
		}
		if st, err := os.Stat(r.vault.Path("content", name+"/run")); err != nil || st.Mode()&0o111 == 0 {
			t.Errorf("the executable file: %v %v", st, err)
		}
		r.arrived()
		kept()
	}
	r.clean()
}

// TestArchiveTorrentTrouble has torrents that cannot be copied as they are.
func TestArchiveTorrentTrouble(t *testing.T) {
	t.Parallel()
	r := torrentRig(t, false)
	r.scenes(scenePartialSelection, sceneOwnHashWins, sceneEvilTorrents, sceneBackendError)
}

// scenePartialSelection: row 30. Pieces that hold bytes of files that stay behind cannot be had: refused, or accepted.
func scenePartialSelection(r *archiveRig) {
	r.torrent(torrenttest.Options{Version: torrenttest.V1, Name: "pack"}, torrenttest.Entry{Path: "a", Data: torrenttest.Bytes(1, 40_000)},
		torrenttest.Entry{Path: "b", Data: torrenttest.Bytes(2, 50_000)})
	kept := untouched(r.t, r.nas.Path("content", ""))
	p := r.preview(r.transfer("pack", map[string]any{"indices": "0"}))
	r.refused(p, "partfile_mismatch", "a", "b")
	j := r.await(r.run("pack", map[string]any{"indices": "0", "accept_drop": true, "policies": map[string]any{"keep_free_bytes": 1, "partfile": "drop",
		"activation": "leave_stopped"}}).ID, "completed")
	if _, e := j.step("materialize"); e["partfile_result"] != "drop" && e["partfile_result"] != "PARTFILE_MODE_DROP" {
		r.t.Errorf("materialize: %v", e)
	}
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), map[string]string{"pack/a": string(torrenttest.Bytes(1, 40_000))})
	kept()
	r.forget("pack")
}

// forget removes what the machines know of a torrent.
func (r *archiveRig) forget(name string) {
	r.t.Helper()
	for _, m := range []*machine{r.nas, r.vault} {
		for _, dir := range []string{m.Path("metainfo", ""), m.Path("library", ""), m.Path("content", ".archive-control/torrents")} {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
					r.t.Error(err)
				}
			}
		}
	}
	r.wipe(r.nas)
	r.wipe(r.vault)
}

// sceneOwnHashWins: rows 16 and 33. The payload changes behind the marker: the torrent's own hashes decide, the file is
// named, and nothing is committed or registered.
func sceneOwnHashWins(r *archiveRig) {
	r.torrent(torrenttest.Options{Version: torrenttest.Hybrid, Name: "other"}, torrenttest.Entry{Path: "a", Data: torrenttest.Bytes(1, 40_000)},
		torrenttest.Entry{Path: "b", Data: torrenttest.Bytes(2, 50_000)})
	kept := untouched(r.t, r.nas.Path("content", ""))
	r.vault.onStep(pb.JobStep_JOB_STEP_MATERIALIZE, func(c *pb.Command) {
		substitute(r.t, filepath.Join(jobDir(r.vault, "receive", c.GetJobId()), "payload/00000000"), torrenttest.Bytes(3, 40_000))
	})
	j := r.await(r.run("other", nil).ID, "failed")
	r.fails(j, "integrity_failure", "a")
	if j.Committed {
		r.t.Error("committed")
	}
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), nil)
	if entries, _ := os.ReadDir(r.vault.Path("content", ".archive-control/torrents")); len(entries) > 0 {
		r.t.Errorf("the backend still has %v", entries)
	}
	kept()
	r.forget("other")
}

// sceneEvilTorrents: row 28. Paths that leave their place are refused where they are found.
func sceneEvilTorrents(r *archiveRig) {
	outside := filepath.Join(r.nas.Dir, "outside")
	for i, path := range []string{"../../outside", "/etc/passwd", "a/../../b"} {
		tree := torrenttest.Tree(torrenttest.Options{Version: torrenttest.V1, Name: fmt.Sprint("evil", i)}, []torrenttest.Entry{{Path: "x", Data: []byte("evil")}})
		var list []any
		for _, c := range strings.Split(path, "/") {
			list = append(list, c)
		}
		tree["info"].(map[string]any)["files"] = []any{map[string]any{"length": 4, "path": list}}
		r.nas.Put("metainfo", fmt.Sprintf("evil%d.torrent", i), torrenttest.Encode(tree))
	}
	torrenttest.Lay(r.t, r.nas.Path("content", "links"), []torrenttest.Entry{{Path: "a", Data: []byte("inside")}})
	if err := os.Symlink(outside, r.nas.Path("content", "links/out")); err != nil {
		r.t.Fatal(err)
	}
	r.nas.Put("content", "good/a", []byte("inside"))
	r.resource(r.nas, "good")
	var page struct {
		Items []struct {
			Name       string
			ResourceID string `json:"resource_id"`
		}
	}
	r.Do("GET", "/daemons/"+r.nas.ID.String()+"/resources", nil, 200, &page)
	for _, i := range page.Items {
		switch {
		case strings.HasPrefix(i.Name, "evil"):
			r.t.Errorf("%s is listed", i.Name)
		case i.Name == "links":
			if p := r.preview(r.transfer("links", nil)); p.State == "passed" {
				r.t.Error("a link out of the tree would be copied")
			}
		}
	}
	refused := strings.Join(r.nas.status().Refused, "\n")
	for i := range 3 {
		if !strings.Contains(refused, fmt.Sprintf("evil%d", i)) {
			r.t.Errorf("torrent %d is not named: %s", i, refused)
		}
	}
	r.forget("evil")
}

// sceneBackendError: row 19, as far as a directory can show it. While the content is staged its backend no longer stands
// behind it: a second place fits the torrent as well.
func sceneBackendError(r *archiveRig) {
	entries := []torrenttest.Entry{{Path: "a", Data: torrenttest.Bytes(1, 40_000)}}
	r.torrent(torrenttest.Options{Version: torrenttest.V1, Name: "twice"}, entries...)
	kept := untouched(r.t, r.nas.Path("content", "twice"))
	r.nas.once("stage: effect", func() { torrenttest.Lay(r.t, r.nas.Path("content", "deep/twice"), entries) })
	j := r.await(r.run("twice", nil).ID, "failed")
	if j.Error == nil || j.Error.Code != "unsafe_state" && j.Error.Code != "resource_conflict" {
		r.t.Errorf("the job's error is %+v", j.Error)
	}
	kept()
	r.forget("twice")
}
