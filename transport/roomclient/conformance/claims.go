package conformance

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/transport/roomclient"
)

// held is vector 13.
func (t *trial) held() {
	three, five := []string{"1", "2", "3"}, []string{"4", "5", "6", "7", "8"}
	roomID := t.room()
	below := t.head(t.a)
	t.say(roomID, three...)
	s := t.ws(t.a, t.named("", from(below)))
	t.check(len(s.state.Rooms) == 0, "D.2", "without a claim the rooms are %v", s.state.Rooms)
	t.check(s.state.Cursor == below+3, "E.4", "a held socket tells the cursor %d, want the head, %d", s.state.Cursor, below+3)
	for before := s.Pings(); s.Pings() == before; {
		t.pass(pingEvery / 4)
	}
	s.quiet("E.4", "a single stream without a claim")
	t.say(roomID, five...)
	s.quiet("E.4", "a single stream without a claim")
	t.op(t.a, s.Open.ConnectionID, "connect_to_room", map[string]string{"room_id": roomID}, nil)
	s.changed("D.3", roomID)
	s.messages("E.4", five...)
	again := t.ws(t.a, t.named(s.Open.ConnectionID, from(below), in(roomID), fence(s.state.Generation)))
	again.messages("E.4", append(three, five...)...)
	t.say(roomID, "end")
	again.message("E.4", "end")

	if !t.sse {
		t.note("this server has removed SSE: only the socket was asked")
		return
	}
	roomID = t.room()
	below = t.head(t.a)
	t.say(roomID, three...)
	s = t.open(roomclient.DialSSE, t.a, t.named("", from(below)))
	t.check(len(s.state.Rooms) == 0 && s.state.Cursor == below, "G.1",
		"a held SSE stream tells the rooms %v and the cursor %d, want [] and %d",
		s.state.Rooms, s.state.Cursor, below)
	t.say(roomID, five...)
	s.quiet("E.4", "a single stream without a claim, over SSE")
	t.op(t.a, s.Open.ConnectionID, "connect_to_room", map[string]string{"room_id": roomID}, nil)
	s.changed("D.3", roomID)
	s.messages("G.1", append(three, five...)...)
	t.say(roomID, "end")
	s.message("G.1", "end")
}

// oneRoom is vector 14.
func (t *trial) oneRoom() {
	for _, via := range t.transports() {
		a, b := t.room(), t.room()
		s := t.open(via.dial, t.a, t.named("", in(a)))
		below := s.state.Cursor
		t.say(b, "in b")
		t.say(a, "in a") // has been delivered: what is in b was passed over
		s.message("F.2", "in a")
		out := t.claim(s, b, false)
		t.check(same(out.Rooms, []string{b}), "F.1", "%s: after the claim of b the rooms are %v, want only b", via.name, out.Rooms)
		s.changed("D.3", b)
		t.say(b, "in b again")
		s.message("E.4", "in b again")
		again := t.open(via.dial, t.a, t.named(s.Open.ConnectionID, from(below), in(b), fence(s.state.Generation)))
		again.messages("E.4", "in b", "in b again")
		t.say(a, "in a again")
		t.say(b, "end")
		again.message("F.2", "end")
		both := t.open(via.dial, t.a, t.named("", in(a, b)))
		t.check(same(both.state.Rooms, []string{b}), "F.1", "%s: a single stream with rooms=A,B tells %v, want only B", via.name,
			both.state.Rooms)
	}
}

// yields is vector 15.
func (t *trial) yields() {
	a, b := t.room(), t.room()
	whole := t.ws(t.a, t.named("", all))
	t.say(a, "to all")
	whole.message("F.2", "to all")
	one := t.ws(t.a, t.named("", in(a)))
	whole.changed("D.3")
	t.say(a, "to one")
	one.message("F.2", "to one")
	t.say(b, "to all again")
	whole.message("F.2", "to all again")
	one.lapse()
	whole.changed("D.3")
	t.say(a, "back to all")
	whole.message("F.2", "back to all")
}

// subscribing is vector 16.
func (t *trial) subscribing() {
	roomID := t.room()
	holder := t.ws(t.a, t.named("", in(roomID)))
	taker := t.ws(t.a, t.named(""))
	_, err := t.subscribe(taker, roomID, false)
	refused := t.statusOf(err, http.StatusConflict, "F.4", "subscribe to a sibling's room")
	t.check(isText(refused.Detail) && strings.Contains(string(refused.Detail), holder.Open.ConnectionID), "F.4",
		"the detail %s does not name the connection that holds the room", short(refused.Detail))
	holder.quiet("F.4", "the holder, after the refusal")
	taker.quiet("F.4", "who was refused, after the refusal")
	out := t.claim(taker, roomID, true)
	t.check(out.Evicted != nil && *out.Evicted == holder.Open.ConnectionID, "F.4", "evicted_connection_id is not the holder's")
	t.check(out.Warning != nil && *out.Warning != "", "F.4", "a takeover has no warning")
	t.check(same(out.Rooms, []string{roomID}), "F.4", "rooms are %v", out.Rooms)
	t.loses(holder, roomID, nil)
	taker.changed("D.3", roomID)

	old := t.ws(t.a, t.named("", in(roomID), revision(5, 1)))
	t.loses(taker, roomID, nil)
	t.claim(taker, roomID, true)
	taker.changed("D.3", roomID)
	old.changed("D.3") // and no room_released, which it would not know
}

// loses is what a client of revision 6 or later is told of a room that was taken (D.3).
func (t *trial) loses(s *stream, roomID string, session *string) {
	var r roomclient.Released
	s.frame("D.3", roomclient.FrameReleased, &r)
	t.check(r.RoomID == roomID, "D.3", "room_released names the room %q", r.RoomID)
	t.check((r.SessionID == nil) == (session == nil) && (session == nil || *r.SessionID == *session), "D.3",
		"room_released names the wrong session")
	s.changed("D.3")
}

// placing is vector 17.
func (t *trial) placing() {
	a, b, closed := t.room(), t.room(), t.roomOf(t.b)
	for what, o := range map[string]roomclient.Open{"a room of rooms=": t.named("", in(a)), "no room at open": t.named(""),
		"scope all": t.named("", all)} {
		s := t.ws(t.a, o)
		place := func(p map[string]string) (roomclient.PlacementsAnswer, error) {
			return t.a.Place(t.ctx, roomclient.PlacementsRequest{ConnectionID: o.ConnectionID, Placements: p,
				Generation: &s.state.Generation})
		}
		for _, step := range []struct {
			placements map[string]string
			rooms      []string
		}{{map[string]string{"s1": a, "s2": b}, []string{a, b}}, {map[string]string{"s1": b}, []string{b}}} {
			out, err := place(step.placements)
			if err != nil {
				t.answeredInstead("F.6", "placements", err)
			}
			t.check(same(out.Rooms, step.rooms), "F.6", "%s: after %d placements the rooms are %v, want %v", what,
				len(step.placements), out.Rooms, step.rooms)
			t.check(len(out.Placements) == len(step.placements) && out.Placements["s1"] == step.placements["s1"], "F.6",
				"%s: placements are %v", what, out.Placements)
			s.changed("D.3", step.rooms...)
		}
		_, err := place(map[string]string{"s1": a, "s2": a})
		t.statusOf(err, http.StatusBadRequest, "F.6", "two sessions in one room")
		for bad, id := range map[string]string{"a room the agent is not in": closed, "a room that is not there": uuid.NewString()} {
			_, err := place(map[string]string{"s1": a, "s2": id})
			refused := t.statusOf(err, http.StatusForbidden, "F.6", bad)
			t.check(strings.Contains(string(refused.Detail), id), "F.6", "%s: the detail %s does not name it", bad, short(refused.Detail))
		}
		t.check(same(t.claims(s), []string{b}), "F.6", "%s: a refused update changed the claims", what)
		s.quiet("F.6", "after refused updates")
		if _, err := place(map[string]string{}); err != nil {
			t.answeredInstead("F.6", "empty placements", err)
		}
		s.changed("F.6")
		s.Drop()
	}
}
