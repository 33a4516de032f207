package work_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/clock"
)

// next forgets the job that is over: the machines keep their content.
func (r *rig) next() {
	for _, s := range []*side{r.src, r.dst} {
		s.journal, s.record = &memory{rows: map[string]daemon.JournalEntry{}}, nil
		s.evidence = map[pb.JobStep]*pb.StepEvidence{}
	}
}

// evict writes the definition of an EVICT after the TRANSFER that has just ended.
func (r *rig) evict() {
	r.t.Helper()
	committed := r.dst.evidence[commit].GetCommit()
	d := proto.Clone(r.def).(*pb.JobDefinition)
	d.JobId, d.ParentJobId, d.Operation = uuid.NewString(), r.def.JobId, pb.JobOperation_JOB_OPERATION_EVICT
	d.RouteId, d.Baseline, d.Destination = "", nil, nil
	d.SourceContentRevision = r.tree(r.src, r.resource).Header.GetContentRevision()
	d.Eviction = &pb.EvictionBasis{TargetCommit: committed, MaxVerifyAge: durationpb.New(24 * time.Hour)}
	d.Policies.TrashRetention = durationpb.New(0) // these machines live by the system's clock: nobody waits for a retention
	r.next()
	r.def = d
}

// adopt writes the definition of an ADOPT of what the target has.
func (r *rig) adopt(name string) {
	r.t.Helper()
	r.resource = r.find(r.dst, name)
	tree := r.tree(r.dst, r.resource)
	src := r.src
	r.src = r.dst // the resource is at the target itself
	r.transfer(name)
	r.src = src
	r.def.Operation, r.def.RouteId, r.def.Baseline = pb.JobOperation_JOB_OPERATION_ADOPT, "", nil
	r.def.SourceContentRevision = tree.Header.GetContentRevision()
}

func TestAdopt(t *testing.T) {
	for _, version := range []torrenttest.Version{0, torrenttest.V1, torrenttest.V2, torrenttest.Hybrid} {
		r := newRig(t)
		r.dst.paths["metainfo"] = filepath.Join(r.dst.dir, "metainfo")
		must(t, os.MkdirAll(r.dst.paths["metainfo"], 0o755))
		r.src, r.dst = r.dst, r.src
		if version == 0 {
			r.plainTree()
		} else {
			r.torrent(torrenttest.Options{Version: version, Name: "shows"}, entries())
		}
		r.src, r.dst = r.dst, r.src
		r.start()
		before := listing(t, r.dst.paths["content"])
		r.adopt("shows")
		r.all()
		same(t, "adopted content", listing(t, r.dst.paths["content"]), before)
		r.noLeftovers()
		if m := r.dst.evidence[materialize].GetMaterialize(); m.GetFilesCreated() != 0 || m.GetFilesAlreadyPresent() == 0 {
			t.Errorf("evidence %v", m)
		}
		if e := r.dst.evidence[verifying].GetVerify(); e.GetBytesRead() < 90_000 || !e.GetBackendConfirmed() {
			t.Errorf("evidence %v", e)
		}

		r.next()
		r.adopt("shows")
		must(t, os.WriteFile(r.dst.at("content", "shows/c.bin"), []byte("more"), 0o600))
		r.fails(materialize, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT)
	}
}

// evicting is a rig whose TRANSFER is over and whose EVICT begins.
func evicting(t *testing.T, version torrenttest.Version) *rig {
	r := newRig(t)
	if version == 0 {
		r.plainTree()
	} else {
		r.torrent(torrenttest.Options{Version: version, Name: "shows"}, entries())
	}
	r.src.put("neighbour/file", []byte("stays"), 0o644)
	r.start()
	r.transfer("shows")
	r.def.Policies.StageMethods = methods{bySparse} // the copy has inodes of its own
	r.all()
	r.evict()
	return r
}

func TestEvict(t *testing.T) {
	for _, version := range []torrenttest.Version{0, torrenttest.V1, torrenttest.Hybrid} {
		r := evicting(t, version)
		copy := listing(t, r.dst.paths["content"])
		inode := listing(t, r.src.paths["content"])["shows/a/first.bin"].inode
		r.steps(verifying, release)
		if got := listing(t, r.src.paths["content"]); len(got) != 2 {
			t.Errorf("the source still has %v", fileNames(got))
		}
		trash := r.src.at("content", ".archive-control/trash/"+r.def.GetJobId())
		if version != 0 {
			if now := listing(t, trash)["shows/a/first.bin"].inode; now != inode {
				t.Errorf("the trash has inode %d, the content had %d", now, inode)
			}
			if entries, _ := os.ReadDir(r.src.paths["metainfo"]); len(entries) != 0 {
				t.Errorf("the torrent file is still there: %v", entries)
			}
		}
		e := r.src.evidence[release].GetRelease()
		if int(e.GetTrashEntries()) != len(fileNames(listing(t, trash))) || e.GetTrashBytes() == 0 || e.GetSharedNamesKept() != 0 {
			t.Errorf("evidence %v, trash %v", e, fileNames(listing(t, trash)))
		}
		// Somebody changed a file in the trash: it is not ours any more.
		changed := filepath.Join(trash, "shows/a/first.bin")
		if version == 0 {
			changed = filepath.Join(trash, "shows/one.mkv")
		}
		must(t, os.WriteFile(changed, []byte("precious"), 0o600))
		// And somebody took another one back.
		taken := ""
		for _, name := range fileNames(listing(t, trash)) {
			if path := filepath.Join(trash, name); path != changed && taken == "" {
				taken = path
			}
		}
		must(t, os.Rename(taken, filepath.Join(r.src.dir, "taken back")))
		r.steps(purge)
		p := r.src.evidence[purge].GetPurge()
		if p.GetEntriesSkippedChanged() != 2 || p.GetEntriesRemoved() != e.GetTrashEntries()-2 {
			t.Errorf("evidence %v", p)
		}
		if left := fileNames(listing(t, trash)); len(left) != 1 {
			t.Errorf("the trash holds %v", left)
		}
		r.close()
		if b, _ := os.ReadFile(changed); string(b) != "precious" {
			t.Errorf("the changed file is %q", b)
		}
		same(t, "copy", listing(t, r.dst.paths["content"]), copy)
	}
}

// TestEvictKilledAtEveryPoint kills the source and the target of an EVICT at every point.
func TestEvictKilledAtEveryPoint(t *testing.T) {
	for _, version := range []torrenttest.Version{0, torrenttest.V2} {
		for n := 1; ; n += stride() {
			r := evicting(t, version)
			copy := listing(t, r.dst.paths["content"])
			stop := &stopper{n: n}
			list := plan(r.def)
			at, stopped := r.until(stop, list)
			r.restart(nil)
			if stopped {
				r.steps(list[at:]...)
			}
			r.close()
			same(t, "copy", listing(t, r.dst.paths["content"]), copy)
			if got := fileNames(listing(t, r.src.paths["content"])); len(got) != 1 || got[0] != "neighbour/file" {
				t.Errorf("the source has %v", got)
			}
			r.noLeftovers()
			if entries, _ := os.ReadDir(r.src.paths["metainfo"]); len(entries) != 0 {
				t.Errorf("the torrent file is still there: %v", entries)
			}
			e, p := r.src.evidence[release].GetRelease(), r.src.evidence[purge].GetPurge()
			if p.GetEntriesRemoved() != e.GetTrashEntries() || e.GetTrashEntries() == 0 || p.GetBytesFreed() != e.GetTrashBytes() {
				t.Errorf("evidence %v and %v", e, p)
			}
			if t.Failed() {
				t.Fatalf("killed at change %d, %s", n, stop.what())
			}
			_ = os.RemoveAll(filepath.Dir(r.src.dir))
			if !stopped {
				t.Logf("%d points", n-1)
				break
			}
		}
	}
}

// TestReleaseRefuses holds every reason to keep the source copy (daemon protocol 9, rows 40 and 41): nothing is moved, and
// there is no commit record.
func TestReleaseRefuses(t *testing.T) {
	link := func(r *rig, name string) {
		must(r.t, os.MkdirAll(filepath.Join(r.src.dir, "library"), 0o755))
		must(r.t, os.Link(r.src.at("content", "shows/one.mkv"), filepath.Join(r.src.dir, "library", name)))
	}
	for _, c := range []struct {
		name   string
		change func(r *rig)
		code   pb.ErrorCode
		says   string
	}{
		{"library link", func(r *rig) { link(r, "one") }, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "shows/one.mkv has another name"},
		{"another resource uses a file", func(r *rig) {
			r.def.Eviction.AllowLibraryLinks = true
			must(r.t, os.Link(r.src.at("content", "shows/one.mkv"), r.src.at("content", "neighbour/one")))
		}, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "also uses files of this content"},
		{"changed content", func(r *rig) { r.src.put("shows/one.mkv", []byte("new"), 0o644) }, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "changed since the preview"},
		{"a file more", func(r *rig) { r.src.put("shows/more", []byte("new"), 0o644) }, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "changed since the preview"},
		{"another commit", func(r *rig) {
			other := proto.Clone(r.def.GetEviction().GetTargetCommit()).(*pb.CommitEvidence)
			other.CommitId = uuid.NewString()
			r.params[release] = func() *pb.ExecuteStepCommand {
				return &pb.ExecuteStepCommand{Step: release, StepAttempt: 1, Params: &pb.ExecuteStepCommand_Release{Release: &pb.ReleaseParams{TargetCommit: other,
					ExpectedContentRevision: r.def.GetSourceContentRevision()}}}
			}
		}, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "another commit"},
		{"waited too long", func(r *rig) { r.def.Eviction.MaxVerifyAge = durationpb.New(0) }, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "waited longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := evicting(t, 0)
			r.steps(verifying)
			c.change(r)
			before := listing(t, r.src.paths["content"])
			if d := r.fails(release, c.code); !strings.Contains(d.GetMessage(), c.says) {
				t.Error(d.GetMessage())
			}
			same(t, "source", listing(t, r.src.paths["content"]), before)
			if r.src.record != nil {
				t.Error("there is a commit record")
			}
			if left := leftovers(t, r.src); len(left) > 0 {
				t.Errorf("left: %s", strings.Join(left, ", "))
			}
			for _, s := range []*side{r.src, r.dst} {
				must(t, s.worker.Undo(t.Context(), r.job(s), pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES))
			}
			r.noLeftovers()
		})
	}
	t.Run("library links are kept and counted", func(t *testing.T) {
		r := evicting(t, 0)
		r.steps(verifying)
		r.def.Eviction.AllowLibraryLinks = true
		link(r, "one")
		link(r, "two")
		r.steps(release)
		if e := r.src.evidence[release].GetRelease(); e.GetSharedNamesKept() != 2 {
			t.Errorf("evidence %v", e)
		}
		r.steps(purge)
		if b, err := os.ReadFile(filepath.Join(r.src.dir, "library/two")); err != nil || len(b) != 70_000 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		r.close()
		r.noLeftovers()
	})
	t.Run("the copy itself is another name", func(t *testing.T) {
		r := newRig(t)
		r.plainTree()
		r.start()
		r.transfer("shows")
		r.all()
		r.evict()
		copy := listing(t, r.dst.paths["content"])
		r.steps(verifying)
		if d := r.fails(release, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE); !strings.Contains(d.GetMessage(), "the copy itself") {
			t.Error(d.GetMessage())
		}
		r.def.Eviction.AllowLibraryLinks = true
		r.steps(release, purge)
		if e := r.src.evidence[release].GetRelease(); e.GetSharedNamesKept() != 4 {
			t.Errorf("evidence %v", e)
		}
		same(t, "copy", listing(t, r.dst.paths["content"]), copy)
	})
	t.Run("trash without a record", func(t *testing.T) {
		r := evicting(t, 0)
		r.steps(verifying)
		must(t, os.MkdirAll(r.src.at("content", ".archive-control/trash/"+r.def.GetJobId()), 0o700))
		_, err := r.run(release)
		held(t, err, pb.ErrorCode_ERROR_CODE_STATE_LOST)
		held(t, r.src.worker.Undo(t.Context(), r.job(r.src), 0), pb.ErrorCode_ERROR_CODE_STATE_LOST)
	})
}

// held checks that the job was held for a person with this code.
func held(t *testing.T, err error, code pb.ErrorCode) {
	t.Helper()
	h, ok := err.(*daemon.Held)
	if !ok || h.Detail.GetCode() != code {
		t.Errorf("got %v, want to be held with %v", err, code)
	}
}

// TestPurgeWaitsForTheRetention has control's PURGE come too early by the source's own clock, whichever of the two is wrong
// (row 8): the step waits and does not fail, nothing leaves the trash meanwhile, and it ends with its context.
func TestPurgeWaitsForTheRetention(t *testing.T) {
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		retention *durationpb.Duration
		notBefore time.Duration // after the release, by the source's clock
		moved     time.Duration // the source's clock, between RELEASE and PURGE
		waits     time.Duration
	}{
		"this clock is behind control's":                   {durationpb.New(0), 2 * day, day, day},
		"control's clock was put forward":                  {durationpb.New(3 * day), -year, day, 2 * day},
		"the retention that nobody chose":                  {nil, 0, 0, archive.DefaultTrashRetention},
		"this clock was set back":                          {durationpb.New(3 * day), -2 * year, -year, 3 * day},
		"this clock was put forward, and control's is not": {durationpb.New(3 * day), 400 * day, year, 400*day - year},
		"both are over":                                    {durationpb.New(3 * day), 2 * day, 3 * day, 0},
		"nothing is kept":                                  {durationpb.New(0), 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := evicting(t, 0)
			fake := clock.NewFake(time.Now().Add(time.Hour))
			r.src.options = func(o *work.Options) { o.Clock = fake }
			r.def.Policies.TrashRetention = c.retention
			r.start()
			r.steps(verifying, release)
			released := r.src.evidence[release].GetRelease().GetReleasedAt().AsTime()
			r.params[purge] = func() *pb.ExecuteStepCommand {
				return &pb.ExecuteStepCommand{Step: purge, StepAttempt: 1, Params: &pb.ExecuteStepCommand_Purge{Purge: &pb.PurgeParams{
					NotBefore: timestamppb.New(released.Add(c.notBefore))}}}
			}
			fake.Advance(c.moved)
			dir := r.src.at("content", ".archive-control/trash")
			trash := listing(t, dir)
			if c.waits > 0 {
				ctx, cancel := context.WithCancel(t.Context())
				r.src.reached = func(point string) {
					if point == "purge: waiting" {
						cancel()
					}
				}
				if _, err := r.runWith(ctx, purge); err != context.Canceled {
					t.Fatal(err)
				}
				same(t, "trash", listing(t, dir), trash)
			}
			r.src.reached = func(point string) {
				if point == "purge: waiting" { // its timer is armed
					fake.Advance(c.waits - time.Second)
					same(t, "trash", listing(t, dir), trash)
					fake.Advance(time.Second)
				}
			}
			e, err := r.run(purge)
			must(t, err)
			if got := fake.Now().Sub(released); got != c.moved+c.waits {
				t.Errorf("purged %v after the release, want %v", got, c.moved+c.waits)
			}
			if e.GetPurge().GetEntriesRemoved() == 0 || e.GetPurge().GetEntriesSkippedChanged() != 0 {
				t.Errorf("evidence %v", e)
			}
		})
	}
}

const year = 365 * 24 * time.Hour

// TestEvictVerifiesAllBytes lets one byte of the copy change without a trace in its time.
func TestEvictVerifiesAllBytes(t *testing.T) {
	for _, version := range []torrenttest.Version{0, torrenttest.V1, torrenttest.V2} {
		r := evicting(t, version)
		name := map[bool]string{true: "shows/one.mkv", false: "shows/c.bin"}[version == 0]
		flip(t, r.dst.at("content", name), 30_000)
		if d := r.fails(verifying, pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE); version != 0 && !strings.Contains(d.GetMessage(), "c.bin") {
			t.Error(d.GetMessage())
		}
	}
}

// flip changes one byte of a file and keeps its time. The name gets an inode of its own first: it may share the source's.
func flip(t *testing.T, file string, at int) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	info, err := os.Stat(file)
	must(t, err)
	b[at] ^= 1
	must(t, os.Remove(file))
	must(t, os.WriteFile(file, b, info.Mode()))
	must(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
}
