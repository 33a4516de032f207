package connection

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/room"
)

// The timers of connections (C.8) and the cap of K.
const (
	BeatEvery  = 2 * time.Second // ping interval
	LapseAfter = 6 * time.Second // without a beat
	SweepEvery = 2 * time.Second // how often Sweep is due
	StallAfter = 3 * time.Second // a sweep later than this proves that the server was stalled
	MaxLive    = 32              // live connections of one agent
)

// Transport is what carries a stream.
type Transport string

// The transports.
const (
	WebSocket Transport = "websocket"
	SSE       Transport = "sse"
)

// Scope says which rooms a connection covers (F.2).
type Scope string

// The scopes.
const (
	ScopeSingle Scope = "single"
	ScopeAll    Scope = "all"
)

// Filter says which events of the covered rooms are delivered.
type Filter string

// The filters.
const (
	FilterAll       Filter = "all"
	FilterAddressed Filter = "addressed"
)

// Rooms is what the registry asks of the database.
type Rooms interface {
	// AgentRooms returns the rooms the agent is in, from one snapshot. Nothing depends on what it says about an agent that
	// was deleted: AgentClosed ends what a late read let in.
	AgentRooms(ctx context.Context, agentNo int64) ([]room.Ref, error)
}

// Observer is told of what happens to connections. It is called outside of the registry's locks, from many goroutines,
// and must be brief.
type Observer interface {
	// Attached follows every attach; again tells a reattach from a new connection.
	Attached(i Info, again bool)
	// Ended follows the end of a connection, and the end of a stream that another attach displaced.
	Ended(i Info, e End)
	// Stalled follows a sweep that found the server to have stood still.
	Stalled(d time.Duration)
}

// Options of a Registry.
type Options struct {
	Clock    clock.Clock // nil: the system's
	Observer Observer    // nil: nobody
	Version  string      // the server's version, told in refusals of the protocol range
	// RoomExists tells a room that does not exist from one the agent is not in, for subscribe (F.4). It is asked only
	// after a refusal is certain, outside of locks. nil: every room exists.
	RoomExists func(ctx context.Context, id uuid.UUID) (bool, error)
}

// Request asks to open a stream (B.1).
type Request struct {
	AgentNo            int64
	AgentID            uuid.UUID
	AgentName          string
	ConnectionID       string
	Transport          Transport
	Scope              Scope
	Filter             Filter
	StartHead          bool  // start at the head; After is then 0
	After              int64 // the cursor until the stream sets a better one
	SpawnCapable       bool
	Rooms              []uuid.UUID // claimed in this order, with takeover
	ExpectedGeneration *int64
	Declared           Declaration
}

// Info is a connection as it stands. Its maps and slices belong to the caller.
type Info struct {
	ConnectionID string
	AgentNo      int64
	AgentID      uuid.UUID
	AgentName    string
	Generation   int64
	Transport    Transport
	Attached     bool
	Held         bool // no room claimed since a single stream attached without one (E.4)
	Scope        Scope
	Filter       Filter
	SpawnCapable bool
	Rooms        []uuid.UUID          // claims, sorted
	Placements   map[string]uuid.UUID // room by session
	Role         *Lease               // held under this connection
	Cursor       int64                // read cursor: written or passed over
	Processed    int64                // last report that was not beyond the cursor
	Beats        int64                // accepted pongs and beats
	LastBeat     time.Time
	OpenedAt     time.Time // first attach
	AttachedAt   time.Time // last attach
	Declared     Declaration
	Protocol     int // revision in force (D.2)
}

// End is why a stream is over: the data of its evicted frame (C.7). After it the transport closes with 1000.
type End struct {
	Code   string
	Reason string
	RoomID *uuid.UUID
}

// The reasons that old clients read instead of codes start like these (D.3).
const (
	reasonLapsed    = "heartbeat lapsed: no beat for 6 seconds"
	reasonTakenOver = "another stream attached to this connection"
)

// Released is a room another connection of the agent took (D.3).
type Released struct {
	RoomID    uuid.UUID
	SessionID *string // the session this connection had placed there
}

// Pass is what a stream has to do before it reads on, in the order of D.4. When End is set nothing else is.
type Pass struct {
	End      *End
	Released []Released    // room_released frames; empty for clients before revision 6
	Changed  bool          // a subscription_changed is due
	Rooms    []uuid.UUID   // for it: claims, sorted
	Deadline time.Duration // call Pass again after this long at the latest: the connection lapses then, unless it beats
}
