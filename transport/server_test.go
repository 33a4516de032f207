package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/transport/session"
)

// startServer serves cfg on free ports until the test ends.
func startServer(t *testing.T, cfg ServerConfig) *Server {
	t.Helper()
	cfg.Log = zerolog.Nop()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// client makes connections of its own, closed with the test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// unixClient connects to the socket whatever the URL says.
func unixClient(t *testing.T, path string) *http.Client {
	t.Helper()
	c := client(t)
	c.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return c
}

func fetch(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServerListenersAndAddresses(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "signalbox.sock")
	who := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, IsLocalAdmin(r.Context()))
	})
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: who, AdminSocket: socket, AdminHandler: who,
		MetricsListen: "127.0.0.1:0", Metrics: who})
	bound := s.Addresses()
	if len(bound) != 3 || bound[ListenerAdmin] != socket || strings.HasSuffix(bound[ListenerMain], ":0") {
		t.Fatalf("addresses %v", bound)
	}
	for _, name := range []string{ListenerMain, ListenerMetrics} {
		if _, body := fetch(t, client(t), "http://"+bound[name]); body != "false" {
			t.Errorf("%s counts as local admin: %s", name, body)
		}
	}
	if _, body := fetch(t, unixClient(t, socket), "http://admin/"); body != "true" {
		t.Errorf("the admin socket does not: %s", body)
	}
	fi, err := os.Stat(socket)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("socket mode %v, %v", fi.Mode(), err)
	}
}

func TestServerBindErrors(t *testing.T) {
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: http.NotFoundHandler()})
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cfg  ServerConfig
		want string
	}{
		"port in use":     {ServerConfig{Listen: s.Addresses()[ListenerMain]}, "bind http listener"},
		"no socket there": {ServerConfig{Listen: "127.0.0.1:0", AdminSocket: plain}, "exists and is no socket"},
		"long path":       {ServerConfig{AdminSocket: "/" + strings.Repeat("x", 120)}, "longer than the 107"},
	} {
		if _, err := NewServer(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdminSocketStaleAndLive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(ServerConfig{AdminSocket: path}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Fatalf("over a live socket: %v", err)
	}
	l.SetUnlinkOnClose(false) // as kill -9 leaves it
	_ = l.Close()
	startServer(t, ServerConfig{AdminSocket: path, AdminHandler: http.NotFoundHandler()})
}

func TestShutdownOrder(t *testing.T) {
	ready := NewReadiness(nil)
	ready.Ready()
	parked, working, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/park", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := Parked(r.Context())
		defer cancel()
		close(parked)
		<-ctx.Done()
		_, _ = fmt.Fprint(w, context.Cause(ctx), " ", r.Context().Err())
	})
	mux.HandleFunc("/work", func(w http.ResponseWriter, r *http.Request) {
		close(working)
		<-finish
		_, _ = fmt.Fprint(w, r.Context().Err())
	})
	told := make(chan struct{})
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: mux, Readiness: ready,
		DrainSessions: func(context.Context) error { close(told); return nil }})
	base := "http://" + s.Addresses()[ListenerMain]
	answers := map[string]chan string{"/park": make(chan string, 1), "/work": make(chan string, 1)}
	for path, c := range answers {
		cl := client(t)
		go func() {
			resp, err := cl.Get(base + path)
			if err != nil {
				c <- err.Error()
				return
			}
			defer func() { _ = resp.Body.Close() }()
			body, _ := io.ReadAll(resp.Body)
			c <- string(body)
		}()
	}
	<-parked
	<-working
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	if got := <-answers["/park"]; got != "server is draining <nil>" {
		t.Fatalf("parked request: %s", got)
	}
	<-told
	if reason := ready.Reason(context.Background()); reason != ReasonDraining {
		t.Fatalf("readiness %q", reason)
	}
	if _, err := net.Dial("tcp", s.Addresses()[ListenerMain]); err == nil {
		t.Fatal("still accepting")
	}
	close(finish)
	if got := <-answers["/work"]; got != "<nil>" {
		t.Fatalf("request in flight: %s", got)
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatalf("second call: %v", err)
	}
}

func TestShutdownForces(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	causes := make(chan error, 1)
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
		<-release // a handler that does not heed its context
	})})
	t.Cleanup(func() { close(release) })
	cl := client(t)
	go func() {
		if resp, err := cl.Get("http://" + s.Addresses()[ListenerMain]); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, ErrShutdownForced) {
		t.Fatalf("Shutdown: %v", err)
	}
	if cause := <-causes; !errors.Is(cause, ErrDraining) {
		t.Fatalf("context ended by %v", cause)
	}
}

// rawExchange sends bytes and returns the response's status and decoded body.
func rawExchange(t *testing.T, addr, request string) (int, map[string]any) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body := map[string]any{}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusBadRequest {
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Fatalf("body %q: %v", raw, err)
		}
	}
	return resp.StatusCode, body
}

func TestBodyLimits(t *testing.T) {
	handled := make(chan string, 1)
	front := Front{Log: zerolog.Nop(), Bodies: NewBodies(func(r *http.Request) int64 {
		if r.URL.Path == "/big" {
			return 100
		}
		return 10
	}, func(r *http.Request) bool { return r.URL.Path == "/streamed" })}
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: front.Wrap(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				var large *http.MaxBytesError
				if r.URL.Path != "/streamed" || !errors.As(err, &large) {
					t.Error(err)
				}
				WriteError(w, r, fault.New(fault.TooLarge, "too large"))
				return
			}
			handled <- string(body)
			WriteJSON(w, r, http.StatusOK, map[string]int64{"length": r.ContentLength})
		}))})
	addr := s.Addresses()[ListenerMain]
	post := func(path, headers, body string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body
	}
	for _, tc := range []struct {
		name, request string
		status        int
		reason, body  string
	}{
		{"at the cap", post("/", "Content-Length: 10\r\n", "0123456789"), 200, "", "0123456789"},
		{"above it", post("/", "Content-Length: 11\r\n", "0123456789a"), 413, "content_length_exceeded", ""},
		{"refused before the body comes", post("/", "Content-Length: 999999999999\r\n", ""), 413, "content_length_exceeded", ""},
		{"own cap of a route", post("/big", "Content-Length: 11\r\n", "0123456789a"), 200, "", "0123456789a"},
		{"streamed", post("/", "Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n"), 200, "", "0123456789"},
		{"streamed above", post("/", "Transfer-Encoding: chunked\r\n", "b\r\n0123456789a\r\n0\r\n\r\n"), 413, "streamed_body_exceeded", ""},
		{"streamed for ever", post("/", "Transfer-Encoding: chunked\r\n", "ffff\r\n"+strings.Repeat("x", 4000)), 413, "streamed_body_exceeded", ""},
		{"no number", post("/", "Content-Length: ten\r\n", ""), 413, "invalid_content_length", ""},
		{"negative", post("/", "content-length: -1\r\n", ""), 413, "invalid_content_length", ""},
		{"two that differ", post("/", "Content-Length: 1\r\nContent-Length: 2\r\n", "ab"), 413, "invalid_content_length", ""},
		{"other nonsense keeps its 400", post("/", "Bad Header: 1\r\nContent-Length: 1\r\n", "a"), 400, "", ""},
		{"a route that reads as it comes", post("/streamed", "Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n"), 200, "", "0123456789"},
		{"the same above its cap", post("/streamed", "Transfer-Encoding: chunked\r\n", "b\r\n0123456789a\r\n0\r\n\r\n"), 413, "", ""},
		{"the same with a length above it", post("/streamed", "Content-Length: 11\r\n", "0123456789a"), 413, "content_length_exceeded", ""},
		{"no body", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := rawExchange(t, addr, tc.request)
			if status != tc.status {
				t.Fatalf("status %d, %v", status, body)
			}
			switch status {
			case 200:
				if got := <-handled; got != tc.body {
					t.Fatalf("handler read %q", got)
				}
			case 413:
				details, _ := body["details"].(map[string]any)
				id, present := body["request_id"]
				if tc.reason == "" {
					break // the handler's own answer
				}
				if details["reason"] != tc.reason || body["error"] != "payload_too_large" || id != nil || !present {
					t.Fatalf("body %v", body)
				}
			}
			if len(handled) != 0 {
				t.Fatal("the handler ran")
			}
		})
	}
	if n := front.Bodies.buffered.Load(); n != 0 {
		t.Fatalf("%d bytes still held", n)
	}
}

func TestBodiesOfUnstatedLengthShareABudget(t *testing.T) {
	b := NewBodies(func(*http.Request) int64 { return 1 << 20 }, nil)
	b.buffered.Store(maxBuffered)
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: b.Middleware(http.NotFoundHandler())})
	status, body := rawExchange(t, s.Addresses()[ListenerMain],
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")
	if status != 503 || body["error"] != "unavailable" || b.buffered.Load() != maxBuffered {
		t.Fatalf("%d %v, %d held", status, body, b.buffered.Load())
	}
}

// echoHandler answers messages with themselves.
type echoHandler struct{ s *session.Session }

func (h echoHandler) OnMessage(_ context.Context, typ session.MessageType, data []byte) error {
	return h.s.SendAs(typ, append([]byte(nil), data...))
}

func (echoHandler) OnClose(context.Context, session.Closed) {}

func TestWebSocketThroughTheFrontAndDrain(t *testing.T) {
	certFile, keyFile := writePair(t, t.TempDir(), 1)
	certs, err := LoadCertificates(certFile, keyFile, fakeClock(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("plain", func(t *testing.T) { webSocketAndDrain(t, "ws://", nil) })
	t.Run("TLS", func(t *testing.T) { webSocketAndDrain(t, "wss://", certs) })
}

func webSocketAndDrain(t *testing.T, scheme string, certs *Certificates) {
	group, err := session.NewGroup(clock.System(), zerolog.Nop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(group.Close)
	plane := group.NewPlane(session.Options{Kind: "test"})
	front := Front{Log: zerolog.Nop()}
	s := startServer(t, ServerConfig{
		Listen: "127.0.0.1:0",
		TLS:    certs,
		Handler: front.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := plane.Accept(w, r, AddrKey(ClientAddr(r.Context())),
				func(_ context.Context, s *session.Session) (session.Handler, error) { return echoHandler{s}, nil })
			if err != nil {
				WriteError(w, r, err)
			}
		})),
		DrainSessions: func(ctx context.Context) error { return group.Drain(ctx, 0) },
	})
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	c, resp, err := dialer.Dial(scheme+s.Addresses()[ListenerMain], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = resp.Body.Close()
	for _, n := range []int{2, 200_000} { // the larger one takes the vectored write
		want := strings.Repeat("x", n)
		if err := c.WriteMessage(websocket.TextMessage, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if _, data, err := c.ReadMessage(); err != nil || string(data) != want {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
	}
	if peer := group.Sessions()[0].Peer(); peer != "127.0.0.1" {
		t.Fatalf("peer %s", peer)
	}
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	if _, _, err := c.ReadMessage(); !websocket.IsCloseError(err, 1001) {
		t.Fatalf("told %v", err)
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
}

func TestPlainRequestToAWebSocketIsAnErrorBody(t *testing.T) {
	group, err := session.NewGroup(clock.System(), zerolog.Nop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(group.Close)
	plane := group.NewPlane(session.Options{Kind: "test"})
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := plane.Accept(w, r, "", nil); err != nil {
			WriteError(w, r, err)
		}
	})})
	status, body := fetch(t, client(t), "http://"+s.Addresses()[ListenerMain])
	if status != 422 || !strings.Contains(body, "validation_error") {
		t.Fatalf("%d %s", status, body)
	}
}
