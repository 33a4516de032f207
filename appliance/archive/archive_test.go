package archive_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

const (
	transfer = pb.JobOperation_JOB_OPERATION_TRANSFER
	adopt    = pb.JobOperation_JOB_OPERATION_ADOPT
	evict    = pb.JobOperation_JOB_OPERATION_EVICT
	source   = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	target   = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
	nobody   = pb.ParticipantRole_PARTICIPANT_ROLE_UNSPECIFIED
	shared   = pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY
	rsync    = pb.RouteKind_ROUTE_KIND_RSYNC_SSH
)

// TestPlans holds the plans to the table of 3.1.
func TestPlans(t *testing.T) {
	t.Parallel()
	for op, want := range map[pb.JobOperation][]struct {
		step   pb.JobStep
		weight uint32
		by     pb.ParticipantRole
	}{
		transfer: {{pb.JobStep_JOB_STEP_STAGE, 100, source}, {pb.JobStep_JOB_STEP_TRANSFER, 500, target}, {pb.JobStep_JOB_STEP_MATERIALIZE, 100, target},
			{pb.JobStep_JOB_STEP_VERIFY, 250, target}, {pb.JobStep_JOB_STEP_COMMIT, 50, target}},
		adopt: {{pb.JobStep_JOB_STEP_MATERIALIZE, 150, target}, {pb.JobStep_JOB_STEP_VERIFY, 800, target}, {pb.JobStep_JOB_STEP_COMMIT, 50, target}},
		evict: {{pb.JobStep_JOB_STEP_VERIFY, 600, target}, {pb.JobStep_JOB_STEP_RELEASE, 300, source}, {pb.JobStep_JOB_STEP_PURGE, 100, source}},
	} {
		plan := archive.Plan(op)
		if len(plan) != len(want) {
			t.Fatalf("%s has %d steps", op, len(plan))
		}
		var sum uint32
		for i, p := range plan {
			sum += p.Weight
			if p.Step != want[i].step || p.Weight != want[i].weight || archive.Executor(p.Step, shared) != want[i].by {
				t.Errorf("%s step %d: %+v by %s, want %+v", op, i, p, archive.Executor(p.Step, shared), want[i])
			}
			if at, ok := archive.Position(op, p.Step); !ok || at != i || archive.StepAt(op, i) != p.Step {
				t.Errorf("%s: the position of %s is %d", op, p.Step, at)
			}
		}
		if sum != archive.CompleteWeight {
			t.Errorf("the weights of %s make %d", op, sum)
		}
		if archive.StepAt(op, len(plan)) != 0 || archive.StepAt(op, -1) != 0 {
			t.Errorf("%s has a step outside its plan", op)
		}
	}
	if archive.Plan(0) != nil || archive.Roles(0) != nil || archive.Executor(0, shared) != nobody {
		t.Error("an unknown operation has a plan")
	}
	if _, ok := archive.Position(adopt, pb.JobStep_JOB_STEP_STAGE); ok {
		t.Error("ADOPT has no STAGE")
	}
	if archive.Executor(pb.JobStep_JOB_STEP_TRANSFER, rsync) != source || archive.Executor(pb.JobStep_JOB_STEP_TRANSFER, pb.RouteKind_ROUTE_KIND_SYNCTHING) != target ||
		archive.Executor(pb.JobStep_JOB_STEP_TRANSFER, 0) != nobody {
		t.Error("the carrier does not follow the route's kind")
	}
	if len(archive.Roles(adopt)) != 1 || len(archive.Roles(transfer)) != 2 || len(archive.Roles(evict)) != 2 {
		t.Error("participants")
	}
}

// TestEveryValueOfTheSchemaIsHandled breaks when an enum gets a value that the rules do not know.
func TestEveryValueOfTheSchemaIsHandled(t *testing.T) {
	t.Parallel()
	for n := range pb.JobOperation_name {
		if op := pb.JobOperation(n); n != 0 && (archive.Plan(op) == nil || archive.Roles(op) == nil) {
			t.Errorf("%s has no plan", op)
		}
	}
	for n := range pb.JobStep_name {
		if s := pb.JobStep(n); n != 0 && archive.Executor(s, shared) == nobody {
			t.Errorf("%s has no executor", s)
		}
	}
	for n := range pb.RouteKind_name {
		if k := pb.RouteKind(n); n != 0 && (archive.Carrier(k) == nobody || archive.RouteCapability(k) == "") {
			t.Errorf("%s has no carrier or capability", k)
		}
	}
	fields := (&pb.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("operation").Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		c := &pb.Command{}
		c.ProtoReflect().Set(f, c.ProtoReflect().NewField(f))
		if k := archive.KindOf(c); k != archive.CommandKind(f.Number()) || k.String() != string(f.Name()) {
			t.Errorf("%s is %d, %q", f.Name(), k, k)
		}
	}
	if archive.KindOf(&pb.Command{}) != 0 || archive.CommandKind(0).String() != "unknown" {
		t.Error("a command without an operation")
	}
	retryable := map[pb.ErrorCode]pb.WaitReason{
		pb.ErrorCode_ERROR_CODE_BUSY: pb.WaitReason_WAIT_REASON_RETRY_BACKOFF, pb.ErrorCode_ERROR_CODE_UNAVAILABLE: pb.WaitReason_WAIT_REASON_RETRY_BACKOFF,
		pb.ErrorCode_ERROR_CODE_TIMEOUT: pb.WaitReason_WAIT_REASON_RETRY_BACKOFF, pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE: pb.WaitReason_WAIT_REASON_BACKEND_UNAVAILABLE,
		pb.ErrorCode_ERROR_CODE_TRANSFER_INTERRUPTED: pb.WaitReason_WAIT_REASON_RETRY_BACKOFF, pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY: pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY,
		pb.ErrorCode_ERROR_CODE_NO_SPACE: pb.WaitReason_WAIT_REASON_NO_SPACE}
	for n := range pb.ErrorCode_name {
		code := pb.ErrorCode(n)
		if want, ok := retryable[code]; archive.Retryable(code) != ok || archive.WaitFor(code) != want {
			t.Errorf("%s: retryable %v, wait %s", code, archive.Retryable(code), archive.WaitFor(code))
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		op        pb.JobOperation
		completed int
		fraction  float64
		permille  uint32
	}{
		{transfer, 0, 0, 0}, {transfer, 0, 0.5, 50}, {transfer, 1, 0, 100}, {transfer, 1, 0.999, 599}, {transfer, 4, 1, 1000}, {transfer, 5, 0.5, 1000},
		{adopt, 1, 0.25, 350}, {evict, 2, 2, 1000}, {evict, 1, -1, 600}, {evict, 1, math.NaN(), 600}, {transfer, 0, math.Inf(1), 100}, {0, 0, 1, 0},
	} {
		if got := archive.OverallPermille(row.op, row.completed, row.fraction); got != row.permille {
			t.Errorf("%s, %d completed, %v: %d ‰, want %d", row.op, row.completed, row.fraction, got, row.permille)
		}
		if got := archive.Overall(row.op, row.completed, row.fraction); math.Abs(got*1000-float64(row.permille)) >= 1 || got < 0 || got > 1 {
			t.Errorf("%s, %d completed, %v: %v", row.op, row.completed, row.fraction, got)
		}
	}
	before := &pb.Progress{FilesDone: 1, Bytes: &pb.ByteCounters{LogicalDone: 5, AllocatedDone: 4}}
	same := proto.CloneOf(before)
	same.BytesPerSecond, same.FractionComplete = 9, 0.5
	if archive.Moved(before, same) || archive.Moved(nil, nil) {
		t.Error("no counter moved")
	}
	for name, f := range map[string]func(*pb.Progress){"files": func(p *pb.Progress) { p.FilesDone++ }, "logical": func(p *pb.Progress) { p.Bytes.LogicalDone++ },
		"allocated": func(p *pb.Progress) { p.Bytes.AllocatedDone++ }} {
		after := proto.CloneOf(before)
		f(after)
		if !archive.Moved(before, after) {
			t.Errorf("%s moved", name)
		}
	}
}

func TestIdentities(t *testing.T) {
	t.Parallel()
	id := func(v1, v2, tree string) *pb.ResourceIdentity {
		return &pb.ResourceIdentity{InfohashV1: v1, InfohashV2: v2, TreeFingerprint: tree, DisplayName: "a name is no identity"}
	}
	for _, row := range []struct {
		a, b            *pb.ResourceIdentity
		match, conflict bool
	}{
		{id("1", "", ""), id("1", "", ""), true, false},
		{id("1", "2", ""), id("1", "", "3"), true, false},
		{id("1", "2", ""), id("1", "9", ""), true, true},
		{id("1", "", ""), id("9", "", ""), false, false},
		{id("1", "2", "3"), id("9", "8", "7"), false, false},
		{id("1", "2", "3"), id("9", "8", "3"), true, true},
		{id("", "", ""), id("", "", ""), false, false},
		{id("1", "", ""), id("", "2", ""), false, false},
		{nil, id("1", "", ""), false, false},
	} {
		for range 2 {
			if archive.IdentityMatch(row.a, row.b) != row.match || archive.IdentityConflict(row.a, row.b) != row.conflict {
				t.Errorf("%v and %v: want match %v, conflict %v", row.a, row.b, row.match, row.conflict)
			}
			row.a, row.b = row.b, row.a
		}
	}
	if archive.Identified(id("", "", "")) || !archive.Identified(id("", "", "3")) {
		t.Error("an identity needs one of the three")
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := archive.Backoff{Initial: archive.ReconnectInitial, Cap: archive.ReconnectCap}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}
	for n, d := range want {
		d *= time.Second
		if got := b.Delay(n, 1); got != d {
			t.Errorf("delay %d is %s, want %s", n, got, d)
		}
		if got := b.Delay(n, 0); got != d/2 {
			t.Errorf("the shortest delay %d is %s, want %s", n, got, d/2)
		}
	}
	if got := b.Delay(math.MaxInt32, 0.5); got != 45*time.Second {
		t.Errorf("after very many: %s", got)
	}
	if got := (archive.Backoff{Initial: time.Hour, Cap: time.Minute}).Delay(0, 1); got != time.Minute {
		t.Errorf("above the cap: %s", got)
	}
	huge := archive.Backoff{Initial: math.MaxInt64/2 + 1, Cap: math.MaxInt64}
	if got := huge.Delay(5, 0); got <= 0 {
		t.Errorf("overflow: %s", got)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	all := archive.Capabilities()
	if len(slices.Compact(slices.Sorted(slices.Values(all)))) != len(all) {
		t.Error("a capability is listed twice")
	}
	link := archive.Link{Capabilities: []string{archive.CapSparse}}
	if !link.Has(archive.CapSparse) || link.Has(archive.CapReflink) {
		t.Error("the capabilities of a link")
	}
}

// TestDigests: the attempt is no part of a command's payload, everything else is, and a digest does not depend on unknown
// fields.
func TestDigests(t *testing.T) {
	t.Parallel()
	c := &pb.Command{CommandId: "a", Attempt: 1}
	d := archive.PayloadDigest(c)
	c.Attempt = 3
	if archive.PayloadDigest(c) != d || c.Attempt != 3 {
		t.Error("the attempt counts")
	}
	c.CommandId = "b"
	if archive.PayloadDigest(c) == d {
		t.Error("the id does not count")
	}
	def := &pb.JobDefinition{JobId: "a", Operation: transfer}
	d = archive.DefinitionDigest(def)
	if len(d) != 64 {
		t.Errorf("digest %q", d)
	}
	def.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 1}) // field 1023
	if archive.DefinitionDigest(def) != d {
		t.Error("an unknown field counts")
	}
	e := &pb.StepEvidence{Evidence: &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{Methods: map[string]uint32{"b": 2, "a": 1, "c": 3}}}}
	for range 20 {
		if archive.EvidenceDigest(e) != archive.EvidenceDigest(proto.CloneOf(e)) {
			t.Fatal("a map makes the digest vary")
		}
	}
}

func TestDefaultPolicies(t *testing.T) {
	t.Parallel()
	p := archive.DefaultPolicies()
	fields := p.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if !p.ProtoReflect().Has(fields.Get(i)) {
			t.Errorf("%s has no default", fields.Get(i).Name())
		}
	}
	p.StageMethods[0] = 0
	if archive.DefaultPolicies().StageMethods[0] == 0 {
		t.Error("the defaults are shared")
	}
}

// TestIndexSets compares the operations with those of sets of single indices.
func TestIndexSets(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	random := func() (archive.IndexSet, map[uint32]bool) {
		in := map[uint32]bool{}
		var list []uint32
		for range rng.IntN(30) {
			i := uint32(rng.IntN(40)) //nolint:gosec // small
			if rng.IntN(8) == 0 {
				i = math.MaxUint32 - uint32(rng.IntN(3)) //nolint:gosec // small
			}
			in[i], list = true, append(list, i)
		}
		return archive.Indices(list...), in
	}
	check := func(s archive.IndexSet, want func(uint32) bool) {
		t.Helper()
		var n uint64
		last := int64(-1)
		for i := range s.All() {
			if n++; int64(i) <= last || !want(i) {
				t.Fatalf("%v has %d", s.Message(), i)
			}
			last = int64(i)
		}
		for _, base := range []uint32{0, math.MaxUint32 - 41} {
			for i := base; i-base < 42; i++ {
				if s.Contains(i) != want(i) {
					t.Fatalf("%v: Contains(%d) is %v", s.Message(), i, s.Contains(i))
				}
				if i == math.MaxUint32 {
					break
				}
			}
		}
		if s.Count() != n || s.Empty() != (n == 0) {
			t.Fatalf("%v: count %d, want %d", s.Message(), s.Count(), n)
		}
		if top, ok := s.Max(); ok != (n > 0) || ok && int64(top) != last {
			t.Fatalf("%v: max %d", s.Message(), top)
		}
		back, err := archive.ReadIndexSet("set", s.Message())
		if err != nil || !back.Equal(s) {
			t.Fatalf("%v does not come back: %v", s.Message(), err)
		}
	}
	for range 3000 {
		a, inA := random()
		b, inB := random()
		check(a, func(i uint32) bool { return inA[i] })
		check(a.Union(b), func(i uint32) bool { return inA[i] || inB[i] })
		check(a.Minus(b), func(i uint32) bool { return inA[i] && !inB[i] })
	}
	if s := archive.Span(0, 0); !s.Empty() {
		t.Error("an empty span")
	}
	if s := archive.Span(math.MaxUint32, 5); s.Count() != 1 {
		t.Error("a span stops at the highest index")
	}
	if s := archive.Span(0, math.MaxUint32); s.Count() != math.MaxUint32 || s.Contains(math.MaxUint32) {
		t.Error("a long span")
	}
}

func TestReadIndexSetRefuses(t *testing.T) {
	t.Parallel()
	ranges := func(list ...uint32) *pb.IndexSet {
		m := &pb.IndexSet{}
		for i := 0; i < len(list); i += 2 {
			m.Ranges = append(m.Ranges, &pb.IndexRange{First: list[i], Last: list[i+1]})
		}
		return m
	}
	for name, m := range map[string]*pb.IndexSet{"backwards": ranges(3, 2), "overlap": ranges(1, 4, 4, 5), "unsorted": ranges(7, 8, 1, 2), "twice": ranges(1, 1, 1, 1)} {
		if _, err := archive.ReadIndexSet("requested", m); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := archive.ReadIndexSet("requested", ranges(1, 2, 3, 4, 6, 6))
	if err != nil || len(s.Message().GetRanges()) != 2 || s.Count() != 5 {
		t.Errorf("touching ranges are joined: %v, %v", s.Message(), err)
	}
	if s, err := archive.ReadIndexSet("requested", nil); err != nil || !s.Empty() {
		t.Errorf("no set is the empty one: %v", err)
	}
}
