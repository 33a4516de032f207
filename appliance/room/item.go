package room

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// ChannelType is the kind of a room (D.1).
type ChannelType string

// The channel types.
const (
	ChannelPublic  ChannelType = "channel_public"
	ChannelPrivate ChannelType = "channel_private"
	ChannelDirect  ChannelType = "direct"
	ChannelGroup   ChannelType = "group"
	ChannelLobby   ChannelType = "lobby"
)

// Visibility says who beside the owner may read or write (A.6).
type Visibility string

// The visibilities.
const (
	Public  Visibility = "public"
	Private Visibility = "private"
)

// Room is one room. Every room is on no bridge.
type Room struct {
	No                              int64
	ID                              uuid.UUID
	Name, Description               string
	Instructions                    string
	Channel                         ChannelType
	Chat                            bool
	OwnerNo                         int64     // 0: nobody
	OwnerID                         uuid.UUID // uuid.Nil: nobody
	GroupNo                         int64     // 0: none
	GroupID                         uuid.UUID
	GroupName                       string
	ReadVisibility, WriteVisibility Visibility
	InternalOnly                    bool
	LastPosition                    int64
	CastRevision                    int64
	ArchivedAt                      *time.Time
	CreatedAt, UpdatedAt            time.Time
}

// Ref names a room.
type Ref struct {
	No   int64
	ID   uuid.UUID
	Name string
}

// Ref of the room.
func (r Room) Ref() Ref { return Ref{r.No, r.ID, r.Name} }

// MayRead, MayWrite and MayDelete are the ownership rule (A.6).
func (r Room) MayRead(a Actor) bool {
	return a.Admin || r.ReadVisibility == Public || r.ownedBy(a)
}

// MayWrite tells whether the actor may edit, invite and attach.
func (r Room) MayWrite(a Actor) bool {
	return a.Admin || r.WriteVisibility == Public || r.ownedBy(a)
}

// MayDelete tells whether the actor may delete.
func (r Room) MayDelete(a Actor) bool { return a.Admin || r.ownedBy(a) }

func (r Room) ownedBy(a Actor) bool { return r.OwnerNo != 0 && a.OwnerNo == r.OwnerNo }

// Member is an agent in a room.
type Member struct {
	Agent          Agent
	Alias          string
	Listening      bool
	JoinedPosition int64
	JoinedAt       time.Time
}

// PersonMember is a person in a room.
type PersonMember struct {
	Person         Person
	Manager        bool
	JoinedPosition int64
	JoinedAt       time.Time
}

// RoleDef is a role of a room. Who holds it is known to the connections only.
type RoleDef struct {
	No           int64
	RoomNo       int64
	Name         string
	Exclusive    bool
	Instructions string
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// Cast is a room with all that decides about receivers, as of one CastRevision. Shared and never changed.
type Cast struct {
	Room    Room
	Members []Member // by agent number
	Roles   []string
}

// ItemKind is the kind of a room item.
type ItemKind string

// The kinds of items; they are those of the events too.
const (
	ItemMessage ItemKind = "message"
	ItemCommand ItemKind = "command"
	ItemJoin    ItemKind = "room_join"
)

// Attachment is one file of a message, as on the wire (D.6).
type Attachment struct {
	Filename string `json:"filename"`
	Mimetype string `json:"mimetype"`
	Size     int64  `json:"size"`
	Media    string `json:"mxc"`     // media key
	Type     string `json:"msgtype"` // m.image or m.file
}

// Item is one entry of a room's log.
type Item struct {
	No          int64
	RoomNo      int64
	Position    int64
	ID          uuid.UUID
	Kind        ItemKind
	SenderKind  ActorKind
	SenderNo    int64
	SenderID    string
	SenderName  string
	OnBehalfOf  string          // "" for none
	Body        string          // a command as it was typed
	ThreadNo    int64           // item number of the thread's root; 0: none
	ThreadID    uuid.UUID       // uuid.Nil: none
	Attachments json.RawMessage // JSON array of Attachment; nil: none
	Automatic   bool
	RequestID   string
	At          time.Time
}

// EventKind is the kind of an event as it is stored.
type EventKind int

// The kinds of events.
const (
	EventMessage EventKind = 1
	EventCommand EventKind = 2
	EventJoin    EventKind = 3
)

// String is the name on the wire.
func (k EventKind) String() string {
	switch k {
	case EventCommand:
		return "command"
	case EventJoin:
		return "room_join"
	default:
		return "message"
	}
}

// Command is a command as one agent is told of it (D.7).
type Command struct{ Name, Args string }
