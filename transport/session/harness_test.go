package session

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(benchServer); kind != "" {
		runBenchServer(kind)
		return
	}
	goleak.VerifyTestMain(m)
}

// rig is a group with one plane behind a real HTTP server.
type rig struct {
	t     *testing.T
	clock *clock.Fake
	reg   *prometheus.Registry
	group *Group
	plane *Plane
	open  OpenFunc
	srv   *httptest.Server
	conns *gateListener
}

// funcs is a Handler made of functions; nil ones do nothing.
type funcs struct {
	message func(ctx context.Context, typ MessageType, data []byte) error
	close   func(ctx context.Context, c Closed)
}

func (f funcs) OnMessage(ctx context.Context, typ MessageType, data []byte) error {
	if f.message == nil {
		return nil
	}
	return f.message(ctx, typ, data)
}

func (f funcs) OnClose(ctx context.Context, c Closed) {
	if f.close != nil {
		f.close(ctx, c)
	}
}

func newRig(t *testing.T, o Options, open OpenFunc) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(time.Unix(1_800_000_000, 0)), reg: prometheus.NewRegistry(), open: open}
	var err error
	if r.group, err = NewGroup(r.clock, zerolog.Nop(), r.reg); err != nil {
		t.Fatal(err)
	}
	if o.Kind == "" {
		o.Kind = "test"
	}
	r.plane = r.group.NewPlane(o)
	r.srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := r.plane.Accept(w, req, req.RemoteAddr, r.open); err != nil {
			status := http.StatusBadRequest
			if fault.Is(err, fault.Unavailable) {
				status = http.StatusServiceUnavailable
			}
			http.Error(w, fault.Message(err), status)
		}
	}))
	r.conns = &gateListener{Listener: r.srv.Listener}
	r.srv.Listener = r.conns
	r.srv.Start()
	t.Cleanup(func() {
		r.srv.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.group.Drain(ctx, 0) // whatever is left ends by force
		r.group.Close()
	})
	return r
}

// dial connects a client; it is closed with the test.
func (r *rig) dial() *websocket.Conn {
	r.t.Helper()
	c, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(r.srv.URL, "http"), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *rig) closes(reason Reason) float64 {
	return testutil.ToFloat64(r.group.metrics.closes.WithLabelValues(r.plane.opts.Kind, reason.String()))
}

// echo answers every message with itself.
func echo(_ context.Context, s *Session) (Handler, error) {
	return funcs{message: func(_ context.Context, typ MessageType, data []byte) error {
		return s.SendAs(typ, append([]byte(nil), data...))
	}}, nil
}

// capture is an OpenFunc that hands its session to the test before it goes on with next.
func capture(next OpenFunc) (OpenFunc, <-chan *Session) {
	c := make(chan *Session, 16)
	return func(ctx context.Context, s *Session) (Handler, error) {
		c <- s
		return next(ctx, s)
	}, c
}

func wantClose(t *testing.T, c *websocket.Conn, code int, text string) {
	t.Helper()
	for {
		_, _, err := c.ReadMessage()
		if err == nil {
			continue
		}
		var ce *websocket.CloseError
		if !errors.As(err, &ce) {
			t.Fatalf("got %v, want close %d", err, code)
		}
		if ce.Code != code || ce.Text != text {
			t.Fatalf("closed %d %q, want %d %q", ce.Code, ce.Text, code, text)
		}
		return
	}
}

func send(t *testing.T, c *websocket.Conn, text string) {
	t.Helper()
	if err := c.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func wantMessage(t *testing.T, c *websocket.Conn, text string) {
	t.Helper()
	_, data, err := c.ReadMessage()
	if err != nil || string(data) != text {
		t.Fatalf("got %q, %v, want %q", clip(data), err, clip([]byte(text)))
	}
}

func clip(b []byte) string {
	if len(b) > 40 {
		b = b[:40]
	}
	return string(b)
}

// gateListener hands out connections whose writes can be held up and counted.
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
	writes atomic.Int64
	gate   atomic.Pointer[gate]
	once   sync.Once
	closed chan struct{}
}

// gate holds writes up until it is opened; entered receives when one has begun to wait.
type gate struct{ entered, open chan struct{} }

func (c *gateConn) hold() *gate {
	g := &gate{entered: make(chan struct{}, 64), open: make(chan struct{})}
	c.gate.Store(g)
	return g
}

func (c *gateConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	if g := c.gate.Load(); g != nil {
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
