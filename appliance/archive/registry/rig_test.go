package registry_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
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
	token = []byte(strings.Repeat("correct horse ", 4))
)

// rig is a registry on a real database.
type rig struct {
	t     testing.TB
	clock *clock.Fake
	db    *store.DB
	hub   *wake.Hub
	reg   *registry.Registry
	opts  registry.Options
	hooks registry.Hooks

	before, after storetest.Failpoint

	mu       sync.Mutex
	offline  []int64
	found    []registry.Rollback
	failures int
}

func newRig(t testing.TB, change ...func(*registry.Options)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin), hub: wake.New()}
	r.opts = registry.Options{Tokens: []registry.Digest{registry.DigestOf([]byte("a former token")), registry.DigestOf(token)},
		ServerID: uuid.New(), ServerEpoch: uuid.New(), Clock: r.clock, Hub: r.hub, Observer: r}
	for _, f := range change {
		f(&r.opts)
	}
	r.hooks = registry.Hooks{
		OnRegister: func(_ registry.Tx, _ archive.Link, cursors []*pb.JobCursor, found registry.Rollback) ([]*pb.JobCursor, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.found = append(r.found, found)
			return cursors, nil
		},
		OnOffline: []func(registry.Tx, int64) error{func(_ registry.Tx, no int64) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.offline = append(r.offline, no)
			return nil
		}},
	}
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
	r.reg = registry.New(store.Bind[registry.Tx, registry.ReadTx](r.db), r.opts)
	r.reg.SetHooks(r.hooks)
	if err := r.reg.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// restart is a kill and a start of the appliance.
func (r *rig) restart() {
	r.t.Helper()
	r.db = storetest.Reopen(r.t, r.db, r.options)
	r.start()
}

// run runs the registry's timer until the test ends or stop is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.reg.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// The rig is the observer.
func (r *rig) Registered(bool)      {}
func (r *rig) Refused(pb.ErrorCode) {}
func (r *rig) MarkedOffline()       {}
func (r *rig) Failed(string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
}

func (r *rig) offlines() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.offline)
}

// peer is a daemon as the registry sees it.
type peer struct {
	r     *rig
	id    uuid.UUID
	epoch uuid.UUID
	last  uint64
}

func (r *rig) peer() *peer { return &peer{r: r, id: uuid.New(), epoch: uuid.New()} }

func (p *peer) request(change ...func(*pb.RegisterRequest)) *pb.RegisterRequest {
	q := &pb.RegisterRequest{ProtocolVersion: &pb.ProtocolVersion{Major: 2}, ClientId: p.id.String(), ClientName: "nas",
		Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET, ConnectionInstanceId: uuid.NewString(),
		Capabilities: []string{"route.shared_directory", "verify.pieces", "future.thing"}, StateEpoch: p.epoch.String(),
		OfferedLimits: &pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxChunkEntries: 500, MaxOutboundEnvelopes: 256, MaxOutboundBytes: 8 << 20,
			MaxActiveCursors: 256}, Software: "signalbox test", LastGeneration: p.last}
	for _, f := range change {
		f(q)
	}
	return q
}

// register must succeed.
func (p *peer) register(change ...func(*pb.RegisterRequest)) *registry.Registration {
	p.r.t.Helper()
	reg, refusal := p.r.reg.Register(ctx, registry.Request{Register: p.request(change...), SentAt: p.r.clock.Now(), Remote: "192.0.2.1"},
		token)
	if refusal != nil {
		p.r.t.Fatalf("refused: %v, %v", refusal.Detail, refusal.Err)
	}
	return reg
}

// refused must be refused with the code.
func (p *peer) refused(code pb.ErrorCode, tok []byte, change ...func(*pb.RegisterRequest)) *registry.Refusal {
	p.r.t.Helper()
	reg, refusal := p.r.reg.Register(ctx, registry.Request{Register: p.request(change...)}, tok)
	if reg != nil || refusal == nil || refusal.Detail.Code != code {
		p.r.t.Fatalf("got %v, %v, want %s", reg, refusal, code)
	}
	return refusal
}

func (r *rig) beat(link archive.Link, sequence uint64) error {
	_, err := r.reg.Heartbeat(ctx, link, &pb.Heartbeat{Sequence: sequence})
	return err
}

func (r *rig) fence(link archive.Link) error {
	return r.db.Update(ctx, "test", func(tx *store.Tx) error { return r.reg.Fence(tx, link) })
}

func (r *rig) daemon(id uuid.UUID) registry.Daemon {
	r.t.Helper()
	d, err := r.reg.Daemon(ctx, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// alerts are the kinds of the open alerts, newest first.
func (r *rig) alerts() []archive.AlertKind {
	r.t.Helper()
	list, err := r.reg.Alerts(ctx, registry.AlertFilter{})
	if err != nil {
		r.t.Fatal(err)
	}
	kinds := []archive.AlertKind{}
	for _, a := range list {
		kinds = append(kinds, a.Kind)
	}
	return kinds
}

func (r *rig) count(query string, args ...any) (n int64) {
	r.t.Helper()
	if err := r.db.View(ctx, func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) }); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func wantFault(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
}

// sender records how its socket was closed.
type sender struct {
	closed chan registry.Why
}

func newSender() *sender { return &sender{make(chan registry.Why, 4)} }

func (s *sender) Close(why registry.Why) { s.closed <- why }

func (s *sender) open() bool { return len(s.closed) == 0 }

func (r *rig) update(fn func(tx registry.Tx) error) error {
	return store.Bind[registry.Tx, registry.ReadTx](r.db).Update(ctx, "test", fn)
}
