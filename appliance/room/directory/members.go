package directory

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// maxInvited bounds one call: every join is told to all who are in the room, so a call costs their product.
const maxInvited = 200

// Invitation names an agent for a room, by id or by name.
type Invitation struct {
	AgentID   uuid.UUID // uuid.Nil: by Name
	Name      string
	Alias     string // "": none
	Listening bool   // joins of others are notifiable for it (D.7)
}

// resolve finds the invited agents, each once, and checks the form of their aliases.
func resolve(tx ReadTx, list []Invitation, field string) ([]room.Member, error) {
	members := make([]room.Member, 0, len(list))
	seen := make(map[int64]bool, len(list))
	for i, inv := range list {
		a, err := inv.agent(tx)
		if err != nil {
			return nil, fieldOf(err, indexed(field, i))
		}
		if seen[a.No] {
			continue
		}
		seen[a.No] = true
		if inv.Alias != "" {
			if err := room.ValidAlias(indexed(field, i)+".alias", inv.Alias); err != nil {
				return nil, err
			}
		}
		members = append(members, room.Member{Agent: a, Alias: inv.Alias, Listening: inv.Listening})
	}
	return members, nil
}

func (inv Invitation) agent(tx ReadTx) (room.Agent, error) {
	if inv.AgentID != uuid.Nil {
		a, err := tx.RoomAgentByID(inv.AgentID)
		return a, named(err, "agent %s", inv.AgentID)
	}
	a, err := tx.RoomAgentByName(inv.Name)
	return a, named(err, "agent %q", inv.Name)
}

// checkNames checks that mentions stay unambiguous when the members come into the room: an alias is unique against agent
// names, role names and aliases, case aside (H.6), and no newcomer is called like somebody's alias. empty: nobody is in
// the room yet.
func checkNames(tx ReadTx, r room.Room, joining []room.Member, empty bool) error {
	aliases, names := map[string]string{}, map[string]string{}
	for _, m := range joining {
		names[strings.ToLower(m.Agent.Name)] = m.Agent.Name
	}
	for _, m := range joining {
		if !empty {
			if err := checkNewName(tx, r, m.Agent.Name); err != nil {
				return err
			}
		}
		if m.Alias == "" {
			continue
		}
		key := strings.ToLower(m.Alias)
		if name, taken := names[key]; taken {
			return aliasTaken(m.Alias, "the name of agent "+name)
		}
		if name, taken := aliases[key]; taken {
			return aliasTaken(m.Alias, "the alias of agent "+name)
		}
		aliases[key] = m.Agent.Name
		if err := checkAlias(tx, r, m.Agent.Name, m.Alias); err != nil {
			return err
		}
	}
	return nil
}

// checkNewName refuses an agent whose name is an alias in the room.
func checkNewName(tx ReadTx, r room.Room, name string) error {
	_, aliased, err := tx.DirNamesIn(r.No, name)
	if err == nil && aliased != "" && aliased != name {
		err = fault.New(fault.Conflict, "agent %q cannot join: its name is the alias of agent %q in this room", name, aliased)
	}
	return err
}

// checkAlias checks that nobody but the agent itself is called so in the room.
func checkAlias(tx ReadTx, r room.Room, agent, alias string) error {
	name, aliased, err := tx.DirNamesIn(r.No, alias)
	switch {
	case err != nil:
		return err
	case name != "":
		return aliasTaken(alias, "the name of agent "+name)
	case aliased != "" && aliased != agent:
		return aliasTaken(alias, "the alias of agent "+aliased)
	}
	role, err := tx.DirRole(r.No, alias)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err == nil {
		err = aliasTaken(alias, "the name of role "+role.Name)
	}
	return err
}

func aliasTaken(alias, by string) error {
	return fault.New(fault.Conflict, "alias: %q is %s in this room", alias, by)
}

// Invite makes agents members of a room and returns those that were not before; the others stay as they are. Write access
// to the room is enough, whoever owns the agents: what may address an agent is its policy's to say (D.8). All join or
// none.
func (d *Directory) Invite(ctx context.Context, by room.Actor, id uuid.UUID, list []Invitation) ([]room.Member, error) {
	if len(list) == 0 || len(list) > maxInvited {
		return nil, fault.Field("agents", "must name 1 to %d agents", maxInvited)
	}
	var joined []room.Member
	err := d.st.Update(ctx, "invite", func(tx Tx) error {
		joined = nil
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		if err := notArchived(r); err != nil {
			return err
		}
		members, err := resolve(tx, list, "agents")
		if err != nil {
			return err
		}
		for _, m := range members {
			in, err := tx.DirAgentIn(r.No, m.Agent.No)
			if err != nil {
				return err
			}
			if !in {
				joined = append(joined, m)
			}
		}
		if len(joined) == 0 {
			return nil
		}
		if err := d.join(tx, r, joined); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.agents_invited", "room", id, map[string]any{"agents": some(memberNames(joined)),
			"agent_count": len(joined)})
	})
	if err != nil {
		return nil, err
	}
	return joined, nil
}

// join writes new members, with their room_join items.
func (d *Directory) join(tx Tx, r room.Room, joined []room.Member) error {
	if err := checkNames(tx, r, joined, false); err != nil {
		return err
	}
	if err := tx.DirInsertMembers(r.No, joined); err != nil {
		return err
	}
	actors := make([]room.Actor, len(joined))
	for i := range joined {
		m, err := tx.DirMember(r.No, joined[i].Agent.No)
		if err != nil {
			return err
		}
		joined[i], actors[i] = m, m.Agent.Actor()
		tx.AfterCommit(func() { d.changes.Joined(m.Agent.No, r.Ref()) })
	}
	if err := d.log.Joined(tx, r.No, actors...); err != nil {
		return err
	}
	if err := keepDirect(tx, r); err != nil {
		return err
	}
	return d.changed(tx, r.No)
}

// keepDirect makes a direct room with a second agent a group: in a direct room every line addresses every agent, and two
// agents would answer each other for ever.
func keepDirect(tx Tx, r room.Room) error {
	if r.Channel != room.ChannelDirect {
		return nil
	}
	n, err := tx.DirCountMembers(r.No)
	if err != nil || n < 2 {
		return err
	}
	r.Channel, r.UpdatedAt = room.ChannelGroup, tx.Now()
	return tx.DirUpdateRoom(r)
}

// InviteAgent is Invite of one agent by name, for the command !invite-agent.
func (d *Directory) InviteAgent(ctx context.Context, by room.Actor, id uuid.UUID, name string) error {
	_, err := d.Invite(ctx, by, id, []Invitation{{Name: name}})
	return err
}

// Remove ends an agent's membership; what waited for it of the room goes without a gap, and so do its claim, placement
// and lease there (C.7). Whoever may write to the room may do it, and the agent's owner. NotFound when it is no member.
func (d *Directory) Remove(ctx context.Context, by room.Actor, id, agentID uuid.UUID) error {
	return d.st.Update(ctx, "remove agent from room", func(tx Tx) error {
		r, m, err := d.memberFor(tx, by, id, agentID)
		if err != nil {
			return err
		}
		if err := d.leave(tx, m.Agent.No, r.No); err != nil {
			return err
		}
		if err := tx.DirDeleteMember(r.No, m.Agent.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.agent_removed", "room", id, map[string]any{"agent": m.Agent.Name,
			"agent_id": m.Agent.ID.String()})
	})
}

// leave removes what waits for the agent and has the connections told.
func (d *Directory) leave(tx Tx, agentNo, roomNo int64) error {
	if err := d.queue.Forget(tx, agentNo, roomNo); err != nil {
		return err
	}
	tx.AfterCommit(func() { d.changes.Left(agentNo, roomNo) })
	return d.changed(tx, roomNo)
}

// AgentDeleted ends every membership of an agent inside the transaction that deletes it. What waits for it is the
// caller's to remove (feed.ForgetAgent), and so is closing its connections.
func (d *Directory) AgentDeleted(tx Tx, agentNo int64) error {
	rooms, err := tx.DirDeleteMemberships(agentNo)
	if err != nil {
		return err
	}
	for _, no := range rooms {
		if err := d.changed(tx, no); err != nil {
			return err
		}
	}
	return nil
}

// memberFor finds a member that the actor may change: with write access to the room, or as the agent's owner or itself.
func (d *Directory) memberFor(tx ReadTx, by room.Actor, id, agentID uuid.UUID) (room.Room, room.Member, error) {
	r, err := roomFor(tx, id)
	if err != nil {
		return r, room.Member{}, err
	}
	a, err := tx.RoomAgentByID(agentID)
	if err != nil {
		return r, room.Member{}, named(err, "agent %s", agentID)
	}
	may, err := mayWrite(tx, by, r)
	if err != nil {
		return r, room.Member{}, err
	}
	owner := a.OwnerNo != 0 && a.OwnerNo == by.OwnerNo
	if self := by.Kind == room.KindAgent && by.No == a.No; !may && !owner && !self {
		return r, room.Member{}, fault.New(fault.Forbidden,
			"agents of room %q may be changed only by its owner, its managers, the agent's owner or an admin", r.Name)
	}
	m, err := tx.DirMember(r.No, a.No)
	return r, m, named(err, "agent %q in room %q", a.Name, r.Name)
}

// SetListening sets whether joins of others are notifiable for the agent in the room (D.7).
func (d *Directory) SetListening(ctx context.Context, by room.Actor, id, agentID uuid.UUID, listening bool) (room.Member, error) {
	return d.changeMember(ctx, by, id, agentID, "room.listening_set", func(tx Tx, r room.Room, m *room.Member) (any, error) {
		m.Listening = listening
		return listening, tx.DirSetListening(r.No, m.Agent.No, listening)
	})
}

// SetAlias gives the agent another name in the room, "" none (H.6).
func (d *Directory) SetAlias(ctx context.Context, by room.Actor, id, agentID uuid.UUID, alias string) (room.Member, error) {
	return d.changeMember(ctx, by, id, agentID, "room.alias_set", func(tx Tx, r room.Room, m *room.Member) (any, error) {
		if alias != "" {
			if err := room.ValidAlias("alias", alias); err != nil {
				return nil, err
			}
			if err := checkAlias(tx, r, m.Agent.Name, alias); err != nil {
				return nil, err
			}
		}
		m.Alias = alias
		return alias, tx.DirSetAlias(r.No, m.Agent.No, alias)
	})
}

func (d *Directory) changeMember(ctx context.Context, by room.Actor, id, agentID uuid.UUID, action string,
	change func(Tx, room.Room, *room.Member) (any, error)) (m room.Member, err error) {
	err = d.st.Update(ctx, "change room member", func(tx Tx) error {
		var r room.Room
		if r, m, err = d.memberFor(tx, by, id, agentID); err != nil {
			return err
		}
		value, err := change(tx, r, &m)
		if err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, action, "room", id, map[string]any{"agent": m.Agent.Name, "value": value})
	})
	if err != nil {
		return room.Member{}, err
	}
	return m, nil
}

// Members returns who is in a room, each by name. It asks for no right: the caller has found the room by one that does.
func (d *Directory) Members(ctx context.Context, id uuid.UUID) (agents []room.Member, people []room.PersonMember, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		if agents, err = tx.DirMembers(r.No); err != nil {
			return err
		}
		people, err = tx.DirPeopleIn(r.No)
		return err
	})
	return agents, people, err
}

// IsMember tells whether the agent is a member of the room.
func (d *Directory) IsMember(ctx context.Context, roomNo, agentNo int64) (in bool, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		in, err = tx.DirAgentIn(roomNo, agentNo)
		return err
	})
	return in, err
}

func memberNames(members []room.Member) []string {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Agent.Name
	}
	slices.Sort(names)
	return names
}

func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// fieldOf says in which field of the request something was that does not exist or is not allowed.
func fieldOf(err error, field string) error {
	switch code := fault.CodeOf(err); code {
	case fault.NotFound:
		return fault.Field(field, "%s", fault.Message(err))
	case fault.Forbidden:
		return fault.Wrap(code, err, "%s: %s", field, fault.Message(err))
	}
	return err
}
