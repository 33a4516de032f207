package work_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// loseDatabase makes the machine forget all that it has done for the job.
func (s *side) loseDatabase() {
	s.journal, s.evidence, s.cache = &memory{rows: map[string]daemon.JournalEntry{}}, map[pb.JobStep]*pb.StepEvidence{}, nil
}

// putAside lists what stands below .archive-control/leftovers of a root.
func (s *side) putAside(root string) (names []string) {
	dirs, _ := filepath.Glob(s.at(root, ".archive-control/leftovers/*/*"))
	for _, d := range dirs {
		names = append(names, strings.TrimPrefix(d, s.at(root, ".archive-control/leftovers")+"/"))
	}
	return names
}

// TestDatabaseLostAtEveryPoint (row 13) kills the machine at work at a change of a file system or a write of its journal,
// and takes its database away: the step is made again, the copy is equal, and nothing that was there is removed.
func TestDatabaseLostAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			moved := 0
			for n := 1; ; n += 5 * stride() {
				r, source, target := c.prepare(t)
				stop := &stopper{n: n}
				list := plan(r.def)
				list = list[:slices.Index(list, commit)]
				at, stopped := r.until(stop, list)
				if !stopped {
					break
				}
				lost := r.where(list[at])
				evidence := r.src.evidence
				lost.loseDatabase()
				if lost == r.src {
					r.attempt++ // control counts the attempts
				} else {
					r.src.evidence = evidence
				}
				r.restart(nil)
				r.steps(list[at:]...)
				r.steps(commit)
				r.close()
				c.check(t, r, source, target)
				for _, root := range []string{"receive", "content"} {
					moved += len(r.dst.putAside(root))
				}
				if t.Failed() {
					t.Fatalf("database lost at change %d, %s", n, stop.what())
				}
			}
			if moved == 0 {
				t.Error("nothing was put aside")
			}
		})
	}
}

// TestWorkAreaOfALostDatabase: what was moved into the work area is used again, and nothing is copied twice.
func TestWorkAreaOfALostDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.def.Policies.StageMethods, r.def.Policies.MaterializeMethods = methods{bySparse}, methods{byRename}
	before := listing(t, r.src.paths["content"])
	r.steps(stage, transfer)
	payload := r.jobDir(r.dst, "receive", "payload")
	entries, err := os.ReadDir(payload)
	must(t, err)
	inodes := map[uint64]bool{}
	for _, e := range entries {
		inodes[inode(t, filepath.Join(payload, e.Name()))] = true
	}
	r.dst.reached = func(point string) {
		if point == "materialize: built" {
			r.dst.stop.n = 1
		}
	}
	r.dst.start(&stopper{})
	if _, err := r.run(materialize); err == nil {
		t.Fatal("it was not stopped")
	}
	r.dst.reached = nil
	r.dst.loseDatabase()
	r.dst.start(nil)
	r.steps(materialize, verifying, commit)
	copied(t, listing(t, r.dst.paths["content"]), before)
	for name := range before {
		file := r.dst.at("content", name)
		if st, err := os.Lstat(file); err == nil && st.Mode().IsRegular() && !inodes[inode(t, file)] {
			t.Errorf("%s was copied again", name)
		}
	}
	if got := r.dst.putAside("content"); len(got) != 1 || got[0] != "work/"+r.def.GetJobId() {
		t.Errorf("put aside: %v", got)
	}
}

// TestVerifyWithoutARecordOfTheTransfer takes the job directory whose manifest control names, and none other.
func TestVerifyWithoutARecordOfTheTransfer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize)
	r.dst.loseDatabase()
	r.dst.start(nil)
	verify := r.command(verifying)
	dir := r.jobDir(r.dst, "receive", "")
	must(t, os.MkdirAll(r.dst.at("receive", layout.JobDir(r.def.GetJobId(), 7)), 0o700))
	must(t, os.MkdirAll(r.dst.at("receive", layout.JobDir(uuid.NewString(), 1)), 0o700))
	r.params[verifying] = func() *pb.ExecuteStepCommand {
		verify.GetVerify().ManifestSha256 = strings.Repeat("0", 64)
		return verify
	}
	_, err := r.run(verifying)
	held(t, err, pb.ErrorCode_ERROR_CODE_STATE_LOST)
	delete(r.params, verifying)
	must(t, os.Rename(dir, dir+"0"))
	_, err = r.run(verifying)
	held(t, err, pb.ErrorCode_ERROR_CODE_STATE_LOST) // it is not under the name of its manifest
	must(t, os.Rename(dir+"0", dir))
	r.steps(verifying, commit)
}

// TestOutboxIsTheReceiveRoot: the source's job directory is not taken for what a lost database has left.
func TestOutboxIsTheReceiveRoot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plainTree()
	r.dst.paths["receive"] = r.src.paths["outbox"]
	r.start()
	r.transfer("shows")
	r.steps(stage)
	r.fails(transfer, pb.ErrorCode_ERROR_CODE_PATH_CONFLICT)
	if _, err := os.Stat(r.jobDir(r.src, "outbox", layout.MarkerFile)); err != nil {
		t.Error(err)
	}
}
