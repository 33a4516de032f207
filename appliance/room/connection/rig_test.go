package connection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

var start = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// ref is room n of a test.
func ref(n int64) room.Ref {
	id := uuid.UUID{15: byte(n)}
	return room.Ref{No: n, ID: id, Name: fmt.Sprintf("room-%d", n)}
}

func refIDs(ns ...int64) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, n := range ns {
		ids = append(ids, ref(n).ID)
	}
	return ids
}

// table is the database's side: who is in which room.
type table struct {
	mu    sync.Mutex
	in    map[int64]map[int64]room.Ref
	asked int
	hook  func(agentNo int64) // called after the snapshot is taken
	err   error
}

func (t *table) AgentRooms(_ context.Context, agentNo int64) ([]room.Ref, error) {
	t.mu.Lock()
	t.asked++
	refs, hook, err := slices.Collect(maps.Values(t.in[agentNo])), t.hook, t.err
	t.mu.Unlock()
	if hook != nil {
		hook(agentNo)
	}
	return refs, err
}

func (t *table) set(agentNo int64, rooms ...int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.in[agentNo] = map[int64]room.Ref{}
	for _, n := range rooms {
		t.in[agentNo][n] = ref(n)
	}
}

// rig is a registry with a clock and a table. Agents 1 and 2 are in the rooms 1 to 5, room 6 exists, room 7 does not.
type rig struct {
	*Registry
	t     *testing.T
	clock *clock.Fake
	table *table
	woken map[string]int
	mu    sync.Mutex
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{t: t, clock: clock.NewFake(start), table: &table{in: map[int64]map[int64]room.Ref{}}, woken: map[string]int{}}
	g.table.set(1, 1, 2, 3, 4, 5)
	g.table.set(2, 1, 2, 3, 4, 5)
	g.Registry = New(g.table, Options{Clock: g.clock, Version: "1.2.3",
		RoomExists: func(_ context.Context, id uuid.UUID) (bool, error) { return id != ref(7).ID, nil }})
	return g
}

// pass moves the clock in steps, with the sweeps of the appliance.
func (g *rig) pass(d time.Duration) {
	for d > 0 {
		step := min(d, SweepEvery)
		g.clock.Advance(step)
		g.Sweep(g.clock.Now())
		d -= step
	}
}

func ptr[T any](v T) *T { return &v }

func request(agentNo int64, id string, scope Scope, rooms ...int64) Request {
	return Request{AgentNo: agentNo, AgentID: uuid.UUID{0: byte(agentNo)}, AgentName: fmt.Sprintf("agent-%d", agentNo),
		ConnectionID: id, Transport: WebSocket, Scope: scope, Filter: FilterAll, StartHead: true, Rooms: refIDs(rooms...),
		Declared: Declaration{Speaks: ptr(8), Accepts: ptr(1)}}
}

func (g *rig) try(q Request) (*Stream, error) {
	return g.Attach(context.Background(), q, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.woken[q.ConnectionID]++
	})
}

func (g *rig) attach(agentNo int64, id string, scope Scope, rooms ...int64) *Stream {
	g.t.Helper()
	s, err := g.try(request(agentNo, id, scope, rooms...))
	if err != nil {
		g.t.Fatalf("attach %s: %v", id, err)
	}
	return s
}

// dump is everything the registry holds, for "nothing changed".
func (g *rig) dump() string {
	type connDump struct {
		Info          Info
		Pending       []Released
		LastBeat      int64
		Ended         bool
		End           *End
		Claimed       map[int64]room.Ref
		Placed        map[int64]string
		Seen, View    string
		StreamPointer string
	}
	type agentDump struct {
		Conns     map[string]connDump
		Claims    map[int64]string
		Members   map[int64]room.Ref
		ByID      map[string]int64
		Baselines string
		Runtime   string
		Closed    bool
	}
	out := struct {
		Generation int64
		Mark       mark
		Agents     map[int64]agentDump
		Index      []string
		Leases     map[int64]string
		ByRoom     string
		Woken      map[string]int
	}{Generation: g.generation.Load(), Mark: *g.mark.Load(), Agents: map[int64]agentDump{}, Leases: map[int64]string{},
		Woken: g.woken}
	for no, a := range g.agents {
		if len(a.conns) == 0 && len(a.baselines) == 0 && !a.closed {
			continue // as good as absent
		}
		d := agentDump{Conns: map[string]connDump{}, Claims: map[int64]string{}, Members: a.members, ByID: map[string]int64{},
			Baselines: fmt.Sprint(a.baselines), Runtime: fmt.Sprint(a.runtime), Closed: a.closed}
		for id, n := range a.byID {
			d.ByID[id.String()] = n
		}
		for n, c := range a.claims {
			d.Claims[n] = c.id
		}
		for id, c := range a.conns {
			d.Conns[id] = connDump{Info: c.info(), Pending: c.pending, LastBeat: c.lastBeat.Load(), Ended: c.ended.Load(),
				End: c.stream.end.Load(), Claimed: c.claimed, Placed: c.placed, Seen: fmt.Sprint(c.stream.seen.claims),
				StreamPointer: fmt.Sprintf("%p", c.stream)}
		}
		out.Agents[no] = d
	}
	for id := range g.conns {
		out.Index = append(out.Index, id)
	}
	slices.Sort(out.Index)
	for no, l := range g.leases.byAgent {
		out.Leases[no] = fmt.Sprint(*l)
	}
	out.ByRoom = fmt.Sprint(len(g.leases.byRoom))
	b, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		g.t.Fatal(err)
	}
	return string(b)
}

// unchanged runs f and fails the test when it changed anything.
func (g *rig) unchanged(name string, f func()) {
	g.t.Helper()
	before := g.dump()
	f()
	if after := g.dump(); after != before {
		g.t.Errorf("%s changed something:\n%s\nbefore:\n%s", name, after, before)
	}
}

// classify makes a short word of an error.
func classify(err error) string {
	if err == nil {
		return ""
	}
	if code := room.RefusedCode(err); code != "" {
		return code
	}
	var inc *Incompatible
	if errors.As(err, &inc) {
		return "incompatible"
	}
	return string(fault.CodeOf(err))
}
