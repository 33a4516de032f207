package decide

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// eventOf is a message of the target under the open lease of jobIn(running), the next in order.
func eventOf(kind pb.JobEventKind, change ...func(*pb.JobEvent)) *pb.JobEvent {
	m := &pb.JobEvent{EventId: testID(500).String(), JobId: testID(1).String(), Sequence: 10, ResultingRevision: 5 + revisionStepModel(kind),
		CommandId: stepID.String(), Kind: kind, Step: materializeStep, State: running}
	if kind == stepCompleted {
		m.Evidence = modelEvidence(&modelLease{id: stepID, step: materializeStep})
	}
	for _, f := range change {
		f(m)
	}
	return m
}

func arrive(m *pb.JobEvent) Arrival {
	return Arrival{Role: target, Message: m, ID: uuid.MustParse(m.GetEventId()), Command: uuid.MustParse(m.GetCommandId())}
}

// TestJudge walks the acceptance rules of 2.8.
func TestJudge(t *testing.T) {
	t.Parallel()
	plain := eventOf(progressed)
	stored := proto.CloneOf(plain)
	other := eventOf(progressed, func(m *pb.JobEvent) { m.ResultingRevision = 4 })
	unacked := func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Sent, leaseNone }
	committed := func(m *pb.JobEvent) { m.Committed = true }
	for _, row := range []struct {
		name   string
		job    Job
		a      Arrival
		ruling Ruling
		code   pb.ErrorCode
	}{
		{"the next event", jobIn(running), arrive(plain), Accept, 0},
		{"a terminal event", jobIn(running), arrive(eventOf(stepCompleted)), Accept, 0},
		{"of a held job", jobIn(manual), arrive(plain), Accept, 0},
		{"of a job that winds down", jobIn(cancelling), arrive(plain), Accept, 0},
		{"identical repetition", jobIn(running), with(arrive(plain), func(a *Arrival) { a.ByID, a.BySeq = stored, stored }), Repeat, 0},
		{"identical repetition after the end", jobIn(completed), with(arrive(plain), func(a *Arrival) { a.ByID, a.BySeq = stored, stored }), Repeat, 0},
		{"same id, other content", jobIn(running), with(arrive(plain), func(a *Arrival) { a.ByID = other }), Refuse, codeEvent},
		{"same sequence, other content", jobIn(running), with(arrive(plain), func(a *Arrival) { a.BySeq = other }), Refuse, codeEvent},
		{"same id in another place", jobIn(running), with(arrive(plain), func(a *Arrival) { a.ByID, a.BySeq = stored, other }), Refuse, codeEvent},
		{"a sequence that was used and is not kept", jobIn(running), arrive(eventOf(progressed, func(m *pb.JobEvent) { m.Sequence = 9 })), Refuse, codeEvent},
		{"a gap", jobIn(running), arrive(eventOf(progressed, func(m *pb.JobEvent) { m.Sequence = 12 })), Refuse, codeSequence},
		{"a gap after the go-ahead", jobIn(running).with(func(j *Job) { j.Parties[1].Expecting = true }),
			arrive(eventOf(progressed, func(m *pb.JobEvent) { m.Sequence = 12 })), Drop, 0},
		{"last + 1 after the go-ahead", jobIn(running).with(func(j *Job) { j.Parties[1].Expecting = true }), arrive(plain), Accept, 0},
		{"the revision does not follow", jobIn(running), arrive(eventOf(stepFailed, func(m *pb.JobEvent) { m.ResultingRevision = 5 })), Refuse, codeRevision},
		{"undecided", jobIn(running).with(func(j *Job) { j.Parties[1].Decided = false }), arrive(plain), Drop, 0},
		{"a ReconcileJob is open", retiring().with(func(j *Job) { j.Parties[1].Decided = true }), arrive(plain), Drop, 0},
		{"of a client without part", jobIn(running).with(func(j *Job) { j.Parties[0] = Participant{} }), with(arrive(plain), func(a *Arrival) { a.Role = source }), Refuse, codeLease},
		{"of the other client", jobIn(running), with(arrive(plain), func(a *Arrival) { a.Role = source }), Refuse, codeLease},
		{"an unknown command", jobIn(running), with(arrive(plain), func(a *Arrival) { a.Command = testID(999) }), Refuse, codeLease},
		{"a command that is no lease", jobIn(running), with(arrive(plain), func(a *Arrival) { a.Command = assignTarget }), Refuse, codeLease},
		{"a retired lease", jobIn(running).with(func(j *Job) { j.Commands[2].Lease = leaseRetired }), arrive(plain), Drop, 0},
		{"a closed lease", jobIn(running).with(func(j *Job) { j.Commands[2].Lease = leaseSettled }), arrive(plain), Refuse, codeLease},
		{"a rejected command", jobIn(running).with(func(j *Job) { j.Commands[2].Status = Rejected }), arrive(plain), Refuse, codeLease},
		{"a command in conflict", jobIn(running).with(func(j *Job) { j.Commands[2].Status = Conflicted }), arrive(plain), Refuse, codeLease},
		{"a command that was never sent", jobIn(running).with(unacked).with(func(j *Job) { j.Commands[2].EverSent = false }), arrive(plain), Refuse, codeLease},
		{"a sent command", jobIn(running).with(unacked), arrive(plain), Aside, 0},
		{"a withdrawn command", jobIn(cancelling).with(func(j *Job) { j.Commands[2].Status = Withdrawn }), arrive(plain), Aside, 0},
		{"a sent command, the 65th event", jobIn(running).with(unacked), with(arrive(plain), func(a *Arrival) { a.Aside = MaxAside }), Drop, 0},
		{"another step", jobIn(running), arrive(eventOf(progressed, func(m *pb.JobEvent) { m.Step = commitStep })), Refuse, codeLease},
		{"evidence of another step", jobIn(running), arrive(eventOf(stepCompleted, func(m *pb.JobEvent) {
			m.Evidence = modelEvidence(&modelLease{id: stepID, step: commitStep})
		})), Refuse, codeInvalid},
		{"STEP_CANCELLED under an ExecuteStep", jobIn(running), arrive(eventOf(stepCancelled)), Refuse, codeLease},
		{"STEP_CANCELLED under its CancelJob", cancelAcked(), arrive(cancelledEvent()), Accept, 0},
		{"PROGRESS under a CancelJob", cancelAcked(), arrive(eventOf(progressed, func(m *pb.JobEvent) { m.CommandId = cancelID.String() })), Refuse, codeLease},
		{"a refused event of a held job", jobIn(manual), arrive(eventOf(progressed, func(m *pb.JobEvent) { m.Sequence = 12 })), Drop, 0},
		{"an event of an ended job", jobIn(completed), arrive(plain), Drop, 0},
		{"a commit of an ended job", jobIn(cancelled), arrive(eventOf(progressed, committed)), Clash, codeCommit},
		{"a commit that nobody asked for", jobIn(running), arrive(eventOf(progressed, committed)), Clash, codeCommit},
		{"a commit under COMMIT", jobIn(running).with(func(j *Job) { j.Commands[2].Step = commitStep }),
			arrive(eventOf(progressed, committed, func(m *pb.JobEvent) { m.Step = commitStep })), Accept, 0},
		{"the commit flag went back", jobIn(running).with(func(j *Job) { j.Parties[1].Committed = true }), arrive(plain), Clash, codeCommit},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			v := Judge(&row.job, row.a)
			if v.Ruling != row.ruling || v.Code != row.code {
				t.Errorf("got %+v, want ruling %d, code %s", v, row.ruling, row.code)
			}
			if v.Reason == "" && v.Ruling != Accept && v.Ruling != Repeat {
				t.Error("the verdict does not say why")
			}
		})
	}
}

func cancelledEvent() *pb.JobEvent {
	return eventOf(stepCancelled, func(m *pb.JobEvent) { m.CommandId, m.Step = cancelID.String(), noStep })
}

func with(a Arrival, f func(*Arrival)) Arrival {
	f(&a)
	return a
}

// snapshotOf is a valid snapshot of the target: two events that control holds and two new ones, the last of which completes
// the step, with what control holds beside it.
func snapshotOf() (Job, Snapshot, Known) {
	j := jobIn(running)
	j.Commands[2].Payload = definitionB
	event := func(seq, rev uint64, kind pb.JobEventKind) *pb.JobEvent {
		return eventOf(kind, func(m *pb.JobEvent) {
			m.EventId, m.Sequence, m.ResultingRevision = testID(int(600+seq)).String(), seq, rev
		}) //nolint:gosec // small
	}
	own := []*pb.JobEvent{event(8, 5, progressed), event(9, 5, progressed)}
	fresh := []*pb.JobEvent{event(10, 5, progressed), event(11, 6, stepCompleted)}
	k := Cursor{Position: Position{6, 11}, Job: j.ID, State: assigned, Role: target, Definition: definitionA, Settled: []uuid.UUID{stepID}, OutboxFirst: 10}
	s := Snapshot{Cursor: k, Epoch: testID(70), Complete: true, Events: append(slices.Clone(own), fresh...),
		Commands: []*pb.CommandRecord{{CommandId: stepID.String(), PayloadSha256: definitionB, Status: accepted, LeaseState: leaseSettled, Step: materializeStep}},
		Evidence: []*pb.StepEvidence{fresh[1].Evidence}}
	known := Known{Epoch: testID(70), Events: []Stored{{Role: source, Message: event(7, 5, progressed)}, {Role: target, Message: proto.CloneOf(own[0])},
		{Role: target, Message: proto.CloneOf(own[1])}}}
	return j, s, known
}

func TestValidateSnapshot(t *testing.T) {
	t.Parallel()
	j, s, known := snapshotOf()
	c := ValidateSnapshot(&j, target, s, known)
	if c.Defect != "" || len(c.Events) != 2 || c.CommitSeen != nil || c.Committed {
		t.Fatalf("a valid snapshot: %+v", c)
	}
	if j.Position != (Position{5, 9}) {
		t.Error("the job was changed")
	}
	for _, state := range []pb.JobState{manual, completed, failed, cancelled} {
		j, s, known := snapshotOf()
		j.State = state
		if c := ValidateSnapshot(&j, target, s, known); c.Defect != "" || len(c.Events) != 0 {
			t.Errorf("a job that is %s takes events: %+v", stateText(state), c)
		}
	}
	// Only the commit flag is ahead.
	flag := func(j *Job, s *Snapshot, _ *Known) {
		j.Commands[2].Step, s.Events, s.Cursor.Position, s.Cursor.Committed = commitStep, s.Events[:2], Position{5, 9}, true
	}
	j, s, known = snapshotOf()
	flag(&j, &s, &known)
	if c := ValidateSnapshot(&j, target, s, known); c.Defect != "" || c.CommitSeen == nil || len(c.Events) != 0 || !c.Committed {
		t.Errorf("only the commit flag is ahead: %+v", c)
	}
	for name, f := range map[string]func(*Job, *Snapshot, *Known){
		"a part is missing":          func(_ *Job, s *Snapshot, _ *Known) { s.Complete = false },
		"the daemon could not":       func(_ *Job, s *Snapshot, _ *Known) { s.Failed = codeLost },
		"another epoch":              func(_ *Job, s *Snapshot, _ *Known) { s.Epoch = testID(71) },
		"another job":                func(_ *Job, s *Snapshot, _ *Known) { s.Cursor.Job = testID(2) },
		"another definition":         func(_ *Job, s *Snapshot, _ *Known) { s.Cursor.Definition = definitionB },
		"a held event differs":       func(_ *Job, _ *Snapshot, k *Known) { k.Events[1].Message.ResultingRevision = 4 },
		"a held event is missing":    func(_ *Job, s *Snapshot, _ *Known) { s.Events = append(s.Events[:1:1], s.Events[2:]...) },
		"a held event is unknown":    func(_ *Job, _ *Snapshot, k *Known) { k.Events = k.Events[:2] },
		"a sequence of the other":    func(_ *Job, _ *Snapshot, k *Known) { k.Events[1].Role = source },
		"not ascending":              func(_ *Job, s *Snapshot, _ *Known) { s.Events[1], s.Events[0] = s.Events[0], s.Events[1] },
		"a new event is missing":     func(_ *Job, s *Snapshot, _ *Known) { s.Events = append(s.Events[:2:2], s.Events[3]) },
		"the end is missing":         func(_ *Job, s *Snapshot, _ *Known) { s.Events = s.Events[:3] },
		"an event of another job":    func(_ *Job, s *Snapshot, _ *Known) { s.Events[2].JobId = testID(2).String() },
		"a revision does not follow": func(_ *Job, s *Snapshot, _ *Known) { s.Events[3].ResultingRevision = 7 },
		"an event after the end of its lease": func(_ *Job, s *Snapshot, _ *Known) {
			s.Events[2], s.Events[3] = s.Events[3], s.Events[2]
			s.Events[2].Sequence, s.Events[3].Sequence, s.Events[3].ResultingRevision = 10, 11, 6
		},
		"a lease is not listed":       func(_ *Job, s *Snapshot, _ *Known) { s.Commands = nil },
		"a lease is listed twice":     func(_ *Job, s *Snapshot, _ *Known) { s.Commands = append(s.Commands, s.Commands[0]) },
		"a lease was rejected":        func(_ *Job, s *Snapshot, _ *Known) { s.Commands[0].Status = rejected },
		"a lease is retired there":    func(_ *Job, s *Snapshot, _ *Known) { s.Commands[0].LeaseState = leaseRetired },
		"a lease is retired here":     func(j *Job, _ *Snapshot, _ *Known) { j.Commands[2].Lease = leaseRetired },
		"a lease is unknown":          func(j *Job, _ *Snapshot, _ *Known) { j.Commands = j.Commands[:2] },
		"a lease was never sent":      func(j *Job, _ *Snapshot, _ *Known) { j.Commands[2].Status, j.Commands[2].EverSent = Pending, false },
		"a lease has another payload": func(_ *Job, s *Snapshot, _ *Known) { s.Commands[0].PayloadSha256 = definitionA },
		"evidence of another result": func(_ *Job, s *Snapshot, _ *Known) {
			s.Evidence = []*pb.StepEvidence{modelEvidence(&modelLease{id: testID(9), step: materializeStep})}
		},
		"stored evidence differs": func(_ *Job, s *Snapshot, k *Known) {
			verify := pb.JobStep_JOB_STEP_VERIFY
			k.Evidence = map[pb.JobStep]*pb.StepEvidence{verify: modelEvidence(&modelLease{id: testID(8), step: verify})}
			s.Evidence = append(s.Evidence, modelEvidence(&modelLease{id: testID(9), step: verify}))
		},
		"a commit that nobody asked for": func(_ *Job, s *Snapshot, _ *Known) { s.Cursor.Committed = true },
		"the commit flag went back":      func(j *Job, _ *Snapshot, _ *Known) { j.Parties[1].Committed = true },
		"commit evidence without its event": func(j *Job, s *Snapshot, k *Known) {
			flag(j, s, k)
			s.Cursor.CommitEvidence = definitionA
		},
	} {
		j, s, known := snapshotOf()
		f(&j, &s, &known)
		if c := ValidateSnapshot(&j, target, s, known); c.Defect == "" || len(c.Events) != 0 {
			t.Errorf("%s: not noticed: %+v", name, c)
		}
	}
}

// TestSnapshotFailed: MANUAL if a commit is involved, else RESUME to control's cursor (4.4).
func TestSnapshotFailed(t *testing.T) {
	t.Parallel()
	in := class{state: running, k: running, step: materializeStep, lease: ackedOpen, position: 1}.input()
	in.Job.Commands = append(in.Job.Commands, Command{ID: snapshotID, Role: target, Kind: archive.RequestJobSnapshot, Status: Accepted, EverSent: true})
	in.Registration, in.Snapshot = false, snapshotID
	out := SnapshotFailed(in, Checked{Defect: "x"})
	if got := details(out); out.Row != RowSnapshot || got != "close lease, resume target retiring 14" {
		t.Errorf("not committed: %s", got)
	}
	if r := out.Actions[1].(Reconcile); r.Authoritative.Position != in.Job.Position || r.Expected != (Position{6, 11}) {
		t.Errorf("the RESUME: %+v", r)
	}
	out = SnapshotFailed(in, Checked{Defect: "x", Committed: true})
	if got := details(out); out.Job.State != manual || got != "close lease, hold source, hold target, alert commit_conflict" {
		t.Errorf("committed: %s %s", stateOf(out.Job), got)
	}
	in.Job.State = completed
	if out = SnapshotFailed(in, Checked{Defect: "x"}); out.Row != Row13 {
		t.Errorf("of an ended job: %s", out.Row)
	}
}
