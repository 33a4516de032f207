package connection

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"signalbox/appliance/room"
)

func TestRoleLease(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle, 1)
	g.attach(2, "d1", ScopeAll)
	if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
		t.Fatal(err)
	}
	if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
		t.Fatalf("again: %v", err)
	}
	if err := g.AssumeRole(2, "d1", ref(2).ID, "lead", true); err != nil {
		t.Fatalf("in another room: %v", err)
	}
	if err := g.AssumeRole(2, "d1", ref(1).ID, "scribe", false); classify(err) != "validation_error" {
		t.Fatalf("a second lease: %v", err)
	}
	// It survives a change of room and a dropped socket.
	if _, err := g.Connect(1, "c1", "", ref(2).ID); err != nil {
		t.Fatal(err)
	}
	s.Detach()
	g.pass(4 * time.Second)
	if got := g.RoleHolders(1); !maps.Equal(got, map[int64]string{1: "lead"}) {
		t.Fatalf("got %v", got)
	}
	if l := g.Leases(1); len(l) != 1 || l[0].AgentName != "agent-1" || !reflect.DeepEqual(l[0].Rooms, refIDs(2)) {
		t.Fatalf("got %+v", l)
	}
	// It ends with the lapse, before any sweep.
	g.clock.Advance(2 * time.Second)
	if got := g.RoleHolders(1); got != nil {
		t.Fatalf("got %v", got)
	}
	if _, held := g.HeldRole(1); held {
		t.Fatal("held after the lapse")
	}
	g.attach(2, "d1", ScopeAll)
	if err := g.AssumeRole(2, "d1", ref(1).ID, "lead", true); err != nil {
		t.Fatalf("a lapsed holder still excludes: %v", err)
	}
}

func TestALapseEndsARenewedLeaseToo(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle, 1)
	if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
		t.Fatal(err)
	}
	g.pass(4 * time.Second)
	if !g.RenewLease(1, "c1") || g.RenewLease(1, "c2") || g.RenewLease(2, "c1") {
		t.Fatal("held under c1 alone")
	}
	g.pass(2 * time.Second)
	if s.Pass().End == nil {
		t.Fatal("a renewal is no beat")
	}
	if g.RoleHolders(1) != nil || g.RenewLease(1, "c1") {
		t.Fatal("the lease outlives the lapse")
	}
}

func TestARenewedLeaseOutlivesAClose(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for _, reopen := range []bool{false, true} {
		g.attach(1, "c1", ScopeSingle, 1)
		if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
			t.Fatal(err)
		}
		if !g.RenewLease(1, "c1") || !g.Evict("c1", "") || g.RoleHolders(1) == nil {
			t.Fatal("the lease is not fresh")
		}
		if reopen {
			s := g.attach(1, "c1", ScopeSingle)
			if s.Info().Role == nil {
				t.Fatal("the lease is not bound to the connection again")
			}
			for range 4 {
				g.pass(2 * time.Second)
				_ = s.Pong(0)
			}
			if g.RoleHolders(1) == nil {
				t.Fatal("live while the connection is")
			}
			g.ReleaseRole(1)
			continue
		}
		g.pass(6 * time.Second)
		if g.RoleHolders(1) != nil || len(g.leases.byAgent) != 0 || len(g.leases.byRoom) != 0 {
			t.Fatal("the renewal is not fresh any more")
		}
	}
	g.attach(1, "c1", ScopeSingle, 1)
	if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
		t.Fatal(err)
	}
	if g.Evict("c1", ""); g.RoleHolders(1) != nil {
		t.Fatal("one that was never renewed goes with its connection")
	}
}

func TestAStaleLeaseThatNobodySweptYetHindersNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.attach(1, "c1", ScopeSingle, 1)
	if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(time.Second)
	if !g.RenewLease(1, "c1") || !g.Evict("c1", "") {
		t.Fatal("not renewed")
	}
	g.clock.Advance(time.Second)
	g.Sweep(g.clock.Now())
	g.pass(4 * time.Second)
	if g.leases.byAgent[1] == nil {
		t.Fatal("swept too early")
	}
	g.clock.Advance(time.Second)
	g.attach(1, "c2", ScopeAll)
	if err := g.AssumeRole(1, "c2", ref(2).ID, "scribe", false); err != nil {
		t.Fatal(err)
	}
	if g.RoleHolders(1) != nil || g.RoleHolders(2)[1] != "scribe" {
		t.Fatal("the old lease counts")
	}
}

func TestEndsOfALease(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(g *rig){
		"released":     func(g *rig) { g.ReleaseRole(1) },
		"role deleted": func(g *rig) { g.RoleGone(1, "lead") },
		"left":         func(g *rig) { g.Left(1, 1) },
		"agent closed": func(g *rig) { g.RenewLease(1, "c1"); g.AgentClosed(1, "") },
		"closed":       func(g *rig) { g.CloseConnection(1, "c1", "") },
	} {
		g := newRig(t)
		g.attach(1, "c1", ScopeSingle, 1)
		if err := g.AssumeRole(1, "c1", ref(1).ID, "lead", true); err != nil {
			t.Fatal(err)
		}
		g.RoleGone(1, "other")
		g.RoleGone(2, "lead")
		g.Left(1, 2)
		if g.RoleHolders(1) == nil {
			t.Fatalf("%s: gone too early", name)
		}
		end(g)
		if _, held := g.HeldRole(1); held || g.RoleHolders(1) != nil || len(g.leases.byRoom) != 0 {
			t.Errorf("%s: still held", name)
		}
		if _, held := g.ReleaseRole(1); held {
			t.Errorf("%s: released what was not held", name)
		}
	}
}

func TestBaselines(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	want := func(what string, roomNo, at int64, known bool) {
		t.Helper()
		if got, k := g.Baseline(1, roomNo); got != at || k != known {
			t.Errorf("%s: %d %v, want %d %v", what, got, k, at, known)
		}
	}
	want("no agent", 1, 0, false)
	s := g.attach(1, "c1", ScopeSingle, 1)
	s.ResetCursor(40)
	s.SetCursor(45)
	want("not looked at yet", 1, 0, false)
	if at, known := s.Baseline(1); at != 40 || !known {
		t.Errorf("first covered: %d %v, want the cursor of the opening", at, known)
	}
	if _, known := s.Baseline(2); known {
		t.Error("a room that is not covered has a baseline")
	}
	if _, err := g.Subscribe(t.Context(), 1, "c1", ptr(s.Generation()), ref(2).ID, false); err != nil {
		t.Fatal(err)
	}
	want("subscribed: the cursor then", 2, 45, true)
	if _, err := g.Connect(1, "c1", "", ref(3).ID); err != nil {
		t.Fatal(err)
	}
	want("connected: from 0", 3, 0, true)
	if _, err := g.Connect(1, "c1", "", ref(2).ID); err != nil {
		t.Fatal(err)
	}
	want("connected again: as it was", 2, 45, true)
	g.SetBaseline(1, 2, 60)
	g.SetBaseline(1, 2, 50)
	want("read", 2, 60, true)
	g.ResetBaselines(1)
	want("reset", 2, 0, false)
	if _, known := s.Baseline(2); known {
		t.Error("a reset room is covered for the first time again")
	}
	g.SetBaseline(1, 2, 7)
	want("read after the reset", 2, 7, true)
	g.Evict("c1", "")
	want("kept while nobody is connected", 2, 7, true)
	g.Left(1, 2)
	want("left", 2, 0, false)
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeAll)
	for n := int64(1); n <= 1000; n++ {
		s.Delivered(n, n, 1)
	}
	s.Skipped(1001, 1010, SkipFiltered)
	s.Skipped(1011, 1011, SkipNotCovered)
	other := g.attach(1, "c2", ScopeAll)
	other.Delivered(500, 500, 1)
	got := g.Deliveries(1, 500)
	if len(got) != 2 || got[0].ConnectionID != "c1" || got[0].Count != 1000 || got[0].Skip != "" || got[1].ConnectionID != "c2" {
		t.Fatalf("got %+v", got)
	}
	if got := g.Deliveries(1, 1005); len(got) != 1 || got[0].Skip != SkipFiltered || got[0].First != 1001 ||
		got[0].At != g.clock.Now() {
		t.Fatalf("got %+v", got)
	}
	if got := g.Deliveries(1, 1011); len(got) != 1 || got[0].Skip != SkipNotCovered || got[0].Generation != s.Generation() {
		t.Fatalf("got %+v", got)
	}
	if g.Deliveries(1, 2000) != nil || g.Deliveries(9, 1) != nil {
		t.Fatal("something about nothing")
	}
	for n := int64(0); n < 3*ringSize; n++ {
		s.Delivered(2000+2*n, 2000+2*n, 1) // holes: nothing merges
	}
	if n := len(g.agentOf(1).ring.runs); n != ringSize {
		t.Fatalf("%d runs kept", n)
	}
	if g.Deliveries(1, 500) != nil || len(g.Deliveries(1, 2000+2*(3*ringSize-1))) != 1 || len(g.Deliveries(1,
		2000+4*ringSize)) != 1 {
		t.Fatal("the newest runs are kept")
	}
}

func TestListing(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	ids := []string{}
	for _, i := range g.All() {
		ids = append(ids, i.ConnectionID)
	}
	if !reflect.DeepEqual(ids, []string{"c1", "c2", "c3", "c4", "d1"}) {
		t.Fatalf("got %v", ids)
	}
	if n := g.Counts(); len(n.Detached) != 1 || n.Detached[WebSocket] != 1 || n.Attached[WebSocket] != 4 || n.Attached[SSE] != 0 ||
		n.Agents != 2 {
		t.Fatalf("got %+v", n)
	}
	covering, holder := g.Covers(1, 1)
	if holder != "c1" || !reflect.DeepEqual(covering, []string{"c1"}) {
		t.Fatalf("got %v, %q", covering, holder)
	}
	if covering, holder = g.Covers(1, 3); holder != "" || !reflect.DeepEqual(covering, []string{"c2", "c4"}) {
		t.Fatalf("got %v, %q", covering, holder)
	}
	if !g.Evict("c1", "the operator asked for it") {
		t.Fatal("not evicted")
	}
	if p := c1.Pass(); p.End == nil || p.End.Code != room.CodeClosed || p.End.Reason != "the operator asked for it" {
		t.Fatalf("got %+v", p)
	}
	g.pass(6 * time.Second)
	if g.All() != nil || !reflect.DeepEqual(g.Counts(), Counts{Attached: map[Transport]int{}, Detached: map[Transport]int{}}) {
		t.Fatal("lapsed connections are listed")
	}
}
