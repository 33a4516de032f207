package archiveclient

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/secret"
)

const patience = 2 * time.Minute

var (
	token = strings.Repeat("s3cret-", 8)
	self  = "11111111-1111-4111-8111-111111111111"
)

// server is control's end: each socket is handed to the test.
type server struct {
	*httptest.Server
	sockets chan *websocket.Conn
}

func newServer(t *testing.T, secure bool, protocols ...string) *server {
	t.Helper()
	s := &server{sockets: make(chan *websocket.Conn, 10)}
	up := websocket.Upgrader{Subprotocols: protocols}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ws, err := up.Upgrade(w, r, nil); err == nil {
			s.sockets <- ws
		}
	})
	if secure {
		s.Server = httptest.NewTLSServer(h)
	} else {
		s.Server = httptest.NewServer(h)
	}
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	return s
}

func (s *server) url() string { return "ws" + strings.TrimPrefix(s.URL, "http") + "/daemon/v2" }

func tokenFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return name
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bad, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o    Options
		want string // in the error; empty: none
	}{
		"tls":                      {Options{URL: "wss://control.example/daemon/v2", TokenFile: "t"}, ""},
		"plain to loopback":        {Options{URL: "ws://127.0.0.1:8080/daemon/v2", TokenFile: "t"}, ""},
		"plain to loopback, IPv6":  {Options{URL: "ws://[::1]:8080/daemon/v2", TokenFile: "t"}, ""},
		"plain to localhost":       {Options{URL: "ws://localhost/daemon/v2", TokenFile: "t"}, ""},
		"plain, permitted":         {Options{URL: "ws://10.0.0.1/daemon/v2", AllowPlain: true, TokenFile: "t"}, ""},
		"plain to another machine": {Options{URL: "ws://10.0.0.1/daemon/v2", TokenFile: "t"}, "control: ws://"},
		"plain to a name":          {Options{URL: "ws://localhost.example/daemon/v2", TokenFile: "t"}, "control: ws://"},
		"http":                     {Options{URL: "https://control.example/", TokenFile: "t"}, "control: must begin"},
		"no URL":                   {Options{TokenFile: "t"}, "control: must be a URL"},
		"a user":                   {Options{URL: "wss://a:b@control.example/", TokenFile: "t"}, "control: must have no user"},
		"no token":                 {Options{URL: "wss://control.example/daemon/v2"}, "token_file"},
		"a short pin":              {Options{URL: "wss://control.example/", TokenFile: "t", PinSHA256: "abcd"}, "tls.certificate_sha256"},
		"no roots":                 {Options{URL: "wss://control.example/", TokenFile: "t", CAFile: bad}, "tls.ca_file"},
	} {
		_, err := New(test.o)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file string
		ok   bool
	}{
		"right":            {tokenFile(t, token+"\n", 0o600), true},
		"read only":        {tokenFile(t, token, 0o400), true},
		"group can read":   {tokenFile(t, token, 0o640), false},
		"others can read":  {tokenFile(t, token, 0o604), false},
		"too short":        {tokenFile(t, token[:31], 0o600), false},
		"too long":         {tokenFile(t, strings.Repeat("x", 513), 0o600), false},
		"very long":        {tokenFile(t, strings.Repeat("x", 1<<20), 0o600), false},
		"a directory":      {t.TempDir(), false},
		"not there at all": {filepath.Join(t.TempDir(), "none"), false},
	} {
		got, err := readToken(test.file)
		if (err == nil) != test.ok || test.ok && got.Reveal() != token {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), token[:16]) {
			t.Errorf("%s: the error shows the token: %v", name, err)
		}
	}
}

func TestTokenIsReadAtEachDial(t *testing.T) {
	t.Parallel()
	s := newServer(t, false, Subprotocol)
	file := tokenFile(t, token, 0o600)
	d, err := New(Options{URL: s.url(), TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Dial(testContext(t)); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a token that others can read: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := d.Dial(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	c.Close(daemon.CloseNormal, "")
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	s := newServer(t, true, Subprotocol)
	der := s.Certificate().Raw
	sum := sha256.Sum256(der)
	roots := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	file := tokenFile(t, token, 0o600)
	other := sha256.Sum256(nil)
	for name, test := range map[string]struct {
		o  Options
		ok bool
	}{
		"the system's roots": {Options{}, false},
		"own roots":          {Options{CAFile: roots}, true},
		"the pin":            {Options{PinSHA256: hex.EncodeToString(sum[:])}, true},
		"the pin in capital": {Options{PinSHA256: strings.ToUpper(hex.EncodeToString(sum[:]))}, true},
		"another pin":        {Options{PinSHA256: hex.EncodeToString(other[:])}, false},
	} {
		test.o.URL, test.o.TokenFile = s.url(), file
		d, err := New(test.o)
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Dial(testContext(t))
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c != nil && err == nil {
			c.Close(daemon.CloseNormal, "")
		}
	}
}

func TestServerWithoutTheSubprotocol(t *testing.T) {
	t.Parallel()
	s := newServer(t, false, "something-else")
	d, err := New(Options{URL: s.url(), TokenFile: tokenFile(t, token, 0o600)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Dial(testContext(t)); err == nil || !strings.Contains(err.Error(), Subprotocol) {
		t.Errorf("dial: %v", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := New(Options{URL: "ws://" + l.Addr().String() + "/daemon/v2", TokenFile: tokenFile(t, token, 0o600)})
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("long enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	dialled := make(chan error, 1)
	go func() {
		_, err := d.Dial(ctx)
		dialled <- err
	}()
	c, err := l.Accept() // and never an answer
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil { // the handshake is under way
		t.Fatal(err)
	}
	cancel(enough)
	if err := <-dialled; !errors.Is(err, enough) {
		t.Errorf("dial: %v", err)
	}
}

// pair is a connection and control's end of it.
type pair struct {
	t      *testing.T
	client daemon.Conn
	server *websocket.Conn
}

func connect(t *testing.T) *pair {
	t.Helper()
	s := newServer(t, false, Subprotocol)
	d, err := New(Options{URL: s.url(), TokenFile: tokenFile(t, token, 0o600), WriteTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Dial(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, client: c, server: <-s.sockets}
	t.Cleanup(func() {
		c.Close(daemon.CloseNormal, "")
		_ = p.server.Close()
	})
	return p
}

func envelope(generation uint64) *pb.Envelope {
	return &pb.Envelope{EnvelopeId: uuid.NewString(), Version: &pb.ProtocolVersion{Major: 2}, SentAt: timestamppb.Now(), ClientId: self,
		ConnectionGeneration: generation}
}

func registration() *pb.Envelope {
	e := envelope(0)
	e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: &pb.RegisterRequest{ProtocolVersion: e.Version, ClientId: self, ClientName: "nas",
		Role: pb.ClientRole_CLIENT_ROLE_SOURCE, ConnectionInstanceId: uuid.NewString(), StateEpoch: uuid.NewString(),
		OfferedLimits: valid.DefaultLimits(), Software: "test"}}
	return e
}

func response() *pb.Envelope {
	e := envelope(7)
	second := durationpb.New(time.Second)
	e.Payload = &pb.Envelope_RegisterResponse{RegisterResponse: &pb.RegisterResponse{NegotiatedVersion: e.Version, ConnectionGeneration: 7,
		ServerId: uuid.NewString(), ServerEpoch: uuid.NewString(), ServerTime: timestamppb.Now(), Limits: valid.DefaultLimits(),
		Liveness: &pb.LivenessSettings{HeartbeatInterval: second, OfflineThreshold: second, StableReset: second, ReconnectInitial: second,
			ReconnectCap: second, CommandRetry: second, CommandAttempts: 3, RegistrationDeadline: second}}}
	return e
}

func (p *pair) write(e *pb.Envelope) {
	p.t.Helper()
	b, err := frame.Marshal(e)
	if err == nil {
		err = p.server.WriteMessage(websocket.TextMessage, b)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) read() (*frame.Frame, []byte) {
	p.t.Helper()
	_ = p.server.SetReadDeadline(time.Now().Add(patience))
	_, b, err := p.server.ReadMessage()
	if err != nil {
		p.t.Fatal(err)
	}
	f, v := frame.Decode(b, frame.Options{From: frame.FromClient, Registered: !bytes.Contains(b, []byte("registerRequest"))})
	if v != nil {
		p.t.Fatal(v)
	}
	return f, b
}

// registered brings the connection to where it carries messages.
func (p *pair) registered(limits *pb.Limits) {
	p.t.Helper()
	asked := make(chan error, 1)
	go func() {
		_, err := p.client.Register(p.t.Context(), registration())
		asked <- err
	}()
	p.read()
	p.write(response())
	if err := <-asked; err != nil {
		p.t.Fatal(err)
	}
	p.client.Negotiated(daemon.Negotiated{Client: self, Generation: 7, Limits: limits})
}

func heartbeat(n uint64) *pb.Envelope {
	e := envelope(7)
	e.Payload = &pb.Envelope_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: n, SentAt: timestamppb.Now()}}
	return e
}

func TestRegistrationCarriesTheToken(t *testing.T) {
	t.Parallel()
	p := connect(t)
	q := registration()
	before := proto.CloneOf(q)
	answered := make(chan *pb.Envelope, 1)
	go func() {
		a, err := p.client.Register(t.Context(), q)
		if err != nil {
			t.Error(err)
		}
		answered <- a
	}()
	f, _ := p.read()
	if got := f.Envelope.GetRegisterRequest().GetToken(); got != token {
		t.Errorf("the token came as %q", got)
	}
	want := response()
	p.write(want)
	if a := <-answered; !proto.Equal(a, want) {
		t.Errorf("answer %v", a)
	}
	if !proto.Equal(q, before) {
		t.Error("the caller's message has the token in it")
	}
	if c := p.client.(*conn); !c.token.IsZero() {
		t.Error("the token is kept after the registration")
	}
}

func TestRegistrationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := connect(t)
	late := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := p.client.Register(ctx, registration())
		asked <- err
	}()
	p.read()
	cancel(late)
	if err := <-asked; !errors.Is(err, late) {
		t.Errorf("register: %v", err)
	}
}

func TestFramesThatBreakTheProtocol(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind int
		text string
	}{
		"no JSON":        {websocket.TextMessage, "{"},
		"a binary frame": {websocket.BinaryMessage, "{}"},
		"the wrong way":  {websocket.TextMessage, ""}, // a heartbeat, filled in below
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := connect(t)
			p.registered(valid.DefaultLimits())
			text := []byte(test.text)
			if len(text) == 0 {
				text, _ = frame.Marshal(heartbeat(1))
			}
			if err := p.server.WriteMessage(test.kind, text); err != nil {
				t.Fatal(err)
			}
			if f, err := p.client.Receive(); err == nil {
				t.Fatalf("received %v", f)
			}
			if test.kind == websocket.TextMessage {
				f, _ := p.read()
				e := f.Envelope.GetProtocolError()
				if !e.GetFatal() || e.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION || f.Envelope.GetConnectionGeneration() != 7 {
					t.Errorf("answer: %v", f.Envelope)
				}
			}
			_, _, err := p.server.ReadMessage()
			if !websocket.IsCloseError(err, daemon.CloseViolation) {
				t.Errorf("closed with %v", err)
			}
			if err := p.client.Send(t.Context(), heartbeat(1), daemon.Urgent); err == nil {
				t.Error("a closed connection takes messages")
			}
		})
	}
}

func TestReadLimitFollowsTheNegotiation(t *testing.T) {
	t.Parallel()
	p := connect(t)
	limits := valid.DefaultLimits()
	limits.MaxEnvelopeBytes = valid.MinEnvelopeBytes
	p.registered(limits)
	_ = p.server.WriteMessage(websocket.TextMessage, bytes.Repeat([]byte(" "), valid.MinEnvelopeBytes+1))
	if _, err := p.client.Receive(); err == nil || !strings.Contains(err.Error(), "over the limit") {
		t.Errorf("receive: %v", err)
	}
	if _, _, err := p.server.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Errorf("closed with %v", err)
	}
}

func TestEnvelopesOverTheLimitAreNotSent(t *testing.T) {
	t.Parallel()
	p := connect(t)
	limits := valid.DefaultLimits()
	limits.MaxEnvelopeBytes = valid.MinEnvelopeBytes
	p.registered(limits)
	big := envelope(7)
	big.Payload = &pb.Envelope_ProtocolError{ProtocolError: &pb.ProtocolError{Error: &pb.ErrorDetail{Message: strings.Repeat("x", valid.MinEnvelopeBytes)}}}
	if err := p.client.Send(t.Context(), big, daemon.Bulk); err == nil {
		t.Error("an envelope over the limit was queued")
	}
	if err := p.client.Send(t.Context(), heartbeat(1), daemon.Urgent); err != nil {
		t.Errorf("and the connection ended: %v", err)
	}
	p.read()
}

// TestUrgentOvertakesBulk fills the bulk lane behind a peer that does not read, and shows that producers block on the
// queue's bounds and that a heartbeat does not wait behind them.
func TestUrgentOvertakesBulk(t *testing.T) {
	t.Parallel()
	q := newQueue(4, 100)
	ctx, finish := t.Context(), make(chan struct{})
	never := func() error { return errors.New("ended") }
	for range 4 {
		if err := q.put(ctx, make([]byte, 10), finish, never); err != nil {
			t.Fatal(err)
		}
	}
	blocked := func(b []byte) bool {
		short, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Is(q.put(short, b, finish, never), context.Canceled)
	}
	if !blocked(make([]byte, 1)) {
		t.Error("a fifth frame was taken")
	}
	q.taken(len(<-q.out()))
	if !blocked(make([]byte, 90)) {
		t.Error("more bytes than the bound were taken")
	}
	waiting := make(chan error, 1)
	go func() { waiting <- q.put(ctx, make([]byte, 65), finish, never) }()
	q.taken(len(<-q.out())) // room for it
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	for range 3 {
		q.taken(len(<-q.out()))
	}
	if err := q.put(ctx, make([]byte, 1000), finish, never); err != nil { // larger than all, alone
		t.Error(err)
	}
	close(finish)
	if err := q.put(ctx, []byte("x"), finish, never); err == nil {
		t.Error("an ended queue takes frames")
	}

	p := connect(t)
	p.registered(valid.DefaultLimits())
	const bulk = 200
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < bulk && err == nil; i++ {
			e := envelope(7)
			e.Payload = &pb.Envelope_ProtocolError{ProtocolError: &pb.ProtocolError{Error: valid.Detail(pb.ErrorCode_ERROR_CODE_INTERNAL,
				strings.Repeat("b", 1000))}}
			err = p.client.Send(ctx, e, daemon.Bulk)
		}
		if err == nil {
			err = p.client.Send(ctx, heartbeat(1), daemon.Urgent)
		}
		sent <- err
	}()
	beats, others := 0, 0
	for beats+others <= bulk {
		if f, _ := p.read(); f.Envelope.GetHeartbeat() != nil {
			beats++
		} else {
			others++
		}
	}
	if err := <-sent; err != nil || beats != 1 || others != bulk {
		t.Errorf("%d heartbeats and %d others, %v", beats, others, err)
	}
}

func TestWriterPrefersTheUrgentLane(t *testing.T) {
	t.Parallel()
	s := newServer(t, false, Subprotocol)
	ws, _, err := websocket.DefaultDialer.DialContext(testContext(t), s.url(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, server: <-s.sockets}
	// Both lanes are filled before the writer runs.
	c := prepareConn(ws, secret.NewText(token), patience)
	for range 3 {
		e := envelope(7)
		e.Payload = &pb.Envelope_ProtocolError{ProtocolError: &pb.ProtocolError{Error: valid.Detail(pb.ErrorCode_ERROR_CODE_INTERNAL, "b")}}
		if err := c.Send(t.Context(), e, daemon.Bulk); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Send(t.Context(), heartbeat(1), daemon.Urgent); err != nil {
		t.Fatal(err)
	}
	go c.write()
	defer c.Close(daemon.CloseNormal, "")
	if f, _ := p.read(); f.Envelope.GetHeartbeat() == nil {
		t.Errorf("first came %v", f.Envelope)
	}
}
