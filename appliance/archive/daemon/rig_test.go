package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/clock"
	"signalbox/store/daemonstore"
)

// patience is how long a test waits, on the bubble's clock, for what must come; only a failing test waits so long.
const patience = 2 * time.Minute

// bubble runs a test in a synctest bubble: soon and until look only when the daemon has come to rest, so no step of the
// clock overtakes what it does, however slow the machine. The daemon's own time is the rig's clock.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

var (
	self  = uuid.MustParse("11111111-1111-4111-8111-111111111111")
	other = uuid.MustParse("22222222-2222-4222-8222-222222222222")
	epoch = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
)

// rig is a daemon on a real database with a scripted control.
type rig struct {
	t       *testing.T
	path    string
	clock   *clock.Fake
	steps   *steps
	content *content
	dials   chan *wire
	options daemon.Options // of the next start
	db      *daemonstore.DB
	d       *daemon.Daemon
	stop    context.CancelFunc
	done    chan error
	control *control
	wire    *wire       // the last one that was registered
	away    atomic.Bool // control cannot be reached
	notices *notices
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "daemon.db"), clock: clock.NewFake(epoch), steps: newSteps(), content: &content{token: "1"},
		dials: make(chan *wire), control: &control{generation: 6}, notices: &notices{}}
	r.options = daemon.Options{Name: "nas", Software: "test/1", Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET,
		Capabilities: []string{archive.CapEviction, archive.CapVerifyPieces}, Random: func() float64 { return 0 }}
	t.Cleanup(r.kill)
	return r
}

// start opens the database and runs the daemon.
func (r *rig) start() {
	r.t.Helper()
	r.startWith(r.steps)
}

// startWith starts with workers of the test's own.
func (r *rig) startWith(steps daemon.Steps) {
	r.t.Helper()
	db, err := daemonstore.Open(context.Background(), daemonstore.Options{Path: r.path, ClientID: self, Clock: r.clock})
	if err != nil {
		r.t.Fatal(err)
	}
	o := r.options
	o.Store, o.Steps, o.Inventory, o.Clock, o.Notify = db, steps, r.content, r.clock, r.notices.add
	o.Dialer = dialFunc(func(ctx context.Context) (daemon.Conn, error) {
		if r.away.Load() {
			return nil, errors.New("nobody is there")
		}
		w := newWire()
		select {
		case r.dials <- w:
			return w, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	d, err := daemon.New(context.Background(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.db, r.d, r.stop, r.done = db, d, cancel, make(chan error, 1)
	done := r.done
	go func() { done <- d.Run(ctx) }()
}

// kill ends the daemon, if it runs, and closes its database; the file stays.
func (r *rig) kill() {
	r.t.Helper()
	if r.db == nil {
		return
	}
	r.stop()
	if err := r.ended(); err != nil && !errors.Is(err, errCrash) {
		r.t.Errorf("run: %v", err)
	}
}

// ended waits for the end of Run and closes the database.
func (r *rig) ended() error {
	r.t.Helper()
	err := await(r.t, "the end of the daemon", r.done)
	if e := r.db.Close(); e != nil {
		r.t.Error(e)
	}
	r.db = nil
	return err
}

// restart is a new process on the same file.
func (r *rig) restart() {
	r.t.Helper()
	r.kill()
	r.start()
}

// accept takes the next connection and registers it.
func (r *rig) accept() *wire {
	r.t.Helper()
	return r.register(await(r.t, "a dial", r.dials))
}

func (r *rig) register(w *wire) *wire {
	r.t.Helper()
	w.t, w.control, r.wire = r.t, r.control, w
	w.request = await(r.t, "a registration", w.registers).GetRegisterRequest()
	if r.control.sawGeneration > 0 && w.request.GetLastGeneration() < r.control.sawGeneration {
		r.t.Errorf("last_generation %d, but generation %d was in use", w.request.GetLastGeneration(), r.control.sawGeneration)
	}
	r.control.generation++
	w.generation = r.control.generation
	w.answers <- w.envelope(&pb.Envelope{Payload: &pb.Envelope_RegisterResponse{RegisterResponse: &pb.RegisterResponse{
		NegotiatedVersion: &pb.ProtocolVersion{Major: 2}, ConnectionGeneration: w.generation, ServerId: uuid.NewString(),
		ServerEpoch: uuid.NewString(), ServerTime: timestamppb.New(r.clock.Now()), Limits: r.limits(), Liveness: &pb.LivenessSettings{
			HeartbeatInterval: durationpb.New(15 * time.Second), OfflineThreshold: durationpb.New(45 * time.Second),
			StableReset: durationpb.New(time.Minute), ReconnectInitial: durationpb.New(time.Second), ReconnectCap: durationpb.New(time.Minute),
			CommandRetry: durationpb.New(15 * time.Second), CommandAttempts: 3, RegistrationDeadline: durationpb.New(10 * time.Second)}}}})
	return w
}

func (r *rig) limits() *pb.Limits {
	if r.control.limits != nil {
		return r.control.limits
	}
	return valid.DefaultLimits()
}

// redial lets the pause before the next connection pass. The clock moves only while the daemon waits.
func (r *rig) redial() *wire {
	r.t.Helper()
	r.away.Store(false)
	for range moves {
		synctest.Wait()
		s, err := r.d.Status(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		select {
		case w := <-r.dials:
			return r.register(w)
		default:
		}
		if s.Connection == daemon.Waiting {
			r.clock.Advance(500 * time.Millisecond)
		}
	}
	r.t.Fatal("the daemon does not dial")
	return nil
}

// control is what the scripted control remembers over connections.
type control struct {
	generation    uint64
	sawGeneration uint64
	limits        *pb.Limits
	silent        atomic.Bool // heartbeats are not acknowledged
}

// soon wants ok once the daemon has come to rest; the clock stands still.
func (r *rig) soon(what string, ok func() bool) {
	r.t.Helper()
	synctest.Wait()
	if !ok() {
		r.t.Fatalf("%s did not come", what)
	}
}

// moves is how many steps the clock is moved for something that must come.
const moves = 100_000

// until moves the clock in small steps until ok, each when the daemon has come to rest.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for range moves {
		synctest.Wait()
		if ok() {
			return
		}
		r.clock.Advance(200 * time.Millisecond)
	}
	r.t.Fatalf("%s did not come", what)
}

// cut breaks the connection and waits until the daemon has noticed. Control stays away until redial: a dial that waited for
// the test would meet its deadline on a clock that moves fast.
func (r *rig) cut(w *wire) {
	r.t.Helper()
	r.away.Store(true)
	w.Close(1006, "")
	r.soon("the end of the connection", func() bool {
		s, err := r.d.Status(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		return s.Connection != daemon.Registered
	})
}

// outbox reads the events of the job.
func (r *rig) outbox(p *plan) []daemon.OutboxEvent {
	r.t.Helper()
	var list []daemon.OutboxEvent
	err := r.db.View(context.Background(), func(tx daemon.ReadTx) (err error) {
		list, err = tx.Events(p.id, 0, 10_000)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// wire is one connection between the daemon and the script.
type wire struct {
	t          *testing.T
	control    *control
	generation uint64
	request    *pb.RegisterRequest

	registers chan *pb.Envelope
	answers   chan *pb.Envelope
	in        chan *frame.Frame
	out       chan *pb.Envelope
	closed    chan struct{}
	once      sync.Once
	held      []*pb.Envelope // read, and not what was waited for
}

func newWire() *wire {
	return &wire{registers: make(chan *pb.Envelope, 1), answers: make(chan *pb.Envelope, 1), in: make(chan *frame.Frame, 100),
		out: make(chan *pb.Envelope, 10_000), closed: make(chan struct{})}
}

type dialFunc func(ctx context.Context) (daemon.Conn, error)

func (f dialFunc) Dial(ctx context.Context) (daemon.Conn, error) { return f(ctx) }

func (w *wire) Register(ctx context.Context, e *pb.Envelope) (*pb.Envelope, error) {
	w.registers <- e
	select {
	case a := <-w.answers:
		return a, nil
	case <-w.closed:
		return nil, errors.New("closed")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (w *wire) Negotiated(daemon.Negotiated) {}

// Send holds every envelope to the checks that control makes of it.
func (w *wire) Send(_ context.Context, e *pb.Envelope, _ daemon.Lane) error {
	select {
	case <-w.closed:
		return errors.New("closed")
	default:
	}
	b, err := frame.Marshal(e)
	if err != nil {
		w.t.Errorf("sent an envelope that cannot be encoded: %v", err)
		return err
	}
	if most := int(w.limits().GetMaxEnvelopeBytes()); len(b) > most*9/10 {
		w.t.Errorf("sent %d bytes, the limit is 90%% of %d", len(b), most)
	}
	f, v := frame.Decode(b, frame.Options{From: frame.FromClient, Registered: true, Client: self.String(),
		MaxChunkEntries: int(w.limits().GetMaxChunkEntries())})
	if v != nil {
		w.t.Errorf("sent a frame that control refuses: %v\n%s", v, b)
		return errors.New("refused")
	}
	w.out <- f.Envelope
	if hb := f.Envelope.GetHeartbeat(); hb != nil && !w.control.silent.Load() {
		w.push(&pb.Envelope{Payload: &pb.Envelope_HeartbeatAck{HeartbeatAck: &pb.HeartbeatAck{Sequence: hb.GetSequence(),
			ServerTime: timestamppb.New(epoch)}}})
	}
	return nil
}

func (w *wire) limits() *pb.Limits {
	if w.control.limits != nil {
		return w.control.limits
	}
	return valid.DefaultLimits()
}

func (w *wire) Receive() (*frame.Frame, error) {
	select {
	case f := <-w.in:
		return f, nil
	case <-w.closed:
		return nil, errors.New("the script closed the connection")
	}
}

func (w *wire) Close(int, string) { w.once.Do(func() { close(w.closed) }) }

func (w *wire) envelope(e *pb.Envelope) *pb.Envelope {
	e.EnvelopeId, e.Version, e.SentAt = uuid.NewString(), &pb.ProtocolVersion{Major: 2}, timestamppb.New(epoch)
	e.ClientId, e.ConnectionGeneration = self.String(), w.generation
	return e
}

// push sends an envelope to the daemon as a frame that passed its checks.
func (w *wire) push(e *pb.Envelope) {
	w.t.Helper()
	b, err := frame.Marshal(w.envelope(e))
	if err != nil {
		w.t.Fatal(err)
	}
	f, v := frame.Decode(b, frame.Options{From: frame.FromControl, Registered: true, Client: self.String()})
	if v != nil {
		w.t.Fatalf("the script sends a broken frame: %v\n%s", v, b)
	}
	w.in <- f
}

func (w *wire) command(c *pb.Command) {
	w.push(&pb.Envelope{Payload: &pb.Envelope_Command{Command: c}})
}

func (w *wire) eventAck(job uuid.UUID, through, revision uint64, goAhead bool) {
	w.push(&pb.Envelope{Payload: &pb.Envelope_JobEventAck{JobEventAck: &pb.JobEventAck{JobId: job.String(), PersistedThrough: through,
		Revision: revision, GoAhead: goAhead}}})
}

// take returns the next envelope for which want is true and keeps the others for later calls.
func (w *wire) take(what string, want func(*pb.Envelope) bool) *pb.Envelope {
	w.t.Helper()
	for i, e := range w.held {
		if want(e) {
			w.held = append(w.held[:i:i], w.held[i+1:]...)
			return e
		}
	}
	for {
		e := await(w.t, what, w.out)
		w.control.sawGeneration = max(w.control.sawGeneration, e.GetConnectionGeneration())
		if want(e) {
			return e
		}
		w.held = append(w.held, e)
	}
}

// poll returns an envelope for which want is true if one has come.
func (w *wire) poll(want func(*pb.Envelope) bool) *pb.Envelope {
	for {
		select {
		case e := <-w.out:
			w.held = append(w.held, e)
			continue
		default:
		}
		for i, e := range w.held {
			if want(e) {
				w.held = append(w.held[:i:i], w.held[i+1:]...)
				return e
			}
		}
		return nil
	}
}

func (w *wire) ack(c *pb.Command) *pb.CommandAck {
	w.t.Helper()
	return w.take("an ack of "+archive.KindOf(c).String(), func(e *pb.Envelope) bool {
		return e.GetCommandAck().GetCommandId() == c.GetCommandId()
	}).GetCommandAck()
}

// accepted sends the command and wants it accepted.
func (w *wire) accepted(c *pb.Command) *pb.CommandAck {
	w.t.Helper()
	w.command(c)
	a := w.ack(c)
	if a.GetStatus() != pb.AckStatus_ACK_STATUS_ACCEPTED {
		w.t.Fatalf("%s: %v", archive.KindOf(c), a)
	}
	return a
}

func (w *wire) event(kind pb.JobEventKind) *pb.JobEvent {
	w.t.Helper()
	return w.take(kind.String(), func(e *pb.Envelope) bool { return e.GetJobEvent().GetKind() == kind }).GetJobEvent()
}

// noEvents returns when everything sent before it was handled, and fails if an event has come out that nobody waited for.
func (w *wire) noEvents() {
	w.t.Helper()
	q := &pb.Command{CommandId: uuid.NewString(), ClientId: self.String(), IssuedAt: timestamppb.New(epoch), Attempt: 1, Operation: &pb.Command_InventoryQuery{
		InventoryQuery: &pb.InventoryQuery{QueryId: uuid.NewString(), Scope: pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS,
			Purpose: pb.InventoryPurpose_INVENTORY_PURPOSE_JOB_MONITORING, PageSize: 100}}}
	w.accepted(q)
	w.take("the answer", func(e *pb.Envelope) bool { return e.GetInventoryChunk().GetCommandId() == q.GetCommandId() })
	for _, e := range w.held {
		if e.GetJobEvent() != nil {
			w.t.Fatalf("an event came out: %v", e.GetJobEvent())
		}
	}
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// notices keeps what the daemon told.
type notices struct {
	mu   sync.Mutex
	list []daemon.Notice
}

func (n *notices) add(x daemon.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, x)
}

func (n *notices) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	for _, x := range n.list {
		fmt.Fprintf(&b, "%s %s %v\n", x.What, x.Code, x.Err)
	}
	return b.String()
}

var errCrash = errors.New("crash")

func TestMain(m *testing.M) { os.Exit(m.Run()) }
