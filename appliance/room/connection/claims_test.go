package connection

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

func TestRoomsOfAnOpenInOrder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		scope Scope
		held  []int64 // placed there before, through a placements update
		rooms []int64
		want  []int64
	}{
		{"single, two new: the last stays", ScopeSingle, nil, []int64{1, 2}, []int64{2}},
		{"single, re-declared: all stay", ScopeSingle, []int64{1, 2}, []int64{1, 2}, []int64{1, 2}},
		{"single, none declared: all stay", ScopeSingle, []int64{1, 2}, nil, []int64{1, 2}},
		{"single, a new one replaces all", ScopeSingle, []int64{1, 2}, []int64{3}, []int64{3}},
		{"single, held, then new", ScopeSingle, []int64{1, 2}, []int64{1, 3}, []int64{3}},
		{"all keeps and adds", ScopeAll, []int64{1, 2}, []int64{3, 4}, []int64{1, 2, 3, 4}},
		{"repeats are one", ScopeSingle, nil, []int64{1, 1}, []int64{1}},
		{"repeats are skipped", ScopeSingle, nil, []int64{1, 2, 1}, []int64{2}},
	} {
		g := newRig(t)
		if len(tc.held) > 0 {
			s := g.attach(1, "c1", tc.scope)
			place := map[string]uuid.UUID{}
			for i, n := range tc.held {
				place[string(rune('a'+i))] = ref(n).ID
			}
			if _, err := g.Place(1, "c1", ptr(s.Generation()), place); err != nil {
				t.Fatal(err)
			}
		}
		s := g.attach(1, "c1", tc.scope, tc.rooms...)
		i := s.State()
		if !reflect.DeepEqual(i.Rooms, refIDs(tc.want...)) {
			t.Errorf("%s: %v, want %v", tc.name, numbers(i.Rooms), tc.want)
		}
		for _, r := range i.Placements {
			if !contains(i.Rooms, r) {
				t.Errorf("%s: a placement outlives its claim", tc.name)
			}
		}
		if p := s.Pass(); p.Changed {
			t.Errorf("%s: subscription_changed repeats connection_state", tc.name)
		}
	}
}

func contains(ids []uuid.UUID, id uuid.UUID) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

// Vector 15.
func TestAllYieldsToASiblingAndComesBack(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	all := g.attach(1, "c1", ScopeAll)
	all.State()
	if !all.Covers(1) || all.Covers(6) {
		t.Fatal("coverage of all is every room of the agent")
	}
	single := g.attach(1, "c2", ScopeSingle, 1)
	if all.Covers(1) || !single.Covers(1) || single.Covers(2) {
		t.Fatal("a claim takes the room from all")
	}
	if p := all.Pass(); !p.Changed || len(p.Rooms) != 0 {
		t.Fatalf("got %+v", p)
	}
	for range 3 {
		g.pass(2 * time.Second)
		_ = all.Pong(0)
	}
	if p := all.Pass(); !p.Changed || len(p.Rooms) != 0 || !all.Covers(1) {
		t.Fatalf("got %+v", p)
	}
	g.Left(1, 2)
	if p := all.Pass(); !p.Changed || all.Covers(2) {
		t.Fatalf("leaving a room: %+v", p)
	}
	g.Joined(1, ref(6))
	if p := all.Pass(); !p.Changed || !all.Covers(6) {
		t.Fatalf("joining a room: %+v", p)
	}
	if p := all.Pass(); p.Changed {
		t.Fatalf("nothing changed: %+v", p)
	}
}

func TestChangesThatCancelOutAreNoFrame(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle, 1)
	woken := g.woken["c1"]
	if _, err := g.Subscribe(t.Context(), 1, "c1", ptr(s.Generation()), ref(2).ID, false); err != nil {
		t.Fatal(err)
	}
	if g.woken["c1"] != woken+1 {
		t.Fatal("a claim made by a request does not wake the stream")
	}
	if _, err := g.Subscribe(t.Context(), 1, "c1", ptr(s.Generation()), ref(1).ID, false); err != nil {
		t.Fatal(err)
	}
	if p := s.Pass(); p.Changed {
		t.Fatalf("got %+v", p)
	}
	g.Joined(1, ref(6))
	if p := s.Pass(); p.Changed {
		t.Fatalf("a join changes nothing on single: %+v", p)
	}
}

// Vector 16, and the merging of D.3.
func TestRoomReleased(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	loser := g.attach(1, "c1", ScopeAll, 1, 2)
	taker := g.attach(1, "c2", ScopeSingle)
	gen := ptr(taker.Generation())
	if _, err := g.Connect(1, "c1", "s1", ref(1).ID); err != nil {
		t.Fatal(err)
	}
	sub, err := g.Subscribe(t.Context(), 1, "c2", gen, ref(1).ID, true)
	if err != nil || sub.Evicted != "c1" || sub.Warning == "" || !reflect.DeepEqual(sub.Rooms, refIDs(1)) {
		t.Fatal(sub, err)
	}
	// Back without a session, and lost again: the loss that names a session stays.
	if _, err := g.Subscribe(t.Context(), 1, "c1", ptr(loser.Generation()), ref(1).ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Subscribe(t.Context(), 1, "c2", gen, ref(1).ID, true); err != nil {
		t.Fatal(err)
	}
	p := loser.Pass()
	if len(p.Released) != 1 || p.Released[0].SessionID == nil || *p.Released[0].SessionID != "s1" || !p.Changed ||
		!reflect.DeepEqual(p.Rooms, refIDs(2)) {
		t.Fatalf("got %+v", p)
	}
	old := request(1, "c3", ScopeSingle, 3)
	old.Declared = Declaration{Speaks: ptr(5)}
	s, err := g.try(old)
	if err != nil {
		t.Fatal(err)
	}
	g.attach(1, "c2", ScopeSingle, 3)
	if p := s.Pass(); len(p.Released) != 0 || !p.Changed {
		t.Fatalf("a client of revision 5: %+v", p)
	}
}

// Vector 17.
func TestPlacements(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle, 1)
	sibling := g.attach(1, "c2", ScopeSingle, 2)
	if _, err := g.Connect(1, "c2", "other", ref(2).ID); err != nil {
		t.Fatal(err)
	}
	gen := ptr(s.Generation())
	done, err := g.Place(1, "c1", gen, map[string]uuid.UUID{"s1": ref(1).ID, "s2": ref(2).ID})
	if err != nil || !reflect.DeepEqual(done.Rooms, refIDs(1, 2)) || len(done.Released) != 1 ||
		done.Released[0].ConnectionID != "c2" ||
		done.Released[0].RoomID != ref(2).ID || *done.Released[0].SessionID != "other" {
		t.Fatalf("%+v, %v", done, err)
	}
	if p := sibling.Pass(); len(p.Released) != 1 || *p.Released[0].SessionID != "other" || !p.Changed || len(p.Rooms) != 0 ||
		sibling.Held() {
		t.Fatalf("got %+v", p)
	}
	if done, err = g.Place(1, "c1", gen, map[string]uuid.UUID{"s1": ref(2).ID}); err != nil || !reflect.DeepEqual(done.Rooms,
		refIDs(2)) ||
		len(done.Released) != 0 || !reflect.DeepEqual(done.Placements, map[string]uuid.UUID{"s1": ref(2).ID}) {
		t.Fatalf("%+v, %v", done, err)
	}
	if at, err := g.Locate(1, "c1", "s1"); err != nil || at.No != 2 {
		t.Fatal(at, err)
	}
	if done, err = g.Place(1, "c1", gen, nil); err != nil || len(done.Rooms) != 0 || done.Rooms == nil || done.Released == nil {
		t.Fatalf("%+v, %v", done, err)
	}
}

func TestALapsedHolderLosesWithoutBeingEvicted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.attach(1, "c1", ScopeSingle, 1)
	g.pass(2 * time.Second)
	s := g.attach(1, "c2", ScopeSingle)
	g.pass(2 * time.Second)
	g.clock.Advance(2 * time.Second)
	sub, err := g.Subscribe(t.Context(), 1, "c2", ptr(s.Generation()), ref(1).ID, false)
	if err != nil || sub.Evicted != "" || sub.Warning != "" {
		t.Fatal(sub, err)
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle)
	if !s.Held() || s.Covers(1) {
		t.Fatal("a single stream without a claim is held")
	}
	if _, err := g.Connect(1, "c1", "", ref(1).ID); err != nil {
		t.Fatal(err)
	}
	if s.Held() || !s.Covers(1) {
		t.Fatal("the first claim ends the hold")
	}
	if _, err := g.Unsubscribe(1, "c1", ptr(s.Generation()), ref(1).ID); err != nil {
		t.Fatal(err)
	}
	if s.Held() {
		t.Fatal("losing the last claim holds nothing")
	}
	if s = g.attach(1, "c1", ScopeSingle); !s.Held() {
		t.Fatal("an attach without claims is held again")
	}
	if s = g.attach(1, "c1", ScopeAll); s.Held() {
		t.Fatal("all is never held")
	}
}

func TestLeavingARoomTakesEverythingThere(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	c1.State()
	g.SetRuntimeState(1, 1, "idle", map[string]bool{"reset": true})
	g.SetBaseline(1, 1, 5)
	g.Left(1, 1)
	i := c1.Info()
	if len(i.Rooms) != 0 || len(i.Placements) != 0 || i.Role != nil || c1.Covers(1) {
		t.Fatalf("got %+v", i)
	}
	if p := c1.Pass(); len(p.Released) != 0 || !p.Changed {
		t.Fatalf("got %+v", p)
	}
	if _, known := g.Baseline(1, 1); known || g.ControlCapabilities(1, 1) != nil || g.RoleHolders(1) != nil {
		t.Fatal("something is left")
	}
	g.unchanged("a claim after leaving", func() {
		if _, err := g.Connect(1, "c1", "", ref(1).ID); err == nil {
			t.Error("claimed")
		}
	})
}

func TestCursor(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	q := request(1, "c1", ScopeAll)
	q.StartHead, q.After = false, 7
	s, err := g.try(q)
	if err != nil || s.Cursor() != 7 {
		t.Fatal(err, s.Cursor())
	}
	s.SetCursor(10)
	s.SetCursor(9)
	if s.Cursor() != 10 {
		t.Fatalf("cursor %d went back", s.Cursor())
	}
	for _, report := range []int64{11, 1 << 60} {
		if err := s.Pong(report); err != nil {
			t.Fatal(err)
		}
	}
	if i := s.Info(); i.Cursor != 10 || i.Processed != 0 || i.Beats != 2 {
		t.Fatalf("got %+v", i)
	}
	rooms, read, err := g.Beat(1, "c1", 8, ptr(s.Generation()))
	if err != nil || read != 10 || rooms == nil || s.Info().Processed != 8 {
		t.Fatal(rooms, read, err)
	}
	s.ResetCursor(3)
	if s.Cursor() != 3 {
		t.Fatal("a reset gap goes back")
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	check := func(when string, want map[room.ConnectionModel]room.Status) {
		t.Helper()
		for m, s := range want {
			if got := g.Status(1, m, 1); got != s {
				t.Errorf("%s: %s is %s, want %s", when, m, got, s)
			}
		}
	}
	check("nobody", map[room.ConnectionModel]room.Status{room.AlwaysOn: room.StatusDisconnected,
		room.SessionAddressable: room.StatusNoSession, room.AutoSession: room.StatusDisconnected,
		room.SessionPassive: room.StatusAwaitingManualPoll})
	g.attach(1, "c1", ScopeAll)
	check("coverage is no presence", map[room.ConnectionModel]room.Status{room.AlwaysOn: room.StatusLive,
		room.SessionAddressable: room.StatusNoSession, room.AutoSession: room.StatusDormant})
	q := request(1, "c2", ScopeAll)
	q.SpawnCapable = true
	if _, err := g.try(q); err != nil {
		t.Fatal(err)
	}
	check("spawn", map[room.ConnectionModel]room.Status{room.SessionAddressable: room.StatusDormant})
	g.attach(1, "c3", ScopeSingle, 1)
	check("claim", map[room.ConnectionModel]room.Status{room.SessionAddressable: room.StatusLive, room.AutoSession: room.StatusLive})
	g.pass(6 * time.Second)
	check("lapsed", map[room.ConnectionModel]room.Status{room.AlwaysOn: room.StatusDisconnected,
		room.SessionAddressable: room.StatusNoSession})
}

func TestRuntimeState(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.SetRuntimeState(1, 1, "idle", map[string]bool{"reset": true})
	if g.ControlCapabilities(1, 1) != nil {
		t.Fatal("kept without a connection")
	}
	g.attach(1, "c1", ScopeSingle, 1)
	g.SetRuntimeState(1, 6, "idle", map[string]bool{"reset": true})
	g.SetRuntimeState(1, 1, "working", map[string]bool{"reset": true, "compact": false})
	if state, c, ok := g.RuntimeState(1, 1); !ok || state != "working" || !c["reset"] || c["compact"] {
		t.Fatalf("got %v %v %v", state, c, ok)
	}
	if g.ControlCapabilities(1, 6) != nil {
		t.Fatal("kept for a room that is not the agent's")
	}
	g.attach(1, "c1", ScopeSingle, 1)
	if g.ControlCapabilities(1, 1) == nil {
		t.Fatal("a reattach forgets what the session reported")
	}
	g.attach(1, "c2", ScopeSingle, 1)
	if g.ControlCapabilities(1, 1) != nil {
		t.Fatal("another connection's session said nothing yet")
	}
}
