package connection

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/room"
)

func TestGenerationsStartAtTheClockAndNeverRepeat(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	last := start.UnixMicro()
	for i := range 5 {
		s := g.attach(1, []string{"c1", "c2"}[i%2], ScopeAll)
		if s.Generation() <= last || s.Generation() >= 1<<53 {
			t.Fatalf("generation %d after %d", s.Generation(), last)
		}
		last = s.Generation()
		g.Evict("c1", "")
	}
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first := g.attach(1, "c1", ScopeSingle, 1)
	first.SetCursor(9)
	if _, err := g.Connect(1, "c1", "s1", ref(1).ID); err != nil {
		t.Fatal(err)
	}
	g.attach(1, "c2", ScopeSingle, 2)
	if _, err := g.Subscribe(t.Context(), 1, "c2", ptr(g.generation.Load()), ref(1).ID, true); err != nil {
		t.Fatal(err)
	}
	before := g.woken["c1"]
	q := request(1, "c1", ScopeAll)
	q.StartHead, q.After, q.Filter, q.SpawnCapable, q.ExpectedGeneration = false, 4, FilterAddressed, true, ptr(first.Generation())
	second, err := g.try(q)
	if err != nil {
		t.Fatal(err)
	}
	if g.woken["c1"] == before {
		t.Error("the displaced stream was not woken")
	}
	if p := first.Pass(); p.End == nil || p.End.Code != room.CodeTakenOver || !strings.HasPrefix(p.End.Reason,
		"another stream attached") ||
		p.End.RoomID != nil {
		t.Fatalf("got %+v", p)
	}
	if first.Covers(3) || !second.Covers(3) {
		t.Error("the displaced stream still covers, or its successor does not")
	}
	first.SetCursor(50)
	first.Detach()
	i := second.Info()
	if !i.Attached || i.Scope != ScopeAll || i.Filter != FilterAddressed || !i.SpawnCapable || i.Cursor != 4 || i.Held {
		t.Errorf("got %+v", i)
	}
	// The loss from before the takeover waits for the new stream, once.
	if p := second.Pass(); len(p.Released) != 1 || p.Released[0].RoomID != ref(1).ID || *p.Released[0].SessionID != "s1" {
		t.Errorf("got %+v", p)
	}
	if p := second.Pass(); len(p.Released) != 0 || p.Changed {
		t.Errorf("got %+v", p)
	}
	if err := first.Pong(0); room.RefusedCode(err) != room.CodeTakenOver {
		t.Errorf("got %v", err)
	}
}

// The MCP runtime reopens the same id with rooms= right after connect_to_room (J.7).
func TestASelfTakeoverReleasesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.attach(1, "c1", ScopeSingle)
	if done, err := g.Connect(1, "c1", "", ref(2).ID); err != nil || done.Warning != "" {
		t.Fatal(done, err)
	}
	s := g.attach(1, "c1", ScopeSingle, 2)
	if p := s.Pass(); p.End != nil || p.Changed || len(p.Released) > 0 || !reflect.DeepEqual(s.Info().Rooms, refIDs(2)) {
		t.Fatalf("got %+v", p)
	}
	if done, err := g.Connect(1, "c1", "", ref(3).ID); err != nil || done.Warning != "" || !reflect.DeepEqual(done.Rooms,
		refIDs(3)) {
		t.Fatal(done, err)
	}
	if rooms, err := g.Unsubscribe(1, "c1", ptr(s.Generation()), ref(2).ID); err != nil || !reflect.DeepEqual(rooms, refIDs(3)) {
		t.Fatal(rooms, err)
	}
}

func TestReattachKeepsClaimsPlacementsAndRole(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	c1.Detach()
	g.pass(4 * time.Second)
	s := g.attach(1, "c1", ScopeAll)
	i := s.Info()
	if !reflect.DeepEqual(i.Rooms, refIDs(1)) || i.Placements["s1"] != ref(1).ID || i.Role == nil || i.Role.Role != "lead" {
		t.Fatalf("got %+v", i)
	}
	if s.Held() {
		t.Error("an attach that finds claims is held")
	}
	if got := g.RoleHolders(1); got[1] != "lead" {
		t.Errorf("got %v", got)
	}
}

func TestLapseBoundaries(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeSingle, 1)
	g.pass(4 * time.Second)
	g.clock.Advance(1999 * time.Millisecond)
	if p := s.Pass(); p.End != nil || p.Deadline != time.Millisecond {
		t.Fatalf("got %+v", p)
	}
	if err := s.Pong(0); err != nil {
		t.Fatal(err)
	}
	if d := s.Deadline(); d != LapseAfter {
		t.Fatalf("deadline %v after a pong", d)
	}
	g.pass(6 * time.Second)
	if _, ok := g.Get("c1"); ok || g.conn("c1") != nil {
		t.Fatal("the sweep left a lapsed connection")
	}
	if p := s.Pass(); p.End == nil || p.End.Code != room.CodeHeartbeatLapsed {
		t.Fatalf("got %+v", p)
	}
	// A stale generation does not keep it from coming back (B.2).
	q := request(1, "c1", ScopeSingle, 1)
	q.ExpectedGeneration = ptr(int64(1))
	if _, err := g.try(q); err != nil {
		t.Fatal(err)
	}
}

func TestAStalledServerLapsesNobody(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	idle := g.attach(1, "c1", ScopeSingle, 1)
	g.pass(4 * time.Second)
	beating := g.attach(1, "c2", ScopeSingle, 2)

	// Late by no more than StallAfter: time passes for everybody.
	h := newRig(t)
	other := h.attach(1, "c1", ScopeSingle, 1)
	h.pass(2 * time.Second)
	h.clock.Advance(SweepEvery + StallAfter)
	h.Sweep(h.clock.Now())
	if other.Pass().End == nil {
		t.Error("a sweep 3 s late is no stall")
	}

	g.clock.Advance(time.Minute)
	if p := idle.Pass(); p.End == nil {
		t.Error("idle was due when the sweep was due")
	}
	if p := beating.Pass(); p.End != nil || p.Deadline <= 0 {
		t.Fatalf("lapsed in a stall: %+v", p)
	}
	if err := beating.Pong(0); err != nil {
		t.Fatal(err)
	}
	g.Sweep(g.clock.Now())
	if d := beating.Deadline(); d != LapseAfter {
		t.Errorf("%v left after a pong in the stall, want %v", d, LapseAfter)
	}
	g.pass(4 * time.Second)
	if beating.Pass().End != nil {
		t.Error("lapsed within 6 s of the stall")
	}
	g.pass(2 * time.Second)
	if beating.Pass().End == nil {
		t.Error("lives on 6 s after the stall")
	}
}

func TestAStandingClockDoesNotSpinAStream(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.attach(1, "c1", ScopeAll)
	g.pass(2 * time.Second)
	g.clock.Advance(1999 * time.Millisecond)
	g.Sweep(g.clock.Now())
	g.clock.Advance(time.Hour)
	if p := s.Pass(); p.End != nil || p.Deadline < standingPause {
		t.Fatalf("got %+v", p)
	}
}

func TestALapsedIDOfAnotherAgentIsFree(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.attach(2, "c1", ScopeAll)
	g.pass(4 * time.Second)
	g.clock.Advance(2 * time.Second)
	g.attach(1, "c1", ScopeAll)
	if got := g.List(2); len(got) != 0 {
		t.Fatalf("got %+v", got)
	}
	if i, ok := g.Get("c1"); !ok || i.AgentNo != 1 {
		t.Fatalf("got %+v", i)
	}
}

func TestLapsedConnectionsDoNotCountAgainstTheCap(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for i := range MaxLive {
		s := g.attach(1, fmt.Sprint("c", i), ScopeAll)
		if i%2 == 0 {
			s.Detach()
		}
	}
	g.unchanged("the 33rd", func() {
		if _, err := g.try(request(1, "more", ScopeAll)); classify(err) != "conflict" {
			t.Fatalf("got %v", err)
		}
	})
	g.attach(1, "c7", ScopeAll)
	g.pass(4 * time.Second)
	g.clock.Advance(2 * time.Second)
	g.attach(1, "more", ScopeAll)
	if n := len(g.List(1)); n != 1 {
		t.Fatalf("%d live", n)
	}
}

func TestAgentClosedIsFinal(t *testing.T) {
	t.Parallel()
	g, c1 := scene(t)
	g.AgentClosed(1, "the agent was deleted")
	if p := c1.Pass(); p.End == nil || p.End.Code != room.CodeClosed || p.End.Reason != "the agent was deleted" {
		t.Fatalf("got %+v", p)
	}
	if _, err := g.try(request(1, "c1", ScopeAll)); classify(err) != "unauthenticated" {
		t.Fatalf("got %v", err)
	}
	if g.List(1) != nil || len(g.RoleHolders(1)) != 0 || g.AgentClosedLeftovers() != 0 {
		t.Fatal("something is left")
	}
	if len(g.List(2)) != 1 {
		t.Fatal("another agent's connection went too")
	}
}

// AgentClosedLeftovers counts what the index still knows of agent 1.
func (g *rig) AgentClosedLeftovers() (n int) {
	for _, c := range g.conns {
		if c.agent.no == 1 {
			n++
		}
	}
	return n
}

func TestAgentClosedDuringAnAttach(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.table.hook = func(no int64) { g.AgentClosed(no, "deleted") }
	if s, err := g.try(request(1, "c1", ScopeAll)); s != nil || classify(err) != "unauthenticated" {
		t.Fatalf("got %v, %v", s, err)
	}
	if len(g.conns) != 0 || len(g.agents) != 0 {
		t.Fatal("something is left")
	}
}

func TestHooksDuringTheReadOfMembers(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.table.hook = func(no int64) {
		g.Left(no, 1)
		g.Joined(no, ref(6))
		g.Joined(no, ref(1))
		g.Left(no, 1)
		g.Left(no, 2)
		g.Joined(no, ref(2))
	}
	s := g.attach(1, "c1", ScopeAll)
	var covered []int64
	for n := int64(1); n <= 7; n++ {
		if s.Covers(n) {
			covered = append(covered, n)
		}
	}
	if !slices.Equal(covered, []int64{2, 3, 4, 5, 6}) {
		t.Fatalf("covers %v", covered)
	}
	if a := g.agentOf(1); a.changes != nil {
		t.Error("changes are kept")
	}
}

// Of two reads the one that succeeds may be older than a hook that ran while the other failed.
func TestHooksDuringTwoReadsOfMembers(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	reading, release := make(chan struct{}), make(chan struct{})
	g.table.hook = func(int64) {
		close(reading)
		<-release
	}
	done := make(chan *Stream)
	go func() {
		s, _ := g.try(request(1, "c1", ScopeAll))
		done <- s
	}()
	<-reading
	g.table.mu.Lock()
	g.table.hook, g.table.err = nil, errors.New("disk")
	g.table.mu.Unlock()
	g.Left(1, 1)
	if _, err := g.try(request(1, "c2", ScopeAll)); err == nil {
		t.Fatal("the second read succeeded")
	}
	close(release)
	if s := <-done; s == nil || s.Covers(1) || !s.Covers(2) {
		t.Fatal("the hook is lost")
	}
}

func TestMembersAreReadOnceAndForgottenWithTheLast(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.attach(1, "c1", ScopeAll)
	g.attach(1, "c2", ScopeAll)
	g.attach(1, "c1", ScopeAll)
	if g.table.asked != 1 {
		t.Fatalf("asked %d times", g.table.asked)
	}
	g.Evict("c1", "")
	g.Evict("c2", "")
	if a := g.agentOf(1); a.members != nil || a.byID != nil {
		t.Error("members are kept")
	}
	g.table.set(1, 3)
	if s := g.attach(1, "c1", ScopeAll); !s.Covers(3) || s.Covers(1) {
		t.Error("not read again")
	}
}

func TestAFailedReadRefusesTheOpen(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.table.err = errors.New("disk")
	gen := g.generation.Load()
	if s, err := g.try(request(1, "c1", ScopeAll)); s != nil || !errors.Is(err, g.table.err) {
		t.Fatalf("got %v, %v", s, err)
	}
	if g.generation.Load() != gen || len(g.conns) != 0 {
		t.Fatal("something changed")
	}
	g.table.err = nil
	g.attach(1, "c1", ScopeAll)
}

func TestAPanicInTheReadLocksNobodyOut(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.table.hook = func(int64) { panic("broken") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = g.try(request(1, "c1", ScopeAll))
	}()
	g.table.hook = nil
	g.attach(1, "c1", ScopeAll)
	g.Evict("c1", "")
	if a := g.agentOf(1); a.loads != 0 || a.members != nil {
		t.Error("the read still counts")
	}
}

func TestTheClaimLockIsNotHeldDuringTheRead(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.table.hook = func(no int64) {
		g.Status(no, room.AlwaysOn, 1)
		g.List(no)
		_ = g.Require(no, "c1")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.attach(1, "c1", ScopeAll)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the lock is held")
	}
}

// A wake may ask the registry: it is called outside of the locks.
func TestWakesAreCalledOutsideOfLocks(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	calls := 0
	var s *Stream
	s, err := g.Attach(context.Background(), request(1, "c1", ScopeAll), func() {
		calls++
		if s != nil {
			s.Pass()
		}
		g.List(1)
		g.RoleHolders(1)
	})
	if err != nil {
		t.Fatal(err)
	}
	g.attach(1, "c2", ScopeSingle, 1)
	g.Left(1, 2)
	g.AgentClosed(1, "")
	if calls < 3 {
		t.Fatalf("%d calls", calls)
	}
}

type observed struct{ got []string }

func (o *observed) Attached(i Info, again bool) {
	o.got = append(o.got, fmt.Sprint("attached ", i.ConnectionID, again))
}
func (o *observed) Ended(i Info, e End) {
	o.got = append(o.got, fmt.Sprint("ended ", i.ConnectionID, i.Attached, len(i.Rooms), " ", e.Code))
}
func (o *observed) Stalled(d time.Duration) { o.got = append(o.got, fmt.Sprint("stalled ", d)) }

func TestObserver(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	o := &observed{}
	g.observer = o
	g.attach(1, "c1", ScopeSingle, 1)
	g.attach(1, "c1", ScopeSingle, 1).Detach()
	g.attach(1, "c1", ScopeSingle, 1)
	g.Evict("c1", "go")
	for range 2 { // the first is the start of the server
		g.clock.Advance(10 * time.Second)
		g.Sweep(g.clock.Now())
	}
	want := []string{"attached c1 false", "ended c1 true 1 taken_over", "attached c1 true", "attached c1 true",
		"ended c1 true 1 closed", "stalled 8s"}
	for i, s := range want {
		want[i] = strings.ReplaceAll(s, " ", "")
	}
	for i, s := range o.got {
		o.got[i] = strings.ReplaceAll(s, " ", "")
	}
	if !slices.Equal(o.got, want) {
		t.Fatalf("got %q, want %q", o.got, want)
	}
}

// A generation that has moved on is refused, also when the stream that moved it is detached and was never heard of again
// (B.2, check 9): whoever opened it may have been another.
func TestAStaleGenerationIsRefusedWhileDetached(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first := g.attach(1, "c", ScopeSingle, 1)
	first.Detach()
	q := request(1, "c", ScopeSingle)
	q.ExpectedGeneration = ptr(first.Generation())
	second, err := g.try(q)
	if err != nil {
		t.Fatal(err)
	}
	second.Detach()
	before, _ := g.Get("c")
	if _, err := g.try(q); room.RefusedCode(err) != room.CodeTakenOver {
		t.Errorf("the generation before: %v", err)
	}
	if i, _ := g.Get("c"); i.Generation != before.Generation || i.Attached {
		t.Errorf("changed %+v to %+v", before, i)
	}
	q.ExpectedGeneration = ptr(second.Generation())
	if _, err := g.try(q); err != nil {
		t.Errorf("the current one: %v", err)
	}
}

// An event can be read before the hooks of its commit have run: then the database knows better who is where. A hook that
// runs meanwhile knows better still.
func TestCoversQueued(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	g := newRig(t)
	all, single := g.attach(1, "all", ScopeAll), g.attach(1, "single", ScopeSingle, 2)
	covers := func(s *Stream, roomNo int64) bool {
		t.Helper()
		in, err := s.CoversQueued(ctx, roomNo)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	asked := g.table.asked
	if !covers(all, 1) || covers(all, 2) || !covers(single, 2) || covers(single, 1) || g.table.asked != asked {
		t.Error("rooms that are known are not asked about")
	}
	if covers(all, 6) || g.table.asked != asked+1 {
		t.Error("a room the agent is not in")
	}
	g.table.set(1, 1, 2, 3, 4, 5, 6) // committed, and not told yet
	if all.Covers(6) || !covers(all, 6) || !all.Covers(6) || covers(single, 6) {
		t.Error("a room the agent has just joined")
	}
	g.Joined(1, ref(6))
	g.Left(1, 6)
	if g.table.hook = func(int64) { g.Left(1, 6) }; covers(all, 6) {
		t.Error("the agent left during the read")
	}
	g.table.hook = nil
	g.table.err = errors.New("the disk is on fire")
	if _, err := all.CoversQueued(ctx, 6); err == nil {
		t.Error("a failed read")
	}
	if g.table.err = nil; !covers(all, 6) {
		t.Error("what failed leaves nothing behind")
	}
	g.CloseConnection(1, "all", "")
	g.CloseConnection(1, "single", "")
	if asked = g.table.asked; covers(all, 1) || g.table.asked != asked {
		t.Error("an ended stream covers nothing")
	}
}
