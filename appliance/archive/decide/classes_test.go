package decide

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// The classes of each dimension of a decision (4.1). One value of every dimension makes one input.
type class struct {
	state    pb.JobState // of control; WAITING comes with kept and wait
	kept     pb.JobState
	wait     pb.WaitReason
	person   bool        // terminal by a person
	k        pb.JobState // of the daemon; noState: it does not list the job
	position int         // K against P: see positions
	kFlag    bool
	pFlag    bool
	evidence bool // both digests set, and different
	def      int  // 0 same, 1 differs, 2 control has none
	lease    int  // see leases
	step     pb.JobStep
	outbox   bool
	epoch    int // 0 same, 1 new, 2 rolled back
	assign   int // 0 acknowledged, 1 sent, 2 never sent
	other    bool
	pending  int // ReconcileJob: 0 none, 1 sent, 2 parked
}

func (c class) String() string {
	return fmt.Sprintf("control %s(%s,%s) person=%v K=%s position=%s flags K=%v P=%v evidence differs=%v def=%d lease=%s step=%s outbox=%v epoch=%d assign=%d other=%v reconcile=%d",
		stateText(c.state), stateText(c.kept), c.wait, c.person, stateText(c.k), positions[c.position].name, c.kFlag, c.pFlag, c.evidence,
		c.def, leases[c.lease], c.step, c.outbox, c.epoch, c.assign, c.other, c.pending)
}

var controlStates = []class{
	{state: pending}, {state: preflight}, {state: assigning}, {state: running}, {state: stalled},
	{state: waiting, kept: running, wait: waitReconcile}, {state: waiting, kept: running, wait: waitSpace},
	{state: waiting, kept: cancelling, wait: waitBackoff}, {state: cancelling}, {state: manual},
	{state: completed}, {state: failed}, {state: cancelled}, {state: completed, person: true}, {state: failed, person: true},
}

var daemonStates = []pb.JobState{noState, assigned, running, stalled, cancelling, cancelled, manual, completed, failed}

var positions = []struct {
	name string
	k, p Position
}{
	{"equal", Position{5, 9}, Position{5, 9}},
	{"ahead", Position{6, 11}, Position{5, 9}},
	{"ahead in sequence", Position{5, 11}, Position{5, 9}},
	{"behind", Position{4, 7}, Position{5, 9}},
	{"behind in revision", Position{4, 9}, Position{5, 9}},
	{"mixed", Position{6, 7}, Position{5, 9}},
	{"mixed the other way", Position{4, 11}, Position{5, 9}},
}

// The shapes of 4.3: what control's row says | where K has it.
const (
	leaseless = iota
	sentOpen
	sentSettled
	sentAbsent
	parkedAbsent
	neverSent
	ackedOpen
	ackedSettled
	ackedAbsent
	withdrawnOpen
	withdrawnAbsent
	retiredOpen
	unknownOpen
	closedSettled
	rejectedAbsent
	leaseShapes
)

var leases = [leaseShapes]string{"none", "sent|open", "sent|settled", "sent|absent", "parked|absent", "never sent|absent", "acked|open",
	"acked|settled", "acked|absent", "withdrawn|open", "withdrawn|absent", "retired|open", "unknown|open", "closed|settled", "rejected|absent"}

const (
	definitionA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	definitionB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func testID(n int) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[8:], uint64(n)) //nolint:gosec // small
	id[0] = 1
	return id
}

// input builds the input of a class: a TRANSFER seen at its target, with MATERIALIZE or COMMIT active.
func (c class) input() Input {
	pos := positions[c.position]
	j := Job{ID: testID(1), Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, Carrier: target, Definition: definitionA, State: c.state, Kept: c.kept,
		Wait: c.wait, Position: Position{5, 9}, Completed: 2, Allowance: archive.StepAttempts, EndedByPerson: c.person, RetentionOver: true,
		VerifyFresh: true}
	if c.winding() {
		j.Outcome = cancelled
	}
	commit := pb.JobStep_JOB_STEP_COMMIT
	if c.step == commit {
		j.Completed = 4
	}
	s := Participant{Role: source, Online: true, Decided: true, Assigned: true, State: assigned, Position: Position{3, 5}}
	t := Participant{Role: target, Online: true, Position: pos.p, State: running, Committed: c.pFlag}
	if c.other {
		s.Committed = true
	}
	if c.def == 2 {
		j.Definition = ""
	}
	add := func(r Command) { j.Commands = append(j.Commands, r) }
	switch c.assign {
	case 0:
		t.Assigned = true
		add(Command{ID: testID(10), Role: target, Kind: archive.AssignJob, Status: Accepted, EverSent: true})
	case 1:
		add(Command{ID: testID(10), Role: target, Kind: archive.AssignJob, Status: Sent, EverSent: true})
	case 2:
		add(Command{ID: testID(10), Role: target, Kind: archive.AssignJob, Status: Pending})
	}
	k := Cursor{Position: pos.k, Job: j.ID, State: c.k, Committed: c.kFlag, Role: target, Definition: definitionA}
	if c.def == 1 {
		k.Definition = definitionB
	}
	if c.evidence {
		k.CommitEvidence, t.CommitEvidence = definitionA, definitionB
	}
	if c.outbox {
		k.OutboxFirst = 2
	}
	lease := Command{ID: testID(20), Role: target, Kind: archive.ExecuteStep, Step: c.step, Attempt: 1, Status: Sent, EverSent: true,
		Expected: pos.p}
	switch c.lease {
	case sentOpen, sentSettled, sentAbsent:
	case parkedAbsent:
		lease.Status = Parked
	case neverSent:
		lease.Status, lease.EverSent = Pending, false
	case ackedOpen, ackedSettled, ackedAbsent:
		lease.Status, lease.Lease = Accepted, leaseOpen
	case withdrawnOpen, withdrawnAbsent:
		lease.Status = Withdrawn
	case retiredOpen:
		lease.Status, lease.Lease = Accepted, leaseRetired
	case closedSettled:
		lease.Status, lease.Lease = Closed, leaseSettled
	case rejectedAbsent:
		lease.Status, lease.Code = Rejected, codeBusy
	}
	if c.lease != leaseless && c.lease != unknownOpen {
		add(lease)
	}
	switch c.lease {
	case sentOpen, ackedOpen, withdrawnOpen, retiredOpen, unknownOpen:
		k.Open = []uuid.UUID{testID(20)}
	case sentSettled, ackedSettled, closedSettled:
		k.Settled = []uuid.UUID{testID(20)}
	}
	if c.pending > 0 {
		r := Command{ID: testID(30), Role: target, Kind: archive.ReconcileJob, Disposition: resume, Status: Sent, EverSent: true}
		if c.pending == 2 {
			r.Status = Parked
		}
		add(r)
	}
	j.Parties = [2]Participant{s, t}
	j.Committed = s.Committed || t.Committed
	in := Input{Job: &j, Role: target, Registration: true, NewEpoch: c.epoch == 1, RolledBack: c.epoch == 2}
	if c.k != noState {
		in.K = &k
	}
	return in
}

// rule is a row of the tables with its condition over the classes, written from the reference and not from the code.
type rule struct {
	row  Row
	when func(class) bool
}

var rules = []rule{
	{RowResend, func(c class) bool { return c.pending == 1 && c.epoch == 0 }},
	{Row1, func(c class) bool { return c.listed() && c.def == 1 && !c.person && !(c.over() && c.kEnded()) }},
	{Row1a, func(c class) bool { return c.listed() && c.def != 2 && c.kEnded() && !c.over() }},
	{Row2, func(c class) bool { return c.listed() && c.def == 2 && c.kFlag && !c.decidedByPerson() }},
	{Row3, func(c class) bool { return c.listed() && c.def == 2 && !c.kFlag && !c.decidedByPerson() }},
	{Row4, func(c class) bool {
		return c.listed() && c.kFlag && !c.decidedByPerson() && (c.state == cancelled || c.state == failed || !c.commitEverSent())
	}},
	{Row5, func(c class) bool {
		return c.listed() && !c.kFlag && (c.pFlag || c.evidence) && !c.decidedByPerson()
	}},
	{Row6, func(c class) bool { return c.listed() && c.kFlag && c.pFlag && c.evidence && !c.decidedByPerson() }},
	{Row7, func(c class) bool { return c.listed() && c.kFlag && c.other && !c.decidedByPerson() }},
	{Row7a, func(c class) bool { return c.state == manual }},
	{Row7b, func(c class) bool {
		return (c.k == cancelling || c.k == cancelled) && !c.winding() && !c.over()
	}},
	{Row13, func(c class) bool { return !c.listed() && c.over() }},
	{Row9, func(c class) bool { return !c.listed() && c.assign != 0 && !c.leaseAcked() }},
	{Row10, func(c class) bool { return !c.listed() && c.epoch != 1 }},
	{Row11, func(c class) bool { return !c.listed() }},
	{Row12, func(c class) bool { return c.k == manual && !c.person }},
	{Row13, func(c class) bool { return c.over() }},
	{Row13a, func(c class) bool {
		if c.kAhead() || c.kFlag && !c.pFlag {
			return false
		}
		out := c.step == pb.JobStep_JOB_STEP_COMMIT && slices.Contains([]int{sentOpen, sentSettled, sentAbsent, parkedAbsent, ackedOpen, ackedSettled,
			ackedAbsent, withdrawnOpen, withdrawnAbsent}, c.lease)
		return c.lease == ackedAbsent || c.epoch == 2 && out
	}},
	{Row14, func(c class) bool { return positions[c.position].name == "equal" && c.kFlag == c.pFlag }},
	{Row15, func(c class) bool { return c.kAhead() && c.kBehind() }},
	{Row16, func(c class) bool { return c.kAhead() || c.kFlag && !c.pFlag }},
	{Row17, func(c class) bool { return c.kBehind() && !c.outbox }},
	{Row18, func(c class) bool { return c.kBehind() }},
	{Row19, func(class) bool { return true }},
}

func (c class) winding() bool { return c.state == cancelling || c.kept == cancelling }
func (c class) listed() bool  { return c.k != noState }
func (c class) over() bool    { return c.state >= completed }
func (c class) kEnded() bool  { return c.k == completed || c.k == failed }
func (c class) kAhead() bool {
	p := positions[c.position]
	return p.k.Revision > p.p.Revision || p.k.Sequence > p.p.Sequence
}
func (c class) kBehind() bool {
	p := positions[c.position]
	return p.k.Revision < p.p.Revision || p.k.Sequence < p.p.Sequence
}
func (c class) decidedByPerson() bool { return c.person && (c.pFlag || !c.kFlag) }
func (c class) commitEverSent() bool {
	return c.step == pb.JobStep_JOB_STEP_COMMIT && c.lease != leaseless && c.lease != neverSent && c.lease != unknownOpen
}
func (c class) leaseAcked() bool {
	return slices.Contains([]int{ackedOpen, ackedSettled, ackedAbsent, retiredOpen, closedSettled}, c.lease)
}

// sensible leaves out what cannot be built: evidence of a job without flags, a lease in the lists of no cursor.
func (c class) sensible() bool {
	if c.evidence && !(c.kFlag && c.pFlag) {
		return false
	}
	return c.listed() || !c.kFlag && !c.outbox && c.position == 0 && !slices.Contains([]int{sentOpen, sentSettled, unknownOpen}, c.lease)
}

// check runs one class: the row is the first that matches, and the invariants hold. It returns the row.
func (c class) check(t *testing.T, n int) Row {
	t.Helper()
	in := c.input()
	before := *in.Job
	before.Commands = slices.Clone(in.Job.Commands)
	out := Decide(in)

	want := Row("")
	for _, r := range rules {
		if r.when(c) {
			want = r.row
			break
		}
	}
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("%s\n row %s, job %s(%s,%s) actions %#v\n%s", c, out.Row, stateText(out.Job.State), stateText(out.Job.Kept), out.Job.Wait,
			out.Actions, fmt.Sprintf(format, args...))
	}
	if out.Row != want {
		fail("want row %s", want)
	}
	if out.Row == Row19 {
		fail("row 19 is a defect")
	}
	if n%32 == 0 && !reflect.DeepEqual(before, *in.Job) { // slow
		fail("the input was changed")
	}
	if c.winding() && before.Committed {
		return out.Row // no job gets there: TestSimulation looks for it. The decision is defined all the same.
	}
	if problem := invariants(&before, in.K, in.Role, out); problem != "" {
		fail("%s", problem)
	}
	return out.Row
}

// invariants returns what is wrong with a decision, "" when nothing is.
func invariants(before *Job, k *Cursor, role pb.ParticipantRole, out Outcome) string {
	j := &out.Job
	p := j.Party(role)
	if before.Committed && !j.Committed {
		return "the job's commit flag was cleared"
	}
	for i := range j.Parties {
		if before.Parties[i].Committed && !j.Parties[i].Committed {
			return "a commit flag was cleared"
		}
	}
	if out.Row == Row4 || out.Row == Row5 || out.Row == Row6 || out.Row == Row7 {
		if j.State != manual {
			return "a commit conflict must be MANUAL"
		}
	}
	for _, a := range out.Actions {
		switch a := a.(type) {
		case Cancel, Close, Execute, Assign, Release:
			if j.State == manual {
				return fmt.Sprintf("MANUAL commands %T", a)
			}
		case Reconcile:
			if j.State == manual && a.Disposition != hold {
				return "MANUAL sends more than HOLD"
			}
			if k != nil && a.Role == role && k.Committed && !a.Authoritative.Committed {
				return "the ReconcileJob would clear the commit flag"
			}
			if k != nil && a.Role == role && a.Disposition == resume && (k.State == cancelling || k.State == cancelled) {
				return "RESUME to a daemon that undoes"
			}
			if k != nil && a.Role == role && (a.Expected.Revision < k.Revision || a.Expected.Sequence < k.Sequence) {
				return "the ReconcileJob expects less than the daemon reported"
			}
			if a.Role == role && k != nil && k.Ended() {
				return "a command to a daemon where the job has ended"
			}
		case Ack:
			if a.GoAhead && (p == nil || !p.Decided) {
				return "a go-ahead for an undecided job"
			}
		}
	}
	if j.effective() == cancelling && j.Committed {
		return "a committed job is wound down"
	}
	if n := executing(j); n > 1 {
		return "two ExecuteSteps are unretired"
	}
	return stuck(j, role)
}

func executing(j *Job) int {
	n := 0
	for i := range j.Commands {
		r := &j.Commands[i]
		if r.Kind == archive.ExecuteStep && !r.closed() && (r.unacked() || r.EverSent || r.Status == Accepted) {
			n++
		}
	}
	return n
}

// stuck says why a job could rest for ever without a reason that somebody or something ends.
func stuck(j *Job, role pb.ParticipantRole) string {
	if terminal(j.State) || j.State == manual || j.State == pending || j.State == preflight {
		return ""
	}
	if p := j.Party(role); p != nil && !p.Decided && !j.reconciling(role) && p.Online && j.has(p) {
		return "undecided, and nothing on its way that decides it"
	}
	switch j.State {
	case waiting:
		if j.Wait == 0 || j.Kept == noState || j.Kept == waiting {
			return "WAITING without a reason or a state to return to"
		}
	case assigning:
		for _, r := range j.roles() {
			if p := j.Party(r); !p.Assigned && !slices.ContainsFunc(j.Commands, func(c Command) bool {
				return c.Role == r && c.Kind == archive.AssignJob && c.unacked()
			}) {
				return "ASSIGNING without an AssignJob"
			}
		}
	case running, stalled:
		if executing(j) != 1 {
			return "RUNNING without an ExecuteStep"
		}
	case cancelling:
		if !slices.ContainsFunc(j.Commands, func(c Command) bool { return c.Kind == archive.CancelJob && (c.unacked() || c.open()) }) {
			return "CANCELLING without a CancelJob"
		}
	}
	return ""
}

// TestDecideEveryClass runs the decision over the combinations of the classes, in products: all of K and its leases;
// definitions, assignments and the other participant; unacknowledged ReconcileJobs.
func TestDecideEveryClass(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	hits := map[Row]int{}
	n := 0
	t.Run("control", func(t *testing.T) {
		for _, c := range controlStates {
			t.Run(fmt.Sprintf("%s %s %v", stateText(c.state), c.wait, c.person), func(t *testing.T) {
				t.Parallel()
				mine := map[Row]int{}
				i := 0
				products(c, func(c class) {
					if c.sensible() {
						mine[c.check(t, i)]++
						i++
					}
				})
				mu.Lock()
				defer mu.Unlock()
				for row, k := range mine {
					hits[row] += k
					n += k
				}
			})
		}
	})
	t.Logf("%d classes: %v", n, hits)
	for _, r := range rules {
		if r.row != Row19 && hits[r.row] == 0 {
			t.Errorf("row %s was never reached", r.row)
		}
	}
	if hits[Row19] != 0 {
		t.Error("row 19 was reached")
	}
}

// products calls run for every class of one state of control.
func products(c class, run func(class)) {
	steps := []pb.JobStep{pb.JobStep_JOB_STEP_MATERIALIZE, pb.JobStep_JOB_STEP_COMMIT}
	bools := []bool{false, true}
	for _, c.k = range daemonStates {
		for _, c.kFlag = range bools {
			for _, c.pFlag = range bools {
				for _, c.step = range steps {
					flagged := c
					for _, c.position = range []int{0, 1, 3, 5} {
						for c.lease = range leaseShapes {
							for _, c.outbox = range bools {
								run(c)
							}
						}
					}
					c = flagged
					for c.lease = range leaseShapes {
						c.epoch = 2
						run(c)
					}
					c = flagged
					for c.position = range positions {
						for c.epoch = range 3 {
							for c.pending = range 3 {
								run(c)
							}
						}
					}
					c = flagged
					for _, c.position = range []int{0, 1, 3} {
						for _, c.evidence = range bools {
							for c.def = range 3 {
								for c.assign = range 3 {
									for _, c.other = range bools {
										for _, c.lease = range []int{leaseless, sentAbsent, ackedOpen} {
											run(c)
										}
									}
								}
							}
						}
					}
					c = flagged
				}
			}
		}
	}
}
