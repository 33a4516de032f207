package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

// maxRoomList bounds what is read of a list in a body; the services have the rules.
const maxRoomList = 5000

func (a *API) listRooms(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := directory.Filter{IncludeArchived: q.flag("include_archived", false), Group: q.text("group", maxPrefix)}
	if err := q.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	rooms, err := a.Rooms.Directory.Rooms(ctx, by, f)
	if err != nil {
		return err
	}
	out := each(rooms, showRoom)
	if err := a.nameOwners(ctx, rooms, out); err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, out)
}

// nameOwners names the owners of rooms, all from one reading of the people.
func (a *API) nameOwners(ctx context.Context, rooms []room.Room, shown []roomPublic) error {
	if len(rooms) == 0 {
		return nil
	}
	people, err := a.Rooms.Identity.People(ctx)
	if err != nil {
		return err
	}
	names := make(map[uuid.UUID]string, len(people))
	for i := range people {
		names[people[i].ID] = people[i].Name
	}
	for i := range rooms {
		if shown[i].Owner != nil {
			shown[i].Owner.Name = names[rooms[i].OwnerID]
		}
	}
	return nil
}

// replyRoom answers with all of a room.
func (a *API) replyRoom(w http.ResponseWriter, c *call, status int, by room.Actor, r room.Room) error {
	detail, err := a.detail(c.Context(), by, &r)
	if err != nil {
		return err
	}
	return reply(w, c, status, detail)
}

func (a *API) getRoom(w http.ResponseWriter, c *call) error {
	_, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	return a.replyRoom(w, c, http.StatusOK, by, r)
}

func (a *API) createRoom(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	n := directory.NewRoom{Name: b.required("name"), Description: orEmpty(b.text("description")),
		Instructions: orEmpty(b.text("instructions")), Channel: room.ChannelType(orEmpty(b.text("channel_type"))),
		ReadVisibility:  room.Visibility(orEmpty(b.text("read_visibility"))),
		WriteVisibility: room.Visibility(orEmpty(b.text("write_visibility"))), Group: orEmpty(b.text("group")),
		RequestID: orEmpty(b.text("request_id")), NoAgents: true}
	listening := b.flag("listening")
	for _, id := range b.ids("agent_ids", maxRoomList) {
		n.Agents = append(n.Agents, directory.Invitation{AgentID: id, Listening: listening != nil && *listening})
	}
	for _, id := range b.ids("person_ids", maxRoomList) {
		n.People = append(n.People, directory.Introduction{PersonID: id})
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	r, err := a.Rooms.Directory.Create(ctx, by, n)
	if err != nil {
		return inOurWords(err, "agents", "agent_ids", "people", "person_ids")
	}
	return a.replyRoom(w, c, http.StatusCreated, by, r)
}

func (a *API) updateRoom(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	change := directory.RoomChange{Name: b.text("name"), Description: b.text("description"), Instructions: b.text("instructions"),
		Group: b.text("group")}
	if v := b.text("read_visibility"); v != nil {
		change.ReadVisibility = (*room.Visibility)(v)
	}
	if v := b.text("write_visibility"); v != nil {
		change.WriteVisibility = (*room.Visibility)(v)
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	r, err := a.Rooms.Directory.Update(ctx, by, id, change)
	if err != nil {
		return err
	}
	return a.replyRoom(w, c, http.StatusOK, by, r)
}

func (a *API) archiveRoom(w http.ResponseWriter, c *call) error {
	return a.setArchived(w, c, a.Rooms.Directory.Archive)
}

func (a *API) unarchiveRoom(w http.ResponseWriter, c *call) error {
	return a.setArchived(w, c, a.Rooms.Directory.Unarchive)
}

func (a *API) deleteRoom(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Directory.Delete(ctx, by, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) inviteAgents(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	ids, alias, listening := b.ids("agent_ids", maxRoomList), b.text("alias"), b.flag("listening")
	switch {
	case len(ids) == 0 && len(b.items) == 0:
		b.bad("agent_ids", "must name at least one agent")
	case alias != nil && len(ids) > 1:
		b.bad("alias", "is for one agent")
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	list := make([]directory.Invitation, 0, len(ids))
	for _, id := range ids {
		list = append(list, directory.Invitation{AgentID: id, Alias: orEmpty(alias), Listening: listening != nil && *listening})
	}
	joined, err := a.Rooms.Directory.Invite(ctx, by, r.ID, list)
	if err != nil {
		return inOurWords(err, "agents[0].alias", "alias", "agents", "agent_ids")
	}
	isNew := make(map[uuid.UUID]bool, len(joined))
	for i := range joined {
		isNew[joined[i].Agent.ID] = true
	}
	for _, id := range ids { // those who were there get what the request says of them
		if isNew[id] {
			continue
		}
		if alias != nil {
			if _, err := a.Rooms.Directory.SetAlias(ctx, by, r.ID, id, *alias); err != nil {
				return err
			}
		}
		if listening != nil {
			if _, err := a.Rooms.Directory.SetListening(ctx, by, r.ID, id, *listening); err != nil {
				return err
			}
		}
	}
	return a.replyRoom(w, c, http.StatusOK, by, r)
}

func (a *API) patchMember(w http.ResponseWriter, c *call) error {
	agentID, err := c.pathID("agent")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	alias, listening := b.text("alias"), b.flag("listening")
	if alias == nil && b.has("alias") && len(b.items) == 0 { // null takes it away
		alias = new(string)
	}
	if alias == nil && listening == nil && len(b.items) == 0 {
		b.bad("alias", "or listening must be given")
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if alias != nil {
		if _, err := a.Rooms.Directory.SetAlias(ctx, by, r.ID, agentID, *alias); err != nil {
			return err
		}
	}
	if listening != nil {
		if _, err := a.Rooms.Directory.SetListening(ctx, by, r.ID, agentID, *listening); err != nil {
			return err
		}
	}
	return a.replyRoom(w, c, http.StatusOK, by, r)
}

func (a *API) removeAgent(w http.ResponseWriter, c *call) error {
	agentID, err := c.pathID("agent")
	if err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Directory.Remove(ctx, by, r.ID, agentID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) addPeople(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	ids, manager := b.ids("person_ids", maxRoomList), b.flag("manager")
	if len(ids) == 0 && len(b.items) == 0 {
		b.bad("person_ids", "must name at least one person")
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	list := make([]directory.Introduction, 0, len(ids))
	for _, id := range ids {
		list = append(list, directory.Introduction{PersonID: id, Manager: manager != nil && *manager})
	}
	if _, err := a.Rooms.Directory.AddPeople(ctx, by, r.ID, list); err != nil {
		return inOurWords(err, "people", "person_ids")
	}
	return a.replyRoom(w, c, http.StatusOK, by, r)
}

func (a *API) removePerson(w http.ResponseWriter, c *call) error {
	personID, err := c.pathID("person")
	if err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Directory.RemovePerson(ctx, by, r.ID, personID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) listRoles(w http.ResponseWriter, c *call) error {
	ctx, _, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	roles, err := a.roles(ctx, &r)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, roles)
}

func (a *API) defineRole(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	exclusive := b.flag("exclusive")
	n := directory.NewRole{Name: b.required("name"), Instructions: orEmpty(b.text("instructions")),
		Exclusive: exclusive != nil && *exclusive}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	def, err := a.Rooms.Directory.DefineRole(ctx, by, r.ID, n)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, a.showRole(&r, &def))
}

func (a *API) editRole(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	change := directory.RoleChange{Name: b.text("name"), Instructions: b.text("instructions"), Exclusive: b.flag("exclusive")}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	def, err := a.Rooms.Directory.EditRole(ctx, by, r.ID, c.PathValue("role"), change)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, a.showRole(&r, &def))
}

func (a *API) deleteRole(w http.ResponseWriter, c *call) error {
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Directory.DeleteRole(ctx, by, r.ID, c.PathValue("role")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) listLinks(w http.ResponseWriter, c *call) error {
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	links, err := a.Rooms.Directory.Links(ctx, by, r.ID)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(links, showLink))
}

func (a *API) addLink(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	target, label := b.id("target_room_id"), orEmpty(b.text("label"))
	if target == nil && len(b.items) == 0 {
		b.bad("target_room_id", "is required")
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Directory.Link(ctx, by, r.ID, directory.NewLink{Target: *target, Label: label}); err != nil {
		return err
	}
	links, err := a.Rooms.Directory.Links(ctx, by, r.ID)
	if err != nil {
		return err
	}
	for i := range links {
		if links[i].Target.ID == *target {
			return reply(w, c, http.StatusCreated, showLink(&links[i]))
		}
	}
	return fault.New(fault.NotFound, "link not found: it was removed meanwhile")
}

func (a *API) removeLink(w http.ResponseWriter, c *call) error {
	target, err := c.pathID("target")
	if err != nil {
		return err
	}
	ctx, by, r, err := a.inRoom(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Directory.Unlink(ctx, by, r.ID, target); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
