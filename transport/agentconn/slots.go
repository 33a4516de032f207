package agentconn

import (
	"cmp"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// slots is the table of live WebSocket sessions, keyed by agent and worker slot (agent protocol B.5). C is the
// connection. Safe for concurrent use.
type slots[C comparable] struct {
	perAgent int               // most slots of one agent; 0: no cap
	replace  func(old, next C) // when not nil, runs under the lock when next takes the slot of old

	mu     sync.Mutex
	agents map[uuid.UUID]map[string]slotEntry[C]
	serial uint64
	total  int
}

type slotEntry[C comparable] struct {
	conn   C
	serial uint64 // grows with each registration: the newest session has the highest
}

func newSlots[C comparable](perAgent int) *slots[C] {
	return &slots[C]{perAgent: perAgent, agents: map[uuid.UUID]map[string]slotEntry[C]{}}
}

// register puts the connection into its slot and returns the one it replaces, if any. ok is false when the agent has
// all its slots taken by others; replacing never counts against the cap.
func (s *slots[C]) register(agent uuid.UUID, worker string, conn C) (replaced C, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	workers := s.agents[agent]
	old, occupied := workers[worker]
	if !occupied && s.perAgent > 0 && len(workers) >= s.perAgent {
		return replaced, false
	}
	if workers == nil {
		workers = map[string]slotEntry[C]{}
		s.agents[agent] = workers
	}
	if !occupied {
		s.total++
	} else if s.replace != nil {
		s.replace(old.conn, conn)
	}
	s.serial++
	workers[worker] = slotEntry[C]{conn: conn, serial: s.serial}
	return old.conn, true
}

// unregister takes the connection out of its slot. mine is false when a newer connection holds the slot by now: the
// entry stays. last tells that the agent has no session any more.
func (s *slots[C]) unregister(agent uuid.UUID, worker string, conn C) (mine, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	workers := s.agents[agent]
	entry, ok := workers[worker]
	if !ok || entry.conn != conn {
		return false, false
	}
	delete(workers, worker)
	s.total--
	if len(workers) == 0 {
		delete(s.agents, agent)
		return true, true
	}
	return true, false
}

// newestFirst returns the agent's connections, the most recently registered one first.
func (s *slots[C]) newestFirst(agent uuid.UUID) []C {
	s.mu.Lock()
	entries := make([]slotEntry[C], 0, len(s.agents[agent]))
	for _, e := range s.agents[agent] {
		entries = append(entries, e)
	}
	s.mu.Unlock()
	slices.SortFunc(entries, func(a, b slotEntry[C]) int { return cmp.Compare(b.serial, a.serial) })
	conns := make([]C, len(entries))
	for i, e := range entries {
		conns[i] = e.conn
	}
	return conns
}

// count returns the number of slots taken, over all agents.
func (s *slots[C]) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}
