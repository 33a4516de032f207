package archivesim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
)

// job is one that the daemon takes part in. One goroutine at a time makes its events.
type job struct {
	definition *pb.JobDefinition
	moved      chan struct{} // has room for one hint that events were acknowledged

	mu     sync.Mutex
	cursor *pb.JobCursor
	steps  map[string]pb.JobStep // by lease
	sent   []sentEvent           // and not acknowledged
	stop   context.CancelFunc    // of the work at hand
	idle   chan struct{}         // closed when that has ended
}

type sentEvent struct {
	sequence uint64
	kind     pb.JobEventKind
	at       time.Time
}

func newJob(m *pb.AssignJob) *job {
	idle := make(chan struct{})
	close(idle)
	return &job{definition: m.GetDefinition(), moved: make(chan struct{}, 1), steps: map[string]pb.JobStep{}, idle: idle,
		cursor: &pb.JobCursor{JobId: m.GetDefinition().GetJobId(), Revision: 1, State: pb.JobState_JOB_STATE_ASSIGNED, Role: m.GetRole(),
			DefinitionSha256: m.GetDefinitionSha256()}}
}

func (j *job) cursorNow() *pb.JobCursor {
	j.mu.Lock()
	defer j.mu.Unlock()
	return proto.CloneOf(j.cursor)
}

func (j *job) committed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.cursor.Committed
}

func (j *job) close(final pb.JobState) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cursor.State = final
	if j.stop != nil {
		j.stop()
	}
}

// lease begins work under a command: its sequence and revision are at least those that the command expects.
func (j *job) lease(ctx context.Context, c *pb.Command, state pb.JobState, step pb.JobStep) (work context.Context, before, done chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := j.cursor
	p := c.GetPrecondition()
	k.Revision, k.LastEventSequence = max(k.Revision, p.GetExpectedRevision()), max(k.LastEventSequence, p.GetExpectedLastEventSequence())
	k.State, k.ActiveStep, k.OpenCommandIds = state, step, []string{c.GetCommandId()}
	j.steps[c.GetCommandId()] = step
	before, done = j.idle, make(chan struct{})
	j.idle = done
	work, j.stop = context.WithCancel(ctx)
	return work, before, done
}

func terminal(kind pb.JobEventKind) bool {
	return kind >= pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED
}

// execute leases a step and returns the work.
func (d *Daemon) execute(j *job, c *pb.Command) func() error {
	x := c.GetExecuteStep()
	ctx, before, done := j.lease(d.ctx, c, pb.JobState_JOB_STATE_RUNNING, x.GetStep())
	return func() error {
		defer close(done)
		<-before
		err := d.work(ctx, j, c)
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

func (d *Daemon) work(ctx context.Context, j *job, c *pb.Command) error {
	step := c.GetExecuteStep().GetStep()
	if err := d.emit(ctx, j, c, pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED, nil); err != nil {
		return err
	}
	total := uint64(max(d.o.Progress, 1))
	progress := func(done uint64) *pb.Progress {
		fraction := float64(done) / float64(total)
		position, _ := archive.Position(j.definition.GetOperation(), step)
		return &pb.Progress{FractionComplete: fraction, OverallFractionComplete: archive.Overall(j.definition.GetOperation(), position, fraction),
			Bytes:      &pb.ByteCounters{Known: true, LogicalTotal: total * fileBytes, LogicalDone: done * fileBytes},
			FilesTotal: uint32(total), FilesDone: uint32(done), LastContentMovementAt: timestamppb.Now(), BytesPerSecond: fileBytes}
	}
	for i := range uint64(d.o.Progress) {
		if err := d.emit(ctx, j, c, pb.JobEventKind_JOB_EVENT_KIND_PROGRESS, func(e *pb.JobEvent) { e.Progress = progress(i) }); err != nil {
			return err
		}
	}
	return d.emit(ctx, j, c, pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED, func(e *pb.JobEvent) {
		e.Progress, e.Evidence = progress(total), d.evidence(j.definition, c)
	})
}

// cancel ends the work at hand and tells of it.
func (d *Daemon) cancel(j *job, c *pb.Command) func() error {
	j.mu.Lock()
	stop := j.stop
	j.mu.Unlock()
	if stop != nil {
		stop()
	}
	ctx, before, done := j.lease(d.ctx, c, pb.JobState_JOB_STATE_CANCELLING, 0)
	return func() error {
		defer close(done)
		<-before
		return d.emit(ctx, j, c, pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED, nil)
	}
}

// emit sends the next event of the job when the window has room. Nothing is sent after ctx has ended.
func (d *Daemon) emit(ctx context.Context, j *job, c *pb.Command, kind pb.JobEventKind, fill func(*pb.JobEvent)) error {
	for {
		j.mu.Lock()
		room := len(j.sent) < d.o.Window
		j.mu.Unlock()
		if room {
			break
		}
		select {
		case <-j.moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	event, at := j.next(c, kind, fill)
	if kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED {
		d.o.Recorder.completed(event.GetJobId(), at)
	}
	d.o.Recorder.Sent.Add(1)
	d.o.Recorder.EventBytes.Add(int64(proto.Size(event)))
	e := d.envelope("")
	e.Payload = &pb.Envelope_JobEvent{JobEvent: event}
	return d.conn.Send(d.ctx, e, daemon.Bulk)
}

// next makes an event and moves the cursor.
func (j *job) next(c *pb.Command, kind pb.JobEventKind, fill func(*pb.JobEvent)) (*pb.JobEvent, time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := j.cursor
	k.LastEventSequence++
	switch kind {
	case pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED:
		k.State = pb.JobState_JOB_STATE_ASSIGNED
	case pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED:
		k.State = pb.JobState_JOB_STATE_CANCELLED
	}
	if kind != pb.JobEventKind_JOB_EVENT_KIND_PROGRESS {
		k.Revision++
	}
	e := &pb.JobEvent{EventId: uuid.NewString(), JobId: k.GetJobId(), Sequence: k.LastEventSequence, ResultingRevision: k.Revision,
		CommandId: c.GetCommandId(), Kind: kind, Step: j.steps[c.GetCommandId()], State: k.State, OccurredAt: timestamppb.Now()}
	if fill != nil {
		fill(e)
	}
	if terminal(kind) {
		k.OpenCommandIds, k.ActiveStep = nil, 0
		k.SettledCommandIds = []string{c.GetCommandId()}
	}
	if kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED && archive.Commits(e.Step) {
		k.Committed, k.CommitEvidenceSha256 = true, archive.EvidenceDigest(e.Evidence)
	}
	e.Committed = k.Committed
	if k.OutboxFirstSequence == 0 {
		k.OutboxFirstSequence = e.Sequence
	}
	at := time.Now()
	j.sent = append(j.sent, sentEvent{e.Sequence, kind, at})
	return e, at
}

// acknowledged takes in how far control has the events of a job.
func (d *Daemon) acknowledged(a *pb.JobEventAck) {
	at := time.Now()
	d.mu.Lock()
	j := d.jobs[a.GetJobId()]
	d.mu.Unlock()
	if j == nil {
		return
	}
	j.mu.Lock()
	n := 0
	for n < len(j.sent) && j.sent[n].sequence <= a.GetPersistedThrough() {
		n++
	}
	done := j.sent[:n:n]
	j.sent = j.sent[n:]
	j.cursor.OutboxFirstSequence = 0
	if len(j.sent) > 0 {
		j.cursor.OutboxFirstSequence = j.sent[0].sequence
	} else {
		j.cursor.SettledCommandIds = nil
	}
	j.mu.Unlock()
	for _, s := range done {
		d.o.Recorder.acknowledged(s.kind, at.Sub(s.at))
	}
	select {
	case j.moved <- struct{}{}:
	default:
	}
}

// evidence is what the step would prove.
func (d *Daemon) evidence(def *pb.JobDefinition, c *pb.Command) *pb.StepEvidence {
	x := c.GetExecuteStep()
	files := uint32(1)
	if set, err := archive.ReadIndexSet("requested", def.GetRequested()); err == nil {
		files = uint32(set.Count())
	}
	bytes := uint64(files) * fileBytes
	switch x.GetStep() {
	case pb.JobStep_JOB_STEP_STAGE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{JobDir: fmt.Sprintf("%s-%d", def.GetJobId(), x.GetStepAttempt()),
			ManifestSha256: sum("manifest", def.GetJobId()), ManifestBytes: 1 << 10, PayloadFiles: files, PayloadLogicalBytes: bytes,
			PayloadAllocatedBytes: bytes, Methods: map[string]uint32{"HARDLINK": files}, ContentRevision: x.GetStage().GetExpectedContentRevision()}}}
	case pb.JobStep_JOB_STEP_TRANSFER:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Transfer{Transfer: &pb.TransferEvidence{JobDir: x.GetTransfer().GetJobDir(),
			ManifestSha256: x.GetTransfer().GetManifestSha256(), Files: files, LogicalBytes: bytes, AllocatedBytes: bytes, CarrierDetail: "simulated"}}}
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Materialize{Materialize: &pb.MaterializeEvidence{
			ProvenanceSha256: sum("provenance", def.GetJobId()), Methods: map[string]uint32{"RENAME": files}, FilesCreated: files}}}
	case pb.JobStep_JOB_STEP_VERIFY:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{Level: def.GetPolicies().GetVerifyLevel(), FilesChecked: files,
			BytesRead: bytes, BackendConfirmed: true, ManifestSha256: x.GetVerify().GetManifestSha256(), ContentRevision: sum("copy", def.GetJobId()),
			VerifiedAt: timestamppb.Now()}}}
	case pb.JobStep_JOB_STEP_COMMIT:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Commit{Commit: &pb.CommitEvidence{CommitId: uuid.NewString(), JobId: def.GetJobId(), ClientId: d.id,
			VerifyEvidenceSha256: x.GetCommit().GetVerifyEvidenceSha256(), Resource: &pb.ResourceRef{ClientId: d.id, ResourceId: "copy-" + def.GetJobId(),
				Identity: def.GetSource().GetIdentity()}, ContentRevision: sum("copy", def.GetJobId()), ActivatedAt: timestamppb.Now(),
			ActivationState: pb.BackendState_BACKEND_STATE_NOT_MANAGED}}}
	case pb.JobStep_JOB_STEP_RELEASE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Release{Release: &pb.ReleaseEvidence{ReleasedResourceId: def.GetSource().GetResourceId(),
			TrashEntries: files, TrashBytes: bytes, ReleasedAt: timestamppb.Now()}}}
	}
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Purge{Purge: &pb.PurgeEvidence{EntriesRemoved: files, BytesFreed: bytes}}}
}
