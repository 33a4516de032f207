package connection

import (
	"cmp"
	"slices"

	"github.com/google/uuid"
)

// info is the connection as it stands. Under the claim lock.
func (c *conn) info() Info {
	s := c.stream
	i := Info{ConnectionID: c.id, AgentNo: c.agent.no, AgentID: c.agent.id, AgentName: c.agent.name, Generation: s.generation,
		Transport: s.transport, Attached: c.attached, Held: s.held.Load(), Scope: s.scope, Filter: s.filter, SpawnCapable: s.spawn,
		Rooms: c.roomIDs(), Placements: make(map[string]uuid.UUID, len(c.placements)), Cursor: s.cursor.Load(), Processed: c.processed,
		Beats: c.beats, LastBeat: c.beatAt, OpenedAt: c.openedAt, AttachedAt: s.attachedAt, Declared: s.declared, Protocol: s.protocol}
	for session, no := range c.placements {
		i.Placements[session] = c.claimed[no].ID
	}
	book := &c.agent.reg.leases
	book.mu.Lock()
	defer book.mu.Unlock()
	if l := book.byAgent[c.agent.no]; l != nil && l.conn == c {
		held := l.Lease
		i.Role = &held
	}
	return i
}

// List returns the agent's live connections, oldest first.
func (r *Registry) List(agentNo int64) []Info {
	a := r.agentOf(agentNo)
	if a == nil {
		return nil
	}
	return a.list()
}

func (a *agent) list() []Info {
	a.mu.Lock()
	defer a.unlock()
	a.lapse(a.reg.now())
	infos := make([]Info, 0, len(a.conns))
	for _, c := range a.conns {
		infos = append(infos, c.info())
	}
	slices.SortFunc(infos, older)
	return infos
}

func older(x, y Info) int {
	return cmp.Or(x.OpenedAt.Compare(y.OpenedAt), cmp.Compare(x.ConnectionID, y.ConnectionID))
}

// All returns every live connection, by agent, oldest first.
func (r *Registry) All() []Info {
	r.mu.RLock()
	agents := make([]*agent, 0, len(r.agents))
	for _, a := range r.agents {
		agents = append(agents, a)
	}
	r.mu.RUnlock()
	slices.SortFunc(agents, func(x, y *agent) int { return cmp.Compare(x.no, y.no) })
	var infos []Info
	for _, a := range agents {
		infos = append(infos, a.list()...)
	}
	return infos
}

// Get returns the live connection of the id, of whichever agent.
func (r *Registry) Get(id string) (Info, bool) {
	c := r.conn(id)
	if c == nil {
		return Info{}, false
	}
	a := c.agent
	a.mu.Lock()
	defer a.unlock()
	a.lapse(r.now())
	if a.conns[id] == nil {
		return Info{}, false
	}
	return a.conns[id].info(), true
}

// Counts are the live connections of all agents, by what they are, or were last, read over.
type Counts struct {
	Attached map[Transport]int
	Detached map[Transport]int
	Agents   int // that have one
}

// Counts counts without closing anything; what has lapsed does not count.
func (r *Registry) Counts() Counts {
	now := r.now()
	r.mu.RLock()
	conns := make([]*conn, 0, len(r.conns))
	for _, c := range r.conns {
		conns = append(conns, c)
	}
	r.mu.RUnlock()
	n := Counts{Attached: map[Transport]int{}, Detached: map[Transport]int{}}
	agents := map[*agent]struct{}{}
	for _, c := range conns {
		if !c.live(now) {
			continue
		}
		agents[c.agent] = struct{}{}
		c.agent.mu.Lock()
		if c.attached {
			n.Attached[c.stream.transport]++
		} else {
			n.Detached[c.stream.transport]++
		}
		c.agent.unlock()
	}
	n.Agents = len(agents)
	return n
}

// Covers tells which live connections of the agent would be written an event of the room, and which holds it claimed; ""
// when none does.
func (r *Registry) Covers(agentNo, roomNo int64) (covering []string, holder string) {
	a := r.agentOf(agentNo)
	if a == nil {
		return nil, ""
	}
	a.mu.Lock()
	defer a.unlock()
	a.lapse(r.now())
	v := a.look()
	for id, c := range a.conns {
		if v.covers(c, c.stream.scope, roomNo) {
			covering = append(covering, id)
		}
	}
	slices.Sort(covering)
	if c := a.claims[roomNo]; c != nil {
		holder = c.id
	}
	return covering, holder
}
