package registry_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func TestFirstRegistration(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *registry.Options) {
		o.Capabilities = []string{"verify.pieces", "route.shared_directory", "content.sparse"}
		o.Limits = &pb.Limits{MaxEnvelopeBytes: 2 << 20, MaxChunkEntries: 100}
		o.Minor = 7
	})
	p := r.peer()
	cursor := &pb.JobCursor{JobId: uuid.NewString(), Revision: 3}
	reg := p.register(func(q *pb.RegisterRequest) {
		q.ProtocolVersion.Minor = 4
		q.ActiveJobs = []*pb.JobCursor{cursor}
	})
	res := reg.Response
	want := &pb.RegisterResponse{NegotiatedVersion: &pb.ProtocolVersion{Major: 2, Minor: 4}, ConnectionGeneration: 1,
		ServerId: r.opts.ServerID.String(), ServerEpoch: r.opts.ServerEpoch.String(), ServerTime: res.ServerTime, Liveness: res.Liveness,
		Limits: &pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxChunkEntries: 100, MaxOutboundEnvelopes: 256, MaxOutboundBytes: 8 << 20,
			MaxActiveCursors: 256}, Capabilities: []string{"route.shared_directory", "verify.pieces"},
		ControlCursors: []*pb.JobCursor{cursor}}
	if !proto.Equal(res, want) {
		t.Errorf("response\n got %v\nwant %v", res, want)
	}
	l := res.Liveness
	if l.HeartbeatInterval.AsDuration() != 15*time.Second || l.OfflineThreshold.AsDuration() != 45*time.Second ||
		l.StableReset.AsDuration() != time.Minute || l.ReconnectInitial.AsDuration() != time.Second ||
		l.ReconnectCap.AsDuration() != time.Minute || l.CommandRetry.AsDuration() != 15*time.Second || l.CommandAttempts != 3 ||
		l.RegistrationDeadline.AsDuration() != 10*time.Second {
		t.Errorf("liveness %v", l)
	}
	if !res.ServerTime.AsTime().Equal(begin) {
		t.Errorf("server time %v", res.ServerTime.AsTime())
	}
	link := reg.Link
	if link.Generation != 1 || link.Daemon.ID != p.id || link.Daemon.No == 0 || link.Minor != 4 || link.Epoch != p.epoch ||
		!slices.Equal(link.Capabilities, res.Capabilities) {
		t.Errorf("link %+v", link)
	}
	d := r.daemon(p.id)
	if !d.Online || d.Attached || d.Name != "nas" || d.Generation != 1 || d.GenerationUsed != 0 || d.Remote != "192.0.2.1" ||
		!slices.Equal(d.Capabilities, []string{"future.thing", "route.shared_directory", "verify.pieces"}) || d.Minor != 4 {
		t.Errorf("stored %+v", d)
	}
	if len(r.alerts()) != 0 {
		t.Error(r.alerts())
	}
	p.last = 1
	bare := p.register(func(q *pb.RegisterRequest) { q.Capabilities = nil })
	if len(bare.Response.Capabilities) != 0 || len(r.daemon(p.id).Capabilities) != 0 {
		t.Errorf("capabilities of a daemon without any: %v", bare.Response.Capabilities)
	}
}

func TestRefusalsChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	known := r.peer()
	known.register(func(q *pb.RegisterRequest) { q.OfferedLimits.MaxActiveCursors = 16 })
	before := r.daemon(known.id)
	cursors := func(n int) func(*pb.RegisterRequest) {
		return func(q *pb.RegisterRequest) { q.ActiveJobs = make([]*pb.JobCursor, n) }
	}
	none := func(*pb.RegisterRequest) {}
	for name, c := range map[string]struct {
		peer   *peer
		token  []byte
		change func(*pb.RegisterRequest)
		code   pb.ErrorCode
	}{
		"wrong token":   {p, []byte(strings.Repeat("x", 40)), none, pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED},
		"no token":      {p, nil, none, pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED},
		"longer token":  {p, append(slices.Clone(token), 'x'), none, pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED},
		"shorter token": {p, token[:len(token)-1], none, pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED},
		"major 1": {p, token, func(q *pb.RegisterRequest) { q.ProtocolVersion.Major = 1 },
			pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH},
		"no version":          {p, token, func(q *pb.RegisterRequest) { q.ProtocolVersion = nil }, pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH},
		"nil epoch":           {p, token, func(q *pb.RegisterRequest) { q.StateEpoch = uuid.Nil.String() }, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
		"bad id":              {p, token, func(q *pb.RegisterRequest) { q.ClientId = "x" }, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
		"257 at first":        {p, token, cursors(257), pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED},
		"17 of 16 negotiated": {known, token, cursors(17), pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED},
	} {
		refusal := c.peer.refused(c.code, c.token, c.change)
		if strings.Contains(refusal.Detail.Message, string(token)) {
			t.Errorf("%s: the token is in the answer", name)
		}
		if m := refusal.Rejected(3); m.SupportedMajor != 2 || m.SupportedMinorMax != 3 || m.Error == nil {
			t.Errorf("%s: %v", name, m)
		}
	}
	if _, err := r.reg.Daemon(ctx, p.id); !fault.Is(err, fault.NotFound) {
		t.Errorf("a refused daemon: %v", err)
	}
	if after := r.daemon(known.id); after.Generation != before.Generation {
		t.Errorf("generation %d after a refusal", after.Generation)
	}
	known.register(cursors(16))
	if tok := []byte("a former token"); !r.reg.Authentic(tok) {
		t.Error("a former token is refused")
	}
}

func TestTakeoverClosesTheOldSocketAfterTheCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	first := p.register()
	old := newSender()
	if !r.reg.Attach(first.Link, old) {
		t.Fatal("not attached")
	}
	r.before.Arm(errors.New("disk full"), 1)
	refusal := p.refused(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, token)
	if !refusal.Detail.Retryable || refusal.RetryAfter <= 0 || refusal.Err == nil {
		t.Errorf("%+v", refusal)
	}
	if !old.open() {
		t.Fatal("the old socket was closed although nothing was committed")
	}
	if err := r.fence(first.Link); err != nil {
		t.Fatal(err)
	}
	second := p.register()
	if why := <-old.closed; why != registry.Replaced {
		t.Errorf("closed for %v", why)
	}
	if second.Link.Generation != 2 || !second.Takeover {
		t.Errorf("%+v", second)
	}
	wantFault(t, r.fence(first.Link), fault.Stale)
	wantFault(t, r.beat(first.Link, 1), fault.Stale)
	if r.reg.Attach(first.Link, newSender()) {
		t.Error("an old link attached")
	}
	r.reg.Detach(first.Link) // the end of the old socket does not touch the new one
	if !r.reg.Attach(second.Link, newSender()) || !r.reg.Attached(second.Link.Daemon.No) || r.reg.AttachedCount() != 1 {
		t.Error("the new link did not attach")
	}
}

// When nobody knows whether the next generation was issued, the holder of the one before may not go on, and the daemon is
// still marked offline some time.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	first := p.register()
	old := newSender()
	r.reg.Attach(first.Link, old)
	r.after.Arm(errors.New("killed"), 1)
	p.refused(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, token)
	if why := <-old.closed; why != registry.Replaced {
		t.Errorf("closed for %v", why)
	}
	wantFault(t, r.fence(first.Link), fault.Stale)
	r.run()
	w := r.hub.Watch(archive.DaemonKey(first.Link.Daemon.No))
	defer w.Stop()
	r.clock.BlockUntil(1)
	r.clock.Advance(45 * time.Second)
	<-w.C()
	if d := r.daemon(p.id); d.Online || d.Generation != 2 {
		t.Errorf("%+v", d)
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	if used := r.daemon(p.id).GenerationUsed; used != 0 {
		t.Fatalf("used %d before anything was sent", used)
	}
	if err := r.fence(link); err != nil {
		t.Fatal(err)
	}
	if used := r.daemon(p.id).GenerationUsed; used != 1 {
		t.Fatalf("used %d", used)
	}
	ahead, other := link, link
	ahead.Generation++
	other.Daemon.No += 100
	wantFault(t, r.fence(ahead), fault.Stale)
	wantFault(t, r.fence(other), fault.Stale)
}

func TestRollbackFindings(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	last := func() registry.Rollback {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.found[len(r.found)-1]
	}
	expect := func(name string, want registry.Rollback, generation int64) {
		t.Helper()
		reg := p.register()
		if last() != want || reg.Found != want {
			t.Errorf("%s: found %+v", name, last())
		}
		if reg.Link.Generation != generation {
			t.Errorf("%s: generation %d, want %d", name, reg.Link.Generation, generation)
		}
	}
	expect("first", registry.Rollback{}, 1)
	expect("never stored the first one", registry.Rollback{}, 2)
	p.last = 2
	expect("as before", registry.Rollback{}, 3)
	if err := r.beat(link(r, p, 3), 1); err != nil { // generation 3 is used
		t.Fatal(err)
	}
	p.last = 2
	expect("an old copy", registry.Rollback{Daemon: true}, 4)
	expect("the same copy, which has used nothing since", registry.Rollback{Daemon: true}, 5)
	p.last = 5
	expect("it goes on from here", registry.Rollback{}, 6)
	p.last = 99
	expect("control is an old copy", registry.Rollback{Control: true}, 100)
	p.last = 100
	expect("caught up", registry.Rollback{}, 101)
	p.epoch, p.last = uuid.New(), 0
	expect("another database", registry.Rollback{NewEpoch: true}, 102)
	p.last = math.MaxUint64
	if reg := p.register(); reg.Link.Generation <= 102 || !reg.Found.Control {
		t.Errorf("a wild generation: %+v", reg)
	}
	want := []archive.AlertKind{archive.AlertEpochChanged, archive.AlertControlRolledBack, archive.AlertDaemonRolledBack}
	if got := r.alerts(); !slices.Equal(got, want) {
		t.Errorf("alerts %v", got)
	}
	fresh := r.peer()
	fresh.last = 12
	if reg := fresh.register(); reg.Link.Generation != 13 || !reg.Found.Control {
		t.Errorf("a daemon that an older control knew: %+v", reg)
	}
}

func link(r *rig, p *peer, generation int64) archive.Link {
	return archive.Link{Daemon: archive.DaemonRef{No: r.daemon(p.id).No, ID: p.id}, Generation: generation}
}

// Two machines with one id (failure table, row 47).
func TestTwoDaemonsWithOneID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.peer()
	b := &peer{r: r, id: a.id, epoch: uuid.New()}
	first := newSender()
	r.reg.Attach(a.register().Link, first)
	r.clock.Advance(time.Hour)
	second := newSender()
	r.reg.Attach(b.register().Link, second)
	if why := <-first.closed; why != registry.Replaced {
		t.Error(why)
	}
	if d := r.daemon(a.id); d.Paused || !slices.Equal(r.alerts(), []archive.AlertKind{archive.AlertEpochChanged}) {
		t.Fatalf("one change alone: %+v, %v", d, r.alerts())
	}
	r.clock.Advance(time.Second)
	link := a.register().Link
	if why := <-second.closed; why != registry.Replaced {
		t.Error(why)
	}
	d := r.daemon(a.id)
	if !d.Paused || d.Epoch != a.epoch || d.Generation != 3 || !slices.Contains(r.alerts(), archive.AlertDuplicateDaemon) {
		t.Fatalf("%+v, %v", d, r.alerts())
	}
	if err := r.fence(link); err != nil { // the newest wins all the same
		t.Fatal(err)
	}
	r.run()
	w := r.hub.Watch(archive.DaemonKey(d.No))
	defer w.Stop()
	r.clock.BlockUntil(1)
	r.clock.Advance(44 * time.Second) // before it is stable, the other one comes again
	b.register()
	<-w.C()
	for i := range uint64(10) { // b stays
		if err := r.beat(archive.Link{Daemon: d.Ref(), Generation: 4}, i+1); err != nil {
			t.Fatal(err)
		}
		r.clock.BlockUntil(1)
		r.clock.Advance(6 * time.Second)
	}
	<-w.C()
	if d := r.daemon(a.id); d.Paused || !d.Online || slices.Contains(r.alerts(), archive.AlertDuplicateDaemon) {
		t.Fatalf("%+v, %v", d, r.alerts())
	}
}

func TestPauseSurvivesARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.peer()
	b := &peer{r: r, id: a.id, epoch: uuid.New()}
	a.register()
	b.register()
	a.register()
	r.clock.Advance(59 * time.Second)
	r.restart()
	r.run()
	d := r.daemon(a.id)
	w := r.hub.Watch(archive.DaemonKey(d.No))
	defer w.Stop()
	r.clock.BlockUntil(1)
	r.clock.Advance(45 * time.Second)
	<-w.C() // offline
	if d := r.daemon(a.id); !d.Paused || d.Online {
		t.Fatalf("%+v", d)
	}
	r.clock.BlockUntil(1)
	r.clock.Advance(15 * time.Second)
	<-w.C()
	if d := r.daemon(a.id); d.Paused {
		t.Fatalf("%+v", d)
	}
}

func TestManyRegisterAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one := r.peer()
	var wg sync.WaitGroup
	senders := make([]*sender, 25)
	for i := range 50 {
		p := one
		if i%2 == 0 {
			p = r.peer()
		}
		wg.Go(func() {
			reg, refusal := r.reg.Register(ctx, registry.Request{Register: p.request()}, token)
			if refusal != nil {
				t.Error(refusal.Detail)
				return
			}
			if p == one {
				s := newSender()
				senders[i/2] = s
				if !r.reg.Attach(reg.Link, s) {
					s.Close(registry.Replaced)
				}
			}
		})
	}
	wg.Wait()
	open := 0
	for _, s := range senders {
		if s.open() {
			open++
		}
	}
	if d := r.daemon(one.id); d.Generation != 25 || open != 1 {
		t.Errorf("generation %d, %d sockets open", d.Generation, open)
	}
	if n := r.count(`SELECT count(*) FROM daemons`); n != 26 {
		t.Errorf("%d daemons", n)
	}
}

// An error of the hook refuses the registration and writes nothing.
func TestHookFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.hooks.OnRegister = func(registry.Tx, archive.Link, []*pb.JobCursor, registry.Rollback) ([]*pb.JobCursor, error) {
		return nil, errors.New("no")
	}
	r.reg.SetHooks(r.hooks)
	r.peer().refused(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, token)
	if n := r.count(`SELECT count(*) FROM daemons`); n != 0 {
		t.Errorf("%d daemons", n)
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	other := r.peer()
	other.register()
	reg := p.register()
	no := reg.Link.Daemon.No
	wantFault(t, r.reg.Forget(ctx, p.id), fault.Conflict) // online
	wantFault(t, r.reg.Forget(ctx, uuid.New()), fault.NotFound)
	exec := func(query string, args ...any) {
		t.Helper()
		if err := r.db.Update(ctx, "test", func(tx *store.Tx) error { _, err := tx.Exec(query, args...); return err }); err != nil {
			t.Fatal(err)
		}
	}
	exec(`UPDATE daemons SET online = 0 WHERE daemon_no = ?`, no)
	exec(`INSERT INTO archive_routes (id, name, kind, source_daemon_no, target_daemon_no, route, state, created_at, updated_at)
		VALUES (?, 'nas to attic', 10, ?, ?, x'', 30, 0, 0)`, uuid.New(), no, other.register().Link.Daemon.No)
	if err := r.reg.Forget(ctx, p.id); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "nas to attic") {
		t.Fatal(err)
	}
	exec(`UPDATE archive_routes SET removed_at = 1`)
	job := uuid.New()
	exec(`INSERT INTO archive_jobs (id, operation, source_daemon_no, title, request, state, created_at) VALUES (?, 1, ?, 't', '{}', 30, 0)`,
		job, no)
	if err := r.reg.Forget(ctx, p.id); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), job.String()) {
		t.Fatal(err)
	}
	exec(`UPDATE archive_jobs SET state = 90`)
	if err := r.reg.Forget(ctx, p.id); err != nil {
		t.Fatal(err)
	}
	if list, err := r.reg.Daemons(ctx); err != nil || len(list) != 1 || list[0].ID != other.id {
		t.Fatalf("%v, %v", list, err)
	}
	p.last = 1
	if again := p.register(); again.Link.Generation != 2 || again.Link.Daemon.No != no || again.Found.Control {
		t.Errorf("%+v", again)
	}
	if len(r.daemon(p.id).Capabilities) != 3 {
		t.Error("its capabilities are not known again")
	}
}
