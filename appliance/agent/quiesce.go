package agent

import (
	"context"
	"sync"
)

// flight is what Quiesce waits for: the commands that are handed over once only (agent protocol E.6) and lie unanswered with
// an agent that took them over a WebSocket and is still connected to this process. The zero value is ready. Safe for
// concurrent use.
type flight struct {
	claims sync.RWMutex // held for reading by every claim, so that Quiesce comes after those under way
	quiet  bool         // under claims

	mu      sync.Mutex
	agents  map[int64]*airborne // by number; those with a session or an open command
	open    int                 // commands, of all agents
	awaited int                 // those of connected agents
	landed  chan struct{}       // closed when awaited became 0; nil: nobody waits
}

// airborne is the part of one agent.
type airborne struct {
	sessions int
	open     map[int64]struct{} // by command number; no more than are open
}

func (f *flight) add(agentNo, no int64) {
	f.change(agentNo, func(a *airborne) {
		if a.open == nil {
			a.open = map[int64]struct{}{}
		}
		a.open[no] = struct{}{}
	})
}

func (f *flight) remove(agentNo, no int64) {
	f.change(agentNo, func(a *airborne) { delete(a.open, no) })
}

// change has fn change one agent's part, and keeps the counts.
func (f *flight) change(agentNo int64, fn func(*airborne)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.agents[agentNo]
	if a == nil {
		a = &airborne{}
	}
	open, awaited := len(a.open), a.awaited()
	fn(a)
	f.open += len(a.open) - open
	f.awaited += a.awaited() - awaited
	switch {
	case a.sessions <= 0 && len(a.open) == 0:
		delete(f.agents, agentNo)
	case f.agents == nil:
		f.agents = map[int64]*airborne{agentNo: a}
	default:
		f.agents[agentNo] = a
	}
	if f.awaited == 0 && f.landed != nil {
		close(f.landed)
		f.landed = nil
	}
}

func (a *airborne) awaited() int {
	if a.sessions <= 0 {
		return 0
	}
	return len(a.open)
}

// Connected says that a WebSocket session of the agent began: it can answer what the agent was handed. Each call is
// followed by one of Disconnected.
func (c *Commands) Connected(p Peer) { c.flight.change(p.AgentNo, func(a *airborne) { a.sessions++ }) }

// Disconnected says that a session of Connected is over and that everything it sent has been dealt with.
func (c *Commands) Disconnected(p Peer) {
	c.flight.change(p.AgentNo, func(a *airborne) { a.sessions-- })
}

// Quiesce is the first step of going down: from now on nothing is handed over, and it waits until the commands that may be
// handed over once only are answered by the agents that took them over a WebSocket, or those agents have no session any
// more, or ctx ends. It returns how many are still unanswered: what becomes of those nobody can tell but their agents.
func (c *Commands) Quiesce(ctx context.Context) (unanswered int) {
	f := &c.flight
	f.claims.Lock()
	f.quiet = true
	f.claims.Unlock()

	f.mu.Lock()
	if f.awaited > 0 {
		landed := make(chan struct{})
		f.landed = landed
		f.mu.Unlock()
		select {
		case <-landed:
		case <-ctx.Done():
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	return f.open
}
