package directory

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/room"
)

// ReadTx is what the Directory reads. Methods that find one row fail with NotFound when there is none. Deleted rooms are
// not found.
type ReadTx interface {
	room.Reader

	DirRoom(id uuid.UUID) (room.Room, error)
	// DirRoomsBetween returns rooms whose ids lie in [from, to], at most limit; with deleted ones when asked to.
	DirRoomsBetween(from, to uuid.UUID, deleted bool, limit int) ([]room.Room, error)
	// DirRoomsNamed returns the rooms of exactly the name, at most limit.
	DirRoomsNamed(name string, limit int) ([]room.Room, error)
	// DirRooms returns rooms by name.
	DirRooms(q RoomQuery) ([]room.Room, error)

	// DirAgentIn tells whether the agent is a member.
	DirAgentIn(roomNo, agentNo int64) (bool, error)
	// DirMember finds an agent of the room.
	DirMember(roomNo, agentNo int64) (room.Member, error)
	// DirMembers returns the agents of the room by name.
	DirMembers(roomNo int64) ([]room.Member, error)
	// DirNamesIn returns the names and the aliases of the agents of the room that equal the text, case aside: whose name
	// and whose alias, "" for none.
	DirNamesIn(roomNo int64, text string) (named, aliased string, err error)
	// DirCountMembers counts the agents of the room.
	DirCountMembers(roomNo int64) (int, error)

	// DirPersonIn tells whether the person is in the room, and as a manager.
	DirPersonIn(roomNo, personNo int64) (in, manager bool, err error)
	// DirPeopleIn returns the people in the room by name.
	DirPeopleIn(roomNo int64) ([]room.PersonMember, error)
	// DirPeopleOf returns their numbers.
	DirPeopleOf(roomNo int64) ([]int64, error)

	RoomAgentByID(id uuid.UUID) (room.Agent, error)
	RoomAgentByName(name string) (room.Agent, error)
	// DirChildren returns the agents whose parent the agent is, by name.
	DirChildren(agentNo int64) ([]room.Agent, error)
	RoomPersonByID(id uuid.UUID) (room.Person, error)
	// DirPeopleNamed returns the people with the email, or else with the name, at most limit.
	DirPeopleNamed(text string, limit int) ([]room.Person, error)

	// DirRole finds a role by name, case aside.
	DirRole(roomNo int64, name string) (room.RoleDef, error)
	// DirRoles returns the roles of the room by name.
	DirRoles(roomNo int64) ([]room.RoleDef, error)

	// DirLinks returns the links from the room by the target's name, without those to deleted rooms.
	DirLinks(roomNo int64) ([]Link, error)

	DirReference(id uuid.UUID) (Reference, error)
	// DirReferences returns references by name: those that the actor may read, or those attached to the room when roomNo
	// is not 0.
	DirReferences(roomNo int64, by room.Actor) ([]Reference, error)

	DirDocument(id uuid.UUID) (Document, error)
	// DirDocuments returns the documents of the room without their content, oldest first.
	DirDocuments(roomNo int64) ([]Document, error)
	DirCountDocuments(roomNo int64) (int, error)

	// DirGroup finds a group by id or by name.
	DirGroup(idOrName string) (Group, error)
	// DirGroups returns the groups by name.
	DirGroups() ([]Group, error)

	// DirDeleted returns the numbers of rooms that were deleted, at most limit.
	DirDeleted(limit int) ([]int64, error)
}

// Tx is what the Directory writes through. What the timeline and the feed need for a join or a leave is in it.
type Tx interface {
	room.Writer
	ReadTx
	audit.Tx
	LogTx
	QueueTx

	// DirInsertRoom stores a room and returns its number.
	DirInsertRoom(r room.Room) (int64, error)
	// DirUpdateRoom stores every changeable field of the room.
	DirUpdateRoom(r room.Room) error
	// DirDeleteRoom removes members, people, roles, links and uses of references of the room and marks it deleted.
	DirDeleteRoom(roomNo int64) error

	// DirInsertMembers stores members that join at the room's present position.
	DirInsertMembers(roomNo int64, members []room.Member) error
	DirDeleteMember(roomNo, agentNo int64) error
	// DirDeleteMemberships removes an agent from every room and returns the rooms' numbers.
	DirDeleteMemberships(agentNo int64) ([]int64, error)
	DirSetAlias(roomNo, agentNo int64, alias string) error
	DirSetListening(roomNo, agentNo int64, listening bool) error
	// DirInsertPerson stores a person who joins at the room's present position.
	DirInsertPerson(roomNo, personNo int64, manager bool) error
	DirSetManager(roomNo, personNo int64, manager bool) error
	DirDeletePerson(roomNo, personNo int64) error

	DirInsertRole(r room.RoleDef) error
	DirUpdateRole(r room.RoleDef) error
	DirDeleteRole(roleNo int64) error

	// DirSetLink stores a link or its new label.
	DirSetLink(roomNo, targetNo int64, label string) error
	// DirDeleteLink removes a link and reports whether there was one.
	DirDeleteLink(roomNo, targetNo int64) (bool, error)

	DirInsertReference(r Reference) (int64, error)
	DirUpdateReference(r Reference) error
	// DirDeleteReference removes a reference from everywhere.
	DirDeleteReference(no int64) error
	// DirAttach attaches a reference; twice is once.
	DirAttach(roomNo, referenceNo int64) error
	// DirDetach reports whether the reference was attached.
	DirDetach(roomNo, referenceNo int64) (bool, error)

	DirInsertDocument(d Document) error
	DirUpdateDocument(d Document) error
	DirDeleteDocument(no int64) error

	DirInsertGroup(g Group) (int64, error)

	// DirPurgeRoom removes at most limit rows of what a deleted room leaves, its log newest first, and the room itself at
	// last. done tells that nothing is left.
	DirPurgeRoom(roomNo int64, limit int) (removed int, done bool, err error)
}

// RoomQuery selects rooms.
type RoomQuery struct {
	// By is whose sight it is: what it may read by the ownership rule, and what it, or the person whose rights it has, is
	// in. Ignored with AgentNo or PersonNo.
	By room.Actor
	// AgentNo selects the rooms of an agent, PersonNo those of a person. 0: no such condition.
	AgentNo, PersonNo int64
	GroupNo           int64 // 0: any
	IncludeArchived   bool
}

// Link is a link from one room to another.
type Link struct {
	Room      room.Ref
	Target    room.Room
	Label     string
	CreatedAt time.Time
}

// Reference is something outside that rooms point to (H.4).
type Reference struct {
	No                              int64
	ID                              uuid.UUID
	Type, Name                      string
	Description, Instructions       string
	Value                           string
	OwnerNo                         int64 // 0: nobody
	ReadVisibility, WriteVisibility room.Visibility
	CreatedAt, UpdatedAt            time.Time
}

// owned is the reference as the ownership rule sees it.
func (r Reference) owned() room.Room {
	return room.Room{OwnerNo: r.OwnerNo, ReadVisibility: r.ReadVisibility, WriteVisibility: r.WriteVisibility}
}

// Scope says for whom a document is.
type Scope string

// The scopes. A document of scope agent is for the agent that made it.
const (
	ScopeRoom  Scope = "room"
	ScopeAgent Scope = "agent"
)

// Document is a text that a room keeps for its agents (H.4).
type Document struct {
	No                        int64
	ID                        uuid.UUID
	Room                      room.Ref
	Name                      string
	Description, Instructions string
	Scope                     Scope
	Content                   string    // "" in lists without content
	Size                      int       // of the content, in bytes
	CreatedBy                 uuid.UUID // the agent that made it; uuid.Nil: a person
	CreatedAt, UpdatedAt      time.Time
}

// Group is a set of rooms under one name.
type Group struct {
	No          int64
	ID          uuid.UUID
	Name        string
	Description string
	OwnerNo     int64 // 0: nobody
	CreatedAt   time.Time
}
