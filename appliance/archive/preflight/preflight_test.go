package preflight_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/preflight"
	"signalbox/appliance/fault"
	"signalbox/store/storetest"
)

func TestPreviewOfATransfer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := r.passed(r.transfer())
	if v.By != "alice" || v.SourceRev != r.s.held["r1"].tree.ContentRevision || v.TargetRev != "" || v.Error != nil || v.FinishedAt.IsZero() {
		t.Errorf("%+v", v)
	}
	if v.Draft.GetDestination().GetContentRootId() != "archive" || v.Draft.GetDestination().GetRelativeDir() != "tv" {
		t.Errorf("destination %v", v.Draft.GetDestination())
	}
	if s := v.Summary; s.Transfer != 3 || s.TransferBytes != 300 || len(s.Needs) != 2 || s.Needs[1].Bytes != 300 || s.Materialize != "RENAME" {
		t.Errorf("summary %+v", s)
	}
	files, err := r.pre.Files(ctx, v.ID, -1, 2)
	if err != nil || len(files) != 2 || files[0].Path != "Show/e0.mkv" || files[0].Action != pb.DeltaAction_DELTA_ACTION_TRANSFER {
		t.Errorf("%v, %v", files, err)
	}
	if files, err = r.pre.Files(ctx, v.ID, 1, 10); err != nil || len(files) != 1 || files[0].Index != 2 {
		t.Errorf("second page: %v, %v", files, err)
	}
	var req job.Request
	if err := json.Unmarshal([]byte(v.Request), &req); err != nil || !proto.Equal(req.Requested, archive.Span(0, 3).Message()) || req.Destination == nil {
		t.Errorf("stored request %s: %v", v.Request, err)
	}
	if list, err := r.pre.List(ctx, 0, 10); err != nil || len(list) != 1 || list[0].ID != v.ID {
		t.Errorf("list: %v, %v", list, err)
	}
	if want := []string{"CONTENT_TREE", "RESOURCES", "STORAGE"}; !slices.Equal(r.s.asked, want) {
		t.Errorf("the source was asked for %v", r.s.asked)
	}
	if want := []string{"STORAGE", "RESOURCES", "RESOURCES"}; !slices.Equal(r.n.asked, want) {
		t.Errorf("the target was asked for %v", r.n.asked)
	}
}

func TestPreviewChoosesFilesByPattern(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := r.passed(r.transfer(), "e[12].mkv")
	if !proto.Equal(v.Draft.GetRequested(), archive.Span(1, 2).Message()) || !slices.Equal(v.Summary.Patterns, []string{"e[12].mkv"}) {
		t.Errorf("%v, %v", v.Draft.GetRequested(), v.Summary.Patterns)
	}
	if v := r.preview(r.transfer(), "*.avi"); v.State != preflight.Failed || !strings.Contains(v.Error.GetMessage(), `"*.avi" fits no file`) {
		t.Errorf("%+v", v)
	}
}

// TestPreviewRefusesBillionsOfFiles asks for a range that no tree has, of content that the target has a part of: looking at
// every index of it would take minutes.
func TestPreviewRefusesBillionsOfFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	have := tree("Show", 3)
	have.Files[2].CompletedBytes = 1
	r.n.put("n1", "archive", "tv", have)
	req := r.transfer()
	req.Requested = &pb.IndexSet{Ranges: []*pb.IndexRange{{First: 0, Last: math.MaxUint32}}}
	v := r.preview(req)
	if v.State != preflight.Failed || v.Error.GetCode() != pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT || v.Error.GetDetails()["index"] != "3" ||
		v.Error.GetDetails()["check"] != "7" {
		t.Errorf("%s: %v", v.State, v.Error)
	}
}

func TestPreviewLooksAtTheTarget(t *testing.T) {
	t.Parallel()
	t.Run("a part is there", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		have := tree("Show", 3)
		have.Files[2].CompletedBytes = 1
		r.n.put("n1", "archive", "tv", have)
		v := r.passed(r.transfer())
		if v.TargetRev != have.ContentRevision || !proto.Equal(v.Draft.GetBaseline().GetPresent(), archive.Span(0, 2).Message()) || v.Summary.Transfer != 1 {
			t.Errorf("%v, %+v", v.Draft.GetBaseline(), v.Summary)
		}
	})
	t.Run("in another place", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.n.put("n1", "archive", "elsewhere", tree("Show", 3))
		if v := r.preview(r.transfer()); v.Error.GetCode() != pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT || !strings.Contains(v.Error.GetMessage(), "adopt") {
			t.Errorf("%v", v.Error)
		}
	})
	t.Run("it was there once", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		h := r.n.put("n1", "archive", "elsewhere", tree("Show", 3))
		_ = r.preview(r.transfer())
		r.n.change("n1", func(*held) { h.absent = true })
		r.passed(r.transfer())
	})
	t.Run("the name is taken", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		other := tree("Show", 3)
		other.Resource.Identity.InfohashV1 = strings.Repeat("f", 40)
		other.Files[1].LogicalBytes, other.Files[1].DiskBytes = 7, 7
		r.n.put("n1", "archive", "tv", other)
		v := r.preview(r.transfer())
		if v.Error.GetCode() != pb.ErrorCode_ERROR_CODE_PATH_CONFLICT || v.Error.GetDetails()["path"] != "Show/e1.mkv" || v.Error.GetDetails()["found"] != "7" {
			t.Errorf("%v", v.Error)
		}
		r.n.change("n1", func(h *held) { h.tree.Files[1].LogicalBytes, h.tree.Files[1].DiskBytes = 100, 100 })
		if v := r.passed(r.transfer()); !strings.Contains(strings.Join(v.Warnings, "\n"), "is taken at daemon nas") {
			t.Errorf("no warning: %v", v.Warnings)
		}
		elsewhere := r.transfer()
		elsewhere.Destination = &pb.Destination{ContentRootId: "archive", RelativeDir: "films"}
		if v := r.passed(elsewhere); strings.Contains(strings.Join(v.Warnings, "\n"), "is taken") {
			t.Errorf("warnings for another directory: %v", v.Warnings)
		}
	})
}

func TestPreviewFailsWithAReason(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		edit func(r *rig, req *job.Request)
		code pb.ErrorCode
		text string
	}{
		{"source offline", func(r *rig, _ *job.Request) { r.exec(`UPDATE daemons SET online = 0 WHERE name = 'seedbox'`) }, pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "seedbox is offline"},
		{"route not ready", func(r *rig, _ *job.Request) { r.route.set("the target nas is offline") }, pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY, "home is not ready: the target nas is offline"},
		{"no such resource", func(_ *rig, req *job.Request) { req.ResourceID = "r9" }, pb.ErrorCode_ERROR_CODE_NOT_FOUND, "does not have the resource"},
		{"reserved by a job", func(r *rig, _ *job.Request) {
			r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, created_at) VALUES (1, ?, 1, '', '{}', 30, 0)`, uuid.New())
			r.exec(`INSERT INTO archive_reservations (job_no, daemon_no, kind, name) VALUES (1, ?, 'infohash_v1', ?)`, r.n.link.Daemon.No, fmt.Sprintf("%040x", "Show"))
		}, pb.ErrorCode_ERROR_CODE_BUSY, "holds the same torrent"},
		{"a daemon's own error", func(r *rig, _ *job.Request) {
			r.s.before = func(q *pb.InventoryQuery) *pb.ErrorDetail {
				if q.GetScope() != pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
					return nil
				}
				return &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_READ_ERROR, Message: "medium error in e1.mkv"}
			}
		}, pb.ErrorCode_ERROR_CODE_READ_ERROR, "daemon seedbox: medium error in e1.mkv"},
		{"two content roots", func(r *rig, _ *job.Request) {
			r.n.roots = append(r.n.roots, root("second", pb.RootKind_ROOT_KIND_CONTENT, ""))
		}, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "has 2 content roots: archive, second"},
		{"too many ranges", func(r *rig, req *job.Request) {
			r.s.put("r1", "data", "tv", tree("Show", 1000))
			var odd []uint32
			for i := range uint32(500) {
				odd = append(odd, 2*i+1)
			}
			req.Requested = archive.Indices(odd...).Message()
			limits, _ := proto.Marshal(&pb.Limits{MaxEnvelopeBytes: 16 << 10, MaxActiveCursors: 256})
			r.exec(`UPDATE daemons SET limits = ? WHERE name = 'nas'`, limits)
		}, pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED, "daemon nas takes 14745"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			req := r.transfer()
			test.edit(r, &req)
			v := r.preview(req)
			if v.State != preflight.Failed || v.Error.GetCode() != test.code || !strings.Contains(v.Error.GetMessage(), test.text) || v.Draft != nil {
				t.Errorf("%s: %v", v.State, v.Error)
			}
			if n := r.count(`SELECT count(*) FROM archive_preview_files`); n != 0 {
				t.Errorf("%d planned files of a failed preview", n)
			}
		})
	}
}

// A daemon that has to read content before it can tell of it is asked again; a cut-off answer is asked for once more.
func TestPreviewIsPatient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asked := 0
	r.s.before = func(q *pb.InventoryQuery) *pb.ErrorDetail {
		if q.GetScope() != pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
			return nil
		}
		asked++
		switch asked {
		case 1:
			return &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true}
		case 2, 3:
			return &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BUSY, Retryable: true, Message: "the content is being identified"}
		}
		return nil
	}
	id, err := r.pre.PreviewFiles(ctx, r.transfer(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{time.Second, 2 * time.Second} {
		r.clock.BlockUntil(1)
		r.clock.Advance(d)
	}
	if v, err := r.pre.Wait(ctx, id); err != nil || v.State != preflight.Passed || asked != 4 {
		t.Errorf("asked %d times: %v, %v", asked, v.Error, err)
	}
	// A job has its own patience.
	asked = 1
	o, err := r.pre.Check(ctx, job.Check{JobNo: 1, Request: r.transfer()})
	if err != nil || o.Error.GetCode() != pb.ErrorCode_ERROR_CODE_BUSY || o.Wait != pb.WaitReason_WAIT_REASON_RETRY_BACKOFF {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestRequestIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, test := range []struct {
		field string
		edit  func(q *job.Request)
		code  fault.Code
	}{
		{"operation", func(q *job.Request) { q.Operation = 0 }, fault.Invalid},
		{"source", func(q *job.Request) { q.Source = uuid.Nil }, fault.Invalid},
		{"source", func(q *job.Request) { q.Source = uuid.New() }, fault.NotFound},
		{"target", func(q *job.Request) { q.Target = q.Source }, fault.Invalid},
		{"target", func(q *job.Request) { q.Operation = pb.JobOperation_JOB_OPERATION_ADOPT }, fault.Invalid},
		{"resource_id", func(q *job.Request) { q.ResourceID = "" }, fault.Invalid},
		{"route", func(q *job.Request) { q.Route = uuid.Nil }, fault.Invalid},
		{"route", func(q *job.Request) { q.Route = uuid.New() }, fault.NotFound},
		{"parent", func(q *job.Request) { q.Parent = uuid.New() }, fault.Invalid},
		{"parent", func(q *job.Request) {
			q.Operation, q.Route, q.Parent = pb.JobOperation_JOB_OPERATION_EVICT, uuid.Nil, uuid.New()
		}, fault.NotFound},
		{"requested", func(q *job.Request) { q.Requested = &pb.IndexSet{} }, fault.Invalid},
		{"requested", func(q *job.Request) { q.Requested = &pb.IndexSet{Ranges: []*pb.IndexRange{{First: 2, Last: 1}}} }, fault.Invalid},
		{"destination.relative_dir", func(q *job.Request) { q.Destination = &pb.Destination{RelativeDir: "../x"} }, fault.Invalid},
		{"policies.sparse_policy", func(q *job.Request) { q.Policies = &pb.JobPolicies{SparsePolicy: 99} }, fault.Invalid},
		{"policies.stage_methods", func(q *job.Request) {
			q.Policies = &pb.JobPolicies{StageMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME}}
		}, fault.Invalid},
		{"evict_after", func(q *job.Request) {
			q.Operation, q.Route, q.Target, q.EvictAfter = pb.JobOperation_JOB_OPERATION_ADOPT, uuid.Nil, q.Source, true
		}, fault.Invalid},
		{"max_verify_age", func(q *job.Request) { q.MaxVerifyAge = 25 * time.Hour }, fault.Invalid},
	} {
		req := r.transfer()
		test.edit(&req)
		if _, err := r.pre.PreviewFiles(ctx, req, nil, ""); !fault.Is(err, test.code) || !strings.HasPrefix(err.Error(), test.field+":") {
			t.Errorf("%s: %v", test.field, err)
		}
	}
	if _, err := r.pre.PreviewFiles(ctx, r.transfer(), []string{"["}, ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("a bad pattern: %v", err)
	}
	if n := r.count(`SELECT count(*) FROM archive_previews`); n != 0 {
		t.Errorf("refused requests left %d previews", n)
	}
}

func TestInterruptedPreviewFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.s.stop() // the source is connected and says nothing
	id, err := r.pre.PreviewFiles(ctx, r.transfer(), nil, "alice")
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.n.stop()
	r.db = storetest.Reopen(t, r.db, r.clocked)
	r.start()
	v, err := r.pre.Wait(ctx, id)
	if err != nil || v.State != preflight.Failed || !strings.Contains(v.Error.GetMessage(), "restarted before the preview was finished; make it again") {
		t.Errorf("%+v, %v", v, err)
	}
}

// check runs the preflight of a job that was started from the preview.
func (r *rig) check(v preflight.Preview) job.Outcome {
	r.t.Helper()
	var req job.Request
	if err := json.Unmarshal([]byte(v.Request), &req); err != nil {
		r.t.Fatal(err)
	}
	o, err := r.pre.Check(ctx, job.Check{JobNo: 1, PreviewNo: v.No, PreviewID: v.ID, Request: req})
	if err != nil {
		r.t.Fatal(err)
	}
	return o
}

func TestCheckBeforeAssignment(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		edit func(r *rig)
		code pb.ErrorCode
		wait pb.WaitReason
	}{
		{"nothing changed", func(*rig) {}, 0, 0},
		{"the source's content changed", func(r *rig) { r.s.change("r1", func(h *held) { h.tree.Files[0].DiskBytes = 99 }) },
			pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, 0},
		{"the content appeared at the target", func(r *rig) {
			have := tree("Show", 3)
			have.Files[2].CompletedBytes = 1
			r.n.put("n1", "archive", "tv", have)
		}, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, 0},
		{"a daemon is offline", func(r *rig) { r.exec(`UPDATE daemons SET online = 0 WHERE name = 'nas'`) },
			pb.ErrorCode_ERROR_CODE_UNAVAILABLE, pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE},
		{"the route is not ready", func(r *rig) { r.route.set("x") }, pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY, pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY},
		{"no room", func(r *rig) {
			r.n.mu.Lock()
			defer r.n.mu.Unlock()
			full := proto.CloneOf(r.n.roots[1])
			full.FreeBytes = 0
			r.n.roots = []*pb.StorageEntry{r.n.roots[0], full}
		}, pb.ErrorCode_ERROR_CODE_NO_SPACE, pb.WaitReason_WAIT_REASON_NO_SPACE},
		{"the backend is away", func(r *rig) {
			r.s.before = func(*pb.InventoryQuery) *pb.ErrorDetail {
				return &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE, Retryable: true}
			}
		}, pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE, pb.WaitReason_WAIT_REASON_BACKEND_UNAVAILABLE},
		{"the target is full", func(r *rig) {
			limits, _ := proto.Marshal(&pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxActiveCursors: 1})
			r.exec(`UPDATE daemons SET limits = ? WHERE name = 'nas'`, limits)
			r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, created_at) VALUES (2, ?, 1, '', '{}', 30, 0)`, uuid.New())
			r.exec(`INSERT INTO archive_participants (job_no, daemon_no, role) VALUES (2, ?, 2)`, r.n.link.Daemon.No)
		}, pb.ErrorCode_ERROR_CODE_BUSY, pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED},
		{"its own place does not count", func(r *rig) {
			limits, _ := proto.Marshal(&pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxActiveCursors: 1})
			r.exec(`UPDATE daemons SET limits = ? WHERE name = 'nas'`, limits)
			r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, created_at) VALUES (1, ?, 1, '', '{}', 11, 0)`, uuid.New())
			r.exec(`INSERT INTO archive_participants (job_no, daemon_no, role) VALUES (1, ?, 2)`, r.n.link.Daemon.No)
			r.exec(`INSERT INTO archive_reservations (job_no, daemon_no, kind, name) VALUES (1, ?, 'infohash_v1', ?)`, r.n.link.Daemon.No, fmt.Sprintf("%040x", "Show"))
		}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			v := r.passed(r.transfer(), "e0.mkv", "e1.mkv")
			test.edit(r)
			o := r.check(v)
			if o.Error.GetCode() != test.code || o.Wait != test.wait || (o.Definition != nil) != (test.code == 0) {
				t.Fatalf("%+v", o)
			}
			if o.Definition != nil && !proto.Equal(o.Definition, v.Draft) {
				t.Errorf("got  %v\nwant %v", o.Definition, v.Draft)
			}
		})
	}
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.n.put("n1", "archive", "films", tree("Film", 2))
	v := r.passed(job.Request{Operation: pb.JobOperation_JOB_OPERATION_ADOPT, Source: r.n.link.Daemon.ID, Target: r.n.link.Daemon.ID, ResourceID: "n1"})
	if d := v.Draft.GetDestination(); d.GetContentRootId() != "archive" || d.GetRelativeDir() != "films" || v.Summary.Transfer != 0 {
		t.Errorf("%v, %+v", d, v.Summary)
	}
	if len(r.s.asked) != 0 {
		t.Errorf("the other daemon was asked for %v", r.s.asked)
	}
}

func TestEvictionRestsOnACommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.n.put("n1", "archive", "tv", tree("Show", 3))
	parent := uuid.New()
	def, _ := proto.Marshal(&pb.JobDefinition{Requested: archive.Span(0, 3).Message()})
	commit := &pb.CommitEvidence{CommitId: uuid.NewString(), ClientId: r.n.link.Daemon.ID.String(), Resource: r.n.held["n1"].tree.Resource,
		ContentRevision: r.n.held["n1"].tree.ContentRevision}
	evidence, _ := proto.Marshal(&pb.StepEvidence{Evidence: &pb.StepEvidence_Commit{Commit: commit}})
	r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, definition, created_at) VALUES (7, ?, 1, '', '{}', 30, ?, 0)`, parent, def)
	r.exec(`INSERT INTO daemon_commands (command_no, id, daemon_no, kind, payload, payload_sha256, allowance, state, issued_at)
		VALUES (700, ?, ?, 17, x'', '', 3, 'closed', 0)`, uuid.New(), r.n.link.Daemon.No)
	r.exec(`INSERT INTO archive_evidence (job_no, step, command_no, sha256, evidence, stored_at) VALUES (7, 50, 700, '', ?, 0)`, evidence)
	req := job.Request{Operation: pb.JobOperation_JOB_OPERATION_EVICT, Source: r.s.link.Daemon.ID, Target: r.n.link.Daemon.ID, ResourceID: "r1", Parent: parent}
	if _, err := r.pre.PreviewFiles(ctx, req, nil, ""); !fault.Is(err, fault.NotFound) {
		t.Fatalf("a job that is not completed: %v", err)
	}
	r.exec(`UPDATE archive_jobs SET state = 90`)
	v := r.passed(req)
	if !proto.Equal(v.Draft.GetEviction().GetTargetCommit(), commit) || v.Draft.GetParentJobId() != parent.String() ||
		v.Draft.GetEviction().GetMaxVerifyAge().AsDuration() != 24*time.Hour {
		t.Errorf("%v", v.Draft.GetEviction())
	}
	// The eviction that follows a move has no preview.
	o, err := r.pre.Check(ctx, job.Check{JobNo: 8, Request: req, Parent: &pb.JobDefinition{Requested: archive.Span(0, 3).Message()}, Commit: commit})
	if err != nil || !proto.Equal(o.Definition, v.Draft) {
		t.Errorf("%+v, %v", o, err)
	}
	// The keeper loses a file.
	r.n.change("n1", func(h *held) { h.tree.Files[1].CompletedBytes = 0 })
	if v := r.preview(req); v.Error.GetCode() != pb.ErrorCode_ERROR_CODE_UNSAFE_STATE || !strings.Contains(v.Error.GetMessage(), "e1.mkv") {
		t.Errorf("%v", v.Error)
	}
}

func TestRoomIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	def := r.passed(r.transfer()).Draft
	free := func(d *daemon, n int, bytes uint64) {
		d.mu.Lock()
		defer d.mu.Unlock()
		e := proto.CloneOf(d.roots[n])
		e.FreeBytes = bytes
		d.roots = slices.Clone(d.roots)
		d.roots[n] = e
	}
	keep := uint64(1 << 30)
	for _, test := range []struct {
		step pb.JobStep
		d    *daemon
		root int
		free uint64
		need uint64
		want bool
	}{
		{pb.JobStep_JOB_STEP_STAGE, r.s, 1, 500, 500, true},
		{pb.JobStep_JOB_STEP_STAGE, r.s, 1, 499, 500, false},
		{pb.JobStep_JOB_STEP_TRANSFER, r.n, 1, keep + 500, 500, true},
		{pb.JobStep_JOB_STEP_TRANSFER, r.n, 1, keep + 499, 500, false},
		{pb.JobStep_JOB_STEP_TRANSFER, r.n, 1, keep - 1, 0, false},
		{pb.JobStep_JOB_STEP_TRANSFER, r.n, 1, keep + 1, 0, true},
		{pb.JobStep_JOB_STEP_TRANSFER, r.n, 1, keep, 0, false},
		{pb.JobStep_JOB_STEP_MATERIALIZE, r.n, 0, keep + 499, 500, false},
		{pb.JobStep_JOB_STEP_MATERIALIZE, r.n, 0, keep + 500, 500, true},
	} {
		free(test.d, test.root, test.free)
		got, err := r.pre.Room(ctx, job.RoomRequest{Daemon: test.d.link.Daemon.ID, Step: test.step, Definition: def, Need: test.need})
		if err != nil || got != test.want {
			t.Errorf("%s with %d free for %d: %v, %v", test.step, test.free, test.need, got, err)
		}
	}
	r.exec(`UPDATE daemons SET online = 0`)
	if _, err := r.pre.Room(ctx, job.RoomRequest{Daemon: r.n.link.Daemon.ID, Step: pb.JobStep_JOB_STEP_MATERIALIZE, Definition: def}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an offline daemon: %v", err)
	}
}

func TestOldPreviewsArePruned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := r.passed(r.transfer())
	used := r.passed(r.transfer())
	r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, created_at) VALUES (1, ?, 1, '', '{}', 90, 0)`, uuid.New())
	r.exec(`UPDATE archive_previews SET job_no = 1 WHERE preview_no = ?`, used.No)
	r.clock.Advance(31 * 24 * time.Hour)
	if n, err := r.pre.Prune(ctx); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := r.pre.Show(ctx, v.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if n := r.count(`SELECT count(DISTINCT preview_no) FROM archive_preview_files`); n != 1 {
		t.Errorf("plans of %d previews are kept", n)
	}
}
