package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/roomclient"
)

// idleFor is how long vector 4 watches a stream on which nothing happens.
const idleFor = 60 * time.Second

// idle is vector 4.
func (t *trial) idle() {
	roomID := t.room()
	s := t.ws(t.a, t.named("", all))
	opened := t.opts.Clock.Now()
	for s.Pings() == 0 {
		t.check(t.opts.Clock.Now().Sub(opened) < 2*pingEvery, "C.3", "no ping within %v of the open", 2*pingEvery)
		t.pass(50 * time.Millisecond)
	}
	took := t.opts.Clock.Now().Sub(opened)
	t.check(took > pingEvery/2, "C.3", "the first ping came after %v, want about 2 s", took.Round(time.Millisecond))
	for left := idleFor; left > 0; left -= pingEvery {
		t.pass(pingEvery)
		s.quiet("C.3", "an idle stream that answers its pings with cursor 0")
	}
	least := int64(idleFor/pingEvery) * 8 / 10
	t.check(s.Pings() >= least, "C.3", "%d pings in %v", s.Pings(), idleFor)
	t.say(roomID, "still there")
	s.message("E.2", "still there")
}

// addressedOnce is vector 5.
func (t *trial) addressedOnce() {
	t.needOpen()
	for _, via := range t.transports() {
		roomID := t.room()
		s := t.open(via.dial, t.a, t.named("", in(roomID)))
		t.say(roomID, "@"+t.a.name+" hi", "and then")
		e := s.message("E.2", "@"+t.a.name+" hi")
		t.check(*e.Payload.Addressed, "D.8", "%s: a message that mentions the agent is not addressed", via.name)
		t.check(e.RoomID == roomID && e.Payload.MessageID != "" && e.Payload.Timestamp > 0 && e.Payload.Sender == t.b.name, "D.6",
			"%s: room %q, message_id %q, timestamp %d, sender_name %q", via.name, e.RoomID, e.Payload.MessageID, e.Payload.Timestamp,
			e.Payload.Sender)
		next := s.message("E.2", "and then") // it came once
		t.check(!*next.Payload.Addressed, "D.8", "%s: a message without a mention is addressed", via.name)
		t.check(next.Sequence == e.Sequence+1, "E.1", "%s: sequence %d follows %d", via.name, next.Sequence, e.Sequence)
	}
}

// olderCursor is vector 6.
func (t *trial) olderCursor() {
	roomID := t.room()
	s := t.ws(t.a, t.named("", in(roomID)))
	t.say(roomID, "first", "second")
	_, first := s.unread("E.2", "first")
	_, second := s.unread("E.2", "second")
	for target := s.Beats() + 3; s.Beats() < target; {
		t.pass(100 * time.Millisecond)
		s.quiet("C.6", "a stream whose pongs carry an older cursor")
	}
	out, err := t.a.Beat(t.ctx, roomclient.BeatRequest{ConnectionID: s.Open.ConnectionID, Generation: &s.state.Generation})
	if err != nil {
		t.answeredInstead("G.2", "beat", err)
	}
	t.check(out.Cursor >= second, "C.6", "a report of 0 moved the read cursor to %d, behind %d", out.Cursor, second)
	s.Processed(first)
	s.Processed(second)
	t.say(roomID, "third")
	s.message("E.2", "third")
}

// resume is vector 7.
func (t *trial) resume() {
	for _, via := range t.transports() {
		roomID := t.room()
		s := t.open(via.dial, t.a, t.named("", in(roomID)))
		t.say(roomID, "before")
		n := s.message("E.2", "before").Sequence
		s.Drop()
		t.say(roomID, "1", "2", "3")
		t.pass(time.Second)
		o := t.named(s.Open.ConnectionID, from(n), fence(s.state.Generation))
		if via.name == "sse" {
			o.StartFrom, o.LastEventID = nil, fmt.Sprint(n)
		}
		again := t.open(via.dial, t.a, o)
		t.check(same(again.state.Rooms, []string{roomID}), "C.4", "%s: claims after a drop are %v", via.name, again.state.Rooms)
		t.check(again.state.Cursor == n, "D.2", "%s: the cursor is %d, want %d", via.name, again.state.Cursor, n)
		last := again.messages("E.4", "1", "2", "3")
		t.say(roomID, "after")
		next := again.message("E.4", "after")
		t.check(last.Sequence == n+3 && next.Sequence == n+4, "E.1", "%s: sequences %d and %d after %d", via.name, last.Sequence,
			next.Sequence, n)
	}
}

// lapse is vector 8.
func (t *trial) lapse() {
	roomID := t.room()
	s := t.ws(t.a, t.named("", in(roomID)))
	s.lapse()
	sibling := t.ws(t.a, t.named(""))
	out := t.claim(sibling, roomID, false)
	t.check(out.Evicted == nil && out.Warning == nil, "F.3", "claiming the room of a lapsed connection evicted somebody")
	sibling.changed("D.3", roomID)
}

// reopenLapsed is vector 9.
func (t *trial) reopenLapsed() {
	roomID := t.room()
	s := t.ws(t.a, t.named("", in(roomID)))
	s.lapse()
	again := t.ws(t.a, t.named(s.Open.ConnectionID, in(roomID), fence(s.state.Generation)))
	t.check(again.state.Generation > s.state.Generation, "C.2", "generation %d after %d", again.state.Generation, s.state.Generation)
	t.check(same(again.state.Rooms, []string{roomID}), "F.3", "claims are %v", again.state.Rooms)
}

// deadConnection is vector 26.
func (t *trial) deadConnection() {
	roomID := t.room()
	lapsed := t.ws(t.a, t.named("", in(roomID)))
	lapsed.lapse()
	others := t.ws(t.b, t.named("", in(roomID)))
	for what, id := range map[string]string{"a lapsed connection": lapsed.Open.ConnectionID,
		"a connection that never was": uuid.NewString(),
		"another agent's connection":  others.Open.ConnectionID} {
		for name, args := range map[string]any{"connect_to_room": map[string]string{"room_id": roomID},
			"read_context": map[string]any{},
			"post_message": map[string]string{"body": "dead"}} {
			err := t.a.Op(t.ctx, roomclient.Caller{ConnectionID: id}, name, args, nil)
			refused := t.statusOf(err, http.StatusConflict, "H.1", name+" with "+what)
			t.check(strings.Contains(string(refused.Detail), id) && strings.Contains(string(refused.Detail), "is not open"), "H.1",
				"%s with %s: the detail %s lacks the id or \"is not open\"", name, what, short(refused.Detail))
		}
	}
}
