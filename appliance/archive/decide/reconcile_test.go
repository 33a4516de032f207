package decide

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// details writes what show leaves out and a decision is about.
func details(out Outcome) string {
	var words []string
	for _, a := range out.Actions {
		switch a := a.(type) {
		case Acknowledge:
			words = append(words, "acknowledge")
		case CloseLease:
			words = append(words, "close lease")
		case Resend:
			words = append(words, "resend")
		case RequestSnapshot:
			words = append(words, "snapshot")
		case Ack:
			if a.GoAhead {
				words = append(words, "go-ahead")
			} else {
				words = append(words, "ack")
			}
		case MakePlaceholder:
			words = append(words, "placeholder")
		case Reconcile:
			w := show([]Action{a})
			if len(a.Retire) > 0 {
				w += " retiring " + shortIDs(a.Retire)
			}
			words = append(words, w)
		default:
			if s := show([]Action{a}); s != "" {
				words = append(words, s)
			}
		}
	}
	return strings.Join(words, ", ")
}

func shortIDs(list []uuid.UUID) string {
	var out []string
	for _, id := range list {
		out = append(out, id.String()[34:])
	}
	return strings.Join(out, "+")
}

// TestEveryRowOfTheDecision shows the outcome of each row of 4.2 and 4.3 by an input that it decides.
func TestEveryRowOfTheDecision(t *testing.T) {
	t.Parallel()
	const step = materializeStep
	base := class{state: running, k: running, step: step, lease: ackedOpen}
	but := func(f func(*class)) class { c := base; f(&c); return c }
	pos := func(name string) int {
		return slices.IndexFunc(positions, func(p struct {
			name string
			k, p Position
		}) bool {
			return p.name == name
		})
	}
	lost := func(c *class) { c.k = noState }
	for _, row := range []struct {
		name    string
		class   class
		row     Row
		want    string
		actions string
	}{
		{"4.1 an unacknowledged ReconcileJob is sent again", but(func(c *class) { c.pending = 1 }), RowResend, "WAITING(RECONCILING) of RUNNING", "resend"},
		{"4.1 without attempts it is replaced", but(func(c *class) { c.pending, c.position = 2, pos("behind") }), Row17, "WAITING(RECONCILING) of RUNNING",
			"supersede, resume target retiring 14"},
		{"4.1 not to a rolled-back database", but(func(c *class) { c.pending, c.epoch = 1, 2 }), Row14, "RUNNING", "supersede, go-ahead"},
		{"1 digests differ", but(func(c *class) { c.def = 1 }), Row1, "MANUAL", "hold source, hold target, alert manual"},
		{"1a ended at the client", but(func(c *class) { c.k = failed }), Row1a, "MANUAL", "hold source, alert state_lost"},
		{"2 unknown and committed", but(func(c *class) { c.def, c.kFlag = 2, true }), Row2, "MANUAL",
			"alert placeholder, hold source, hold target, alert state_lost"},
		{"3 unknown, not committed", but(func(c *class) { c.def = 2 }), Row3, "FAILED", "release, alert placeholder, abandon target"},
		{"4 committed and FAILED here", but(func(c *class) { c.state, c.kFlag, c.step = failed, true, commitStep }), Row4, "MANUAL",
			"reserve again, hold source, hold target, alert commit_conflict"},
		{"4 committed and never told to", but(func(c *class) { c.kFlag = true }), Row4, "MANUAL", "hold source, hold target, alert commit_conflict"},
		{"5 the commit was forgotten", but(func(c *class) { c.pFlag = true }), Row5, "MANUAL", "hold source, hold target, alert commit_conflict"},
		{"6 two evidences", but(func(c *class) { c.pFlag, c.kFlag, c.evidence, c.step = true, true, true, commitStep }), Row6, "MANUAL",
			"hold source, hold target, alert commit_conflict"},
		{"7 two participants claim it", but(func(c *class) { c.kFlag, c.other, c.step = true, true, commitStep }), Row7, "MANUAL",
			"hold source, hold target, alert commit_conflict"},
		{"7a MANUAL, K is not", but(func(c *class) { c.state = manual }), Row7a, "MANUAL", "hold source, hold target"},
		{"7a MANUAL, K is too", but(func(c *class) { c.state, c.k = manual, manual }), Row7a, "MANUAL", "hold source"},
		{"7b cancelled without being asked", but(func(c *class) { c.k, c.lease = cancelled, leaseless }), Row7b, "MANUAL", "hold source, hold target, alert state_lost"},
		{"8 and 16 only the commit flag is ahead", but(func(c *class) { c.kFlag, c.step = true, commitStep }), Row16, "WAITING(RECONCILING) of RUNNING", "snapshot"},
		{"9 the AssignJob did not arrive", class{state: assigning, k: noState, step: step, assign: 1}, Row9, "ASSIGNING", "resend"},
		{"9 it was never sent", class{state: assigning, k: noState, step: step, assign: 2}, Row9, "ASSIGNING", ""},
		{"10 the client lost the job", but(lost), Row10, "WAITING(RECONCILING) of RUNNING", "alert state_lost, restore_definition target retiring 14"},
		{"10 the client lost a COMMIT", but(func(c *class) { lost(c); c.step = commitStep }), Row10, "MANUAL", "hold source, alert state_lost"},
		{"11 the same with a new epoch", but(func(c *class) { lost(c); c.epoch = 1 }), Row11, "WAITING(RECONCILING) of RUNNING",
			"alert state_lost, restore_definition target retiring 14"},
		{"12 K is MANUAL", but(func(c *class) { c.k = manual }), Row12, "MANUAL", "hold source, alert manual"},
		{"13 terminal, no lease open", but(func(c *class) { c.state, c.k, c.lease, c.outbox = completed, assigned, leaseless, true }), Row13, "COMPLETED",
			"ack, close target"},
		{"13 terminal, a lease open", but(func(c *class) { c.state, c.outbox = cancelled, true }), Row13, "CANCELLED", "ack, abandon target"},
		{"13 a person ended it", but(func(c *class) { c.state, c.person, c.k, c.lease = completed, true, manual, leaseless }), Row13, "COMPLETED", "abandon target"},
		{"13 over on both sides", but(func(c *class) { c.state = completed; lost(c) }), Row13, "COMPLETED", ""},
		{"13a an acknowledged lease is missing", but(func(c *class) { c.lease = ackedAbsent }), Row13a, "WAITING(RECONCILING) of RUNNING",
			"alert state_lost, resume target retiring 14"},
		{"13a a COMMIT is missing", but(func(c *class) { c.lease, c.step = ackedAbsent, commitStep }), Row13a, "MANUAL", "hold source, hold target, alert state_lost"},
		{"13a rolled back with a COMMIT out", but(func(c *class) { c.epoch, c.step = 2, commitStep }), Row13a, "MANUAL",
			"hold source, hold target, alert state_lost"},
		{"14 equal", base, Row14, "RUNNING", "go-ahead"},
		{"15 ahead and behind", but(func(c *class) { c.position = pos("mixed") }), Row15, "MANUAL", "hold source, hold target, alert state_lost"},
		{"16 control behind", but(func(c *class) { c.position = pos("ahead") }), Row16, "WAITING(RECONCILING) of RUNNING", "snapshot"},
		{"17 client behind", but(func(c *class) { c.position = pos("behind") }), Row17, "WAITING(RECONCILING) of RUNNING", "resume target retiring 14"},
		{"18 behind with events", but(func(c *class) { c.position, c.outbox = pos("behind"), true }), Row18, "WAITING(RECONCILING) of RUNNING",
			"resume target retiring 14"},
		{"18 behind with evidence", but(func(c *class) { c.position, c.outbox, c.lease = pos("behind"), true, ackedSettled }), Row18, "MANUAL",
			"hold source, hold target, alert manual"},
		{"17 behind and cancelled: wound down", but(func(c *class) { c.state, c.k, c.lease, c.position = cancelling, cancelled, leaseless, pos("behind") }), Row17,
			"CANCELLING(CANCELLED)", "cancel source"},

		{"4.3 AssignJob unacknowledged | listed", but(func(c *class) { c.assign = 1 }), Row14, "RUNNING", "acknowledge, go-ahead"},
		{"4.3 sent | open", but(func(c *class) { c.lease = sentOpen }), Row14, "RUNNING", "acknowledge, go-ahead"},
		{"4.3 sent | settled", but(func(c *class) { c.lease = sentSettled }), Row14, "RUNNING", "acknowledge, go-ahead"},
		{"4.3 sent | absent", but(func(c *class) { c.lease, c.k = sentAbsent, assigned }), Row14, "RUNNING", "resend, go-ahead"},
		{"4.3 sent | absent, no attempts left", but(func(c *class) { c.lease, c.k = parkedAbsent, assigned }), Row14, "WAITING(COMMAND_UNACKED) of RUNNING", "go-ahead"},
		{"4.3 never sent | absent", but(func(c *class) { c.lease, c.k = neverSent, assigned }), Row14, "RUNNING", "go-ahead"},
		{"4.3 acknowledged | settled", but(func(c *class) { c.lease, c.outbox = ackedSettled, true }), Row14, "RUNNING", "go-ahead"},
		{"4.3 withdrawn, CANCELLING | open", but(func(c *class) { c.state, c.lease = cancelling, withdrawnOpen }), Row14, "CANCELLING(CANCELLED)",
			"acknowledge, go-ahead, cancel target"},
		{"4.3 withdrawn | absent", but(func(c *class) { c.state, c.lease, c.k = cancelling, withdrawnAbsent, assigned }), Row14, "CANCELLING(CANCELLED)",
			"go-ahead, cancel target"},
		{"4.3 retired | open", but(func(c *class) { c.lease = retiredOpen }), Row14, "WAITING(RECONCILING) of RUNNING", "resume target retiring 14"},
		{"4.3 unknown | open", but(func(c *class) { c.lease = unknownOpen }), Row14, "WAITING(RECONCILING) of RUNNING", "resume target retiring 14"},
		{"4.3 closed | settled", but(func(c *class) { c.lease, c.k, c.outbox = closedSettled, assigned, true }), Row14, "RUNNING", "go-ahead, execute MATERIALIZE 2"},
		{"4.3 rejected | absent", but(func(c *class) { c.lease, c.k = rejectedAbsent, assigned }), Row14, "RUNNING", "go-ahead, execute MATERIALIZE 2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			out := Decide(row.class.input())
			if out.Row != row.row {
				t.Errorf("row %s, want %s", out.Row, row.row)
			}
			if got := stateOf(out.Job); got != row.want {
				t.Errorf("the job is %s, want %s", got, row.want)
			}
			if got := details(out); got != row.actions {
				t.Errorf("actions are\n  %s\nwant\n  %s", got, row.actions)
			}
		})
	}
}

// TestUnknownJobs: rows 2 and 3 where control has no row at all.
func TestUnknownJobs(t *testing.T) {
	t.Parallel()
	k := Cursor{Position: Position{4, 7}, Job: testID(1), State: running, Role: target, Definition: definitionA}
	out := Decide(Input{Role: target, K: &k, Registration: true})
	if out.Row != Row3 || out.Job.State != failed || !out.Job.Placeholder || details(out) != "placeholder, release, alert placeholder, abandon target" {
		t.Errorf("not committed: %s %s %s", out.Row, stateOf(out.Job), details(out))
	}
	k.Committed = true
	out = Decide(Input{Role: target, K: &k, Registration: true})
	if out.Row != Row2 || out.Job.State != manual || details(out) != "placeholder, alert placeholder, reserve, hold target, alert state_lost" {
		t.Errorf("committed: %s %s %s", out.Row, stateOf(out.Job), details(out))
	}
	h := out.Actions[len(out.Actions)-2].(Reconcile)
	if h.Definition != definitionA || h.Expected != k.Position || h.Authoritative.Position != k.Position || !h.Authoritative.Committed {
		t.Errorf("the HOLD must fit the daemon's own cursor: %+v", h)
	}
	// The other participant comes without the commit: the claim is not forgotten for it.
	j := out.Job
	j.Parties[0].Role = source
	k2 := Cursor{Position: Position{3, 5}, Job: testID(1), State: assigned, Role: source, Definition: definitionA}
	out = Decide(Input{Job: &j, Role: source, K: &k2, Registration: true})
	if out.Row != Row7a || out.Job.State != manual {
		t.Errorf("the other participant: %s %s", out.Row, stateOf(out.Job))
	}
	if _, _, err := Advance(out.Job, OperatorResume{}); err == nil {
		t.Error("a placeholder was resumed")
	}
}

// TestDecideAfterARefusal: what was refused is not said again without end.
func TestDecideAfterARefusal(t *testing.T) {
	t.Parallel()
	behind := class{state: running, k: running, step: materializeStep, lease: ackedOpen, position: 3}
	in := behind.input()
	first := Decide(in)
	r := first.Actions[0].(Reconcile)
	in = behind.input()
	in.Registration = false
	in.Refused = &Refused{Kind: archive.ReconcileJob, Disposition: resume, Expected: r.Expected, Retires: r.Retire, Code: codeCommit}
	if out := Decide(in); out.Job.State != manual {
		t.Errorf("the same RESUME again: %s, %s", stateOf(out.Job), details(out))
	}
	// BUSY without a finding waits.
	equal := class{state: running, k: assigned, step: materializeStep, lease: rejectedAbsent}
	in = equal.input()
	in.Refused = &Refused{Kind: archive.ExecuteStep, Code: codeBusy}
	if out := Decide(in); stateOf(out.Job) != "WAITING(RETRY_BACKOFF) of RUNNING" {
		t.Errorf("BUSY without a finding: %s", stateOf(out.Job))
	}
	// A HOLD that was refused comes again only with the next registration.
	in = class{state: manual, k: running, step: materializeStep, lease: ackedOpen}.input()
	in.Refused = &Refused{Kind: archive.ReconcileJob, Disposition: hold, Code: codeSequence}
	if out := Decide(in); details(out) != "hold source" {
		t.Errorf("after a refused HOLD: %s", details(out))
	}
	// A CloseJob that was refused at the very cursor becomes an ABANDON.
	in = class{state: completed, k: assigned, step: materializeStep}.input()
	in.Refused = &Refused{Kind: archive.CloseJob, Expected: Position{5, 9}, Code: codeUnsafe}
	if out := Decide(in); details(out) != "abandon target" {
		t.Errorf("after a refused CloseJob: %s", details(out))
	}
	// NOT_FOUND to a CancelJob without an acknowledged assignment is wound down.
	in = class{state: cancelling, k: noState, step: materializeStep, assign: 1}.input()
	in.Refused = &Refused{Kind: archive.CancelJob, Code: codeNotFound}
	if out := Decide(in); !out.Job.Party(target).WoundDown || details(out) != "resend, cancel source" {
		t.Errorf("NOT_FOUND to a CancelJob: %s, %s", stateOf(out.Job), details(out))
	}
}

func TestRollback(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		in   Registration
		want RollbackFinding
	}{
		{"a new daemon", Registration{}, RollbackFinding{Next: 1}},
		{"as usual", Registration{LastGeneration: 4, Issued: 4, Used: 4, Known: true, SameEpoch: true}, RollbackFinding{Next: 5}},
		{"the last response was lost", Registration{LastGeneration: 3, Issued: 4, Used: 3, Known: true, SameEpoch: true}, RollbackFinding{Next: 5}},
		{"the daemon's old copy", Registration{LastGeneration: 3, Issued: 4, Used: 4, Known: true, SameEpoch: true}, RollbackFinding{Daemon: true, Next: 5}},
		{"another database", Registration{LastGeneration: 0, Issued: 4, Used: 4, Known: true}, RollbackFinding{Next: 5}},
		{"control's old copy", Registration{LastGeneration: 9, Issued: 4, Used: 4, Known: true, SameEpoch: true}, RollbackFinding{Control: true, Next: 10}},
		{"control never heard of it", Registration{LastGeneration: 9}, RollbackFinding{Control: true, Next: 10}},
	} {
		if got := Rollback(row.in); got != row.want {
			t.Errorf("%s: %+v, want %+v", row.name, got, row.want)
		}
	}
}

func TestMaySend(t *testing.T) {
	t.Parallel()
	sendable := func(j Job, id uuid.UUID) bool { return MaySend(&j, j.Command(id)) }
	unsent := func(j *Job) { j.Commands[2].Status, j.Commands[2].Lease = Sent, leaseNone }
	if !sendable(jobIn(running).with(unsent), stepID) {
		t.Error("a step of a running job may go")
	}
	for name, f := range map[string]func(*Job){
		"acknowledged":                  func(j *Job) { j.Commands[2].Status = Accepted },
		"without attempts":              func(j *Job) { j.Commands[2].Status = Parked },
		"withdrawn":                     func(j *Job) { j.Commands[2].Status = Withdrawn },
		"to an undecided daemon":        func(j *Job) { j.Parties[1].Decided = false },
		"of a held job":                 func(j *Job) { j.State = manual },
		"of a job that waits for space": func(j *Job) { j.State, j.Kept, j.Wait = waiting, running, waitSpace },
		"of a job that winds down":      func(j *Job) { j.State = cancelling },
		"while an old copy waits for the others (4.6)": func(j *Job) {
			j.OldCopy, j.Parties[0].Registered = true, false
		},
		"before a ReconcileJob": func(j *Job) {
			j.Commands = append(j.Commands, Command{ID: resumeID, Role: target, Kind: archive.ReconcileJob, Disposition: hold, Status: Pending})
		},
	} {
		if sendable(jobIn(running).with(unsent).with(f), stepID) {
			t.Errorf("a step was sent: %s", name)
		}
	}
	waits := jobIn(running).with(unsent).with(func(j *Job) { j.State, j.Kept, j.Wait = waiting, running, waitReconcile })
	if !sendable(waits, stepID) {
		t.Error("a step to a decided daemon may go while the other reconciles")
	}
	if !sendable(retiring(), resumeID) {
		t.Error("a ReconcileJob may always go")
	}
	if !sendable(jobIn(completed), closeID) || sendable(jobIn(completed).with(func(j *Job) { j.State = manual }), closeID) {
		t.Error("a CloseJob goes when the job has ended, and only then")
	}
}

func TestNextWindDown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		job  Job
		want pb.ParticipantRole
	}{
		{"first the one whose step is active", jobIn(running), target},
		{"then the other", jobIn(running).with(func(j *Job) { j.Parties[1].WoundDown = true }), source},
		{"nobody is left", jobIn(running).with(func(j *Job) { j.Parties[0].WoundDown, j.Parties[1].WoundDown = true, true }), 0},
		{"nothing was ever assigned", jobIn(preflight), 0},
		{"an AssignJob was sent to one", jobIn(assigning).with(func(j *Job) { j.Commands[0].EverSent, j.Commands[0].Status = false, Pending }), target},
		{"the one being asked stays the one", cancelAcked().with(func(j *Job) { j.Completed = 0 }), target},
	} {
		role, ok := NextWindDown(&row.job)
		if role != row.want || ok != (row.want != 0) {
			t.Errorf("%s: %s %v", row.name, role, ok)
		}
	}
}

// TestCursorRoundTrip: a cursor survives its wire form.
func TestCursorRoundTrip(t *testing.T) {
	t.Parallel()
	k := class{state: running, k: running, step: materializeStep, lease: ackedOpen, outbox: true, kFlag: true, pFlag: true, evidence: true}.input().K
	k.ActiveStep, k.Settled = materializeStep, []uuid.UUID{testID(7)}
	back, err := ParseCursor(k.Message())
	if err != nil {
		t.Fatal(err)
	}
	if back.Position != k.Position || back.State != k.State || !slices.Equal(back.Open, k.Open) || !slices.Equal(back.Settled, k.Settled) ||
		back.Committed != k.Committed || back.CommitEvidence != k.CommitEvidence || back.OutboxFirst != k.OutboxFirst ||
		back.Definition != k.Definition || back.Role != k.Role || back.Job != k.Job || back.ActiveStep != k.ActiveStep {
		t.Errorf("got %+v, want %+v", back, *k)
	}
	for name, m := range map[string]*pb.JobCursor{
		"cursor.job_id":              {JobId: "x"},
		"cursor.open_command_ids":    {JobId: testID(1).String(), OpenCommandIds: []string{""}},
		"cursor.settled_command_ids": {JobId: testID(1).String(), SettledCommandIds: []string{"x"}},
	} {
		if _, err := ParseCursor(m); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	j := jobIn(running)
	v := View(&j, target)
	if v.Position != j.Parties[1].Position || len(v.Open) != 1 || v.Open[0] != stepID || v.ActiveStep != materializeStep || v.Definition != definitionA {
		t.Errorf("control's view: %+v", v)
	}
}

// TestSnapshotLateWithAnOldCursor: the cursor from before a step was accepted does not list it. The step is not lost.
func TestSnapshotLateWithAnOldCursor(t *testing.T) {
	t.Parallel()
	late := func(at Position) Outcome {
		j := jobIn(running).with(func(j *Job) {
			j.State, j.Kept, j.Wait = waiting, running, waitReconcile
			j.Parties[1].Decided = false
			j.Parties[1].Reported = &Cursor{Position: at, Job: j.ID, State: assigned, Role: target, Definition: definitionA}
			j.Commands = append(j.Commands, Command{ID: snapshotID, Role: target, Kind: archive.RequestJobSnapshot, Status: Accepted, EverSent: true})
		})
		in := Input{Job: &j, Role: target, K: j.Parties[1].Reported, Snapshot: snapshotID}
		if at == (Position{4, 8}) {
			if out := Decide(in); out.Row != Row13a {
				t.Errorf("the old cursor itself is decided by row %s", out.Row)
			}
		}
		return SnapshotLate(in)
	}
	out := late(Position{4, 8})
	if got := details(out); out.Row != RowSnapshot || got != "close lease, snapshot" || out.Job.State != waiting || out.Job.Wait != waitReconcile ||
		out.Job.Parties[1].Decided {
		t.Errorf("row %s: %s, the job is %v", out.Row, got, out.Job.State)
	}
	for at, row := range map[Position]Row{{5, 9}: Row13a, {6, 10}: Row16} { // as new as what control has: decided as any other
		if out := late(at); out.Row != row {
			t.Errorf("at %v: row %s, want %s", at, out.Row, row)
		}
	}
}
