package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

type chatShape struct {
	RoomID            uuid.UUID
	Name, ChannelType string
	Archived          bool
	CanManage         bool
	Agents            []struct {
		AgentID uuid.UUID
		Name    string
		Note    *string
	}
	Members []struct {
		UserID  uuid.UUID
		Manager bool
	}
	HeadSeq     int64
	LastMessage *chatMessage
}

func (r *rig) chatsOf(p room.Person) []chatShape {
	r.t.Helper()
	var got struct{ Chats []chatShape }
	r.as(p, "GET", "/chats", nil).wants(200).into(&got)
	return got.Chats
}

func TestOpeningAChat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := func(p room.Person, body string) reply { return r.as(p, "POST", "/chats", body) }
	fox, owl := r.fox.ID.String(), r.owl.ID.String()
	var one struct{ Chat chatShape }
	open(r.ann, `{"agentId":"`+fox+`","requestId":"a"}`).wants(200).into(&one)
	if c := one.Chat; c.ChannelType != "direct" || c.Name != "fox" || !c.CanManage || len(c.Agents) != 1 || c.Agents[0].Note == nil ||
		len(c.Members) != 1 || c.Members[0].UserID != r.ann.ID || c.HeadSeq != 0 || c.LastMessage != nil {
		t.Fatalf("%+v", c)
	}
	if a, err := r.dir.Room(t.Context(), r.ann.Actor(), one.Chat.RoomID); err != nil || a.OwnerNo != r.ann.No ||
		a.ReadVisibility != room.Private || a.WriteVisibility != room.Private {
		t.Errorf("%+v, %v", a, err)
	}
	var again struct{ Chat chatShape }
	if open(r.ann, `{"agentIds":["`+fox+`"],"requestId":"a"}`).wants(200).into(&again); again.Chat.RoomID != one.Chat.RoomID {
		t.Error("the same request made another room")
	}
	open(r.ann, `{"agentIds":["`+owl+`"],"requestId":"a"}`).wants(409, "REQUEST_REUSED")
	var two struct{ Chat chatShape }
	open(r.bob, `{"agentIds":["`+fox+`","`+owl+`"],"requestId":"a","name":"both"}`).wants(200).into(&two)
	if two.Chat.ChannelType != "group" || two.Chat.Name != "both" || two.Chat.RoomID == one.Chat.RoomID {
		t.Errorf("%+v", two.Chat)
	}
	for _, c := range [][2]string{
		{`{"agentId":"` + fox + `"}`, "body.requestId: is required"},
		{`{"agentId":"` + fox + `","requestId":" "}`, "requestId: "},
		{`{"requestId":"b"}`, "agentIds: "},
		{`{"agentId":"` + fox + `","agentIds":["` + owl + `"],"requestId":"b"}`, "agentId: "},
		{`{"agentId":"fox","requestId":"b"}`, "agentIds: must be an id"},
		{`{"agentId":"` + uuid.NewString() + `","requestId":"b"}`, "agentIds: agent"},
	} {
		if a := open(r.ann, c[0]); a.status != 400 && a.status != 422 || !strings.Contains(a.body, c[1]) {
			t.Errorf("%s: %d %s", c[0], a.status, a.body)
		}
	}
	if n := len(r.chatsOf(r.ann)); n != 1 {
		t.Errorf("%d chats after refusals", n)
	}
}

func TestSpeakingInAChat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	path := "/chats/" + id.String() + "/messages"
	first := r.say(r.ann, id, "m1", "hello")
	m := first[0]
	if len(first) != 1 || m.Seq != 1 || m.RoomID != id || m.Body != "hello" || m.Sender.Kind != "user" || m.Sender.UserID != r.ann.ID.String() ||
		m.Sender.AgentID != "" || m.Sender.ClientID == "" || m.Source != "message" || m.ClientTxn == nil || *m.ClientTxn != "m1" {
		t.Fatalf("%+v", first)
	}
	if again := r.say(r.ann, id, "m1", "hello"); len(again) != 1 || again[0].MessageID != m.MessageID {
		t.Errorf("repeated: %+v", again)
	}
	r.as(r.ann, "POST", path, `{"requestId":"m1","body":"something else"}`).wants(409, `"code":"REQUEST_REUSED"`)
	for _, c := range []struct {
		body   string
		status int
		words  string
	}{
		{`{"body":"x"}`, 422, "body.requestId"},
		{`{"requestId":"x","body":""}`, 400, "body: "},
		{`{"requestId":"x","body":"x","threadRootId":"` + uuid.NewString() + `"}`, 400, "thread"},
		{`{"requestId":"x","body":"x","mentionAgentId":"fox"}`, 400, "mentionAgentId: "},
		{`{"requestId":"x","body":"x","mentionAgentId":"` + r.owl.ID.String() + `"}`, 400, "mentionAgentId: must be the id of an agent in this room"},
		{`{"requestId":"x","body":7}`, 422, "body"},
	} {
		r.as(r.ann, "POST", path, c.body).wants(c.status, c.words)
	}
	var reply struct{ Messages []chatMessage }
	r.as(r.ann, "POST", path, map[string]any{"requestId": "m2", "body": "in the thread", "threadRootId": m.MessageID}).wants(200).into(&reply)
	if reply.Messages[0].ThreadRootID != m.MessageID.String() || reply.Messages[0].Seq != 2 {
		t.Errorf("%+v", reply)
	}
	r.reports(r.fox, id, "I hear you")
	chats := r.chatsOf(r.ann)
	if len(chats) != 1 || chats[0].HeadSeq != 3 || chats[0].LastMessage.Body != "I hear you" || chats[0].LastMessage.Sender.Kind != "agent" ||
		chats[0].LastMessage.Sender.AgentID != r.fox.ID.String() || chats[0].LastMessage.ClientTxn != nil {
		t.Errorf("%+v", chats)
	}
}

// An agent that its owner alone may address answers others by itself; the poster is told with the answer.
func TestAutomaticAnswersComeWithThePost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.bob, "one", r.fox)
	got := r.say(r.bob, id, "m1", "do this")
	if len(got) != 2 || got[1].Source != "automatic" || got[1].Sender.AgentID != r.fox.ID.String() || got[1].ThreadRootID != got[0].MessageID.String() {
		t.Errorf("%+v", got)
	}
}

func TestMentioningAnAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox, r.owl)
	for i, c := range [][2]string{
		{"look", "@fox look"},
		{"look, @Fox, there", "look, @Fox, there"},
		{"@foxes are red", "@fox @foxes are red"},
		{"!reset", "!reset @fox"},
		{" !interrupt\tat once", "!interrupt @fox\tat once"},
		{"!reset @fox", "!reset @fox"},
	} {
		var got struct{ Messages []chatMessage }
		r.as(r.ann, "POST", "/chats/"+id.String()+"/messages", map[string]any{"requestId": fmt.Sprint(i), "body": c[0], "mentionAgentId": r.fox.ID}).
			wants(200).into(&got)
		if got.Messages[0].Body != c[1] {
			t.Errorf("%q became %q, want %q", c[0], got.Messages[0].Body, c[1])
		}
	}
}

func TestPagesOfMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	for i := range 7 {
		r.reports(r.fox, id, fmt.Sprint(i+1))
	}
	type page struct {
		Messages []chatMessage
		HeadSeq  int64
		HasMore  bool
	}
	read := func(query string) (p page, bodies string) {
		t.Helper()
		r.as(r.ann, "GET", "/chats/"+id.String()+"/messages"+query, nil).wants(200).into(&p)
		for _, m := range p.Messages {
			bodies += m.Body
		}
		return p, bodies
	}
	for _, c := range []struct {
		query, want string
		more        bool
	}{
		{"", "1234567", false}, {"?limit=3", "567", true}, {"?limit=3&beforeSeq=5", "234", true}, {"?limit=3&beforeSeq=2", "1", false},
		{"?beforeSeq=1", "", false}, {"?limit=200&beforeSeq=100", "1234567", false},
	} {
		if p, got := read(c.query); got != c.want || p.HasMore != c.more || p.HeadSeq != 7 {
			t.Errorf("%s: %q, %+v", c.query, got, p)
		}
	}
	for _, bad := range []string{"?limit=0", "?limit=201", "?limit=x", "?beforeSeq=0", "?beforeSeq=-1", "?beforeSeq=x"} {
		r.as(r.ann, "GET", "/chats/"+id.String()+"/messages"+bad, nil).wants(400, "must be a whole number")
	}
}

func TestMembersOfAChat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	path := "/chats/" + id.String() + "/members"
	r.as(r.bob, "POST", path, map[string]any{"userId": r.bob.ID}).wants(403)
	r.as(r.ann, "POST", path, `{}`).wants(422, "body.userId")
	r.as(r.ann, "POST", path, `{"userId":"bob"}`).wants(400, "userId: ")
	r.as(r.ann, "POST", path, map[string]any{"userId": uuid.New()}).wants(400, "not found")
	r.as(r.ann, "POST", path, map[string]any{"userId": r.bob.ID}).wants(200, r.bob.ID.String())
	got := r.chatsOf(r.bob)
	if len(got) != 1 || got[0].CanManage || got[0].LastMessage == nil || got[0].LastMessage.Source != "room_join" ||
		got[0].LastMessage.Body != "bob joined" {
		t.Errorf("%+v", got)
	}
	r.say(r.bob, id, "1", "hello")
	r.as(r.bob, "POST", path, map[string]any{"userId": r.admin.ID}).wants(403, "only a manager")
	// A public room that anybody may write to is no room that anybody may bring people into.
	open, err := r.dir.Create(t.Context(), r.ann.Actor(), directory.NewRoom{Name: "hall", NoAgents: true})
	r.ok("hall", err)
	r.as(r.bob, "POST", "/chats/"+open.ID.String()+"/members", map[string]any{"userId": r.bob.ID}).wants(403, "only a manager")
	r.as(r.bob, "GET", "/chats/"+open.ID.String()+"/messages", nil).wants(403, "not a member")
	r.as(r.admin, "POST", "/chats/"+open.ID.String()+"/members", map[string]any{"userId": r.admin.ID}).wants(200)
	r.as(r.admin, "GET", "/chats/"+open.ID.String()+"/messages", nil).wants(200)
}
