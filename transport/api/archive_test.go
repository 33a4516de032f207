package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/preflight"
	"signalbox/appliance/archive/registry"
	ways "signalbox/appliance/archive/route"
	"signalbox/appliance/fault"
)

// archiveDouble stands for the services of the archive plane where only what the routes make of requests is looked at. The
// scripts of the command line run the same routes against the real ones.
type archiveDouble struct {
	daemons   []registry.Daemon
	resources []inventory.Resource
	jobs      []job.Listed
	views     []ways.View
	asked     job.Request
	patterns  []string
	preview   preflight.Preview
	err       error
	said      []any
}

func (d *archiveDouble) services() Archive {
	return Archive{Daemons: doubleDaemons{d: d}, Inventory: doubleInventory{d: d}, Routes: doubleRoutes{d: d}, Jobs: doubleJobs{d: d}, Previews: doublePreviews{d: d}}
}

type doubleDaemons struct {
	ArchiveDaemons
	d *archiveDouble
}

func (d doubleDaemons) Daemons(context.Context) ([]registry.Daemon, error) { return d.d.daemons, nil }

func (d doubleDaemons) Daemon(_ context.Context, id uuid.UUID) (registry.Daemon, error) {
	for _, one := range d.d.daemons {
		if one.ID == id {
			return one, nil
		}
	}
	return registry.Daemon{}, fault.New(fault.NotFound, "no daemon %s", id)
}

type doubleInventory struct {
	ArchiveInventory
	d *archiveDouble
}

func (d doubleInventory) Resources(_ context.Context, f inventory.Filter, token string, _ int) (inventory.Page, error) {
	d.d.said = append(d.d.said, f.DaemonNo)
	if token == "" && len(d.d.resources) > 1 { // two pages
		return inventory.Page{Resources: d.d.resources[:1], Next: "more"}, nil
	}
	return inventory.Page{Resources: d.d.resources[min(1, len(d.d.resources)-1):]}, nil
}

type doublePreviews struct {
	ArchivePreviews
	d *archiveDouble
}

func (d doublePreviews) PreviewFiles(_ context.Context, req job.Request, patterns []string, _ string) (uuid.UUID, error) {
	d.d.asked, d.d.patterns = req, patterns
	return d.d.preview.ID, d.d.err
}

func (d doublePreviews) Show(context.Context, uuid.UUID) (preflight.Preview, error) {
	return d.d.preview, nil
}

func (d doublePreviews) Wait(ctx context.Context, _ uuid.UUID) (preflight.Preview, error) {
	<-ctx.Done()
	return d.d.preview, context.Cause(ctx)
}

type doubleJobs struct {
	ArchiveJobs
	d *archiveDouble
}

func (d doubleJobs) List(_ context.Context, f job.Filter, cursor string, _ int) (job.Page, error) {
	d.d.said = append(d.d.said, f)
	if cursor == "" && len(d.d.jobs) > 1 {
		return job.Page{Jobs: d.d.jobs[:1], Next: "1"}, nil
	}
	return job.Page{Jobs: d.d.jobs[min(1, len(d.d.jobs)):]}, nil
}

func (d doubleJobs) Show(context.Context, uuid.UUID) (job.Detail, error) { return job.Detail{}, nil }

func (d doubleJobs) Cancel(_ context.Context, _ uuid.UUID, reason string, by job.By) error {
	d.d.said = append(d.d.said, "cancel", reason, by.SourceIP)
	return d.d.err
}

func (d doubleJobs) Retry(_ context.Context, _ uuid.UUID, attempts int, _ job.By) error {
	d.d.said = append(d.d.said, "retry", attempts)
	return d.d.err
}

func (d doubleJobs) Resolve(_ context.Context, _ uuid.UUID, what job.Decision, reason string, _ job.By) error {
	d.d.said = append(d.d.said, what, reason)
	return d.d.err
}

type doubleRoutes struct {
	ArchiveRoutes
	d *archiveDouble
}

func (d doubleRoutes) List(context.Context, bool) ([]ways.View, error) { return d.d.views, nil }

func (d doubleRoutes) Show(context.Context, string) (ways.View, []ways.Update, error) {
	v := d.d.views[0]
	if len(d.d.views) > 1 { // each look sees the next
		d.d.views = d.d.views[1:]
	}
	return v, nil, nil
}

func archiveRig(t *testing.T) (*rig, *archiveDouble) {
	g, d := newRig(t), &archiveDouble{}
	g.api.Archive = d.services()
	return g, d
}

func TestArchiveTurnedOff(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for _, path := range []string{"/daemons", "/routes", "/jobs", "/alerts", "/jobs/" + uuid.NewString() + "/stream"} {
		if a := g.do(g.admin, "GET", path, ""); a.status != http.StatusNotFound || !strings.Contains(a.body, "archive.enabled") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

func TestParseIndices(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"0": "[0,0]", "0-3,7": "[0,3][7,7]", "1, 2,3-4": "[1,4]", "2147483647": "[2147483647,2147483647]"} {
		set, err := parseIndices(text)
		var got strings.Builder
		for _, r := range set.GetRanges() {
			b, _ := json.Marshal([]uint32{r.First, r.Last})
			got.Write(b)
		}
		if err != nil || got.String() != want {
			t.Errorf("%q: %s %v, want %s", text, got.String(), err, want)
		}
	}
	for _, text := range []string{"", "-", "a", "3-1", "1,1", "2,1", "0-", "-3", "4294967296", "0,,1"} {
		if set, err := parseIndices(text); err == nil {
			t.Errorf("%q is taken for %v", text, set)
		}
	}
}

func TestPreviewRequest(t *testing.T) {
	t.Parallel()
	g, d := archiveRig(t)
	d.preview = preflight.Preview{ID: uuid.New(), State: preflight.Running, Operation: pb.JobOperation_JOB_OPERATION_TRANSFER}
	source, target, route := uuid.New(), uuid.New(), uuid.New()
	body := `{"operation":"transfer","source":{"daemon":"` + source.String() + `","resource":"r-1"},"target":{"daemon":"` + target.String() + `"},"route":"` +
		route.String() + `","files":["*.iso"],"destination":{"root":"content","dir":"linux","labels":["a"],"preserve_layout":true},"evict_after":true,"accept_drop":true,
		"policies":{"verify_level":"strict","sparse":"require","partfile":"drop","conflict":"fail","stage_methods":["copy_sparse","hardlink"],"quiesce":"always",
		"activation":"leave_stopped","keep_free_bytes":5,"trash_retention_seconds":0,"cleanup":"keep_all"}}`
	var shown previewPublic
	g.ok(http.StatusAccepted, "POST", "/job-previews", body, &shown)
	if shown.ID != d.preview.ID.String() || shown.State != "running" || shown.Operation != "transfer" {
		t.Errorf("answer %+v", shown)
	}
	r := d.asked
	if r.Operation != pb.JobOperation_JOB_OPERATION_TRANSFER || r.Source != source || r.Target != target || r.Route != route || r.ResourceID != "r-1" ||
		!r.EvictAfter || !r.AcceptDrop || len(d.patterns) != 1 || r.Requested != nil {
		t.Errorf("request %+v, patterns %q", r, d.patterns)
	}
	if want := (&pb.Destination{ContentRootId: "content", RelativeDir: "linux", Labels: []string{"a"}, PreserveLayout: true}); !proto.Equal(r.Destination, want) {
		t.Errorf("destination %v", r.Destination)
	}
	p := r.Policies
	if p.GetVerifyLevel() != pb.VerifyLevel_VERIFY_LEVEL_STRICT || p.GetSparsePolicy() != pb.SparsePolicy_SPARSE_POLICY_REQUIRE || p.GetKeepFreeBytes() != 5 ||
		p.GetPartfileMode() != pb.PartfileMode_PARTFILE_MODE_DROP || p.GetConflictPolicy() != pb.ConflictPolicy_CONFLICT_POLICY_FAIL ||
		len(p.GetStageMethods()) != 2 || p.GetStageMethods()[0] != pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE || p.GetTrashRetention() == nil ||
		p.GetQuiesce() != pb.QuiescePolicy_QUIESCE_POLICY_ALWAYS || p.GetActivation() != pb.ActivationPolicy_ACTIVATION_POLICY_LEAVE_STOPPED ||
		p.GetCleanup() != pb.CleanupPolicy_CLEANUP_POLICY_KEEP_ALL {
		t.Errorf("policies %v", p)
	}
	g.ok(http.StatusAccepted, "POST", "/job-previews", `{"operation":"adopt","source":{"daemon":"`+source.String()+`","resource":"r"},"indices":"0-3",
		"destination":{"root":"content"}}`, nil)
	if d.asked.Target != source || len(d.asked.Requested.GetRanges()) != 1 || d.asked.Policies != nil {
		t.Errorf("adoption %+v", d.asked)
	}
	for body, field := range map[string]string{
		`{}`:                   "operation",
		`{"operation":"copy"}`: "operation",
		`{"operation":"evict","source":{"daemon":"x","resource":"r"}}`:         "source.daemon",
		`{"operation":"evict","source":{}}`:                                    "source.resource",
		`{"operation":"evict","source":[]}`:                                    "source",
		`{"operation":"evict","frob":1}`:                                       "frob",
		`{"operation":"evict","policies":{"frob":1}}`:                          "policies.frob",
		`{"operation":"evict","policies":{"sparse":"none"}}`:                   "policies.sparse",
		`{"operation":"evict","policies":{"stage_methods":["magic"]}}`:         "policies.stage_methods",
		`{"operation":"evict","policies":{"keep_free_bytes":0}}`:               "policies.keep_free_bytes",
		`{"operation":"evict","policies":{"trash_retention_seconds":7776001}}`: "policies.trash_retention_seconds",
		`{"operation":"evict","indices":"1,0"}`:                                "indices",
		`{"operation":"evict","indices":"1","files":["x"]}`:                    "indices",
		`{"operation":"evict","destination":{"dir":"x"}}`:                      "destination.root",
		`{"operation":"evict","max_verify_age_seconds":0}`:                     "max_verify_age_seconds",
	} {
		d.asked = job.Request{}
		if a := g.do(g.admin, "POST", "/job-previews", body); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s, want field %s", body, a.status, a.body, field)
		}
		if d.asked.Operation != 0 {
			t.Errorf("%s began a preview", body)
		}
	}
	// What the preflight says of a field is said of the body's.
	d.err = fault.Field("destination.relative_dir", "must be relative")
	body = `{"operation":"evict","source":{"daemon":"` + source.String() + `","resource":"r"}}`
	if a := g.do(g.admin, "POST", "/job-previews", body); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"field":"destination.dir"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A preview that is not done when the wait is over is answered as it is.
func TestPreviewWaitEnds(t *testing.T) {
	t.Parallel()
	g, d := archiveRig(t)
	d.preview = preflight.Preview{ID: uuid.New(), State: preflight.Running}
	g.ok(http.StatusAccepted, "GET", "/job-previews/"+d.preview.ID.String()+"?wait=1", "", nil)
	d.preview.State = preflight.Failed
	d.preview.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NO_SPACE, Message: "no room", Retryable: true}
	a := g.ok(http.StatusOK, "GET", "/job-previews/"+d.preview.ID.String(), "", nil)
	if !strings.Contains(a.body, `"error":{"code":"no_space","retryable":true,"message":"no room","details":{}}`) {
		t.Error(a.body)
	}
	for _, wait := range []string{"-1", "121", "x"} {
		if a := g.do(g.admin, "GET", "/job-previews/"+d.preview.ID.String()+"?wait="+wait, ""); a.status != http.StatusUnprocessableEntity {
			t.Errorf("wait %s: %d", wait, a.status)
		}
	}
}

func TestDecisionsAboutJobs(t *testing.T) {
	t.Parallel()
	g, d := archiveRig(t)
	at := "/jobs/" + uuid.NewString()
	g.ok(http.StatusOK, "POST", at+"/cancel", "", nil)
	g.ok(http.StatusOK, "POST", at+"/cancel", `{"reason":"wrong target"}`, nil)
	g.ok(http.StatusOK, "POST", at+"/retry", "{}", nil)
	g.ok(http.StatusOK, "POST", at+"/retry", `{"attempts":3}`, nil)
	g.ok(http.StatusOK, "POST", at+"/resolve", `{"decision":"abandon","reason":" lost "}`, nil)
	want := []any{"cancel", "", "192.0.2.1", "cancel", "wrong target", "192.0.2.1", "retry", 0, "retry", 3, job.Abandon, "lost"}
	if len(d.said) != len(want) {
		t.Fatalf("%v", d.said)
	}
	for i := range want {
		if d.said[i] != want[i] {
			t.Errorf("%d: %v, want %v", i, d.said[i], want[i])
		}
	}
	for path, body := range map[string]string{"/retry": `{"attempts":0}`, "/resolve": `{"decision":"undo","reason":"x"}`, "/cancel": `{"frob":1}`} {
		if a := g.do(g.admin, "POST", at+path, body); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s %s: %d %s", path, body, a.status, a.body)
		}
	}
	if a := g.do(g.admin, "POST", at+"/resolve", ""); a.status != http.StatusUnprocessableEntity {
		t.Errorf("resolve without a body: %d %s", a.status, a.body)
	}
	if len(d.said) != len(want) {
		t.Errorf("a refused decision was carried out: %v", d.said[len(want):])
	}
	d.err = fault.New(fault.Conflict, "the job has ended")
	if a := g.do(g.admin, "POST", at+"/cancel", ""); a.status != http.StatusConflict {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestResolveArchive(t *testing.T) {
	t.Parallel()
	g, d := archiveRig(t)
	id := func(n string) uuid.UUID { return uuid.MustParse("1111" + n + "-0000-4000-8000-000000000001") }
	d.daemons = []registry.Daemon{{No: 7, ID: id("aaaa"), Name: "nas"}, {No: 8, ID: id("bbbb"), Name: "1111"}}
	d.jobs = []job.Listed{{Job: job.Job{ID: id("aaaa"), Title: "one"}}, {Job: job.Job{ID: id("aabb"), Title: "two"}}}
	resource := func(id, name, hash string) inventory.Resource {
		return inventory.Resource{Summary: &pb.ResourceSummary{Resource: &pb.ResourceRef{ResourceId: id, Identity: &pb.ResourceIdentity{DisplayName: name, InfohashV1: hash}}}}
	}
	d.resources = []inventory.Resource{resource("tree:1", "Ubuntu 24.04", strings.Repeat("ab", 20)), resource("tree:2", "Ubuntu 24.04.1", strings.Repeat("cd", 20))}
	for query, want := range map[string]string{
		"kind=daemon&text=nas":     "nas",
		"kind=daemon&text=1111":    "1111", // the exact name wins
		"kind=daemon&text=1111-aa": "nas",
		"kind=daemon&text=na":      "",
		"kind=job&text=1111aab":    "two", // of the second page
		"kind=job&text=1111":       "one two",
		"kind=job&text=one":        "",
		"kind=resource&text=Ubuntu+24.04&daemon=" + id("aaaa").String(): "Ubuntu 24.04",
		"kind=resource&text=24.04.&daemon=" + id("aaaa").String():       "Ubuntu 24.04.1",
		"kind=resource&text=ubuntu&daemon=" + id("aaaa").String():       "Ubuntu 24.04 Ubuntu 24.04.1",
		"kind=resource&text=abab&daemon=" + id("aaaa").String():         "Ubuntu 24.04",
		"kind=resource&text=tree:2&daemon=" + id("aaaa").String():       "Ubuntu 24.04.1",
	} {
		var answer struct{ Matches []idOf }
		g.ok(http.StatusOK, "GET", "/archive/resolve?"+query, "", &answer)
		var names []string
		for _, m := range answer.Matches {
			names = append(names, m.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	for query, status := range map[string]int{"kind=daemon": 422, "text=x": 422, "kind=room&text=x": 422, "kind=resource&text=x": 422,
		"kind=job&text=x&daemon=" + id("aaaa").String(): 422, "kind=resource&text=x&daemon=" + uuid.NewString(): 404} {
		if a := g.do(g.admin, "GET", "/archive/resolve?"+query, ""); a.status != status {
			t.Errorf("%s: %d, want %d: %s", query, a.status, status, a.body)
		}
	}
}

func TestListJobsFilters(t *testing.T) {
	t.Parallel()
	g, d := archiveRig(t)
	daemon := uuid.New()
	g.ok(http.StatusOK, "GET", "/jobs?state=manual&operation=evict&daemon="+daemon.String(), "", nil)
	f := d.said[0].(job.Filter)
	if len(f.States) != 1 || f.States[0] != pb.JobState_JOB_STATE_MANUAL || f.Operation != pb.JobOperation_JOB_OPERATION_EVICT || f.Daemon != daemon || f.Open {
		t.Errorf("%+v", f)
	}
	for _, query := range []string{"state=odd", "operation=copy", "daemon=x", "open=maybe", "state=manual&open=true", "limit=0"} {
		if a := g.do(g.admin, "GET", "/jobs?"+query, ""); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
}

// What a step reported last is not shown as the progress of the next one.
func TestProgressOfTheStepBefore(t *testing.T) {
	t.Parallel()
	p := &pb.Progress{FractionComplete: 1, FilesTotal: 2, FilesDone: 2, Bytes: &pb.ByteCounters{Known: true, LogicalTotal: 10, LogicalDone: 10}}
	stored, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	j := &job.Job{Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, Position: 0, Progress: stored, Permille: 100}
	if got := showProgress(j); got.Fraction != 1 || got.BytesDone == nil || *got.BytesDone != 10 || got.OverallFraction != 0.1 || got.MovedAt != nil {
		t.Errorf("at the end of a step: %+v", got)
	}
	j.Position = 1
	if got := showProgress(j); got.Fraction != 0 || got.BytesDone != nil || got.OverallFraction != 0.1 {
		t.Errorf("before the next one has reported: %+v", got)
	}
}

// A probe is waited for while a side that is online owes an answer, and its verdict is answered at once when it comes.
func TestRouteVerdictIsWaitedFor(t *testing.T) {
	t.Parallel()
	g, d := archiveRig(t)
	ready, failed := pb.RouteState_ROUTE_STATE_READY, pb.RouteState_ROUTE_STATE_FAILED
	view := func(change func(*ways.View)) ways.View {
		v := ways.View{Route: ways.Route{No: 5, ID: uuid.New(), Message: &pb.Route{}, Source: ways.Daemon{Online: true}, Target: ways.Daemon{Online: true}},
			SourceSide: &ways.Side{Accepted: true, LastSequence: 3, FreshAfter: 2, State: ready},
			TargetSide: &ways.Side{Accepted: true, LastSequence: 3, FreshAfter: 2, State: ready}}
		change(&v)
		return v
	}
	for name, tt := range map[string]struct {
		change func(*ways.View)
		want   bool
	}{
		"ready":             {func(*ways.View) {}, false},
		"never asked":       {func(v *ways.View) { v.TargetSide = nil }, false},
		"not accepted":      {func(v *ways.View) { v.SourceSide.Accepted = false }, true},
		"refused":           {func(v *ways.View) { v.SourceSide.Accepted, v.SourceSide.Error = false, &pb.ErrorDetail{} }, false},
		"no fresh report":   {func(v *ways.View) { v.TargetSide.FreshAfter = 3 }, true},
		"still probing":     {func(v *ways.View) { v.TargetSide.State = pb.RouteState_ROUTE_STATE_PROBING }, true},
		"failed":            {func(v *ways.View) { v.TargetSide.State = failed }, false},
		"offline":           {func(v *ways.View) { v.TargetSide.FreshAfter, v.Target.Online = 3, false }, false},
		"histories at odds": {func(v *ways.View) { v.TargetSide.FreshAfter, v.Broken = 3, true }, false},
		"removed":           {func(v *ways.View) { v.TargetSide.FreshAfter, v.RemovedAt = 3, time.Unix(1, 0) }, false},
	} {
		v := view(tt.change)
		if got := probing(&v); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
	owing := view(func(v *ways.View) { v.TargetSide.FreshAfter = 3; v.Verdict.State = pb.RouteState_ROUTE_STATE_PROBING })
	d.views = []ways.View{owing, owing, view(func(v *ways.View) { v.Verdict = ways.Verdict{State: failed, Why: []string{"no probe"}} })}
	g.hub.Wake(archive.RouteKey(5)) // nobody watches yet: it counts for nothing
	answer := make(chan answer, 1)
	go func() { answer <- g.do(g.admin, "GET", "/routes/any?wait=60", "") }()
	for {
		select {
		case a := <-answer:
			if a.status != http.StatusOK || !strings.Contains(a.body, `"state":"failed"`) || !strings.Contains(a.body, `"no probe"`) {
				t.Errorf("%d %s", a.status, a.body)
			}
			return
		default:
			g.hub.Wake(archive.RouteKey(5))
		}
	}
}

func TestShowMessage(t *testing.T) {
	t.Parallel()
	m := &pb.JobPolicies{VerifyLevel: pb.VerifyLevel_VERIFY_LEVEL_STRICT, StageMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE},
		KeepFreeBytes: 1 << 60, TrashRetention: archive.DefaultPolicies().GetTrashRetention()}
	got, err := json.Marshal(showMessage(m))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"activation":"","cleanup":"","conflict_policy":"","keep_free_bytes":1152921504606846976,"materialize_methods":[],"partfile_mode":"","quiesce":"",` +
		`"sparse_policy":"","stage_methods":["copy_sparse"],"trash_retention":604800,"verify_level":"strict"}`
	if string(got) != want {
		t.Errorf("%s, want\n%s", got, want)
	}
	e := &pb.StepEvidence{Evidence: &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{JobDir: "jobs/1", Methods: map[string]uint32{"a": 2}}}}
	got, err = json.Marshal(showMessage(e))
	if err != nil || !strings.HasPrefix(string(got), `{"stage":{"content_revision":"","job_dir":"jobs/1","manifest_bytes":0,`) || !strings.Contains(string(got), `"methods":{"a":2}`) {
		t.Errorf("%s %v", got, err)
	}
	if showMessage((*pb.JobCursor)(nil)) != nil {
		t.Error("a message that is not there is shown")
	}
}
