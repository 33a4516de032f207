package work_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/archive/torrent/torrenttest"
)

const (
	stage       = pb.JobStep_JOB_STEP_STAGE
	transfer    = pb.JobStep_JOB_STEP_TRANSFER
	materialize = pb.JobStep_JOB_STEP_MATERIALIZE
	verifying   = pb.JobStep_JOB_STEP_VERIFY
	commit      = pb.JobStep_JOB_STEP_COMMIT
	release     = pb.JobStep_JOB_STEP_RELEASE
	purge       = pb.JobStep_JOB_STEP_PURGE
)

const (
	byRename = pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME
	byLink   = pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK
	byClone  = pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK
	bySparse = pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE
	byCopy   = pb.MaterializeMethod_MATERIALIZE_METHOD_COPY
)

type methods = []pb.MaterializeMethod

// tree makes content without a torrent: of several sizes, empty, executable, and a link.
func (r *rig) plainTree() {
	r.t.Helper()
	r.src.put("shows/one.mkv", torrenttest.Bytes(1, 70_000), 0o640)
	r.src.put("shows/run", torrenttest.Bytes(2, 300), 0o755)
	r.src.put("shows/s 2/two.mkv", torrenttest.Bytes(3, 40_001), 0o600)
	r.src.put("shows/s 2/empty", nil, 0o644)
	must(r.t, os.Symlink("../one.mkv", r.src.at("content", "shows/s 2/link")))
}

// torrent makes the content of a torrent and its file in the metainfo directory.
func (r *rig) torrent(o torrenttest.Options, entries []torrenttest.Entry) {
	r.t.Helper()
	dir := r.src.at("content", o.Name)
	if o.Single {
		dir = r.src.paths["content"]
	}
	torrenttest.Lay(r.t, dir, entries)
	must(r.t, os.WriteFile(filepath.Join(r.src.paths["metainfo"], o.Name+".torrent"), torrenttest.Make(o, entries), 0o600))
}

func entries() []torrenttest.Entry {
	return []torrenttest.Entry{
		{Path: "a/first.bin", Data: torrenttest.Bytes(1, 40_000)},
		{Path: "a/second.bin", Data: torrenttest.Bytes(2, 16_384)},
		{Path: "b/empty"},
		{Path: "b/link", Target: "a/first.bin"},
		{Path: "b/run.sh", Data: torrenttest.Bytes(3, 700), Attr: "x"},
		{Path: "c.bin", Data: torrenttest.Bytes(4, 33_000)},
	}
}

// TestTransfer brings content of every form to the other machine.
func TestTransfer(t *testing.T) {
	for _, c := range []struct {
		name string
		o    torrenttest.Options // Version 0: no torrent
		dir  string
	}{
		{"tree", torrenttest.Options{}, ""},
		{"tree in a directory", torrenttest.Options{}, "new/deep"},
		{"v1", torrenttest.Options{Version: torrenttest.V1}, ""},
		{"v1 with padding", torrenttest.Options{Version: torrenttest.V1, Pad: true}, "in"},
		{"v2", torrenttest.Options{Version: torrenttest.V2}, ""},
		{"hybrid", torrenttest.Options{Version: torrenttest.Hybrid}, "new/deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if c.o.Version == 0 {
				r.plainTree()
			} else {
				c.o.Name = "shows"
				r.torrent(c.o, entries())
			}
			before := listing(t, r.src.paths["content"])
			r.start()
			r.transfer("shows")
			r.def.Destination.RelativeDir = c.dir
			r.def.Policies.VerifyLevel = pb.VerifyLevel_VERIFY_LEVEL_STRICT
			r.all()
			copied(t, listing(t, r.dst.at("content", c.dir)), before)
			same(t, "source", listing(t, r.src.paths["content"]), before)
			r.noLeftovers()
			e := r.dst.evidence[verifying].GetVerify()
			if !e.GetBackendConfirmed() || e.GetBytesRead() == 0 || c.o.Version != 0 && (e.GetPiecesGood() == 0 || e.GetPiecesGood() != e.GetPiecesChecked()) {
				t.Errorf("evidence %v", e)
			}
			m := r.dst.evidence[materialize].GetMaterialize()
			if m.GetFilesCreated() != uint32(len(fileNames(before))) || m.GetFilesAlreadyPresent() != 0 {
				t.Errorf("evidence %v", m)
			}
		})
	}
}

// fileNames lists what is no directory.
func fileNames(m map[string]line) (names []string) {
	for name, l := range m {
		if !l.mode.IsDir() {
			names = append(names, name)
		}
	}
	return names
}

// TestTransferOfSingleFiles brings a resource that is one file.
func TestTransferOfSingleFiles(t *testing.T) {
	t.Run("tree", func(t *testing.T) {
		r := newRig(t)
		r.src.put("film.mkv", torrenttest.Bytes(1, 50_000), 0o644)
		r.start()
		r.transfer("film.mkv")
		r.all()
		copied(t, listing(t, r.dst.paths["content"]), listing(t, r.src.paths["content"]))
	})
	t.Run("torrent", func(t *testing.T) {
		r := newRig(t)
		r.torrent(torrenttest.Options{Version: torrenttest.Hybrid, Name: "film.mkv", Single: true},
			[]torrenttest.Entry{{Path: "film.mkv", Data: torrenttest.Bytes(1, 50_000)}})
		r.start()
		r.transfer("film.mkv")
		r.all()
		copied(t, listing(t, r.dst.paths["content"]), listing(t, r.src.paths["content"]))
		r.noLeftovers()
	})
}

// TestPartialSelection brings some files; what the others share with them in a v1 torrent is dropped, or stops the job.
func TestPartialSelection(t *testing.T) {
	start := func(t *testing.T, o torrenttest.Options) *rig {
		r := newRig(t)
		o.Name = "shows"
		r.torrent(o, entries())
		r.start()
		tree := r.tree(r.src, r.find(r.src, "shows"))
		for i := range tree.Files.Len() {
			if f := tree.Files.Entry(i); strings.HasSuffix(f.GetPath(), "second.bin") {
				r.transfer("shows", f.GetIndex())
			}
		}
		return r
	}
	check := func(t *testing.T, r *rig) {
		t.Helper()
		got := fileNames(listing(t, r.dst.paths["content"]))
		if len(got) != 1 || got[0] != "shows/a/second.bin" {
			t.Errorf("files %v", got)
		}
		want, _ := os.ReadFile(r.src.at("content", "shows/a/second.bin"))
		have, _ := os.ReadFile(r.dst.at("content", "shows/a/second.bin"))
		if !bytes.Equal(want, have) || len(want) == 0 {
			t.Error("content differs")
		}
		r.noLeftovers()
	}
	for name, o := range map[string]torrenttest.Options{"padded": {Version: torrenttest.V1, Pad: true}, "v2": {Version: torrenttest.V2}, "hybrid": {Version: torrenttest.Hybrid}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, o)
			r.all()
			check(t, r)
			if r.dst.evidence[materialize].GetMaterialize().GetPartfileResult() != 0 {
				t.Error("something was dropped")
			}
		})
	}
	t.Run("shared pieces", func(t *testing.T) {
		r := start(t, torrenttest.Options{Version: torrenttest.V1})
		r.steps(stage, transfer)
		d := r.fails(materialize, pb.ErrorCode_ERROR_CODE_PARTFILE_MISMATCH)
		if !strings.Contains(d.GetMessage(), "second.bin") {
			t.Error(d.GetMessage())
		}
		if n := len(listing(t, r.dst.paths["content"])); n != 0 {
			t.Errorf("%d names", n)
		}
	})
	t.Run("shared pieces are dropped", func(t *testing.T) {
		r := start(t, torrenttest.Options{Version: torrenttest.V1})
		r.def.Policies.PartfileMode = pb.PartfileMode_PARTFILE_MODE_DROP
		r.def.Policies.Activation = pb.ActivationPolicy_ACTIVATION_POLICY_LEAVE_STOPPED
		r.all()
		check(t, r)
		if r.dst.evidence[materialize].GetMaterialize().GetPartfileResult() != pb.PartfileMode_PARTFILE_MODE_DROP {
			t.Error("the evidence does not say that pieces were dropped")
		}
		if e := r.dst.evidence[verifying].GetVerify(); e.GetPiecesUnselectedSkipped() == 0 || !e.GetBackendConfirmed() {
			t.Errorf("evidence %v", e)
		}
	})
	t.Run("what was dropped is not started", func(t *testing.T) {
		r := start(t, torrenttest.Options{Version: torrenttest.V1})
		r.def.Policies.PartfileMode = pb.PartfileMode_PARTFILE_MODE_DROP
		r.steps(stage, transfer, materialize, verifying)
		r.fails(commit, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE)
		if r.dst.record != nil {
			t.Error("there is a commit record")
		}
	})
	t.Run("a library starts whole content only", func(t *testing.T) {
		r := start(t, torrenttest.Options{Version: torrenttest.V2})
		r.dst.options = func(o *work.Options) { o.StartsWhole = true }
		r.start()
		r.steps(stage, transfer, materialize, verifying)
		r.fails(commit, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE)
		if r.dst.record != nil {
			t.Error("there is a commit record")
		}
	})
}
