package operation

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

var (
	channels     = oneOf(string(room.ChannelPublic), string(room.ChannelPrivate))
	visibilities = oneOf(string(room.Public), string(room.Private))
)

const (
	readHelp  = "public: every person and agent here may look at it; private: its owner and its members."
	writeHelp = "public: every person and agent here may edit it and invite; private: its owner and its managers."
	ownerNote = " Your rights are those of your owner."
)

var roomOperations = []operation{{
	name: "create_room", group: "rooms",
	description: "Make a room with agents, people, roles, references and links in it. It belongs to your owner. You are " +
		"not in it unless agent_names names you. Returns {id, name, transport_room_id, matrix_room_id, " +
		"failed_attachments}; failed_attachments lists references that could not be attached. Next: connect_to_room with " +
		"the id.",
	args: []arg{
		{"name", text, true, nil, "Name of the room, up to 200 characters."},
		{"description", text, true, nil, "What the room is for, in a sentence."},
		{"agent_names", names, true, nil, "Names of the agents that are in it, at least one. Name yourself to be in it."},
		{"user_names", names, false, nil, "People that are in it, by email or by a name that only one person has."},
		{"channel_type", channels, false, string(room.ChannelPublic), "Kind of the room."},
		{"bridge_id", nothing, false, nil, "Leave out: rooms are on no bridge."},
		{"internal_only", flag, false, false, "Marks a room for work among agents."},
		{"admin_mode", nothing, false, nil, "Leave out: there is no such mode."},
		{"security_config", nothing, false, nil, "Leave out: there is none."},
		{"instructions", text, false, nil, "What every agent in the room is told when it connects."},
		{"reference_ids", names, false, nil, "Ids of references to attach, from list_all_references."},
		{"package_ids", nothing, false, nil, "Leave out: there are no packages."},
		{"linked_rooms", links, false, nil, "Rooms to link to, each {target_room_id, label}."},
		{"read_visibility", visibilities, false, string(room.Public), readHelp},
		{"write_visibility", visibilities, false, nil, writeHelp + " Same as read_visibility when left out."},
		{"group_name", text, false, nil, "Name of the room group it belongs to, from list_room_groups."},
		{"roles", roles, false, nil, "Roles to define, each {name, exclusive, instructions}."},
		{"include_subagents_for", names, false, nil, "Names of agents whose sub-agents are in the room too."},
		{"join_event_listeners", names, false, nil, "Those of agent_names that are told when somebody joins."},
		{"aliases", pairs, false, nil, "Other names in this room, by agent name: {\"build-bot\": \"builder\"}."}},
	result: "`{id, name, transport_room_id, matrix_room_id, failed_attachments: [{reference_id, error}]}`",
	run:    (*request).createRoom,
}, {
	name: "update_room", group: "rooms",
	description: "Change a room's name, description, instructions or settings. Only what you give is changed." + ownerNote +
		" Returns the room as get_room_detail does, without its participants.",
	args: []arg{
		{"room_id", text, false, nil, roomHelp},
		{"name", text, false, nil, "New name."},
		{"description", text, false, nil, "New description."},
		{"instructions", text, false, nil, "New instructions; an empty text removes them."},
		{"channel_type", channels, false, nil, "New kind."},
		{"internal_only", flag, false, nil, "Whether it is for work among agents."},
		{"read_visibility", visibilities, false, nil, readHelp + " Only its owner may change this."},
		{"write_visibility", visibilities, false, nil, writeHelp + " Only its owner may change this."},
		{"group_name", text, false, nil, "Room group to move it to; an empty text takes it out of its group."}},
	result: "the room, as `get_room_detail` without `participants`", run: (*request).updateRoom,
}, {
	name: "get_room_detail", group: "rooms",
	description: "Look at a room without moving there: settings, instructions and participants. Works for your rooms and " +
		"for public ones.",
	args: []arg{{"room_id", text, false, nil, roomHelp}},
	result: "`{room_id, name, description, instructions, channel_type, owner_id, group, read_visibility, " +
		"write_visibility, internal_only, archived, member, created_at, updated_at, participants}`", run: (*request).roomDetail,
}, {
	name: "list_all_rooms", group: "rooms",
	description: "List every room you may look at, not only those you are a member of. Returns a list of {room_id, name, " +
		"description, channel_type, group, member, archived}. To enter one where member is false, ask somebody in it to " +
		"invite you.",
	args:   []arg{{"include_archived", flag, false, false, "Also list archived rooms."}},
	result: "`[{room_id, name, description, channel_type, group, member, archived}]`", run: (*request).listAllRooms,
}, {
	name: "invite_agent_to_room", group: "rooms",
	description: "Make an agent a member of a room you may write to, whoever owns the agent. It is in the room at once; " +
		"whether it acts on your messages is for its owner's policy. Inviting a member changes nothing. Returns {room_id, " +
		"agent_name, joined, note?}.",
	args: []arg{
		{"agent_name", text, true, nil, "Name of the agent, from list_agents."},
		{"room_id", text, false, nil, roomHelp},
		{"alias", text, false, nil, "Another name for it in this room: letters, digits, . _ -"},
		{"receives_join_events", flag, false, false, "Whether it is told when somebody joins."}},
	result: "`{room_id, agent_name, joined, note?}`; `joined` is false when it was a member already", run: (*request).inviteAgent,
}, {
	name: "add_users_to_room", group: "rooms",
	description: "Bring people into a room you may write to. Adding somebody who is there changes nothing. Returns " +
		"{room_id, added}.",
	args: []arg{
		{"user_names", names, true, nil, "People, by email or by a name that only one person has."},
		{"room_id", text, false, nil, roomHelp}},
	result: "`{room_id, added: [name]}`", run: (*request).addUsers,
}, {
	name: "archive_room", group: "rooms",
	description: "Close a room to new messages and members. What was said stays readable, and unarchive_room opens it " +
		"again." + ownerNote +
		" Returns {room_id, archived}.",
	args:   []arg{{"room_id", text, true, nil, "Id of the room."}},
	result: "`{room_id, archived: true}`", run: func(r *request) (any, error) { return r.setArchived(true) },
}, {
	name: "unarchive_room", group: "rooms",
	description: "Open an archived room again." + ownerNote + " Returns {room_id, archived}.",
	args:        []arg{{"room_id", text, true, nil, "Id of the room."}},
	result:      "`{room_id, archived: false}`", run: func(r *request) (any, error) { return r.setArchived(false) },
}, {
	name: "list_bridges", group: "rooms",
	description: "List the chat platforms that rooms can be bridged to. Always an empty list: rooms live on this server " +
		"alone.",
	result: "`[]`", run: func(*request) (any, error) { return []struct{}{}, nil },
}}

type failedAttachment struct {
	ReferenceID string `json:"reference_id"`
	Error       string `json:"error"`
}

type createdRoom struct {
	ID        uuid.UUID          `json:"id"`
	Name      string             `json:"name"`
	Transport uuid.UUID          `json:"transport_room_id"`
	Matrix    uuid.UUID          `json:"matrix_room_id"`
	Failed    []failedAttachment `json:"failed_attachments"`
}

func (r *request) createRoom() (any, error) {
	for _, name := range []string{"bridge_id", "admin_mode", "security_config", "package_ids"} {
		value[any](r, name)
	}
	n := directory.NewRoom{Name: r.text("name"), Description: r.text("description"), Instructions: r.text("instructions"),
		Channel: room.ChannelType(r.text("channel_type")), InternalOnly: r.flag("internal_only"),
		ReadVisibility: room.Visibility(r.text("read_visibility")), WriteVisibility: room.Visibility(r.text("write_visibility")),
		Group: r.text("group_name"), WithChildrenOf: r.names("include_subagents_for"),
		People: introductions(r.names("user_names"))}
	if n.WriteVisibility == "" {
		n.WriteVisibility = n.ReadVisibility
	}
	var err error
	if n.Agents, err = r.invitations(); err != nil {
		return nil, err
	}
	defs, _ := value[[]roleArg](r, "roles")
	for _, d := range defs {
		n.Roles = append(n.Roles, directory.NewRole{Name: d.Name, Exclusive: d.Exclusive, Instructions: d.Instructions})
	}
	targets, _ := value[[]linkArg](r, "linked_rooms")
	for i, l := range targets {
		id, err := parseID(fmt.Sprintf("linked_rooms[%d].target_room_id", i), l.Target)
		if err != nil {
			return nil, err
		}
		n.Links = append(n.Links, directory.NewLink{Target: id, Label: l.Label})
	}
	failed := []failedAttachment{}
	if n.References, failed, err = r.attachable(failed); err != nil {
		return nil, err
	}
	made, err := r.svc.Directory.Create(r.ctx, r.actor, n)
	if err != nil {
		return nil, err
	}
	return createdRoom{made.ID, made.Name, made.ID, made.ID, failed}, nil
}

// invitations are the agents of a new room, with the aliases and the listeners among them.
func (r *request) invitations() ([]directory.Invitation, error) {
	list := []directory.Invitation{}
	at := map[string]int{}
	for _, name := range r.names("agent_names") {
		if _, twice := at[name]; !twice {
			at[name] = len(list)
			list = append(list, directory.Invitation{Name: name})
		}
	}
	for _, name := range r.names("join_event_listeners") {
		i, ok := at[name]
		if !ok {
			return nil, fault.Field("join_event_listeners", "%.80q is not among agent_names", name)
		}
		list[i].Listening = true
	}
	aliases, _ := value[map[string]string](r, "aliases")
	for _, name := range sortedKeys(aliases) {
		i, ok := at[name]
		if !ok {
			return nil, fault.Field("aliases", "%.80q is not among agent_names", name)
		}
		if err := room.ValidAlias(fmt.Sprintf("aliases[%s]", name), aliases[name]); err != nil {
			return nil, err
		}
		list[i].Alias = aliases[name]
	}
	return list, nil
}

// attachable sorts out the references that cannot be attached, which does not keep the room from being made.
func (r *request) attachable(failed []failedAttachment) (ids []uuid.UUID, _ []failedAttachment, err error) {
	for _, s := range r.names("reference_ids") {
		id, err := parseID("reference_ids", s)
		if err == nil {
			_, err = r.svc.Directory.Reference(r.ctx, r.actor, id)
		}
		switch fault.CodeOf(err) {
		case "":
			ids = append(ids, id)
		case fault.Invalid, fault.NotFound, fault.Forbidden:
			failed = append(failed, failedAttachment{s, fault.Message(err)})
		default:
			return nil, nil, err
		}
	}
	return ids, failed, nil
}

func introductions(names []string) (list []directory.Introduction) {
	for _, n := range names {
		list = append(list, directory.Introduction{Name: n})
	}
	return list
}

type roomDetail struct {
	ID              uuid.UUID        `json:"room_id"`
	Name            string           `json:"name"`
	Description     string           `json:"description"`
	Instructions    string           `json:"instructions"`
	Channel         room.ChannelType `json:"channel_type"`
	OwnerID         *string          `json:"owner_id"`
	Group           *string          `json:"group"`
	ReadVisibility  room.Visibility  `json:"read_visibility"`
	WriteVisibility room.Visibility  `json:"write_visibility"`
	InternalOnly    bool             `json:"internal_only"`
	Archived        bool             `json:"archived"`
	Member          bool             `json:"member"`
	CreatedAt       int64            `json:"created_at"`
	UpdatedAt       int64            `json:"updated_at"`
	Participants    []participant    `json:"participants,omitempty"`
}

func (r *request) detail(m room.Room) (roomDetail, error) {
	in, err := r.svc.Directory.IsMember(r.ctx, m.No, r.Agent.No)
	return roomDetail{ID: m.ID, Name: m.Name, Description: m.Description, Instructions: m.Instructions, Channel: m.Channel,
		OwnerID: idOrNull(m.OwnerID), Group: orNull(m.GroupName), ReadVisibility: m.ReadVisibility,
		WriteVisibility: m.WriteVisibility, InternalOnly: m.InternalOnly, Archived: m.ArchivedAt != nil, Member: in,
		CreatedAt: millis(m.CreatedAt), UpdatedAt: millis(m.UpdatedAt)}, err
}

func (r *request) updateRoom() (any, error) {
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	c := directory.RoomChange{Name: given[string](r, "name"), Description: given[string](r, "description"),
		Instructions: given[string](r, "instructions"), InternalOnly: given[bool](r, "internal_only"),
		Group: given[string](r, "group_name")}
	if s := given[string](r, "channel_type"); s != nil {
		c.Channel = (*room.ChannelType)(s)
	}
	if s := given[string](r, "read_visibility"); s != nil {
		c.ReadVisibility = (*room.Visibility)(s)
	}
	if s := given[string](r, "write_visibility"); s != nil {
		c.WriteVisibility = (*room.Visibility)(s)
	}
	m, err := r.svc.Directory.Update(r.ctx, r.actor, id, c)
	if err != nil {
		return nil, err
	}
	return r.detail(m)
}

func (r *request) roomDetail() (any, error) {
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	m, err := r.svc.Directory.Room(r.ctx, r.actor, id)
	if err != nil {
		return nil, err
	}
	d, err := r.detail(m)
	if err != nil {
		return nil, err
	}
	d.Participants, err = r.participants(id, m.No)
	return d, err
}

type readableRoom struct {
	ID          uuid.UUID        `json:"room_id"`
	Name        string           `json:"name"`
	Description string           `json:"description"`
	Channel     room.ChannelType `json:"channel_type"`
	Group       *string          `json:"group"`
	Member      bool             `json:"member"`
	Archived    bool             `json:"archived"`
}

// readable tells of rooms that the agent may look at, and of which it is a member.
func (r *request) readable(rooms []room.Room) ([]readableRoom, error) {
	member, err := r.ownRooms()
	if err != nil {
		return nil, err
	}
	list := make([]readableRoom, len(rooms))
	for i, m := range rooms {
		list[i] = readableRoom{m.ID, m.Name, m.Description, m.Channel, orNull(m.GroupName), member[m.No], m.ArchivedAt != nil}
	}
	return list, nil
}

func (r *request) listAllRooms() (any, error) {
	rooms, err := r.svc.Directory.Rooms(r.ctx, r.actor, directory.Filter{IncludeArchived: r.flag("include_archived")})
	if err != nil {
		return nil, err
	}
	return r.readable(rooms)
}

type invitedAgent struct {
	RoomID uuid.UUID `json:"room_id"`
	Name   string    `json:"agent_name"`
	Joined bool      `json:"joined"`
	Note   string    `json:"note,omitempty"`
}

func (r *request) inviteAgent() (any, error) {
	inv := directory.Invitation{Name: r.text("agent_name"), Alias: r.text("alias"), Listening: r.flag("receives_join_events")}
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	a, err := r.svc.Identity.AgentNamed(r.ctx, inv.Name)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			return nil, fault.Field("agent_name", "there is no agent %.80q; list_agents shows them", inv.Name)
		}
		return nil, err
	}
	if inv.Alias != "" {
		if err := room.ValidAlias("alias", inv.Alias); err != nil {
			return nil, err
		}
	}
	joined, err := r.svc.Directory.Invite(r.ctx, r.actor, id, []directory.Invitation{inv})
	return invitedAgent{id, inv.Name, len(joined) > 0, note(a)}, err
}

type addedUsers struct {
	RoomID uuid.UUID `json:"room_id"`
	Added  []string  `json:"added"`
}

func (r *request) addUsers() (any, error) {
	people := introductions(r.names("user_names"))
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	added, err := r.svc.Directory.AddPeople(r.ctx, r.actor, id, people)
	out := addedUsers{id, []string{}}
	for _, m := range added {
		out.Added = append(out.Added, m.Person.Name)
	}
	return out, err
}

type archivedRoom struct {
	RoomID   uuid.UUID `json:"room_id"`
	Archived bool      `json:"archived"`
}

func (r *request) setArchived(archived bool) (any, error) {
	id, err := r.id("room_id")
	if err != nil {
		return nil, err
	}
	do := r.svc.Directory.Archive
	if !archived {
		do = r.svc.Directory.Unarchive
	}
	_, err = do(r.ctx, r.actor, id)
	return archivedRoom{id, archived}, err
}

func idOrNull(id uuid.UUID) *string {
	if id == uuid.Nil {
		return nil
	}
	s := id.String()
	return &s
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
