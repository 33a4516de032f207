package valid_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/valid/validtest"
)

func TestJobDefinition(t *testing.T) {
	adopt := func(m *pb.JobDefinition) {
		m.Operation, m.TargetClientId, m.RouteId, m.Baseline, m.Eviction = pb.JobOperation_JOB_OPERATION_ADOPT, validtest.Client, "", nil, nil
	}
	evict := func(m *pb.JobDefinition) {
		m.Operation, m.RouteId, m.Baseline, m.Destination = pb.JobOperation_JOB_OPERATION_EVICT, "", nil, nil
	}
	ranges := func(pairs ...uint32) []*pb.IndexRange {
		var out []*pb.IndexRange
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, &pb.IndexRange{First: pairs[i], Last: pairs[i+1]})
		}
		return out
	}
	hold(t, validtest.Definition, []rule[*pb.JobDefinition]{
		{"ADOPT", "", adopt, 0},
		{"EVICT", "", evict, 0},
		{"TRANSFER without a parent and eviction", "", func(m *pb.JobDefinition) { m.ParentJobId, m.Eviction = "", nil }, 0},
		{"no operation", "operation", func(m *pb.JobDefinition) { m.Operation = 0 }, unsupported},
		{"no source", "source", func(m *pb.JobDefinition) { m.Source = nil }, 0},
		{"no target", "target_client_id", func(m *pb.JobDefinition) { m.TargetClientId = "" }, 0},
		{"ADOPT at another", "target_client_id", func(m *pb.JobDefinition) { adopt(m); m.TargetClientId = validtest.Target }, 0},
		{"TRANSFER without route", "route_id", func(m *pb.JobDefinition) { m.RouteId = "" }, 0},
		{"ADOPT with route", "route_id", func(m *pb.JobDefinition) { adopt(m); m.RouteId = validtest.UUID(4) }, 0},
		{"nothing requested", "requested", func(m *pb.JobDefinition) { m.Requested = nil }, 0},
		{"no index requested", "requested.ranges", func(m *pb.JobDefinition) { m.Requested.Ranges = nil }, 0},
		{"first index alone", "", func(m *pb.JobDefinition) { m.Requested.Ranges = ranges(0, 0) }, 0},
		{"last index", "", func(m *pb.JobDefinition) { m.Requested.Ranges = ranges(0, 1<<32-1) }, 0},
		{"adjacent", "", func(m *pb.JobDefinition) { m.Requested.Ranges = ranges(0, 1, 2, 3) }, 0},
		{"backwards", "requested.ranges[1].last", func(m *pb.JobDefinition) { m.Requested.Ranges = ranges(0, 1, 5, 4) }, 0},
		{"overlapping", "requested.ranges[1]", func(m *pb.JobDefinition) { m.Requested.Ranges = ranges(0, 2, 2, 3) }, 0},
		{"not sorted", "requested.ranges[1]", func(m *pb.JobDefinition) { m.Requested.Ranges = ranges(5, 6, 0, 1) }, 0},
		{"no revision", "source_content_revision", func(m *pb.JobDefinition) { m.SourceContentRevision = "" }, 0},
		{"TRANSFER without baseline", "baseline", func(m *pb.JobDefinition) { m.Baseline = nil }, 0},
		{"baseline", "baseline.present.ranges[0].last", func(m *pb.JobDefinition) { m.Baseline.Present.Ranges = ranges(1, 0) }, 0},
		{"baseline of nothing", "", func(m *pb.JobDefinition) { m.Baseline = &pb.TargetBaseline{} }, 0},
		{"TRANSFER without destination", "destination", func(m *pb.JobDefinition) { m.Destination = nil }, 0},
		{"ADOPT without destination", "destination", func(m *pb.JobDefinition) { adopt(m); m.Destination = nil }, 0},
		{"no root", "destination.content_root_id", func(m *pb.JobDefinition) { m.Destination.ContentRootId = "" }, 0},
		{"root itself", "", func(m *pb.JobDefinition) { m.Destination.RelativeDir = "" }, 0},
		{"outside the root", "destination.relative_dir", func(m *pb.JobDefinition) { m.Destination.RelativeDir = "a/../.." }, unsafe},
		{"ADOPT with a baseline", "baseline.target_content_revision", func(m *pb.JobDefinition) {
			adopt(m)
			m.Baseline = &pb.TargetBaseline{TargetContentRevision: "x"}
		}, 0},
		{"EVICT with a destination", "destination.content_root_id", func(m *pb.JobDefinition) { evict(m); m.Destination = &pb.Destination{} }, 0},
		{"no policies", "policies", func(m *pb.JobDefinition) { m.Policies = nil }, 0},
		{"no level", "policies.verify_level", func(m *pb.JobDefinition) { m.Policies.VerifyLevel = 0 }, unsupported},
		{"no sparse policy", "policies.sparse_policy", func(m *pb.JobDefinition) { m.Policies.SparsePolicy = 0 }, unsupported},
		{"no partfile mode", "policies.partfile_mode", func(m *pb.JobDefinition) { m.Policies.PartfileMode = 0 }, unsupported},
		{"no conflict policy", "policies.conflict_policy", func(m *pb.JobDefinition) { m.Policies.ConflictPolicy = 0 }, unsupported},
		{"no method", "policies.stage_methods[1]", func(m *pb.JobDefinition) { m.Policies.StageMethods[1] = 0 }, unsupported},
		{"no quiesce", "policies.quiesce", func(m *pb.JobDefinition) { m.Policies.Quiesce = 0 }, unsupported},
		{"no activation", "policies.activation", func(m *pb.JobDefinition) { m.Policies.Activation = 0 }, unsupported},
		{"no cleanup", "policies.cleanup", func(m *pb.JobDefinition) { m.Policies.Cleanup = 0 }, unsupported},
		{"90 days", "", func(m *pb.JobDefinition) { m.Policies.TrashRetention = durationpb.New(90 * 24 * time.Hour) }, 0},
		{"above 90 days", "policies.trash_retention", func(m *pb.JobDefinition) { m.Policies.TrashRetention = durationpb.New(90*24*time.Hour + 1) }, 0},
		{"capability", "required_capabilities[0]", func(m *pb.JobDefinition) { m.RequiredCapabilities[0] = "A" }, 0},
		{"EVICT without basis", "eviction", func(m *pb.JobDefinition) { evict(m); m.Eviction = nil }, 0},
		{"EVICT without commit", "eviction.target_commit", func(m *pb.JobDefinition) { evict(m); m.Eviction.TargetCommit = nil }, 0},
		{"commit of another client", "eviction.target_commit.resource.client_id", func(m *pb.JobDefinition) { m.Eviction.TargetCommit.ClientId = validtest.Client }, 0},
		{"age above a day", "eviction.max_verify_age", func(m *pb.JobDefinition) { m.Eviction.MaxVerifyAge = durationpb.New(25 * time.Hour) }, 0},
	})
}

func TestJobEvents(t *testing.T) {
	type need struct{ progress, evidence, err, step bool }
	needs := map[pb.JobEventKind]need{
		pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED:   {step: true},
		pb.JobEventKind_JOB_EVENT_KIND_PROGRESS:       {progress: true, step: true},
		pb.JobEventKind_JOB_EVENT_KIND_STALLED:        {progress: true, step: true},
		pb.JobEventKind_JOB_EVENT_KIND_RESUMED:        {progress: true, step: true},
		pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED: {progress: true, evidence: true, step: true},
		pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED:    {err: true, step: true},
		pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED: {},
		pb.JobEventKind_JOB_EVENT_KIND_HELD:           {err: true},
	}
	if len(needs) != len(pb.JobEventKind_name)-1 {
		t.Fatal("a kind is missing")
	}
	field := func(name string, needed bool) string {
		if needed {
			return name
		}
		return ""
	}
	for kind, n := range needs {
		fresh := func() *pb.JobEvent { return validtest.Event(kind) }
		rules := []rule[*pb.JobEvent]{
			{"no progress", field("progress", n.progress), func(m *pb.JobEvent) { m.Progress = nil }, 0},
			{"no evidence", field("evidence", n.evidence), func(m *pb.JobEvent) { m.Evidence = nil }, 0},
			{"no error", field("error", n.err), func(m *pb.JobEvent) { m.Error = nil }, 0},
			{"no step", field("step", n.step), func(m *pb.JobEvent) { m.Step, m.Evidence = 0, nil }, 0},
			{"sequence 0", "sequence", func(m *pb.JobEvent) { m.Sequence = 0 }, 0},
			{"revision 0", "resulting_revision", func(m *pb.JobEvent) { m.ResultingRevision = 0 }, 0},
			{"no command", "command_id", func(m *pb.JobEvent) { m.CommandId = "" }, 0},
			{"no kind", "kind", func(m *pb.JobEvent) { m.Kind = 0 }, unsupported},
			{"no state", "state", func(m *pb.JobEvent) { m.State = 0 }, 0},
			{"another state", "state", func(m *pb.JobEvent) { m.State = pb.JobState_JOB_STATE_COMPLETED }, 0},
			{"empty evidence", "evidence.evidence", func(m *pb.JobEvent) { m.Evidence = &pb.StepEvidence{} }, 0},
		}
		if kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED {
			rules = append(rules[:10], rule[*pb.JobEvent]{"evidence of another step", "evidence", func(m *pb.JobEvent) {
				m.Evidence = validtest.Evidence()[pb.JobStep_JOB_STEP_PURGE]
			}, 0})
		}
		if n.step && n.evidence { // the step is looked at before the evidence
			rules[3] = rule[*pb.JobEvent]{"no step", "step", func(m *pb.JobEvent) { m.Step = 0 }, 0}
		}
		hold(t, fresh, rules)
	}
}

func TestEvidence(t *testing.T) {
	for step, e := range validtest.Evidence() {
		if got := valid.EvidenceStep(e); got != step {
			t.Errorf("evidence of %v is that of %v", step, got)
		}
	}
	stage := func() *pb.StepEvidence { return validtest.Evidence()[pb.JobStep_JOB_STEP_STAGE] }
	hold(t, stage, []rule[*pb.StepEvidence]{
		{"unknown method", "stage.methods", func(m *pb.StepEvidence) { m.GetStage().Methods["MAGIC"] = 1 }, 0},
		{"method with prefix", "stage.methods", func(m *pb.StepEvidence) { m.GetStage().Methods["MATERIALIZE_METHOD_COPY"] = 1 }, 0},
		{"no method", "stage.methods", func(m *pb.StepEvidence) { m.GetStage().Methods["UNSPECIFIED"] = 1 }, 0},
		{"no manifest", "stage.manifest_sha256", func(m *pb.StepEvidence) { m.GetStage().ManifestSha256 = "" }, 0},
		{"empty", "stage", func(m *pb.StepEvidence) { m.Evidence = &pb.StepEvidence_Stage{} }, 0},
	})
	hold(t, func() *pb.VerifyEvidence { return validtest.Evidence()[pb.JobStep_JOB_STEP_VERIFY].GetVerify() }, []rule[*pb.VerifyEvidence]{
		{"more good than checked", "pieces_good", func(m *pb.VerifyEvidence) { m.PiecesGood = 11 }, 0},
		{"no level", "level", func(m *pb.VerifyEvidence) { m.Level = 0 }, unsupported},
		{"no manifest", "", func(m *pb.VerifyEvidence) { m.ManifestSha256 = "" }, 0},
	})
	hold(t, func() *pb.MaterializeEvidence {
		return validtest.Evidence()[pb.JobStep_JOB_STEP_MATERIALIZE].GetMaterialize()
	}, []rule[*pb.MaterializeEvidence]{
		{"unknown method", "methods", func(m *pb.MaterializeEvidence) { m.Methods["MAGIC"] = 1 }, 0},
		{"no methods", "", func(m *pb.MaterializeEvidence) { m.Methods = nil }, 0},
	})
	hold(t, func() *pb.TransferEvidence { return validtest.Evidence()[pb.JobStep_JOB_STEP_TRANSFER].GetTransfer() }, []rule[*pb.TransferEvidence]{
		{"detail of 513", "carrier_detail", func(m *pb.TransferEvidence) { m.CarrierDetail = string(make([]byte, 513)) }, 0},
	})
	hold(t, func() *pb.ReleaseEvidence { return validtest.Evidence()[pb.JobStep_JOB_STEP_RELEASE].GetRelease() }, []rule[*pb.ReleaseEvidence]{
		{"no resource", "released_resource_id", func(m *pb.ReleaseEvidence) { m.ReleasedResourceId = "" }, 0},
	})
}

func TestJobSnapshot(t *testing.T) {
	hold(t, validtest.Snapshot, []rule[*pb.JobSnapshot]{
		{"no cursor", "cursor", func(m *pb.JobSnapshot) { m.Cursor = nil }, 0},
		{"no epoch", "state_epoch", func(m *pb.JobSnapshot) { m.StateEpoch = "" }, 0},
		{"event of another job", "events[1].job_id", func(m *pb.JobSnapshot) { m.Events[1].JobId = validtest.UUID(99) }, 0},
		{"sequence again", "events[1].sequence", func(m *pb.JobSnapshot) { m.Events[1].Sequence = m.Events[0].Sequence }, 0},
		{"gap", "", func(m *pb.JobSnapshot) { m.Events = append(m.Events[:1], m.Events[2:]...) }, 0},
		{"no events", "", func(m *pb.JobSnapshot) { m.Events = nil }, 0},
		{"command", "commands[0].lease_state", func(m *pb.JobSnapshot) { m.Commands[0].LeaseState = 0 }, unsupported},
		{"evidence", "evidence[0].evidence", func(m *pb.JobSnapshot) { m.Evidence[0].Evidence = nil }, 0},
		{"error alone", "", func(m *pb.JobSnapshot) {
			m.Error, m.Cursor, m.Events, m.Commands, m.Evidence, m.JournalSummary, m.StateEpoch = validtest.Failure(), nil, nil, nil, nil, nil, ""
		}, 0},
		{"error without a code", "error.code", func(m *pb.JobSnapshot) {
			m.Error, m.Events, m.Commands, m.Evidence, m.JournalSummary = &pb.ErrorDetail{}, nil, nil, nil, nil
		}, unsupported},
		{"error with events", "error", func(m *pb.JobSnapshot) { m.Error = validtest.Failure() }, 0},
		{"error before the end", "error", func(m *pb.JobSnapshot) { m.Error, m.LastPart = validtest.Failure(), false }, 0},
	})
}
