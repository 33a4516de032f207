package conformance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// noParameters is vector 1.
func (t *trial) noParameters() {
	for _, via := range t.transports() {
		r := t.refused(via.dial, t.a, roomclient.Open{}, http.StatusBadRequest, "B.2", via.name+" without connection_id")
		t.check(strings.Contains(strings.ToLower(r.Message()), "required"), "B.2",
			"%s: the text %q does not say that connection_id is required", via.name, r.Message())
	}
}

// wrongKey is vector 2.
func (t *trial) wrongKey() {
	for what, key := range map[string]secret.Text{"a wrong key": secret.NewText(strings.Repeat("x", 43)), "no key": {}} {
		wrong := &agent{Config: t.config(t.a.AgentID, key)}
		c := t.ending(roomclient.Dial, wrong, t.named(""), "A.1", what)
		t.check(c.Code == 4401, "A.1", "%s: closed with %d, want 4401", what, c.Code)
		t.check(c.Refused == nil, "A.1", "%s: a refused frame came before the close", what)
		if !t.sse {
			t.note("this server has removed SSE: only the socket was asked")
			continue
		}
		c = t.ending(roomclient.DialSSE, wrong, t.named(""), "A.1", what+" over SSE")
		t.check(c.Refused != nil && c.Refused.Status == http.StatusUnauthorized, "A.1", "%s over SSE: %v, want 401", what, c)
		t.check(c.Refused.Detail == nil, "0", "%s over SSE: the body of a 401 must be a text", what)
	}
}

// stateFirst is vector 3.
func (t *trial) stateFirst() {
	roomID := t.room()
	for _, via := range t.transports() {
		first := t.open(via.dial, t.a, t.named("", all))
		t.say(roomID, "one")
		head := first.message("E.2", "one").Sequence
		s := t.open(via.dial, t.a, t.named("", all))
		st := s.state
		t.check(len(st.Rooms) == 0, "D.2", "%s: an all stream without a claim tells the rooms %v, want []", via.name, st.Rooms)
		t.check(st.Cursor == head, "D.2", "%s: cursor is %d, want the head, %d", via.name, st.Cursor, head)
		t.check(st.Generation > first.state.Generation, "C.2", "%s: generation %d after %d", via.name, st.Generation,
			first.state.Generation)
		t.check(st.Scope == "all" && st.Filter == "all" && !st.SpawnCapable, "D.2", "%s: scope %q, filter %q", via.name, st.Scope,
			st.Filter)
		t.check(st.Heartbeat == 2, "D.2", "%s: heartbeat_interval_seconds is %v", via.name, st.Heartbeat)
		server, ok := st.Server.Contracts["agent-protocol"]
		t.check(ok, "D.2", "%s: server.contracts lacks agent-protocol", via.name)
		t.check(st.Protocol == min(server.Speaks, roomclient.Revision), "B.4", "%s: protocol %d is in force", via.name, st.Protocol)
		t.check(st.Client.Speaks != nil && *st.Client.Speaks == roomclient.Revision && st.Client.Artifact != nil, "D.2",
			"%s: client is not an echo", via.name)
	}
}

// takeover is vector 10.
func (t *trial) takeover() {
	for _, via := range t.transports() {
		roomID := t.room()
		first := t.open(via.dial, t.a, t.named("", in(roomID)))
		id := first.Open.ConnectionID
		for range 2 { // the other transport takes over alike
			second := t.ws(t.a, t.named(id))
			e := first.evicted("B.5", "taken_over")
			t.check(e == nil || strings.HasPrefix(e.Reason, "another stream attached"), "D.3", "the reason is %q", reasonOf(e))
			t.check(second.state.Generation > first.state.Generation, "C.2", "generation %d after %d", second.state.Generation,
				first.state.Generation)
			t.check(same(second.state.Rooms, []string{roomID}), "B.5", "claims are %v, want them kept", second.state.Rooms)
			second.quiet("B.5", "after the takeover")
			first = second
		}
	}
}

// stale is vector 11.
func (t *trial) stale() {
	for _, via := range t.transports() {
		roomID := t.room()
		first := t.ws(t.a, t.named(""))
		id := first.Open.ConnectionID
		holder := t.ws(t.a, t.named(id))
		first.evicted("B.5", "taken_over")
		r := t.refused(via.dial, t.a, t.named(id, fence(first.state.Generation), in(roomID)), http.StatusConflict, "B.2",
			"a stale generation over "+via.name)
		t.check(r.Code() == "taken_over", "B.2", "the refusal has the code %q", r.Code())
		holder.quiet("B.2", "the holder, after the refusal")
		t.claim(holder, roomID, false)
		holder.changed("B.2", roomID)
	}
}

// badRoom is vector 12.
func (t *trial) badRoom() {
	closed := t.roomOf(t.b)
	for _, bad := range []struct{ what, id string }{{"a room that is not there", uuid.NewString()},
		{"a room that the agent is not in", closed}} {
		for _, via := range t.transports() {
			mine, sibling := t.room(), t.room()
			what := bad.what + " over " + via.name
			other := t.ws(t.a, t.named("", in(sibling)))
			o := t.named("", in(bad.id, mine))
			r := t.refused(via.dial, t.a, o, http.StatusForbidden, "B.2", what)
			t.check(strings.Contains(r.Message(), bad.id), "B.3", "%s: the detail %q does not name it", what, r.Message())
			err := t.a.Op(t.ctx, roomclient.Caller{ConnectionID: o.ConnectionID}, "connect_to_room",
				map[string]string{"room_id": mine}, nil)
			t.statusOf(err, http.StatusConflict, "B.2", "an operation on the id that was refused")

			s := t.ws(t.a, t.named("", in(mine)))
			o = t.named(s.Open.ConnectionID, in(sibling, bad.id), fence(s.state.Generation))
			t.refused(via.dial, t.a, o, http.StatusForbidden, "B.2", what+", on a reattach")
			s.quiet("B.2", "the old stream, after the refusal")
			other.quiet("B.2", "the sibling whose room was asked for too, after the refusal")
			t.check(same(t.claims(s), []string{mine}), "B.2", "claims changed by an open that was refused")
			t.check(same(t.claims(other), []string{sibling}), "B.2", "a sibling's claims changed by an open that was refused")

			again := t.open(via.dial, t.a, t.named(s.Open.ConnectionID, in(mine), fence(s.state.Generation)))
			t.check(same(again.state.Rooms, []string{mine}), "B.2", "reopened with only the good room, claims are %v", again.state.Rooms)
		}
	}
}

// negotiation is vector 22.
func (t *trial) negotiation() {
	for _, via := range t.transports() {
		for _, tc := range []struct {
			speaks, accepts int
			remedy          string
		}{{9, 9, "update switch-core"}, {0, 0, "update the Switch agent runtime"}} {
			o := t.named("")
			set(&o, "protocol", tc.speaks)
			set(&o, "protocol_accepts", tc.accepts)
			r := t.refused(via.dial, t.a, o, http.StatusConflict, "B.4", via.name+" with a range that does not overlap")
			var d struct {
				Message  string `json:"message"`
				Contract string `json:"contract"`
				Remedy   string `json:"remedy"`
				Server   struct {
					Speaks, Accepts *int
				} `json:"server"`
				Client struct {
					Speaks, Accepts *int
				} `json:"client"`
				Code *string `json:"code"`
			}
			if err := json.Unmarshal(r.Detail, &d); err != nil {
				t.fail("B.4", "the detail is no object: %s", short(r.Detail))
			}
			t.check(d.Remedy == tc.remedy, "B.4", "protocol %d/%d: remedy is %q, want %q", tc.speaks, tc.accepts, d.Remedy, tc.remedy)
			t.check(d.Contract == "agent-protocol" && d.Message != "" && d.Code == nil, "B.4", "the detail is %s", short(r.Detail))
			t.check(d.Server.Speaks != nil && d.Server.Accepts != nil && d.Client.Speaks != nil && *d.Client.Speaks == tc.speaks, "B.4",
				"the detail does not name both ranges: %s", short(r.Detail))
		}
		s := t.open(via.dial, t.a, t.named("", undeclared))
		c := s.state.Client
		t.check(c.Speaks == nil && c.Accepts == nil && c.Artifact == nil && c.Version == nil, "B.4",
			"%s: a client that declares nothing is echoed as something", via.name)
		t.check(s.state.Protocol == s.state.Server.Contracts["agent-protocol"].Speaks, "D.2",
			"%s: protocol %d is told to a client that declares nothing", via.name, s.state.Protocol)
	}
}

// removedSSE is vector 25.
func (t *trial) removedSSE() {
	if t.sse {
		t.skip("needs a server that has removed SSE, and this one serves it")
	}
	var d struct {
		Detail struct{ Code, Message string }
	}
	t.check(json.Unmarshal(t.removed.refused.Body, &d) == nil && d.Detail.Code == "transport_removed", "G.1",
		"a removed stream answers 410 with %s", short(t.removed.refused.Body))
	c := t.ending(roomclient.DialSSE, t.a, t.named(""), "G.1", "a stream over SSE")
	t.check(c.Refused.Status == http.StatusGone && c.Refused.Code() == "transport_removed", "G.1", "a stream over SSE: %v", c)
	s := t.ws(t.a, t.named(c.Refused.Code()+t.tag))
	t.check(s.state.Protocol >= roomclient.Revision, "G.1", "the socket tells protocol %d", s.state.Protocol)
}

// most is how many connections an agent may hold (K).
const most = 32

// cap is vector 23.
func (t *trial) cap() {
	who, alone := t.another("c")
	if wait := t.lapses.Sub(t.opts.Clock.Now()); !alone && wait > 0 {
		t.pass(wait)
	}
	for i := range most {
		s := t.attach(roomclient.Dial, who, t.named(""))
		st, err := s.AwaitState(t.ctx)
		if err != nil && !alone && i > 0 {
			t.skip("the agent has connections that are not ours")
		}
		if err != nil {
			t.refusedInstead(err)
		}
		s.state = st
	}
	r := t.refused(roomclient.Dial, who, t.named(""), http.StatusConflict, "B.2", "connection 33")
	t.check(isText(r.Detail), "B.2", "the detail of the refusal is no text: %s", short(r.Detail))
	if t.sse {
		t.refused(roomclient.DialSSE, who, t.named(""), http.StatusConflict, "B.2", "connection 33 over SSE")
	}
	ours := slices.Clone(t.streams)
	for _, s := range ours {
		s.quiet("B.2", "one of the 32, after the refusal")
	}
	first := ours[0]
	t.ws(who, t.named(first.Open.ConnectionID, fence(first.state.Generation)))
	first.evicted("B.5", "taken_over")
}

// another is an agent that has nothing yet, where one can be made; otherwise it is a.
func (t *trial) another(suffix string) (who *agent, alone bool) {
	if t.opts.Key.IsZero() {
		return t.a, false
	}
	who, err := t.register(t.ctx, suffix)
	if err != nil {
		t.broken("make another agent", err)
	}
	return who, true
}

func isText(detail json.RawMessage) bool {
	var text string
	return json.Unmarshal(detail, &text) == nil
}
