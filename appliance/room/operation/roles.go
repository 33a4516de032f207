package operation

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
)

// previewLength is how many characters of a role's instructions a list shows (K).
const previewLength = 200

const roleHelp = "Name of the role, from list_roles."

var roleOperations = []operation{{
	name: "list_roles", group: "roles", bound: true,
	description: "List the roles of the room you are connected to. Returns a list of {name, exclusive, " +
		"instructions_preview, held_by, assumable_by_me}; held_by says who holds it now, whether that agent is in this " +
		"room at the moment, and else where it is. Next: assume_role to take one.",
	result: "`[{name, exclusive, instructions_preview, held_by: [{name, present_here, session_room}], assumable_by_me}]`",
	run:    func(r *request) (any, error) { return r.roles(r.room.ID, r.room.No) },
}, {
	name: "get_role_detail", group: "roles", bound: true,
	description: "Read one role of the room you are connected to, with its full instructions and who holds it.",
	args:        []arg{{"role", text, true, nil, roleHelp}},
	result:      "`{name, exclusive, instructions, held_by, assumable_by_me}`", run: (*request).roleDetail,
}, {
	name: "define_role", group: "roles", bound: true,
	description: "Add a role to the room you are connected to. Whoever holds it is addressed by @ and its name." + ownerNote +
		" Returns {name, exclusive, instructions}. Next: assume_role, if it is for you.",
	args: []arg{{"name", text, true, nil, "Name without white space, unique in the room."},
		{"exclusive", flag, false, false, "Whether one agent at a time can hold it."},
		{"instructions", text, false, "", "What whoever holds it is told."}},
	result: "`{name, exclusive, instructions}`", run: (*request).defineRole,
}, {
	name: "edit_role", group: "roles", bound: true,
	description: "Change a role of the room you are connected to. Only what you give is changed; a new name ends the " +
		"leases of those who hold it." + ownerNote + " Returns {name, exclusive, instructions}.",
	args: []arg{{"role", text, true, nil, roleHelp},
		{"new_name", text, false, nil, "New name without white space."},
		{"exclusive", flag, false, nil, "Whether one agent at a time can hold it."},
		{"instructions", text, false, nil, "New instructions."}},
	result: "`{name, exclusive, instructions}`", run: (*request).editRole,
}, {
	name: "delete_role", group: "roles", bound: true,
	description: "Remove a role from the room you are connected to; whoever holds it holds it no more." + ownerNote +
		" Returns {role, deleted}.",
	args:   []arg{{"role", text, true, nil, roleHelp}},
	result: "`{role, deleted: true}`", run: (*request).deleteRole,
}, {
	name: "assume_role", group: "roles", bound: true,
	description: "Take a role of the room you are connected to: messages that mention it address you from now on. You " +
		"hold one role at a time, also after you move to another room, until release_role or until you are gone. Returns " +
		"{role, instructions}: follow them.",
	args:   []arg{{"role", text, true, nil, roleHelp}},
	result: "`{role, instructions}`", run: (*request).assumeRole,
}, {
	name: "release_role", group: "roles",
	description: "Give back the role you hold, in whichever room. Holding none is no error. Returns {released, role}; " +
		"role is null when you held none.",
	result: "`{released, role}`", run: (*request).releaseRole,
}}

type holder struct {
	Name        string  `json:"name"`
	PresentHere bool    `json:"present_here"`
	SessionRoom *string `json:"session_room"`
}

type listedRole struct {
	Name      string   `json:"name"`
	Exclusive bool     `json:"exclusive"`
	Preview   string   `json:"instructions_preview"`
	HeldBy    []holder `json:"held_by"`
	Assumable bool     `json:"assumable_by_me"`
}

// roles are those of a room as the agent sees them (H.6).
func (r *request) roles(id uuid.UUID, roomNo int64) ([]listedRole, error) {
	defs, err := r.svc.Directory.Roles(r.ctx, id)
	if err != nil {
		return nil, err
	}
	return r.shownRoles(id, roomNo, defs), nil
}

func (r *request) shownRoles(id uuid.UUID, roomNo int64, defs []room.RoleDef) []listedRole {
	leases := r.svc.Connections.Leases(roomNo)
	slices.SortFunc(leases, func(x, y connection.Lease) int { return cmp.Compare(x.AgentName, y.AgentName) })
	own, holds := r.svc.Connections.HeldRole(r.Agent.No)
	list := make([]listedRole, len(defs))
	for i, d := range defs {
		role := listedRole{Name: d.Name, Exclusive: d.Exclusive, Preview: preview(d.Instructions), HeldBy: []holder{}}
		isMine := holds && own.Room.No == roomNo && own.Role == d.Name
		taken := false
		for _, l := range leases {
			if l.Role != d.Name {
				continue
			}
			taken = taken || l.AgentNo != r.Agent.No
			role.HeldBy = append(role.HeldBy, where(l, id))
		}
		role.Assumable = (!holds || isMine) && !(d.Exclusive && taken)
		list[i] = role
	}
	return list
}

// where tells where the holder of a role is at the moment.
func where(l connection.Lease, id uuid.UUID) holder {
	h := holder{Name: l.AgentName, PresentHere: slices.Contains(l.Rooms, id)}
	switch {
	case h.PresentHere:
		h.SessionRoom = idOrNull(id)
	case len(l.Rooms) > 0:
		h.SessionRoom = idOrNull(l.Rooms[0])
	}
	return h
}

func preview(s string) string {
	if utf8.RuneCountInString(s) <= previewLength {
		return s
	}
	return string([]rune(s)[:previewLength])
}

type shownRole struct {
	Name         string   `json:"name"`
	Exclusive    bool     `json:"exclusive"`
	Instructions string   `json:"instructions"`
	HeldBy       []holder `json:"held_by"`
	Assumable    bool     `json:"assumable_by_me"`
}

func (r *request) roleDetail() (any, error) {
	d, err := r.svc.Directory.Role(r.ctx, r.room.ID, roleName(r.text("role")))
	if err != nil {
		return nil, err
	}
	role := r.shownRoles(r.room.ID, r.room.No, []room.RoleDef{d})[0]
	return shownRole{d.Name, d.Exclusive, d.Instructions, role.HeldBy, role.Assumable}, nil
}

// roleName drops the @ that a role may be given with.
func roleName(s string) string { return strings.TrimPrefix(s, "@") }

type definedRole struct {
	Name         string `json:"name"`
	Exclusive    bool   `json:"exclusive"`
	Instructions string `json:"instructions"`
}

func (r *request) defineRole() (any, error) {
	d, err := r.svc.Directory.DefineRole(r.ctx, r.actor, r.room.ID, directory.NewRole{Name: r.text("name"),
		Exclusive: r.flag("exclusive"), Instructions: r.text("instructions")})
	return definedRole{d.Name, d.Exclusive, d.Instructions}, err
}

func (r *request) editRole() (any, error) {
	d, err := r.svc.Directory.EditRole(r.ctx, r.actor, r.room.ID, roleName(r.text("role")), directory.RoleChange{
		Name: given[string](r, "new_name"), Exclusive: given[bool](r, "exclusive"),
		Instructions: given[string](r, "instructions")})
	return definedRole{d.Name, d.Exclusive, d.Instructions}, err
}

type deletedRole struct {
	Role    string `json:"role"`
	Deleted bool   `json:"deleted"`
}

func (r *request) deleteRole() (any, error) {
	name := roleName(r.text("role"))
	return deletedRole{name, true}, r.svc.Directory.DeleteRole(r.ctx, r.actor, r.room.ID, name)
}

type assumedRole struct {
	Role         string `json:"role"`
	Instructions string `json:"instructions"`
}

func (r *request) assumeRole() (any, error) {
	name := roleName(r.text("role"))
	d, err := r.svc.Directory.Role(r.ctx, r.room.ID, name)
	if err != nil {
		return nil, err
	}
	if err := r.svc.Connections.AssumeRole(r.Agent.No, r.ConnectionID, r.room.ID, d.Name, d.Exclusive); err != nil {
		return nil, direct{err}
	}
	// A role that went between the two looks would be held although it is not there.
	now, err := r.svc.Directory.Role(r.ctx, r.room.ID, name)
	if err == nil && now.Name != d.Name {
		err = fault.New(fault.Invalid, "role: %q was renamed meanwhile; call list_roles and try again", d.Name)
	}
	if err != nil {
		r.svc.Connections.ReleaseRole(r.Agent.No)
		return nil, err
	}
	return assumedRole{now.Name, now.Instructions}, nil
}

type releasedRole struct {
	Released bool    `json:"released"`
	Role     *string `json:"role"`
}

func (r *request) releaseRole() (any, error) {
	l, held := r.svc.Connections.ReleaseRole(r.Agent.No)
	if !held {
		return releasedRole{}, nil
	}
	return releasedRole{true, &l.Role}, nil
}
