package connection

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Attach opens a stream (B.2, checks 7 to 12). A refusal changes nothing: 409 for the protocol range (*Incompatible), for
// an id of another agent, for a stale expected generation (code taken_over) and for the cap, 403 naming the first room
// that cannot be served. wake is called whenever Pass has something new to tell. It is called outside of locks, from any
// goroutine, also before Attach returns and after the end, and must not block.
func (r *Registry) Attach(ctx context.Context, q Request, wake func()) (*Stream, error) {
	switch {
	case q.ConnectionID == "":
		return nil, fault.Field("connection_id", "is required")
	case q.Scope != ScopeSingle && q.Scope != ScopeAll:
		return nil, fault.Field("scope", "must be single or all, got %q", q.Scope)
	case q.Filter != FilterAll && q.Filter != FilterAddressed:
		return nil, fault.Field("filter", "must be all or addressed, got %q", q.Filter)
	}
	q.Declared = q.Declared.Normal()
	protocol, err := Negotiate(q.Declared, r.version)
	if err != nil {
		return nil, err
	}
	a, err := r.enter(q.AgentNo)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer func() {
		a.forget()
		a.unlock()
	}()
	for {
		refs, err := a.admit(q)
		if err != nil {
			return nil, err
		}
		if a.members == nil {
			if err := a.load(ctx); err != nil {
				return nil, err
			}
			continue // what was checked before the read may have changed during it
		}
		if s := a.attach(q, refs, protocol, wake); s != nil {
			return s, nil
		}
	}
}

// admit runs checks 8 to 11 and changes nothing but what had lapsed. Check 11 waits until the members are loaded.
func (a *agent) admit(q Request) ([]room.Ref, error) {
	r := a.reg
	for {
		a.lapse(r.now())
		if a.closed {
			return nil, errDeleted()
		}
		other := r.conn(q.ConnectionID)
		if other == nil || other.agent == a {
			break
		}
		if other.live(r.now()) {
			return nil, fault.New(fault.Conflict, "connection %s is not open", q.ConnectionID)
		}
		// A lapsed one of another agent is closed under that agent's lock, never under both.
		a.unlock()
		other.agent.mu.Lock()
		other.agent.lapse(r.now())
		other.agent.unlock()
		a.mu.Lock()
	}
	switch c := a.conns[q.ConnectionID]; {
	case c != nil && q.ExpectedGeneration != nil && *q.ExpectedGeneration != c.stream.generation:
		return nil, takenOver()
	case c == nil && len(a.conns) >= MaxLive:
		return nil, fault.New(fault.Conflict,
			"the agent already holds %d connections, the most it may; close one, or reopen one of them", MaxLive)
	}
	if a.members == nil {
		return nil, nil
	}
	refs := make([]room.Ref, 0, len(q.Rooms))
	for _, id := range q.Rooms {
		ref, in := a.member(id)
		if !in {
			return nil, notMember(fault.Forbidden, id)
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// notMember names the room: a client drops a declared room only when it reads its id (B.3).
func notMember(code fault.Code, id uuid.UUID) error {
	return fault.New(code, "Room not found: %s (or the agent is not a member of it)", id)
}

// attach is check 12. It returns nil when the id was taken by another agent since admit.
func (a *agent) attach(q Request, refs []room.Ref, protocol int, wake func()) *Stream {
	r := a.reg
	at := r.clock.Now()
	c := a.conns[q.ConnectionID]
	again := c != nil
	if !again {
		c = &conn{agent: a, id: q.ConnectionID, claimed: map[int64]room.Ref{}, placements: map[string]int64{},
			placed: map[int64]string{}, openedAt: at}
		c.lastBeat.Store(int64(r.now()))
		if !r.index(c) {
			return nil
		}
		a.conns[c.id] = c
	}
	a.id, a.name = q.AgentID, q.AgentName
	s := &Stream{conn: c, generation: r.generation.Add(1), transport: q.Transport, scope: q.Scope, filter: q.Filter,
		spawn: q.SpawnCapable, declared: q.Declared, protocol: protocol, wake: wake, attachedAt: at}
	if !q.StartHead {
		s.cursor.Store(q.After)
	}
	s.opened.Store(s.cursor.Load())
	if again {
		a.displace(c)
	}
	c.stream, c.attached = s, true
	c.beat(r.now())
	r.leases.reattached(c)
	for i, ref := range refs {
		if slices.Contains(refs[:i], ref) {
			continue
		}
		if q.Scope == ScopeSingle && a.claims[ref.No] != c {
			a.releaseAll(c, func(no int64) bool { return false })
		}
		a.claim(c, ref)
	}
	s.held.Store(q.Scope == ScopeSingle && len(c.claimed) == 0)
	s.seen = a.look()
	if o := r.observer; o != nil {
		info := c.info()
		a.after = append(a.after, func() { o.Attached(info, again) })
	}
	return s
}

// displace ends the stream that the connection had. The connection lives on under the next (B.5).
func (a *agent) displace(c *conn) {
	e := End{Code: room.CodeTakenOver, Reason: reasonTakenOver}
	if !c.attached {
		c.stream.finish(e)
		return
	}
	if o := a.reg.observer; o != nil {
		info := c.info()
		a.after = append(a.after, func() { o.Ended(info, e) })
	}
	c.stream.finish(e)
	if c.stream.wake != nil {
		a.after = append(a.after, c.stream.wake)
	}
}
