package daemon

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// world is the state that Decide works on, kept in memory the way the engine keeps it in the database.
type world struct {
	t        *testing.T
	job      *JobFacts
	leases   map[uuid.UUID]Lease // of any job, retired IDs included
	commands map[uuid.UUID]StoredCommand
	sent     []*pb.Command
	order    []uuid.UUID // of leases
	ids      int
}

// id makes the next UUID: the same script always makes the same ones.
func (w *world) id() uuid.UUID {
	w.ids++
	return uuid.NewSHA1(uuid.Nil, []byte{byte(w.ids >> 8), byte(w.ids)})
}

// step sends one command and checks what must hold whatever comes.
func (w *world) step(c *pb.Command) Outcome {
	w.t.Helper()
	f := testFacts(stAssigned)
	f.Job = nil
	if w.job != nil {
		j := *w.job
		j.Leases = slices.Clone(w.job.Leases)
		f.Job, f.ActiveJobs = &j, 1
	}
	id := uuid.MustParse(c.GetCommandId())
	if k, ok := w.commands[id]; ok {
		f.Known = &k
	}
	f.Retired = w.leases[id].State == stRetired
	for _, text := range c.GetReconcileJob().GetRetireCommandIds() {
		if l, ok := w.leases[uuid.MustParse(text)]; ok {
			f.Named[l.CommandID] = l
		}
	}
	payload, digest := frame.PayloadIdentity(c)
	f.Digest = digest
	o := Decide(c, f)
	if again := Decide(c, f); again.Status != o.Status || again.Error.GetCode() != o.Error.GetCode() {
		w.t.Fatalf("two answers to one question: %v and %v", o, again)
	}
	w.check(c, f, o)
	if o.Store {
		w.commands[id] = StoredCommand{ID: id, Payload: payload, Digest: digest, Status: o.Status, Error: o.Error}
		w.sent = append(w.sent, c)
	}
	w.apply(o)
	return o
}

func (w *world) check(c *pb.Command, f Facts, o Outcome) {
	w.t.Helper()
	if (f.Known != nil) != (o.Status == dup || o.Status == conflicts) {
		w.t.Fatalf("known %v, answer %v", f.Known != nil, o.Status)
	}
	if (o.Error == nil) != (o.Status == accept || o.Status == dup && o.Stored == accept) {
		w.t.Fatalf("%v with the error %v", o.Status, o.Error)
	}
	if f.Retired && f.Known == nil && o.Status == accept {
		w.t.Fatal("a retired command was accepted")
	}
	if w.job == nil || o.Job == nil {
		return
	}
	was, is := w.job.Row, *o.Job
	switch {
	case was.Committed && !is.Committed:
		w.t.Fatalf("%s cleared the commit flag", archive.KindOf(c))
	case was.Ended:
		w.t.Fatalf("%s changed a job that has ended", archive.KindOf(c))
	case was.Undone && (is.State == stAssigned || is.State == stRunning):
		w.t.Fatalf("%s revived a cancelled job", archive.KindOf(c))
	case is.ConfirmedSequence > is.Sequence || is.ConfirmedRevision > is.Revision:
		w.t.Fatalf("%s: confirmed beyond the cursor: %+v", archive.KindOf(c), is)
	}
	for _, l := range o.Leases {
		if old := w.leases[l.CommandID]; pastCommit(was, old) && l.State != stOpen && (c.GetReconcileJob() == nil || was.State != stManual) {
			w.t.Fatalf("%s took a lease past its commit point", archive.KindOf(c))
		}
	}
}

// apply does what the engine's transaction does.
func (w *world) apply(o Outcome) {
	w.t.Helper()
	if o.NewJob != nil {
		w.job = &JobFacts{Row: *o.NewJob}
	}
	if o.Job != nil {
		w.job.Row = *o.Job
	}
	for _, l := range o.Leases {
		w.put(l)
	}
	if w.job == nil {
		return
	}
	w.job.Unacked = slices.DeleteFunc(w.job.Unacked, func(id uuid.UUID) bool {
		return o.DropOutbox || o.AckAll || o.DropAbove != nil && slices.Contains(o.DropEvents, id)
	})
	open := 0
	for _, l := range w.job.Leases {
		if l.State == stOpen {
			open++
		}
	}
	row := w.job.Row
	if open > 1 || open > 0 && (row.Ended || row.State == stAssigned) || open == 0 && (row.State == stRunning || row.State == pb.JobState_JOB_STATE_CANCELLING) {
		w.t.Fatalf("%d open leases in state %v, ended %v", open, row.State, row.Ended)
	}
}

func (w *world) put(l Lease) {
	if _, known := w.leases[l.CommandID]; !known {
		w.order = append(w.order, l.CommandID)
	}
	w.leases[l.CommandID] = l
	i := slices.IndexFunc(w.job.Leases, func(o Lease) bool { return o.CommandID == l.CommandID })
	if i < 0 {
		w.job.Leases = append(w.job.Leases, l)
	} else {
		w.job.Leases[i] = l
	}
}

// work is what a worker does: it makes an event, or ends its lease, or commits.
func (w *world) work(what byte) {
	if w.job == nil {
		return
	}
	open := w.job.open()
	if len(open) == 0 || w.job.Row.State == stManual {
		return
	}
	l, row := open[0], &w.job.Row
	switch what % 4 {
	case 0:
		row.Sequence++
	case 1:
		if l.Kind == LeaseStep && archive.Commits(l.Step) {
			row.Committed = true
		}
		return
	case 2, 3:
		row.Sequence++
		row.Revision++
		l.State, l.EndSequence = stSettled, row.Sequence
		row.State = stAssigned
		if l.Kind == LeaseCancel {
			row.State = pb.JobState_JOB_STATE_CANCELLED
		} else if what%4 == 3 {
			row.State = stManual
		}
		w.put(l)
	}
	if !slices.Contains(w.job.Unacked, l.CommandID) {
		w.job.Unacked = append(w.job.Unacked, l.CommandID)
	}
}

// FuzzDecide plays scripts of commands, repeats, work and acknowledgements against the decision table.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{0, 10, 40, 41, 50, 60})
	f.Add([]byte{0, 11, 40, 20, 30, 42, 50, 21, 31, 60})
	f.Add([]byte{0, 12, 41, 33, 22, 30, 34, 70, 35})
	f.Add([]byte{0, 10, 43, 31, 10, 32, 80, 0, 90, 36})
	f.Add([]byte{36, 0, 10, 20, 42, 37, 60, 38, 71, 39})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := &world{t: t, leases: map[uuid.UUID]Lease{}, commands: map[uuid.UUID]StoredCommand{}}
		for i, b := range script {
			if i > 200 {
				break
			}
			w.play(b)
		}
		w.wayOut()
	})
}

// play does one letter of a script. The tens choose what, the ones how.
func (w *world) play(b byte) {
	revision, sequence := uint64(0), uint64(0)
	if w.job != nil {
		revision, sequence = w.job.Row.Revision, w.job.Row.Sequence
		if b%7 == 6 { // another participant has been at work, or control is behind
			revision, sequence = revision+uint64(b%3), sequence+uint64(b%5)
		}
		if b%11 == 10 {
			revision = w.job.Row.ConfirmedRevision
			sequence = w.job.Row.ConfirmedSequence
		}
	}
	c := testCommand(Facts{}, revision, sequence)
	c.CommandId = w.id().String()
	switch b / 10 {
	case 0, 9:
		c.Precondition.ExpectedRevision, c.Precondition.ExpectedLastEventSequence = 0, 0
		w.step(withAssign(c, roleTarget))
	case 1:
		w.step(withExecute(c, []pb.JobStep{stepMat, stepVerify, stepCommit}[b%3]))
	case 2:
		w.step(withCancel(c))
	case 3:
		c = withReconcile(c, pb.ReconcileDisposition(1+b%4), w.job != nil && w.job.Row.Committed)
		a := c.GetReconcileJob().GetAuthoritative()
		a.Revision, a.LastEventSequence = max(c.Precondition.ExpectedRevision, 1), c.Precondition.ExpectedLastEventSequence
		if b%2 == 0 {
			for _, id := range w.order {
				c.GetReconcileJob().RetireCommandIds = append(c.GetReconcileJob().RetireCommandIds, id.String())
			}
			c.GetReconcileJob().RetireCommandIds = append(c.GetReconcileJob().RetireCommandIds, w.id().String())
		}
		w.step(c)
	case 4:
		w.work(b)
	case 5:
		if w.job != nil { // control confirms
			w.job.Unacked = nil
			w.job.Row.ConfirmedRevision, w.job.Row.ConfirmedSequence = w.job.Row.Revision, w.job.Row.Sequence
		}
	case 6:
		w.step(withClose(c))
	case 7:
		if len(w.sent) > 0 {
			again := proto.CloneOf(w.sent[int(b)%len(w.sent)])
			again.Attempt++
			if o := w.step(again); o.Status != dup {
				w.t.Fatalf("a repeat is answered %v", o.Status)
			}
		}
	case 8:
		if len(w.sent) > 0 {
			other := proto.CloneOf(w.sent[int(b)%len(w.sent)])
			other.IssuedAt.Seconds += 7
			if o := w.step(other); o.Status != conflicts {
				w.t.Fatalf("another payload is answered %v", o.Status)
			}
		}
	default:
		for _, id := range w.order { // a retired command comes late
			if _, known := w.commands[id]; w.leases[id].State == stRetired && !known {
				c.CommandId = id.String()
				w.step(withExecute(c, stepMat))
				break
			}
		}
	}
}

// wayOut ends the job from any state: a person holds it and abandons it.
func (w *world) wayOut() {
	if w.job == nil || w.job.Row.Ended {
		return
	}
	for _, d := range []pb.ReconcileDisposition{dispHold, dispAbandon} {
		c := withReconcile(testCommand(Facts{}, w.job.Row.Revision, w.job.Row.Sequence), d, w.job.Row.Committed)
		c.CommandId = w.id().String()
		if o := w.step(c); o.Status != accept {
			w.t.Fatalf("%v of a job in state %v is answered %v", d, w.job.Row.State, o.Error)
		}
	}
	if !w.job.Row.Ended || len(w.job.open()) > 0 || len(w.job.Unacked) > 0 {
		w.t.Fatalf("abandoned: %+v", w.job)
	}
}

func TestResumeEffects(t *testing.T) {
	t.Parallel()
	stranger := uuid.New()
	f := testFacts(stRunning, testLease(leaseA, stepMat, stSettled), testLease(leaseB, stepVerify, stOpen))
	f.Job.Unacked = []uuid.UUID{leaseA}
	unseen := uuid.New()
	f.Named[stranger] = Lease{CommandID: stranger, JobID: uuid.New(), State: stOpen} // of another job
	c := withReconcile(testCommand(f, 5, 7), dispResume, false, leaseA, unseen, stranger)
	o := Decide(c, f)
	if o.Status != accept {
		t.Fatal(o.Error)
	}
	if len(o.Leases) != 2 || o.Leases[0].CommandID != leaseA || o.Leases[0].State != stRetired || o.Leases[1].CommandID != unseen ||
		o.Leases[1].JobID != testJob || o.Leases[1].State != stRetired {
		t.Errorf("leases: %+v", o.Leases)
	}
	if !slices.Equal(o.DropEvents, []uuid.UUID{leaseA}) || *o.DropAbove != 6 || o.Interrupt {
		t.Errorf("events: %v, above %v, interrupt %v", o.DropEvents, *o.DropAbove, o.Interrupt)
	}
	if r := o.Job; r.Revision != 4 || r.Sequence != 6 || r.ConfirmedRevision != 4 || r.ConfirmedSequence != 6 || r.State != stRunning {
		t.Errorf("row: %+v", r)
	}
}

func TestFastForwardOnlyWithTheCommand(t *testing.T) {
	t.Parallel()
	f := testFacts(stAssigned)
	if o := Decide(withExecute(testCommand(f, 8, 12), stepMat), f); o.Job.Revision != 8 || o.Job.Sequence != 12 || o.Job.ConfirmedSequence != 12 {
		t.Errorf("accepted: %+v", o.Job)
	}
	f = testFacts(stManual)
	if o := Decide(withExecute(testCommand(f, 8, 12), stepMat), f); o.Job != nil {
		t.Errorf("a refused command moved the cursor: %+v", o.Job)
	}
}

func TestRouteDecisions(t *testing.T) {
	t.Parallel()
	route := &pb.Route{RouteId: uuid.NewString(), Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, SourceClientId: testSelf.String(),
		TargetClientId: uuid.NewString()}
	row := func(state pb.RouteState) *RouteRow {
		return &RouteRow{ID: uuid.MustParse(route.RouteId), Side: roleSource, Route: route, LastSequence: 3, State: state}
	}
	ready := pb.RouteState_ROUTE_STATE_READY
	create := func(change func(*pb.CreateRoute)) *pb.Command {
		x := &pb.CreateRoute{Route: proto.CloneOf(route), Side: roleSource}
		change(x)
		c := testCommand(Facts{}, 0, 0)
		c.JobId, c.Precondition = "", nil
		c.Operation = &pb.Command_CreateRoute{CreateRoute: x}
		return c
	}
	update := func(sequence uint64, kind pb.RouteKind) *pb.Command {
		c := create(func(*pb.CreateRoute) {})
		x := &pb.UpdateRoute{Route: proto.CloneOf(route), Side: roleSource, ExpectedSequence: sequence}
		x.Route.Kind = kind
		c.Operation = &pb.Command_UpdateRoute{UpdateRoute: x}
		return c
	}
	remove := func(sequence uint64) *pb.Command {
		c := create(func(*pb.CreateRoute) {})
		c.Operation = &pb.Command_RemoveRoute{RemoveRoute: &pb.RemoveRoute{RouteId: route.RouteId, Side: roleSource, ExpectedSequence: sequence}}
		return c
	}
	shared := pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY
	for name, test := range map[string]struct {
		c    *pb.Command
		f    RouteFacts
		code pb.ErrorCode
	}{
		"create":              {create(func(*pb.CreateRoute) {}), RouteFacts{}, 0},
		"create a known one":  {create(func(*pb.CreateRoute) {}), RouteFacts{Row: row(ready)}, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE},
		"create a gone one":   {create(func(*pb.CreateRoute) {}), RouteFacts{Row: row(pb.RouteState_ROUTE_STATE_REMOVED)}, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE},
		"create late":         {create(func(x *pb.CreateRoute) { x.ExpectedSequence = 1 }), RouteFacts{}, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE},
		"another kind":        {create(func(x *pb.CreateRoute) { x.Route.Kind = pb.RouteKind_ROUTE_KIND_RSYNC_SSH }), RouteFacts{}, pb.ErrorCode_ERROR_CODE_UNSUPPORTED},
		"another client":      {create(func(x *pb.CreateRoute) { x.Side = roleTarget }), RouteFacts{}, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
		"writing in place":    {create(func(x *pb.CreateRoute) { x.Route.Options = &pb.RouteOptions{InPlaceWrites: true} }), RouteFacts{}, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
		"what the kind says":  {create(func(*pb.CreateRoute) {}), RouteFacts{Refusal: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND}}, pb.ErrorCode_ERROR_CODE_NOT_FOUND},
		"update":              {update(3, shared), RouteFacts{Row: row(ready)}, 0},
		"update an unknown":   {update(3, shared), RouteFacts{}, pb.ErrorCode_ERROR_CODE_NOT_FOUND},
		"update a gone one":   {update(3, shared), RouteFacts{Row: row(pb.RouteState_ROUTE_STATE_REMOVED)}, pb.ErrorCode_ERROR_CODE_NOT_FOUND},
		"update, other place": {update(2, shared), RouteFacts{Row: row(ready)}, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE},
		"update the kind":     {update(3, pb.RouteKind_ROUTE_KIND_SYNCTHING), RouteFacts{Row: row(ready)}, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
		"remove":              {remove(3), RouteFacts{Row: row(ready)}, 0},
		"remove in use":       {remove(3), RouteFacts{Row: row(ready), ActiveJobs: 1}, pb.ErrorCode_ERROR_CODE_BUSY},
		"remove, other place": {remove(4), RouteFacts{Row: row(ready)}, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE},
	} {
		f := testFacts(stAssigned)
		f.Job, f.Route = nil, test.f
		o := Decide(test.c, f)
		if o.Error.GetCode() != test.code || (o.Route != nil) != (test.code == 0) || !o.Store {
			t.Errorf("%s: %+v", name, o)
		}
	}
}
