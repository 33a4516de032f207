package timeline

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/wake"
)

// Defaults of Options.
const (
	DefaultMaxBody     = 256 << 10
	DefaultCastMembers = 50_000
)

// MaxReadBytes ends a read of items early: hundreds of the largest bodies must not be in memory for one request.
const MaxReadBytes = 4 << 20

// Presence is what the live connections know. Its methods are not called inside a transaction.
type Presence interface {
	// RoleHolders are the agents that live-hold a role in the room, with its name.
	RoleHolders(roomNo int64) map[int64]string
	// Status is that of an agent of the model in the room (H.7).
	Status(agentNo int64, m room.ConnectionModel, roomNo int64) room.Status
	// ControlCapabilities are the commands that the agent's session in the room last said it obeys.
	ControlCapabilities(agentNo, roomNo int64) map[string]bool
}

// Directory does what some typed commands ask for, with the rights of the person who typed them. Each method is one
// transaction of its own, and doing the same again changes nothing.
type Directory interface {
	// InviteAgent makes the agent with the name a member of the room.
	InviteAgent(ctx context.Context, by room.Actor, roomID uuid.UUID, agentName string) error
	// SetAlias gives a member of the room another name there; "" takes it away.
	SetAlias(ctx context.Context, by room.Actor, roomID, agentID uuid.UUID, alias string) (room.Member, error)
}

// Options of a Timeline; zero fields take the defaults.
type Options struct {
	MaxBody     int // most bytes of a body
	CastMembers int // most members of all casts kept in memory together
	// Appended is told of each item after its COMMIT, on the writer's goroutine, and must be brief. nil: nobody is told.
	Appended func(kind room.ItemKind, sender room.ActorKind)
}

// Timeline is the log of all rooms. Safe for concurrent use.
type Timeline struct {
	store     room.Store[Tx, ReadTx]
	feed      *feed.Feed
	presence  Presence
	hub       *wake.Hub
	directory Directory
	maxBody   int
	casts     casts
	appended  func(room.ItemKind, room.ActorKind)
}

// New makes the log of a database. The hub carries RoomKey wakes.
func New(st room.Store[Tx, ReadTx], f *feed.Feed, p Presence, hub *wake.Hub, o Options) *Timeline {
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.CastMembers <= 0 {
		o.CastMembers = DefaultCastMembers
	}
	if o.Appended == nil {
		o.Appended = func(room.ItemKind, room.ActorKind) {}
	}
	t := &Timeline{store: st, feed: f, presence: p, hub: hub, maxBody: o.MaxBody, appended: o.Appended}
	t.casts.init(o.CastMembers)
	return t
}

// UseDirectory gives the commands !invite-agent and !set-alias somebody who does them; without it they are answered as
// not available. It must be called before the first Post.
func (t *Timeline) UseDirectory(d Directory) { t.directory = d }

// RoomKey is the wake.Hub key of a room's log: woken after the COMMIT of every item.
type RoomKey struct{ RoomNo int64 }

// PersonKey is the wake.Hub key of the rooms a person is in: woken by whoever changed them.
type PersonKey struct{ PersonNo int64 }

// Spot is the end of a room's log.
type Spot struct {
	RoomNo       int64
	CastRevision int64
	Position     int64     // of the newest item, 0 for none
	At           time.Time // of the newest item
}

// CastTx is the part of a transaction that a cast is read through.
type CastTx interface {
	TimelineCastRevision(roomNo int64) (int64, error)
	TimelineCast(roomNo int64) (*room.Cast, error)
}

// ReadTx is a snapshot as the timeline sees it. What is not there is NotFound.
type ReadTx interface {
	room.Reader
	CastTx
	TimelineSpot(roomID uuid.UUID) (Spot, error)
	TimelineSpotOf(roomNo int64) (Spot, error)
	TimelineHasPerson(roomNo, personNo int64) (bool, error)
	TimelinePeople(roomNo int64) ([]string, error)
	TimelineItem(id uuid.UUID) (room.Item, error)
	TimelineRequest(roomNo int64, kind room.ActorKind, no int64, requestID string) (room.Item, []byte, error)
	// The four that follow return fewer items, but at least one, where their texts together reach MaxReadBytes; more tells
	// that there are further ones.
	TimelineForward(roomNo, after int64, limit int) ([]room.Item, error)
	TimelineBackward(roomNo, from, downTo int64, limit int) (items []room.Item, more bool, err error)
	TimelineEntries(roomNo, from, downTo int64, limit int) (items []room.Item, more bool, err error)
	TimelineItemsByNo(nos []int64) ([]room.Item, error)
	TimelineAt(roomNo, position int64) (time.Time, error)
}

// Tx is a write transaction as the timeline sees it.
type Tx interface {
	feed.Tx
	ReadTx
	AppendTimelineItem(i room.Item, digest []byte) (int64, error)
}
