package roomconn

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// running is a client in its loop.
type running struct {
	*roomclient.Client
	states  chan roomclient.State
	events  chan roomclient.Frame
	gaps    chan roomclient.Gap
	endings chan roomclient.Ending
	done    chan roomclient.Ending
}

// run starts a client; it stops with the test.
func (r *rig) run(c *roomclient.Client) *running {
	r.t.Helper()
	k := &running{c, make(chan roomclient.State, 16), make(chan roomclient.Frame, 64), make(chan roomclient.Gap, 4),
		make(chan roomclient.Ending, 64), make(chan roomclient.Ending, 1)}
	c.Config.Clock = nil // its pauses are real, and short
	c.Config.Jitter = func(time.Duration, time.Duration) time.Duration { return time.Millisecond }
	c.Handler = roomclient.Handler{
		Connected: func(s roomclient.State) { k.states <- s },
		Event:     func(_ context.Context, f roomclient.Frame) error { k.events <- f; return nil },
		Gap:       func(_ context.Context, g roomclient.Gap) error { k.gaps <- g; return nil },
		Ended:     func(e roomclient.Ending) { k.endings <- e },
	}
	ctx, cancel := context.WithCancel(r.ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		k.done <- c.Run(ctx)
	}()
	r.t.Cleanup(func() {
		cancel()
		<-over
	})
	return k
}

func TestClientResumesDropsRoomsAndStops(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x, gone := r.room("x", a), uuid.New()
	k := r.run(&roomclient.Client{Config: *r.config(a), Open: asks("c", in(x, gone))})
	if e := <-k.endings; !slices.Equal(e.Dropped, ids(gone)) || e.Closed.Code != 4403 || e.Pause != 0 {
		t.Fatalf("%+v", e)
	}
	first := <-k.states
	r.say(x, "one")
	if f := <-k.events; f.ID != 1 {
		t.Fatalf("%+v", f)
	}
	r.until("handled", func() bool { return k.Cursor() == 1 })
	k.Stream().Drop()
	for _, body := range []string{"two", "three"} {
		r.say(x, body)
	}
	if e := <-k.endings; e.Stop != "" {
		t.Fatalf("%+v", e)
	}
	second := <-k.states
	if second.Generation <= first.Generation || !slices.Equal(second.Rooms, ids(x)) || second.Cursor != 1 {
		t.Errorf("%+v", second)
	}
	for want := int64(2); want <= 3; want++ {
		if f := <-k.events; f.ID != want {
			t.Errorf("got %d, want %d", f.ID, want)
		}
	}
	r.ws(a, asks("c")) // another client takes the connection
	if e := <-k.done; e.Stop != roomclient.StopTakenOver {
		t.Errorf("%+v", e)
	}
}

func TestClientStopsForABadKey(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	cfg := *r.config(a)
	cfg.Token = secret.NewText("revoked")
	k := r.run(&roomclient.Client{Config: cfg, Open: asks("c")})
	if e := <-k.done; e.Stop != roomclient.StopRejected || e.Closed.Code != 4401 || len(k.endings) != 1 {
		t.Errorf("%+v after %d endings", e, len(k.endings))
	}
}

// TestProxyThatStripsUpgrade leaves SSE working.
func TestProxyThatStripsUpgrade(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	target, _ := url.Parse(r.http.URL)
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.FlushInterval = -1
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		q.Header.Del("Upgrade")
		forward.ServeHTTP(w, q)
	}))
	defer proxy.Close()
	defer proxy.CloseClientConnections()
	cfg := *r.config(a)
	cfg.Endpoint = proxy.URL
	k := r.run(&roomclient.Client{Config: cfg, Open: asks("c", in(x))})
	<-k.states
	if s := k.Stream(); s.Transport != roomclient.SSE {
		t.Errorf("over %s", s.Transport)
	}
	r.say(x, "one")
	if f := <-k.events; f.ID != 1 {
		t.Errorf("%+v", f)
	}
	r.until("a beat", func() bool { i, _ := r.reg.Get("c"); return i.Beats > 0 })
}

func TestClientGoesBackToTheSocketWhenSSEIsRemoved(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opts.RemoveSSE = true })
	a := r.agent("bot")
	k := r.run(&roomclient.Client{Config: *r.config(a), Open: asks("c")})
	<-k.states
	if s := k.Stream(); s.Transport != roomclient.WebSocket {
		t.Errorf("over %s", s.Transport)
	}
	old := r.run(&roomclient.Client{Config: *r.config(a), Open: asks("old"), SSEOnly: true})
	if e := <-old.endings; e.Closed.Refused.Code() != "transport_removed" || e.Stop != "" {
		t.Errorf("%+v", e)
	}
}

func TestClientKeepsTryingANetworkThatIsDown(t *testing.T) {
	r := newRig(t)
	cfg := *r.config(r.agent("bot"))
	cfg.Endpoint = "http://127.0.0.1:1" // no port that the kernel gives to somebody else
	k := r.run(&roomclient.Client{Config: cfg, Open: asks("c")})
	if e := <-k.endings; e.Stop != "" || e.Pause != time.Second {
		t.Errorf("%+v", e)
	}
}
