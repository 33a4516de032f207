package connection

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

// walk drives a registry and the model through the same random steps.
type walk struct {
	*rig
	m       *model
	rnd     *rand.Rand
	streams map[int64]*Stream // by generation; the model's names for them
	log     []string
}

func numbers(ids []uuid.UUID) []int64 {
	out := []int64{}
	for _, id := range ids {
		out = append(out, int64(id[15]))
	}
	return out
}

// state is model.state of the registry.
func (w *walk) state() string {
	var out []string
	for agentNo := int64(1); agentNo <= 2; agentNo++ {
		for _, i := range w.List(agentNo) {
			places := []string{}
			for s, r := range i.Placements {
				places = append(places, fmt.Sprintf("%s=%d", s, r[15]))
			}
			sort.Strings(places)
			covers := []int64{}
			for r := int64(1); r <= 7; r++ {
				if w.streams[i.Generation].Covers(r) {
					covers = append(covers, r)
				}
			}
			out = append(out, fmt.Sprintf("%s agent=%d gen=%d attached=%v scope=%s held=%v claims=%v places=%v covers=%v done=%d",
				i.ConnectionID, i.AgentNo, i.Generation, i.Attached, i.Scope, i.Held, numbers(i.Rooms), places, covers, i.Processed))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

func passText(p Pass) string {
	if p.End != nil {
		return "end " + p.End.Code
	}
	var out []string
	for _, r := range p.Released {
		session := ""
		if r.SessionID != nil {
			session = *r.SessionID
		}
		out = append(out, fmt.Sprintf("released %d %s", r.RoomID[15], session))
	}
	sort.Strings(out)
	if p.Changed {
		out = append(out, fmt.Sprintf("changed %v", numbers(p.Rooms)))
	}
	return strings.Join(out, "; ")
}

func (w *walk) ids() []string { return []string{"c1", "c2", "c3", "c4"} }

func (w *walk) agent() int64 { return 1 + int64(w.rnd.IntN(4)/3) }

func (w *walk) id() string { return w.ids()[w.rnd.IntN(len(w.ids()))] }

func (w *walk) session() string { return []string{"s1", "s2", "s3"}[w.rnd.IntN(3)] }

// room is mostly one of the first three; now and then one the agent is not in, or none at all.
func (w *walk) room() int64 {
	if w.rnd.IntN(12) == 0 {
		return 5 + int64(w.rnd.IntN(3))
	}
	return 1 + int64(w.rnd.IntN(3))
}

// gen is mostly the current generation of the connection, sometimes a stale one, sometimes none.
func (w *walk) gen(id string) *int64 {
	switch w.rnd.IntN(8) {
	case 0:
		return nil
	case 1:
		return ptr(w.m.gen - int64(w.rnd.IntN(4)))
	}
	if c := w.m.conns[id]; c != nil {
		return ptr(c.gen)
	}
	return nil
}

func (w *walk) stream() (*Stream, *mstream) {
	gens := slices.Sorted(maps.Keys(w.streams))
	if len(gens) == 0 {
		return nil, nil
	}
	g := gens[w.rnd.IntN(len(gens))]
	if w.rnd.IntN(3) > 0 {
		g = gens[len(gens)-1-w.rnd.IntN(min(4, len(gens)))]
	}
	return w.streams[g], w.m.streams[g]
}

// check compares what both said.
func (w *walk) check(what string, got, want any) {
	w.t.Helper()
	w.log = append(w.log, what)
	if g, m := fmt.Sprint(got), fmt.Sprint(want); g != m {
		w.fail("%s: registry %q, model %q", what, g, m)
	}
}

func (w *walk) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format+"\nsteps:\n%s", append(args, strings.Join(w.log[max(0, len(w.log)-25):], "\n"))...)
}

func (w *walk) open() {
	q := request(w.agent(), w.id(), []Scope{ScopeSingle, ScopeAll}[w.rnd.IntN(2)])
	rooms := []int64{}
	for range w.rnd.IntN(4) {
		if r := w.room(); !slices.Contains(rooms, r) {
			rooms = append(rooms, r)
		}
	}
	revision := []int{0, 1, 5, 8}[w.rnd.IntN(4)]
	q.Rooms, q.SpawnCapable = refIDs(rooms...), w.rnd.IntN(3) == 0
	q.StartHead, q.After = false, int64(w.rnd.IntN(5))
	q.Declared = Declaration{}
	if revision > 0 {
		q.Declared = Declaration{Speaks: &revision, Accepts: ptr(1)}
	}
	if w.rnd.IntN(2) == 0 {
		q.ExpectedGeneration = w.gen(q.ConnectionID)
	}
	s, err := w.try(q)
	code, gen := w.m.attach(q.AgentNo, q.ConnectionID, q.Scope, q.SpawnCapable, revision, q.After, q.ExpectedGeneration, rooms)
	w.check(fmt.Sprintf("open agent %d %s %s rooms %v rev %d: gen %d", q.AgentNo, q.ConnectionID, q.Scope, rooms, revision, gen),
		classify(err), code)
	if err == nil {
		w.check("generation", s.Generation(), gen)
		w.streams[gen] = s
	}
}

func (w *walk) claim() {
	agentNo, id, room := w.agent(), w.id(), w.room()
	gen := w.gen(id)
	switch w.rnd.IntN(8) {
	case 0, 1:
		takeover := w.rnd.IntN(2) == 0
		sub, err := w.Subscribe(w.t.Context(), agentNo, id, gen, ref(room).ID, takeover)
		code, evicted := w.m.subscribe(agentNo, id, gen, room, takeover)
		w.check(fmt.Sprintf("subscribe %d %s %d %v", agentNo, id, room, takeover), classify(err)+sub.Evicted, code+evicted)
	case 2:
		_, err := w.Unsubscribe(agentNo, id, gen, ref(room).ID)
		w.check(fmt.Sprintf("unsubscribe %d %s %d", agentNo, id, room), classify(err), w.m.unsubscribe(agentNo, id, gen, room))
	case 3, 4:
		want, ids := map[string]int64{}, map[string]uuid.UUID{}
		for range w.rnd.IntN(4) {
			s, r := w.session(), w.room()
			want[s], ids[s] = r, ref(r).ID
		}
		done, err := w.Place(agentNo, id, gen, ids)
		released := []string{}
		for _, r := range done.Released {
			session := ""
			if r.SessionID != nil {
				session = *r.SessionID
			}
			released = append(released, fmt.Sprintf("%d/%s/%s", r.RoomID[15], r.ConnectionID, session))
		}
		sort.Strings(released)
		code, out := w.m.placements(agentNo, id, gen, want)
		w.check(fmt.Sprintf("placements %d %s %v", agentNo, id, want), classify(err)+strings.Join(released, " "), code+out)
	case 5, 6:
		session := ""
		if w.rnd.IntN(2) == 0 {
			session = w.session()
		}
		done, err := w.Connect(agentNo, id, session, ref(room).ID)
		code, evicted := w.m.connect(agentNo, id, session, room)
		w.check(fmt.Sprintf("connect %d %s %q %d", agentNo, id, session, room), classify(err)+done.Evicted, code+evicted)
		if (done.Warning != "") != (evicted != "") {
			w.fail("warning %q, evicted %q", done.Warning, evicted)
		}
	case 7:
		session := ""
		if w.rnd.IntN(2) == 0 {
			session = w.session()
		}
		at, err := w.Locate(agentNo, id, session)
		code, r := w.m.locate(agentNo, id, session)
		w.check(fmt.Sprintf("locate %d %s %q", agentNo, id, session), fmt.Sprint(classify(err), at.No), fmt.Sprint(code, r))
	}
}

func (w *walk) step() {
	switch w.rnd.IntN(20) {
	case 0, 1, 2:
		w.open()
	case 3:
		if s, ms := w.stream(); s != nil {
			s.Detach()
			w.m.detach(ms)
			w.check(fmt.Sprintf("detach %d", ms.gen), "", "")
		}
	case 4, 5:
		if s, ms := w.stream(); s != nil {
			w.check(fmt.Sprintf("pong %d", ms.gen), classify(s.Pong(3)), w.m.pong(ms, 3))
		}
	case 6:
		agentNo, id := w.agent(), w.id()
		gen := w.gen(id)
		_, _, err := w.Beat(agentNo, id, 1, gen)
		w.check(fmt.Sprintf("beat %d %s", agentNo, id), classify(err), w.m.beat(agentNo, id, 1, gen))
	case 7, 8, 9, 10, 11:
		w.claim()
	case 12, 13:
		if s, ms := w.stream(); s != nil {
			w.check(fmt.Sprintf("pass %d", ms.gen), passText(s.Pass()), w.m.pass(ms))
		}
	case 14, 15:
		w.time()
	case 16:
		agentNo, r := w.agent(), w.room()
		if w.m.members[agentNo][r] {
			w.table.mu.Lock()
			delete(w.table.in[agentNo], r)
			w.table.mu.Unlock()
			w.Left(agentNo, r)
			w.m.leave(agentNo, r)
			w.check(fmt.Sprintf("leave %d %d", agentNo, r), "", "")
		}
	case 17, 18:
		agentNo, r := w.agent(), w.room()
		if r != 7 {
			w.table.mu.Lock()
			w.table.in[agentNo][r] = ref(r)
			w.table.mu.Unlock()
			w.Joined(agentNo, ref(r))
			w.m.join(agentNo, r)
			w.check(fmt.Sprintf("join %d %d", agentNo, r), "", "")
		}
	case 19:
		w.rare()
	}
}

// time moves the clock: mostly with the sweeps, sometimes as a server that stands still.
func (w *walk) time() {
	d := time.Duration(1+w.rnd.IntN(20)) * 100 * time.Millisecond
	if w.rnd.IntN(15) == 0 {
		d = time.Duration(51+w.rnd.IntN(200)) * 100 * time.Millisecond
	}
	w.clock.Advance(d)
	w.m.now += d
	w.log = append(w.log, fmt.Sprintf("advance %v", d))
	if w.m.now-w.m.swept > 5*time.Second && w.rnd.IntN(2) == 0 {
		// Somebody looks before the sweep does.
		if s, ms := w.stream(); s != nil {
			w.check(fmt.Sprintf("pass in a stall %d", ms.gen), passText(s.Pass()), w.m.pass(ms))
		}
	}
	if w.m.now-w.m.swept >= 2*time.Second {
		w.Sweep(w.clock.Now())
		w.m.settle()
		w.m.swept = w.m.now
		w.log = append(w.log, "sweep")
	}
}

func (w *walk) rare() {
	switch w.rnd.IntN(3) {
	case 0:
		id := w.id()
		w.m.settle()
		c := w.m.conns[id]
		if c != nil {
			w.m.end(c, "closed")
		}
		w.check("evict "+id, w.Evict(id, "the operator closed it"), c != nil)
	case 1:
		agentNo, r := w.agent(), w.room()
		w.check(fmt.Sprintf("status %d %d", agentNo, r), w.Status(agentNo, room.SessionAddressable, r), w.m.status(agentNo, r))
	case 2:
		if w.rnd.IntN(6) > 0 {
			return
		}
		old := w.Registry.generation.Load()
		w.clock.Advance(time.Microsecond * 100)
		w.m.now += time.Microsecond * 100
		w.Registry = New(w.table, Options{Clock: w.clock, RoomExists: w.exists})
		w.m.restart(w.generation.Load())
		w.streams = map[int64]*Stream{}
		if now := w.generation.Load(); now <= old {
			w.fail("a restart went back from generation %d to %d", old, now)
		}
		w.log = append(w.log, "restart")
	}
}

// TestAnyInterleaving holds the registry to the model over random opens, closes, lapses, takeovers, claims, placements,
// memberships and restarts.
func TestAnyInterleaving(t *testing.T) {
	t.Parallel()
	steps, walks := 1000, 20
	if testing.Short() {
		walks = 5
	}
	for seed := range walks {
		g := newRig(t)
		w := &walk{rig: g, m: newModel(g.generation.Load()), rnd: rand.New(rand.NewPCG(uint64(seed), 7)), streams: map[int64]*Stream{}}
		for agentNo := int64(1); agentNo <= 2; agentNo++ {
			w.m.members[agentNo] = map[int64]bool{}
			for r := range g.table.in[agentNo] {
				w.m.members[agentNo][r] = true
			}
		}
		for range steps {
			w.step()
			w.m.settle()
			if got, want := w.state(), w.m.state(); got != want {
				w.fail("seed %d: registry\n%s\nmodel\n%s", seed, got, want)
			}
			for gen, s := range w.streams {
				end := ""
				if e := s.end.Load(); e != nil {
					end = e.Code
				}
				if want := w.m.streams[gen].end; end != want {
					w.fail("seed %d: stream %d ended %q, model %q", seed, gen, end, want)
				}
			}
		}
	}
}
