package appliance_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"signalbox/appliance/archive/torrent/torrenttest"
)

// trash lists what is in the trash of a machine.
func trash(t *testing.T, m *machine) map[string]string {
	t.Helper()
	dir := m.Path("content", ".archive-control/trash")
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	return listing(t, dir)
}

// evict is what is asked for to give up what a job has copied from nas to vault.
func (r *archiveRig) evict(parent, name string, more map[string]any) map[string]any {
	r.t.Helper()
	request := map[string]any{"operation": "evict", "source": map[string]any{"daemon": r.nas.ID, "resource": r.resource(r.nas, name)},
		"target": map[string]any{"daemon": r.vault.ID}, "parent_job": parent, "policies": map[string]any{"trash_retention_seconds": 3600}}
	for k, v := range more {
		request[k] = v
	}
	return request
}

// TestArchiveEvictions gives up what was copied, and what must not be given up.
func TestArchiveEvictions(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.scenes(sceneMove, sceneLibraryLinks, sceneStaleVerification)
}

// sceneMove: a copy and then the eviction that follows by itself. What is released lies in the trash until its time is
// over.
func sceneMove(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/b/c", noise(2, 2000))
	r.nas.Put("content", "stays/d", noise(3, 10))
	had := listing(r.t, r.nas.Path("content", "films"))
	p := r.preview(r.transfer("films", map[string]any{"evict_after": true, "policies": map[string]any{"keep_free_bytes": 1, "trash_retention_seconds": 3600,
		"stage_methods": []string{"copy"}}}))
	var j archiveJob
	r.Do("POST", "/jobs", map[string]any{"preview_id": p.ID, "evict_after": true}, 201, &j)
	r.await(j.ID, "completed")
	var next archiveJob
	r.Eventually("the eviction", func() bool {
		var page struct{ Items []archiveJob }
		r.Do("GET", "/jobs?operation=evict", nil, 200, &page)
		for _, e := range page.Items {
			if e.ParentID != nil && *e.ParentID == j.ID {
				next = e
			}
		}
		return next.ID != ""
	})
	next = r.awaitWait(next.ID, "retention")
	r.explained(next.ID, "kept in the trash until its time is over")
	sameListing(r.t, listing(r.t, r.vault.Path("content", "films")), had)
	sameListing(r.t, listing(r.t, r.nas.Path("content", "")), map[string]string{"stays/d": string(noise(3, 10))})
	if n := len(trash(r.t, r.nas)); n != 2 {
		r.t.Errorf("%d files in the trash", n)
	}
	r.clock.By(2 * time.Hour)
	r.nas.clock.By(2 * time.Hour)
	next = r.await(next.ID, "completed")
	if _, e := next.step("purge"); e["entries_removed"] != 2.0 {
		r.t.Errorf("purge: %v", e)
	}
	if left := trash(r.t, r.nas); len(left) > 0 {
		r.t.Errorf("left in the trash: %v", left)
	}
	sameListing(r.t, listing(r.t, r.vault.Path("content", "films")), had)
}

// sceneLibraryLinks: row 40. Names that the files have elsewhere stop the eviction, or stay and are counted.
func sceneLibraryLinks(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	copied := r.await(r.run("films", map[string]any{"policies": map[string]any{"keep_free_bytes": 1, "stage_methods": []string{"copy"}}}).ID, "completed")
	r.clean()
	library := filepath.Join(r.nas.Dir, "elsewhere")
	if err := os.Link(r.nas.Path("content", "films/a"), library); err != nil {
		r.t.Fatal(err)
	}
	r.refused(r.preview(r.evict(copied.ID, "films", nil)), "unsafe_state", "films/a", "2 names")
	j := r.startJob(r.preview(r.evict(copied.ID, "films", map[string]any{"allow_library_links": true})))
	j = r.awaitWait(j.ID, "retention")
	if _, e := j.step("release"); e["shared_names_kept"] != 1.0 {
		r.t.Errorf("release: %v", e)
	}
	if text, err := os.ReadFile(library); err != nil || string(text) != string(noise(1, 1000)) {
		r.t.Errorf("the library's name: %v", err)
	}
	r.clock.By(2 * time.Hour)
	r.nas.clock.By(2 * time.Hour)
	r.await(j.ID, "completed")
	if _, err := os.Stat(library); err != nil {
		r.t.Error(err)
	}
}

// sceneStaleVerification: row 41. The verification has become too old before the release begins: it is made again.
func sceneStaleVerification(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	copied := r.await(r.run("films", map[string]any{"policies": map[string]any{"keep_free_bytes": 1, "stage_methods": []string{"copy"}}}).ID, "completed")
	r.clean()
	request := r.evict(copied.ID, "films", map[string]any{"max_verify_age_seconds": 600})
	g := r.vault.hold("verify: read")
	j := r.startJob(r.preview(request))
	g.await()
	r.nas.Stop()
	r.clock.By(61 * time.Minute) // both are offline now, and one comes back
	r.awaitWait(j.ID, "client_offline")
	r.online(r.vault)
	g.release()
	j = r.awaitJob(j.ID, "waiting to release", func(j archiveJob) bool {
		return j.Waiting != nil && j.Waiting.Reason == "client_offline" && *j.Step == "release"
	})
	r.explained(j.ID, "waits for a daemon that is offline", "daemon nas", "Start the daemon")
	r.clock.By(20 * time.Minute)
	r.nas.Start()
	j = r.awaitWait(j.ID, "retention")
	if n, _ := j.step("verify"); n != 2 {
		r.t.Errorf("verified %d times", n)
	}
	r.clock.By(2 * time.Hour)
	r.nas.clock.By(4 * time.Hour) // it has not been moved with control's
	r.await(j.ID, "completed")
}

// TestArchiveSharedTorrents: row 40. Two torrents use the same files: they cannot be given up.
func TestArchiveSharedTorrents(t *testing.T) {
	t.Parallel()
	r := torrentRig(t, false)
	entries := []torrenttest.Entry{{Path: "a", Data: torrenttest.Bytes(1, 40_000)}}
	r.torrent(torrenttest.Options{Version: torrenttest.V1, Name: "pack"}, entries...)
	j := r.await(r.run("pack", map[string]any{"policies": map[string]any{"keep_free_bytes": 1, "stage_methods": []string{"copy"}}}).ID, "completed")
	r.clean()
	kept := untouched(t, r.nas.Path("content", ""))
	request := r.evict(j.ID, "pack", nil)
	r.nas.Put("metainfo", "again.torrent", torrenttest.Make(torrenttest.Options{Version: torrenttest.V2, Name: "pack"}, entries))
	r.refused(r.preview(request), "unsafe_state", "uses the same files")
	kept()
}

// TestArchiveAdopt takes over what is already at the target: a torrent's content that somebody brought by hand.
func TestArchiveAdopt(t *testing.T) {
	t.Parallel()
	r := torrentRig(t, true)
	entries := []torrenttest.Entry{{Path: "a", Data: torrenttest.Bytes(1, 40_000)}, {Path: "b/c", Data: torrenttest.Bytes(2, 50_000)}}
	o := torrenttest.Options{Version: torrenttest.Hybrid, Name: "pack"}
	torrenttest.Lay(t, r.vault.Path("content", "pack"), entries)
	r.vault.Put("metainfo", "pack.torrent", torrenttest.Make(o, entries))
	kept := untouched(t, r.vault.Path("content", ""))
	adopt := func() archivePreview {
		return r.preview(map[string]any{"operation": "adopt", "source": map[string]any{"daemon": r.vault.ID, "resource": r.resource(r.vault, "pack")},
			"destination": map[string]any{"root": "vault-content"}})
	}
	j := r.await(r.startJob(adopt()).ID, "completed")
	if _, e := j.step("verify"); e["pieces_good"] == 0.0 || e["pieces_good"] != e["pieces_checked"] {
		t.Errorf("verify: %v", e)
	}
	if len(j.StepList) != 3 {
		t.Errorf("%d steps", len(j.StepList))
	}
	if n := len(listing(t, r.vault.Path("library", ""))); n != 1 {
		t.Errorf("library: %d files", n)
	}
	kept()
	r.clean()
}
