package work_test

import (
	"os"
	"path/filepath"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// TestUndoKeepsTorrentFilesOfOthers has somebody put the same torrent into the target's metainfo directory while a job that
// has registered it is not committed.
func TestUndoKeepsTorrentFilesOfOthers(t *testing.T) {
	r := newRig(t)
	r.torrent(torrenttest.Options{Version: torrenttest.V1, Name: "shows"}, entries())
	r.dst.paths["metainfo"] = filepath.Join(r.dst.dir, "metainfo")
	must(t, os.MkdirAll(r.dst.paths["metainfo"], 0o755))
	r.start()
	r.transfer("shows")
	r.steps(pb.JobStep_JOB_STEP_STAGE, pb.JobStep_JOB_STEP_TRANSFER, materialize, verifying)
	must(t, os.CopyFS(r.dst.paths["metainfo"], os.DirFS(r.src.paths["metainfo"])))
	before := listing(t, r.dst.paths["metainfo"])
	if len(fileNames(before)) != 1 {
		t.Fatalf("torrent files %v", fileNames(before))
	}
	for range 2 { // again is harmless
		must(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES))
	}
	same(t, "metainfo directory", listing(t, r.dst.paths["metainfo"]), before)
	if got := fileNames(listing(t, r.dst.paths["content"])); len(got) != 0 {
		t.Errorf("the content root has %v", got)
	}
	own, _ := filepath.Glob(r.dst.at("content", ".archive-control/torrents/*"))
	if len(own) != 0 {
		t.Errorf("still registered: %v", own)
	}
	must(t, r.src.worker.Undo(t.Context(), r.job(r.src), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES))
	r.noLeftovers()
}
