package work_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// scene is one job whose processes are killed at every point.
type scene struct {
	name  string
	setup func(r *rig) // makes content, before the machines start
	job   func(r *rig) // writes the definition
	// check looks at the end of a job that went through; source and target are the listings from before.
	check func(t *testing.T, r *rig, source, target map[string]line)
}

func wholeCopy(t *testing.T, r *rig, source, target map[string]line) {
	t.Helper()
	same(t, "source", listing(t, r.src.paths["content"]), source)
	got := listing(t, r.dst.at("content", r.def.GetDestination().GetRelativeDir()))
	for name, l := range target { // what others have there
		if got[name] != l {
			t.Errorf("%s of somebody else is %+v, was %+v", name, got[name], l)
		}
		if _, ours := source[name]; !ours {
			delete(got, name)
		}
	}
	copied(t, got, source)
}

var scenes = []scene{
	{name: "tree", setup: func(r *rig) { r.plainTree() }, job: func(r *rig) {
		r.transfer("shows")
		r.def.Destination.RelativeDir = "new/deep"
	}, check: wholeCopy},
	{name: "renamed", setup: func(r *rig) { r.plainTree() }, job: func(r *rig) {
		r.transfer("shows")
		r.def.Policies.StageMethods = methods{bySparse}
	}, check: wholeCopy},
	{name: "file by file", setup: func(r *rig) {
		r.plainTree()
		must(r.t, os.MkdirAll(r.dst.at("content", "shows/theirs"), 0o755))
		must(r.t, os.WriteFile(r.dst.at("content", "shows/theirs/file"), []byte("theirs"), 0o644))
		must(r.t, os.WriteFile(r.dst.at("content", "shows/run"), torrenttest.Bytes(2, 300), 0o755)) // identical
		must(r.t, os.Chtimes(r.dst.at("content", "shows/run"), old, old))
	}, job: func(r *rig) {
		r.transfer("shows")
		r.def.Policies.MaterializeMethods = methods{bySparse}
	}, check: wholeCopy},
	{name: "across file systems", setup: func(r *rig) {
		r.plainTree()
		r.dst.hooks["receive"] = elsewhere
	}, job: func(r *rig) {
		r.transfer("shows")
		r.def.Policies.MaterializeMethods = methods{byCopy}
		r.def.Policies.SparsePolicy = pb.SparsePolicy_SPARSE_POLICY_DENSE
	}, check: wholeCopy},
	{name: "renamed across file systems", setup: func(r *rig) {
		r.plainTree()
		r.dst.hooks["receive"] = elsewhere
	}, job: func(r *rig) { r.transfer("shows") }, check: wholeCopy},
	{name: "torrent", setup: func(r *rig) {
		r.torrent(torrenttest.Options{Version: torrenttest.Hybrid, Name: "shows"}, entries())
		r.dst.paths["library"] = filepath.Join(r.dst.dir, "library")
		must(r.t, os.MkdirAll(r.dst.paths["library"], 0o755))
	}, job: func(r *rig) {
		r.transfer("shows")
		r.def.Policies.StageMethods = methods{bySparse}
	}, check: wholeCopy},
}

func (c scene) prepare(t *testing.T) (r *rig, source, target map[string]line) {
	t.Helper()
	r = newRig(t)
	c.setup(r)
	r.start()
	c.job(r)
	return r, listing(t, r.src.paths["content"]), listing(t, r.dst.paths["content"])
}

// restart kills both machines: nothing of the processes lasts.
func (r *rig) restart(stop *stopper) {
	r.t.Helper()
	for _, s := range []*side{r.src, r.dst} {
		s.cache = nil
		s.start(stop)
	}
}

// until runs the steps until the stopper stops the machines, and returns the step that was at work; ok is false when
// everything was done before.
func (r *rig) until(stop *stopper, list []pb.JobStep) (at int, ok bool) {
	r.t.Helper()
	r.restart(stop)
	for i, step := range list {
		_, err := r.run(step)
		if stop.stopped() {
			delete(r.where(step).evidence, step)
			return i, true
		}
		if err != nil {
			r.t.Fatalf("%v: %v", step, err)
		}
	}
	return 0, false
}

// registered lists the backend's own files at the target, without temporary ones, which the daemon's next start removes.
func (r *rig) registered() (names []string) {
	entries, _ := os.ReadDir(r.dst.at("content", ".archive-control/torrents"))
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".archive-control-tmp-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// stride is 1: every point. Short runs take every seventh.
func stride() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// TestKillAtEveryPoint kills the machine at every change of a file system and every write of the journal of every step, and
// starts it again: the copy is equal, the source and what others have is untouched, and nothing is left.
func TestKillAtEveryPoint(t *testing.T) {
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n += stride() {
				r, source, target := c.prepare(t)
				stop := &stopper{n: n}
				killed := stop
				list := plan(r.def)
				at, stopped := r.until(stop, list)
				if stopped {
					r.restart(nil)
					r.steps(list[at:]...)
					stop = nil
				}
				for _, s := range []*side{r.src, r.dst} {
					if err := s.worker.Close(t.Context(), r.job(s)); err != nil {
						if stop == nil || !stop.stopped() {
							t.Fatal(err)
						}
						stopped = true
					}
				}
				if stop != nil && stop.stopped() { // the removal of the job's own files goes on (row 54)
					stopped = true
					r.restart(nil)
					r.close()
				}
				c.check(t, r, source, target)
				r.noLeftovers()
				if t.Failed() {
					t.Fatalf("killed at change %d, %s", n, killed.what())
				}
				if !stopped {
					t.Logf("%d points", n-1)
					return
				}
				_ = os.RemoveAll(filepath.Dir(r.src.dir))
			}
		})
	}
}

// TestFailAtEveryPoint lets one call fail, every one in its turn: the step takes back what it made, or leaves what the next
// attempt goes on with, and that one goes through.
func TestFailAtEveryPoint(t *testing.T) {
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n += stride() {
				r, source, target := c.prepare(t)
				stop := &stopper{n: n, once: true}
				r.restart(stop)
				for _, step := range plan(r.def) {
					if _, err := r.run(step); err == nil {
						continue
					} else if !stop.stopped() {
						t.Fatalf("%v: %v", step, err)
					}
					if step == stage {
						r.attempt++
					}
					if step == materialize {
						same(t, "target after the failure", listing(t, r.dst.paths["content"]), target)
					}
					same(t, "source after the failure", listing(t, r.src.paths["content"]), source)
					r.steps(step)
				}
				for _, s := range []*side{r.src, r.dst} {
					if err := s.worker.Close(t.Context(), r.job(s)); err != nil {
						if !stop.stopped() {
							t.Fatal(err)
						}
						must(t, s.worker.Close(t.Context(), r.job(s)))
					}
				}
				c.check(t, r, source, target)
				r.noLeftovers()
				if t.Failed() {
					t.Fatalf("failed at change %d, %s", n, stop.what())
				}
				if !stop.stopped() {
					t.Logf("%d points", n-1)
					return
				}
				_ = os.RemoveAll(filepath.Dir(r.src.dir))
			}
		})
	}
}

// TestCancelAtEveryPoint kills the machine at every point before the commit and cancels the job then (row 37): everything
// is as it was before the job.
func TestCancelAtEveryPoint(t *testing.T) {
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n += stride() {
				r, source, target := c.prepare(t)
				stop := &stopper{n: n}
				list := plan(r.def)
				list = list[:len(list)-1]
				_, stopped := r.until(stop, list)
				r.restart(nil)
				for _, s := range []*side{r.src, r.dst} {
					must(t, s.worker.Undo(t.Context(), r.job(s), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES))
				}
				r.close()
				same(t, "source", listing(t, r.src.paths["content"]), source)
				same(t, "target", listing(t, r.dst.paths["content"]), target)
				r.noLeftovers()
				if left := r.registered(); len(left) > 0 {
					t.Errorf("the backend still has %v", left)
				}
				if t.Failed() {
					t.Fatalf("killed at change %d, %s", n, stop.what())
				}
				if !stopped {
					t.Logf("%d points", n-1)
					return
				}
				_ = os.RemoveAll(filepath.Dir(r.src.dir))
			}
		})
	}
}

// TestKilledWhileCancelling kills the clean-up of a CancelJob at every point; the next process ends it.
func TestKilledWhileCancelling(t *testing.T) {
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n += stride() {
				r, source, target := c.prepare(t)
				list := plan(r.def)
				r.steps(list[:len(list)-1]...)
				stop := &stopper{n: n}
				r.restart(stop)
				for _, s := range []*side{r.src, r.dst} {
					if err := s.worker.Undo(t.Context(), r.job(s), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES); err != nil && !stop.stopped() {
						t.Fatal(err)
					}
				}
				stopped := stop.stopped()
				r.restart(nil)
				for _, s := range []*side{r.src, r.dst} {
					must(t, s.worker.Undo(t.Context(), r.job(s), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES))
				}
				r.close()
				same(t, "source", listing(t, r.src.paths["content"]), source)
				same(t, "target", listing(t, r.dst.paths["content"]), target)
				r.noLeftovers()
				if t.Failed() {
					t.Fatalf("killed at change %d, %s", n, stop.what())
				}
				if !stopped {
					t.Logf("%d points", n-1)
					return
				}
				_ = os.RemoveAll(filepath.Dir(r.src.dir))
			}
		})
	}
}
