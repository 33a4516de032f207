package operation

import (
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
)

const (
	threadHelp = "Id of any message of the thread to reply in. Leave out to start at the top level."
	roomHelp   = "Id of the room. Leave out for the room you are connected to."
)

var coreOperations = []operation{{
	name: "list_rooms", group: "core",
	description: "List the rooms you are a member of. Returns a list of {room_id, name, description, connected, " +
		"archived}; connected is true for the room you act in now. Next: connect_to_room with a room_id.",
	args:   []arg{{"include_archived", flag, false, false, "Also list archived rooms, which take no new messages."}},
	result: "`[{room_id, name, description, connected, archived}]`", run: (*request).listRooms,
}, {
	name: "connect_to_room", group: "core",
	description: "Move to a room: the room's messages are delivered to you and the other operations act in it. You leave " +
		"the room you were in. Returns all you need to know of it: instructions (follow them), participants, roles, " +
		"references, documents, linked rooms. A warning says that another of your sessions lost the room to you. Next: " +
		"read_context for what was said.",
	args: []arg{{"room_id", text, true, nil, "Id of the room, from list_rooms."},
		{"include_general_instructions", flag, false, true, "Begin instructions with the general guidance for rooms. Set " +
			"to false when you have read it."}},
	result: "`{agent_id, room_id, name, description, participants, instructions, reference_types, references, documents, " +
		"packages, linked_rooms, roles, warning}`",
	run: (*request).connectToRoom,
}, {
	name: "list_participants", group: "core", bound: true,
	description: "List who is in the room you are connected to. Returns a list of {id, name, type, status, alias}; type " +
		"is agent or user; status says whether an agent would react now (live), and alias is another name it answers to " +
		"here. A note says when an agent takes instructions from its owner only.",
	result: "`[{id, name, type, status, alias, note?}]`", run: (*request).listParticipants,
}, {
	name: "post_message", group: "core", bound: true,
	description: "Say something in the room you are connected to. Everybody there can read it; to have an agent act on " +
		"it, write @ and its name, alias or role in the body. Returns {event_id}, which is the id of the message.",
	args: []arg{{"body", text, true, nil, "The text, in Markdown. @name must not be followed by a letter, a digit or one " +
		"of . _ -"},
		{"thread_id", text, false, nil, threadHelp}},
	result: "`{event_id}`", run: (*request).postMessage,
}, {
	name: "send_targeted_message", group: "core", bound: true,
	description: "Say something to named participants or holders of roles in the room you are connected to: the message " +
		"begins with a mention of each. At least one target is needed. Returns {event_id, target_statuses}; " +
		"target_statuses says of each agent whether it will react: live does; not_permitted refuses you; others are away " +
		"and may see it later.",
	args: []arg{{"body", text, true, nil, "The text, without the mentions."},
		{"target_names", names, false, nil, "Names or aliases from list_participants, or everyone."},
		{"target_roles", names, false, nil, "Names from list_roles: whoever holds the role now."},
		{"thread_id", text, false, nil, threadHelp}},
	result: "`{event_id, target_statuses: {name: status}}`", run: (*request).sendTargeted,
}, {
	name: "read_context", group: "core",
	description: "Read what was said in a room, newest last, grouped by thread. Returns {threads: [{root, replies}], " +
		"truncated, oldest_timestamp}. When truncated is true there is more: ask again with before set to the oldest " +
		"timestamp. Use thread_id = the id of a root to reply in its thread.",
	args: []arg{{"limit", count, false, timeline.DefaultHistory, "How many messages at most, 1 to 500."},
		{"since", text, false, nil, "Only messages from this time on, ISO 8601; UTC when it says no offset."},
		{"before", text, false, nil, "Only messages before this time, ISO 8601; UTC when it says no offset."},
		{"room_id", text, false, nil, "Id of another room you are a member of, to read it without moving there."}},
	result: "`{threads: [{root, replies}], truncated, oldest_timestamp}`; root and replies are `{id, kind, sender, " +
		"sender_name, body, timestamp, attachments, sender_kind?, on_behalf_of?}`, an unknown root has `elided: true`",
	run: (*request).readContext,
}}

type listedRoom struct {
	ID          uuid.UUID `json:"room_id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Connected   bool      `json:"connected"`
	Archived    bool      `json:"archived"`
}

func (r *request) listRooms() (any, error) {
	rooms, err := r.svc.Directory.RoomsOf(r.ctx, r.Agent.No, r.flag("include_archived"))
	if err != nil {
		return nil, err
	}
	connected := r.connected()
	list := make([]listedRoom, len(rooms))
	for i, m := range rooms {
		list[i] = listedRoom{m.ID, m.Name, m.Description, slices.Contains(connected, m.ID), m.ArchivedAt != nil}
	}
	return list, nil
}

// connected are the rooms that the caller acts in: its session's, else its connection's; without a connection those of
// all of the agent's.
func (r *request) connected() (rooms []uuid.UUID) {
	for _, c := range r.svc.Connections.List(r.Agent.No) {
		switch {
		case !r.HasConnection:
			rooms = append(rooms, c.Rooms...)
		case c.ConnectionID != r.ConnectionID:
		case r.SessionID == "":
			return c.Rooms
		default:
			if id, placed := c.Placements[r.SessionID]; placed {
				return []uuid.UUID{id}
			}
		}
	}
	return rooms
}

type participant struct {
	ID          string       `json:"id"`
	Name        string       `json:"name"`
	Type        string       `json:"type"`
	AgentType   *string      `json:"agent_type"`
	CanDelegate bool         `json:"can_delegate"`
	CanAccept   bool         `json:"can_accept"`
	Status      *room.Status `json:"status"`
	RoomRole    *string      `json:"room_role"`
	Alias       *string      `json:"alias"`
	Note        string       `json:"note,omitempty"`
}

// participants tells who is in a room, agents first (H.3, H.4).
func (r *request) participants(id uuid.UUID, roomNo int64) ([]participant, error) {
	agents, people, err := r.svc.Directory.Members(r.ctx, id)
	if err != nil {
		return nil, err
	}
	held := r.svc.Connections.RoleHolders(roomNo)
	list := make([]participant, 0, len(agents)+len(people))
	for _, m := range agents {
		status := r.svc.Connections.Status(m.Agent.No, m.Agent.Profile.ConnectionModel, roomNo)
		list = append(list, participant{ID: m.Agent.ID.String(), Name: m.Agent.Name, Type: "agent",
			AgentType: orNull(m.Agent.Type), CanDelegate: m.Agent.Profile.TaskProtocol.CanDelegate,
			CanAccept: m.Agent.Profile.TaskProtocol.CanAccept,
			Status:    &status, RoomRole: orNull(held[m.Agent.No]), Alias: orNull(m.Alias), Note: note(m.Agent)})
	}
	for _, m := range people {
		list = append(list, participant{ID: m.Person.ID.String(), Name: m.Person.Name, Type: "user"})
	}
	return list, nil
}

type listedParticipant struct {
	ID     string       `json:"id"`
	Name   string       `json:"name"`
	Type   string       `json:"type"`
	Status *room.Status `json:"status"`
	Alias  *string      `json:"alias"`
	Note   string       `json:"note,omitempty"`
}

func (r *request) listParticipants() (any, error) {
	all, err := r.participants(r.room.ID, r.room.No)
	if err != nil {
		return nil, err
	}
	list := make([]listedParticipant, len(all))
	for i, p := range all {
		list[i] = listedParticipant{p.ID, p.Name, p.Type, p.Status, p.Alias, p.Note}
	}
	return list, nil
}

func (r *request) draft() timeline.Draft {
	return timeline.Draft{Actor: r.actor, RoomID: r.room.ID, Body: r.text("body"), ThreadID: r.text("thread_id")}
}

type postedMessage struct {
	EventID uuid.UUID `json:"event_id"`
}

func (r *request) postMessage() (any, error) {
	p, err := r.svc.Timeline.Post(r.ctx, r.draft())
	return postedMessage{p.Item.ID}, err
}

type postedTargeted struct {
	EventID  uuid.UUID         `json:"event_id"`
	Statuses map[string]string `json:"target_statuses"`
}

func (r *request) sendTargeted() (any, error) {
	p, statuses, err := r.svc.Timeline.PostTargeted(r.ctx, r.draft(),
		timeline.Targets{Names: r.names("target_names"), Roles: r.names("target_roles")})
	return postedTargeted{p.Item.ID, statuses}, err
}

type roomContext struct {
	AgentID        uuid.UUID         `json:"agent_id"`
	RoomID         uuid.UUID         `json:"room_id"`
	Name           string            `json:"name"`
	Description    string            `json:"description"`
	Participants   []participant     `json:"participants"`
	Instructions   string            `json:"instructions"`
	ReferenceTypes map[string]string `json:"reference_types"`
	References     []reference       `json:"references"`
	Documents      []document        `json:"documents"`
	Packages       []struct{}        `json:"packages"`
	LinkedRooms    []linkedRoom      `json:"linked_rooms"`
	Roles          []listedRole      `json:"roles"`
	Warning        *string           `json:"warning"`
}

func (r *request) connectToRoom() (any, error) {
	id, err := r.id("room_id")
	if err != nil {
		return nil, err
	}
	general := r.flag("include_general_instructions")
	out := roomContext{AgentID: r.Agent.ID, RoomID: id, Packages: []struct{}{}}
	if r.HasConnection {
		done, err := r.svc.Connections.Connect(r.Agent.No, r.ConnectionID, r.SessionID, id)
		if err != nil {
			return nil, direct{err}
		}
		out.Warning = orNull(done.Warning)
	}
	m, err := r.memberRoom(id)
	if err != nil {
		return nil, err
	}
	out.Name, out.Description, out.Instructions = m.Name, m.Description, m.Instructions
	if general {
		out.Instructions = generalInstructions
		if m.Instructions != "" {
			out.Instructions += "\n\n" + m.Instructions
		}
	}
	if out.Participants, err = r.participants(id, m.No); err != nil {
		return nil, err
	}
	if out.References, err = r.references(id); err != nil {
		return nil, err
	}
	out.ReferenceTypes = typesOf(out.References)
	if out.Documents, err = r.documents(id); err != nil {
		return nil, err
	}
	if out.LinkedRooms, err = r.linkedRooms(id); err != nil {
		return nil, err
	}
	out.Roles, err = r.roles(id, m.No)
	return out, err
}

// memberRoom finds a room that the agent is a member of; anything else is bad input (H.4).
func (r *request) memberRoom(id uuid.UUID) (room.Room, error) {
	m, err := r.svc.Directory.Room(r.ctx, r.actor, id)
	if err == nil {
		var in bool
		if in, err = r.svc.Directory.IsMember(r.ctx, m.No, r.Agent.No); err == nil && in {
			return m, nil
		}
	}
	switch fault.CodeOf(err) {
	case "", fault.NotFound, fault.Forbidden: // which of them is not the agent's to know
		return m, fault.Field("room_id", "you are not a member of room %s; list_rooms shows yours", id)
	}
	return m, err
}

type contextEntry struct {
	ID          uuid.UUID       `json:"id"`
	Kind        *room.ItemKind  `json:"kind"`
	Sender      *string         `json:"sender"`
	SenderName  *string         `json:"sender_name"`
	Body        *string         `json:"body"`
	Timestamp   *int64          `json:"timestamp"`
	Attachments json.RawMessage `json:"attachments"`
	SenderKind  string          `json:"sender_kind,omitempty"`
	OnBehalfOf  string          `json:"on_behalf_of,omitempty"`
	Elided      bool            `json:"elided,omitempty"`
}

type contextThread struct {
	Root    contextEntry   `json:"root"`
	Replies []contextEntry `json:"replies"`
}

type roomHistory struct {
	Threads   []contextThread `json:"threads"`
	Truncated bool            `json:"truncated"`
	Oldest    *int64          `json:"oldest_timestamp"`
}

func entry(it room.Item) contextEntry {
	at := millis(it.At)
	e := contextEntry{ID: it.ID, Kind: &it.Kind, Sender: &it.SenderID, SenderName: &it.SenderName, Body: &it.Body, Timestamp: &at,
		Attachments: it.Attachments, OnBehalfOf: it.OnBehalfOf}
	if e.Attachments == nil {
		e.Attachments = json.RawMessage("[]")
	}
	if it.SenderKind == room.KindPlatform {
		e.SenderKind = string(room.KindPlatform)
	}
	return e
}

func (r *request) readContext() (any, error) {
	q := timeline.HistoryQuery{}
	q.Limit, _ = value[int](r, "limit")
	var err error
	if q.Since, err = r.instant("since"); err != nil {
		return nil, err
	}
	if q.Before, err = r.instant("before"); err != nil {
		return nil, err
	}
	id, other, err := r.optionalID("room_id")
	if err != nil {
		return nil, err
	}
	// Only a read of the connected room catches up with it (D.10).
	here, err := r.locate()
	switch {
	case err != nil && !other:
		return nil, err
	case !other:
		id = here.ID
	}
	catchesUp := err == nil && here.ID == id
	q.RoomID = id
	var head int64
	if catchesUp {
		if head, err = r.svc.Feed.Head(r.ctx, r.Agent.No); err != nil { // before the read: what comes during it is not read
			return nil, err
		}
	}
	h, err := r.svc.Timeline.History(r.ctx, r.actor, q)
	if err != nil {
		return nil, err
	}
	if catchesUp {
		r.svc.Connections.SetBaseline(r.Agent.No, here.No, head)
	}
	return history(h), nil
}

func history(h timeline.History) roomHistory {
	out := roomHistory{Threads: make([]contextThread, len(h.Threads)), Truncated: h.Truncated}
	if !h.Oldest.IsZero() {
		at := millis(h.Oldest)
		out.Oldest = &at
	}
	for i, t := range h.Threads {
		root := contextEntry{ID: t.Root.Item.ID, Elided: true}
		if !t.Root.Elided {
			root = entry(t.Root.Item)
		}
		replies := make([]contextEntry, len(t.Replies))
		for j, it := range t.Replies {
			replies[j] = entry(it)
		}
		out.Threads[i] = contextThread{root, replies}
	}
	return out
}

// orNull is nil for the empty text.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
