package connection

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// scene is a rig in which everything can be refused: c1 of agent 1 is single in room 1 with session s1, c2 covers all,
// c3 is of a client without revision, c4 is detached; d1 is agent 2's.
func scene(t *testing.T) (g *rig, c1 *Stream) {
	g = newRig(t)
	c1 = g.attach(1, "c1", ScopeSingle, 1)
	g.attach(1, "c2", ScopeAll)
	old := request(1, "c3", ScopeSingle, 2)
	old.Declared = Declaration{}
	if _, err := g.try(old); err != nil {
		t.Fatal(err)
	}
	g.attach(1, "c4", ScopeAll).Detach()
	g.attach(2, "d1", ScopeAll)
	if _, err := g.Connect(1, "c1", "s1", ref(1).ID); err != nil {
		t.Fatal(err)
	}
	if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
		t.Fatal(err)
	}
	return g, c1
}

func TestRefusedOpensChangeNothing(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	for n := len(g.List(1)); n < MaxLive; n++ {
		g.attach(1, fmt.Sprintf("more-%d", n), ScopeAll)
	}
	for _, tc := range []struct {
		name   string
		change func(q *Request)
		want   string
		says   string
	}{
		{"3 no id", func(q *Request) { q.ConnectionID = "" }, "validation_error", "connection_id"},
		{"4 scope", func(q *Request) { q.Scope = "multi" }, "validation_error", `"multi"`},
		{"5 filter", func(q *Request) { q.Filter = "some" }, "validation_error", `"some"`},
		{"7 protocol", func(q *Request) { q.Declared = Declaration{Speaks: ptr(9), Accepts: ptr(9)} }, "incompatible",
			"update switch-core"},
		{"8 another agent's id", func(q *Request) { q.ConnectionID = "d1" }, "conflict", "not open"},
		{"9 stale generation", func(q *Request) { q.ExpectedGeneration = ptr(c1.Generation() - 1) }, "taken_over", "generation"},
		{"9 before 11", func(q *Request) {
			q.ExpectedGeneration = ptr(c1.Generation() + 99)
			q.Rooms = refIDs(7)
		}, "taken_over", "generation"},
		{"10 one too many", func(q *Request) { q.ConnectionID = "new" }, "conflict", "32"},
		{"10 before 11", func(q *Request) { q.ConnectionID, q.Rooms = "new", refIDs(7) }, "conflict", "32"},
		{"11 a room not the agent's", func(q *Request) { q.Rooms = refIDs(2, 6) }, "forbidden",
			"Room not found: " + ref(6).ID.String()},
		{"11 no room, first bad one", func(q *Request) { q.Rooms = refIDs(3, 7, 6) }, "forbidden",
			"Room not found: " + ref(7).ID.String()},
	} {
		q := request(1, "c1", ScopeSingle, 1)
		tc.change(&q)
		g.unchanged(tc.name, func() {
			s, err := g.try(q)
			if classify(err) != tc.want || !strings.Contains(fmt.Sprint(err), tc.says) || s != nil {
				t.Errorf("%s: %v (%s), want %s about %q", tc.name, err, classify(err), tc.want, tc.says)
			}
			if tc.name == "8 another agent's id" && strings.Contains(err.Error(), "agent-2") {
				t.Errorf("the owner is revealed: %v", err)
			}
		})
	}
	if p := c1.Pass(); p.End != nil || c1.Pong(0) != nil {
		t.Fatalf("the holder was disturbed: %+v", p.End)
	}
}

func TestRefusedRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	gen, stale := ptr(c1.Generation()), ptr(c1.Generation()-1)
	subscribe := func(id string, generation *int64, n int64, takeover bool) func() error {
		return func() error {
			_, err := g.Subscribe(t.Context(), 1, id, generation, ref(n).ID, takeover)
			return err
		}
	}
	place := func(id string, generation *int64, rooms map[string]uuid.UUID) func() error {
		return func() error {
			_, err := g.Place(1, id, generation, rooms)
			return err
		}
	}
	beat := func(id string, generation *int64) func() error {
		return func() error {
			_, _, err := g.Beat(1, id, 0, generation)
			return err
		}
	}
	info, _ := g.Get("c4")
	c4 := ptr(info.Generation)
	for _, tc := range []struct {
		name string
		do   func() error
		want string
		says string
	}{
		{"beat unknown", beat("zz", gen), "not_found", "zz"},
		{"beat another's", beat("d1", gen), "not_found", "d1"},
		{"beat without generation", beat("c1", nil), "unfenced", "generation"},
		{"beat stale", beat("c1", stale), "taken_over", "generation"},
		{"beat detached", beat("c4", c4), "no_stream", "c4"},
		{"beat detached and unfenced", beat("c4", nil), "unfenced", "generation"},

		{"subscribe unknown", subscribe("zz", gen, 7, false), "not_found", "zz"},
		{"subscribe another's", subscribe("d1", gen, 1, false), "not_found", "d1"},
		{"subscribe stale", subscribe("c1", stale, 7, false), "taken_over", "generation"},
		{"subscribe unfenced", subscribe("c1", nil, 7, false), "unfenced", "generation"},
		{"subscribe no room", subscribe("c1", gen, 7, true), "not_found", ref(7).ID.String()},
		{"subscribe not a member", subscribe("c1", gen, 6, true), "forbidden", ref(6).ID.String()},
		{"subscribe held by a sibling", subscribe("c1", gen, 2, false), "conflict", "c3"},

		{"unsubscribe unknown", func() error { _, err := g.Unsubscribe(1, "zz", gen, ref(1).ID); return err }, "not_found", "zz"},
		{"unsubscribe stale", func() error { _, err := g.Unsubscribe(1, "c1", stale, ref(1).ID); return err }, "taken_over",
			"generation"},
		{"unsubscribe unfenced", func() error { _, err := g.Unsubscribe(1, "c1", nil, ref(1).ID); return err }, "unfenced",
			"generation"},

		{"place unknown", place("zz", gen, nil), "not_found", "zz"},
		{"place stale", place("c1", stale, nil), "taken_over", "generation"},
		{"place unfenced", place("c1", nil, nil), "unfenced", "generation"},
		{"place not a member", place("c1", gen, map[string]uuid.UUID{"s1": ref(2).ID, "s2": ref(6).ID}), "forbidden",
			ref(6).ID.String()},
		{"place in no room", place("c1", gen, map[string]uuid.UUID{"s2": ref(7).ID}), "forbidden", ref(7).ID.String()},
		{"place, sorted order, 403 before 400", place("c1", gen, map[string]uuid.UUID{"a": ref(2).ID, "b": ref(2).ID,
			"c": ref(7).ID, "d": ref(6).ID}),
			"forbidden", ref(6).ID.String()},
		{"place twice", place("c1", gen, map[string]uuid.UUID{"s1": ref(2).ID, "s2": ref(2).ID}), "validation_error",
			ref(2).ID.String()},
		{"place no session", place("c1", gen, map[string]uuid.UUID{"": ref(2).ID}), "validation_error", "session"},

		{"connect unknown", func() error { _, err := g.Connect(1, "zz", "", ref(1).ID); return err }, "conflict",
			"connection zz is not open"},
		{"connect another's", func() error { _, err := g.Connect(1, "d1", "", ref(1).ID); return err }, "conflict",
			"connection d1 is not open"},
		{"connect not a member", func() error { _, err := g.Connect(1, "c1", "s1", ref(6).ID); return err }, "validation_error",
			ref(6).ID.String()},
		{"connect session alone", func() error { _, err := g.Connect(1, "", "s1", ref(1).ID); return err }, "validation_error",
			"connection id header"},

		{"locate unknown", func() error { _, err := g.Locate(1, "zz", ""); return err }, "conflict", "connection zz is not open"},
		{"locate without connection", func() error { _, err := g.Locate(1, "", ""); return err }, "validation_error",
			"connect_to_room"},
		{"locate session alone", func() error { _, err := g.Locate(1, "", "s1"); return err }, "validation_error",
			"connection id header"},
		{"locate session nowhere", func() error { _, err := g.Locate(1, "c1", "s9"); return err }, "validation_error", "s9"},
		{"locate no claim", func() error { _, err := g.Locate(1, "c2", ""); return err }, "validation_error", "connect_to_room"},
		{"require", func() error { return g.Require(1, "zz") }, "conflict", "connection zz is not open"},

		{"assume unknown", func() error { return g.AssumeRole(1, "zz", ref(1).ID, "lead", false) }, "conflict",
			"connection zz is not open"},
		{"assume not a member", func() error { return g.AssumeRole(1, "c1", ref(6).ID, "lead", false) }, "validation_error",
			ref(6).ID.String()},
		{"assume a second", func() error { return g.AssumeRole(1, "c1", ref(1).ID, "scribe", false) }, "validation_error", "lead"},
		{"assume another's", func() error { return g.AssumeRole(2, "d1", ref(1).ID, "lead", true) }, "validation_error", "agent-1"},
	} {
		g.unchanged(tc.name, func() {
			err := tc.do()
			if classify(err) != tc.want || !strings.Contains(fmt.Sprint(err), tc.says) {
				t.Errorf("%s: %v (%s), want %s about %q", tc.name, err, classify(err), tc.want, tc.says)
			}
		})
	}
	g.unchanged("closing what is not there", func() {
		if g.CloseConnection(1, "zz", "") || g.CloseConnection(1, "d1", "") || g.Evict("zz", "") || g.RenewLease(1, "c2") {
			t.Error("something was there")
		}
	})
}

func TestALapsedConnectionIsNotOpen(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle, 1)
	g.clock.Advance(SweepEvery)
	g.Sweep(g.clock.Now())
	g.clock.Advance(SweepEvery)
	g.Sweep(g.clock.Now())
	g.clock.Advance(SweepEvery) // no sweep: the request itself notices
	if _, err := g.Locate(1, "c1", ""); classify(err) != "conflict" || !strings.Contains(err.Error(), "connection c1 is not open") {
		t.Fatalf("got %v", err)
	}
	if p := s.Pass(); p.End == nil || p.End.Code != room.CodeHeartbeatLapsed || !strings.HasPrefix(p.End.Reason,
		"heartbeat lapsed") {
		t.Fatalf("got %+v", p.End)
	}
	if err := s.Pong(0); room.RefusedCode(err) != room.CodeConnectionError {
		t.Fatalf("got %v", err)
	}
}

func TestRefusedRoomsAskWhetherTheyExistOnlyThen(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	g.exists = nil
	if _, err := g.Subscribe(t.Context(), 1, "c1", ptr(c1.Generation()), ref(7).ID, false); !fault.Is(err, fault.Forbidden) {
		t.Fatalf("got %v", err)
	}
}

func TestNegotiate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		speaks, accepts *int
		inForce         int
		remedy          string
	}{
		{nil, nil, 8, ""},
		{nil, ptr(9), 8, ""},
		{ptr(8), ptr(1), 8, ""},
		{ptr(1), ptr(1), 1, ""},
		{ptr(7), nil, 7, ""},
		{ptr(9), ptr(1), 8, ""},
		{ptr(9), ptr(8), 8, ""},
		{ptr(1), ptr(-3), 1, ""},
		{ptr(9), ptr(9), 0, "update switch-core"},
		{ptr(9), nil, 0, "update switch-core"},
		{ptr(5), ptr(6), 0, "update switch-core"},
		{ptr(0), ptr(0), 0, "update the Switch agent runtime"},
		{ptr(0), nil, 0, "update the Switch agent runtime"},
		{ptr(-1), ptr(-9), 0, "update the Switch agent runtime"},
	} {
		got, err := Negotiate(Declaration{Speaks: tc.speaks, Accepts: tc.accepts}, "1.2.3")
		if got != tc.inForce {
			t.Errorf("%v/%v: in force %d, want %d", tc.speaks, tc.accepts, got, tc.inForce)
		}
		var refused *Incompatible
		if errors.As(err, &refused) != (tc.remedy != "") {
			t.Errorf("%v/%v: %v", tc.speaks, tc.accepts, err)
			continue
		}
		if refused == nil {
			continue
		}
		var detail struct {
			Message, Contract, Remedy string
			Code                      *string
			Server                    struct {
				Version         string
				Speaks, Accepts int
			}
			Client map[string]int
		}
		b, _ := json.Marshal(refused.Detail())
		if err := json.Unmarshal(b, &detail); err != nil {
			t.Fatal(err)
		}
		if detail.Remedy != tc.remedy || detail.Contract != "agent-protocol" || detail.Server.Version != "1.2.3" ||
			detail.Server.Speaks != 8 ||
			detail.Server.Accepts != 1 || detail.Client["speaks"] != *tc.speaks || detail.Message == "" || detail.Code != nil {
			t.Errorf("detail %s", b)
		}
		if !fault.Is(err, fault.Conflict) {
			t.Errorf("%v is no conflict", err)
		}
	}
}
