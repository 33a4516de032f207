package api

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
)

// RoomIdentity keeps people, keys and agents of the rooms plane; *identity.Identity is one.
type RoomIdentity interface {
	Operator(ctx context.Context) (room.Person, error)
	People(ctx context.Context) ([]room.Person, error)
	Person(ctx context.Context, id uuid.UUID) (room.Person, error)
	PersonNamed(ctx context.Context, text string) (room.Person, error)
	CreatePerson(ctx context.Context, by room.Actor, n identity.NewPerson) (room.Person, error)
	SetPassword(ctx context.Context, by room.Actor, id uuid.UUID, password secret.Text) error
	SetDisabled(ctx context.Context, by room.Actor, id uuid.UUID, disabled bool) (room.Person, error)
	SetRole(ctx context.Context, by room.Actor, id uuid.UUID, role room.Role) (room.Person, error)

	Agent(ctx context.Context, id uuid.UUID) (room.Agent, error)
	AgentByNo(ctx context.Context, no int64) (room.Agent, error)
	Agents(ctx context.Context, f identity.AgentFilter) ([]room.Agent, bool, error)
	AgentRooms(ctx context.Context, agentNo int64) ([]room.Ref, error)
	Register(ctx context.Context, by identity.Registrant, n identity.NewAgent) (identity.Registered, error)
	RegisterKnown(ctx context.Context, by identity.Registrant, n identity.NewKnownAgent) (identity.Registered, error)
	RotateKey(ctx context.Context, by room.Actor, id uuid.UUID) (identity.Registered, error)
	DeleteAgent(ctx context.Context, by room.Actor, id uuid.UUID) error
	SetPolicy(ctx context.Context, by room.Actor, id uuid.UUID, p *room.Policy) (room.Agent, error)

	CreateKey(ctx context.Context, by room.Actor, n identity.NewKey) (identity.Key, secret.Text, error)
	Keys(ctx context.Context, personNo int64, includeRevoked bool) ([]identity.Key, error)
	RevokeKey(ctx context.Context, by room.Actor, id uuid.UUID) error
}

// RoomDirectory keeps rooms and who is in them; *directory.Directory is one.
type RoomDirectory interface {
	Create(ctx context.Context, by room.Actor, n directory.NewRoom) (room.Room, error)
	Update(ctx context.Context, by room.Actor, id uuid.UUID, c directory.RoomChange) (room.Room, error)
	Archive(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error)
	Unarchive(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error)
	Delete(ctx context.Context, by room.Actor, id uuid.UUID) error
	Room(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error)
	Rooms(ctx context.Context, by room.Actor, f directory.Filter) ([]room.Room, error)

	Members(ctx context.Context, id uuid.UUID) ([]room.Member, []room.PersonMember, error)
	Invite(ctx context.Context, by room.Actor, id uuid.UUID, list []directory.Invitation) ([]room.Member, error)
	Remove(ctx context.Context, by room.Actor, id, agentID uuid.UUID) error
	SetAlias(ctx context.Context, by room.Actor, id, agentID uuid.UUID, alias string) (room.Member, error)
	SetListening(ctx context.Context, by room.Actor, id, agentID uuid.UUID, listening bool) (room.Member, error)
	AddPeople(ctx context.Context, by room.Actor, id uuid.UUID, list []directory.Introduction) ([]room.PersonMember, error)
	RemovePerson(ctx context.Context, by room.Actor, id, personID uuid.UUID) error

	Roles(ctx context.Context, id uuid.UUID) ([]room.RoleDef, error)
	DefineRole(ctx context.Context, by room.Actor, id uuid.UUID, n directory.NewRole) (room.RoleDef, error)
	EditRole(ctx context.Context, by room.Actor, id uuid.UUID, name string, c directory.RoleChange) (room.RoleDef, error)
	DeleteRole(ctx context.Context, by room.Actor, id uuid.UUID, name string) error
	Links(ctx context.Context, by room.Actor, id uuid.UUID) ([]directory.LinkView, error)
	Link(ctx context.Context, by room.Actor, id uuid.UUID, l directory.NewLink) error
	Unlink(ctx context.Context, by room.Actor, id, target uuid.UUID) error
}

// RoomTimeline is the log of each room; *timeline.Timeline is one. It wakes timeline.RoomKey on the hub of the Services.
type RoomTimeline interface {
	Post(ctx context.Context, d timeline.Draft) (timeline.Posted, error)
	Since(ctx context.Context, roomNo, after int64, limit int) ([]room.Item, int64, error)
	Before(ctx context.Context, roomNo, before int64, limit int) ([]room.Item, bool, error)
	Item(ctx context.Context, id uuid.UUID) (room.Item, error)
}

// RoomFeed knows what waits for each agent; *feed.Feed is one.
type RoomFeed interface {
	Head(ctx context.Context, agentNo int64) (int64, error)
	Find(ctx context.Context, agentNo, itemNo int64) (feed.Queued, bool, error)
	DroppedThrough(ctx context.Context, agentNo, roomNo int64) (int64, error)
}

// RoomConnections knows who is connected; *connection.Registry is one.
type RoomConnections interface {
	All() []connection.Info
	Counts() connection.Counts
	List(agentNo int64) []connection.Info
	Get(id string) (connection.Info, bool)
	Evict(id, reason string) bool
	Covers(agentNo, roomNo int64) (covering []string, holder string)
	Deliveries(agentNo, sequence int64) []connection.Delivery
	Status(agentNo int64, m room.ConnectionModel, roomNo int64) room.Status
	Leases(roomNo int64) []connection.Lease
	RoleHolders(roomNo int64) map[int64]string
}

// RoomServices are what the routes of the rooms plane speak to. All are needed.
type RoomServices struct {
	Identity    RoomIdentity
	Directory   RoomDirectory
	Timeline    RoomTimeline
	Feed        RoomFeed
	Connections RoomConnections
}

var (
	_ RoomIdentity    = (*identity.Identity)(nil)
	_ RoomDirectory   = (*directory.Directory)(nil)
	_ RoomTimeline    = (*timeline.Timeline)(nil)
	_ RoomFeed        = (*feed.Feed)(nil)
	_ RoomConnections = (*connection.Registry)(nil)
)

// operator is the person that whoever calls acts as in rooms, with an admin's rights that the person alone does not have:
// what an API key or the admin socket may do was decided by scope and role. The context carries the caller to the audit
// rows.
func (a *API) operator(c *call) (context.Context, room.Actor, error) {
	ctx := room.WithOrigin(c.Context(), room.Origin{Principal: c.who.ID, SourceIP: c.who.SourceIP, UserAgent: c.who.UserAgent})
	p, err := a.Rooms.Identity.Operator(ctx)
	by := p.Actor()
	by.Admin = true
	return ctx, by, err
}

// recordAct writes the audit row of an act that no service records. The act is done: a row that cannot be written is
// trouble for the log and not the answer.
func (a *API) recordAct(c *call, action, targetType, target string, metadata map[string]any) {
	e := audit.Entry{UserID: &c.who.ID, Action: action, TargetType: targetType, TargetID: &target, Result: audit.Success,
		Outcome: audit.Allow, SourceIP: orNull(c.who.SourceIP), UserAgent: orNull(c.who.UserAgent)}
	var err error
	if e.Metadata, err = json.Marshal(metadata); err == nil {
		err = a.Audit.Append(context.WithoutCancel(c.Context()), e)
	}
	if err != nil {
		a.logTrouble(c.Request, err, "audit row of "+action+" not written")
	}
}

// inRoom finds the room of the path.
func (a *API) inRoom(c *call) (ctx context.Context, by room.Actor, r room.Room, err error) {
	id, err := c.pathID("id")
	if err != nil {
		return nil, by, r, err
	}
	if ctx, by, err = a.operator(c); err != nil {
		return ctx, by, r, err
	}
	r, err = a.Rooms.Directory.Room(ctx, by, id)
	return ctx, by, r, err
}

// inOurWords names the field of an Invalid error as the body calls it: pairs of the service's name and ours. A service
// may add an index or a member to its name, which stays.
func inOurWords(err error, pairs ...string) error {
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != fault.Invalid {
		return err
	}
	field, _ := e.Details["field"].(string)
	for i := 0; i+1 < len(pairs); i += 2 {
		rest, ok := strings.CutPrefix(field, pairs[i])
		if !ok || rest != "" && rest[0] != '[' && rest[0] != '.' {
			continue
		}
		out := *e.With("field", pairs[i+1]+rest)
		out.Msg = pairs[i+1] + strings.TrimPrefix(e.Msg, pairs[i])
		return &out
	}
	return err
}
