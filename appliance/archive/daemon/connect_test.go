package daemon_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/clock"
	"signalbox/store/daemonstore"
)

// spyClock records the timers that are made.
type spyClock struct {
	*clock.Fake
	mu   sync.Mutex
	made []time.Duration
}

func (s *spyClock) NewTimer(d time.Duration) clock.Timer {
	t := s.Fake.NewTimer(d)
	s.mu.Lock()
	s.made = append(s.made, d)
	s.mu.Unlock()
	return t
}

func (s *spyClock) has(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.made, d)
}

func (s *spyClock) forget() {
	s.mu.Lock()
	s.made = nil
	s.mu.Unlock()
}

func TestReconnectBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		spy := &spyClock{Fake: r.clock}
		db, err := daemonstore.Open(context.Background(), daemonstore.Options{Path: r.path, ClientID: self, Clock: r.clock})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		o := r.options
		o.Store, o.Steps, o.Inventory, o.Clock = db, r.steps, r.content, spy
		random := 0.0
		o.Random = func() float64 { return random }
		dials := make(chan chan daemon.Conn)
		o.Dialer = dialFunc(func(ctx context.Context) (daemon.Conn, error) {
			c := make(chan daemon.Conn)
			select {
			case dials <- c:
				if conn := <-c; conn != nil {
					return conn, nil
				}
				return nil, errors.New("nobody is there")
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		})
		d, err := daemon.New(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		defer func() {
			stop()
			if err := await(t, "the end", done); err != nil {
				t.Error(err)
			}
		}()
		// next takes a dial, ends it as told and wants the pause after it to be exactly so long.
		next := func(conn daemon.Conn, pause time.Duration) {
			t.Helper()
			c := await(t, "a dial", dials)
			spy.forget()
			c <- conn
			r.soon("the pause", func() bool {
				s, err := d.Status(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				return s.Connection != daemon.Registered && spy.has(pause)
			})
			r.clock.Advance(pause)
		}
		for _, seconds := range []float64{0.5, 1, 2, 4, 8, 16, 30, 30, 30} {
			next(nil, time.Duration(seconds*float64(time.Second)))
		}
		random = 1
		next(nil, time.Minute)

		// A refusal is no end; retry_after is a lower bound, itself capped.
		for after, pause := range map[time.Duration]time.Duration{45 * time.Second: time.Minute, time.Hour: time.Minute} {
			w := newWire()
			w.t, w.control = t, r.control
			w.answers <- &pb.Envelope{Payload: &pb.Envelope_RegisterRejected{RegisterRejected: &pb.RegisterRejected{
				Error: valid.Detail(pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED, "the token is refused"), RetryAfter: durationpb.New(after)}}}
			next(w, pause)
		}
	})
}

func TestStableConnectionResetsTheBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		for range 3 { // short connections: the pauses grow
			r.cut(w)
			w = r.redial()
		}
		before := r.clock.Now()
		r.cut(w)
		w = r.redial()
		grown := r.clock.Now().Sub(before)
		if grown < 4*time.Second {
			t.Errorf("the fourth pause was %v", grown)
		}
		w.noEvents() // it is registered
		stable := r.clock.Now().Add(61 * time.Second)
		r.until("a stable minute", func() bool { return r.clock.Now().After(stable) }) // heartbeats are acknowledged meanwhile
		w.noEvents()
		select {
		case <-w.closed:
			t.Fatal("the connection ended")
		default:
		}
		before = r.clock.Now()
		r.cut(w)
		r.redial()
		if again := r.clock.Now().Sub(before); again >= grown {
			t.Errorf("the pause after a stable connection was %v, before it %v", again, grown)
		}
	})
}

func TestTwoMissedHeartbeatsCloseTheSocket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		beat := func() *pb.Heartbeat {
			var e *pb.Envelope
			r.until("a heartbeat", func() bool {
				e = w.poll(func(e *pb.Envelope) bool { return e.GetHeartbeat() != nil })
				return e != nil
			})
			return e.GetHeartbeat()
		}
		for n := uint64(1); n <= 3; n++ {
			if hb := beat(); hb.GetSequence() != n {
				t.Errorf("heartbeat %d, want %d", hb.GetSequence(), n)
			}
		}
		w.noEvents() // the third was acknowledged
		r.control.silent.Store(true)
		beat()
		beat()
		r.until("the end of the connection", func() bool {
			select {
			case <-w.closed:
				return true
			default:
				return false
			}
		})
		for len(w.out) > 0 {
			if e := <-w.out; e.GetHeartbeat() != nil {
				t.Errorf("heartbeat %d after two that were missed", e.GetHeartbeat().GetSequence())
			}
		}
		if sent := epoch.Add(5 * 15 * time.Second); r.clock.Now().Before(sent) {
			t.Errorf("closed at %v, before the beats were due", r.clock.Now())
		}
	})
}

func TestMessagesOfAnotherGenerationAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		c := p.assign()
		own := w.generation
		w.generation--
		w.command(c)
		w.generation = own
		w.noEvents()
		for _, e := range w.held {
			if e.GetCommandAck().GetCommandId() == c.GetCommandId() {
				t.Error("a command of a stale generation was answered")
			}
		}
		w.accepted(c) // and was not stored: it is new
	})
}

func TestGenerationIsStoredBeforeTheFirstEnvelope(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		for range 3 {
			w := r.accept()
			w.noEvents()
			r.restart() // accept compares last_generation with what was in use
		}
		w := r.accept()
		if w.request.GetLastGeneration() != w.generation-1 || w.request.GetToken() != "" {
			t.Errorf("registration %v on generation %d", w.request, w.generation)
		}
	})
}
