package connection

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// sound fails the test unless everything the registry holds agrees with itself. Nobody else may be at work.
func (g *rig) sound() {
	g.t.Helper()
	known := map[string]bool{}
	for no, a := range g.agents {
		claimed := map[int64]string{}
		for id, c := range a.conns {
			known[id] = true
			if g.conns[id] != c || c.ended.Load() || c.agent != a || c.stream == nil {
				g.t.Errorf("%s: the index and the agent disagree", id)
			}
			if end := c.stream.end.Load(); end != nil && c.attached {
				g.t.Errorf("%s: attached to a stream that ended %s", id, end.Code)
			}
			for room, ref := range c.claimed {
				if other, twice := claimed[room]; twice {
					g.t.Errorf("room %d of agent %d is claimed by %s and %s", room, no, other, id)
				}
				claimed[room] = id
				if a.claims[room] != c || a.members[room] != ref {
					g.t.Errorf("%s: a claim on %d that the agent does not know of, or not as a member", id, room)
				}
			}
			for session, room := range c.placements {
				if _, in := c.claimed[room]; !in || c.placed[room] != session {
					g.t.Errorf("%s: the placement of %s in %d is outside of the claims", id, session, room)
				}
			}
			if len(c.placed) != len(c.placements) {
				g.t.Errorf("%s: %d placed, %d placements", id, len(c.placed), len(c.placements))
			}
		}
		if len(claimed) != len(a.claims) {
			g.t.Errorf("agent %d: %d claims by connections, %d by rooms", no, len(claimed), len(a.claims))
		}
		v := a.current()
		if !maps.Equal(v.claims, a.claims) || len(*v.members) != len(a.members) {
			g.t.Errorf("agent %d: the view is stale", no)
		}
		if len(a.conns) == 0 && a.members != nil {
			g.t.Errorf("agent %d: members without connections", no)
		}
		if len(a.conns) > 0 {
			want := []int64{}
			for n := range g.table.in[no] {
				want = append(want, n)
			}
			got := slices.Collect(maps.Keys(a.members))
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				g.t.Errorf("agent %d is in %v, the registry says %v", no, want, got)
			}
		}
	}
	for id := range g.conns {
		if !known[id] {
			g.t.Errorf("%s: indexed, and no agent has it", id)
		}
	}
	for no, l := range g.leases.byAgent {
		if l.conn != nil && l.conn.ended.Load() || g.leases.byRoom[l.Room.No][no] != l {
			g.t.Errorf("the lease of agent %d is loose", no)
		}
	}
}

// socket is one client's end of a stream.
type socket struct {
	stream *Stream
	wake   chan struct{}
	ended  bool
}

// client opens sockets and does what clients do until it is told to stop. It returns the sockets it has not dropped.
func (g *rig) client(seed uint64, stop *atomic.Bool) []*socket {
	rnd := rand.New(rand.NewPCG(seed, 3))
	var open []*socket
	for n := 0; !stop.Load() || n < 200; n++ {
		agentNo, id := 1+int64(rnd.IntN(2)), fmt.Sprint("c", rnd.IntN(8))
		r := ref(1 + int64(rnd.IntN(5)))
		var gen *int64
		if i, ok := g.Get(id); ok {
			gen = &i.Generation
		}
		switch rnd.IntN(12) {
		case 0, 1, 2:
			q := request(agentNo, id, []Scope{ScopeSingle, ScopeAll}[rnd.IntN(2)])
			if rnd.IntN(2) == 0 {
				q.Rooms = []uuid.UUID{r.ID}
			}
			if rnd.IntN(2) == 0 {
				q.ExpectedGeneration = gen
			}
			wake := make(chan struct{}, 1)
			s, err := g.Attach(g.t.Context(), q, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
			if err == nil {
				open = append(open, &socket{stream: s, wake: wake})
			}
		case 3:
			_, _ = g.Subscribe(g.t.Context(), agentNo, id, gen, r.ID, rnd.IntN(2) == 0)
		case 4:
			_, _ = g.Place(agentNo, id, gen, map[string]uuid.UUID{"s1": r.ID, "s2": ref(1 + r.No%5).ID})
		case 5:
			_, _ = g.Connect(agentNo, id, []string{"", "s1"}[rnd.IntN(2)], r.ID)
		case 6:
			_ = g.AssumeRole(agentNo, id, r.ID, "lead", true)
			g.RoleHolders(r.No)
		case 7:
			if rnd.IntN(8) == 0 {
				g.Evict(id, "")
			}
			_, _ = g.Unsubscribe(agentNo, id, gen, r.ID)
		case 8:
			g.table.mu.Lock() // commits and hooks come in one order, from one writer
			if _, in := g.table.in[agentNo][r.No]; in {
				delete(g.table.in[agentNo], r.No)
				g.Left(agentNo, r.No)
			} else {
				g.table.in[agentNo][r.No] = r
				g.Joined(agentNo, r)
			}
			g.table.mu.Unlock()
		default:
			if len(open) == 0 {
				continue
			}
			i := rnd.IntN(len(open))
			s := open[i]
			s.stream.Covers(r.No)
			if err := s.stream.Pong(0); err != nil || s.stream.Pass().End != nil {
				s.ended = true
			}
			if rnd.IntN(3) == 0 || s.ended {
				s.stream.Detach()
				open = slices.Delete(open, i, i+1)
			}
		}
	}
	return open
}

// TestTheRegistryEqualsTheLiveSockets lets clients collide, with a clock that runs, memberships that change and sweeps,
// and then compares what is attached with the sockets that are still open.
func TestTheRegistryEqualsTheLiveSockets(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []*socket
	for seed := range uint64(8) {
		wg.Go(func() {
			left := g.client(seed, &stop)
			mu.Lock()
			defer mu.Unlock()
			open = append(open, left...)
		})
	}
	wg.Go(func() {
		for n := range 400 {
			g.clock.Advance(time.Duration(100+n%7*300) * time.Millisecond)
			if n%13 == 0 {
				g.clock.Advance(7 * time.Second)
			}
			g.Sweep(g.clock.Now())
			g.All()
			g.Counts()
		}
		stop.Store(true)
	})
	wg.Wait()
	g.sound()
	live := map[int64]bool{}
	for _, s := range open {
		if s.stream.Pass().End == nil {
			live[s.stream.Generation()] = true
		} else if s.stream.Covers(1) {
			t.Error("an ended stream covers a room")
		}
	}
	attached := map[int64]bool{}
	for _, i := range g.All() {
		if i.Attached {
			attached[i.Generation] = true
		}
	}
	if !maps.Equal(live, attached) {
		t.Fatalf("live sockets %v, attached %v", slices.Sorted(maps.Keys(live)), slices.Sorted(maps.Keys(attached)))
	}
	g.pass(8 * time.Second)
	g.sound()
	if len(g.conns) != 0 || len(g.leases.byAgent) != 0 {
		t.Fatalf("%d connections and %d leases are left", len(g.conns), len(g.leases.byAgent))
	}
}

// A loser's wake must come whenever its Pass has something new: nothing may depend on a timer.
func TestEveryChangeWakesWhomItConcerns(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(g *rig, gen *int64){
		"takeover":   func(g *rig, gen *int64) { g.attach(1, "c1", ScopeAll) },
		"open":       func(g *rig, gen *int64) { g.attach(1, "c3", ScopeSingle, 1) },
		"subscribe":  func(g *rig, gen *int64) { _, _ = g.Subscribe(g.t.Context(), 1, "c2", gen, ref(1).ID, true) },
		"placements": func(g *rig, gen *int64) { _, _ = g.Place(1, "c2", gen, map[string]uuid.UUID{"s": ref(1).ID}) },
		"connect":    func(g *rig, gen *int64) { _, _ = g.Connect(1, "c2", "", ref(1).ID) },
		"left":       func(g *rig, gen *int64) { g.Left(1, 1) },
		"joined":     func(g *rig, gen *int64) { g.Joined(1, ref(6)) },
		"evicted":    func(g *rig, gen *int64) { g.Evict("c1", "") },
		"closed":     func(g *rig, gen *int64) { g.AgentClosed(1, "") },
	} {
		g := newRig(t)
		s := g.attach(1, "c1", ScopeAll, 1)
		gen := ptr(g.attach(1, "c2", ScopeSingle).Generation())
		s.Pass()
		woken := g.woken["c1"]
		do(g, gen)
		if g.woken["c1"] == woken {
			t.Errorf("%s: not woken", name)
		}
		if p := s.Pass(); p.End == nil && !p.Changed {
			t.Errorf("%s: nothing to tell: %+v", name, p)
		}
	}
}
