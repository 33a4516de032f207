package job_test

import (
	"errors"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
	"signalbox/store"
)

// actor is a daemon whose every message the test sends; it keeps the state that the protocol asks of one.
type actor struct {
	r       *rig
	id      uuid.UUID
	name    string
	role    pb.ParticipantRole
	epoch   uuid.UUID
	last    uint64
	link    archive.Link
	sending *command.Sending
	acks    []*pb.JobEventAck
	reply   *pb.RegisterResponse
	jobs    map[string]*part
	known   map[string]*pb.CommandAck
}

// part is a job at the daemon.
type part struct {
	cursor   *pb.JobCursor
	events   []*pb.JobEvent
	commands map[string]*pb.CommandRecord
	order    []string
	steps    map[string]pb.JobStep
	ended    bool
}

func (r *rig) actor(name string, role pb.ParticipantRole) *actor {
	return &actor{r: r, id: uuid.New(), name: name, role: role, epoch: uuid.New(), jobs: map[string]*part{}, known: map[string]*pb.CommandAck{}}
}

func (a *actor) no() int64 { return a.link.Daemon.No }

// register opens a connection with the cursors of all jobs that have not ended here.
func (a *actor) register() {
	a.r.t.Helper()
	a.r.ok(a.name+" registers", a.tryRegister())
}

func (a *actor) tryRegister() error {
	req := &pb.RegisterRequest{ProtocolVersion: &pb.ProtocolVersion{Major: 2}, ClientId: a.id.String(), ClientName: a.name,
		Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET, ConnectionInstanceId: uuid.NewString(), StateEpoch: a.epoch.String(),
		OfferedLimits: &pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxChunkEntries: 500, MaxOutboundEnvelopes: 256, MaxOutboundBytes: 8 << 20,
			MaxActiveCursors: 256}, Software: "test", LastGeneration: a.last}
	for _, p := range a.jobs {
		if !p.ended {
			req.ActiveJobs = append(req.ActiveJobs, proto.CloneOf(p.cursor))
		}
	}
	if a.sending != nil {
		a.r.ok("close", a.sending.Close(a.r.ctx(), "replaced"))
	}
	got, refusal := a.r.reg.Register(a.r.ctx(), registry.Request{Register: req, Remote: "test"}, []byte(token))
	if refusal != nil {
		return errors.New(refusal.Rejected(0).GetError().GetMessage())
	}
	a.link, a.reply, a.last = got.Link, got.Response, uint64(got.Link.Generation)
	a.sending = a.r.queue.Connect(a.link, func() {})
	a.r.t.Cleanup(func() {})
	return nil
}

// offline has control notice that the daemon is silent.
func (a *actor) offline() {
	a.r.t.Helper()
	a.r.ok("offline", a.r.db.Update(a.r.ctx(), "test", func(tx *store.Tx) error {
		if _, err := tx.RegistryOffline(a.no(), a.link.Generation); err != nil {
			return err
		}
		return a.r.eng.OnOffline(tx, a.no())
	}))
}

// take receives what control sends now: acks first, then commands.
func (a *actor) take() []*pb.Command {
	a.r.t.Helper()
	acks, err := a.r.eng.Acks(a.r.ctx(), a.link)
	a.r.ok("acks", err)
	a.acks = append(a.acks, acks...)
	var out []*pb.Command
	for {
		claimed, err := a.sending.Next(a.r.ctx(), 1<<20)
		a.r.ok("next", err)
		if len(claimed) == 0 {
			return out
		}
		for _, c := range claimed {
			out = append(out, c.Command)
		}
	}
}

// one is take for exactly one command of the kind.
func (a *actor) one(kind command.Kind) *pb.Command {
	a.r.t.Helper()
	got := a.take()
	if len(got) != 1 || archive.KindOf(got[0]) != kind {
		a.r.t.Fatalf("%s got %v, want one %v", a.name, kinds(got), kind)
	}
	return got[0]
}

func kinds(list []*pb.Command) (out []string) {
	for _, c := range list {
		s := archive.KindOf(c).String()
		if e := c.GetExecuteStep(); e != nil {
			s += " " + e.GetStep().String()
		}
		out = append(out, s)
	}
	return out
}

// nothing fails the test if control sends the daemon a command.
func (a *actor) nothing() {
	a.r.t.Helper()
	if got := a.take(); len(got) != 0 {
		a.r.t.Fatalf("%s got %v, want nothing", a.name, kinds(got))
	}
}

// accept takes a command as daemon protocol 2.6 says and acknowledges it.
func (a *actor) accept(c *pb.Command) {
	a.r.t.Helper()
	a.send(a.take1(c))
}

func (a *actor) send(ack *pb.CommandAck) {
	a.r.t.Helper()
	a.r.ok(a.name+" acks", a.r.queue.Acked(a.r.ctx(), a.link, ack))
}

// take1 does what accepting means for the daemon's own state, and returns the answer.
func (a *actor) take1(c *pb.Command) *pb.CommandAck {
	if ack := a.known[c.CommandId]; ack != nil {
		again := proto.CloneOf(ack)
		again.StoredStatus, again.Status = ack.Status, pb.AckStatus_ACK_STATUS_DUPLICATE
		if p := a.jobs[c.JobId]; p != nil {
			again.Cursor = proto.CloneOf(p.cursor)
		}
		return again
	}
	p := a.jobs[c.JobId]
	if m := c.GetAssignJob(); m != nil {
		p = &part{cursor: &pb.JobCursor{JobId: c.JobId, Revision: 1, State: assigned, Role: m.Role, DefinitionSha256: m.DefinitionSha256},
			commands: map[string]*pb.CommandRecord{}, steps: map[string]pb.JobStep{}}
		a.jobs[c.JobId] = p
	}
	if p == nil {
		p = &part{cursor: &pb.JobCursor{JobId: c.JobId, Role: a.role, State: assigned}, commands: map[string]*pb.CommandRecord{},
			steps: map[string]pb.JobStep{}}
		a.jobs[c.JobId] = p
	}
	k := p.cursor
	if pre := c.GetPrecondition(); pre != nil && c.GetAssignJob() == nil {
		k.Revision, k.LastEventSequence = max(k.Revision, pre.ExpectedRevision), max(k.LastEventSequence, pre.ExpectedLastEventSequence)
	}
	rec := &pb.CommandRecord{CommandId: c.CommandId, PayloadSha256: archive.PayloadDigest(c), Status: accepted, LeaseState: leaseNone}
	switch {
	case c.GetExecuteStep() != nil:
		rec.LeaseState, rec.Step = leaseOpen, c.GetExecuteStep().Step
		p.steps[c.CommandId] = rec.Step
		k.State, k.ActiveStep, k.OpenCommandIds = running, rec.Step, append(k.OpenCommandIds, c.CommandId)
	case c.GetCancelJob() != nil:
		rec.LeaseState = leaseOpen
		k.State, k.ActiveStep, k.OpenCommandIds = cancelling, 0, []string{c.CommandId}
	case c.GetReconcileJob() != nil:
		p.reconcile(c.GetReconcileJob())
	case c.GetCloseJob() != nil:
		k.State, p.ended = c.GetCloseJob().FinalState, true
	}
	p.commands[c.CommandId] = rec
	p.order = append(p.order, c.CommandId)
	ack := &pb.CommandAck{CommandId: c.CommandId, Status: accepted, Cursor: proto.CloneOf(k), DecidedAt: timestamppb.New(start),
		PayloadSha256: archive.PayloadDigest(c)}
	a.known[c.CommandId] = ack
	return ack
}

func (p *part) reconcile(m *pb.ReconcileJobCommand) {
	k := p.cursor
	retired := map[string]bool{}
	for _, id := range m.RetireCommandIds {
		retired[id] = true
		if rec := p.commands[id]; rec != nil {
			rec.LeaseState = pb.LeaseState_LEASE_STATE_RETIRED
		}
	}
	drop := func(list []string) (out []string) {
		for _, id := range list {
			if !retired[id] {
				out = append(out, id)
			}
		}
		return out
	}
	switch m.Disposition {
	case pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD:
		k.State = manual
	case pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON:
		k.State, k.OpenCommandIds, k.SettledCommandIds, k.ActiveStep, p.ended = m.Authoritative.State, nil, nil, 0, true
	default:
		k.OpenCommandIds, k.SettledCommandIds = drop(k.OpenCommandIds), drop(k.SettledCommandIds)
		k.Revision, k.LastEventSequence = m.Authoritative.Revision, m.Authoritative.LastEventSequence
		k.Committed = k.Committed || m.Authoritative.Committed
		k.DefinitionSha256, k.OutboxFirstSequence = m.Authoritative.DefinitionSha256, 0
		if len(k.OpenCommandIds) == 0 {
			k.State, k.ActiveStep = assigned, 0
		}
	}
}

// reject answers a command with a rejection.
func (a *actor) reject(c *pb.Command, code pb.ErrorCode) {
	a.r.t.Helper()
	ack := &pb.CommandAck{CommandId: c.CommandId, Status: pb.AckStatus_ACK_STATUS_REJECTED, PayloadSha256: archive.PayloadDigest(c),
		Error: &pb.ErrorDetail{Code: code, Retryable: archive.Retryable(code), Message: "refused by the test"}, DecidedAt: timestamppb.New(start)}
	if p := a.jobs[c.JobId]; p != nil {
		ack.Cursor = proto.CloneOf(p.cursor)
	}
	a.known[c.CommandId] = ack
	a.send(ack)
}

// emit makes the next event under the open lease; it is in the log, and not sent.
func (a *actor) emit(jobID uuid.UUID, kind pb.JobEventKind, change ...func(*pb.JobEvent)) *pb.JobEvent {
	a.r.t.Helper()
	p := a.jobs[jobID.String()]
	k := p.cursor
	if len(k.OpenCommandIds) == 0 {
		a.r.t.Fatalf("%s has no open lease", a.name)
	}
	lease := k.OpenCommandIds[len(k.OpenCommandIds)-1]
	k.LastEventSequence++
	ev := &pb.JobEvent{EventId: uuid.NewString(), JobId: k.JobId, Sequence: k.LastEventSequence, CommandId: lease, Kind: kind,
		Step: p.steps[lease], OccurredAt: timestamppb.New(start)}
	terminal := kind >= completedEvent
	switch kind {
	case startedEvent:
		k.Revision++
		k.State = running
	case progressEvent, resumedEvent:
		k.State = running
		ev.Progress = &pb.Progress{FractionComplete: 0.5, FilesTotal: 10, FilesDone: uint32(k.LastEventSequence)}
	case stalledEvent:
		k.State = stalled
		ev.Progress = &pb.Progress{FractionComplete: 0.5}
	case completedEvent:
		k.Revision++
		k.State = assigned
		ev.Progress = &pb.Progress{FractionComplete: 1}
		ev.Evidence = a.evidence(jobID, ev.Step)
		if archive.Commits(ev.Step) {
			k.Committed, k.CommitEvidenceSha256 = true, archive.EvidenceDigest(ev.Evidence)
		}
	case failedEvent:
		k.Revision++
		k.State = assigned
		ev.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: "no answer in time"}
	case cancelledEvent:
		k.Revision++
		k.State = cancelled
	case heldEvent:
		k.Revision++
		k.State = manual
		ev.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STATE_LOST, Message: "found an effect without a record"}
	}
	if terminal {
		k.OpenCommandIds, k.ActiveStep = k.OpenCommandIds[:len(k.OpenCommandIds)-1], 0
		k.SettledCommandIds = append(k.SettledCommandIds, lease)
		p.commands[lease].LeaseState = pb.LeaseState_LEASE_STATE_SETTLED
	}
	if k.OutboxFirstSequence == 0 {
		k.OutboxFirstSequence = ev.Sequence
	}
	ev.ResultingRevision, ev.State, ev.Committed = k.Revision, k.State, k.Committed
	for _, fn := range change {
		fn(ev)
	}
	p.events = append(p.events, ev)
	return ev
}

// deliver sends an event and takes the answer.
func (a *actor) deliver(ev *pb.JobEvent) *pb.JobEventAck {
	a.r.t.Helper()
	ack, err := a.r.eng.Event(a.r.ctx(), a.link, ev)
	a.r.ok("event", err)
	if ack != nil {
		a.took(ack)
	}
	return ack
}

func (a *actor) took(ack *pb.JobEventAck) {
	p := a.jobs[ack.JobId]
	if ack.PersistedThrough >= p.cursor.LastEventSequence {
		p.cursor.OutboxFirstSequence, p.cursor.SettledCommandIds = 0, nil
	}
}

// does emits and delivers; control must acknowledge it.
func (a *actor) does(jobID uuid.UUID, kind pb.JobEventKind, change ...func(*pb.JobEvent)) *pb.JobEvent {
	a.r.t.Helper()
	ev := a.emit(jobID, kind, change...)
	if ack := a.deliver(ev); ack == nil || ack.PersistedThrough != ev.Sequence {
		a.r.t.Fatalf("%s: %v was answered %v\n%s", a.name, kind, ack, a.r.story(jobID))
	}
	return ev
}

func (a *actor) evidence(jobID uuid.UUID, step pb.JobStep) *pb.StepEvidence {
	e := &pb.StepEvidence{}
	switch step {
	case pb.JobStep_JOB_STEP_STAGE:
		e.Evidence = &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{JobDir: jobID.String() + "-1", ManifestSha256: hex64, PayloadFiles: 3}}
	case pb.JobStep_JOB_STEP_TRANSFER:
		e.Evidence = &pb.StepEvidence_Transfer{Transfer: &pb.TransferEvidence{JobDir: jobID.String() + "-1", ManifestSha256: hex64}}
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		e.Evidence = &pb.StepEvidence_Materialize{Materialize: &pb.MaterializeEvidence{ProvenanceSha256: hex64, FilesCreated: 3}}
	case pb.JobStep_JOB_STEP_VERIFY:
		e.Evidence = &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{Level: pb.VerifyLevel_VERIFY_LEVEL_STANDARD, FilesChecked: 3}}
	case pb.JobStep_JOB_STEP_COMMIT:
		e.Evidence = &pb.StepEvidence_Commit{Commit: &pb.CommitEvidence{CommitId: uuid.NewString(), JobId: jobID.String(), ClientId: a.id.String(),
			Resource: &pb.ResourceRef{ClientId: a.id.String(), ResourceId: "film-copy", Identity: &pb.ResourceIdentity{
				InfohashV1: strings.Repeat("1", 40)}}}}
	case pb.JobStep_JOB_STEP_RELEASE:
		e.Evidence = &pb.StepEvidence_Release{Release: &pb.ReleaseEvidence{ReleasedResourceId: "film", TrashEntries: 1}}
	case pb.JobStep_JOB_STEP_PURGE:
		e.Evidence = &pb.StepEvidence_Purge{Purge: &pb.PurgeEvidence{EntriesRemoved: 1}}
	}
	return e
}

// snapshot answers the last snapshot request in parts of two events.
func (a *actor) snapshot(id uuid.UUID, change ...func(*pb.JobSnapshot)) {
	a.r.t.Helper()
	for _, m := range a.snapshotParts(id, change...) {
		a.r.ok("snapshot", a.r.eng.Snapshot(a.r.ctx(), a.link, m))
	}
	p := a.jobs[id.String()]
	if p.cursor.LastEventSequence <= uint64(a.r.show(id).Sequence) {
		p.cursor.OutboxFirstSequence, p.cursor.SettledCommandIds = 0, nil
	}
}

func (a *actor) snapshotParts(id uuid.UUID, change ...func(*pb.JobSnapshot)) []*pb.JobSnapshot {
	p := a.jobs[id.String()]
	whole := &pb.JobSnapshot{CommandId: p.order[len(p.order)-1], SnapshotId: uuid.NewString(), Cursor: proto.CloneOf(p.cursor),
		StateEpoch: a.epoch.String(), Events: p.events}
	latest := map[pb.JobStep]*pb.StepEvidence{}
	for _, ev := range p.events {
		if ev.Evidence != nil {
			latest[ev.Step] = ev.Evidence
		}
	}
	for _, e := range latest {
		whole.Evidence = append(whole.Evidence, e)
	}
	for _, c := range p.order {
		whole.Commands = append(whole.Commands, p.commands[c])
	}
	whole = proto.CloneOf(whole)
	for _, fn := range change {
		fn(whole)
	}
	events := whole.Events
	whole.Events = nil
	var parts []*pb.JobSnapshot
	for n := uint32(0); n == 0 || len(events) > 0; n++ {
		m := &pb.JobSnapshot{CommandId: whole.CommandId, SnapshotId: whole.SnapshotId, PartIndex: n, Cursor: whole.Cursor,
			StateEpoch: whole.StateEpoch}
		take := min(2, len(events))
		m.Events, events = events[:take], events[take:]
		if m.LastPart = len(events) == 0; m.LastPart {
			m.Commands, m.Evidence = whole.Commands, whole.Evidence
		}
		parts = append(parts, m)
	}
	return parts
}
