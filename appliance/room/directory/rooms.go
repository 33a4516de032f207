package directory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// NewRoom is what Create makes a room of.
type NewRoom struct {
	Name, Description, Instructions string
	Channel                         room.ChannelType // "": channel_public; of a chat it follows from the agents
	Chat                            bool             // a person's own chat with agents (I): private, direct with one agent
	ReadVisibility, WriteVisibility room.Visibility  // "": public, private for a chat
	InternalOnly                    bool
	Group                           string // id or name of a room group; "": none
	Agents                          []Invitation
	WithChildrenOf                  []string // names of agents whose children become members too
	People                          []Introduction
	Roles                           []NewRole
	References                      []uuid.UUID
	Links                           []NewLink
	// NoAgents lets the room begin without any. The protocol's own routes ask for at least one (I).
	NoAgents bool
	// RequestID makes Create idempotent for its actor: the same id with the same content gives the room that was made
	// then, with other content REQUEST_REUSED (I). "": not.
	RequestID string
}

// Create makes a room (H.6). The caller becomes a member only if named, except a person: owner and manager. Those who
// are in a room from its beginning have not joined it: there is no room_join of them.
func (d *Directory) Create(ctx context.Context, by room.Actor, n NewRoom) (room.Room, error) {
	r, err := n.room(by)
	if err != nil {
		return room.Room{}, err
	}
	var made room.Room
	err = d.st.Update(ctx, "create room", func(tx Tx) error {
		made = r
		if n.RequestID != "" {
			if old, ok, err := repeated(tx, r.ID); err != nil || ok {
				made = old
				return err
			}
		}
		return d.create(ctx, tx, by, n, &made)
	})
	if err != nil {
		return room.Room{}, err
	}
	return made, nil
}

// room checks what can be checked without the database.
func (n *NewRoom) room(by room.Actor) (r room.Room, err error) {
	r = room.Room{Name: n.Name, Description: n.Description, Instructions: n.Instructions, Channel: n.Channel, Chat: n.Chat,
		ReadVisibility: n.ReadVisibility, WriteVisibility: n.WriteVisibility, InternalOnly: n.InternalOnly,
		OwnerNo: by.OwnerNo}
	if err := checkRoomTexts(r); err != nil {
		return r, err
	}
	otherwise := room.Public
	if n.Chat {
		otherwise = room.Private
		if n.Channel != "" {
			return r, fault.Field("channel_type", "is not chosen for a chat")
		}
		r.Channel = room.ChannelGroup // direct once there is one agent
	} else if r.Channel, err = openChannel(n.Channel); err != nil {
		return r, err
	}
	if err := checkVisibility(&r.ReadVisibility, &r.WriteVisibility, otherwise); err != nil {
		return r, err
	}
	if by.OwnerNo == 0 && !by.Admin && r.WriteVisibility != room.Public {
		return r, fault.Field("write_visibility", "must be public in a room that nobody owns: its maker has no owner")
	}
	for _, list := range []struct {
		field     string
		len, most int
	}{{"agents", len(n.Agents), maxFounders}, {"include_subagents_for", len(n.WithChildrenOf), maxListed},
		{"people", len(n.People), maxFounders}, {"roles", len(n.Roles), maxListed}, {"references", len(n.References), maxListed},
		{"linked_rooms", len(n.Links), maxListed}} {
		if list.len > list.most {
			return r, fault.Field(list.field, "must be at most %d", list.most)
		}
	}
	if len(n.RequestID) > maxName {
		return r, fault.Field("requestId", "must have at most %d bytes", maxName)
	}
	if n.RequestID != "" {
		r.ID, err = n.requestID(by)
	} else {
		r.ID, err = newID()
	}
	return r, err
}

func checkRoomTexts(r room.Room) error {
	if err := checkName("name", r.Name); err != nil {
		return err
	}
	if err := checkText("description", r.Description, 0, maxDescription); err != nil {
		return err
	}
	return checkText("instructions", r.Instructions, 0, maxInstructions)
}

// openChannel is the channel type of a room that is no chat (I).
func openChannel(c room.ChannelType) (room.ChannelType, error) {
	switch c {
	case "":
		return room.ChannelPublic, nil
	case room.ChannelPublic, room.ChannelPrivate:
		return c, nil
	}
	return "", fault.Field("channel_type", "must be channel_public or channel_private")
}

// requestID makes the id of a room from who asks with which request id, and from what is asked: the first half finds an
// earlier answer, the second tells whether it answered the same. It is a UUID of version 8.
func (n *NewRoom) requestID(by room.Actor) (id uuid.UUID, err error) {
	content := *n
	content.RequestID = ""
	b, err := json.Marshal(content)
	if err != nil {
		return id, fault.Wrap(fault.Internal, err, "encode a request")
	}
	who := sha256.Sum256([]byte("room request\x00" + by.ParticipantID() + "\x00" + n.RequestID))
	what := sha256.Sum256(b)
	copy(id[:8], who[:8])
	copy(id[8:], what[:8])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id, nil
}

// repeated finds the room that an earlier request of the same id made.
func repeated(tx ReadTx, id uuid.UUID) (room.Room, bool, error) {
	low, high := id, id
	binary.BigEndian.PutUint64(low[8:], 0)
	binary.BigEndian.PutUint64(high[8:], 1<<64-1)
	found, err := tx.DirRoomsBetween(low, high, true, 1)
	if err != nil || len(found) == 0 {
		return room.Room{}, false, err
	}
	if found[0].ID != id {
		return room.Room{}, false, room.Refuse(room.CodeRequestReused, "this requestId made another room")
	}
	r, err := roomFor(tx, id) // deleted meanwhile: not found, and not made again
	return r, err == nil, err
}

func (d *Directory) create(ctx context.Context, tx Tx, by room.Actor, n NewRoom, r *room.Room) error {
	r.CreatedAt, r.UpdatedAt = tx.Now(), tx.Now()
	if n.Group != "" {
		g, err := tx.DirGroup(n.Group)
		if err != nil {
			return fieldOf(named(err, "room group %q", n.Group), "group")
		}
		r.GroupNo, r.GroupID, r.GroupName = g.No, g.ID, g.Name
	}
	members, err := n.members(tx)
	if err != nil {
		return err
	}
	if n.Chat && len(members) == 1 {
		r.Channel = room.ChannelDirect
	}
	if r.No, err = tx.DirInsertRoom(*r); err != nil {
		return err
	}
	for i, role := range n.Roles {
		if err := insertRole(tx, *r, role, indexed("roles", i)); err != nil {
			return err
		}
	}
	if err := checkNames(tx, *r, members, true); err != nil {
		return err
	}
	if err := tx.DirInsertMembers(r.No, members); err != nil {
		return err
	}
	if err := d.foundPeople(tx, by, *r, n.People); err != nil {
		return err
	}
	if err := d.furnish(tx, by, *r, n); err != nil {
		return err
	}
	for _, m := range members {
		tx.AfterCommit(func() { d.changes.Joined(m.Agent.No, r.Ref()) })
	}
	if err := d.changed(tx, r.No); err != nil {
		return err
	}
	made, err := tx.DirRoom(r.ID)
	if err != nil {
		return err
	}
	*r = made
	return d.record(ctx, tx, by, "room.created", "room", r.ID, map[string]any{"name": r.Name, "channel_type": string(r.Channel),
		"agents": some(memberNames(members)), "agent_count": len(members)})
}

// members resolves who is in the room from its beginning.
func (n *NewRoom) members(tx Tx) ([]room.Member, error) {
	members, err := resolve(tx, n.Agents, "agents")
	if err != nil {
		return nil, err
	}
	for i, name := range n.WithChildrenOf {
		parent, err := tx.RoomAgentByName(name)
		if err != nil {
			return nil, fieldOf(named(err, "agent %q", name), indexed("include_subagents_for", i))
		}
		children, err := tx.DirChildren(parent.No)
		if err != nil {
			return nil, err
		}
		for _, c := range children {
			if !slices.ContainsFunc(members, func(m room.Member) bool { return m.Agent.No == c.No }) {
				members = append(members, room.Member{Agent: c})
			}
		}
	}
	if len(members) == 0 && !n.NoAgents {
		return nil, fault.Field("agents", "must name at least one agent")
	}
	return members, nil
}

// furnish attaches and links what the new room begins with.
func (d *Directory) furnish(tx Tx, by room.Actor, r room.Room, n NewRoom) error {
	for i, id := range n.References {
		ref, err := readableReference(tx, by, id)
		if err != nil {
			return fieldOf(err, indexed("references", i))
		}
		if err := tx.DirAttach(r.No, ref.No); err != nil {
			return err
		}
	}
	for i, l := range n.Links {
		if err := setLink(tx, by, r, l, indexed("linked_rooms", i)); err != nil {
			return err
		}
	}
	return nil
}

// RoomChange is what Update changes; nil leaves a field as it is.
type RoomChange struct {
	Name, Description, Instructions *string
	Channel                         *room.ChannelType
	ReadVisibility, WriteVisibility *room.Visibility // only owner or admin
	InternalOnly                    *bool
	Group                           *string // id or name; "" takes the room out of its group
}

// Update changes a room.
func (d *Directory) Update(ctx context.Context, by room.Actor, id uuid.UUID, c RoomChange) (room.Room, error) {
	var r room.Room
	err := d.st.Update(ctx, "update room", func(tx Tx) (err error) {
		if r, err = writable(tx, by, id); err != nil {
			return err
		}
		old := r
		fields, err := c.apply(tx, by, &r)
		if err != nil || r == old {
			return err
		}
		r.UpdatedAt = tx.Now()
		if err := tx.DirUpdateRoom(r); err != nil {
			return err
		}
		if r, err = tx.DirRoom(id); err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.updated", "room", id, map[string]any{"fields": fields})
	})
	return r, err
}

// apply puts the change into the room and returns the names of the fields it sets.
func (c *RoomChange) apply(tx Tx, by room.Actor, r *room.Room) (fields []string, err error) {
	set := func(name string) { fields = append(fields, name) }
	for _, f := range []struct {
		name string
		from *string
		to   *string
	}{{"name", c.Name, &r.Name}, {"description", c.Description, &r.Description},
		{"instructions", c.Instructions, &r.Instructions}} {
		if f.from != nil {
			*f.to = *f.from
			set(f.name)
		}
	}
	if c.Channel != nil && *c.Channel != r.Channel {
		if r.Chat {
			return nil, fault.Field("channel_type", "of a chat does not change")
		}
		if r.Channel, err = openChannel(*c.Channel); err != nil {
			return nil, err
		}
		set("channel_type")
	}
	if c.InternalOnly != nil {
		r.InternalOnly = *c.InternalOnly
		set("internal_only")
	}
	read, write := r.ReadVisibility, r.WriteVisibility
	if c.ReadVisibility != nil {
		r.ReadVisibility = *c.ReadVisibility
		set("read_visibility")
	}
	if c.WriteVisibility != nil {
		r.WriteVisibility = *c.WriteVisibility
		set("write_visibility")
	}
	if err := checkVisibility(&r.ReadVisibility, &r.WriteVisibility, ""); err != nil {
		return nil, err
	}
	if (read != r.ReadVisibility || write != r.WriteVisibility) && !r.MayDelete(by) {
		return nil, fault.New(fault.Forbidden, "only the owner of room %q or an admin may change its visibility", r.Name)
	}
	if c.Group != nil {
		var g Group
		if *c.Group != "" {
			if g, err = tx.DirGroup(*c.Group); err != nil {
				return nil, fieldOf(named(err, "room group %q", *c.Group), "group")
			}
		}
		r.GroupNo, r.GroupID, r.GroupName = g.No, g.ID, g.Name
		set("group")
	}
	return fields, checkRoomTexts(*r)
}

// Archive closes a room to posts and joins; members, events and claims stay (C.7). Twice is once.
func (d *Directory) Archive(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error) {
	return d.setArchived(ctx, by, id, true)
}

// Unarchive opens an archived room again. Twice is once.
func (d *Directory) Unarchive(ctx context.Context, by room.Actor, id uuid.UUID) (room.Room, error) {
	return d.setArchived(ctx, by, id, false)
}

func (d *Directory) setArchived(ctx context.Context, by room.Actor, id uuid.UUID, archived bool) (room.Room, error) {
	op, action := "archive room", "room.archived"
	if !archived {
		op, action = "unarchive room", "room.unarchived"
	}
	var r room.Room
	err := d.st.Update(ctx, op, func(tx Tx) (err error) {
		if r, err = writable(tx, by, id); err != nil || archived == (r.ArchivedAt != nil) {
			return err
		}
		now := tx.Now()
		r.UpdatedAt, r.ArchivedAt = now, nil
		if archived {
			r.ArchivedAt = &now
		}
		if err := tx.DirUpdateRoom(r); err != nil {
			return err
		}
		if r, err = tx.DirRoom(id); err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, action, "room", id, map[string]any{"name": r.Name})
	})
	return r, err
}

// Delete removes a room for good: members and what waits for them at once and without a gap (C.7), its log later by
// PurgeDeleted.
func (d *Directory) Delete(ctx context.Context, by room.Actor, id uuid.UUID) error {
	return d.st.Update(ctx, "delete room", func(tx Tx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		if !r.MayDelete(by) {
			return fault.New(fault.Forbidden, "room %q may be deleted only by its owner or an admin", r.Name)
		}
		members, err := tx.DirMembers(r.No)
		if err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil { // while the people are still in it
			return err
		}
		if err := d.queue.ForgetRoom(tx, r.No); err != nil {
			return err
		}
		if err := tx.DirDeleteRoom(r.No); err != nil {
			return err
		}
		for _, m := range members {
			tx.AfterCommit(func() { d.changes.Left(m.Agent.No, r.No) })
		}
		return d.record(ctx, tx, by, "room.deleted", "room", id, map[string]any{"name": r.Name, "agent_count": len(members)})
	})
}
