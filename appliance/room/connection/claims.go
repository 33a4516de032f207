package connection

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Beat is the HTTP beat (G.2, C.6). It returns the claims, sorted, and the read cursor. A report never moves reading.
func (r *Registry) Beat(agentNo int64, id string, cursor int64, generation *int64) (rooms []uuid.UUID, read int64, err error) {
	a, c, err := r.fenced(agentNo, id, generation)
	if err != nil {
		return nil, 0, err
	}
	defer a.unlock()
	if err := c.accept(cursor, r.now()); err != nil {
		return nil, 0, err
	}
	return c.roomIDs(), c.stream.cursor.Load(), nil
}

// Subscription is the answer to a subscribe (F.4).
type Subscription struct {
	Rooms   []uuid.UUID
	Evicted string // the sibling that lost the room; "" when none did
	Warning string // prose about it; "" when none did
}

// Subscribe claims a room (F.4). A sibling that holds it keeps it, 409 naming that connection, unless takeover is set.
// On single every other claim goes, when the room is new to the connection. Refusals come in the order of F.4 and change
// nothing.
func (r *Registry) Subscribe(ctx context.Context, agentNo int64, id string, generation *int64, roomID uuid.UUID,
	takeover bool) (Subscription, error) {
	a, c, err := r.fenced(agentNo, id, generation)
	if err != nil {
		return Subscription{}, err
	}
	ref, in := a.member(roomID)
	if !in {
		a.unlock()
		return Subscription{}, r.exists.refusal(ctx, roomID)
	}
	defer a.unlock()
	if holder := a.claims[ref.No]; holder != nil && holder != c && !takeover {
		return Subscription{}, fault.New(fault.Conflict, "connection %s has claimed room %s; takeover would take it", holder.id, roomID)
	}
	loser, _ := a.claimAlone(c, ref)
	s := Subscription{Rooms: c.roomIDs()}
	if loser != nil {
		s.Evicted, s.Warning = loser.id, warning(ref, loser)
	}
	return s, nil
}

// existence tells whether a room exists at all.
type existence func(ctx context.Context, id uuid.UUID) (bool, error)

// refusal is the refusal of a room the agent is not in: 404 when there is no such room, else 403 (F.4).
func (f existence) refusal(ctx context.Context, id uuid.UUID) error {
	if f != nil {
		there, err := f(ctx, id)
		if err != nil {
			return err
		}
		if !there {
			return fault.New(fault.NotFound, "Room not found: %s", id)
		}
	}
	return notMember(fault.Forbidden, id)
}

func warning(ref room.Ref, loser *conn) string {
	return fmt.Sprintf("Room %q (%s) was taken from connection %s of this agent, which acted in it until now.",
		ref.Name, ref.ID, loser.id)
}

// claimAlone claims with takeover; on single a room new to the connection replaces every other claim (F.1 rule 6).
func (a *agent) claimAlone(c *conn, ref room.Ref) (loser *conn, session string) {
	if a.claims[ref.No] == c {
		return nil, ""
	}
	if c.stream.scope == ScopeSingle {
		a.releaseAll(c, func(int64) bool { return false })
	}
	loser, session = a.claim(c, ref)
	a.cover(ref.No, c.stream.cursor.Load())
	return loser, session
}

// Unsubscribe releases a room (F.5). Releasing one that is not held, or no room at all, succeeds.
func (r *Registry) Unsubscribe(agentNo int64, id string, generation *int64, roomID uuid.UUID) ([]uuid.UUID, error) {
	a, c, err := r.fenced(agentNo, id, generation)
	if err != nil {
		return nil, err
	}
	defer a.unlock()
	if ref, in := a.member(roomID); in {
		a.release(c, ref.No)
	}
	return c.roomIDs(), nil
}

// Placed is the answer to a placements update (F.6).
type Placed struct {
	Placements map[string]uuid.UUID
	Rooms      []uuid.UUID
	Released   []ReleasedFrom
}

// ReleasedFrom is a room that another live connection lost.
type ReleasedFrom struct {
	ConnectionID string
	RoomID       uuid.UUID
	SessionID    *string // the session it had placed there
}

// Place states every placement of the connection, room by session, and claims the rooms with takeover (F.6). Sessions
// left out are unplaced and their rooms released. Refusals come in the order of F.6 and change nothing.
func (r *Registry) Place(agentNo int64, id string, generation *int64, placements map[string]uuid.UUID) (Placed, error) {
	a, c, err := r.fenced(agentNo, id, generation)
	if err != nil {
		return Placed{}, err
	}
	defer a.unlock()
	if _, unnamed := placements[""]; unnamed {
		return Placed{}, fault.Field("placements", "a session id must not be empty")
	}
	sessions := slices.Collect(maps.Keys(placements))
	slices.SortFunc(sessions, func(x, y string) int { return compareIDs(placements[x], placements[y]) })
	refs, wanted := make([]room.Ref, len(sessions)), make(map[int64]bool, len(sessions))
	for i, session := range sessions {
		ref, in := a.member(placements[session])
		if !in {
			return Placed{}, notMember(fault.Forbidden, placements[session])
		}
		refs[i] = ref
	}
	for _, ref := range refs {
		if wanted[ref.No] {
			return Placed{}, fault.Field("placements", "room %s is named twice; at most one session may be placed in a room", ref.ID)
		}
		wanted[ref.No] = true
	}
	return a.placeAll(c, sessions, refs, wanted), nil
}

// placeAll is what follows the checks of Place.
func (a *agent) placeAll(c *conn, sessions []string, refs []room.Ref, wanted map[int64]bool) Placed {
	before := slices.Collect(maps.Keys(c.placed))
	clear(c.placed)
	clear(c.placements)
	p := Placed{Placements: make(map[string]uuid.UUID, len(sessions)), Released: []ReleasedFrom{}}
	gained := false
	for i, ref := range refs {
		held := a.claims[ref.No] == c
		loser, session := a.claim(c, ref)
		if loser != nil {
			from := ReleasedFrom{ConnectionID: loser.id, RoomID: ref.ID}
			if session != "" {
				from.SessionID = &session
			}
			p.Released = append(p.Released, from)
		}
		if !held {
			gained = true
			a.cover(ref.No, c.stream.cursor.Load())
		}
		c.place(sessions[i], ref.No)
		p.Placements[sessions[i]] = ref.ID
	}
	for _, no := range before {
		if !wanted[no] {
			a.release(c, no)
		}
	}
	if gained && c.stream.scope == ScopeSingle {
		a.releaseAll(c, func(no int64) bool { return wanted[no] })
	}
	p.Rooms = c.roomIDs()
	return p
}

// Connected is what connect_to_room did to the claims (H.4).
type Connected struct {
	Room    room.Ref
	Rooms   []uuid.UUID // claims of the connection now, sorted
	Evicted string      // the live sibling that lost the room; "" when none did
	Warning string      // prose about it; "" when none did
}

// Connect is the claim of connect_to_room (H.4): the session, or without one the connection, moves to the room and its
// previous rooms are released. 409 when the connection is not open, 400 when the agent is not in the room.
func (r *Registry) Connect(agentNo int64, id, session string, roomID uuid.UUID) (Connected, error) {
	if id == "" {
		return Connected{}, errNoConnection(session)
	}
	a, c, err := r.open(agentNo, id, fault.Conflict)
	if err != nil {
		return Connected{}, err
	}
	defer a.unlock()
	ref, in := a.member(roomID)
	if !in {
		return Connected{}, notMember(fault.Invalid, roomID)
	}
	held := a.claims[ref.No] == c
	a.cover(ref.No, 0)
	loser, _ := a.claim(c, ref)
	if session != "" {
		a.moveSession(c, session, ref.No, held)
	} else {
		all := c.stream.scope == ScopeAll
		a.releaseAll(c, func(no int64) bool {
			_, placed := c.placed[no]
			return no == ref.No || all && placed
		})
	}
	done := Connected{Room: ref, Rooms: c.roomIDs()}
	if loser != nil {
		done.Evicted, done.Warning = loser.id, warning(ref, loser)
	}
	return done, nil
}

// moveSession places the session in a room that c holds by now. A sibling session there is displaced, the session's
// previous room released; on single only the rooms of other sessions stay when the room is new to the connection.
func (a *agent) moveSession(c *conn, session string, roomNo int64, held bool) {
	previous, placed := c.placements[session]
	if placed && previous != roomNo {
		a.release(c, previous)
	}
	c.place(session, roomNo)
	if !held && c.stream.scope == ScopeSingle {
		a.releaseAll(c, func(no int64) bool {
			_, placed := c.placed[no]
			return placed
		})
	}
}

func errNoConnection(session string) error {
	if session != "" {
		return fault.New(fault.Invalid, "a session needs a connection: send the connection id header beside the session's")
	}
	return fault.New(fault.Invalid, "not connected: the request names no connection; send the header X-Switch-Connection-Id with "+
		"the id of an open connection, and call connect_to_room with it first")
}

// Locate returns the room an operation acts in (H.2): the session's, or the one room the connection claims. 409 when the
// connection is not open, 400 when that leaves no room or several.
func (r *Registry) Locate(agentNo int64, id, session string) (room.Ref, error) {
	if id == "" {
		return room.Ref{}, errNoConnection(session)
	}
	a, c, err := r.open(agentNo, id, fault.Conflict)
	if err != nil {
		return room.Ref{}, err
	}
	defer a.unlock()
	if session != "" {
		no, placed := c.placements[session]
		if !placed {
			return room.Ref{}, fault.New(fault.Invalid, "session %q is not connected: call connect_to_room first", session)
		}
		return c.claimed[no], nil
	}
	switch len(c.claimed) {
	case 0:
		return room.Ref{}, fault.New(fault.Invalid, "not connected: call connect_to_room first")
	case 1:
		for _, ref := range c.claimed {
			return ref, nil
		}
	}
	return room.Ref{}, fault.New(fault.Invalid, "connection %s is in %d rooms: call connect_to_room for one, or name a session",
		id, len(c.claimed))
}

// Require fails with 409 unless the agent has the connection open (H.1).
func (r *Registry) Require(agentNo int64, id string) error {
	a, _, err := r.open(agentNo, id, fault.Conflict)
	if err == nil {
		a.unlock()
	}
	return err
}

// CloseConnection ends a connection at its client's wish (F.7): code closed. false: there was none.
func (r *Registry) CloseConnection(agentNo int64, id, reason string) bool {
	a, c, err := r.open(agentNo, id, fault.NotFound)
	if err != nil {
		return false
	}
	defer a.unlock()
	a.close(c, End{Code: room.CodeClosed, Reason: reason})
	return true
}

// Evict is CloseConnection for the operator, whosever the connection is.
func (r *Registry) Evict(id, reason string) bool {
	c := r.conn(id)
	return c != nil && r.CloseConnection(c.agent.no, id, reason)
}
