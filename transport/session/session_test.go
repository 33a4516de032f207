package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
)

func TestEchoOfEverySize(t *testing.T) {
	r := newRig(t, Options{MaxMessage: 1 << 20}, echo)
	c := r.dial()
	for _, n := range []int{0, 1, 125, 126, 1023, 4096, 16<<10 - 11, 16 << 10, 65535, 65536, 1 << 20} {
		want := bytes.Repeat([]byte{'x'}, n)
		for _, typ := range []int{websocket.TextMessage, websocket.BinaryMessage} {
			if err := c.WriteMessage(typ, want); err != nil {
				t.Fatal(err)
			}
			got, data, err := c.ReadMessage()
			if err != nil || got != typ || !bytes.Equal(data, want) {
				t.Fatalf("%d bytes: type %d, %d bytes back, %v", n, got, len(data), err)
			}
		}
	}
}

func TestFragmentedMessageIsOne(t *testing.T) {
	r := newRig(t, Options{}, echo)
	c := r.dial()
	w, err := c.NextWriter(websocket.TextMessage)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("fragment ", 2000) // gorilla splits at its write buffer
	if _, err := w.Write([]byte(want)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, c, want)
}

func TestOversizeClosesWithThePlanesCode(t *testing.T) {
	r := newRig(t, Options{MaxMessage: 64, Codes: map[Reason]CloseCode{Oversize: {4400, "frame above the cap"}}}, echo)
	c := r.dial()
	send(t, c, strings.Repeat("a", 64))
	wantMessage(t, c, strings.Repeat("a", 64))
	send(t, c, strings.Repeat("a", 65))
	wantClose(t, c, 4400, "frame above the cap")
}

func TestCodesFallBackToTheEngines(t *testing.T) {
	r := newRig(t, Options{}, func(context.Context, *Session) (Handler, error) {
		return funcs{message: func(context.Context, MessageType, []byte) error { return errors.New("boom: secret") }}, nil
	})
	c := r.dial()
	send(t, c, "x")
	wantClose(t, c, 1011, "internal error")
}

func TestHandlerErrorChoosesReasonAndText(t *testing.T) {
	ended := make(chan Closed, 1)
	r := newRig(t, Options{Codes: map[Reason]CloseCode{Signature: {4403, "verification failed"}}},
		func(context.Context, *Session) (Handler, error) {
			return funcs{
				message: func(context.Context, MessageType, []byte) error {
					return fmt.Errorf("frame 7: %w", &CloseError{Reason: Signature, Text: "replayed"})
				},
				close: func(_ context.Context, c Closed) { ended <- c },
			}, nil
		})
	c := r.dial()
	send(t, c, "x")
	wantClose(t, c, 4403, "replayed")
	if got := <-ended; got.Reason != Signature || got.Err == nil {
		t.Fatalf("handler was told %+v", got)
	}
}

func TestFirstReasonWinsAndIsRecordedOnce(t *testing.T) {
	ends := make(chan Closed, 100)
	open, sessions := capture(func(context.Context, *Session) (Handler, error) {
		return funcs{close: func(_ context.Context, c Closed) { ends <- c }}, nil
	})
	r := newRig(t, Options{}, open)
	c := r.dial()
	s := <-sessions
	s.Close(Revoked)
	var wg sync.WaitGroup
	for _, reason := range Reasons() {
		wg.Go(func() { s.Close(reason) })
	}
	wg.Wait()
	wantClose(t, c, 1008, "revoked")
	<-s.Done()
	if got := <-ends; got.Reason != Revoked || len(ends) != 0 {
		t.Fatalf("ended for %v, %d further ends", got.Reason, len(ends))
	}
	for _, reason := range Reasons() {
		want := 0.0
		if reason == Revoked {
			want = 1
		}
		if got := r.closes(reason); got != want {
			t.Errorf("%v counted %v times, want %v", reason, got, want)
		}
	}
	if err := s.Send([]byte("late")); !errors.Is(err, ErrClosed) {
		t.Fatalf("Send after the end: %v", err)
	}
	if r.plane.Count() != 0 || len(r.group.Sessions()) != 0 {
		t.Fatal("an ended session is still registered")
	}
}

func TestQueueIsFlushedOrDroppedByReason(t *testing.T) {
	for _, tc := range []struct {
		reason Reason
		want   string
	}{{Draining, "queued"}, {Revoked, ""}} {
		t.Run(tc.reason.String(), func(t *testing.T) {
			open, sessions := capture(echo)
			r := newRig(t, Options{}, open)
			c := r.dial()
			s := <-sessions
			g := r.conns.latest().hold()
			if err := s.Send([]byte("first")); err != nil {
				t.Fatal(err)
			}
			<-g.entered // the writer holds the first frame, so the second waits in the queue
			if err := s.Send([]byte("queued")); err != nil {
				t.Fatal(err)
			}
			s.Close(tc.reason)
			close(g.open)
			wantMessage(t, c, "first")
			if tc.want != "" {
				wantMessage(t, c, tc.want)
			}
			if _, _, err := c.ReadMessage(); !websocket.IsCloseError(err, policies[tc.reason].code) {
				t.Fatalf("after the flush: %v", err)
			}
		})
	}
}

func TestWriterPacksTheQueueIntoFewWrites(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{}, open)
	c := r.dial()
	s := <-sessions
	conn := r.conns.latest()
	g := conn.hold()
	frame := bytes.Repeat([]byte{'f'}, 100)
	if err := s.Send(frame); err != nil {
		t.Fatal(err)
	}
	<-g.entered
	before := conn.writes.Load()
	const n = 500 // of 102 bytes: four chunks of 16 KiB
	for range n {
		if err := s.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	conn.gate.Store(nil)
	close(g.open)
	for range n + 1 {
		wantMessage(t, c, string(frame))
	}
	if got := conn.writes.Load() - before; got != 4 {
		t.Fatalf("%d frames took %d writes, want 4", n, got)
	}
}

func TestFullQueueClosesAsSlow(t *testing.T) {
	for name, o := range map[string]Options{
		"by bytes": {QueueBytes: 1000, QueueFrames: 100},
		"by count": {QueueBytes: 1 << 20, QueueFrames: 10},
	} {
		t.Run(name, func(t *testing.T) {
			open, sessions := capture(echo)
			r := newRig(t, o, open)
			r.dial()
			s := <-sessions
			g := r.conns.latest().hold()
			frame := make([]byte, 100)
			for i := range 10 {
				if err := s.Send(frame); err != nil {
					t.Fatalf("frame %d: %v", i, err)
				}
			}
			<-g.entered
			if s.QueuedBytes() != 1000 {
				t.Fatalf("%d bytes queued", s.QueuedBytes())
			}
			if err := s.Send(frame); !errors.Is(err, ErrSlow) {
				t.Fatalf("Send into a full queue: %v", err)
			}
			if s.Reason() != Slow {
				t.Fatalf("closing as %v", s.Reason())
			}
			r.clock.Advance(slowCloseWait) // the socket takes nothing, so its end is the sweep's
			<-s.Done()
			if r.closes(Slow) != 1 || s.QueuedBytes() != 0 {
				t.Fatal("not counted, or the queue was kept")
			}
		})
	}
}

func TestOneFrameAboveTheQueueLimitPasses(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{QueueBytes: 10}, open)
	c := r.dial()
	s := <-sessions
	big := strings.Repeat("b", 100)
	if err := s.Send([]byte(big)); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, c, big)
}

func TestRefusalReachesAPeerThatHasAlreadySpoken(t *testing.T) {
	spoken := make(chan struct{})
	r := newRig(t, Options{Codes: map[Reason]CloseCode{Denied: {4403, "no"}}},
		func(context.Context, *Session) (Handler, error) {
			<-spoken
			return nil, Fail(Denied, nil)
		})
	c := r.dial()
	send(t, c, strings.Repeat("hello", 10_000))
	close(spoken)
	wantClose(t, c, 4403, "no")
}

func TestReadFirstThenMessages(t *testing.T) {
	r := newRig(t, Options{}, func(ctx context.Context, s *Session) (Handler, error) {
		typ, first, err := s.ReadFirst(time.Second)
		if err != nil {
			return nil, err
		}
		if typ != Text {
			return nil, Fail(Protocol, nil)
		}
		if err := s.Send(append([]byte("ack "), first...)); err != nil {
			return nil, err
		}
		return echo(ctx, s)
	})
	c := r.dial()
	send(t, c, "hello")
	send(t, c, "one")
	wantMessage(t, c, "ack hello")
	wantMessage(t, c, "one")
}

func TestPanicClosesOnlyItsSession(t *testing.T) {
	boom := func(context.Context, MessageType, []byte) error { panic("boom") }
	for name, open := range map[string]OpenFunc{
		"message": func(context.Context, *Session) (Handler, error) { return funcs{message: boom}, nil },
		"open": func(_ context.Context, s *Session) (Handler, error) {
			if _, _, err := s.ReadFirst(time.Second); err != nil {
				return nil, err
			}
			panic("boom")
		},
		"source": func(_ context.Context, s *Session) (Handler, error) {
			return funcs{message: func(context.Context, MessageType, []byte) error {
				s.Pull(sourceFunc(func(context.Context, int) ([][]byte, error) { panic("boom") }))
				return nil
			}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{}, open)
			bystander, c := r.dial(), r.dial()
			send(t, c, "x")
			wantClose(t, c, 1011, "internal error")
			if err := bystander.WriteControl(websocket.PingMessage, nil, time.Now().Add(2*time.Minute)); err != nil {
				t.Fatalf("bystander: %v", err)
			}
			r.waitEnded(1)
			if r.closes(Panic) != 1 {
				t.Fatal("not counted")
			}
		})
	}
}

// waitEnded waits until all but live sessions have left the registry.
func (r *rig) waitEnded(live int) {
	for _, s := range r.group.Sessions() {
		if s.Reason() != None {
			<-s.Done()
		}
	}
	if got := r.plane.Count(); got != live {
		r.t.Fatalf("%d sessions live, want %d", got, live)
	}
}

func TestPanicInCleanUpStillEndsTheSession(t *testing.T) {
	open, sessions := capture(func(context.Context, *Session) (Handler, error) {
		return funcs{close: func(context.Context, Closed) { panic("boom") }}, nil
	})
	r := newRig(t, Options{}, open)
	c := r.dial()
	s := <-sessions
	_ = c.Close()
	<-s.Done()
	if r.plane.Count() != 0 {
		t.Fatal("still counted")
	}
}

func TestPeersEnd(t *testing.T) {
	t.Run("close frame is answered with 1000", func(t *testing.T) {
		ended := make(chan Closed, 1)
		r := newRig(t, Options{}, func(context.Context, *Session) (Handler, error) {
			return funcs{close: func(_ context.Context, c Closed) { ended <- c }}, nil
		})
		c := r.dial()
		msg := websocket.FormatCloseMessage(1001, "bye")
		if err := c.WriteControl(websocket.CloseMessage, msg, time.Now().Add(2*time.Minute)); err != nil {
			t.Fatal(err)
		}
		wantClose(t, c, 1000, "")
		if got := <-ended; got.Reason != PeerClosed || got.PeerCode != 1001 {
			t.Fatalf("ended %+v", got)
		}
	})
	t.Run("broken connection", func(t *testing.T) {
		ended := make(chan Closed, 1)
		r := newRig(t, Options{}, func(context.Context, *Session) (Handler, error) {
			return funcs{close: func(_ context.Context, c Closed) { ended <- c }}, nil
		})
		_ = r.dial().Close()
		if got := <-ended; got.Reason != PeerGone {
			t.Fatalf("ended %+v", got)
		}
	})
	t.Run("framing error", func(t *testing.T) {
		r := newRig(t, Options{Codes: map[Reason]CloseCode{Protocol: {4400, "bad frame"}}}, echo)
		c := r.dial()
		if _, err := c.NetConn().Write([]byte{0x81, 0x01, 'x'}); err != nil { // a client's frame without a mask
			t.Fatal(err)
		}
		wantClose(t, c, 4400, "bad frame")
	})
}

func TestNotAHandshakeIsAnsweredOverHTTP(t *testing.T) {
	r := newRig(t, Options{}, echo)
	resp, err := http.Get(r.srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusBadRequest || r.plane.Count() != 0 {
		t.Fatalf("status %d, %d sessions", resp.StatusCode, r.plane.Count())
	}
}

func TestMostSessions(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{MaxSessions: 1}, open)
	c := r.dial()
	s := <-sessions
	url := "ws" + strings.TrimPrefix(r.srv.URL, "http")
	_, resp, err := websocket.DefaultDialer.Dial(url, nil)
	if err == nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("second session: %v", err)
	}
	_ = c.Close()
	<-s.Done()
	r.dial()
}

func TestCloseTextFitsAControlFrame(t *testing.T) {
	long := strings.Repeat("é", 100)
	open, sessions := capture(echo)
	r := newRig(t, Options{}, open)
	c := r.dial()
	(<-sessions).CloseErr(&CloseError{Reason: Protocol, Text: long})
	wantClose(t, c, 1002, strings.Repeat("é", 61))
}

func TestReasonsAreDistinctAndComplete(t *testing.T) {
	seen := map[string]Reason{}
	for _, r := range Reasons() {
		p := policies[r]
		if p.name == "" || p.code == 0 {
			t.Errorf("reason %d has no policy", r)
		}
		if other, dup := seen[p.name]; dup {
			t.Errorf("reasons %d and %d are both %q", other, r, p.name)
		}
		seen[p.name] = r
		if p.await && !p.frame {
			t.Errorf("%v awaits an answer to a frame it does not send", r)
		}
	}
}

func TestPeerThatDoesNotReadFailsTheWrite(t *testing.T) {
	open, sessions := capture(echo)
	r := newRig(t, Options{WriteTimeout: 20 * time.Millisecond, QueueBytes: 1 << 30, QueueFrames: 1 << 20}, open)
	r.dial()
	s := <-sessions
	body := make([]byte, 1<<20)
	for s.Send(body) == nil { // until the socket's buffers are full and the deadline passes
		if s.QueuedBytes() > 64<<20 {
			<-s.Context().Done()
		}
	}
	<-s.Done()
	if s.Reason() != WriteFailed || r.closes(WriteFailed) != 1 {
		t.Fatalf("closed as %v", s.Reason())
	}
}

func TestOneLinePerEnd(t *testing.T) {
	var log bytes.Buffer
	g, err := NewGroup(clock.System(), zerolog.New(&log), nil)
	if err != nil {
		t.Fatal(err)
	}
	open, sessions := capture(func(_ context.Context, s *Session) (Handler, error) {
		s.SetPrincipal("agent-7")
		return funcs{}, nil
	})
	r := newRig(t, Options{}, open)
	r.plane = g.NewPlane(Options{Kind: "agent"})
	c := r.dial()
	s := <-sessions
	s.CloseErr(Fail(Signature, errors.New("nonce seen before")))
	wantClose(t, c, 1008, "verification failed")
	<-s.Done()
	g.Close()
	for _, want := range []string{`"kind":"agent"`, `"reason":"signature"`, `"principal":"agent-7"`, `"messages_in":0`,
		`nonce seen before`, `"peer":"127.0.0.1:`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %s:\n%s", want, &log)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines", n)
	}
}
