package connection

import (
	"context"
	"sync/atomic"
	"time"

	"signalbox/appliance/room"
)

// Stream is the attach of one generation. Its methods are safe from any goroutine; Pass and the cursor belong to the one
// that writes the stream. Whoever attached must call Detach when the socket or the response is gone.
type Stream struct {
	conn       *conn
	generation int64
	transport  Transport
	scope      Scope
	filter     Filter
	spawn      bool
	declared   Declaration
	protocol   int
	wake       func()
	attachedAt time.Time

	cursor atomic.Int64
	opened atomic.Int64 // the cursor reading started from
	held   atomic.Bool
	end    atomic.Pointer[End]

	seen *view // of the last list of rooms written on this stream; under the claim lock
}

// Generation is the one issued to this attach.
func (s *Stream) Generation() int64 { return s.generation }

// Scope, Filter, Protocol and Declared are those of this attach.
func (s *Stream) Scope() Scope { return s.scope }

// Filter is which events are delivered.
func (s *Stream) Filter() Filter { return s.filter }

// Protocol is the revision in force.
func (s *Stream) Protocol() int { return s.protocol }

// Declared is what the client said of itself, in normal form.
func (s *Stream) Declared() Declaration { return s.declared }

// ConnectionID is the client's id of the connection.
func (s *Stream) ConnectionID() string { return s.conn.id }

// Info returns the connection as it stands.
func (s *Stream) Info() Info {
	a := s.conn.agent
	a.mu.Lock()
	defer a.unlock()
	return s.info()
}

// State is Info for connection_state: from here on subscription_changed is measured against the rooms it returns (D.3).
func (s *Stream) State() Info {
	a := s.conn.agent
	a.mu.Lock()
	defer a.unlock()
	s.seen = a.look()
	return s.info()
}

// info is the connection's, with what belongs to this stream even when another has attached since.
func (s *Stream) info() Info {
	i := s.conn.info()
	i.Generation, i.Transport, i.Scope, i.Filter, i.SpawnCapable = s.generation, s.transport, s.scope, s.filter, s.spawn
	i.Declared, i.Protocol, i.Cursor, i.Held, i.AttachedAt = s.declared, s.protocol, s.cursor.Load(), s.held.Load(), s.attachedAt
	return i
}

// Held tells whether the stream reads nothing for now: single, and without a claim ever since it attached (E.4). The
// claim that ends it wakes the stream.
func (s *Stream) Held() bool { return s.held.Load() }

// Cursor is the read cursor: the last sequence written or passed over.
func (s *Stream) Cursor() int64 { return s.cursor.Load() }

// SetCursor moves the read cursor forward; a lower one changes nothing (C.6).
func (s *Stream) SetCursor(c int64) {
	for old := s.cursor.Load(); c > old; old = s.cursor.Load() {
		if s.cursor.CompareAndSwap(old, c) {
			return
		}
	}
}

// ResetCursor sets the read cursor to where reading starts: at the opening, and at a reset gap, where it may go back.
func (s *Stream) ResetCursor(c int64) {
	s.cursor.Store(c)
	s.opened.Store(c)
}

// finish gives the stream its end; the first wins.
func (s *Stream) finish(e End) { s.end.CompareAndSwap(nil, &e) }

// Pass begins one pass of the stream: end-of-life checks, then the control frames due (D.4). What it returns counts as
// written. After an End every Pass returns it.
func (s *Stream) Pass() Pass {
	c, a := s.conn, s.conn.agent
	a.mu.Lock()
	defer a.unlock()
	now := a.reg.now()
	a.lapse(now)
	if e := s.end.Load(); e != nil {
		end := *e
		return Pass{End: &end}
	}
	p := Pass{Deadline: a.reg.deadline(c, now)}
	if !c.attached {
		return p
	}
	if len(c.pending) > 0 {
		if s.declared.atLeast(revisionReleased) {
			p.Released = c.pending
		}
		c.pending = nil
	}
	if v := a.look(); v != s.seen {
		if s.differs(s.seen, v) {
			p.Changed, p.Rooms = true, c.roomIDs()
		}
		s.seen = v
	}
	return p
}

// standingPause is how long a stream waits while registry time stands still.
const standingPause = 100 * time.Millisecond

// deadline is how long the connection has left.
func (r *Registry) deadline(c *conn, now time.Duration) time.Duration {
	left := LapseAfter - (now - time.Duration(c.lastBeat.Load()))
	if left < standingPause && r.standing() {
		return standingPause
	}
	return max(left, time.Millisecond)
}

// Deadline is how long the connection lives on without another beat; Pass is due then at the latest.
func (s *Stream) Deadline() time.Duration {
	return s.conn.agent.reg.deadline(s.conn, s.conn.agent.reg.now())
}

// differs tells whether the claims of the stream's connection differ between two views; on all, whether what it covers
// does (D.3).
func (s *Stream) differs(x, y *view) bool {
	c := s.conn
	for no, holder := range x.claims {
		if (holder == c) != (y.claims[no] == c) {
			return true
		}
	}
	for no, holder := range y.claims {
		if (holder == c) != (x.claims[no] == c) {
			return true
		}
	}
	if s.scope != ScopeAll {
		return false
	}
	moved := func(no int64) bool { return x.covers(c, ScopeAll, no) != y.covers(c, ScopeAll, no) }
	if x.members == y.members {
		return anyKey(x.claims, moved) || anyKey(y.claims, moved)
	}
	return anyKey(*x.members, moved) || anyKey(*y.members, moved)
}

func anyKey[V any](m map[int64]V, f func(int64) bool) bool {
	for k := range m {
		if f(k) {
			return true
		}
	}
	return false
}

// Covers tells whether an event of the room may be written to the stream right now (F.2). It neither waits nor
// allocates, except once after claims or memberships changed. An ended stream covers nothing.
func (s *Stream) Covers(roomNo int64) bool {
	return s.end.Load() == nil && s.conn.agent.current().covers(s.conn, s.scope, roomNo)
}

// CoversQueued is Covers for an event that was read from the database. That can be ahead of the hooks: what a commit
// changed is told only after it. So the database is asked about a room that the agent is not known to be in, and only then.
func (s *Stream) CoversQueued(ctx context.Context, roomNo int64) (bool, error) {
	if s.end.Load() != nil {
		return false, nil
	}
	a := s.conn.agent
	v := a.current()
	if _, in := (*v.members)[roomNo]; !in {
		var err error
		if v, err = a.recheck(ctx, roomNo); err != nil {
			return false, err
		}
	}
	return v.covers(s.conn, s.scope, roomNo), nil
}

// Pong is the beat of this stream's own generation (C.5, C.6). A *room.Refused says with which code the stream ends;
// where Pass has an End by then, that one came first.
func (s *Stream) Pong(cursor int64) error {
	c, a := s.conn, s.conn.agent
	a.mu.Lock()
	defer a.unlock()
	now := a.reg.now()
	a.lapse(now)
	switch holder := a.conns[c.id]; {
	case holder == nil:
		return room.Refuse(room.CodeConnectionError, "connection "+c.id+" is not open")
	case holder.stream != s:
		return takenOver()
	}
	return c.accept(cursor, now)
}

// accept is the end of the beat procedure (C.6, 3 and 4).
func (c *conn) accept(reported int64, now time.Duration) error {
	if !c.attached {
		return room.Refuse(room.CodeNoStream, "no stream is attached to connection "+c.id)
	}
	c.beat(now)
	c.beats++
	if reported >= 0 && reported <= c.stream.cursor.Load() {
		c.processed = reported
	}
	return nil
}

// Detach says that the stream's socket is gone. The connection lives on until it lapses. A stream that another has
// displaced detaches nothing (C.4).
func (s *Stream) Detach() {
	a := s.conn.agent
	a.mu.Lock()
	defer a.unlock()
	if s.conn.stream == s {
		s.conn.attached = false
	}
}
