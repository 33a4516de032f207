package operation

import (
	"github.com/google/uuid"

	"signalbox/appliance/room/directory"
)

var linkOperations = []operation{{
	name: "list_linked_rooms", group: "links",
	description: "List the rooms that a room points to. Returns a list of {target_room_id, target_room_name, " +
		"target_room_description, label, access, access_note?}; access is member when you can connect_to_room there, else " +
		"not_member with a note.",
	args:   []arg{{"room_id", text, false, nil, roomHelp}},
	result: "`[{target_room_id, target_room_name, target_room_description, label, access, access_note?}]`",
	run: func(r *request) (any, error) {
		id, err := r.roomID("room_id")
		if err != nil {
			return nil, err
		}
		return r.linkedRooms(id)
	},
}, {
	name: "link_rooms", group: "links",
	description: "Point from a room you may write to to another that you may look at. Linking again changes the label. " +
		"Returns {room_id, target_room_id, label}.",
	args: []arg{{"target_room_id", text, true, nil, "Id of the room to point to."},
		{"label", text, false, "", "What the other room is to this one."},
		{"room_id", text, false, nil, roomHelp}},
	result: "`{room_id, target_room_id, label}`", run: (*request).linkRooms,
}, {
	name: "unlink_rooms", group: "links",
	description: "Remove a link from a room you may write to. Returns {room_id, target_room_id, unlinked}.",
	args: []arg{{"target_room_id", text, true, nil, "Id of the room pointed to."},
		{"room_id", text, false, nil, roomHelp}},
	result: "`{room_id, target_room_id, unlinked: true}`", run: (*request).unlinkRooms,
}}

// The values of access (H.4).
const (
	accessMember    = "member"
	accessNotMember = "not_member"
)

type linkedRoom struct {
	ID          uuid.UUID `json:"target_room_id"`
	Name        *string   `json:"target_room_name"`
	Description *string   `json:"target_room_description"`
	Label       string    `json:"label"`
	Access      string    `json:"access"`
	Note        string    `json:"access_note,omitempty"`
}

// linkedRooms are the links of a room as the agent sees them: of a private room that is not its own only that it is there.
func (r *request) linkedRooms(id uuid.UUID) ([]linkedRoom, error) {
	list, err := r.svc.Directory.Links(r.ctx, r.actor, id)
	if err != nil {
		return nil, err
	}
	out := make([]linkedRoom, len(list))
	for i, l := range list {
		out[i] = linkedRoom{ID: l.Target.ID, Label: l.Label, Access: accessMember}
		if l.Readable {
			out[i].Name, out[i].Description = &l.Target.Name, &l.Target.Description
		}
		if !l.Member {
			out[i].Access, out[i].Note = accessNotMember, "You are not a member of this room; ask somebody in it to "+
				"invite you."
		}
	}
	return out, nil
}

type link struct {
	RoomID uuid.UUID `json:"room_id"`
	Target uuid.UUID `json:"target_room_id"`
	Label  string    `json:"label"`
}

func (r *request) linkRooms() (any, error) {
	target, err := r.id("target_room_id")
	if err != nil {
		return nil, err
	}
	label := r.text("label")
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	return link{id, target, label}, r.svc.Directory.Link(r.ctx, r.actor, id, directory.NewLink{Target: target, Label: label})
}

type unlinked struct {
	RoomID   uuid.UUID `json:"room_id"`
	Target   uuid.UUID `json:"target_room_id"`
	Unlinked bool      `json:"unlinked"`
}

func (r *request) unlinkRooms() (any, error) {
	target, err := r.id("target_room_id")
	if err != nil {
		return nil, err
	}
	id, err := r.roomID("room_id")
	if err != nil {
		return nil, err
	}
	return unlinked{id, target, true}, r.svc.Directory.Unlink(r.ctx, r.actor, id, target)
}

var groupOperations = []operation{{
	name: "list_room_groups", group: "groups",
	description: "List the groups that rooms are sorted into. Returns a list of {id, name, description}. Next: " +
		"get_room_group_detail for the rooms of one.",
	result: "`[{id, name, description}]`", run: (*request).listGroups,
}, {
	name: "create_room_group", group: "groups",
	description: "Make a group to sort rooms into. It gives no rights. Returns {id, name, description}. Next: update_room " +
		"with group_name.",
	args: []arg{{"name", text, true, nil, "Name, unique on this server."},
		{"description", text, false, "", "What its rooms have in common."}},
	result: "`{id, name, description}`", run: (*request).createGroup,
}, {
	name: "get_room_group_detail", group: "groups",
	description: "Look at a group of rooms. Returns {id, name, description, rooms}; rooms are those of it that you may " +
		"look at.",
	args:   []arg{{"group", text, true, nil, "Name or id of the group, from list_room_groups."}},
	result: "`{id, name, description, rooms}`, rooms as in `list_all_rooms`", run: (*request).groupDetail,
}}

type roomGroup struct {
	ID          uuid.UUID `json:"id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
}

func shownGroup(g directory.Group) roomGroup { return roomGroup{g.ID, g.Name, g.Description} }

func (r *request) listGroups() (any, error) {
	list, err := r.svc.Directory.Groups(r.ctx)
	out := make([]roomGroup, len(list))
	for i, g := range list {
		out[i] = shownGroup(g)
	}
	return out, err
}

func (r *request) createGroup() (any, error) {
	g, err := r.svc.Directory.CreateGroup(r.ctx, r.actor, r.text("name"), r.text("description"))
	return shownGroup(g), err
}

type roomGroupDetail struct {
	roomGroup
	Rooms []readableRoom `json:"rooms"`
}

func (r *request) groupDetail() (any, error) {
	g, rooms, err := r.svc.Directory.Group(r.ctx, r.actor, r.text("group"))
	if err != nil {
		return nil, err
	}
	shown, err := r.readable(rooms)
	return roomGroupDetail{shownGroup(g), shown}, err
}
