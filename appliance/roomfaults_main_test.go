package appliance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/roomclient"
)

// heard is one domain event as a follower handled it.
type heard struct {
	Seq     int64
	RoomID  uuid.UUID
	Message string // "" for a join
	Body    string
}

// follower is a whole client with a ledger of what it has handled.
type follower struct {
	client *roomclient.Client
	cancel context.CancelFunc
	ended  chan roomclient.Ending
	http   *http.Transport
	direct roomclient.Config // past the proxy

	mu      sync.Mutex
	events  []heard
	gaps    []roomclient.Gap
	cursor  int64 // where the client must read on
	endings []roomclient.Ending
	states  int
	wrong   error           // the first thing that must not be
	changed chan struct{}   // closed and replaced at every change
	heard   map[string]bool // ids of messages

	holes bool // rooms are left: numbers may be missing then

	// settle, when set, returns when the server has seen the end of what this client had open. A client that comes back
	// after a second meets no stream of its own that is still being opened; one that hurries might, and would be told that
	// another one has taken over.
	settle func()
	// refuse, when set, is asked about every event first: an error is what the handler returns.
	refuse func(heard) error
}

// errAgain is what a handler says that could not do its work.
var errAgain = errors.New("not now")

// follow starts a client that reads from the cursor on through the endpoint. It ends with the test at the latest.
func follow(t testing.TB, cfg roomclient.Config, endpoint string, start int64, change func(*follower)) *follower {
	t.Helper()
	f := &follower{ended: make(chan roomclient.Ending, 1), cursor: start, changed: make(chan struct{}), direct: cfg, heard: map[string]bool{},
		http: &http.Transport{}}
	cfg.Endpoint, cfg.HTTP, cfg.Clock = endpoint, &http.Client{Transport: f}, appliancetest.Hurry(100, 10*time.Millisecond)
	o := roomclient.Current(uuid.NewString())
	o.Scope, o.StartFrom = "all", &start
	f.client = &roomclient.Client{Config: cfg, Open: o, Handler: roomclient.Handler{Event: f.event, Gap: f.gap,
		Connected: func(roomclient.State) { f.note(func() { f.states++ }) },
		Ended:     f.streamEnded}}
	if change != nil {
		change(f)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go func() { f.ended <- f.run(ctx) }()
	t.Cleanup(f.stop)
	return f
}

// run is the client and, when the streams are cut anywhere, who starts it again: a client whose connection_state was lost
// on the way knows the generation before only, is told that another one has taken over, and stops for good (B.2, J.4).
// Its host starts it with the position it has saved (J.8), on the same connection.
func (f *follower) run(ctx context.Context) roomclient.Ending {
	for {
		end := f.client.Run(ctx)
		if f.settle == nil || end.Stop != roomclient.StopTakenOver {
			return end
		}
		f.mu.Lock()
		at := f.cursor
		f.mu.Unlock()
		f.client.Open.StartFrom = &at
	}
}

// stop ends the client and frees its connection at the server.
func (f *follower) stop() {
	f.cancel()
	f.ended <- <-f.ended
	f.http.CloseIdleConnections()
	_, _ = f.direct.CloseConnection(context.Background(), f.client.Open.ConnectionID, "the test is over")
}

func (f *follower) note(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// RoundTrip sends a request of the client.
func (f *follower) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.settle != nil && !f.client.SSEOnly && strings.HasSuffix(r.URL.Path, "/events") { // the socket before it did not open
		f.settle()
	}
	return f.http.RoundTrip(r)
}

// settled waits until no room agent has a stream.
func settled(t *testing.T, s *appliancetest.Server) func() {
	return func() {
		tick := time.NewTicker(4 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(appliancetest.Wait); ; <-tick.C {
			if time.Now().After(end) {
				t.Error("the server has not seen the end of a stream")
				return
			}
			n, err := s.Scrape(`signalbox_sessions{kind="room"}`, `signalbox_room_streams{transport="sse"}`)
			if err != nil {
				t.Errorf("scrape: %v", err)
				return
			}
			if n[0]+n[1] == 0 {
				return
			}
		}
	}
}

// streamEnded follows every stream. Nothing but the test may stop the client for good.
func (f *follower) streamEnded(e roomclient.Ending) {
	f.note(func() {
		f.endings = append(f.endings, e)
		lost := f.settle != nil && e.Stop == roomclient.StopTakenOver
		if e.Stop != "" && e.Stop != "stopped" && !lost && f.wrong == nil {
			f.wrong = fmt.Errorf("the client gave up, %s: %v", e.Stop, &e.Closed)
		}
	})
	if f.settle != nil {
		f.settle()
	}
}

// event is the handler. Every number in turn must come, once: the agent is told of all it is sent, and what was handled
// is not sent again.
func (f *follower) event(_ context.Context, frame roomclient.Frame) (err error) {
	h, err := readHeard(frame)
	f.note(func() {
		if err == nil && f.refuse != nil {
			if err = f.refuse(h); err != nil {
				return
			}
		}
		if err == nil && (h.Seq <= f.cursor || h.Seq != f.cursor+1 && !f.holes) {
			err = fmt.Errorf("event %d came after %d", h.Seq, f.cursor)
		}
		if err != nil && f.wrong == nil {
			f.wrong = err
			return
		}
		f.cursor = h.Seq
		f.events = append(f.events, h)
		f.heard[h.Message] = true
	})
	return err
}

func (f *follower) gap(_ context.Context, g roomclient.Gap) error {
	f.note(func() {
		if f.wrong == nil && (g.From != f.cursor || g.ResumedAt <= g.From) {
			f.wrong = fmt.Errorf("gap from %d to %d at the cursor %d", g.From, g.ResumedAt, f.cursor)
		}
		f.gaps = append(f.gaps, g)
		f.cursor = g.ResumedAt
	})
	return nil
}

// until waits until the condition holds. It fails the test at once when the ledger is wrong.
func (f *follower) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	if err := f.await(cond); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// await is until from any goroutine.
func (f *follower) await(cond func() bool) error {
	timeout := time.NewTimer(appliancetest.Wait)
	defer timeout.Stop()
	for {
		f.mu.Lock()
		ok, wrong, changed := cond(), f.wrong, f.changed
		cursor, n, endings := f.cursor, len(f.events), len(f.endings)
		f.mu.Unlock()
		switch {
		case wrong != nil:
			return wrong
		case ok:
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return fmt.Errorf("not after %v: %d events, cursor %d, %d endings", appliancetest.Wait, n, cursor, endings)
		}
	}
}

// reach waits until the follower has handled all up to the number.
func (f *follower) reach(t testing.TB, seq int64) {
	t.Helper()
	f.until(t, fmt.Sprintf("event %d", seq), func() bool { return f.cursor >= seq })
}

// drop cuts the stream, unless the client has yet to hear which generation it is of: see settle.
func (f *follower) drop() {
	stream := f.client.Stream()
	if stream == nil {
		return
	}
	state, known := stream.State(), f.client.Generation()
	if state != nil && known != nil && *known == state.Generation {
		stream.Drop()
	}
}

func readHeard(f roomclient.Frame) (heard, error) {
	var data struct {
		Type     string    `json:"type"`
		RoomID   uuid.UUID `json:"room_id"`
		Sequence int64     `json:"sequence"`
		Payload  struct {
			ID   string `json:"message_id"`
			Body string `json:"body"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(f.Data, &data); err != nil {
		return heard{}, err
	}
	if data.Sequence != f.ID || data.Type != f.Event {
		return heard{}, fmt.Errorf("frame %s %d holds %s %d", f.Event, f.ID, data.Type, data.Sequence)
	}
	return heard{f.ID, data.RoomID, data.Payload.ID, data.Payload.Body}, nil
}

// say posts or fails the test.
func say(t testing.TB, s *appliancetest.Server, roomID uuid.UUID, body string) appliancetest.Said {
	t.Helper()
	said, err := s.Say(roomID, body)
	if err != nil {
		t.Fatalf("say: %v", err)
	}
	return said
}
