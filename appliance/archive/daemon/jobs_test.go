package daemon_test

import (
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// plan is a job of the tests, and control's view of its cursor.
type plan struct {
	id         uuid.UUID
	definition *pb.JobDefinition
	digest     string
	role       pb.ParticipantRole
	revision   uint64
	sequence   uint64
}

var zeros = strings.Repeat("0", 64)

// newAdopt is an ADOPT whose target is the daemon.
func newAdopt() *plan {
	d := definition(pb.JobOperation_JOB_OPERATION_ADOPT)
	d.Source.ClientId, d.TargetClientId = self.String(), self.String()
	return newPlan(d, pb.ParticipantRole_PARTICIPANT_ROLE_TARGET)
}

// newEvict is an EVICT whose source is the daemon.
func newEvict() *plan {
	d := definition(pb.JobOperation_JOB_OPERATION_EVICT)
	d.Source.ClientId, d.TargetClientId, d.Destination = self.String(), other.String(), nil
	d.Eviction = &pb.EvictionBasis{TargetCommit: commitEvidence()}
	d.ParentJobId = uuid.NewString()
	return newPlan(d, pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE)
}

func commitEvidence() *pb.CommitEvidence {
	return &pb.CommitEvidence{CommitId: uuid.NewString(), JobId: uuid.NewString(), ClientId: other.String(), VerifyEvidenceSha256: zeros,
		Resource:        &pb.ResourceRef{ClientId: other.String(), ResourceId: "r", Identity: &pb.ResourceIdentity{InfohashV1: zeros[:40]}},
		ContentRevision: zeros, ActivatedAt: timestamppb.New(epoch), ActivationState: pb.BackendState_BACKEND_STATE_SEEDING}
}

func definition(op pb.JobOperation) *pb.JobDefinition {
	policies := archive.DefaultPolicies()
	return &pb.JobDefinition{JobId: uuid.NewString(), Operation: op, Source: &pb.ResourceRef{ResourceId: "films",
		Identity: &pb.ResourceIdentity{InfohashV1: zeros[:40]}}, Requested: archive.Span(0, 3).Message(), SourceContentRevision: zeros,
		Destination: &pb.Destination{ContentRootId: "content"}, Policies: policies, CreatedAt: timestamppb.New(epoch)}
}

func newPlan(d *pb.JobDefinition, role pb.ParticipantRole) *plan {
	return &plan{id: uuid.MustParse(d.GetJobId()), definition: d, digest: archive.DefinitionDigest(d), role: role}
}

func (p *plan) command() *pb.Command {
	return &pb.Command{CommandId: uuid.NewString(), ClientId: self.String(), IssuedAt: timestamppb.New(epoch), Attempt: 1, JobId: p.id.String(),
		Precondition: &pb.CommandPrecondition{ExpectedRevision: p.revision, ExpectedLastEventSequence: p.sequence, DefinitionSha256: p.digest}}
}

func (p *plan) assign() *pb.Command {
	c := p.command()
	c.Operation = &pb.Command_AssignJob{AssignJob: &pb.AssignJob{Definition: p.definition, Role: p.role, DefinitionSha256: p.digest}}
	return c
}

func (p *plan) execute(step pb.JobStep, attempt uint32) *pb.Command {
	c := p.command()
	x := &pb.ExecuteStepCommand{Step: step, StepAttempt: attempt}
	switch step {
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		x.Params = &pb.ExecuteStepCommand_Materialize{Materialize: &pb.MaterializeParams{AdoptContentRevision: zeros}}
	case pb.JobStep_JOB_STEP_VERIFY:
		x.Params = &pb.ExecuteStepCommand_Verify{Verify: &pb.VerifyParams{MaterializeEvidenceSha256: zeros}}
	case pb.JobStep_JOB_STEP_COMMIT:
		x.Params = &pb.ExecuteStepCommand_Commit{Commit: &pb.CommitParams{VerifyEvidenceSha256: zeros}}
	case pb.JobStep_JOB_STEP_RELEASE:
		x.Params = &pb.ExecuteStepCommand_Release{Release: &pb.ReleaseParams{TargetCommit: p.definition.GetEviction().GetTargetCommit(),
			ReverifyEvidenceSha256: zeros, ExpectedContentRevision: zeros}}
	case pb.JobStep_JOB_STEP_PURGE:
		x.Params = &pb.ExecuteStepCommand_Purge{Purge: &pb.PurgeParams{ReleaseEvidenceSha256: zeros, NotBefore: timestamppb.New(epoch)}}
	}
	c.Operation = &pb.Command_ExecuteStep{ExecuteStep: x}
	return c
}

func (p *plan) cancel() *pb.Command {
	c := p.command()
	c.Operation = &pb.Command_CancelJob{CancelJob: &pb.CancelJobCommand{Reason: "a test", Cleanup: pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES}}
	return c
}

func (p *plan) close(discard bool) *pb.Command {
	c := p.command()
	c.Operation = &pb.Command_CloseJob{CloseJob: &pb.CloseJob{FinalState: pb.JobState_JOB_STATE_COMPLETED, DiscardJobFiles: discard}}
	return c
}

func (p *plan) snapshot() *pb.Command {
	c := p.command()
	c.Precondition = nil
	c.Operation = &pb.Command_RequestJobSnapshot{RequestJobSnapshot: &pb.RequestJobSnapshot{FromSequence: 1, IncludeEvidence: true}}
	return c
}

func (p *plan) cursor(state pb.JobState) *pb.JobCursor {
	return &pb.JobCursor{JobId: p.id.String(), Revision: max(p.revision, 1), LastEventSequence: p.sequence, State: state, Role: p.role,
		DefinitionSha256: p.digest}
}

func (p *plan) reconcile(d pb.ReconcileDisposition, retire ...*pb.Command) *pb.Command {
	c := p.command()
	state := pb.JobState_JOB_STATE_RUNNING
	if d == pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON {
		state = pb.JobState_JOB_STATE_FAILED
	}
	x := &pb.ReconcileJobCommand{Authoritative: p.cursor(state), Disposition: d,
		Reason: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE, Message: "a test"}}
	for _, r := range retire {
		x.RetireCommandIds = append(x.RetireCommandIds, r.GetCommandId())
	}
	if d == pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION {
		x.Definition = p.definition
	}
	c.Operation = &pb.Command_ReconcileJob{ReconcileJob: x}
	return c
}

// assigned has the daemon take the job in.
func (p *plan) assigned(w *wire) {
	w.t.Helper()
	w.accepted(p.assign())
	p.revision = 1
}

// take stores an event in control's view: it must be the next one.
func (p *plan) take(w *wire, e *pb.JobEvent) *pb.JobEvent {
	w.t.Helper()
	if e.GetSequence() != p.sequence+1 {
		w.t.Fatalf("event %d after %d: %v", e.GetSequence(), p.sequence, e)
	}
	want := p.revision + 1
	switch e.GetKind() {
	case pb.JobEventKind_JOB_EVENT_KIND_PROGRESS, pb.JobEventKind_JOB_EVENT_KIND_STALLED, pb.JobEventKind_JOB_EVENT_KIND_RESUMED:
		want = p.revision
	}
	if e.GetResultingRevision() != want {
		w.t.Fatalf("event %v has revision %d, want %d", e.GetKind(), e.GetResultingRevision(), want)
	}
	p.sequence, p.revision = e.GetSequence(), e.GetResultingRevision()
	return e
}

// took takes the next event of the kind and acknowledges it.
func (p *plan) took(w *wire, kind pb.JobEventKind) *pb.JobEvent {
	w.t.Helper()
	e := p.take(w, w.event(kind))
	w.eventAck(p.id, p.sequence, p.revision, false)
	return e
}

const (
	started   = pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED
	progress  = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
	stalled   = pb.JobEventKind_JOB_EVENT_KIND_STALLED
	resumed   = pb.JobEventKind_JOB_EVENT_KIND_RESUMED
	completed = pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED
	failed    = pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED
	cancelled = pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED
	held      = pb.JobEventKind_JOB_EVENT_KIND_HELD

	materialize = pb.JobStep_JOB_STEP_MATERIALIZE
	verify      = pb.JobStep_JOB_STEP_VERIFY
	commit      = pb.JobStep_JOB_STEP_COMMIT
	release     = pb.JobStep_JOB_STEP_RELEASE
	purge       = pb.JobStep_JOB_STEP_PURGE

	resume  = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME
	restore = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION
	hold    = pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD
	abandon = pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON
)

// evidence of a step as a worker returns it.
func evidence(step pb.JobStep) *pb.StepEvidence {
	switch step {
	case materialize:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Materialize{Materialize: &pb.MaterializeEvidence{ProvenanceSha256: zeros,
			PartfileResult: pb.PartfileMode_PARTFILE_MODE_AUTO}}}
	case verify:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{Level: pb.VerifyLevel_VERIFY_LEVEL_STANDARD,
			ManifestSha256: zeros, ContentRevision: zeros, VerifiedAt: timestamppb.New(epoch)}}}
	case commit:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Commit{Commit: commitEvidence()}}
	case release:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Release{Release: &pb.ReleaseEvidence{ReleasedResourceId: "films",
			ReleasedAt: timestamppb.New(epoch)}}}
	case purge:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Purge{Purge: &pb.PurgeEvidence{EntriesRemoved: 1}}}
	}
	return nil
}

// done runs a step to its end: execute, started, completed, all acknowledged.
func (p *plan) done(r *rig, w *wire, step pb.JobStep) {
	w.t.Helper()
	w.accepted(p.execute(step, 1))
	c := r.call("run")
	p.took(w, started)
	c.end <- result{evidence: evidence(step)}
	p.took(w, completed)
}

func bytesDone(n uint64) *pb.Progress {
	return &pb.Progress{FractionComplete: float64(n) / 1000, Bytes: &pb.ByteCounters{Known: true, LogicalTotal: 1000, LogicalDone: n}}
}

func digestOf(c *pb.Command) string {
	_, sum := frame.PayloadIdentity(c)
	return sum
}

const second = time.Second
