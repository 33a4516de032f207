package feed

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

// State is the numbering of one agent.
type State struct {
	Head     int64     // last number issued, unless the newest event is higher
	Floor    int64     // first number issued since the database was restored; 0: it never was
	Holes    int64     // numbers missing between the oldest event and the last number issued
	Oldest   int64     // 0: no event is stored
	OldestAt time.Time // when the oldest was queued
	Newest   int64     // 0: no event is stored
	Dropped  int64     // highest number that retention dropped in any room the agent is in
}

// Top is the last number issued.
func (s State) Top() int64 { return max(s.Head, s.Newest) }

// Stored counts the events that are stored.
func (s State) Stored() int64 {
	if s.Oldest == 0 {
		return 0
	}
	return s.Top() - s.Oldest + 1 - s.Holes
}

// Stored is one row of an agent's events.
type Stored struct {
	Sequence int64
	ItemNo   int64
	RoomNo   int64
	Kind     room.EventKind
	Flag     bool
	Command  *room.Command // of commands
	QueuedAt time.Time
}

// Placed is an event that an agent got.
type Placed struct {
	AgentNo, Sequence int64
	Flag              bool
}

// Member is one agent of a room.
type Member struct {
	AgentNo   int64
	Listening bool
}

// Row is what the events of one item have in common.
type Row struct {
	RoomNo, ItemNo int64
	Except         int64 // the agent that gets none; 0: nobody
	Kind           room.EventKind
}

// Flags says which receivers' events get the flag.
type Flags struct {
	All       bool
	Listening bool    // as the membership says
	Some      []int64 // agents, when neither
}

// Where is where an event happened.
type Where struct {
	Room    room.Ref
	Channel room.ChannelType
}

// ReadTx is a snapshot as the feed sees it. Sequences given as 0 mean none.
type ReadTx interface {
	room.Reader
	// FeedState reads the numbering of an agent. NotFound when there is no such agent.
	FeedState(agentNo int64) (State, error)
	// FeedNth is the number of the agent's nth oldest event, from 1.
	FeedNth(agentNo, n int64) (int64, error)
	// FeedFirstSince is the agent's oldest event that was queued at the time or later, 0 for none.
	FeedFirstSince(agentNo int64, at time.Time) (int64, error)
	// FeedLast is the agent's newest event up to the number.
	FeedLast(agentNo, through int64) (int64, error)
	// FeedLastOfRoom is FeedLast among the events of one room.
	FeedLastOfRoom(agentNo, roomNo, through int64) (int64, error)
	// FeedPage reads events above the number, oldest first.
	FeedPage(agentNo, after int64, limit int) ([]Stored, error)
	// FeedLost lists the rooms the agent is in of which a number above after was dropped: marked so, or stored up to
	// cutoff.
	FeedLost(agentNo, after, cutoff int64) ([]uuid.UUID, error)
	// FeedDroppedThrough is the room's mark, 0 for none.
	FeedDroppedThrough(agentNo, roomNo int64) (int64, error)
	// FeedMissed counts unaddressed messages of the room above base, up to through.
	FeedMissed(agentNo, roomNo, base, through int64) (int64, error)
	// FeedFind looks for the agent's event of an item.
	FeedFind(agentNo, itemNo int64) (Stored, bool, error)
	// FeedItem reads what the body of an event is made of.
	FeedItem(itemNo int64) (room.Item, error)
	// FeedWhere reads what events tell of a room.
	FeedWhere(roomNo int64) (Where, error)
	// FeedOldest lists agents above the number with the time of their oldest event, zero for those without.
	FeedOldest(after int64, limit int) ([]OldestOf, error)
	// FeedMembers lists the members of a room by number.
	FeedMembers(roomNo int64) ([]Member, error)
	// FeedItemIs tells whether the item is stored under this id.
	FeedItemIs(itemNo int64, id uuid.UUID) (bool, error)
	// FeedRoomAgents lists the members of a room.
	FeedRoomAgents(roomNo int64) ([]int64, error)
	// FeedAgents lists agents above the number.
	FeedAgents(after int64, limit int) ([]int64, error)
	// FeedRecovery says how far a recovery has come: through which agent.
	FeedRecovery() (throughAgent int64, running bool, err error)
}

// OldestOf is the oldest event of an agent.
type OldestOf struct {
	AgentNo int64
	At      time.Time
}

// Tx is a write transaction as the feed sees it.
type Tx interface {
	room.Writer
	ReadTx
	// FeedInsert queues one event for every member of the room and appends what was placed.
	FeedInsert(dst []Placed, r Row, flags Flags) ([]Placed, error)
	// FeedInsertPlaced queues one event for each of these, whose numbers are the next of their agents.
	FeedInsertPlaced(r Row, placed []Placed) error
	// FeedInsertOne queues one event for one agent, if it is a member of the room.
	FeedInsertOne(dst []Placed, r Row, agentNo int64, flags Flags, c *room.Command) ([]Placed, error)
	// FeedMark raises the marks of the rooms whose events up to the number are about to be dropped.
	FeedMark(agentNo, through int64) error
	// FeedDelete removes events up to the number and counts them.
	FeedDelete(agentNo, through int64) (int64, error)
	// FeedDeleteRoom removes the agent's events and mark of the room and counts the events.
	FeedDeleteRoom(agentNo, roomNo int64) (int64, error)
	FeedDeleteAgent(agentNo int64) error
	FeedSetNumbers(agentNo, head, floor, holes int64) error
	FeedSetRecovery(throughAgent int64) error
	FeedEndRecovery() error
}
