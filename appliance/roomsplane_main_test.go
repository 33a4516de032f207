package appliance_test

import (
	"context"
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

// enlist registers an agent that everybody may address.
func enlist(s *appliancetest.Server, name string) *roomclient.Config {
	var out struct {
		Agent struct {
			ID uuid.UUID `json:"id"`
		} `json:"agent"`
		Key string `json:"api_key"`
	}
	s.Do("POST", "/room-agents", map[string]any{"name": name, "open": true}, http.StatusCreated, &out)
	return &roomclient.Config{Endpoint: s.URL(), Token: secret.NewText(out.Key), AgentID: out.Agent.ID, HTTP: s.Client(), Clock: clockOf(s)}
}

func clockOf(s *appliancetest.Server) clock.Clock {
	if s.Clock != nil {
		return s.Clock
	}
	return clock.System()
}
