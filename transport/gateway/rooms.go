package gateway

import (
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/identity"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
)

// roomShape is a room as people see it.
type roomShape struct {
	ID              uuid.UUID        `json:"id"`
	Name            string           `json:"name"`
	Description     string           `json:"description"`
	Instructions    string           `json:"instructions"`
	ChannelType     room.ChannelType `json:"channel_type"`
	Chat            bool             `json:"chat"`
	OwnerID         *uuid.UUID       `json:"owner_id"`
	GroupID         *uuid.UUID       `json:"group_id"`
	GroupName       *string          `json:"group_name"`
	ReadVisibility  room.Visibility  `json:"read_visibility"`
	WriteVisibility room.Visibility  `json:"write_visibility"`
	InternalOnly    bool             `json:"internal_only"`
	Archived        bool             `json:"archived"`
	ArchivedAt      *time.Time       `json:"archived_at"`
	CreatedAt       time.Time        `json:"created_at"`
	UpdatedAt       time.Time        `json:"updated_at"`
}

func roomOf(r room.Room) roomShape {
	out := roomShape{ID: r.ID, Name: r.Name, Description: r.Description, Instructions: r.Instructions, ChannelType: r.Channel,
		Chat: r.Chat, ReadVisibility: r.ReadVisibility, WriteVisibility: r.WriteVisibility, InternalOnly: r.InternalOnly,
		Archived: r.ArchivedAt != nil, ArchivedAt: r.ArchivedAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
	if r.OwnerNo != 0 {
		out.OwnerID = &r.OwnerID
	}
	if r.GroupNo != 0 {
		out.GroupID, out.GroupName = &r.GroupID, &r.GroupName
	}
	return out
}

// roomDetail is a room with who is in it.
type roomDetail struct {
	roomShape
	Agents []member       `json:"agents"`
	People []personMember `json:"people"`
	Roles  []role         `json:"roles"`
}

// member is an agent in a room.
type member struct {
	ID          uuid.UUID `json:"id"`
	Name        string    `json:"name"`
	DisplayName *string   `json:"display_name"`
	Alias       *string   `json:"alias"`
	JoinEvents  bool      `json:"receives_join_events"`
	Note        *string   `json:"note"` // only the owner can address it (D.8)
	JoinedAt    time.Time `json:"joined_at"`
}

func memberOf(m room.Member) member {
	return member{m.Agent.ID, m.Agent.Name, textOrNil(m.Agent.DisplayName), textOrNil(m.Alias), m.Listening,
		textOrNil(identity.OwnerOnlyHint(m.Agent)), m.JoinedAt}
}

// personMember is a person in a room.
type personMember struct {
	ID       uuid.UUID `json:"id"`
	Name     string    `json:"name"`
	Manager  bool      `json:"manager"`
	JoinedAt time.Time `json:"joined_at"`
}

// rooms lists the rooms that the person may read or is in.
func (s *Server) rooms(w http.ResponseWriter, r *http.Request, p room.Person) error {
	f := directory.Filter{Group: r.URL.Query().Get("group_id")}
	switch v := r.URL.Query().Get("include_archived"); v {
	case "", "false":
	case "true":
		f.IncludeArchived = true
	default:
		return fault.Field("include_archived", "must be true or false")
	}
	list, err := s.svc.Directory.Rooms(r.Context(), p.Actor(), f)
	if err != nil {
		return err
	}
	out := make([]roomShape, len(list))
	for i, found := range list {
		out[i] = roomOf(found)
	}
	return answer(w, r, out)
}

// newRoom is the body of POST /rooms (I).
type newRoom struct {
	Name            *string          `json:"name"`
	Description     string           `json:"description"`
	Instructions    string           `json:"instructions"`
	ChannelType     room.ChannelType `json:"channel_type"`
	AgentIDs        []string         `json:"agent_ids"`
	AgentNames      []string         `json:"agent_names"`
	JoinListeners   []string         `json:"join_event_listeners"` // ids or names, as the agents are given
	InternalOnly    bool             `json:"internal_only"`
	ReadVisibility  room.Visibility  `json:"read_visibility"`
	WriteVisibility room.Visibility  `json:"write_visibility"`
	Roles           []newRole        `json:"roles"`
	GroupID         *string          `json:"group_id"`
}

func (s *Server) createRoom(w http.ResponseWriter, r *http.Request, p room.Person) error {
	var in newRoom
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	n := directory.NewRoom{Description: in.Description, Instructions: in.Instructions, Channel: in.ChannelType,
		ReadVisibility: in.ReadVisibility, WriteVisibility: in.WriteVisibility, InternalOnly: in.InternalOnly}
	var err error
	if n.Name, err = need("name", in.Name); err != nil {
		return err
	}
	if in.GroupID != nil {
		n.Group = *in.GroupID
	}
	if n.Agents, err = invitations(in.AgentIDs, in.AgentNames, in.JoinListeners); err != nil {
		return err
	}
	for i, given := range in.Roles {
		made, err := given.role(fmt.Sprintf("roles[%d].", i))
		if err != nil {
			return err
		}
		n.Roles = append(n.Roles, made)
	}
	made, err := s.svc.Directory.Create(r.Context(), p.Actor(), n)
	if err != nil {
		return err
	}
	return s.showRoom(w, r, made, http.StatusCreated)
}

// invitations reads the agents of a request, by id and by name. Each listener must be one of them.
func invitations(ids, names, listeners []string) ([]directory.Invitation, error) {
	var out []directory.Invitation
	at := map[string]int{}
	for i, text := range ids {
		id, err := parseID(fmt.Sprintf("agent_ids[%d]", i), text)
		if err != nil {
			return nil, err
		}
		at[id.String()] = len(out)
		out = append(out, directory.Invitation{AgentID: id})
	}
	for _, name := range names {
		at[name] = len(out)
		out = append(out, directory.Invitation{Name: name})
	}
	for i, text := range listeners {
		if id, err := uuid.Parse(text); err == nil {
			text = id.String()
		}
		n, ok := at[text]
		if !ok {
			return nil, fault.Field(fmt.Sprintf("join_event_listeners[%d]", i), "must be one of the agents of this request")
		}
		out[n].Listening = true
	}
	return out, nil
}

// findRoom finds the room of the path for somebody who may read it.
func (s *Server) findRoom(r *http.Request, p room.Person) (room.Room, error) {
	id, err := pathID(r, "room")
	if err != nil {
		return room.Room{}, err
	}
	return s.svc.Directory.Room(r.Context(), p.Actor(), id)
}

func (s *Server) room(w http.ResponseWriter, r *http.Request, p room.Person) error {
	found, err := s.findRoom(r, p)
	if err != nil {
		return err
	}
	return s.showRoom(w, r, found, http.StatusOK)
}

func (s *Server) showRoom(w http.ResponseWriter, r *http.Request, found room.Room, status int) error {
	agents, people, err := s.svc.Directory.Members(r.Context(), found.ID)
	if err != nil {
		return err
	}
	roles, err := s.svc.Directory.Roles(r.Context(), found.ID)
	if err != nil {
		return err
	}
	out := roomDetail{roomShape: roomOf(found), Agents: make([]member, len(agents)), People: make([]personMember, len(people)),
		Roles: rolesOf(roles)}
	for i, m := range agents {
		out.Agents[i] = memberOf(m)
	}
	for i, m := range people {
		out.People[i] = personMember{m.Person.ID, m.Person.Name, m.Manager, m.JoinedAt}
	}
	transport.WriteJSON(w, r, status, out)
	return nil
}

// updateRoom changes what is given; a group_id of null takes the room out of its group.
func (s *Server) updateRoom(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	var in struct {
		Name            *string           `json:"name"`
		Description     *string           `json:"description"`
		Instructions    *string           `json:"instructions"`
		ChannelType     *room.ChannelType `json:"channel_type"`
		ReadVisibility  *room.Visibility  `json:"read_visibility"`
		WriteVisibility *room.Visibility  `json:"write_visibility"`
		InternalOnly    *bool             `json:"internal_only"`
		GroupID         nullable          `json:"group_id"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	c := directory.RoomChange{Name: in.Name, Description: in.Description, Instructions: in.Instructions, Channel: in.ChannelType,
		ReadVisibility: in.ReadVisibility, WriteVisibility: in.WriteVisibility, InternalOnly: in.InternalOnly}
	if in.GroupID.given {
		c.Group = &in.GroupID.text
	}
	changed, err := s.svc.Directory.Update(r.Context(), p.Actor(), id, c)
	if err != nil {
		return err
	}
	return s.showRoom(w, r, changed, http.StatusOK)
}

func (s *Server) deleteRoom(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	if err := s.svc.Directory.Delete(r.Context(), p.Actor(), id); err != nil {
		return err
	}
	return done(w, r)
}

func (s *Server) archive(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	changed, err := s.svc.Directory.Archive(r.Context(), p.Actor(), id)
	if err != nil {
		return err
	}
	return answer(w, r, roomOf(changed))
}

func (s *Server) unarchive(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	changed, err := s.svc.Directory.Unarchive(r.Context(), p.Actor(), id)
	if err != nil {
		return err
	}
	return answer(w, r, roomOf(changed))
}

// addAgents brings agents into a room; those who are in it already stay as they are (I).
func (s *Server) addAgents(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	var in struct {
		AgentIDs      *[]string `json:"agent_ids"`
		JoinListeners []string  `json:"join_event_listeners"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	ids, err := need("agent_ids", in.AgentIDs)
	if err != nil {
		return err
	}
	list, err := invitations(ids, nil, in.JoinListeners)
	if err != nil {
		return err
	}
	if _, err := s.svc.Directory.Invite(r.Context(), p.Actor(), id, list); err != nil {
		return err
	}
	agents, _, err := s.svc.Directory.Members(r.Context(), id)
	if err != nil {
		return err
	}
	out := make([]member, len(agents))
	for i, m := range agents {
		out[i] = memberOf(m)
	}
	return answer(w, r, map[string]any{"agents": out})
}

func roomAndAgent(r *http.Request) (roomID, agentID uuid.UUID, err error) {
	if roomID, err = pathID(r, "room"); err == nil {
		agentID, err = pathID(r, "agent")
	}
	return roomID, agentID, err
}

func (s *Server) changeMember(w http.ResponseWriter, r *http.Request, p room.Person) error {
	roomID, agentID, err := roomAndAgent(r)
	if err != nil {
		return err
	}
	var in struct {
		JoinEvents *bool `json:"receives_join_events"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	listening, err := need("receives_join_events", in.JoinEvents)
	if err != nil {
		return err
	}
	m, err := s.svc.Directory.SetListening(r.Context(), p.Actor(), roomID, agentID, listening)
	if err != nil {
		return err
	}
	return answer(w, r, memberOf(m))
}

func (s *Server) removeAgent(w http.ResponseWriter, r *http.Request, p room.Person) error {
	roomID, agentID, err := roomAndAgent(r)
	if err != nil {
		return err
	}
	if err := s.svc.Directory.Remove(r.Context(), p.Actor(), roomID, agentID); err != nil {
		return err
	}
	return done(w, r)
}
