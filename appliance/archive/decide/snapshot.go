package decide

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// ValidateSnapshot checks a snapshot of a participant whose cursor is ahead of control's (4.4). The events of a valid one
// are those that control does not hold, in order.
func ValidateSnapshot(j *Job, role pb.ParticipantRole, s Snapshot, known Known) Checked {
	v := &snapshotCheck{job: begin(j).job, role: role, s: s, known: known}
	v.out.Committed = s.Cursor.Committed
	for _, m := range s.Events {
		v.out.Committed = v.out.Committed || m.GetCommitted()
	}
	v.out.Defect = v.run()
	if v.out.Defect != "" || terminal(j.State) || j.State == manual {
		v.out.Events, v.out.CommitSeen = nil, nil // an ended or held job takes nothing from it (4.2 row 12)
	}
	return v.out
}

type snapshotCheck struct {
	job    Job
	role   pb.ParticipantRole
	s      Snapshot
	known  Known
	leases map[uuid.UUID]*pb.CommandRecord
	out    Checked
}

func (v *snapshotCheck) run() string {
	p := v.job.Party(v.role)
	switch {
	case p == nil:
		return "the daemon is no participant of the job"
	case v.s.Failed != codeNone:
		return "the daemon could not make a snapshot"
	case !v.s.Complete:
		return "parts are missing"
	case v.s.Epoch != v.known.Epoch:
		return "the state epoch is not the registered one"
	case v.s.Cursor.Job != v.job.ID || v.s.Cursor.Role != v.role || v.s.Cursor.Definition != v.job.Definition:
		return "the cursor is of another job, role or definition"
	}
	v.leases = map[uuid.UUID]*pb.CommandRecord{}
	for _, r := range v.s.Commands {
		id, err := uuid.Parse(r.GetCommandId())
		if err != nil {
			return "a command id is not a UUID"
		}
		if _, twice := v.leases[id]; twice {
			return "a command is listed twice"
		}
		v.leases[id] = r
	}
	fresh, defect := v.compareHeld()
	if defect != "" {
		return defect
	}
	for _, m := range fresh {
		if defect := v.follow(p, m); defect != "" {
			return defect
		}
	}
	return v.finish(p, len(fresh))
}

// compareHeld compares the events that control holds already and returns the rest. A daemon may have dropped the oldest
// ones (2.9); from the lowest it kept, none of its own may be missing.
func (v *snapshotCheck) compareHeld() ([]*pb.JobEvent, string) {
	last := v.job.Sequence
	held := map[uint64]Stored{}
	for _, e := range v.known.Events {
		held[e.Message.GetSequence()] = e
	}
	shown := map[uint64]bool{}
	var previous uint64
	for i, m := range v.s.Events {
		seq := m.GetSequence()
		if seq <= previous {
			return nil, "the events do not ascend"
		}
		previous = seq
		if seq > last {
			for _, e := range v.s.Events[:i] {
				shown[e.GetSequence()] = true
			}
			return v.s.Events[i:], v.missing(shown)
		}
		e, ok := held[seq]
		switch {
		case !ok:
			return nil, "an event that control acknowledged is not the one it holds"
		case e.Role != v.role:
			return nil, "an event has a sequence of the other participant"
		case !proto.Equal(e.Message, m):
			return nil, "an event differs from control's copy"
		}
	}
	for _, e := range v.s.Events {
		shown[e.GetSequence()] = true
	}
	return nil, v.missing(shown)
}

func (v *snapshotCheck) missing(shown map[uint64]bool) string {
	if len(v.s.Events) == 0 {
		return ""
	}
	first := v.s.Events[0].GetSequence()
	for _, e := range v.known.Events {
		if seq := e.Message.GetSequence(); e.Role == v.role && seq >= first && seq <= v.job.Sequence && !shown[seq] {
			return "an event that control holds is missing"
		}
	}
	return ""
}

// follow applies one new event to the copy of the job, by the acceptance rule of 2.8 with the snapshot's leases.
func (v *snapshotCheck) follow(p *Participant, m *pb.JobEvent) string {
	if m.GetJobId() != v.job.ID.String() {
		return "an event is of another job"
	}
	if m.GetSequence() != v.job.Sequence+1 {
		return "the new events are not contiguous with the job's last one"
	}
	id, err := uuid.Parse(m.GetCommandId())
	if err != nil {
		return "a command id of an event is not a UUID"
	}
	if defect := v.lease(id); defect != "" {
		return defect
	}
	r := v.job.Command(id)
	if verdict := judgeCursor(&v.job, p, r, m, m.GetSequence()); verdict.Ruling != Accept {
		return "event " + m.GetEventId() + ": " + verdict.Reason
	}
	if m.GetKind() == stepCancelled && v.job.effective() != cancelling && v.job.State != manual {
		return "a cancellation that nobody asked for"
	}
	v.job.Position = Position{m.GetResultingRevision(), m.GetSequence()}
	p.Committed = p.Committed || m.GetCommitted()
	switch m.GetKind() {
	case stepCompleted:
		if archive.Commits(r.Step) {
			p.CommitEvidence = archive.EvidenceDigest(m.GetEvidence())
		}
		if defect := v.evidence(m); defect != "" {
			return defect
		}
		fallthrough
	case stepFailed, stepCancelled, held:
		r.Status, r.Lease = Closed, leaseSettled
	}
	v.out.Events = append(v.out.Events, m)
	return ""
}

// lease holds a lease of an event to the snapshot's command list and to control's row.
func (v *snapshotCheck) lease(id uuid.UUID) string {
	listed, r := v.leases[id], v.job.Command(id)
	switch {
	case listed == nil:
		return "a lease is not in the snapshot's command list"
	case r == nil || r.Role != v.role || !r.isLease():
		return "a lease is unknown to control"
	case listed.GetLeaseState() == leaseRetired || r.Lease == leaseRetired || r.Status == Superseded:
		return "a lease is retired"
	case listed.GetStatus() != pb.AckStatus_ACK_STATUS_ACCEPTED && listed.GetStatus() != pb.AckStatus_ACK_STATUS_DUPLICATE:
		return "a lease was not accepted by the daemon"
	case listed.GetPayloadSha256() != r.Payload:
		return "a lease has another payload"
	case r.closed():
		return "a lease is closed"
	case r.Status != Accepted && !r.EverSent:
		return "a lease was never sent"
	}
	return ""
}

// evidence compares the snapshot's latest evidence of a step with that of the event, and with what control has stored.
func (v *snapshotCheck) evidence(m *pb.JobEvent) string {
	for _, e := range v.s.Evidence {
		if evidenceStep(e) == m.GetStep() && archive.EvidenceDigest(e) != archive.EvidenceDigest(m.GetEvidence()) && v.latest(m) {
			return "the evidence of a step is not that of its event"
		}
	}
	return ""
}

// latest reports whether no later event of the snapshot completes the same step.
func (v *snapshotCheck) latest(m *pb.JobEvent) bool {
	for _, e := range v.s.Events {
		if e.GetKind() == stepCompleted && e.GetStep() == m.GetStep() && e.GetSequence() > m.GetSequence() {
			return false
		}
	}
	return true
}

// finish compares the end of the events with the cursor.
func (v *snapshotCheck) finish(p *Participant, fresh int) string {
	k := &v.s.Cursor
	own := v.job.Position
	if fresh == 0 {
		own = p.Position // it may not know the other participant's last events
	}
	if k.Position != own {
		return "the events do not lead to the cursor"
	}
	for step, stored := range v.known.Evidence {
		if v.job.executor(step) != v.role {
			continue
		}
		for _, e := range v.s.Evidence {
			if evidenceStep(e) == step && !v.completedAnew(step) && archive.EvidenceDigest(e) != archive.EvidenceDigest(stored) {
				return "the evidence of a step differs from control's copy"
			}
		}
	}
	switch {
	case p.Committed && !k.Committed:
		return "the commit flag went back"
	case k.Committed && !v.job.commitSent(v.role):
		return "the daemon commits and was never told to"
	case k.CommitEvidence != "" && p.CommitEvidence != "" && k.CommitEvidence != p.CommitEvidence:
		return "the digest of the commit evidence is not that of the evidence"
	case k.CommitEvidence != "" && p.CommitEvidence == "":
		return "the cursor has commit evidence and no event brings it"
	}
	if k.Committed && !p.Committed {
		v.out.CommitSeen = &CommitSeen{Role: v.role}
	}
	return ""
}

func (v *snapshotCheck) completedAnew(step pb.JobStep) bool {
	for _, m := range v.out.Events {
		if m.GetKind() == stepCompleted && m.GetStep() == step {
			return true
		}
	}
	return false
}

// SnapshotFailed is what follows a snapshot that is not valid (4.4): MANUAL if the cursor or an event is committed, else a
// ReconcileJob RESUME to control's job cursor that retires all in K's lists and every unclosed lease of the daemon.
// in.K is the snapshot's cursor, or the last one reported when the snapshot has none; in.Snapshot the request.
func SnapshotFailed(in Input, checked Checked) Outcome {
	c := begin(in.Job)
	p := c.party(in.Role)
	if p == nil {
		return Outcome{RowForeign, c.job, c.actions}
	}
	if in.K == nil {
		in.K = p.Reported
	}
	if in.K == nil || terminal(c.job.State) || c.job.State == manual {
		return Decide(in) // nothing of the snapshot is used
	}
	d := &decision{change: c, in: in, p: p, k: in.K}
	d.report()
	d.endSnapshots()
	switch {
	case checked.Committed || d.k.Committed:
		d.hold(codeCommit)
	default:
		d.resume(d.retireSet(in.Role, d.k), codeSequence)
	}
	c.settle()
	return Outcome{RowSnapshot, c.job, c.actions}
}

// SnapshotLate decides about a participant whose snapshot was promised and did not come. in.K is the cursor that it sent
// last. One that is older than what control has accepted of the daemon since says nothing about its leases (a row like 13a
// would call lost what was only begun later): then the answer to another request brings a fresh one.
func SnapshotLate(in Input) Outcome {
	c := begin(in.Job)
	p := c.party(in.Role)
	if p == nil || in.K == nil || !p.Position.Ahead(in.K.Position) || terminal(c.job.State) || c.job.State == manual {
		return Decide(in)
	}
	d := &decision{change: c, in: in, p: p, k: in.K}
	d.endSnapshots()
	p.Decided, p.Expecting = false, false
	if !c.job.reconciling(p.Role) {
		d.do(RequestSnapshot{p.Role})
		d.add(Command{Role: p.Role, Kind: archive.RequestJobSnapshot})
	}
	c.settle()
	return Outcome{RowSnapshot, c.job, c.actions}
}
