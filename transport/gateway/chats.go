package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/timeline"
	"signalbox/transport/roomhttp"
)

// Bounds of a page of messages (K).
const (
	chatPage    = 50
	maxChatPage = 200
	maxRoomName = 200 // characters
)

// chat is a room that the person is in (I).
type chat struct {
	RoomID      uuid.UUID        `json:"roomId"`
	Name        string           `json:"name"`
	Description string           `json:"description"`
	ChannelType room.ChannelType `json:"channelType"`
	Archived    bool             `json:"archived"`
	Agents      []chatAgent      `json:"agents"`
	Members     []chatMember     `json:"members"`
	CanManage   bool             `json:"canManage"`
	HeadSeq     int64            `json:"headSeq"`
	LastMessage *message         `json:"lastMessage"`
}

type chatAgent struct {
	ID          uuid.UUID `json:"agentId"`
	Name        string    `json:"name"`
	DisplayName *string   `json:"displayName"`
	IconURL     *string   `json:"iconUrl"`
	Alias       *string   `json:"alias"`
	Note        *string   `json:"note"` // only the owner can address it (D.8)
}

type chatMember struct {
	ID      uuid.UUID `json:"userId"`
	Name    string    `json:"name"`
	Manager bool      `json:"manager"`
}

// message is one item of a room's log (I).
type message struct {
	ID          uuid.UUID    `json:"messageId"`
	Seq         int64        `json:"seq"`
	RoomID      uuid.UUID    `json:"roomId"`
	SentAt      time.Time    `json:"sentAt"`
	Sender      sender       `json:"sender"`
	Source      string       `json:"source"` // message, command, room_join, or automatic: an answer of the server
	Body        string       `json:"body"`
	Format      string       `json:"format"`
	ThreadRoot  *uuid.UUID   `json:"threadRootId"`
	Attachments []attachment `json:"attachments"`
	ClientTxn   *string      `json:"clientTxn"` // the requestId, told to whoever posted
}

type sender struct {
	ClientID string  `json:"clientId"`
	Name     string  `json:"name"`
	Kind     string  `json:"kind"` // agent, user or system
	AgentID  *string `json:"agentId"`
	UserID   *string `json:"userId"`
}

// attachment is a file; its bytes are at GET /gateway/rooms/{roomId}/media?mxc=mediaId.
type attachment struct {
	MediaID  string `json:"mediaId"`
	Filename string `json:"filename"`
	Mimetype string `json:"mimetype"`
	Size     int64  `json:"size"`
	Type     string `json:"type"`
}

// messageOf shows an item to a person.
func messageOf(roomID uuid.UUID, it room.Item, to room.Person) (message, error) {
	m := message{ID: it.ID, Seq: it.Position, RoomID: roomID, SentAt: it.At, Source: string(it.Kind), Body: it.Body,
		Format: "markdown", Attachments: []attachment{},
		Sender: sender{ClientID: it.SenderID, Name: it.SenderName, Kind: "system"}}
	switch it.SenderKind {
	case room.KindAgent:
		m.Sender.Kind, m.Sender.AgentID = "agent", &it.SenderID
	case room.KindPerson:
		m.Sender.Kind, m.Sender.UserID = "user", &it.SenderID
		if it.SenderNo == to.No {
			m.ClientTxn = textOrNil(it.RequestID)
		}
	}
	switch {
	case it.Kind == room.ItemJoin:
		m.Body = it.SenderName + " joined"
	case it.Automatic:
		m.Source = "automatic"
	}
	if it.ThreadNo != 0 {
		m.ThreadRoot = &it.ThreadID
	}
	if len(it.Attachments) == 0 {
		return m, nil
	}
	var files []room.Attachment
	if err := json.Unmarshal(it.Attachments, &files); err != nil {
		return m, fault.Wrap(fault.Internal, err, "decode the attachments of a message")
	}
	for _, f := range files {
		m.Attachments = append(m.Attachments, attachment{f.Media, f.Filename, f.Mimetype, f.Size, f.Type})
	}
	return m, nil
}

func messagesOf(roomID uuid.UUID, items []room.Item, to room.Person) ([]message, error) {
	out := make([]message, len(items))
	for i, it := range items {
		var err error
		if out[i], err = messageOf(roomID, it, to); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// chatOf describes a room to a person who is in it. A position after HeadSeq is not in what it says.
func (s *Server) chatOf(ctx context.Context, r room.Room, p room.Person) (chat, error) {
	c := chat{RoomID: r.ID, Name: r.Name, Description: r.Description, ChannelType: r.Channel, Archived: r.ArchivedAt != nil}
	last, _, err := s.svc.Timeline.Before(ctx, r.No, 0, 1)
	if err != nil {
		return c, err
	}
	if len(last) == 1 {
		m, err := messageOf(r.ID, last[0], p)
		if err != nil {
			return c, err
		}
		c.HeadSeq, c.LastMessage = m.Seq, &m
	}
	agents, people, err := s.svc.Directory.Members(ctx, r.ID)
	if err != nil {
		return c, err
	}
	c.Agents, c.Members = make([]chatAgent, len(agents)), make([]chatMember, len(people))
	for i, m := range agents {
		c.Agents[i] = chatAgent{m.Agent.ID, m.Agent.Name, textOrNil(m.Agent.DisplayName), textOrNil(m.Agent.IconURL),
			textOrNil(m.Alias), textOrNil(identity.OwnerOnlyHint(m.Agent))}
	}
	c.CanManage = r.MayDelete(p.Actor())
	for i, m := range people {
		c.Members[i] = chatMember{m.Person.ID, m.Person.Name, m.Manager}
		c.CanManage = c.CanManage || m.Manager && m.Person.No == p.No
	}
	return c, nil
}

// chats lists the rooms that the person is in, archived ones too.
func (s *Server) chats(w http.ResponseWriter, r *http.Request, p room.Person) error {
	rooms, err := s.svc.Directory.RoomsOfPerson(r.Context(), p.No, true)
	if err != nil {
		return err
	}
	out := make([]chat, 0, len(rooms))
	for _, found := range rooms {
		c, err := s.chatOf(r.Context(), found, p)
		if fault.Is(err, fault.NotFound) { // deleted in between
			continue
		}
		if err != nil {
			return err
		}
		out = append(out, c)
	}
	return answer(w, r, map[string]any{"chats": out})
}

// createChat opens a private room of the person with agents; with one agent every line addresses it (I).
func (s *Server) createChat(w http.ResponseWriter, r *http.Request, p room.Person) error {
	var in struct {
		AgentIDs  []string `json:"agentIds"`
		AgentID   *string  `json:"agentId"`
		Name      string   `json:"name"`
		RequestID *string  `json:"requestId"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	n := directory.NewRoom{Chat: true, Name: strings.TrimSpace(in.Name)}
	var err error
	if n.RequestID, err = requestID(in.RequestID); err != nil {
		return err
	}
	switch {
	case in.AgentID != nil && len(in.AgentIDs) > 0:
		return fault.Field("agentId", "must be absent beside agentIds")
	case in.AgentID != nil:
		in.AgentIDs = []string{*in.AgentID}
	case len(in.AgentIDs) == 0:
		return fault.Field("agentIds", "must name at least one agent")
	}
	var names []string
	for _, text := range in.AgentIDs {
		id, err := parseID("agentIds", text)
		if err != nil {
			return err
		}
		a, err := s.svc.Identity.Agent(r.Context(), id)
		if fault.Is(err, fault.NotFound) {
			return fault.Field("agentIds", "agent %s not found", id)
		}
		if err != nil {
			return err
		}
		n.Agents, names = append(n.Agents, directory.Invitation{AgentID: id}), append(names, a.Name)
	}
	if n.Name == "" {
		n.Name = shorten(strings.Join(names, ", "), maxRoomName)
	}
	made, err := s.svc.Directory.Create(r.Context(), p.Actor(), n)
	if err != nil {
		return err
	}
	return s.showChat(w, r, made, p)
}

func (s *Server) showChat(w http.ResponseWriter, r *http.Request, made room.Room, p room.Person) error {
	c, err := s.chatOf(r.Context(), made, p)
	if err != nil {
		return err
	}
	return answer(w, r, map[string]any{"chat": c})
}

// requestID checks an idempotency key.
func requestID(given *string) (string, error) {
	id, err := need("requestId", given)
	if err == nil && strings.TrimSpace(id) == "" {
		err = fault.Field("requestId", "must not be empty")
	}
	return id, err
}

// shorten cuts a text to so many characters.
func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// findChat finds the room of the path for somebody who is in it (I).
func (s *Server) findChat(r *http.Request, p room.Person) (room.Room, error) {
	found, err := s.findRoom(r, p)
	if err != nil {
		return found, err
	}
	in, err := s.svc.Directory.PersonIn(r.Context(), found.No, p.No)
	if err == nil && !in {
		err = fault.New(fault.Forbidden, "you are not a member of room %s", found.ID)
	}
	return found, err
}

// messages is a page of a room's log, oldest first.
func (s *Server) messages(w http.ResponseWriter, r *http.Request, p room.Person) error {
	found, err := s.findChat(r, p)
	if err != nil {
		return err
	}
	before, err := query(r, "beforeSeq", 0, 1, 1<<53-1)
	if err != nil {
		return err
	}
	limit, err := query(r, "limit", chatPage, 1, maxChatPage)
	if err != nil {
		return err
	}
	items, more, err := s.svc.Timeline.Before(r.Context(), found.No, before, int(limit))
	if err != nil {
		return err
	}
	// The head of the newest page is its last message: a stream opened there misses nothing that the page has not.
	head := int64(0)
	if before == 0 && len(items) > 0 {
		head = items[len(items)-1].Position
	} else if before != 0 {
		if _, head, err = s.svc.Timeline.Since(r.Context(), found.No, 1<<53, 1); err != nil {
			return err
		}
	}
	list, err := messagesOf(found.ID, items, p)
	if err != nil {
		return err
	}
	return answer(w, r, map[string]any{"messages": list, "headSeq": head, "hasMore": more})
}

// post says something in a room; the answer holds the message and what the server said to it (I).
func (s *Server) post(w http.ResponseWriter, r *http.Request, p room.Person) error {
	found, err := s.findChat(r, p)
	if err != nil {
		return err
	}
	var in struct {
		RequestID  *string  `json:"requestId"`
		Body       string   `json:"body"`
		ThreadRoot *string  `json:"threadRootId"`
		UploadIDs  []string `json:"uploadIds"`
		Mention    *string  `json:"mentionAgentId"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	d := timeline.Draft{Actor: p.Actor(), RoomID: found.ID, Body: in.Body}
	if d.RequestID, err = requestID(in.RequestID); err != nil {
		return err
	}
	if in.ThreadRoot != nil {
		d.ThreadID = *in.ThreadRoot
	}
	if in.Mention != nil {
		if d.Body, d.RefuseNew, err = s.mention(r.Context(), found, in.Body, *in.Mention); err != nil {
			return err
		}
	}
	if len(in.UploadIDs) > 0 {
		var stale error
		if d.Attachments, stale, err = s.svc.Media.Attachments(r.Context(), d.Actor, found.ID, in.UploadIDs); err != nil {
			return err
		}
		if d.RefuseNew == nil {
			d.RefuseNew = stale
		}
	}
	posted, err := s.svc.Timeline.Post(r.Context(), d)
	if err != nil {
		return err
	}
	list, err := messagesOf(found.ID, append([]room.Item{posted.Item}, posted.Answers...), p)
	if err != nil {
		return err
	}
	return answer(w, r, map[string]any{"messages": list})
}

// mention makes a body mention an agent of the room: "@name " before it, unless it mentions the agent already (L.19). In a
// command the name goes where its target is looked for (D.7). An agent that is not in the room, which it may have left
// since, can be mentioned only by a message that is repeated: absent is what a new one is refused with.
func (s *Server) mention(ctx context.Context, r room.Room, body, agentID string) (mentioned string, absent, err error) {
	id, err := parseID("mentionAgentId", agentID)
	if err != nil {
		return "", nil, err
	}
	agents, _, err := s.svc.Directory.Members(ctx, r.ID)
	if err != nil {
		return "", nil, err
	}
	for _, m := range agents {
		if m.Agent.ID == id {
			return mentioning(body, m.Agent.Name), nil, nil
		}
	}
	absent = fault.Field("mentionAgentId", "must be the id of an agent in this room")
	a, err := s.svc.Identity.Agent(ctx, id)
	if fault.Is(err, fault.NotFound) {
		err = absent
	}
	if err != nil {
		return "", nil, err
	}
	return mentioning(body, a.Name), absent, nil
}

func mentioning(body, name string) string {
	if room.Mentions(body, name) {
		return body
	}
	if _, _, command := room.ParseTyped(body); command {
		typed := strings.TrimSpace(body)
		if i := strings.IndexFunc(typed, unicode.IsSpace); i > 0 {
			return typed[:i] + " @" + name + typed[i:]
		}
		return typed + " @" + name
	}
	return "@" + name + " " + body
}

// addMember brings a person into a room; only a manager of it may, also for themselves (I).
func (s *Server) addMember(w http.ResponseWriter, r *http.Request, p room.Person) error {
	found, err := s.findRoom(r, p)
	if err != nil {
		return err
	}
	var in struct {
		UserID *string `json:"userId"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	userID, err := needID("userId", in.UserID)
	if err != nil {
		return err
	}
	manages, err := s.svc.Directory.Manages(r.Context(), p.Actor(), found.ID)
	if err != nil {
		return err
	}
	if !manages {
		return fault.New(fault.Forbidden, "only a manager of room %q may add people", found.Name)
	}
	if _, err := s.svc.Directory.AddPeople(r.Context(), p.Actor(), found.ID, []directory.Introduction{{PersonID: userID}}); err != nil {
		return err
	}
	return s.showChat(w, r, found, p)
}
