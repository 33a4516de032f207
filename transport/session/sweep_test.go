package session

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

var agentCodes = map[Reason]CloseCode{Idle: {4408, "idle timeout"}, HandshakeTimeout: {4408, "no hello"}}

// roundTrip makes sure that the server has handled all that the client has sent.
func roundTrip(t *testing.T, c *websocket.Conn) {
	t.Helper()
	send(t, c, "sync")
	wantMessage(t, c, "sync")
}

// ping sends a ping and waits for the pong.
func ping(t *testing.T, c *websocket.Conn) {
	t.Helper()
	ponged := make(chan string, 1)
	c.SetPongHandler(func(data string) error {
		ponged <- data
		return errors.New("stop reading") // ends ReadMessage below
	})
	if err := c.WriteControl(websocket.PingMessage, []byte("p"), time.Now().Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, _, _ = c.ReadMessage()
	if got := <-ponged; got != "p" {
		t.Fatalf("pong %q", got)
	}
}

func TestIdleCountsMessagesOnly(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{IdleTimeout: 90 * time.Second, Codes: agentCodes}, open)
	c := r.dial()
	s := <-sessions
	r.clock.BlockUntil(1)
	r.clock.Advance(60 * time.Second)
	roundTrip(t, c) // the idle time begins anew
	r.clock.Advance(60 * time.Second)
	roundTrip(t, c)
	r.clock.Advance(89 * time.Second)
	if s.Reason() != None {
		t.Fatalf("closed as %v after 89 s", s.Reason())
	}
	ping(t, c) // answered, but no message
	r.clock.Advance(time.Second)
	<-s.Context().Done()
	if s.Reason() != Idle {
		t.Fatalf("closed as %v", s.Reason())
	}
}

func TestIdleTellsThePeer(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{IdleTimeout: 90 * time.Second, Codes: agentCodes}, open)
	c := r.dial()
	<-sessions
	r.clock.Advance(90 * time.Second)
	wantClose(t, c, 4408, "idle timeout")
}

func TestLongHandlingIsNotIdle(t *testing.T) {
	entered, proceed := make(chan struct{}), make(chan struct{})
	open, sessions := capture(func(_ context.Context, s *Session) (Handler, error) {
		return funcs{message: func(context.Context, MessageType, []byte) error {
			entered <- struct{}{}
			<-proceed
			return s.Send([]byte("done"))
		}}, nil
	})
	r := newRig(t, Options{IdleTimeout: 90 * time.Second, PingInterval: 60 * time.Second}, open)
	c := r.dial()
	s := <-sessions
	send(t, c, "work")
	<-entered
	for range 5 {
		r.clock.BlockUntil(1) // the round before is over
		r.clock.Advance(60 * time.Second)
	}
	r.clock.BlockUntil(1)
	close(proceed)
	wantMessage(t, c, "done")
	if s.Reason() != None {
		t.Fatalf("closed as %v", s.Reason())
	}
}

func TestFirstMessageDeadline(t *testing.T) {
	failed := make(chan error, 1)
	r := newRig(t, Options{Codes: agentCodes}, func(_ context.Context, s *Session) (Handler, error) {
		_, _, err := s.ReadFirst(10 * time.Second)
		failed <- err
		return nil, err
	})
	c := r.dial()
	r.clock.BlockUntil(1)
	r.clock.Advance(10 * time.Second)
	wantClose(t, c, 4408, "no hello")
	var ce *CloseError
	if err := <-failed; !errors.As(err, &ce) || ce.Reason != HandshakeTimeout {
		t.Fatalf("ReadFirst: %v", err)
	}
}

func TestPingsAreAnsweredOrTheSessionEnds(t *testing.T) {
	o := Options{PingInterval: 60 * time.Second, PongWait: 60 * time.Second}
	t.Run("answered", func(t *testing.T) {
		open, sessions := capture(echo)
		r := newRig(t, o, open)
		c := r.dial()
		s := <-sessions
		pings := make(chan struct{}, 16)
		answer := c.PingHandler()
		c.SetPingHandler(func(data string) error {
			pings <- struct{}{}
			return answer(data)
		})
		for range 5 {
			r.clock.Advance(60 * time.Second)
			for len(pings) == 0 { // the ping precedes some echo
				roundTrip(t, c)
			}
			<-pings
			roundTrip(t, c)
		}
		if s.Reason() != None {
			t.Fatalf("closed as %v", s.Reason())
		}
	})
	t.Run("unanswered", func(t *testing.T) {
		open, sessions := capture(echo)
		r := newRig(t, o, open)
		c := r.dial()
		s := <-sessions
		pinged := make(chan struct{})
		c.SetPingHandler(func(string) error { return errors.New("stop reading") })
		go func() {
			_, _, _ = c.ReadMessage()
			close(pinged)
		}()
		r.clock.Advance(60 * time.Second)
		<-pinged
		// The peer may see the ping before the session has noted when its answer is due: time goes on until then.
		for s.Reason() == None {
			r.clock.Advance(60 * time.Second)
			select {
			case <-s.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		<-s.Context().Done()
		if s.Reason() != Unresponsive {
			t.Fatalf("closed as %v", s.Reason())
		}
		r.clock.Advance(time.Minute)
		<-s.Done()
	})
}

func TestFirstPingsAreSpreadOverTheInterval(t *testing.T) {
	r := newRig(t, Options{PingInterval: time.Minute}, echo)
	open, sessions := capture(echo)
	r.open = open
	const n = 32
	early := 0
	start := r.group.sweep.now()
	for range n {
		r.dial()
		s := <-sessions
		at := s.nextPing - start
		if at <= 0 || at > int64(time.Minute) {
			t.Fatalf("first ping after %v", time.Duration(at))
		}
		if at < int64(30*time.Second) {
			early++
		}
	}
	if early == 0 || early == n { // one in two thousand million
		t.Fatalf("%d of %d first pings in the first half", early, n)
	}
}

func TestPeerThatIgnoresTheCloseFrameIsCutOff(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{CloseWait: 5 * time.Second}, open)
	c := r.dial()
	s := <-sessions
	c.SetCloseHandler(func(int, string) error { return nil })
	s.Close(Replaced)
	wantClose(t, c, 1000, "replaced by a newer session")
	r.clock.BlockUntil(1)
	r.clock.Advance(4 * time.Second)
	select {
	case <-s.Done():
		t.Fatal("ended before its close wait")
	default:
	}
	r.clock.Advance(time.Second)
	<-s.Done()
	if r.closes(Replaced) != 1 {
		t.Fatal("not counted")
	}
}

func TestMessagesAfterCloseAreDropped(t *testing.T) {
	open, sessions := capture(func(context.Context, *Session) (Handler, error) {
		return funcs{message: func(context.Context, MessageType, []byte) error {
			t.Error("message handled after the close")
			return nil
		}}, nil
	})
	r := newRig(t, Options{}, open)
	c := r.dial()
	s := <-sessions
	s.Close(Draining)
	send(t, c, "late")
	wantClose(t, c, 1001, "going down, come back")
	<-s.Done()
}

func TestDrainSpreadsAndRefuses(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{}, open)
	const n = 20
	var clients []*websocket.Conn
	var live []*Session
	for range n {
		clients = append(clients, r.dial())
		live = append(live, <-sessions)
	}
	drained := make(chan error, 1)
	go func() { drained <- r.group.Drain(context.Background(), time.Minute) }()
	r.clock.BlockUntil(1) // the first of them is due
	url := "ws" + strings.TrimPrefix(r.srv.URL, "http")
	if _, resp, err := websocket.DefaultDialer.Dial(url, nil); err == nil ||
		resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("a newcomer was admitted: %v", err)
	}
	for _, s := range live {
		for s.drainAt.Load() == 0 {
			r.clock.BlockUntil(1)
		}
		if at := s.drainAt.Load() - r.group.sweep.now(); at < 0 || at >= int64(time.Minute) {
			t.Fatalf("drained after %v", time.Duration(at))
		}
	}
	r.clock.Advance(time.Minute)
	for _, c := range clients {
		wantClose(t, c, 1001, "going down, come back")
	}
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	if r.closes(Draining) != n {
		t.Fatalf("%v drained", r.closes(Draining))
	}
}

func TestDrainUnderADeadlineForces(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{}, open)
	r.dial()
	s := <-sessions
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.group.Drain(ctx, time.Hour); !errors.Is(err, ErrDrainForced) {
		t.Fatalf("Drain: %v", err)
	}
	<-s.Done()
}

func TestMetricsFollowTheSessions(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{Kind: "agent"}, open)
	r.dial()
	s := <-sessions
	g := r.conns.latest().hold()
	if err := s.Send(make([]byte, 300)); err != nil {
		t.Fatal(err)
	}
	<-g.entered
	got := map[string]float64{}
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetGauge() != nil {
				got[f.GetName()] = m.GetGauge().GetValue()
			}
		}
	}
	if got["signalbox_sessions"] != 1 || got["signalbox_session_queue_bytes"] != 300 {
		t.Fatalf("gauges %v", got)
	}
	close(g.open)
}
