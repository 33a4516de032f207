package feed_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/store"
)

// model is what the protocol says of one agent, as simply as it can be said.
type model struct {
	head    int64
	floor   int64
	kept    []kept
	dropped map[int64]int64 // room → highest number dropped
	rooms   map[int64]bool
}

type kept struct {
	sequence, room int64
	body           string
	at             time.Time
}

// retain applies retention, as at every append and every read.
func (m *model) retain(now, start time.Time, most int, age time.Duration) {
	for len(m.kept) > 0 {
		k := m.kept[0]
		if len(m.kept) <= most && (now.Sub(k.at) <= age || now.Sub(start) <= age) {
			return
		}
		m.dropped[k.room] = k.sequence
		m.kept = m.kept[1:]
	}
}

// gap is the retention gap above a cursor.
func (m *model) gap(cursor int64, id func(int64) uuid.UUID) *feed.Gap {
	g := &feed.Gap{From: cursor}
	highest := int64(0)
	for no, through := range m.dropped {
		if through > cursor {
			g.Rooms = append(g.Rooms, id(no))
		}
		highest = max(highest, through)
	}
	if len(g.Rooms) == 0 {
		return nil
	}
	slices.SortFunc(g.Rooms, func(a, b uuid.UUID) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	g.ResumedAt = highest
	return g
}

func (m *model) above(cursor int64) (out []kept) {
	for _, k := range m.kept {
		if k.sequence > cursor {
			out = append(out, k)
		}
	}
	return out
}

// TestModel drives the feed on a real database at random beside the model: whatever a reader asks, it gets exactly what
// is left, or is told of the gap first.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 4; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			runModel(t, rand.New(rand.NewPCG(seed, 77)), 500)
		})
	}
}

func runModel(t *testing.T, rnd *rand.Rand, steps int) {
	const retained, age = 40, time.Minute
	r := newRig(t, feed.Options{Retained: retained, Age: age, CacheBytes: 4000})
	start := r.clock.Now()
	agents, models := []int64{}, map[int64]*model{}
	for i := range 3 {
		a := r.agent(fmt.Sprint("agent-", i))
		agents = append(agents, a)
		models[a] = &model{dropped: map[int64]int64{}, rooms: map[int64]bool{}}
	}
	var rooms []int64
	for i := range 3 {
		no := r.room(fmt.Sprint("room-", i), agents...)
		rooms = append(rooms, no)
		for _, a := range agents {
			models[a].rooms[no] = true
		}
	}
	type live struct {
		reader *feed.Reader
		agent  int64
		cursor int64
	}
	var readers []*live
	pick := func(list []int64) int64 { return list[rnd.IntN(len(list))] }
	retain := func() {
		for _, m := range models {
			m.retain(r.clock.Now(), start, retained, age)
		}
	}
	events := func(what string, got []feed.Event, want []kept) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: got %v, want %d events %v", what, sequences(got), len(want), want)
		}
		for i, e := range got {
			payload := decode(t, e.AppendData(nil, nil))["payload"].(map[string]any)
			if e.Sequence != want[i].sequence || e.Room.No != want[i].room || payload["body"] != want[i].body {
				t.Fatalf("%s: event %d is %d of room %d %q, want %v", what, i, e.Sequence, e.Room.No, payload["body"], want[i])
			}
		}
	}
	for step := range steps {
		switch n := rnd.IntN(100); {
		case n < 38: // somebody speaks
			no := pick(rooms)
			it := r.item(no)
			if rnd.IntN(2) == 0 {
				it.SenderKind, it.SenderNo = room.KindAgent, pick(agents)
			}
			r.queue(it, feed.Audience{})
			for a, m := range models {
				if m.rooms[no] && (it.SenderKind != room.KindAgent || it.SenderNo != a) {
					m.head++
					m.kept = append(m.kept, kept{m.head, no, it.Body, r.clock.Now()})
					m.retain(r.clock.Now(), start, retained, age)
				}
			}
		case n < 42: // a membership changes
			a, no := pick(agents), pick(rooms)
			if m := models[a]; m.rooms[no] {
				r.leave(no, a)
				delete(m.rooms, no)
				delete(m.dropped, no)
				m.kept = slices.DeleteFunc(m.kept, func(k kept) bool { return k.room == no })
			} else {
				r.join(no, a)
				m.rooms[no] = true
			}
		case n < 50:
			r.clock.Advance(time.Duration(rnd.Int64N(int64(age / 4))))
		case n < 53:
			if _, err := r.feed.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
		case n < 54: // the database went back in time, or so it seems
			if rnd.IntN(4) > 0 {
				break
			}
			// A restart gives a new age to what is left, and nothing says that what is past its age was removed before.
			retain()
			if _, err := r.feed.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
			for _, l := range readers {
				l.reader.Close()
			}
			readers = nil
			r.restart(time.Duration(rnd.Int64N(int64(age))))
			start = r.clock.Now()
			if rnd.IntN(2) == 0 {
				break
			}
			if err := r.feed.Recover(ctx, true); err != nil {
				t.Fatal(err)
			}
			for _, m := range models {
				for _, k := range m.kept {
					m.dropped[k.room] = k.sequence
				}
				m.kept = nil
				m.head += 1 << 32
				m.floor = m.head + 1
			}
		case n < 64: // a stream opens
			retain()
			a := pick(agents)
			m := models[a]
			want := feed.Opening{Head: m.head}
			s := feed.Start{After: rnd.Int64N(m.head + 3)}
			if m.head > 100 && rnd.IntN(2) == 0 {
				s.After = max(m.head-rnd.Int64N(60), 0)
			}
			if rnd.IntN(5) == 0 {
				s = feed.Start{Head: true}
			}
			want.Requested, want.Cursor = s.After, s.After
			if s.Head {
				want.Requested, want.Cursor = m.head, m.head
			} else {
				if s.After > m.head || s.After > 0 && s.After < m.floor-1 {
					want.Cursor = min(max(s.After, m.floor-1), m.head)
					want.Gaps = append(want.Gaps, feed.Gap{From: s.After, ResumedAt: want.Cursor, AllRooms: true, Reset: true})
				}
				if g := m.gap(want.Cursor, r.id); g != nil {
					g.From = s.After
					want.Gaps, want.Cursor = append(want.Gaps, *g), g.ResumedAt
				}
			}
			rd := r.feed.NewReader(a, func() {})
			got := r.open(rd, s)
			same(t, fmt.Sprint("step ", step, ": opening"), got, want)
			if t.Failed() {
				t.FailNow()
			}
			readers = append(readers, &live{reader: rd, agent: a, cursor: got.Cursor})
			if len(readers) > 6 {
				readers[0].reader.Close()
				readers = readers[1:]
			}
		case len(readers) > 0: // a stream reads
			retain()
			l := readers[rnd.IntN(len(readers))]
			m := models[l.agent]
			limit := 1 + rnd.IntN(20)
			p := r.next(l.reader, l.cursor, limit)
			what := fmt.Sprintf("step %d: reading after %d", step, l.cursor)
			same(t, what+": gap", p.Gap, m.gap(l.cursor, r.id))
			same(t, what+": head", p.Head, m.head)
			if t.Failed() {
				t.FailNow()
			}
			if p.Gap != nil {
				l.cursor = p.Gap.ResumedAt
			}
			want := m.above(l.cursor)
			events(what, p.Events, want[:min(limit, len(want))])
			if n := len(p.Events); n > 0 {
				l.cursor = p.Events[n-1].Sequence
			} else {
				l.cursor = p.Head
			}
		}
	}
	for _, l := range readers {
		l.reader.Close()
	}
}

// TestReadersRunWithTheWriter has readers follow by themselves, woken only, while events are queued, memberships change
// and the sweep runs: each sees ascending numbers, one that it has not seen only behind a gap, or because of a leave.
func TestReadersRunWithTheWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Retained: 5, Age: time.Hour})
	var agents []int64
	for i := range 6 {
		agents = append(agents, r.agent(fmt.Sprint("agent-", i)))
	}
	plaza, attic := r.room("plaza", agents...), r.room("attic", agents...)
	const posts = 200
	var wg sync.WaitGroup
	var skipped, gaps atomic.Int64
	stop := make(chan struct{})
	for i := range 18 {
		a := agents[i%len(agents)]
		wake := make(chan struct{}, 1)
		rd := r.feed.NewReader(a, func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		o := r.open(rd, feed.Start{})
		wg.Go(func() {
			defer rd.Close()
			cursor, last := o.Cursor, false
			if i%3 == 0 { // one that stands still meanwhile
				<-stop
				last = true
			}
			for {
				p, err := rd.Next(ctx, cursor, 1+i)
				if err != nil {
					t.Error(err)
					return
				}
				if p.Gap != nil {
					if p.Gap.From != cursor || p.Gap.ResumedAt <= cursor || len(p.Gap.Rooms) == 0 {
						t.Errorf("gap %+v after %d", p.Gap, cursor)
					}
					gaps.Add(1)
					cursor = p.Gap.ResumedAt
				}
				for _, e := range p.Events {
					if e.Sequence <= cursor {
						t.Errorf("%d after %d", e.Sequence, cursor)
					}
					skipped.Add(e.Sequence - cursor - 1)
					cursor = e.Sequence
				}
				if len(p.Events) > 0 {
					continue
				}
				if p.Head < cursor {
					t.Errorf("head %d below %d", p.Head, cursor)
				}
				skipped.Add(p.Head - cursor)
				cursor = p.Head
				if last {
					if head := r.head(a); head != cursor {
						t.Errorf("ended at %d of %d", cursor, head)
					}
					return
				}
				select {
				case <-wake:
				case <-stop:
					last = true
				}
			}
		})
	}
	var writers sync.WaitGroup
	var position atomic.Int64
	for _, no := range []int64{plaza, attic} {
		it, cast := r.item(no), r.casts[no]
		writers.Go(func() {
			for range posts / 2 {
				err := r.db.Update(ctx, "post", func(tx *store.Tx) error {
					it := it
					it.ID, it.Position = uuid.New(), 100+position.Add(1)
					if err := storeItem(tx, &it); err != nil {
						return err
					}
					return r.feed.Queue(tx, cast, it, feed.Audience{})
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() {
		for range 30 {
			if _, err := r.feed.Sweep(ctx); err != nil {
				t.Error(err)
			}
			rd := r.feed.NewReader(agents[0], func() {})
			if _, err := rd.Open(ctx, feed.Start{}); err != nil {
				t.Error(err)
			}
			rd.Close()
		}
	})
	writers.Wait()
	if n := skipped.Load(); n != 0 {
		t.Errorf("%d numbers were skipped although nobody has left", n)
	}
	// Now one leaves and comes back while the readers go on: that may skip numbers, and nothing else.
	r.leave(attic, agents[1])
	r.join(attic, agents[1])
	r.post(attic, 5)
	close(stop)
	wg.Wait()
	if gaps.Load() < 6 {
		t.Errorf("%d gaps: those that stood still have lost events", gaps.Load())
	}
}
