package timeline

import (
	"container/list"
	"sort"
	"sync"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

// Cast returns who decides about receivers in a room, as the transaction sees it. The cast is shared and must not be
// changed. It holds what the room's CastRevision covers and what never changes: of the room its ids, name, channel
// type, group and whether it is archived; of a member its agent's ids, name, owner, profile and policy. Everything else
// in it is zero.
//
// A cast is kept for as long as the revision in the database is the one it was read under. Revisions are random, so that
// of a transaction that was rolled back is never seen again.
func (t *Timeline) Cast(tx CastTx, roomNo int64) (*room.Cast, error) {
	revision, err := tx.TimelineCastRevision(roomNo)
	if err != nil {
		return nil, err
	}
	return t.castAt(tx, roomNo, revision)
}

func (t *Timeline) castAt(tx CastTx, roomNo, revision int64) (*room.Cast, error) {
	if c := t.casts.get(roomNo, revision); c != nil {
		return c, nil
	}
	c, err := tx.TimelineCast(roomNo)
	if err != nil {
		return nil, err
	}
	t.casts.put(c)
	return c, nil
}

// casts are the casts last used, bounded by their members together. It also remembers the numbers of their rooms.
type casts struct {
	mu    sync.Mutex
	room  map[int64]*list.Element // of *room.Cast
	byID  map[uuid.UUID]int64
	used  list.List // newest first
	size  int
	limit int
}

func (c *casts) init(limit int) {
	c.room, c.byID, c.limit = map[int64]*list.Element{}, map[uuid.UUID]int64{}, limit
	c.used.Init()
}

// weight counts the room itself too, so that empty rooms are bounded.
func weight(c *room.Cast) int { return 1 + len(c.Members) + len(c.Roles) }

func (c *casts) get(roomNo, revision int64) *room.Cast {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.room[roomNo]
	if e == nil {
		return nil
	}
	cast := e.Value.(*room.Cast)
	if cast.Room.CastRevision != revision {
		return nil
	}
	c.used.MoveToFront(e)
	return cast
}

func (c *casts) put(cast *room.Cast) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.room[cast.Room.No]; e != nil {
		c.drop(e)
	}
	c.room[cast.Room.No] = c.used.PushFront(cast)
	c.byID[cast.Room.ID] = cast.Room.No
	c.size += weight(cast)
	for c.size > c.limit {
		c.drop(c.used.Back())
	}
}

func (c *casts) drop(e *list.Element) {
	cast := c.used.Remove(e).(*room.Cast)
	c.size -= weight(cast)
	delete(c.room, cast.Room.No)
	delete(c.byID, cast.Room.ID)
}

// number is that of a room whose cast was used lately; rooms keep their numbers.
func (c *casts) number(id uuid.UUID) (no int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	no, known = c.byID[id]
	return no, known
}

// memberOf finds an agent in a cast, nil when it is no member.
func memberOf(c *room.Cast, agentNo int64) *room.Member {
	i := sort.Search(len(c.Members), func(i int) bool { return c.Members[i].Agent.No >= agentNo })
	if i < len(c.Members) && c.Members[i].Agent.No == agentNo {
		return &c.Members[i]
	}
	return nil
}
