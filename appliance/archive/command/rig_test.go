package command_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var (
	ctx   = context.Background()
	begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	token = []byte("0123456789abcdef0123456789abcdef")
)

// rig is a queue and a registry on a real database. It is the handler of every kind.
type rig struct {
	t     testing.TB
	clock *clock.Fake
	db    *store.DB
	hub   *wake.Hub
	reg   *registry.Registry
	queue *command.Queue

	before, after storetest.Failpoint

	peerID, peerEpoch uuid.UUID

	mu        sync.Mutex
	acked     []answered
	exhausted []command.Row
	held      map[uuid.UUID]bool
	fail      error
	unknown   int
}

type answered struct {
	row command.Row
	ack *pb.CommandAck
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin), hub: wake.New(), peerID: uuid.New(), peerEpoch: uuid.New(), held: map[uuid.UUID]bool{}}
	r.db = storetest.Open(t, r.options)
	r.start()
	return r
}

func (r *rig) options(o *store.Options) {
	o.Clock = r.clock
	o.Hooks.BeforeCommit = func([]string) error { return r.before.Pass() }
	o.Hooks.AfterCommitBeforeReply = func([]string) error { return r.after.Pass() }
}

func (r *rig) start() {
	r.t.Helper()
	r.reg = registry.New(store.Bind[registry.Tx, registry.ReadTx](r.db), registry.Options{Clock: r.clock, Hub: r.hub,
		Tokens: []registry.Digest{registry.DigestOf(token)}, ServerID: uuid.New(), ServerEpoch: uuid.New()})
	if err := r.reg.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.queue = command.NewQueue(store.Bind[command.Tx, command.ReadTx](r.db), r.reg, command.Options{Clock: r.clock, Hub: r.hub,
		Observer: r})
	for k := archive.AssignJob; k <= archive.CloseJob; k++ {
		r.queue.Handle(k, r)
	}
}

// restart is a kill and a start of the appliance.
func (r *rig) restart() {
	r.t.Helper()
	r.db = storetest.Reopen(r.t, r.db, r.options)
	r.start()
}

func (r *rig) CommandAcked(_ command.Tx, _ archive.Link, row command.Row, ack *pb.CommandAck) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail == nil {
		r.acked = append(r.acked, answered{row, ack})
	}
	return r.fail
}

func (r *rig) CommandExhausted(_ command.Tx, row command.Row) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail == nil {
		r.exhausted = append(r.exhausted, row)
	}
	return r.fail
}

func (r *rig) MaySend(_ command.ReadTx, _ archive.Link, row command.Row) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.held[row.ID], nil
}

func (r *rig) HeldBecause(command.ReadTx, command.Row) (string, error) {
	return "The job is not decided.", nil
}

func (r *rig) hold(id uuid.UUID, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[id] = held
}

func (r *rig) Claimed(command.Kind, bool)           {}
func (r *rig) Answered(command.Kind, command.State) {}
func (r *rig) Parked(command.Kind)                  {}
func (r *rig) UnknownAck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unknown++
}

// register registers the rig's daemon once more.
func (r *rig) register() archive.Link {
	r.t.Helper()
	reg, refusal := r.reg.Register(ctx, registry.Request{Register: &pb.RegisterRequest{ProtocolVersion: &pb.ProtocolVersion{Major: 2},
		ClientId: r.peerID.String(), ClientName: "nas", Role: pb.ClientRole_CLIENT_ROLE_SOURCE, StateEpoch: r.peerEpoch.String(),
		ConnectionInstanceId: uuid.NewString()}}, token)
	if refusal != nil {
		r.t.Fatal(refusal.Detail, refusal.Err)
	}
	return reg.Link
}

func (r *rig) update(fn func(tx command.Tx) error) {
	r.t.Helper()
	if err := r.tryUpdate(fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryUpdate(fn func(tx command.Tx) error) error {
	return store.Bind[command.Tx, command.ReadTx](r.db).Update(ctx, "test", fn)
}

// enqueue stores a command of no job.
func (r *rig) enqueue(link archive.Link, c *pb.Command) (row command.Row) {
	r.t.Helper()
	r.update(func(tx command.Tx) (err error) {
		row, err = r.queue.Enqueue(tx, command.New{Daemon: link.Daemon, Command: c})
		return err
	})
	return row
}

func query() *pb.Command {
	return &pb.Command{Operation: &pb.Command_InventoryQuery{InventoryQuery: &pb.InventoryQuery{QueryId: uuid.NewString(),
		Scope: pb.InventoryScope_INVENTORY_SCOPE_STORAGE, Purpose: pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW, PageSize: 10}}}
}

func (r *rig) row(no int64) (row command.Row) {
	r.t.Helper()
	r.update(func(tx command.Tx) (err error) {
		row, err = tx.DaemonCommand(no)
		return err
	})
	return row
}

func (r *rig) ledger(no int64) (list []command.Delivery) {
	r.t.Helper()
	r.update(func(tx command.Tx) (err error) {
		list, err = tx.DaemonDeliveries(no)
		return err
	})
	return list
}

// connect is a connection that is woken by time only.
func (r *rig) connect(link archive.Link) (*command.Sending, chan struct{}) {
	woken := make(chan struct{}, 64)
	s := r.queue.Connect(link, func() { woken <- struct{}{} })
	return s, woken
}

// next is one claim.
func (r *rig) next(s *command.Sending) []command.Claimed {
	r.t.Helper()
	list, err := s.Next(ctx, 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// expect is one claim of exactly these commands, which are then written.
func (r *rig) expect(s *command.Sending, want ...command.Row) []command.Claimed {
	r.t.Helper()
	list := r.next(s)
	if len(list) != len(want) {
		r.t.Fatalf("%d commands, want %d", len(list), len(want))
	}
	for i, c := range list {
		if c.CommandNo != want[i].No {
			r.t.Fatalf("command %d is %s, want %s", i, c.Kind, want[i].Kind)
		}
	}
	if len(list) > 0 && len(r.next(s)) != 0 {
		r.t.Fatal("more than one claim")
	}
	return list
}

func (r *rig) ack(link archive.Link, row command.Row, change ...func(*pb.CommandAck)) error {
	ack := &pb.CommandAck{CommandId: row.ID.String(), Status: pb.AckStatus_ACK_STATUS_ACCEPTED, PayloadSha256: row.SHA256}
	for _, f := range change {
		f(ack)
	}
	return r.queue.Acked(ctx, link, ack)
}

func (r *rig) mustAck(link archive.Link, row command.Row, change ...func(*pb.CommandAck)) {
	r.t.Helper()
	if err := r.ack(link, row, change...); err != nil {
		r.t.Fatal(err)
	}
}

func status(s, stored pb.AckStatus, code pb.ErrorCode) func(*pb.CommandAck) {
	return func(a *pb.CommandAck) {
		a.Status, a.StoredStatus = s, stored
		if code != 0 {
			a.Error = &pb.ErrorDetail{Code: code}
		}
	}
}

// answers are those that the handler was told of the command.
func (r *rig) answers(row command.Row) (list []answered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.acked {
		if a.row.No == row.No {
			list = append(list, a)
		}
	}
	return list
}

func (r *rig) parked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.exhausted)
}

func wantFault(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
}

// run runs the timer of resends until the test ends.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.queue.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}
