package work_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/clock"
)

// TestMethods takes each list of methods on one file system, over two, and on one with clones.
func TestMethods(t *testing.T) {
	for _, c := range []struct {
		name        string
		where       string // "": one file system; "two": the target is on another; "clones"
		stage, make methods
		staged      string // method in the evidence of STAGE
		carried     string
		made        string
	}{
		{"links all the way", "", methods{byLink}, methods{byRename, byLink}, "HARDLINK", "HARDLINK", "HARDLINK"},
		{"a shared inode is copied where links are not allowed", "", methods{byLink}, methods{byRename, bySparse}, "HARDLINK", "HARDLINK", "COPY_SPARSE"},
		{"a shared inode is renamed where nothing else is", "", methods{byLink}, methods{byRename}, "HARDLINK", "HARDLINK", "RENAME"},
		{"copied at the source", "", methods{bySparse}, methods{byRename, byLink}, "COPY_SPARSE", "HARDLINK", "HARDLINK"},
		{"dense copies", "", methods{byCopy}, methods{byCopy}, "COPY", "HARDLINK", "COPY"},
		{"clones that are not there", "", methods{byClone, bySparse}, methods{byClone, bySparse}, "COPY_SPARSE", "HARDLINK", "COPY_SPARSE"},
		{"to another file system", "two", methods{byLink, bySparse}, methods{byRename, byLink, bySparse}, "HARDLINK", "COPY_SPARSE", "RENAME"},
		{"clones", "clones", methods{byClone}, methods{byClone}, "REFLINK", "HARDLINK", "REFLINK"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r *rig
			switch c.where {
			case "clones":
				r = newRigIn(t, beneathtest.Cloning(t))
			case "two":
				r = newRig(t)
				r.dst.dir = beneathtest.Tmpfs(t, 8<<20)
				t.Cleanup(r.dst.end)
				for id := range r.dst.paths {
					r.dst.paths[id] = filepath.Join(r.dst.dir, id)
					must(t, os.MkdirAll(r.dst.paths[id], 0o755))
				}
			default:
				r = newRig(t)
			}
			r.plainTree()
			r.start()
			r.transfer("shows")
			r.def.Policies.StageMethods, r.def.Policies.MaterializeMethods = c.stage, c.make
			before := listing(t, r.src.paths["content"])
			r.all()
			got := listing(t, r.dst.paths["content"])
			copied(t, got, before)
			same(t, "source", listing(t, r.src.paths["content"]), before)
			r.noLeftovers()
			if m := r.src.evidence[stage].GetStage().GetMethods(); m[c.staged] != 4 || len(m) != 1 {
				t.Errorf("staged by %v", m)
			}
			if d := r.dst.evidence[transfer].GetTransfer().GetCarrierDetail(); d != fmt.Sprintf("shared directory: %s 4", c.carried) {
				t.Errorf("carried by %q", d)
			}
			if m := r.dst.evidence[materialize].GetMaterialize().GetMethods(); m[c.made] != 4 || m["SYNTHESIZED"] != 1 {
				t.Errorf("made by %v", m)
			}
			shares := got["shows/one.mkv"].inode == before["shows/one.mkv"].inode && c.where == ""
			if want := c.stage[0] == byLink && (c.made == "HARDLINK" || c.made == "RENAME") && c.where == ""; shares != want {
				t.Errorf("the copy shares the source's inode: %v", shares)
			}
			mode := got["shows/one.mkv"].mode
			if want := map[bool]os.FileMode{true: 0o640, false: 0o644}[shares]; mode != want && c.made != "HARDLINK" {
				t.Errorf("mode %v, want %v", mode, want)
			}
		})
	}
}

// TestNoMethodFits names what was tried.
func TestNoMethodFits(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.src.hooks["outbox"] = elsewhere
	r.start()
	r.transfer("shows")
	r.def.Policies.StageMethods = methods{byLink, byClone}
	if d := r.fails(stage, pb.ErrorCode_ERROR_CODE_UNSUPPORTED); !strings.Contains(d.GetMessage(), "no method of the list") {
		t.Error(d.GetMessage())
	}
	r.noLeftovers()
}

// sparseRig has a file of 64 MiB with one block of data.
func sparseRig(t *testing.T) (*rig, string) {
	r := newRig(t)
	r.src.put("shows/sparse", nil, 0o644)
	file := r.src.at("content", "shows/sparse")
	must(t, os.Truncate(file, 64<<20))
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(torrenttest.Bytes(1, 4096), 32<<20)
	must(t, errors.Join(err, f.Close(), os.Chtimes(file, old, old)))
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("shows")
	return r, r.dst.at("content", "shows/sparse")
}

func allocated(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestSparse keeps holes over every method, and holds a file that lost them to the policy (row 25).
func TestSparse(t *testing.T) {
	for _, list := range []methods{{byRename}, {bySparse}} {
		r, file := sparseRig(t)
		r.def.Policies.SparsePolicy = pb.SparsePolicy_SPARSE_POLICY_REQUIRE
		r.def.Policies.MaterializeMethods = list
		r.all()
		if n := allocated(t, file); n > 1<<20 {
			t.Errorf("%v: %d bytes are allocated", list, n)
		}
		if m := r.dst.evidence[materialize].GetMaterialize(); m.GetSparseKept() != 1 || m.GetSparseLost() != 0 {
			t.Errorf("evidence %v", m)
		}
	}
	for _, policy := range []pb.SparsePolicy{pb.SparsePolicy_SPARSE_POLICY_REQUIRE, pb.SparsePolicy_SPARSE_POLICY_PREFER, pb.SparsePolicy_SPARSE_POLICY_DENSE} {
		r, file := sparseRig(t)
		r.def.Policies.SparsePolicy = policy
		r.def.Policies.MaterializeMethods = methods{byRename}
		r.steps(stage, transfer)
		payload := r.jobDir(r.dst, "receive", "payload/00000000")
		b, err := os.ReadFile(payload)
		must(t, err)
		must(t, os.WriteFile(payload, b, 0o600)) // the way here wrote the zeros
		if policy == pb.SparsePolicy_SPARSE_POLICY_REQUIRE {
			if d := r.fails(materialize, pb.ErrorCode_ERROR_CODE_SPARSE_LOST); !strings.Contains(d.GetMessage(), "shows/sparse") {
				t.Error(d.GetMessage())
			}
			if n := len(listing(t, r.dst.paths["content"])); n != 0 {
				t.Errorf("%d names are left", n)
			}
			continue
		}
		r.steps(materialize)
		lost := uint32(0)
		if policy == pb.SparsePolicy_SPARSE_POLICY_PREFER {
			lost = 1
		}
		if m := r.dst.evidence[materialize].GetMaterialize(); m.GetSparseLost() != lost || m.GetSparseKept() != 0 {
			t.Errorf("%v: evidence %v", policy, m)
		}
		if n := allocated(t, file); n < 64<<20 {
			t.Errorf("%d bytes are allocated", n)
		}
	}
}

// TestSparseIsCountedOnce also over a restart.
func TestSparseIsCountedOnce(t *testing.T) {
	r, _ := sparseRig(t)
	r.steps(stage, transfer)
	stop := &stopper{}
	r.restart(stop)
	r.dst.reached = func(point string) {
		if point == "materialize: built" {
			stop.mu.Lock()
			stop.n = stop.seen + 1
			stop.mu.Unlock()
		}
	}
	if _, err := r.run(materialize); err == nil {
		t.Fatal("it was not stopped")
	}
	r.dst.reached = nil
	r.restart(nil)
	r.steps(materialize)
	if m := r.dst.evidence[materialize].GetMaterialize(); m.GetSparseKept() != 1 || m.GetSparseLost() != 0 {
		t.Errorf("evidence %v", m)
	}
}

// TestPublishedModes: mode and group are those of the configuration, whatever the umask and the source say.
func TestPublishedModes(t *testing.T) {
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	for _, whole := range []bool{true, false} {
		r := newRig(t)
		r.plainTree()
		r.dst.hooks["receive"] = elsewhere
		r.dst.options = func(o *work.Options) { o.FileMode, o.DirMode, o.Group = 0o660, 0o770, 4711 }
		if !whole {
			must(t, os.MkdirAll(r.dst.at("content", "in/shows"), 0o700))
		}
		r.start()
		r.transfer("shows")
		r.def.Destination.RelativeDir = "in"
		r.all()
		for name, want := range map[string]os.FileMode{"in/shows/one.mkv": 0o660, "in/shows/run": 0o770, "in/shows/s 2": os.ModeDir | 0o770} {
			info, err := os.Stat(r.dst.at("content", name))
			must(t, err)
			if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode() != want || os.Getuid() == 0 && gid != 4711 {
				t.Errorf("%s has mode %v and group %d", name, info.Mode(), gid)
			}
		}
	}
}

// TestCancelledContext: every step ends with its context at the next file, and goes on later.
func TestCancelledContext(t *testing.T) {
	points := map[pb.JobStep]string{stage: "stage: intent", transfer: "transfer: intent", materialize: "materialize: intent", verifying: "verify: read"}
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	before := listing(t, r.src.paths["content"])
	for _, step := range plan(r.def) {
		if point := points[step]; point != "" {
			ctx, cancel := context.WithCancel(t.Context())
			s := r.where(step)
			s.reached = func(p string) {
				if p == point {
					cancel()
				}
			}
			if _, err := r.runWith(ctx, step); !errors.Is(err, context.Canceled) {
				t.Fatalf("%v: %v", step, err)
			}
			s.reached = nil
			cancel()
		}
		r.steps(step)
	}
	r.close()
	copied(t, listing(t, r.dst.paths["content"]), before)
	same(t, "source", listing(t, r.src.paths["content"]), before)
}

// jumping is a clock whose timers fire at once and move it: the time that was waited shows.
type jumping struct {
	mu  sync.Mutex
	now time.Time
}

func (j *jumping) Now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.now
}

func (j *jumping) NewTimer(d time.Duration) clock.Timer {
	j.mu.Lock()
	j.now = j.now.Add(d)
	j.mu.Unlock()
	return clock.System().NewTimer(0)
}

// TestRates: staging reads, and transfers copy, no faster than they may.
func TestRates(t *testing.T) {
	for step, copies := range map[pb.JobStep]bool{stage: false, transfer: true, materialize: true} {
		r := newRig(t)
		r.plainTree()
		r.dst.hooks["receive"] = elsewhere
		c := &jumping{now: time.Unix(1_800_000_000, 0)}
		for _, s := range []*side{r.src, r.dst} {
			s.options = func(o *work.Options) {
				if copies {
					o.Write = copyfile.NewBucket(c, 10_000)
				} else {
					o.Read = copyfile.NewBucket(c, 10_000)
				}
			}
		}
		r.start()
		r.transfer("shows")
		r.def.Policies.MaterializeMethods = methods{bySparse}
		for _, before := range plan(r.def) {
			if before == step {
				break
			}
			r.steps(before)
		}
		begun := c.Now()
		r.steps(step)
		if took := c.Now().Sub(begun).Seconds(); took < 8 || took > 11.1 {
			t.Errorf("%v of 110301 bytes at 10000/s took %vs", step, took)
		}
	}
}

// TestProgress: counters end at their totals, and never go back.
func TestProgress(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("shows")
	for _, step := range []pb.JobStep{stage, transfer, materialize, verifying} {
		r.steps(step)
		list := r.where(step).progress
		if len(list) < 2 {
			t.Fatalf("%v: %d reports", step, len(list))
		}
		last := list[0]
		for _, p := range list {
			if p.GetBytes().GetLogicalDone() < last.GetBytes().GetLogicalDone() || p.GetFilesDone() < last.GetFilesDone() {
				t.Errorf("%v: from %v to %v", step, last, p)
			}
			last = p
		}
		if f := list[0].GetFractionComplete(); f > 0.7 {
			t.Errorf("%v began with %v", step, list[0])
		}
		b := last.GetBytes()
		if last.GetFractionComplete() != 1 || b.GetLogicalDone() != 110_301 || b.GetLogicalTotal() != 110_301 || last.GetFilesDone() != last.GetFilesTotal() ||
			step != verifying && (b.GetAllocatedTotal() != 110_301 || b.GetAllocatedDone() != 110_301) {
			t.Errorf("%v ended with %v", step, last)
		}
	}
}
