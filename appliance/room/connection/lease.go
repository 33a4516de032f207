package connection

import (
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// LeaseFreshAfter is how long a renewal keeps a lease whose connection was closed before it lapsed (C.8).
const LeaseFreshAfter = 6 * time.Second

// Lease is a role held by an agent, under the connection that asked for it (H.6).
type Lease struct {
	AgentNo      int64
	AgentName    string
	Room         room.Ref
	Role         string
	ConnectionID string
	Rooms        []uuid.UUID // claims of that connection, sorted; empty when it is gone. Only Leases fills it.
}

// lease is a Lease in the registry. Under the lock of leases.
type lease struct {
	Lease
	conn    *conn // nil: its connection was closed
	renewed bool
	at      time.Duration // of the last renewal, registry time
}

// live tells whether the lease counts: its connection does, or it was renewed lately.
func (l *lease) live(now time.Duration) bool {
	if l.conn != nil {
		return l.conn.live(now)
	}
	return l.fresh(now)
}

func (l *lease) fresh(now time.Duration) bool { return l.renewed && now-l.at < LeaseFreshAfter }

// leases are all role leases: one per agent.
type leases struct {
	mu      sync.Mutex
	byAgent map[int64]*lease
	byRoom  map[int64]map[int64]*lease // by room, then agent
}

// remove runs under the lock.
func (s *leases) remove(l *lease) {
	if s.byAgent[l.AgentNo] != l {
		return
	}
	delete(s.byAgent, l.AgentNo)
	in := s.byRoom[l.Room.No]
	delete(in, l.AgentNo)
	if len(in) == 0 {
		delete(s.byRoom, l.Room.No)
	}
}

// connectionEnded frees the lease under a connection. Only one that was closed, not lapsed, leaves a renewed lease behind
// for as long as the renewal is fresh.
func (s *leases) connectionEnded(c *conn, lapsed bool, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byAgent[c.agent.no]
	if l == nil || l.conn != c {
		return
	}
	if lapsed || !l.fresh(now) {
		s.remove(l)
		return
	}
	l.conn = nil
}

// reattached binds a lease that outlived its connection to the connection that opened under the same id.
func (s *leases) reattached(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.byAgent[c.agent.no]; l != nil && l.conn == nil && l.ConnectionID == c.id {
		if l.live(c.agent.reg.now()) {
			l.conn = c
		} else {
			s.remove(l)
		}
	}
}

func (s *leases) left(agentNo, roomNo int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.byAgent[agentNo]; l != nil && l.Room.No == roomNo {
		s.remove(l)
	}
}

func (s *leases) drop(agentNo int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.byAgent[agentNo]; l != nil {
		s.remove(l)
	}
}

func (s *leases) roleGone(roomNo int64, role string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range maps.Clone(s.byRoom[roomNo]) {
		if l.Role == role {
			s.remove(l)
		}
	}
}

func (s *leases) sweep(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range maps.Clone(s.byAgent) {
		if l.conn == nil && !l.fresh(now) {
			s.remove(l)
		}
	}
}

// AssumeRole takes a role of a room for the agent, under the connection that asks (H.6). 409 when the connection is not
// open; 400 when the agent is not in the room, already holds another role, or the role is exclusive and held by another
// agent. Assuming the role it holds moves the lease to this connection. The caller checks that the role exists, and
// releases again when it was deleted meanwhile.
func (r *Registry) AssumeRole(agentNo int64, id string, roomID uuid.UUID, role string, exclusive bool) error {
	a, c, err := r.open(agentNo, id, fault.Conflict)
	if err != nil {
		return err
	}
	defer a.unlock()
	ref, in := a.member(roomID)
	if !in {
		return notMember(fault.Invalid, roomID)
	}
	now := r.now()
	s := &r.leases
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.byAgent[agentNo]
	if held != nil && held.live(now) && (held.Room.No != ref.No || held.Role != role) {
		return fault.New(fault.Invalid, "role: the agent already holds role %q of room %q; release it first", held.Role, held.Room.Name)
	}
	if exclusive {
		for no, l := range s.byRoom[ref.No] {
			if no != agentNo && l.Role == role && l.live(now) {
				return fault.New(fault.Invalid, "role: %q is exclusive and held by %s", role, l.AgentName)
			}
		}
	}
	if held != nil {
		s.remove(held)
	}
	l := &lease{Lease: Lease{AgentNo: agentNo, AgentName: a.name, Room: ref, Role: role, ConnectionID: id}, conn: c}
	s.byAgent[agentNo] = l
	if s.byRoom[ref.No] == nil {
		s.byRoom[ref.No] = map[int64]*lease{}
	}
	s.byRoom[ref.No][agentNo] = l
	return nil
}

// ReleaseRole gives the agent's role back, and returns which it was. false: it held none, which is no error (H.6).
func (r *Registry) ReleaseRole(agentNo int64) (Lease, bool) {
	s := &r.leases
	now := r.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byAgent[agentNo]
	if l == nil {
		return Lease{}, false
	}
	s.remove(l)
	return l.Lease, l.live(now)
}

// RenewLease renews the lease held under the connection, and tells whether there is one (H.6).
func (r *Registry) RenewLease(agentNo int64, id string) (held bool) {
	r.settle(agentNo)
	s := &r.leases
	now := r.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byAgent[agentNo]
	if l == nil || l.ConnectionID != id || !l.live(now) {
		return false
	}
	l.renewed, l.at = true, now
	return true
}

// settle closes what has lapsed of the agent.
func (r *Registry) settle(agentNo int64) {
	if a := r.agentOf(agentNo); a != nil {
		a.mu.Lock()
		a.lapse(r.now())
		a.unlock()
	}
}

// HeldRole returns the role the agent live-holds, in whichever room.
func (r *Registry) HeldRole(agentNo int64) (Lease, bool) {
	s := &r.leases
	now := r.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byAgent[agentNo]
	if l == nil || !l.live(now) {
		return Lease{}, false
	}
	return l.Lease, true
}

// RoleHolders returns the agents that live-hold a role of the room, with its name (D.8). nil when there are none.
func (r *Registry) RoleHolders(roomNo int64) map[int64]string {
	s := &r.leases
	now := r.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var holders map[int64]string
	for no, l := range s.byRoom[roomNo] {
		if l.live(now) {
			if holders == nil {
				holders = make(map[int64]string, len(s.byRoom[roomNo]))
			}
			holders[no] = l.Role
		}
	}
	return holders
}

// Leases returns the live leases on roles of the room, with where their holders' connections are.
func (r *Registry) Leases(roomNo int64) []Lease {
	s := &r.leases
	now := r.now()
	s.mu.Lock()
	var found []Lease
	for _, l := range s.byRoom[roomNo] {
		if l.live(now) {
			found = append(found, l.Lease)
		}
	}
	s.mu.Unlock()
	for i := range found {
		if info, ok := r.Get(found[i].ConnectionID); ok && info.AgentNo == found[i].AgentNo {
			found[i].Rooms = info.Rooms
		}
	}
	return found
}
