package command_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
	"signalbox/store"
)

const (
	accepted  = pb.AckStatus_ACK_STATUS_ACCEPTED
	duplicate = pb.AckStatus_ACK_STATUS_DUPLICATE
	rejected  = pb.AckStatus_ACK_STATUS_REJECTED
	conflict  = pb.AckStatus_ACK_STATUS_CONFLICT
	none      = pb.AckStatus_ACK_STATUS_UNSPECIFIED
)

func TestEnqueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	w := r.hub.Watch(archive.DaemonKey(link.Daemon.No))
	defer w.Stop()
	c := query()
	row := r.enqueue(link, c)
	<-w.C()
	if row.State != command.Pending || row.Kind != archive.InventoryQuery || row.Attempts != 0 || row.Allowance != 3 || row.EverSent() {
		t.Errorf("%+v", row)
	}
	stored := r.row(row.No)
	got, err := stored.Command()
	if err != nil || !proto.Equal(got, c) || got.ClientId != r.peerID.String() || got.CommandId != row.ID.String() ||
		!got.IssuedAt.AsTime().Equal(begin) || got.Attempt != 0 || stored.SHA256 != row.SHA256 {
		t.Errorf("stored %v, %v", got, err)
	}
	err = r.tryUpdate(func(tx command.Tx) error {
		_, err := r.queue.Enqueue(tx, command.New{Daemon: link.Daemon, Command: c}) // the same id
		return err
	})
	wantFault(t, err, fault.Conflict)
	for _, bad := range []*pb.Command{{}, {CommandId: "x", Operation: query().Operation}} {
		if err := r.tryUpdate(func(tx command.Tx) error {
			_, err := r.queue.Enqueue(tx, command.New{Daemon: link.Daemon, Command: bad})
			return err
		}); err == nil {
			t.Errorf("stored %v", bad)
		}
	}
}

func TestSendAndAcknowledge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	row := r.enqueue(link, query())
	sent := r.expect(s, row)[0].Command
	if want, _ := row.Command(); sent.Attempt != 1 || !proto.Equal(want, func() *pb.Command { c := proto.CloneOf(sent); c.Attempt = 0; return c }()) {
		t.Errorf("sent %v", sent)
	}
	if d := r.ledger(row.No); len(d) != 1 || d[0].Outcome != command.InFlight || d[0].SentAt.IsZero() || d[0].Generation != 1 {
		t.Errorf("ledger %+v", d)
	}
	r.clock.Advance(time.Second)
	r.mustAck(link, row)
	a := r.answers(row)
	if len(a) != 1 || a[0].row.State != command.Accepted || a[0].row.Before != command.Sent || a[0].ack.Status != accepted {
		t.Fatalf("%+v", a)
	}
	if got := r.row(row.No); got.State != command.Accepted || got.Ack == nil || !got.AckedAt.Equal(r.clock.Now()) || got.LeaseOpen() {
		t.Errorf("%+v", got)
	}
	if d := r.ledger(row.No); d[0].Outcome != command.Acked || !d[0].AckedAt.Equal(r.clock.Now()) {
		t.Errorf("ledger %+v", d)
	}
	r.clock.Advance(time.Hour)
	r.expect(s)
	r.mustAck(link, row, status(duplicate, accepted, 0)) // a repetition changes nothing
	if len(r.answers(row)) != 1 {
		t.Error("the handler was told twice")
	}
}

// Three sends over all connections, then parked; a late answer is taken (failure table, row 44).
func TestExhaustionAndLateAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	r.run()
	s, woken := r.connect(link)
	row := r.enqueue(link, query())
	r.expect(s, row)
	r.clock.BlockUntil(1)
	r.clock.Advance(14 * time.Second)
	r.expect(s)
	r.clock.Advance(time.Second)
	<-woken
	r.expect(s, row)
	link = r.register() // a reconnect does not wait for the time
	s, woken = r.connect(link)
	if c := r.expect(s, row); c[0].Command.Attempt != 3 {
		t.Fatalf("attempt %d", c[0].Command.Attempt)
	}
	if r.parked() != 0 {
		t.Fatal("parked before the last send had its time")
	}
	r.clock.BlockUntil(1)
	r.clock.Advance(15 * time.Second)
	<-woken
	r.expect(s)
	if got := r.row(row.No); got.State != command.Parked || got.Attempts != 3 || r.parked() != 1 {
		t.Fatalf("%+v", got)
	}
	r.clock.Advance(time.Hour)
	r.expect(s)
	outcomes := ""
	for _, d := range r.ledger(row.No) {
		outcomes += string(d.Outcome) + " "
	}
	if outcomes != "superseded superseded in_flight " {
		t.Errorf("ledger: %s", outcomes)
	}
	r.mustAck(link, row)
	if a := r.answers(row); len(a) != 1 || a[0].row.Before != command.Parked || r.row(row.No).State != command.Accepted {
		t.Errorf("%+v", a)
	}
}

func TestExhaustionIsOneTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	row := r.enqueue(link, query())
	var s *command.Sending
	for range 3 {
		link = r.register()
		s, _ = r.connect(link)
		r.expect(s, row)
	}
	r.clock.Advance(15 * time.Second)
	r.fail = errors.New("no")
	if _, err := s.Next(ctx, 1<<20); err == nil {
		t.Fatal("parked without its handler")
	}
	if r.row(row.No).State != command.Sent {
		t.Fatal("parked all the same")
	}
	r.fail = nil
	r.expect(s)
	if r.row(row.No).State != command.Parked {
		t.Fatal("not parked")
	}
}

func TestGrant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	row := r.enqueue(link, query())
	var s *command.Sending
	for range 3 {
		link = r.register()
		s, _ = r.connect(link)
		r.expect(s, row)
	}
	r.clock.Advance(15 * time.Second)
	r.expect(s) // parks
	w := r.hub.Watch(archive.DaemonKey(link.Daemon.No))
	defer w.Stop()
	r.update(func(tx command.Tx) error { return r.queue.Grant(tx, row.No, 2) })
	<-w.C()
	if c := r.expect(s, row); c[0].Command.Attempt != 4 || c[0].Command.CommandId != row.ID.String() {
		t.Fatalf("%+v", c[0])
	}
	r.clock.Advance(15 * time.Second)
	r.expect(s, row)
	r.clock.Advance(15 * time.Second)
	r.expect(s)
	if r.parked() != 2 {
		t.Errorf("parked %d times", r.parked())
	}
	r.mustAck(link, row)
	wantFault(t, r.tryUpdate(func(tx command.Tx) error { return r.queue.Grant(tx, row.No, 1) }), fault.Conflict)
}

// The attempt is counted before the bytes leave: a process killed in between has lost it, and nothing else.
func TestKilledBetweenClaimAndSend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	row := r.enqueue(link, query())
	if len(r.next(s)) != 1 { // killed here: never written
		t.Fatal("nothing claimed")
	}
	r.restart()
	if got := r.row(row.No); got.Attempts != 1 || got.State != command.Sent {
		t.Fatalf("%+v", got)
	}
	if d := r.ledger(row.No); len(d) != 1 || !d[0].SentAt.IsZero() {
		t.Fatalf("%+v", d)
	}
	old := link
	link = r.register()
	s, _ = r.connect(link)
	if c := r.expect(s, row); c[0].Command.Attempt != 2 {
		t.Errorf("attempt %d", c[0].Command.Attempt)
	}
	wantFault(t, r.ack(old, row), fault.Stale)
	r.mustAck(link, row)
}

// A claim that is not committed counts no attempt; one whose outcome is unknown may have.
func TestClaimFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	row := r.enqueue(link, query())
	r.before.Arm(errors.New("disk full"), 1)
	_, err := s.Next(ctx, 1<<20)
	wantFault(t, err, fault.Unavailable)
	if got := r.row(row.No); got.Attempts != 0 || got.State != command.Pending {
		t.Fatalf("%+v", got)
	}
	r.after.Arm(errors.New("killed"), 1)
	_, err = s.Next(ctx, 1<<20)
	wantFault(t, err, fault.OutcomeUnknown)
	r.expect(s, row)
	if got := r.row(row.No); got.Attempts != 2 {
		t.Fatalf("%+v", got)
	}
}

func TestClosedConnectionEndsItsDeliveries(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	written, lost := r.enqueue(link, query()), r.enqueue(link, query())
	r.hold(lost.ID, true)
	r.expect(s, written)
	r.hold(lost.ID, false)
	if len(r.next(s)) != 1 {
		t.Fatal("nothing claimed")
	}
	if err := s.Close(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	if d := r.ledger(written.No); d[0].Outcome != command.InFlight {
		t.Errorf("%+v", d)
	}
	if d := r.ledger(lost.No); d[0].Outcome != command.SendFailed || d[0].Reason != "gone" {
		t.Errorf("%+v", d)
	}
}

func TestOrderOfSends(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	job := r.job()
	enqueue := func(c *pb.Command) (row command.Row) {
		t.Helper()
		r.update(func(tx command.Tx) (err error) {
			row, err = r.queue.Enqueue(tx, command.New{Daemon: link.Daemon, JobNo: job, Command: c})
			return err
		})
		return row
	}
	s, _ := r.connect(link)
	older := enqueue(query())
	resend := enqueue(&pb.Command{Operation: &pb.Command_RequestJobSnapshot{RequestJobSnapshot: &pb.RequestJobSnapshot{FromSequence: 1}}})
	r.hold(older.ID, true)
	r.expect(s, resend)
	r.hold(older.ID, false)
	step := enqueue(&pb.Command{Operation: &pb.Command_ExecuteStep{ExecuteStep: &pb.ExecuteStepCommand{Step: pb.JobStep_JOB_STEP_STAGE,
		StepAttempt: 1}}})
	closing := enqueue(&pb.Command{Operation: &pb.Command_CloseJob{CloseJob: &pb.CloseJob{}}})
	cancel := enqueue(&pb.Command{Operation: &pb.Command_CancelJob{CancelJob: &pb.CancelJobCommand{}}})
	reconcile := enqueue(&pb.Command{Operation: &pb.Command_ReconcileJob{ReconcileJob: &pb.ReconcileJobCommand{}}})
	link = r.register()
	s, _ = r.connect(link)
	r.expect(s, reconcile, cancel, closing, resend, older, step)
	if step.Step != pb.JobStep_JOB_STEP_STAGE || step.StepAttempt != 1 || r.row(step.No).JobNo != job {
		t.Errorf("%+v", step)
	}
	err := r.tryUpdate(func(tx command.Tx) error {
		_, err := r.queue.Enqueue(tx, command.New{Daemon: link.Daemon, JobNo: job, Command: &pb.Command{Operation: &pb.Command_ExecuteStep{
			ExecuteStep: &pb.ExecuteStepCommand{Step: pb.JobStep_JOB_STEP_STAGE, StepAttempt: 1}}}})
		return err
	})
	wantFault(t, err, fault.Conflict) // one row per attempt of a step
	r.mustAck(link, step)
	r.mustAck(link, cancel)
	r.mustAck(link, closing)
	if !r.row(step.No).LeaseOpen() || !r.row(cancel.No).LeaseOpen() || r.row(closing.No).LeaseOpen() {
		t.Error("leases")
	}
	var list []command.Row
	r.update(func(tx command.Tx) (err error) {
		list, err = r.queue.OfJob(tx, job)
		return err
	})
	if len(list) != 6 {
		t.Errorf("%d commands of the job", len(list))
	}
}

// job makes a job to hang commands on.
func (r *rig) job() (no int64) {
	r.t.Helper()
	if err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO archive_jobs (id, operation, title, request, state, created_at) VALUES (?, 1, 't', '{}', 30, 0)`,
			uuid.New())
		no = res.LastInsertID()
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return no
}

func alertsOf(link archive.Link) registry.AlertFilter {
	return registry.AlertFilter{DaemonNo: link.Daemon.No}
}

func TestHeldCommandsStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	first, second := r.enqueue(link, query()), r.enqueue(link, query())
	r.hold(first.ID, true)
	r.expect(s, second)
	for range 3 {
		r.clock.Advance(time.Minute)
		r.next(s)
	}
	if got := r.row(first.No); got.State != command.Pending || got.Attempts != 0 {
		t.Fatalf("%+v", got)
	}
	e, err := r.queue.Explain(ctx, first.ID)
	if err != nil || e.Waiting != "The job is not decided." || len(e.Deliveries) != 0 {
		t.Errorf("%+v, %v", e, err)
	}
	r.hold(first.ID, false)
	r.expect(s, first)
}

func TestChangesByTheOwner(t *testing.T) {
	t.Parallel()
	type op = func(q *command.Queue, tx command.Tx, no int64) error
	withdraw := func(q *command.Queue, tx command.Tx, no int64) error { return q.Withdraw(tx, no) }
	supersede := func(q *command.Queue, tx command.Tx, no int64) error { return q.Supersede(tx, no) }
	retire := func(q *command.Queue, tx command.Tx, no int64) error { return q.Retire(tx, no) }
	closing := func(q *command.Queue, tx command.Tx, no int64) error { return q.Close(tx, no) }
	found := func(q *command.Queue, tx command.Tx, no int64) error { return q.MarkAccepted(tx, no) }
	const noLease, open, settled, retired = pb.LeaseState_LEASE_STATE_NONE, pb.LeaseState_LEASE_STATE_OPEN,
		pb.LeaseState_LEASE_STATE_SETTLED, pb.LeaseState_LEASE_STATE_RETIRED
	r := newRig(t)
	for name, c := range map[string]struct {
		answered bool
		ops      []op
		late     bool // an ACCEPTED comes afterwards
		state    command.State
		lease    pb.LeaseState
		told     int
	}{
		"withdrawn":                 {false, []op{withdraw}, false, command.Withdrawn, noLease, 0},
		"withdrawn, answered late":  {false, []op{withdraw}, true, command.Accepted, open, 1},
		"superseded":                {false, []op{supersede}, false, command.Superseded, noLease, 0},
		"superseded, answered late": {false, []op{supersede}, true, command.Accepted, open, 1},
		"answered, then withdrawn":  {true, []op{withdraw, supersede}, false, command.Accepted, open, 1},
		"found in the cursor":       {false, []op{found}, false, command.Accepted, open, 0},
		"found, then answered":      {false, []op{found}, true, command.Accepted, open, 0},
		"withdrawn, found":          {false, []op{withdraw, found}, false, command.Accepted, open, 0},
		"settled":                   {true, []op{closing}, false, command.Closed, settled, 1},
		"retired":                   {true, []op{retire}, false, command.Closed, retired, 1},
		"retired unanswered, late":  {false, []op{retire}, true, command.Closed, retired, 0},
		"closed twice, found":       {true, []op{closing, closing, found}, false, command.Closed, settled, 1},
		"closed unanswered":         {false, []op{closing}, false, command.Closed, noLease, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r.t, r.peerID = t, uuid.New()
			link := r.register()
			s, _ := r.connect(link)
			row := r.enqueue(link, &pb.Command{Operation: &pb.Command_CancelJob{CancelJob: &pb.CancelJobCommand{}}})
			r.expect(s, row)
			if c.answered {
				r.mustAck(link, row)
			}
			for _, op := range c.ops {
				r.update(func(tx command.Tx) error { return op(r.queue, tx, row.No) })
			}
			if c.late {
				r.mustAck(link, row)
			}
			r.clock.Advance(time.Minute)
			r.expect(s) // none of them is sent again
			got := r.row(row.No)
			if got.State != c.state || got.Lease != c.lease || len(r.answers(row)) != c.told {
				t.Errorf("state %s, lease %s, told %d times", got.State, got.Lease, len(r.answers(row)))
			}
			if (got.State == command.Closed) == got.ClosedAt.IsZero() {
				t.Errorf("closed at %v", got.ClosedAt)
			}
		})
	}
}

func TestClaimsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	for range 40 {
		r.enqueue(link, query())
	}
	list, err := s.Next(ctx, 1)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d for one byte, %v", len(list), err)
	}
	total := 1
	for range 3 {
		n := len(r.next(s))
		if n > 32 {
			t.Fatalf("%d at once", n)
		}
		total += n
	}
	if total != 40 {
		t.Errorf("%d of 40", total)
	}
}

// What waits for its answer is not sent again because a claim was cut short before it came to it.
func TestCutClaimKeepsTheTimesOfTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	waiting := r.enqueue(link, query())
	r.expect(s, waiting)
	first := r.enqueue(link, &pb.Command{Operation: &pb.Command_ReconcileJob{ReconcileJob: &pb.ReconcileJobCommand{}}})
	second := r.enqueue(link, &pb.Command{Operation: &pb.Command_ReconcileJob{ReconcileJob: &pb.ReconcileJobCommand{}}})
	for _, want := range []command.Row{first, second} {
		if list, err := s.Next(ctx, 1); err != nil || len(list) != 1 || list[0].CommandNo != want.No {
			t.Fatalf("%+v, %v", list, err)
		}
	}
	r.expect(s)
	if n := r.row(waiting.No).Attempts; n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestUnsendable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	row := r.enqueue(link, query())
	if err := s.Unsendable(ctx, r.next(s)[0], "too large"); err != nil {
		t.Fatal(err)
	}
	r.enqueue(link, query())
	r.next(s) // stamps what was claimed before
	if d := r.ledger(row.No); r.row(row.No).State != command.Parked || r.parked() != 1 || d[0].Outcome != command.SendFailed ||
		!d[0].SentAt.IsZero() {
		t.Errorf("%+v", d)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	old, older, fresh, open := r.enqueue(link, query()), r.enqueue(link, query()), r.enqueue(link, query()), r.enqueue(link, query())
	s, _ := r.connect(link)
	r.expect(s, old, older, fresh, open)
	r.update(func(tx command.Tx) error { return r.queue.Close(tx, old.No) })
	r.update(func(tx command.Tx) error { return r.queue.Close(tx, older.No) })
	r.clock.Advance(time.Hour)
	r.update(func(tx command.Tx) error { return r.queue.Close(tx, fresh.No) })
	if n, err := r.queue.Prune(ctx, begin.Add(time.Minute), 1); n != 2 || err != nil { // all of them, in slices of one
		t.Fatalf("%d, %v", n, err)
	}
	if err := r.tryUpdate(func(tx command.Tx) error { _, err := tx.DaemonCommand(old.No); return err }); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if r.row(fresh.No).State != command.Closed || r.row(open.No).State != command.Sent || len(r.ledger(old.No)) != 0 {
		t.Error("the wrong ones went")
	}
}
