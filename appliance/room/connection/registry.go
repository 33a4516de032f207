package connection

import (
	"sync"
	"sync/atomic"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Registry holds every live connection. Its methods are safe for concurrent use; only Attach and Subscribe may wait, for
// the database and under the caller's context. It has no goroutine: the appliance calls Sweep.
type Registry struct {
	clock    clock.Clock
	rooms    Rooms
	observer Observer
	version  string
	exists   existence

	base       time.Time // registry time 0
	mark       atomic.Pointer[mark]
	generation atomic.Int64 // last issued
	leases     leases

	mu     sync.RWMutex // the index: held for look-ups only
	agents map[int64]*agent
	conns  map[string]*conn
	closed map[int64]struct{} // deleted agents; numbers of agents are never used again
}

// mark is what the last sweep left: when it ran, and how long the server has stood still altogether.
type mark struct {
	swept, stalled time.Duration
	begun          bool // a sweep has run; a delay before the first is the server's start, no stall to tell of
}

// New returns a registry without connections. Generations start at the clock, in microseconds (C.2).
func New(rooms Rooms, o Options) *Registry {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	r := &Registry{clock: o.Clock, rooms: rooms, observer: o.Observer, version: o.Version, exists: o.RoomExists,
		base: o.Clock.Now(), agents: map[int64]*agent{}, conns: map[string]*conn{}, closed: map[int64]struct{}{}}
	r.mark.Store(&mark{})
	r.generation.Store(r.base.UnixMicro())
	r.leases.byAgent, r.leases.byRoom = map[int64]*lease{}, map[int64]map[int64]*lease{}
	return r
}

// elapsed is the clock's time since the registry began.
func (r *Registry) elapsed() time.Duration { return r.clock.Now().Sub(r.base) }

// now is registry time: the clock without the server's stalls, also without the one that a sweep has still to find.
func (r *Registry) now() time.Duration {
	t, m := r.elapsed(), r.mark.Load()
	if late := t - m.swept - SweepEvery; late > StallAfter {
		t -= late
	}
	return t - m.stalled
}

// standing tells whether registry time stands still until the next sweep.
func (r *Registry) standing() bool {
	return r.elapsed()-r.mark.Load().swept-SweepEvery > StallAfter
}

// Sweep removes what has lapsed (C.3). It must be called every SweepEvery, from one goroutine; coming late is how it
// notices that the server was stalled.
func (r *Registry) Sweep(now time.Time) {
	t, m := now.Sub(r.base), *r.mark.Load()
	late := t - m.swept - SweepEvery
	if late > StallAfter {
		m.stalled += late
	}
	told := m.begun
	m.swept, m.begun = max(t, m.swept), true
	r.mark.Store(&m)
	if late > StallAfter && told && r.observer != nil {
		r.observer.Stalled(late)
	}
	rt := r.now()
	r.mu.RLock()
	found := map[*agent]struct{}{}
	for _, c := range r.conns {
		if !c.live(rt) {
			found[c.agent] = struct{}{}
		}
	}
	r.mu.RUnlock()
	for a := range found {
		a.mu.Lock()
		a.lapse(r.now())
		a.unlock()
	}
	r.leases.sweep(r.now())
}

// agentOf returns the state of the agent, nil when it never had a connection.
func (r *Registry) agentOf(no int64) *agent {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.agents[no]
}

// conn returns the connection of the id, live or lapsed, of whichever agent.
func (r *Registry) conn(id string) *conn {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.conns[id]
}

// index enters a new connection, unless its id is taken.
func (r *Registry) index(c *conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.conns[c.id]; taken {
		return false
	}
	r.conns[c.id] = c
	return true
}

func (r *Registry) unindex(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns[c.id] == c {
		delete(r.conns, c.id)
	}
}

// enter returns the state of the agent, made when there is none.
func (r *Registry) enter(no int64) (*agent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, gone := r.closed[no]; gone {
		return nil, errDeleted()
	}
	a := r.agents[no]
	if a == nil {
		a = newAgent(r, no)
		r.agents[no] = a
	}
	return a, nil
}

func errDeleted() error { return fault.New(fault.Unauthenticated, "the agent was deleted") }

// notOpen says that a request names no live connection of its agent. The words are matched by clients (H.1).
func notOpen(code fault.Code, id string) error {
	return fault.New(code, "connection %s is not open: unknown, lapsed or closed; open the stream again", id)
}

// open locks the agent and returns its live connection of the id. Without an error the caller must unlock the agent.
func (r *Registry) open(agentNo int64, id string, code fault.Code) (*agent, *conn, error) {
	a := r.agentOf(agentNo)
	if a == nil {
		return nil, nil, notOpen(code, id)
	}
	a.mu.Lock()
	a.lapse(r.now())
	c := a.conns[id]
	if c == nil {
		a.unlock()
		return nil, nil, notOpen(code, id)
	}
	return a, c, nil
}

// fenced is open with the generation checked (C.6, F.4): an absent one is refused when the holder knows of fences.
func (r *Registry) fenced(agentNo int64, id string, generation *int64) (*agent, *conn, error) {
	a, c, err := r.open(agentNo, id, fault.NotFound)
	if err != nil {
		return nil, nil, err
	}
	if err := c.fence(generation); err != nil {
		a.unlock()
		return nil, nil, err
	}
	return a, c, nil
}

func (c *conn) fence(generation *int64) error {
	switch {
	case generation == nil && c.stream.declared.atLeast(revisionFenced):
		return room.Refuse(room.CodeUnfenced, "generation: is required from a client of revision 2 or later")
	case generation != nil && *generation != c.stream.generation:
		return takenOver()
	}
	return nil
}

func takenOver() *room.Refused {
	return room.Refuse(room.CodeTakenOver, "another stream attached to this connection since: the generation is no longer current")
}
