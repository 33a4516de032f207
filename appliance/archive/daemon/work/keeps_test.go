package work_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// TestReleaseKeepsTheOnlyCopy lets both machines see the same files, as with one network file system: an eviction rests on
// a verification of the very files that it would give up.
func TestReleaseKeepsTheOnlyCopy(t *testing.T) {
	for _, c := range []struct {
		name    string
		torrent bool
		roots   func(r *rig)
	}{
		{"one root", false, func(r *rig) { r.dst.paths["content"] = r.src.paths["content"] }},
		{"one root, a torrent", true, func(r *rig) { r.dst.paths["content"] = r.src.paths["content"] }},
		{"one root by another name", false, func(r *rig) {
			link := filepath.Join(r.dst.dir, "mounted")
			must(r.t, os.Symlink(r.src.paths["content"], link))
			r.dst.paths["content"] = link
		}},
		{"the target's root is above", true, func(r *rig) { r.dst.paths["content"] = r.src.dir }},
		{"the target's root lies in the source's", true, func(r *rig) {
			r.dst.paths["content"] = r.src.paths["content"]
			r.src.paths["content"] = r.src.dir
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			dir := r.src.paths["content"]
			if c.torrent {
				r.torrent(torrenttest.Options{Version: torrenttest.V1, Name: "shows"}, entries())
			} else {
				r.plainTree()
			}
			r.dst.paths["metainfo"] = r.src.paths["metainfo"]
			c.roots(r)
			r.start()
			r.adopt("shows")
			r.all()
			r.resource = r.find(r.src, "shows")
			r.def.Source = r.tree(r.src, r.resource).Header.GetResource()
			r.evict()
			before := listing(t, dir)
			r.steps(verifying)
			if d := r.fails(release, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE); !strings.Contains(d.GetMessage(), "is the copy that is to stay") {
				t.Error(d.GetMessage())
			}
			if r.src.record != nil {
				t.Error("there is a commit record")
			}
			for _, s := range []*side{r.src, r.dst} {
				must(t, s.worker.Undo(t.Context(), r.job(s), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES))
			}
			same(t, "content", listing(t, dir), before)
			r.noLeftovers()
		})
	}
}

// TestReleaseKnowsAnotherCopy lets two copies lie below one root that both machines see: giving one up is no loss.
func TestReleaseKnowsAnotherCopy(t *testing.T) {
	r := newRig(t)
	r.torrent(torrenttest.Options{Version: torrenttest.V1, Name: "shows"}, entries())
	must(t, os.CopyFS(filepath.Join(r.src.dir, "other"), os.DirFS(r.src.paths["content"])))
	must(t, os.Mkdir(filepath.Join(r.dst.dir, "shared"), 0o755))
	must(t, os.Rename(r.src.paths["content"], filepath.Join(r.dst.dir, "shared/first")))
	must(t, os.Rename(filepath.Join(r.src.dir, "other"), filepath.Join(r.dst.dir, "shared/second")))
	// The source's root is one of the two directories, the target's holds both, and its backend the first.
	r.src.paths["content"] = filepath.Join(r.dst.dir, "shared/second")
	r.dst.paths["content"] = filepath.Join(r.dst.dir, "shared")
	r.dst.paths["metainfo"] = filepath.Join(r.dst.dir, "metainfo")
	must(t, os.CopyFS(r.dst.paths["metainfo"], os.DirFS(r.src.paths["metainfo"])))
	torrents, err := filepath.Glob(filepath.Join(r.dst.paths["metainfo"], "*.torrent"))
	if err != nil || len(torrents) != 1 {
		t.Fatal(torrents, err)
	}
	must(t, os.WriteFile(torrents[0]+".json", []byte(`{"root_id": "content", "relative_dir": "first"}`), 0o600))
	r.start()
	r.adopt("shows")
	r.all()
	r.resource = r.find(r.src, "shows")
	r.def.Source = r.tree(r.src, r.resource).Header.GetResource()
	r.evict()
	if at := r.tree(r.dst, r.def.GetEviction().GetTargetCommit().GetResource().GetResourceId()).Location.Dir; at != "first" {
		t.Fatalf("the target keeps the copy in %q", at)
	}
	r.steps(verifying, release, purge)
	if got := fileNames(listing(t, r.src.paths["content"])); len(got) != 0 {
		t.Errorf("the source still has %v", got)
	}
}
