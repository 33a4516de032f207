package archiveconn_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/clock"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
	"signalbox/transport/archiveconn"
	"signalbox/transport/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "a-token-that-no-log-may-ever-show-0001"

var (
	ctx   = context.Background()
	begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
)

// logs collects what is logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// rig is control's end with real registry and queue, behind a real HTTP server. It is the services above them, and the
// handler of every kind of command.
type rig struct {
	t        testing.TB
	clock    *clock.Fake
	db       *store.DB
	hub      *wake.Hub
	logs     logs
	metrics  *prometheus.Registry
	counts   *archiveconn.Metrics
	registry *registry.Registry
	queue    *command.Queue
	group    *session.Group
	srv      *httptest.Server
	conns    *gateListener

	waiting   chan struct{} // a socket waits for its registration
	detached  chan archive.Link
	exhausted chan struct{} // a command is being parked

	mu       sync.Mutex
	events   []*pb.JobEvent
	acks     []*pb.JobEventAck // to be pulled
	answered []*pb.CommandAck
	parked   []command.Row
	took     []proto.Message // snapshots, chunks, updates
	err      error           // of the services
	onEvent  func(link archive.Link) error
}

func newRig(t testing.TB, change ...func(*registry.Options)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin), hub: wake.New(), metrics: prometheus.NewRegistry(),
		waiting: make(chan struct{}, 256), detached: make(chan archive.Link, 256), exhausted: make(chan struct{}, 16)}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clock })
	r.counts = archiveconn.NewMetrics(r.metrics)
	o := registry.Options{Tokens: []registry.Digest{registry.DigestOf([]byte(token))}, ServerID: uuid.New(), ServerEpoch: uuid.New(),
		Clock: r.clock, Hub: r.hub, Observer: r.counts}
	for _, f := range change {
		f(&o)
	}
	r.registry = registry.New(store.Bind[registry.Tx, registry.ReadTx](r.db), o)
	if err := r.registry.Start(ctx); err != nil {
		t.Fatal(err)
	}
	r.queue = command.NewQueue(store.Bind[command.Tx, command.ReadTx](r.db), r.registry, command.Options{Clock: r.clock, Hub: r.hub,
		Observer: r.counts})
	for k := archive.AssignJob; k <= archive.CloseJob; k++ {
		r.queue.Handle(k, r)
	}
	log := zerolog.New(&r.logs).Level(zerolog.DebugLevel)
	var err error
	if r.group, err = session.NewGroup(r.clock, log, r.metrics); err != nil {
		t.Fatal(err)
	}
	v := archiveconn.New(r.group, archiveconn.Services{Registry: tattling{r.registry, r.waiting}, Commands: r.queue, Jobs: r,
		Inventory: r, Routes: r, Hub: r.hub, Clock: r.clock, Log: log, Metrics: r.counts})
	mux := http.NewServeMux()
	v.Routes(mux)
	trusted := transport.NewNetworks([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}) // the test is a proxy: see dialFrom
	r.srv = httptest.NewUnstartedServer(transport.ClientAddresses(trusted)(mux))
	r.conns = &gateListener{Listener: r.srv.Listener}
	r.srv.Listener = r.conns
	r.srv.Start()
	t.Cleanup(func() {
		r.srv.Close()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_ = r.group.Drain(ended, 0) // whatever is left ends by force
		r.group.Close()
	})
	return r
}

// tattling tells when a socket begins to wait for its registration.
type tattling struct {
	*registry.Registry
	waiting chan struct{}
}

func (r tattling) Liveness() registry.Liveness {
	r.waiting <- struct{}{}
	return r.Registry.Liveness()
}

// run runs the timers of registry and queue until the test ends.
func (r *rig) run() {
	runs, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.registry.Run(runs) })
	wg.Go(func() { _ = r.queue.Run(runs) })
	r.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

func (r *rig) Event(_ context.Context, link archive.Link, e *pb.JobEvent) (*pb.JobEventAck, error) {
	r.mu.Lock()
	hook := r.onEvent
	r.mu.Unlock()
	if hook != nil {
		if err := hook(link); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	r.events = append(r.events, e)
	if e.Kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED {
		return nil, nil // dropped without an answer
	}
	return &pb.JobEventAck{JobId: e.JobId, PersistedThrough: e.Sequence, Revision: e.ResultingRevision}, nil
}

func (r *rig) Snapshot(_ context.Context, _ archive.Link, s *pb.JobSnapshot) error { return r.take(s) }

func (r *rig) Acks(context.Context, archive.Link) ([]*pb.JobEventAck, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.acks
	r.acks = nil
	return list, nil
}

func (r *rig) Chunk(_ context.Context, _ archive.Link, c *pb.InventoryChunk) error { return r.take(c) }

func (r *rig) OnDetach(link archive.Link) { r.detached <- link }

func (r *rig) Update(_ context.Context, _ archive.Link, u *pb.RouteUpdate) (*pb.RouteUpdateAck, error) {
	return &pb.RouteUpdateAck{RouteId: u.RouteId, Side: u.Side, CreationCommandId: u.CreationCommandId, PersistedThrough: u.Sequence},
		r.take(u)
}

func (r *rig) take(m proto.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, m)
	return r.err
}

func (r *rig) CommandAcked(_ command.Tx, _ archive.Link, _ command.Row, a *pb.CommandAck) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered = append(r.answered, a)
	return nil
}

func (r *rig) CommandExhausted(_ command.Tx, row command.Row) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked = append(r.parked, row)
	r.exhausted <- struct{}{}
	return nil
}

func (r *rig) MaySend(command.ReadTx, archive.Link, command.Row) (bool, error) { return true, nil }

func (r *rig) setErr(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// enqueue stores a query of the given size for the daemon.
func (r *rig) enqueue(c *client, size int) (row command.Row) {
	r.t.Helper()
	d, err := r.registry.Daemon(ctx, c.id)
	if err != nil {
		r.t.Fatal(err)
	}
	err = store.Bind[command.Tx, command.ReadTx](r.db).Update(ctx, "test", func(tx command.Tx) (err error) {
		row, err = r.queue.Enqueue(tx, command.New{Daemon: d.Ref(), Command: &pb.Command{Operation: &pb.Command_InventoryQuery{
			InventoryQuery: &pb.InventoryQuery{QueryId: uuid.NewString(), Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES,
				Purpose: pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW, PageSize: 10,
				Filter: &pb.ResourceFilter{Text: strings.Repeat("x", size)}}}}})
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return row
}

func (r *rig) row(no int64) (row command.Row) {
	r.t.Helper()
	if err := store.Bind[command.Tx, command.ReadTx](r.db).View(ctx, func(tx command.ReadTx) (err error) {
		row, err = tx.DaemonCommand(no)
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return row
}

// metric is the value of one series, labels as name=value.
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	all, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			have := map[string]bool{}
			for _, l := range m.Label {
				have[l.GetName()+"="+l.GetValue()] = true
			}
			fits := true
			for _, want := range labels {
				fits = fits && have[want]
			}
			if fits {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// client is a daemon on the wire.
type client struct {
	r          *rig
	t          testing.TB
	ws         *websocket.Conn
	id, epoch  uuid.UUID
	generation uint64
	response   *pb.RegisterResponse
}

// dial opens a socket for a new daemon.
func (r *rig) dial() *client { return r.dialAs(uuid.New(), uuid.New()) }

func (r *rig) dialAs(id, epoch uuid.UUID) *client { return r.connect(id, epoch, nil) }

// dialFrom is dial through a trusted proxy, from an address.
func (r *rig) dialFrom(address string) *client {
	return r.connect(uuid.New(), uuid.New(), http.Header{"X-Forwarded-For": {address}})
}

func (r *rig) connect(id, epoch uuid.UUID, headers http.Header) *client {
	r.t.Helper()
	d := websocket.Dialer{Subprotocols: []string{archiveconn.Subprotocol}, EnableCompression: true}
	ws, resp, err := d.Dial("ws"+strings.TrimPrefix(r.srv.URL, "http")+archiveconn.Path, headers)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if ext := resp.Header.Get("Sec-Websocket-Extensions"); ext != "" || ws.Subprotocol() != archiveconn.Subprotocol {
		r.t.Fatalf("extensions %q, subprotocol %q", ext, ws.Subprotocol())
	}
	r.t.Cleanup(func() { _ = ws.Close() })
	return &client{r: r, t: r.t, ws: ws, id: id, epoch: epoch}
}

func (c *client) request() *pb.RegisterRequest {
	return &pb.RegisterRequest{ProtocolVersion: &pb.ProtocolVersion{Major: 2}, ClientId: c.id.String(), ClientName: "nas",
		Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET, ConnectionInstanceId: uuid.NewString(), Capabilities: []string{"verify.pieces"},
		Token: token, StateEpoch: c.epoch.String(), OfferedLimits: &pb.Limits{MaxEnvelopeBytes: 64 << 10, MaxChunkEntries: 50,
			MaxOutboundEnvelopes: 64, MaxOutboundBytes: 1 << 20, MaxActiveCursors: 16}, Software: "test"}
}

func (c *client) envelope(change ...func(*pb.Envelope)) *pb.Envelope {
	e := &pb.Envelope{EnvelopeId: uuid.NewString(), Version: &pb.ProtocolVersion{Major: 2}, SentAt: timestamppb.New(c.r.clock.Now()),
		ClientId: c.id.String(), ConnectionGeneration: c.generation}
	for _, f := range change {
		f(e)
	}
	return e
}

func (c *client) frame(e *pb.Envelope) []byte {
	data, err := frame.Marshal(e)
	if err != nil {
		c.t.Error(err)
	}
	return data
}

func (c *client) send(change ...func(*pb.Envelope)) *pb.Envelope {
	c.t.Helper()
	e := c.envelope(change...)
	c.raw(websocket.TextMessage, c.frame(e))
	return e
}

func (c *client) raw(typ int, data []byte) {
	c.t.Helper()
	if err := c.ws.WriteMessage(typ, data); err != nil {
		c.t.Error(err)
	}
}

func (c *client) sendRegister(change ...func(*pb.RegisterRequest)) *pb.Envelope {
	q := c.request()
	for _, f := range change {
		f(q)
	}
	return c.send(func(e *pb.Envelope) { e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: q} })
}

// register must succeed.
func (c *client) register(change ...func(*pb.RegisterRequest)) *client {
	c.t.Helper()
	sent := c.sendRegister(change...)
	e := c.read()
	c.response = e.GetRegisterResponse()
	if c.response == nil || e.CorrelationId != sent.EnvelopeId || e.ConnectionGeneration != c.response.ConnectionGeneration {
		c.t.Fatalf("got %v", e)
	}
	c.generation = c.response.ConnectionGeneration
	return c
}

// read returns the next envelope, which must pass every check.
func (c *client) read() *pb.Envelope {
	c.t.Helper()
	typ, data, err := c.ws.ReadMessage()
	if err != nil || typ != websocket.TextMessage {
		c.t.Fatalf("read: %d, %v", typ, err)
	}
	f, v := frame.Decode(data, frame.Options{From: frame.FromControl, Registered: c.generation != 0, Client: c.id.String()})
	if v != nil {
		c.t.Fatalf("control sent a bad frame: %v", v)
	}
	if f.Envelope.ConnectionGeneration != c.generation && f.Envelope.GetRegisterResponse() == nil {
		c.t.Fatalf("generation %d of %d", f.Envelope.ConnectionGeneration, c.generation)
	}
	return f.Envelope
}

// wantClose reads the close frame, after nothing else.
func (c *client) wantClose(code int) {
	c.t.Helper()
	_, data, err := c.ws.ReadMessage()
	var ce *websocket.CloseError
	if !errors.As(err, &ce) || ce.Code != code {
		c.t.Fatalf("got %s, %v, want close %d", data, err, code)
	}
}

// wantViolation is a fatal ProtocolError about the envelope, then close 4400.
func (c *client) wantViolation(envelope string) {
	c.t.Helper()
	e := c.read()
	p := e.GetProtocolError()
	if p == nil || !p.Fatal || p.Error.Code != pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION ||
		envelope != "" && p.OffendingEnvelopeId != envelope {
		c.t.Fatalf("got %v", e)
	}
	c.wantClose(4400)
}

func heartbeat(sequence uint64) func(*pb.Envelope) {
	return func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: sequence, SentAt: e.SentAt}}
	}
}

func event(kind pb.JobEventKind, sequence uint64) func(*pb.Envelope) {
	return func(e *pb.Envelope) {
		e.Payload = &pb.Envelope_JobEvent{JobEvent: &pb.JobEvent{EventId: uuid.NewString(), JobId: uuid.NewString(), Sequence: sequence,
			ResultingRevision: 2, CommandId: uuid.NewString(), Kind: kind, Step: pb.JobStep_JOB_STEP_STAGE,
			State: pb.JobState_JOB_STATE_RUNNING, OccurredAt: e.SentAt, Progress: &pb.Progress{FractionComplete: 0.5}}}
	}
}

// gateListener hands out connections whose writes can be held up.
type gateListener struct {
	net.Listener
	mu   sync.Mutex
	last *gateConn
}

func (l *gateListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &gateConn{Conn: c, closed: make(chan struct{})}
	l.mu.Lock()
	l.last = g
	l.mu.Unlock()
	return g, nil
}

func (l *gateListener) latest() *gateConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

type gateConn struct {
	net.Conn
	mu     sync.Mutex
	gate   *gate
	once   sync.Once
	closed chan struct{}
}

// gate holds writes up until it is opened; entered receives when one has begun to wait.
type gate struct{ entered, open chan struct{} }

func (c *gateConn) hold() *gate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate = &gate{entered: make(chan struct{}, 64), open: make(chan struct{})}
	return c.gate
}

func (c *gateConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	g := c.gate
	c.mu.Unlock()
	if g != nil {
		g.entered <- struct{}{}
		select {
		case <-g.open:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Write(p)
}

func (c *gateConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
