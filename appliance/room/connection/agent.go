package connection

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

// agent is all that is known of one agent's connections. It stays when the last one ends, for the baselines (D.10),
// until the agent is deleted.
type agent struct {
	reg *Registry
	no  int64

	mu     sync.Mutex // the claim lock (F.1 rule 5)
	id     uuid.UUID
	name   string
	closed bool // deleted
	conns  map[string]*conn
	claims map[int64]*conn // the one holder of a room

	members map[int64]room.Ref // nil: not loaded; loaded while there are connections
	byID    map[uuid.UUID]int64
	loads   int              // members being read
	changes map[int64]change // hooks that ran during a load, by room

	baselines map[int64]baseline
	runtime   map[int64]runtimeState

	set   *members // of the last view; nil when members changed
	view  atomic.Pointer[view]
	tell  bool     // wake every stream at unlock
	after []func() // called at unlock

	ring ring
}

// change is the last thing that happened to a membership during a load.
type change struct {
	ref    room.Ref
	joined bool
}

func newAgent(r *Registry, no int64) *agent {
	return &agent{reg: r, no: no, conns: map[string]*conn{}, claims: map[int64]*conn{}, baselines: map[int64]baseline{}}
}

// unlock gives the claim lock back and then calls what has to be told.
func (a *agent) unlock() {
	if a.tell {
		a.tell = false
		for _, c := range a.conns {
			if c.attached && c.stream.wake != nil {
				a.after = append(a.after, c.stream.wake)
			}
		}
	}
	after := a.after
	a.after = nil
	a.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// changed throws the view away: claims have changed. All streams of the agent look again.
func (a *agent) changed() {
	a.view.Store(nil)
	a.tell = true
}

// membersChanged is changed for memberships.
func (a *agent) membersChanged() {
	a.set = nil
	a.changed()
}

// members are the rooms an agent is in; never changed once made.
type members map[int64]struct{}

// view is what decides about coverage, as of one moment; never changed once made.
type view struct {
	members *members
	claims  map[int64]*conn
}

func (v *view) covers(c *conn, scope Scope, roomNo int64) bool {
	if _, in := (*v.members)[roomNo]; !in {
		return false
	}
	holder := v.claims[roomNo]
	return holder == c || holder == nil && scope == ScopeAll
}

// current returns the view of now. It takes the claim lock only after a change.
func (a *agent) current() *view {
	if v := a.view.Load(); v != nil {
		return v
	}
	a.mu.Lock()
	defer a.unlock()
	return a.look()
}

// look is current under the claim lock.
func (a *agent) look() *view {
	if v := a.view.Load(); v != nil {
		return v
	}
	if a.set == nil {
		set := make(members, len(a.members))
		for no := range a.members {
			set[no] = struct{}{}
		}
		a.set = &set
	}
	v := &view{a.set, maps.Clone(a.claims)}
	a.view.Store(v)
	return v
}

// load reads the agent's rooms unless they are known. The claim lock is held before and after, not meanwhile: hooks that
// run during the read are replayed over what it found, since the snapshot may be older or newer than they are.
func (a *agent) load(ctx context.Context) error {
	refs, err := a.ask(ctx)
	if err == nil && a.members == nil && !a.closed {
		a.members, a.byID = make(map[int64]room.Ref, len(refs)), make(map[uuid.UUID]int64, len(refs))
		for _, ref := range refs {
			a.join(ref)
		}
		for no, c := range a.changes {
			if c.joined {
				a.join(c.ref)
			} else {
				a.leave(no)
			}
		}
		a.membersChanged()
	}
	if a.loads == 0 {
		a.changes = nil
	}
	return err
}

// recheck asks the database whether the agent is in a room after all, and returns the view of then. A hook that ran during
// the read knows better.
func (a *agent) recheck(ctx context.Context, roomNo int64) (*view, error) {
	a.mu.Lock()
	defer func() {
		a.forget()
		a.unlock()
	}()
	refs, err := a.ask(ctx)
	_, told := a.changes[roomNo]
	if a.loads == 0 {
		a.changes = nil
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(refs, func(r room.Ref) bool { return r.No == roomNo })
	if i >= 0 && !told && a.members != nil {
		a.join(refs[i])
		a.membersChanged()
	}
	return a.look(), nil
}

// ask gives the claim lock back while the database is asked.
func (a *agent) ask(ctx context.Context) ([]room.Ref, error) {
	a.loads++
	a.unlock()
	defer func() {
		a.mu.Lock()
		a.loads--
	}()
	return a.reg.rooms.AgentRooms(ctx, a.no)
}

// forget drops the members when no connection needs them.
func (a *agent) forget() {
	if len(a.conns) == 0 && a.loads == 0 {
		a.members, a.byID, a.set = nil, nil, nil
		a.view.Store(nil)
	}
}

func (a *agent) join(ref room.Ref) {
	a.members[ref.No], a.byID[ref.ID] = ref, ref.No
}

func (a *agent) leave(roomNo int64) {
	if ref, in := a.members[roomNo]; in {
		delete(a.members, roomNo)
		delete(a.byID, ref.ID)
	}
}

// member returns the room of the id when the agent is in it.
func (a *agent) member(id uuid.UUID) (room.Ref, bool) {
	no, in := a.byID[id]
	return a.members[no], in
}

// conn is one live connection (C.1). It lives on across the streams that attach to it.
type conn struct {
	agent    *agent
	id       string
	lastBeat atomic.Int64 // registry time
	ended    atomic.Bool

	// Under the claim lock.
	stream     *Stream // the last to attach
	attached   bool
	claimed    map[int64]room.Ref
	placements map[string]int64 // room by session; each within claimed
	placed     map[int64]string // session by room
	pending    []Released       // losses not yet reported (D.3)
	processed  int64
	beats      int64
	beatAt     time.Time
	openedAt   time.Time
}

// live tells whether the connection counts at registry time now. It takes no lock.
func (c *conn) live(now time.Duration) bool {
	return !c.ended.Load() && now-time.Duration(c.lastBeat.Load()) < LapseAfter
}

func (c *conn) beat(now time.Duration) {
	c.lastBeat.Store(int64(now))
	c.beatAt = c.agent.reg.clock.Now()
}

// roomIDs are the claims, sorted.
func (c *conn) roomIDs() []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(c.claimed))
	for _, ref := range c.claimed {
		ids = append(ids, ref.ID)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func compareIDs(x, y uuid.UUID) int { return slices.Compare(x[:], y[:]) }

// claim gives the room to c, and returns the sibling it was taken from and the session that sibling had placed there.
func (a *agent) claim(c *conn, ref room.Ref) (loser *conn, session string) {
	holder := a.claims[ref.No]
	if holder == c {
		return nil, ""
	}
	if holder != nil {
		session = a.release(holder, ref.No)
		holder.lose(ref.ID, session)
	}
	a.changed()
	a.claims[ref.No] = c
	c.claimed[ref.No] = ref
	c.stream.held.Store(false)
	return holder, session
}

// release takes the room from c, and with it the placement there.
func (a *agent) release(c *conn, roomNo int64) (session string) {
	if a.claims[roomNo] != c {
		return ""
	}
	a.changed()
	delete(a.claims, roomNo)
	delete(c.claimed, roomNo)
	session = c.placed[roomNo]
	c.unplace(roomNo)
	return session
}

// releaseAll releases the claims that keep does not want.
func (a *agent) releaseAll(c *conn, keep func(roomNo int64) bool) {
	for no := range maps.Clone(c.claimed) {
		if !keep(no) {
			a.release(c, no)
		}
	}
}

// place puts a session that is in no other room into one that c holds; a session that was in this one is displaced.
func (c *conn) place(session string, roomNo int64) {
	c.unplace(roomNo)
	c.placements[session], c.placed[roomNo] = roomNo, session
}

func (c *conn) unplace(roomNo int64) {
	if session, ok := c.placed[roomNo]; ok {
		delete(c.placed, roomNo)
		delete(c.placements, session)
	}
}

// lose notes that another connection took the room. Two losses of one room merge; the one that names a session wins.
func (c *conn) lose(roomID uuid.UUID, session string) {
	r := Released{RoomID: roomID}
	if session != "" {
		r.SessionID = &session
	}
	for i := range c.pending {
		if c.pending[i].RoomID == roomID {
			if r.SessionID != nil {
				c.pending[i] = r
			}
			return
		}
	}
	c.pending = append(c.pending, r)
}

// lapse closes every connection of the agent that has not beaten in time (C.3).
func (a *agent) lapse(now time.Duration) {
	for _, c := range a.conns {
		if !c.live(now) {
			a.close(c, End{Code: room.CodeHeartbeatLapsed, Reason: reasonLapsed})
		}
	}
}

// close ends the connection (C.7): what it held is free, and its stream has e to say last.
func (a *agent) close(c *conn, e End) {
	if o := a.reg.observer; o != nil {
		info := c.info()
		a.after = append(a.after, func() { o.Ended(info, e) })
	}
	for no := range maps.Clone(c.claimed) {
		a.release(c, no)
	}
	a.reg.leases.connectionEnded(c, e.Code != room.CodeClosed, a.reg.now())
	c.ended.Store(true)
	delete(a.conns, c.id)
	a.reg.unindex(c)
	c.stream.finish(e)
	if c.attached && c.stream.wake != nil {
		a.after = append(a.after, c.stream.wake)
	}
	c.attached = false
	a.forget()
}
