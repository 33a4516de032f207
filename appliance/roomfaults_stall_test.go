package appliance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
)

// midThird is the number of bytes to the client of a stream after which the third event is half there.
func midThird(t *testing.T, s *appliancetest.Server, sse bool) int64 {
	t.Helper()
	a := s.RoomAgent("measure")
	r := s.Room("measure", a)
	p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
	f := follow(t, a, p.URL(), 0, func(f *follower) { f.client.SSEOnly = sse })
	for i := range 2 {
		say(t, s, r, fmt.Sprintf("message %d", i))
		f.reach(t, int64(i+1))
	}
	f.stop()
	return p.Link(t, 0).Passed(appliancetest.ToClient) + 100
}

// aside starts a client whose first stream meets the fault in the middle of its third event, and posts past that.
func aside(t *testing.T, s *appliancetest.Server, sse bool, do appliancetest.Harm, change func(*follower)) (
	*follower, *appliancetest.Proxy, func(n int)) {
	t.Helper()
	at := midThird(t, s, sse)
	a := s.RoomAgent("agent")
	r := s.Room("plaza", a)
	p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
	p.Next(appliancetest.Plan{ToClient: appliancetest.Fault{At: at, Do: do}})
	f := follow(t, a, p.URL(), 0, func(f *follower) {
		f.client.SSEOnly, f.settle = sse, settled(t, s)
		if change != nil {
			change(f)
		}
	})
	posted := 0
	post := func(n int) {
		for range n {
			say(t, s, r, fmt.Sprintf("message %d", posted))
			posted++
		}
	}
	post(2)
	f.reach(t, 2)
	post(5)
	s.Eventually("the fault", func() bool { return p.Link(t, 0).Passed(appliancetest.ToClient) == at })
	return f, p, post
}

func (f *follower) check(t *testing.T, events int64, streams int) {
	t.Helper()
	f.reach(t, events)
	f.stop()
	if len(f.gaps) > 0 || f.cursor != events || streams > 0 && f.states != streams {
		t.Errorf("%d events, gaps %+v, %d streams, want %d", len(f.events), f.gaps, f.states, streams)
	}
	for i, h := range f.events {
		if h.Body != fmt.Sprintf("message %d", i) {
			t.Errorf("event %d is %q", h.Seq, h.Body)
		}
	}
}

// TestADelayLosesNothing holds bytes back for a while that nobody notices: the stream goes on.
func TestADelayLosesNothing(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, sse bool) {
		t.Parallel()
		s := appliancetest.Start(t, configure(unlimited), frozen())
		f, p, post := aside(t, s, sse, appliancetest.Stall, nil)
		post(3)
		p.Link(t, 0).Release()
		f.check(t, 10, 1)
	})
}

// TestAStallEndsInALapse stalls one way until the server takes the client for dead. When the bytes come after all, the
// client has what was on its way, hears of its end and comes back for the rest.
func TestAStallEndsInALapse(t *testing.T) {
	t.Parallel()
	s := appliancetest.Start(t, configure(unlimited), frozen())
	f, p, post := aside(t, s, false, appliancetest.Stall, nil)
	lapsed(t, s)
	post(3)
	p.Link(t, 0).Release()
	f.check(t, 10, 2)
	if e := f.endings[0].Closed.Evicted; e == nil || e.Code != "heartbeat_lapsed" {
		t.Errorf("the first stream ended with %+v", f.endings[0].Closed)
	}
}

// lapsed lets time pass until a connection has lapsed.
func lapsed(t *testing.T, s *appliancetest.Server) {
	t.Helper()
	s.Pump(250*time.Millisecond, "a lapse", func(wait <-chan time.Time) bool {
		<-wait
		return s.Metric(`signalbox_session_closes_total{kind="room",reason="lapsed"}`) > 0
	})
}

// TestLostBeatsEndInALapse loses what the client sends, and nothing else.
func TestLostBeatsEndInALapse(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, sse bool) {
		t.Parallel()
		s := appliancetest.Start(t, configure(unlimited), frozen())
		a := s.RoomAgent("agent")
		r := s.Room("plaza", a)
		p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
		lost := appliancetest.Plan{ToServer: appliancetest.Fault{Do: appliancetest.Drop}}
		if sse { // the second connection carries the beats
			p.Next(appliancetest.Plan{}, lost)
		} else { // the request passes, the pongs do not
			p.Next(appliancetest.Plan{ToServer: appliancetest.Fault{At: 520, Do: appliancetest.Drop}})
		}
		f := follow(t, a, p.URL(), 0, func(f *follower) { f.client.SSEOnly = sse })
		f.until(t, "a stream", func() bool { return f.states == 1 })
		say(t, s, r, "message 0")
		f.reach(t, 1)
		s.Pump(250*time.Millisecond, "the end of the stream", func(wait <-chan time.Time) bool {
			<-wait
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.endings) > 0
		})
		say(t, s, r, "message 1")
		f.check(t, 2, 0)
		if e := f.endings[0].Closed.Evicted; e == nil || e.Code != "heartbeat_lapsed" {
			t.Errorf("the first stream ended with %+v", f.endings[0].Closed)
		}
	})
}

// TestANetworkThatIsGone swallows what goes to the client until its side gives the connection up.
func TestANetworkThatIsGone(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, sse bool) {
		t.Parallel()
		s := appliancetest.Start(t, configure(unlimited), frozen())
		f, p, post := aside(t, s, sse, appliancetest.Drop, nil)
		post(3)
		if !sse {
			lapsed(t, s)
		}
		p.Link(t, 0).Break()
		f.check(t, 10, 2)
	})
}

// TestStalledReadersDelayNobody has two clients among many take no bytes any more, one on each transport, in a busy room:
// the others hear everything at once, what waits for the two is bounded, they are closed for a named reason, and have
// lost nothing when they come back.
func TestStalledReadersDelayNobody(t *testing.T) {
	t.Parallel()
	const quick, posts = 6, 60
	s := appliancetest.Start(t, configure(unlimited))
	var everyone []*follower
	stalls := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
	r := s.Room("plaza")
	invite := func(name string) {
		cfg := s.RoomAgent(name)
		s.Do("POST", "/rooms/"+r.String()+"/agents", map[string]any{"agent_ids": []string{cfg.AgentID.String()}}, 200, nil)
		sse, endpoint := strings.HasSuffix(name, "sse"), s.URL()
		if strings.HasPrefix(name, "stalled") {
			stalls.Next(appliancetest.Plan{ToClient: appliancetest.Fault{At: 4000, Do: appliancetest.Stall}})
			endpoint = stalls.URL()
		}
		f := follow(t, cfg, endpoint, 0, func(f *follower) { f.client.SSEOnly = sse })
		f.until(t, "a stream", func() bool { return f.states == 1 })
		everyone = append(everyone, f)
	}
	invite("stalled-socket")
	socket := stalls.Link(t, stalls.Count()-1)
	n := stalls.Count()
	invite("stalled-sse")
	sse := stalls.Link(t, n)
	for i := range quick {
		invite(fmt.Sprintf("quick-%d-%s", i, [...]string{"ws", "sse"}[i%2]))
	}
	// Joins of later agents are events too.
	base := make([]int64, len(everyone))
	for i, f := range everyone[2:] {
		f.reach(t, int64(quick-1-i))
		base[2+i] = f.cursor
	}
	body := strings.Repeat("x", 96<<10) // together more than the kernel holds for a connection
	most := 0.0
	for i := range posts {
		say(t, s, r, body)
		for j, f := range everyone[2:] {
			f.reach(t, base[2+j]+int64(i+1))
		}
		if i%10 == 0 {
			most = max(most, s.Metric(`signalbox_session_queue_bytes{kind="room"}`))
		}
	}
	// A socket that takes nothing answers no ping either: which of the two is noticed first depends on how fast the
	// kernel's buffers fill.
	const cutSocket = `signalbox_session_closes_total{kind="room",reason="write_failed"}`
	const lapsedSocket = `signalbox_session_closes_total{kind="room",reason="lapsed"}`
	const cutSSE = `signalbox_room_stream_closes_total{reason="write_failed",transport="sse"}`
	t.Logf("at most %.0f bytes queued for all sockets", most)
	if most > 256<<10 {
		t.Error("that is not bounded")
	}
	s.Eventually("the end of both", func() bool { return s.Metric(cutSocket)+s.Metric(lapsedSocket) == 1 && s.Metric(cutSSE) == 1 })
	for _, f := range everyone[2:] {
		if f.mu.Lock(); f.states != 1 || len(f.endings) > 0 {
			t.Errorf("another stream ended: %+v", f.endings)
		}
		f.mu.Unlock()
	}
	socket.Break()
	sse.Break()
	for i, f := range everyone[:2] {
		f.reach(t, int64(quick+1-i+posts))
		f.stop()
		if len(f.gaps) > 0 || f.states < 2 {
			t.Errorf("stalled %d: %d streams, gaps %+v", i, f.states, f.gaps)
		}
	}
}
