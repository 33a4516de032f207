package archiveconn_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/registry"
	"signalbox/transport/archiveconn"
)

func TestHandshakeOfHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	url := "ws" + strings.TrimPrefix(r.srv.URL, "http") + archiveconn.Path
	for _, offered := range [][]string{nil, {"archive-control.v1"}} {
		_, resp, err := (&websocket.Dialer{Subprotocols: offered}).Dial(url, nil)
		if err == nil || resp.StatusCode != http.StatusUpgradeRequired {
			t.Errorf("%v: %v", offered, err)
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
	resp, err := http.Get(r.srv.URL + archiveconn.Path)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != "websocket" {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial().register()
	if l := c.response.Limits; l.MaxEnvelopeBytes != 64<<10 || l.MaxActiveCursors != 16 {
		t.Errorf("%v", l)
	}
	d, err := r.registry.Daemon(ctx, c.id)
	if err != nil || !d.Online || d.Remote == "" {
		t.Errorf("%+v, %v", d, err)
	}
	if n := r.metric("signalbox_archive_registrations_total", "result=ok"); n != 1 {
		t.Errorf("counted %v", n)
	}
	c.send(heartbeat(1)) // the answer shows that the socket is joined
	c.read()
	if !r.registry.Attached(d.No) || r.metric("signalbox_archive_unregistered_sockets") != 0 {
		t.Error("the socket is not joined")
	}
	if err := c.ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(1000, "")); err != nil {
		t.Fatal(err)
	}
	<-r.detached
	if r.registry.Attached(d.No) {
		t.Error("still attached")
	}
}

// first is a malformed first message, or a registration that is refused.
type first struct {
	typ      int
	data     func(c *client) []byte
	rejected pb.ErrorCode // of the RegisterRejected; 0: none is sent
	close    int
}

func text(s string) func(*client) []byte { return func(*client) []byte { return []byte(s) } }

// registration is a valid one with a change to its bytes.
func registration(change func(string) string) func(*client) []byte {
	return func(c *client) []byte {
		return []byte(change(string(c.frame(c.envelope(func(e *pb.Envelope) {
			e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: c.request()}
		})))))
	}
}

// swap replaces the one occurrence of a text.
func swap(old, new string) func(string) string {
	return func(s string) string {
		s = strings.ReplaceAll(strings.ReplaceAll(s, `": `, `":`), `, "`, `,"`)
		if strings.Count(s, old) != 1 {
			panic(fmt.Sprintf("%d times %s in %s", strings.Count(s, old), old, s))
		}
		return strings.Replace(s, old, new, 1)
	}
}

func TestFirstMessage(t *testing.T) {
	t.Parallel()
	const violation = pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION
	const txt = websocket.TextMessage
	request := func(change func(*pb.RegisterRequest)) func(*client) []byte {
		return func(c *client) []byte {
			q := c.request()
			change(q)
			return c.frame(c.envelope(func(e *pb.Envelope) { e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: q} }))
		}
	}
	message := func(change ...func(*pb.Envelope)) func(*client) []byte {
		return func(c *client) []byte { return c.frame(c.envelope(change...)) }
	}
	r := newRig(t)
	for name, f := range map[string]first{
		"binary":             {websocket.BinaryMessage, registration(func(s string) string { return s }), 0, 4400},
		"empty":              {txt, text(""), 0, 4400},
		"no JSON":            {txt, text("hello"), 0, 4400},
		"a list":             {txt, text("[]"), 0, 4400},
		"an empty object":    {txt, text("{}"), 0, 4400},
		"a byte order mark":  {txt, registration(func(s string) string { return "\ufeff" + s }), 0, 4400},
		"no UTF-8":           {txt, registration(swap(`"nas"`, "\"\xff\"")), 0, 4400},
		"two objects":        {txt, registration(func(s string) string { return s + "{}" }), 0, 4400},
		"cut off":            {txt, registration(func(s string) string { return s[:len(s)-1] }), 0, 4400},
		"deep":               {txt, text(strings.Repeat(`{"a":`, 50_000) + "1" + strings.Repeat("}", 50_000)), 0, 4400},
		"over 512 KiB":       {txt, registration(func(s string) string { return s + strings.Repeat(" ", 512<<10) }), 0, 1009},
		"a key twice":        {txt, registration(swap(`"clientName":"nas"`, `"clientName":"nas","clientName":"nas"`)), violation, 4400},
		"both spellings":     {txt, registration(swap(`"clientName":"nas"`, `"clientName":"nas","client_name":"nas"`)), violation, 4400},
		"an unknown field":   {txt, registration(swap(`"clientName":"nas"`, `"clientName":"nas","novelty":1`)), violation, 4400},
		"an unknown enum":    {txt, registration(swap(`CLIENT_ROLE_SOURCE_AND_TARGET`, `CLIENT_ROLE_JUDGE`)), violation, 4400},
		"an unknown payload": {txt, registration(swap(`"registerRequest"`, `"registerWish"`)), violation, 4400},
		"two payloads":       {txt, registration(swap(`"registerRequest"`, `"heartbeat":null,"registerRequest"`)), violation, 4400},
		"no payload":         {txt, message(), violation, 4400},
		"a heartbeat":        {txt, message(heartbeat(1)), violation, 4400},
		"a payload of control": {txt, message(func(e *pb.Envelope) {
			e.Payload = &pb.Envelope_HeartbeatAck{HeartbeatAck: &pb.HeartbeatAck{Sequence: 1}}
		}), violation, 4400},
		"a generation": {txt, func(c *client) []byte {
			c.generation = 3
			defer func() { c.generation = 0 }()
			return registration(func(s string) string { return s })(c)
		}, violation, 4400},
		"a short token":       {txt, request(func(q *pb.RegisterRequest) { q.Token = "short" }), violation, 4400},
		"no epoch":            {txt, request(func(q *pb.RegisterRequest) { q.StateEpoch = "" }), violation, 4400},
		"another client":      {txt, request(func(q *pb.RegisterRequest) { q.ClientId = uuid.NewString() }), violation, 4400},
		"limits out of range": {txt, request(func(q *pb.RegisterRequest) { q.OfferedLimits.MaxChunkEntries = 49 }), violation, 4400},
		"a wrong token": {txt, request(func(q *pb.RegisterRequest) { q.Token = strings.Repeat("w", 40) }),
			pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED, 4401},
		"another major": {txt, func(c *client) []byte {
			q := c.request()
			q.ProtocolVersion = &pb.ProtocolVersion{Major: 3}
			return c.frame(c.envelope(func(e *pb.Envelope) {
				e.Version = &pb.ProtocolVersion{Major: 3}
				e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: q}
			}))
		}, pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH, 4406},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := r.dial()
			c.t = t
			c.raw(f.typ, f.data(c))
			if f.rejected != 0 {
				m := c.read().GetRegisterRejected()
				if m == nil || m.Error.Code != f.rejected || m.SupportedMajor != 2 {
					t.Fatalf("got %v", m)
				}
			}
			c.wantClose(f.close)
		})
	}
	t.Cleanup(func() { // after all of them
		if list, err := r.registry.Daemons(ctx); err != nil || len(list) != 0 {
			t.Errorf("%+v, %v", list, err)
		}
		if strings.Contains(r.logs.text(), token) {
			t.Errorf("the token is in the log:\n%s", r.logs.text())
		}
	})
}

func TestRegistrationDeadline(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(c *client){
		"nothing comes": func(*client) {},
		"a frame that does not end": func(c *client) {
			w, err := c.ws.NextWriter(websocket.TextMessage)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil { // sends a first part
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c := r.dial()
			<-r.waiting
			begin(c)
			r.clock.BlockUntil(1)
			r.clock.Advance(10*time.Second - time.Millisecond)
			r.clock.BlockUntil(1)
			if n := r.metric("signalbox_sessions", "kind=archive"); n != 1 {
				t.Fatal("closed too early")
			}
			r.clock.Advance(time.Millisecond)
			c.wantClose(4408)
		})
	}
}

func TestUnregisteredSocketsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	idle := make([]*client, archiveconn.MaxUnregistered)
	for i := range idle {
		idle[i] = r.dial()
		<-r.waiting
	}
	r.dial().wantClose(4503)
	idle[0].register() // makes room
	last := r.dial()
	<-r.waiting
	r.dial().wantClose(4503)
	last.raw(websocket.TextMessage, []byte("{"))
	last.wantClose(4400)
	if n := r.metric("signalbox_archive_registrations_total", "result=capacity"); n != 2 {
		t.Errorf("counted %v", n)
	}
}

// TestOneAddressLeavesRoomForOthers fills every place from one address: daemons of others register all the same, and it is
// theirs to wait, not the others'.
func TestOneAddressLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	full := func(address string, n int) (list []*client) {
		for range n {
			list = append(list, r.dialFrom(address))
			<-r.waiting
		}
		return list
	}
	greedy := full("192.0.2.1", archiveconn.MaxUnregistered)
	r.dialFrom("192.0.2.1").wantClose(4503) // it has them all: there is nobody to take one of
	for i, address := range []string{"198.51.100.7", "203.0.113.2, 198.51.100.8", "2001:db8::1"} {
		c := r.dialFrom(address)
		<-r.waiting
		greedy[i].wantClose(4503) // the oldest
		c.register()
		greedy = append(greedy, full("192.0.2.1", 1)...) // and its place is free again
	}
	// Two addresses of one IPv6 network are one machine's: with half of the places each is where taking ends.
	var other []*client
	for i := range archiveconn.MaxUnregistered / 2 {
		other = append(other, full(fmt.Sprintf("2001:db8:0:1::%x", i+1), 1)...)
		greedy[i+3].wantClose(4503)
	}
	r.dialFrom("2001:db8:0:1::ffff").wantClose(4503)
	r.dialFrom("192.0.2.1").wantClose(4503)
	third := full("198.51.100.9", 1)[0]
	if n := r.metric("signalbox_archive_unregistered_sockets"); n != archiveconn.MaxUnregistered {
		t.Errorf("%v places are taken", n)
	}
	third.register()
	other[archiveconn.MaxUnregistered/2-1].register()
	greedy[len(greedy)-1].register()
}

// TestRefusedSocketsKeepNobodyOut fills every place with sockets that were refused and do not go away.
func TestRefusedSocketsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range archiveconn.MaxUnregistered {
		c := r.dialFrom("192.0.2.1")
		<-r.waiting
		c.raw(websocket.TextMessage, []byte("{")) // its close frame is never read, so it is never answered
	}
	for r.metric("signalbox_archive_registrations_total", "result=protocol_violation") < archiveconn.MaxUnregistered {
		runtime.Gosched()
	}
	c := r.dialFrom("198.51.100.7")
	<-r.waiting
	c.register()
}

func TestManyDaemonsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var clients []*client
	for range 50 {
		clients = append(clients, r.dial())
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			c.sendRegister()
			_, data, err := c.ws.ReadMessage()
			if err != nil || !strings.Contains(string(data), "registerResponse") {
				t.Errorf("%s, %v", data, err)
			}
		})
	}
	wg.Wait()
	if list, err := r.registry.Daemons(ctx); err != nil || len(list) != 50 {
		t.Errorf("%d daemons, %v", len(list), err)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	registered, waits := r.dial().register(), r.dial()
	<-r.waiting
	<-r.waiting
	done := make(chan error, 1)
	go func() {
		limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		done <- r.group.Drain(limit, 0)
	}()
	registered.wantClose(4503)
	waits.wantClose(4503)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The database cannot take a registration: the peer is told to come back.
func TestRegistrationWithoutDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.registry.SetHooks(registry.Hooks{})
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}
	c := r.dial()
	c.sendRegister()
	if m := c.read().GetRegisterRejected(); m == nil || m.Error.Code != pb.ErrorCode_ERROR_CODE_UNAVAILABLE || m.RetryAfter == nil {
		t.Fatalf("%v", m)
	}
	c.wantClose(4503)
}

// The token, right or wrong, in frames good or bad, is in no log, no metric and no file of the database.
func TestTokenIsNowhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wrong := strings.Repeat("another-secret-", 4)
	bad := r.dial()
	bad.sendRegister(func(q *pb.RegisterRequest) { q.Token = wrong })
	bad.read()
	bad.wantClose(4401)
	for _, spoil := range []func(string) string{
		swap(`"clientName":"nas"`, `"clientName":"nas","novelty":"`+wrong+`"`), // the parser of a library would quote it
		swap(`"role":"`, `"role":"`+wrong),
		swap(`"token":"`+token+`"`, `"token":"`+wrong+"\x01"+`"`),
		func(s string) string { return s[:len(s)-3] },
	} {
		c := r.dial()
		c.raw(websocket.TextMessage, registration(spoil)(c))
		for {
			_, data, err := c.ws.ReadMessage()
			if strings.Contains(string(data)+fmt.Sprint(err), wrong) || strings.Contains(string(data), token) {
				t.Errorf("an answer holds it: %s, %v", data, err)
			}
			if err != nil {
				break
			}
		}
	}
	c := r.dial().register()
	again := c.send(func(e *pb.Envelope) { e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: c.request()} })
	_ = again
	c.wantViolation("")
	<-r.detached
	gathered, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	all.WriteString(r.logs.text())
	for _, f := range gathered {
		all.WriteString(f.String())
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(r.db.Path()), "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		all.Write(data)
	}
	for _, secret := range []string{token, wrong, wrong[:20]} {
		if i := strings.Index(all.String(), secret); i >= 0 {
			t.Errorf("%q is told: …%q…", secret, all.String()[max(0, i-80):i])
		}
	}
	if !strings.Contains(all.String(), c.id.String()) {
		t.Error("the search itself finds nothing")
	}
}
