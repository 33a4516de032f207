package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// A model of a daemon, written from the tables 2.6, 3.5 and 3.7 of the protocol alone. Its database is a value, so that it
// can be copied and put back; the effects it has on the world are not in it.

type wireCommand struct {
	id          uuid.UUID
	kind        archive.CommandKind
	expected    Position
	definition  string
	role        pb.ParticipantRole
	step        pb.JobStep
	disposition pb.ReconcileDisposition
	authority   Cursor
	retires     []uuid.UUID
	final       pb.JobState
}

func (c *wireCommand) digest() string {
	return fmt.Sprintf("%s %d %v %s %d %d %d %v %v %d", c.id, c.kind, c.expected, c.definition, c.role, c.step, c.disposition,
		c.authority.Position, c.retires, c.final)
}

type wireAck struct {
	id     uuid.UUID
	status pb.AckStatus // ACCEPTED or REJECTED, repeated ones too
	code   pb.ErrorCode
	cursor *Cursor
}

type wireSnapshot struct {
	request uuid.UUID
	s       Snapshot
}

type wireEventAck struct {
	through, revision uint64
	goAhead           bool
}

type modelLease struct {
	id    uuid.UUID
	kind  archive.CommandKind
	step  pb.JobStep
	state pb.LeaseState
	// phase counts the durable marks of the work: 1 started, 2 commit record, 3 effect recorded
	phase int
	end   uint64 // sequence of the terminal event
}

type modelEvent struct {
	m     *pb.JobEvent
	acked bool
}

type modelJob struct {
	Position
	confirmed Position
	state     pb.JobState
	committed bool
	evidence  string
	role      pb.ParticipantRole
	ended     bool
	undone    bool
	stepEnded map[pb.JobStep]*pb.StepEvidence
	leases    []modelLease
	outbox    []modelEvent
}

type modelDB struct {
	epoch    uuid.UUID
	lastGen  uint64
	commands map[uuid.UUID]storedCommand
	retired  map[uuid.UUID]bool
	job      *modelJob
}

type storedCommand struct {
	digest string
	status pb.AckStatus
	code   pb.ErrorCode
	kind   archive.CommandKind
	step   pb.JobStep
}

func (db modelDB) clone() modelDB {
	out := modelDB{epoch: db.epoch, lastGen: db.lastGen, commands: map[uuid.UUID]storedCommand{}, retired: map[uuid.UUID]bool{}}
	for id, c := range db.commands {
		out.commands[id] = c
	}
	for id := range db.retired {
		out.retired[id] = true
	}
	if db.job != nil {
		j := *db.job
		j.leases, j.outbox = slices.Clone(j.leases), slices.Clone(j.outbox)
		j.stepEnded = map[pb.JobStep]*pb.StepEvidence{}
		for s, e := range db.job.stepEnded {
			j.stepEnded[s] = e
		}
		out.job = &j
	}
	return out
}

func newModelDB(id uuid.UUID) modelDB {
	return modelDB{epoch: id, commands: map[uuid.UUID]storedCommand{}, retired: map[uuid.UUID]bool{}}
}

type model struct {
	name      string
	role      pb.ParticipantRole
	db        modelDB
	copies    []modelDB
	rolled    bool // it ran an old copy at some time
	confirmed map[uuid.UUID]bool
	goAhead   bool // on the present connection
	job       uuid.UUID
	ids       func() uuid.UUID
	rng       *rand.Rand
	world     *world
	peer      *model
}

// restart is a new process over the same database.
func (d *model) restart() { d.confirmed, d.goAhead = map[uuid.UUID]bool{}, false }

func (d *model) cursor() *Cursor {
	j := d.db.job
	if j == nil {
		return nil
	}
	c := &Cursor{Position: j.Position, Job: d.job, State: j.state, Committed: j.committed, Role: j.role, Definition: definitionA,
		CommitEvidence: j.evidence}
	for _, e := range j.outbox {
		if !e.acked {
			c.OutboxFirst = e.m.GetSequence()
			break
		}
	}
	for _, l := range j.leases {
		switch {
		case l.state == leaseOpen:
			c.Open = append(c.Open, l.id)
			c.ActiveStep = l.step
		case l.state == leaseSettled && (l.end == 0 || c.OutboxFirst != 0 && l.end >= c.OutboxFirst):
			c.Settled = append(c.Settled, l.id)
		}
	}
	return c
}

// listed is the cursor of a registration: jobs that ended are not listed.
func (d *model) listed() *Cursor {
	if d.db.job == nil || d.db.job.ended {
		return nil
	}
	return d.cursor()
}

func (d *model) openLease() *modelLease {
	if d.db.job == nil {
		return nil
	}
	for i := range d.db.job.leases {
		if l := &d.db.job.leases[i]; l.state == leaseOpen {
			return l
		}
	}
	return nil
}

// command decides about a command (2.6) and returns the answer.
func (d *model) command(c *wireCommand) wireAck {
	if old, ok := d.db.commands[c.id]; ok {
		if old.digest != c.digest() {
			return wireAck{c.id, pb.AckStatus_ACK_STATUS_CONFLICT, codeCommand, d.cursor()}
		}
		return wireAck{c.id, old.status, old.code, d.cursor()}
	}
	code := d.judge(c)
	status := pb.AckStatus_ACK_STATUS_ACCEPTED
	if code != codeNone {
		status = pb.AckStatus_ACK_STATUS_REJECTED
	} else {
		d.take(c)
	}
	d.db.commands[c.id] = storedCommand{c.digest(), status, code, c.kind, c.step}
	return wireAck{c.id, status, code, d.cursor()}
}

func (d *model) judge(c *wireCommand) pb.ErrorCode {
	j := d.db.job
	switch {
	case d.db.retired[c.id]:
		return codeLease
	case j == nil && (c.kind == archive.AssignJob || c.kind == archive.ReconcileJob && c.disposition == restore):
		return codeNone
	case j == nil:
		return codeNotFound
	case j.ended:
		return codeUnsafe
	case c.kind == archive.RequestJobSnapshot:
		return codeNone
	case c.definition != definitionA:
		return codeUnsafe
	case c.kind == archive.ReconcileJob:
		return d.judgeReconcile(c)
	case c.expected.Revision < j.Revision:
		return codeRevision
	case c.expected.Sequence < j.Sequence:
		return codeSequence
	case c.expected != j.Position && (d.openLease() != nil || d.unacked()):
		return codeSequence
	}
	switch open := d.openLease(); c.kind {
	case archive.ExecuteStep:
		if j.state != assigned {
			if open != nil {
				return codeBusy
			}
			return codeUnsafe
		}
	case archive.CancelJob:
		if j.state == cancelling {
			return codeBusy
		}
		if j.committed || j.state == manual || j.state == cancelled {
			return codeUnsafe
		}
	case archive.CloseJob:
		if open != nil {
			return codeBusy
		}
		if j.state == manual {
			return codeUnsafe
		}
	case archive.AssignJob:
		return codeRevision
	}
	return codeNone
}

func (d *model) unacked() bool {
	return slices.ContainsFunc(d.db.job.outbox, func(e modelEvent) bool { return !e.acked })
}

// pastCommit reports whether a lease has made its irreversible decision.
func (d *model) pastCommit(l modelLease) bool {
	return l.state == leaseOpen && l.phase >= 2 && archive.Commits(l.step)
}

func (d *model) judgeReconcile(c *wireCommand) pb.ErrorCode {
	j := d.db.job
	if c.expected.Revision < j.confirmed.Revision || c.expected.Sequence < j.confirmed.Sequence {
		return codeSequence
	}
	if j.committed && !c.authority.Committed {
		return codeCommit
	}
	switch c.disposition {
	case restore, resume:
		if j.undone {
			return codeUnsafe
		}
		for _, l := range j.leases {
			if slices.Contains(c.retires, l.id) && d.pastCommit(l) {
				return codeCommit
			}
		}
		for _, e := range j.outbox {
			if id := uuid.MustParse(e.m.GetCommandId()); !e.acked && !slices.Contains(c.retires, id) {
				return codeBusy
			}
		}
	case abandon:
		for _, l := range j.leases {
			if d.pastCommit(l) && j.state != manual {
				return codeCommit
			}
		}
	}
	return codeNone
}

// take applies an accepted command.
func (d *model) take(c *wireCommand) {
	j := d.db.job
	if j != nil && !j.ended && c.kind != archive.ReconcileJob && c.kind != archive.RequestJobSnapshot {
		j.Position = c.expected
		j.confirmed = j.confirmed.Max(c.expected)
	}
	switch c.kind {
	case archive.AssignJob:
		d.db.job = &modelJob{Position: Position{Revision: 1}, confirmed: Position{Revision: 1}, state: assigned, role: c.role,
			stepEnded: map[pb.JobStep]*pb.StepEvidence{}}
	case archive.ExecuteStep:
		j.state = running
		j.leases = append(j.leases, modelLease{id: c.id, kind: c.kind, step: c.step, state: leaseOpen})
		d.confirmed[c.id], d.goAhead = true, true
	case archive.CancelJob:
		for i := range j.leases {
			if j.leases[i].state == leaseOpen {
				j.leases[i].state = leaseSettled
			}
		}
		j.state, j.undone = cancelling, true
		j.leases = append(j.leases, modelLease{id: c.id, kind: c.kind, state: leaseOpen})
		d.goAhead = true
	case archive.CloseJob:
		d.end(c.final)
	case archive.ReconcileJob:
		d.reconcile(c)
	}
}

func (d *model) end(state pb.JobState) {
	j := d.db.job
	j.state, j.ended = state, true
	for i := range j.outbox {
		j.outbox[i].acked = true
	}
}

func (d *model) reconcile(c *wireCommand) {
	j := d.db.job
	if j == nil { // RESTORE_DEFINITION
		j = &modelJob{role: c.role, stepEnded: map[pb.JobStep]*pb.StepEvidence{}}
		d.db.job = j
	}
	for _, id := range c.retires {
		d.db.retired[id] = true
	}
	switch c.disposition {
	case resume, restore:
		stays := false
		for i := range j.leases {
			l := &j.leases[i]
			if slices.Contains(c.retires, l.id) {
				l.state = leaseRetired
			}
			stays = stays || l.state == leaseOpen
		}
		j.outbox = slices.DeleteFunc(j.outbox, func(e modelEvent) bool {
			return !e.acked && slices.Contains(c.retires, uuid.MustParse(e.m.GetCommandId())) || e.m.GetSequence() > c.authority.Sequence
		})
		j.Position, j.confirmed = c.authority.Position, c.authority.Position
		j.committed = j.committed || c.authority.Committed
		j.state = assigned
		if stays {
			j.state = running
		}
	case hold:
		j.state = manual
	case abandon:
		for i := range j.leases {
			j.leases[i].state = leaseRetired
		}
		d.end(c.final)
	}
}

func (d *model) eventAck(a wireEventAck) {
	if a.goAhead {
		d.goAhead = true
		if l := d.openLease(); l != nil {
			d.confirmed[l.id] = true
		}
	}
	j := d.db.job
	if j == nil {
		return
	}
	for i := range j.outbox {
		if j.outbox[i].m.GetSequence() <= a.through {
			j.outbox[i].acked = true
		}
	}
	j.confirmed = j.confirmed.Max(Position{min(a.revision, j.Revision), min(a.through, j.Sequence)})
}

// emit adds an event of a lease in one transaction.
func (d *model) emit(l *modelLease, kind pb.JobEventKind, state pb.JobState, code pb.ErrorCode) {
	j := d.db.job
	m := &pb.JobEvent{EventId: d.ids().String(), JobId: d.job.String(), Sequence: j.Sequence + 1, ResultingRevision: j.Revision + revisionStepModel(kind),
		CommandId: l.id.String(), Kind: kind, Step: l.step, State: state, Committed: j.committed}
	switch kind {
	case progressed, stalledEvent, resumedEvent:
		m.Progress = &pb.Progress{FilesDone: uint32(m.Sequence)} //nolint:gosec // small
	case stepFailed, held:
		m.Error = &pb.ErrorDetail{Code: code}
	case stepCompleted:
		m.Progress = &pb.Progress{FractionComplete: 1}
		m.Evidence = modelEvidence(l)
		j.stepEnded[l.step] = m.Evidence
		if archive.Commits(l.step) {
			j.evidence = archive.EvidenceDigest(m.Evidence)
		}
	}
	j.Sequence, j.Revision, j.state = m.Sequence, m.ResultingRevision, state
	j.outbox = append(j.outbox, modelEvent{m: m})
	switch kind {
	case stepCompleted, stepFailed, stepCancelled, held:
		l.state, l.end = leaseSettled, m.Sequence
		for i := range j.leases {
			if j.leases[i].state == leaseSettled && j.leases[i].end == 0 {
				j.leases[i].end = m.Sequence
			}
		}
	}
}

func revisionStepModel(k pb.JobEventKind) uint64 {
	if k == progressed || k == stalledEvent || k == resumedEvent {
		return 0
	}
	return 1
}

func modelEvidence(l *modelLease) *pb.StepEvidence {
	id := l.id.String()
	switch l.step {
	case pb.JobStep_JOB_STEP_STAGE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{JobDir: id}}}
	case pb.JobStep_JOB_STEP_TRANSFER:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Transfer{Transfer: &pb.TransferEvidence{JobDir: id}}}
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Materialize{Materialize: &pb.MaterializeEvidence{ProvenanceSha256: id}}}
	case pb.JobStep_JOB_STEP_VERIFY:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{ManifestSha256: id}}}
	case pb.JobStep_JOB_STEP_COMMIT:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Commit{Commit: &pb.CommitEvidence{CommitId: id}}}
	case pb.JobStep_JOB_STEP_RELEASE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Release{Release: &pb.ReleaseEvidence{ReleasedResourceId: id}}}
	}
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Purge{Purge: &pb.PurgeEvidence{}}}
}

// events returns the unacknowledged events, in order, that may be sent now.
func (d *model) events() []*pb.JobEvent {
	if d.db.job == nil || d.db.job.ended || !d.goAhead {
		return nil
	}
	var out []*pb.JobEvent
	for _, e := range d.db.job.outbox {
		if !e.acked {
			out = append(out, proto.CloneOf(e.m))
		}
	}
	return out
}

// snapshot answers a RequestJobSnapshot (2.9).
func (d *model) snapshot(request uuid.UUID) wireSnapshot {
	s := Snapshot{Epoch: d.db.epoch, Complete: true}
	j := d.db.job
	if j == nil {
		s.Failed = codeNotFound
		return wireSnapshot{request, s}
	}
	s.Cursor = *d.cursor()
	for _, e := range j.outbox {
		s.Events = append(s.Events, proto.CloneOf(e.m))
	}
	for _, l := range j.leases {
		c := d.db.commands[l.id]
		s.Commands = append(s.Commands, &pb.CommandRecord{CommandId: l.id.String(), PayloadSha256: c.digest, Status: c.status, LeaseState: l.state, Step: l.step})
	}
	for _, e := range j.stepEnded {
		s.Evidence = append(s.Evidence, e)
	}
	return wireSnapshot{request, s}
}
