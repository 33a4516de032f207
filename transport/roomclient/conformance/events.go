package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"signalbox/transport/roomclient"
)

// retained is how many events wait for an agent (E.3).
const retained = 2000

// retention is vector 20.
func (t *trial) retention() {
	who, alone := t.another("d")
	roomID := t.roomOf(who, t.b)
	below := t.head(who)
	err := t.each(retained+1, func(i int) error { return t.post(t.b, roomID, fmt.Sprint("event ", i)) })
	var refused *roomclient.StatusError
	if errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
		t.skip("the server has a budget for posts, which 2001 of them exceed")
	}
	if err != nil {
		t.broken("post 2001 messages", err)
	}
	s := t.ws(who, t.named("", all, from(0)))
	var g roomclient.Gap
	s.frame("E.5", roomclient.FrameGap, &g)
	head := below + retained + 1
	t.check(g.From == 0, "D.3", "from_sequence is %d, want what was asked for, 0", g.From)
	t.check(!g.AllRooms && slices.Contains(g.Rooms, roomID), "E.5", "a retention gap tells rooms %v, all_rooms %v", g.Rooms,
		g.AllRooms)
	t.check(!alone || len(g.Rooms) == 1, "E.5", "the gap names %d rooms, and one lost events", len(g.Rooms))
	t.check(g.ResumedAt == head-retained, "E.5", "resumed_at is %d, want the highest sequence that was dropped, %d",
		g.ResumedAt, head-retained)
	t.check(s.state.Cursor == g.ResumedAt, "D.2", "the cursor is %d, want it after the gap, %d", s.state.Cursor, g.ResumedAt)
	for want := g.ResumedAt + 1; want <= head; want++ {
		f := s.frame("E.4", roomclient.FrameMessage, nil)
		t.check(f.ID == want, "E.4", "event %d came, want %d", f.ID, want)
		s.Processed(f.ID)
	}
	s.quiet("E.5", "after the retained events")
}

// filter is vector 21.
func (t *trial) filter() {
	t.needOpen()
	mention := "@" + t.a.name
	for _, via := range t.transports() {
		roomID := t.room()
		o := t.named("", in(roomID))
		o.Filter = "addressed"
		s := t.open(via.dial, t.a, o)
		t.say(roomID, "chatter", "chatter", mention+" one", "chatter", "chatter", "chatter", mention+" two")
		first := s.message("D.9", mention+" one")
		second := s.message("D.9", mention+" two")
		t.check(second.Sequence == first.Sequence+4, "E.1", "%s: a withheld event must use up a number: %d follows %d", via.name,
			second.Sequence, first.Sequence)
		t.say(roomID, "chatter", "chatter", "chatter", mention+" three")
		s.message("D.9", mention+" three")
		o.StartFrom = &s.state.Cursor
		again := t.open(via.dial, t.a, o)
		again.messages("D.9", mention+" one", mention+" two", mention+" three")
	}
	t.note("commands are for people to type: their being withheld was not asked")
}

// core are the operations that every server has (H.3).
var core = []string{"list_rooms", "connect_to_room", "list_participants", "post_message", "send_targeted_message", "read_context"}

// mcpRuntime is vector 24: what the runtime asks of a server (J.7).
func (t *trial) mcpRuntime() {
	dial := roomclient.DialSSE
	if !t.sse {
		dial = roomclient.Dial
		t.note("this server has removed SSE, which the runtime needs: the socket was asked")
	}
	ops, err := t.a.Operations(t.ctx)
	if err != nil {
		t.answeredInstead("H.1", "list of operations", err)
	}
	for _, name := range core {
		_, there := ops[name]
		t.check(there, "H.3", "there is no operation %s", name)
	}
	for name, op := range ops {
		var schema struct {
			Type       string          `json:"type"`
			Properties json.RawMessage `json:"properties"`
		}
		err := json.Unmarshal(op.InputSchema, &schema)
		t.check(err == nil && schema.Type == "object" && schema.Properties != nil && op.Description != "", "H.1",
			"operation %s: the schema is %s", name, short(op.InputSchema))
	}
	old, roomID := t.room(), t.room()
	s := t.open(dial, t.a, t.named("", undeclared))
	id := s.Open.ConnectionID
	for _, target := range []string{old, roomID} {
		s = t.enter(dial, s, target)
	}
	unsubscribed, err := t.a.Unsubscribe(t.ctx, roomclient.ClaimRequest{ConnectionID: id, RoomID: old,
		Generation: &s.state.Generation})
	if err != nil {
		t.answeredInstead("F.5", "unsubscribe from the room before, which is left already", err)
	}
	t.check(same(unsubscribed.Rooms, []string{roomID}), "F.5", "afterwards the rooms are %v", unsubscribed.Rooms)
	t.posts(id, roomID)
	body := "@" + t.a.name + " hello"
	t.say(roomID, body, "end")
	e := s.message("E.2", body)
	t.check(e.Payload.Timestamp > 0, "D.6", "timestamp is %d", e.Payload.Timestamp)
	if t.mayAddress() {
		t.check(*e.Payload.Addressed, "D.8", "the message that mentions the agent is not addressed")
	} else {
		t.note("agent is owner-only: that the message is addressed was not asked")
	}
	if err := t.a.Do(t.ctx, http.MethodPost, "/agents/"+t.a.id()+"/typing", map[string]any{"room_id": roomID,
		"is_typing": true}, nil, nil); err != nil {
		t.answeredInstead("H.8", "typing", err)
	}
	s.message("E.2", "end")
}

// enter is connect_to_room, and the reopen that follows the first one.
func (t *trial) enter(dial dialer, s *stream, roomID string) *stream {
	var room map[string]json.RawMessage
	t.op(t.a, s.Open.ConnectionID, "connect_to_room", map[string]string{"room_id": roomID}, &room)
	for _, key := range []string{"agent_id", "room_id", "name", "description", "participants", "instructions",
		"reference_types", "references",
		"documents", "packages", "linked_rooms", "roles", "warning"} {
		_, there := room[key]
		t.check(there, "H.4", "the result of connect_to_room has no %s", key)
	}
	t.check(string(room["warning"]) == "null", "H.4", "connect_to_room warns %s, and nobody lost the room", short(room["warning"]))
	t.check(string(room["room_id"]) == `"`+roomID+`"` && string(room["agent_id"]) == `"`+t.a.id()+`"`, "H.4",
		"connect_to_room names room %s", room["room_id"])
	s.changed("D.3", roomID)
	if len(s.Open.Rooms) > 0 {
		return s
	}
	again := t.open(dial, t.a, t.named(s.Open.ConnectionID, undeclared, in(roomID), fence(s.state.Generation)))
	s.evicted("B.5", "taken_over")
	t.check(same(again.state.Rooms, []string{roomID}), "B.5", "reopened with its room, the stream has %v", again.state.Rooms)
	return again
}

// posts says something through the connection and reads it back.
func (t *trial) posts(connectionID, roomID string) {
	var posted struct {
		EventID string `json:"event_id"`
	}
	t.op(t.a, connectionID, "post_message", map[string]string{"body": "from the runtime"}, &posted)
	var history struct {
		Threads []struct {
			Root struct {
				ID, Kind, Body string
				Timestamp      int64
				Attachments    []any
			}
		}
		Truncated *bool
	}
	t.op(t.a, connectionID, "read_context", nil, &history)
	t.check(history.Truncated != nil && !*history.Truncated, "H.5", "read_context of a short room is truncated")
	for _, th := range history.Threads {
		if th.Root.ID == posted.EventID && posted.EventID != "" {
			e := th.Root
			t.check(e.Body == "from the runtime" && e.Kind == "message" && e.Timestamp > 0 && e.Attachments != nil, "H.5",
				"read_context tells %+v", e)
			return
		}
	}
	t.fail("H.5", "read_context of room %s does not tell the message %q", roomID, posted.EventID)
}

// mentions is vector 27.
func (t *trial) mentions() {
	t.needOpen()
	roomID := t.room()
	s := t.ws(t.a, t.named("", in(roomID)))
	name := t.a.name
	for _, tc := range []struct {
		body string
		want bool
	}{
		{"@" + name + ".", false}, {"@" + strings.ToUpper(name[:1]) + name[1:] + ", look", true}, {"@*" + name + "*", true},
		{"@" + name + "-2", false}, {"@" + name + ":", true}, {"mail@" + strings.ToUpper(name), true}, {name, false},
		{"@everyone", false},
	} {
		t.say(roomID, tc.body)
		e := s.message("E.2", tc.body)
		t.check(*e.Payload.Addressed == tc.want, "D.8", "%q: addressed is %v, want %v", tc.body, *e.Payload.Addressed, tc.want)
	}
}

// noEcho is vector 28.
func (t *trial) noEcho() {
	for _, via := range t.transports() {
		roomID := t.room()
		a, b := t.open(via.dial, t.a, t.named("", in(roomID))), t.open(via.dial, t.b, t.named("", in(roomID)))
		t.sayAs(t.a, roomID, "from a")
		b.message("E.2", "from a")
		t.sayAs(t.b, roomID, "from b")
		a.message("E.2", "from b")
		t.op(t.a, a.Open.ConnectionID, "post_message", map[string]string{"body": "from a again"}, nil)
		b.message("E.2", "from a again") // and not "from b"
		t.sayAs(t.b, roomID, "from b again")
		a.message("E.2", "from b again")
	}
}
