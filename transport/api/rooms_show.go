package api

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/explain"
)

// namedPublic names somebody or something.
type namedPublic struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func showNamed(id uuid.UUID, name string) *namedPublic {
	if id == uuid.Nil {
		return nil
	}
	return &namedPublic{id.String(), name}
}

// roomPublic is a room.
type roomPublic struct {
	ID              string           `json:"id"`
	Name            string           `json:"name"`
	Description     string           `json:"description"`
	Instructions    string           `json:"instructions"`
	ChannelType     room.ChannelType `json:"channel_type"`
	Chat            bool             `json:"chat"`
	Owner           *namedPublic     `json:"owner"`
	Group           *namedPublic     `json:"group"`
	ReadVisibility  room.Visibility  `json:"read_visibility"`
	WriteVisibility room.Visibility  `json:"write_visibility"`
	InternalOnly    bool             `json:"internal_only"`
	Head            int64            `json:"head"` // position of the newest item
	ArchivedAt      *stamp           `json:"archived_at"`
	CreatedAt       stamp            `json:"created_at"`
	UpdatedAt       stamp            `json:"updated_at"`
}

// showRoom leaves the owner without a name, which the room does not hold.
func showRoom(r *room.Room) roomPublic {
	return roomPublic{ID: r.ID.String(), Name: r.Name, Description: r.Description, Instructions: r.Instructions,
		ChannelType: r.Channel, Chat: r.Chat, Owner: showNamed(r.OwnerID, ""), Group: showNamed(r.GroupID, r.GroupName),
		ReadVisibility: r.ReadVisibility, WriteVisibility: r.WriteVisibility, InternalOnly: r.InternalOnly, Head: r.LastPosition,
		ArchivedAt: maybe(r.ArchivedAt), CreatedAt: stamp(r.CreatedAt), UpdatedAt: stamp(r.UpdatedAt)}
}

// roomDetail is a room with all that belongs to it.
type roomDetail struct {
	roomPublic
	Members []memberPublic       `json:"members"`
	People  []personMemberPublic `json:"people"`
	Roles   []rolePublic         `json:"roles"`
	Links   []linkPublic         `json:"links"`
}

type reasonPublic struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func showReason(r *explain.Reason) reasonPublic { return reasonPublic{r.Code, r.Text} }

// hearingPublic says whom an agent listens to, by its policy and as things stand.
type hearingPublic struct {
	Addressable string         `json:"addressable"` // everybody, owner or some
	OwnerOnly   bool           `json:"owner_only"`
	OpenCommand *string        `json:"open_command"` // of an owner-only agent
	ReactsTo    string         `json:"reacts_to"`    // addressable, or nobody
	Deaf        []reasonPublic `json:"deaf"`
}

type memberPublic struct {
	AgentID   string      `json:"agent_id"`
	Name      string      `json:"name"`
	Alias     *string     `json:"alias"`
	Listening bool        `json:"listening"`
	Role      *string     `json:"role"` // that it live-holds here
	Status    room.Status `json:"status"`
	hearingPublic
	JoinedPosition int64 `json:"joined_position"`
	JoinedAt       stamp `json:"joined_at"`
}

type personMemberPublic struct {
	PersonID string `json:"person_id"`
	Name     string `json:"name"`
	Email    string `json:"email"`
	Manager  bool   `json:"manager"`
	JoinedAt stamp  `json:"joined_at"`
}

func showPersonMember(m *room.PersonMember) personMemberPublic {
	return personMemberPublic{m.Person.ID.String(), m.Person.Name, m.Person.Email, m.Manager, stamp(m.JoinedAt)}
}

type rolePublic struct {
	Name         string        `json:"name"`
	Exclusive    bool          `json:"exclusive"`
	Instructions string        `json:"instructions"`
	HeldBy       []namedPublic `json:"held_by"`
	CreatedAt    stamp         `json:"created_at"`
	UpdatedAt    stamp         `json:"updated_at"`
}

type linkPublic struct {
	TargetRoomID   string `json:"target_room_id"`
	TargetRoomName string `json:"target_room_name"`
	Label          string `json:"label"`
	CreatedAt      stamp  `json:"created_at"`
}

func showLink(l *directory.LinkView) linkPublic {
	return linkPublic{l.Target.ID.String(), l.Target.Name, l.Label, stamp(l.CreatedAt)}
}

// covering describes the live connections of an agent for one room.
func covering(conns RoomConnections, agentNo, roomNo int64) []explain.Connection {
	infos := conns.List(agentNo)
	if len(infos) == 0 {
		return nil
	}
	covers, holder := conns.Covers(agentNo, roomNo)
	out := make([]explain.Connection, len(infos))
	for i := range infos {
		out[i] = connectionFacts(&infos[i])
		out[i].Covers = slices.Contains(covers, infos[i].ConnectionID)
		if holder != infos[i].ConnectionID {
			out[i].Holder = holder
		}
	}
	return out
}

func connectionFacts(i *connection.Info) explain.Connection {
	return explain.Connection{ID: i.ConnectionID, Scope: string(i.Scope), Addressed: i.Filter == connection.FilterAddressed,
		Cursor: i.Cursor, Attached: i.Attached, Held: i.Held}
}

// coveringAny describes the live connections of an agent for all its rooms: covering means covering any.
func coveringAny(infos []connection.Info) []explain.Connection {
	out := make([]explain.Connection, len(infos))
	for i := range infos {
		out[i] = connectionFacts(&infos[i])
		out[i].Covers = infos[i].Scope == connection.ScopeAll || len(infos[i].Rooms) > 0
	}
	return out
}

func showHearing(h explain.Hearing) hearingPublic {
	reasons, reactsTo := explain.Deaf(h)
	by := explain.Addressable(h.Agent)
	return hearingPublic{Addressable: by, OwnerOnly: by == explain.ByOwner, OpenCommand: orNull(explain.OpenCommand(h.Agent)),
		ReactsTo: reactsTo, Deaf: each(reasons, showReason)}
}

// showMember shows an agent in a room. holders are the roles that are held there, by agent.
func (a *API) showMember(r *room.Room, m *room.Member, holders map[int64]string) memberPublic {
	conns := a.Rooms.Connections
	return memberPublic{AgentID: m.Agent.ID.String(), Name: m.Agent.Name, Alias: orNull(m.Alias), Listening: m.Listening,
		Role: orNull(holders[m.Agent.No]), Status: conns.Status(m.Agent.No, m.Agent.Profile.ConnectionModel, r.No),
		hearingPublic: showHearing(explain.Hearing{Agent: &m.Agent, Room: r, Member: true,
			Connections: covering(conns, m.Agent.No, r.No)}),
		JoinedPosition: m.JoinedPosition, JoinedAt: stamp(m.JoinedAt)}
}

// roles reads the roles of a room with who holds them now.
func (a *API) roles(ctx context.Context, r *room.Room) ([]rolePublic, error) {
	defs, err := a.Rooms.Directory.Roles(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	return each(defs, func(d *room.RoleDef) rolePublic { return a.showRole(r, d) }), nil
}

func (a *API) showRole(r *room.Room, d *room.RoleDef) rolePublic {
	out := rolePublic{Name: d.Name, Exclusive: d.Exclusive, Instructions: d.Instructions, HeldBy: []namedPublic{},
		CreatedAt: stamp(d.CreatedAt), UpdatedAt: stamp(d.UpdatedAt)}
	for _, l := range a.Rooms.Connections.Leases(r.No) {
		if strings.EqualFold(l.Role, d.Name) {
			out.HeldBy = append(out.HeldBy, namedPublic{a.agentID(l), l.AgentName})
		}
	}
	return out
}

// agentID is the id of the agent behind a lease, which has its number only; "" when its connections are gone.
func (a *API) agentID(l connection.Lease) string {
	for _, i := range a.Rooms.Connections.List(l.AgentNo) {
		return i.AgentID.String()
	}
	return ""
}

// detail reads all of a room.
func (a *API) detail(ctx context.Context, by room.Actor, r *room.Room) (roomDetail, error) {
	out := roomDetail{roomPublic: showRoom(r)}
	if out.Owner != nil {
		p, err := a.Rooms.Identity.Person(ctx, r.OwnerID)
		if err != nil {
			return out, err
		}
		out.Owner.Name = p.Name
	}
	members, people, err := a.Rooms.Directory.Members(ctx, r.ID)
	if err != nil {
		return out, err
	}
	holders := a.Rooms.Connections.RoleHolders(r.No)
	out.Members = each(members, func(m *room.Member) memberPublic { return a.showMember(r, m, holders) })
	out.People = each(people, showPersonMember)
	if out.Roles, err = a.roles(ctx, r); err != nil {
		return out, err
	}
	links, err := a.Rooms.Directory.Links(ctx, by, r.ID)
	out.Links = each(links, showLink)
	return out, err
}

// itemPublic is one entry of a room's log.
type itemPublic struct {
	ID          string          `json:"id"`
	RoomID      string          `json:"room_id"`
	Position    int64           `json:"position"`
	Kind        room.ItemKind   `json:"kind"`
	Sender      senderPublic    `json:"sender"`
	OnBehalfOf  *string         `json:"on_behalf_of"`
	Body        string          `json:"body"`
	ThreadID    *string         `json:"thread_id"`
	Attachments json.RawMessage `json:"attachments"`
	Automatic   bool            `json:"automatic"`
	At          stamp           `json:"at"`
}

type senderPublic struct {
	Kind room.ActorKind `json:"kind"`
	ID   string         `json:"id"`
	Name string         `json:"name"`
}

func showItem(roomID uuid.UUID, i *room.Item) itemPublic {
	out := itemPublic{ID: i.ID.String(), RoomID: roomID.String(), Position: i.Position, Kind: i.Kind,
		Sender: senderPublic{i.SenderKind, i.SenderID, i.SenderName}, OnBehalfOf: orNull(i.OnBehalfOf), Body: i.Body,
		Attachments: raw(i.Attachments), Automatic: i.Automatic, At: stamp(i.At)}
	if i.ThreadID != uuid.Nil {
		id := i.ThreadID.String()
		out.ThreadID = &id
	}
	if out.Attachments == nil {
		out.Attachments = json.RawMessage("[]")
	}
	return out
}
