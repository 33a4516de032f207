package decide

import (
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

func refuseEvent(code pb.ErrorCode, reason string) Verdict { return Verdict{Refuse, code, reason} }

func dropEvent(reason string) Verdict { return Verdict{Drop, codeNone, reason} }

// Judge decides what becomes of an event that came over the current generation of a connection (2.8). The message is
// valid field by field; its ids are parsed.
func Judge(j *Job, a Arrival) Verdict {
	m, p := a.Message, j.Party(a.Role)
	if p == nil {
		return refuseEvent(codeLease, "the daemon is no participant of the job")
	}
	if !p.Decided || j.reconciling(a.Role) { // 4.1
		return dropEvent("the job is not decided at the daemon")
	}
	if v, done := repeated(a); done {
		return v
	}
	if terminal(j.State) {
		if m.GetCommitted() && !p.Committed {
			return Verdict{Clash, codeCommit, "the job has ended and the daemon commits it"}
		}
		return dropEvent("the job has ended")
	}
	v := judgeLease(j, p, a)
	if v.Ruling == Refuse && j.State == manual { // nothing is commanded
		return dropEvent("held for a person: " + v.Reason)
	}
	return v
}

// repeated looks for the same event. An identical repetition is acknowledged again; the same id or sequence with other
// content is a conflict.
func repeated(a Arrival) (Verdict, bool) {
	switch {
	case a.ByID == nil && a.BySeq == nil:
		return Verdict{}, false
	case a.ByID != nil && a.BySeq != nil && proto.Equal(a.ByID, a.Message) && proto.Equal(a.BySeq, a.Message):
		return Verdict{Ruling: Repeat}, true
	case a.ByID != nil:
		return refuseEvent(codeEvent, "the event id is stored with other content"), true
	}
	return refuseEvent(codeEvent, "the sequence is stored with other content"), true
}

// judgeLease holds the event to its lease, then to the job's cursor.
func judgeLease(j *Job, p *Participant, a Arrival) Verdict {
	m, r := a.Message, j.Command(a.Command)
	switch {
	case r == nil:
		return refuseEvent(codeLease, "the command is unknown")
	case r.Role != a.Role || !r.isLease():
		return refuseEvent(codeLease, "the command is not a lease of the daemon")
	case r.Lease == leaseRetired:
		return dropEvent("the lease is retired, as the daemon knows")
	case r.closed():
		return refuseEvent(codeLease, "the lease is closed")
	case r.Status != Accepted && !r.EverSent:
		return refuseEvent(codeLease, "the command was never sent")
	case r.Status == Conflicted:
		return refuseEvent(codeLease, "the daemon holds another payload under the command")
	case r.Status != Accepted && a.Aside >= MaxAside:
		return dropEvent("too many events wait for the acknowledgement of the command")
	case r.Status != Accepted:
		return Verdict{Ruling: Aside, Reason: "the command is not acknowledged yet"}
	}
	return judgeCursor(j, p, r, a.Message, m.GetSequence())
}

func judgeCursor(j *Job, p *Participant, r *Command, m *pb.JobEvent, sequence uint64) Verdict {
	if v := judgeKind(j, r, m); v.Ruling != Accept {
		return v
	}
	switch {
	case sequence <= j.Sequence:
		return refuseEvent(codeEvent, "the sequence is used")
	case sequence > j.Sequence+1 && p.Expecting:
		return dropEvent("the event before it has not come since the go-ahead")
	case sequence > j.Sequence+1:
		return refuseEvent(codeSequence, "an event before it is missing")
	case m.GetResultingRevision() != j.Revision+revisionStep(m.GetKind()):
		return refuseEvent(codeRevision, "the revision does not follow")
	case p.Committed && !m.GetCommitted():
		return Verdict{Clash, codeCommit, "the commit flag went back"}
	case m.GetCommitted() && !p.Committed && !j.commitSent(r.Role):
		return Verdict{Clash, codeCommit, "the daemon commits and was never told to"}
	}
	return Verdict{Ruling: Accept}
}

// revisionStep is how far an event moves the revision (2.8, field 4).
func revisionStep(k pb.JobEventKind) uint64 {
	switch k {
	case progressed, stalledEvent, resumedEvent:
		return 0
	}
	return 1
}

// judgeKind holds kind and step to the lease and to the state of the job.
func judgeKind(j *Job, r *Command, m *pb.JobEvent) Verdict {
	accept := Verdict{Ruling: Accept}
	state := j.effective()
	if state == pending || state == preflight {
		return refuseEvent(codeLease, "the job is not assigned")
	}
	if r.Kind == archive.CancelJob {
		if k := m.GetKind(); k != stepCancelled && k != held {
			return refuseEvent(codeLease, "the kind does not belong to a CancelJob")
		}
		return accept
	}
	switch m.GetKind() {
	case stepStarted, progressed, stalledEvent, resumedEvent, stepCompleted, stepFailed, held:
	default:
		return refuseEvent(codeLease, "the kind does not belong to an ExecuteStep")
	}
	if m.GetStep() != r.Step {
		return refuseEvent(codeLease, "the step is not the leased one")
	}
	if m.GetKind() == stepCompleted && !proves(m.GetEvidence(), r.Step) {
		return refuseEvent(codeInvalid, "the evidence is of another step")
	}
	return accept
}

// proves reports whether evidence is of the step.
func proves(e *pb.StepEvidence, step pb.JobStep) bool { return evidenceStep(e) == step }

// evidenceStep returns the step that evidence belongs to.
func evidenceStep(e *pb.StepEvidence) pb.JobStep {
	switch e.GetEvidence().(type) {
	case *pb.StepEvidence_Stage:
		return pb.JobStep_JOB_STEP_STAGE
	case *pb.StepEvidence_Transfer:
		return pb.JobStep_JOB_STEP_TRANSFER
	case *pb.StepEvidence_Materialize:
		return pb.JobStep_JOB_STEP_MATERIALIZE
	case *pb.StepEvidence_Verify:
		return pb.JobStep_JOB_STEP_VERIFY
	case *pb.StepEvidence_Commit:
		return pb.JobStep_JOB_STEP_COMMIT
	case *pb.StepEvidence_Release:
		return pb.JobStep_JOB_STEP_RELEASE
	case *pb.StepEvidence_Purge:
		return pb.JobStep_JOB_STEP_PURGE
	}
	return noStep
}
