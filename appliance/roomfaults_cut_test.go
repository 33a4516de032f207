package appliance_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
)

// overBoth runs a test over both transports.
func overBoth(t *testing.T, test func(t *testing.T, sse bool)) {
	t.Run("websocket", func(t *testing.T) { test(t, false) })
	t.Run("sse", func(t *testing.T) { test(t, true) })
}

// everyByte bounds how far answers are cut at each byte.
const everyByte = 120

// offsets are where a part of an exchange is cut: at each byte up to a bound, then here and there. With
// SIGNALBOX_FAULTS=all it is cut at each byte whatever its length.
func offsets(length, every int64) (at []int64) {
	for n := int64(0); n < length; n++ {
		at = append(at, n)
		if n >= every && os.Getenv("SIGNALBOX_FAULTS") != "all" {
			n += rand.Int64N(80)
		}
	}
	return at
}

// TestCutAtEveryByte cuts a small exchange at its bytes, on either way: wherever that is, the client comes back for
// exactly the rest.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	const events = 3
	overBoth(t, func(t *testing.T, sse bool) {
		t.Parallel()
		s := appliancetest.Start(t, configure(unlimited))
		a := s.RoomAgent("agent")
		r := s.Room("plaza", a)
		for i := range events {
			say(t, s, r, fmt.Sprintf("message %d", i))
		}
		p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
		// attempt follows the exchange with the plan for its first connection, and returns that.
		attempt := func(plan appliancetest.Plan) *appliancetest.Link {
			n := p.Count()
			p.Next(plan)
			f := follow(t, a, p.URL(), 0, func(f *follower) { f.client.SSEOnly, f.settle = sse, settled(t, s) })
			f.reach(t, events)
			f.stop()
			if len(f.gaps) > 0 || f.cursor != events || len(f.events) != events {
				t.Fatalf("%+v: events %+v, gaps %+v", plan, f.events, f.gaps)
			}
			return p.Link(t, n)
		}
		whole := attempt(appliancetest.Plan{})
		up, down := whole.Passed(appliancetest.ToServer), whole.Passed(appliancetest.ToClient)
		if up < 200 || down < 500 {
			t.Fatalf("%d bytes to the server and %d to the client are too few to be the exchange", up, down)
		}
		ups, downs := offsets(up, 0), offsets(down, everyByte)
		for _, at := range ups {
			attempt(appliancetest.Plan{ToServer: appliancetest.Fault{At: at, Do: appliancetest.Cut}})
		}
		for _, at := range downs {
			attempt(appliancetest.Plan{ToClient: appliancetest.Fault{At: at, Do: appliancetest.Cut}})
		}
		for range 20 {
			attempt(appliancetest.Plan{ToClient: appliancetest.Fault{At: rand.Int64N(down), Do: appliancetest.Reset}})
		}
		attempt(appliancetest.Plan{Chunk: 1})
		attempt(appliancetest.Plan{Refuse: true})
		t.Logf("of %d bytes to the server and %d to the client, cut at %d and %d", up, down, len(ups), len(downs))
	})
}

// TestRandomCutsUnderLoad lets every connection of a client end somewhere while messages come in, and its handler fail
// now and then: an event whose handling failed comes again, no other does, and none is missing.
func TestRandomCutsUnderLoad(t *testing.T) {
	t.Parallel()
	const posts = 400
	overBoth(t, func(t *testing.T, sse bool) {
		t.Parallel()
		s := appliancetest.Start(t, configure(unlimited))
		a := s.RoomAgent(fmt.Sprintf("agent-%v", sse))
		r := s.Room("plaza", a)
		p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
		p.Always(func(int) appliancetest.Plan {
			harm := [...]appliancetest.Harm{appliancetest.Cut, appliancetest.Reset}[rand.IntN(2)]
			plan := appliancetest.Plan{Chunk: [...]int{0, 0, 1, 7, 500}[rand.IntN(5)], Refuse: rand.IntN(20) == 0}
			if rand.IntN(5) == 0 { // in the request: when a whole one comes through, so does what it asks for
				plan.ToServer = appliancetest.Fault{At: rand.Int64N(250), Do: harm}
			} else {
				plan.ToClient = appliancetest.Fault{At: 600 + rand.Int64N(12000), Do: harm}
			}
			return plan
		})
		refusals := 0
		f := follow(t, a, p.URL(), 0, func(f *follower) {
			f.client.SSEOnly, f.settle = sse, settled(t, s)
			f.refuse = func(heard) error {
				if rand.IntN(50) == 0 {
					refusals++
					return errAgain
				}
				return nil
			}
		})
		var sent []string
		for i := range posts {
			body := fmt.Sprintf("message %d %s", i, strings.Repeat("x", rand.IntN(2000)))
			say(t, s, r, body)
			sent = append(sent, body)
		}
		f.reach(t, posts)
		f.stop()
		if len(f.gaps) > 0 {
			t.Errorf("gaps %+v", f.gaps)
		}
		for i, h := range f.events {
			if h.Body != sent[i] {
				t.Errorf("event %d is %.40q, want %.40q", h.Seq, h.Body, sent[i])
			}
		}
		t.Logf("%d connections, %d streams, %d refusals of the handler", p.Count(), f.states, refusals)
		if f.states < 10 || refusals == 0 {
			t.Error("it tested nothing")
		}
	})
}

// TestCutsPastRetention posts more than is kept while the client is away: it is told of a gap that ends where what is
// kept begins, and reads on from there.
func TestCutsPastRetention(t *testing.T) {
	t.Parallel()
	const kept = 64
	s := appliancetest.Start(t, configure(func(c *config.Config) { unlimited(c); c.Room.RetainedEvents = kept }))
	overBoth(t, func(t *testing.T, sse bool) {
		a := s.RoomAgent(fmt.Sprintf("agent-%v", sse))
		r := s.Room("plaza", a)
		p := appliancetest.StartProxy(t, strings.TrimPrefix(s.URL(), "http://"))
		f := follow(t, a, p.URL(), 0, func(f *follower) { f.client.SSEOnly = sse })
		head := int64(0)
		post := func(n int) {
			for range n {
				head++
				say(t, s, r, fmt.Sprintf("message %d", head))
			}
		}
		for round := range 8 {
			post(rand.IntN(5) + 1)
			f.reach(t, head)
			f.mu.Lock()
			gaps, last := len(f.gaps), f.cursor
			f.mu.Unlock()
			p.Always(func(int) appliancetest.Plan { return appliancetest.Plan{Refuse: true} })
			p.CutAll()
			away := kept + rand.IntN(60) - 30
			post(away)
			p.Always(nil)
			f.reach(t, head)
			f.mu.Lock()
			got := f.gaps[gaps:]
			lost := away > kept
			switch {
			case !lost && len(got) > 0:
				t.Errorf("round %d: %d events waited, %d are kept, and there is a gap: %+v", round, away, kept, got)
			case lost && (len(got) != 1 || got[0].From != last || got[0].ResumedAt != head-kept || got[0].AllRooms ||
				len(got[0].Rooms) != 1 || got[0].Rooms[0] != r.String()):
				t.Errorf("round %d: after %d, head %d: gaps %+v, want one to %d", round, last, head, got, head-kept)
			}
			f.mu.Unlock()
		}
		f.stop()
		for i, h := range f.events {
			if want := fmt.Sprintf("message %d", h.Seq); h.Body != want {
				t.Errorf("event %d: sequence %d is %q, want %q", i, h.Seq, h.Body, want)
			}
		}
	})
}
