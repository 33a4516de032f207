package appliance_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/clock"
	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// registrationKey makes a key that registers agents of the operator.
func registrationKey(s *appliancetest.Server) secret.Text {
	var out struct {
		Key string `json:"key"`
	}
	s.Do("POST", "/registration-keys", map[string]string{"label": "tests"}, http.StatusCreated, &out)
	return secret.NewText(out.Key)
}

// keepAlive moves a fake clock on while streams answer. It moves in small steps and waits, in the system's time, for
// every stream that is due: none of them lapses because the machine is busy.
type keepAlive struct {
	clock *clock.Fake
	mu    sync.Mutex
	seen  map[*roomclient.Stream]sign
}

// sign is the last sign of life of a stream, which is not waited for any more when it is lost.
type sign struct {
	count int64
	at    time.Time
	lost  bool
}

const (
	aliveStep = 250 * time.Millisecond
	// dueAfter is how long a stream may go without a sign of life: one interval and the spread of pings.
	dueAfter = 2*time.Second + aliveStep
	// lostAfter is how long, in the system's time, is waited for a stream that is due.
	lostAfter = 5 * time.Second
)

func newKeepAlive(c *clock.Fake) *keepAlive {
	return &keepAlive{clock: c, seen: map[*roomclient.Stream]sign{}}
}

// pass lets time pass. The pause between two steps is what lets the sweep of the server keep up: when it came too late it
// would take it for a stall.
func (k *keepAlive) pass(ctx context.Context, d time.Duration, streams []*roomclient.Stream) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for ; d > 0; d -= aliveStep {
		k.clock.Advance(min(d, aliveStep))
		stepped := time.Now()
		for waited := false; !waited || k.due(streams, time.Since(stepped) > lostAfter); waited = true {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// due tells whether a stream owes a sign of life. Those that do are lost from now on when it is over.
func (k *keepAlive) due(streams []*roomclient.Stream, over bool) (due bool) {
	now := k.clock.Now()
	for _, s := range streams {
		select {
		case <-s.Done():
			continue
		default:
		}
		last, known := k.seen[s]
		if n := s.Beats(); !known || n != last.count {
			last = sign{count: n, at: now}
		}
		if !s.Silent() && !last.lost && now.Sub(last.at) > dueAfter {
			last.lost = over
			due = due || !over
		}
		k.seen[s] = last
	}
	return due
}

// limit is a context for what a test asks of a server.
func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*appliancetest.Wait, errors.New("the test takes too long"))
	t.Cleanup(cancel)
	return ctx
}

// enlist registers an agent that everybody may address, which lives by the appliance's clock.
func enlist(s *appliancetest.Server, name string) *roomclient.Config {
	cfg := s.RoomAgent(name)
	if s.Clock != nil {
		cfg.Clock = s.Clock
	}
	return &cfg
}

// seats makes a room with the agents in it.
func seats(s *appliancetest.Server, name string, agents ...*roomclient.Config) string {
	all := make([]roomclient.Config, len(agents))
	for i, a := range agents {
		all[i] = *a
	}
	return s.Room(name, all...).String()
}

// speak posts as the operator, in order.
func speak(t *testing.T, s *appliancetest.Server, roomID string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		say(t, s, uuid.MustParse(roomID), body)
	}
}

// opening is an Open of a client of revision 8 with a new connection id.
func opening(change ...func(*roomclient.Open)) roomclient.Open {
	o := roomclient.Current(uuid.NewString())
	for _, f := range change {
		f(&o)
	}
	return o
}

func resuming(n int64) func(*roomclient.Open) { return func(o *roomclient.Open) { o.StartFrom = &n } }

func fencing(g int64) func(*roomclient.Open) {
	return func(o *roomclient.Open) { o.ExpectedGeneration = &g }
}

func claiming(rooms ...string) func(*roomclient.Open) {
	return func(o *roomclient.Open) { o.Rooms = rooms }
}

func covering(o *roomclient.Open) { o.Scope = "all" }

// carriers are the transports of a stream.
var carriers = map[string]func(context.Context, *roomclient.Config, roomclient.Open) (*roomclient.Stream, error){
	"websocket": roomclient.Dial, "sse": roomclient.DialSSE}

// join opens a stream that must be admitted.
func join(t *testing.T, via string, cfg *roomclient.Config, o roomclient.Open) (*roomclient.Stream, roomclient.State) {
	t.Helper()
	st, err := carriers[via](limit(t), cfg, o)
	if err != nil {
		t.Fatalf("open over %s: %v", via, err)
	}
	t.Cleanup(st.Drop)
	state, err := st.AwaitState(limit(t))
	if err != nil {
		t.Fatalf("open over %s: %v", via, err)
	}
	return st, state
}

// turnedAway opens a stream that must be refused with the status and returns the refusal.
func turnedAway(t *testing.T, via string, cfg *roomclient.Config, o roomclient.Open, status int) *roomclient.Refused {
	t.Helper()
	st, err := carriers[via](limit(t), cfg, o)
	if err == nil {
		t.Cleanup(st.Drop)
		_, err = st.AwaitState(limit(t))
	}
	var c *roomclient.Closed
	if !errors.As(err, &c) || c.Refused == nil || c.Refused.Status != status || c.Opened && c.Code != 4000+status {
		t.Fatalf("over %s: %v (%+v), want a refusal with %d", via, err, c, status)
	}
	return c.Refused
}

// hears checks that the next frames are messages with the bodies, and returns the last sequence number.
func hears(t *testing.T, st *roomclient.Stream, bodies ...string) (last int64) {
	t.Helper()
	for _, want := range bodies {
		var m struct {
			Payload struct {
				Body string `json:"body"`
			} `json:"payload"`
		}
		f := next(t, st, roomclient.FrameMessage, &m)
		if m.Payload.Body != want {
			t.Fatalf("heard %q (%d), want %q", m.Payload.Body, f.ID, want)
		}
		st.Processed(f.ID)
		last = f.ID
	}
	return last
}

// next is the next frame, which must have the name.
func next(t *testing.T, st *roomclient.Stream, name string, into any) roomclient.Frame {
	t.Helper()
	f, err := st.Next(limit(t))
	if err != nil {
		t.Fatalf("waiting for %s: %v", name, err)
	}
	if f.Event != name {
		t.Fatalf("got %s %s, want %s", f.Event, f.Data, name)
	}
	if into != nil {
		if err := json.Unmarshal(f.Data, into); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// over is how the stream ended; nothing may come before.
func over(t *testing.T, st *roomclient.Stream) roomclient.Closed {
	t.Helper()
	f, err := st.Next(limit(t))
	var c *roomclient.Closed
	if !errors.As(err, &c) {
		t.Fatalf("got %s %s, %v; want the end", f.Event, f.Data, err)
	}
	return *c
}

// back returns the agent's configuration for the server as it runs now.
func back(s *appliancetest.Server, cfg *roomclient.Config) *roomclient.Config {
	c := *cfg
	c.Endpoint = s.URL()
	return &c
}
