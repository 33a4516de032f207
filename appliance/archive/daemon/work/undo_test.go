package work_test

import (
	"os"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
)

// TestKeepAll: a cancelled job that keeps its files keeps its own directories, and still takes back what it published.
func TestKeepAll(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize, verifying)
	for _, s := range []*side{r.src, r.dst} {
		must(t, s.worker.Undo(t.Context(), r.job(s), pb.CleanupPolicy_CLEANUP_POLICY_KEEP_ALL))
	}
	if n := len(listing(t, r.dst.paths["content"])); n != 0 {
		t.Errorf("%d names are published", n)
	}
	for s, root := range map[*side]string{r.src: "outbox", r.dst: "receive"} {
		if b, err := os.ReadFile(r.jobDir(s, root, "payload/00000000")); err != nil || len(b) != 70_000 {
			t.Errorf("%s: %d bytes, %v", root, len(b), err)
		}
	}
}

// TestUndoWithoutItsRoute: the route was removed meanwhile.
func TestUndoWithoutItsRoute(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize)
	r.route = nil
	must(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), 0))
	must(t, r.src.worker.Undo(t.Context(), r.job(r.src), 0))
	if n := len(listing(t, r.dst.paths["content"])); n != 0 {
		t.Errorf("%d names are published", n)
	}
	r.noLeftovers()
}

// TestUndoLeavesWhatChanged: a published file that somebody changed since, and a file that somebody put beside it, stay.
func TestUndoLeavesWhatChanged(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize)
	must(t, os.WriteFile(r.dst.at("content", "shows/run"), []byte("edited"), 0o600))
	must(t, os.WriteFile(r.dst.at("content", "shows/s 2/theirs"), []byte("theirs"), 0o600))
	must(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), 0))
	r.close()
	got := listing(t, r.dst.paths["content"])
	if names := fileNames(got); len(names) != 2 || got["shows/run"].size != 6 || got["shows/s 2/theirs"].size != 6 {
		t.Errorf("left %v", names)
	}
	r.noLeftovers()
}

// TestHashesOutliveTheJob: neither staging by links nor their removal makes the backend read a tree again, and what VERIFY has
// read at the target is known when the job's own names of it are gone.
func TestHashesOutliveTheJob(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("shows")
	r.def.Policies.MaterializeMethods = methods{byLink}
	r.all()
	if m := r.src.evidence[stage].GetStage().GetMethods(); m["HARDLINK"] != 4 {
		t.Fatalf("staged by %v", m)
	}
	for _, s := range []*side{r.src, r.dst} {
		if _, err := s.backend.ContentTree(t.Context(), r.find(s, "shows"), backend.TreeOptions{CachedOnly: true}); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// TestNamesTooLong are refused before anything is made.
func TestNamesTooLong(t *testing.T) {
	r := newRig(t)
	r.src.put("shows/"+strings.Repeat(strings.Repeat("n", 200)+"/", 10)+"file", []byte("x"), 0o644)
	r.start()
	r.transfer("shows")
	r.def.Destination.RelativeDir = strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 200)+"/", 12), "/")
	r.steps(stage, transfer)
	r.fails(materialize, pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT)
	if n := len(listing(t, r.dst.paths["content"])); n != 0 {
		t.Errorf("%d names are published", n)
	}
}
