package work_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// TestDestinationTaken (rows 20 and 22): other content is shown with both sizes and dates and stays; equal content is used
// and never removed.
func TestDestinationTaken(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(r *rig)
		ok   bool
	}{
		{"other size", func(r *rig) { must(r.t, os.WriteFile(r.dst.at("content", "shows/run"), []byte("theirs"), 0o600)) }, false},
		{"same size", func(r *rig) {
			must(r.t, os.WriteFile(r.dst.at("content", "shows/run"), torrenttest.Bytes(9, 300), 0o600))
		}, false},
		{"directory", func(r *rig) { must(r.t, os.Mkdir(r.dst.at("content", "shows/run"), 0o755)) }, false},
		{"link", func(r *rig) { must(r.t, os.Symlink("x", r.dst.at("content", "shows/run"))) }, false},
		{"another link", func(r *rig) {
			must(r.t, os.Mkdir(r.dst.at("content", "shows/s 2"), 0o755))
			must(r.t, os.Symlink("x", r.dst.at("content", "shows/s 2/link")))
		}, false},
		{"identical", func(r *rig) {
			must(r.t, os.WriteFile(r.dst.at("content", "shows/run"), torrenttest.Bytes(2, 300), 0o600))
		}, true},
		{"identical link", func(r *rig) {
			must(r.t, os.Mkdir(r.dst.at("content", "shows/s 2"), 0o755))
			must(r.t, os.Symlink("../one.mkv", r.dst.at("content", "shows/s 2/link")))
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.plainTree()
			must(t, os.MkdirAll(r.dst.at("content", "shows"), 0o755))
			c.make(r)
			r.start()
			r.transfer("shows")
			before := listing(t, r.dst.paths["content"])
			r.steps(stage, transfer)
			if c.ok {
				r.steps(materialize)
				if m := r.dst.evidence[materialize].GetMaterialize(); m.GetFilesAlreadyPresent() != 1 || m.GetMethods()["ALREADY_PRESENT"] != 1 {
					t.Errorf("evidence %v", m)
				}
				r.steps(verifying)
			} else {
				d := r.fails(materialize, pb.ErrorCode_ERROR_CODE_PATH_CONFLICT)
				if c.name == "other size" && !(strings.Contains(d.GetMessage(), "6 bytes of 20") && strings.Contains(d.GetMessage(), "300 bytes of 2020-09-13")) {
					t.Error(d.GetMessage())
				}
			}
			must(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), 0))
			same(t, "target", listing(t, r.dst.paths["content"]), before)
		})
	}
	t.Run("identical, and the policy is to fail", func(t *testing.T) {
		r := newRig(t)
		r.plainTree()
		must(t, os.MkdirAll(r.dst.at("content", "shows"), 0o755))
		must(t, os.WriteFile(r.dst.at("content", "shows/run"), torrenttest.Bytes(2, 300), 0o600))
		r.start()
		r.transfer("shows")
		r.def.Policies.ConflictPolicy = pb.ConflictPolicy_CONFLICT_POLICY_FAIL
		r.steps(stage, transfer)
		r.fails(materialize, pb.ErrorCode_ERROR_CODE_PATH_CONFLICT)
	})
}

// TestDestinationAppears (row 21): between the check and the rename.
func TestDestinationAppears(t *testing.T) {
	for _, whole := range []bool{true, false} {
		r := newRig(t)
		r.plainTree()
		if !whole {
			must(t, os.MkdirAll(r.dst.at("content", "shows"), 0o755))
		}
		theirs := r.dst.at("content", "shows/run")
		r.dst.hooks["content"] = beneathtest.At(beneath.OpRename, map[bool]string{true: "shows", false: "shows/run"}[whole], 1, func(string) error {
			must(t, os.MkdirAll(filepath.Dir(theirs), 0o755))
			return os.WriteFile(theirs, []byte("theirs"), 0o600)
		})
		r.start()
		r.transfer("shows")
		r.steps(stage, transfer)
		d := r.fails(materialize, pb.ErrorCode_ERROR_CODE_PATH_CONFLICT)
		if !strings.Contains(d.GetMessage(), "shows/run") {
			t.Error(d.GetMessage())
		}
		if got := fileNames(listing(t, r.dst.paths["content"])); len(got) != 1 {
			t.Errorf("files %v", got)
		}
		if b, _ := os.ReadFile(theirs); string(b) != "theirs" {
			t.Errorf("theirs is %q", b)
		}
		// The payload is back: the same step goes through once the name is free.
		must(t, os.Remove(theirs))
		r.dst.hooks["content"] = nil
		r.steps(materialize, verifying, commit)
	}
}
