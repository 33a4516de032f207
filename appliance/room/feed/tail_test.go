package feed

import (
	"reflect"
	"testing"
	"time"
)

func young(Event) bool { return false }

func tailEvent(n int64) Event { return Event{Sequence: n, body: &Body{}} }

func tailOf(limit int, readers ...*Reader) *tail {
	t := &tail{limit: limit}
	for _, r := range readers {
		t.add(r)
	}
	return t
}

func numbersOf(p Page) []int64 {
	out := []int64{}
	for _, e := range p.Events {
		out = append(out, e.Sequence)
	}
	return out
}

func TestTailServesOnlyWhatItCovers(t *testing.T) {
	t.Parallel()
	r := &Reader{}
	tl := tailOf(4, r)
	if _, ok := tl.page(r, 0, 9, young); ok {
		t.Error("a new tail knows nothing")
	}
	tl.learn(tl.mark(r, 10), 10)
	if p, ok := tl.page(r, 10, 9, young); !ok || p.Head != 10 || len(p.Events) != 0 {
		t.Errorf("learned: %+v, %v", p, ok)
	}
	tl.push(tailEvent(10)) // the snapshot had seen it
	for n := int64(11); n <= 13; n++ {
		tl.push(tailEvent(n))
	}
	if p, ok := tl.page(r, 10, 2, young); !ok || p.Head != 13 || !reflect.DeepEqual(numbersOf(p), []int64{11, 12}) {
		t.Errorf("limited: %+v, %v", p, ok)
	}
	if _, ok := tl.page(r, 14, 9, young); ok {
		t.Error("a number above the last is for the database")
	}
	if _, ok := tl.page(r, 10, 9, func(e Event) bool { return e.Sequence == 11 }); ok {
		t.Error("age is for the database")
	}
	tl.push(tailEvent(14))
	tl.push(tailEvent(15))
	if _, ok := tl.page(r, 10, 9, young); ok || len(tl.events) > 4 {
		t.Errorf("%d events beyond the limit", len(tl.events))
	}
	if p, ok := tl.page(r, 13, 9, young); !ok || !reflect.DeepEqual(numbersOf(p), []int64{14, 15}) || tl.base != 13 {
		t.Errorf("the end: %+v, %v", p, ok)
	}
	tl.push(tailEvent(40)) // the numbering has jumped
	if _, ok := tl.page(r, 15, 9, young); ok {
		t.Error("a hole is for the database")
	}
	if p, ok := tl.page(r, 39, 9, young); !ok || !reflect.DeepEqual(numbersOf(p), []int64{40}) {
		t.Errorf("behind the hole: %+v, %v", p, ok)
	}
	tl.passTo(40)
	if len(tl.events) != 0 || tl.last() != 40 {
		t.Error("what was dropped stays")
	}
	tl.reset()
	if _, ok := tl.page(r, 40, 9, young); ok {
		t.Error("after a reset it knows nothing")
	}
	before := tl.mark(r, 40)
	tl.reset()
	if tl.learn(before, 40); tl.known {
		t.Error("learned from before a reset")
	}
}

func TestTailHoldsWhatTheSlowestNeeds(t *testing.T) {
	t.Parallel()
	slow, fast := &Reader{}, &Reader{}
	tl := tailOf(8, slow, fast)
	for n := int64(1); n <= 6; n++ {
		tl.push(tailEvent(n))
	}
	tl.page(fast, 6, 9, young)
	if len(tl.events) != 6 {
		t.Errorf("%d events for the slow one", len(tl.events))
	}
	tl.page(slow, 2, 9, young)
	if len(tl.events) != 4 {
		t.Errorf("%d events after it moved", len(tl.events))
	}
	if tl.remove(slow) || len(tl.events) != 0 || tl.bytes != 0 {
		t.Errorf("%d events, %d bytes after it left", len(tl.events), tl.bytes)
	}
	if !tl.remove(fast) {
		t.Error("the last one left")
	}
}

func TestTailIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := &Reader{}
	tl := tailOf(maxTail, r)
	for n := int64(1); n <= 100; n++ {
		e := tailEvent(n)
		e.body = &Body{post: make([]byte, 20<<10)}
		tl.push(e)
		if tl.bytes > maxTailBytes || tl.last() != n {
			t.Fatalf("%d bytes up to %d", tl.bytes, tl.last())
		}
	}
	e := tailEvent(101)
	e.body = &Body{post: make([]byte, 2*maxTailBytes)}
	for range 8 {
		tl.push(e)
		e.Sequence++
	}
	if tl.bytes > maxTailBytes || tl.last() != 108 {
		t.Errorf("%d bytes of giants, up to %d", tl.bytes, tl.last())
	}
}

func TestAgeLimit(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	f := New(nil, Options{Start: start, Age: time.Minute})
	for _, c := range []struct {
		now    time.Duration
		queued time.Duration
		aged   bool
	}{
		{0, -time.Hour, false},
		{time.Minute, -time.Hour, false},
		{time.Minute + 1, -time.Hour, true},
		{time.Minute + 1, 0, true},
		{time.Minute + 1, 1, false},
		{time.Hour, 59 * time.Minute, false},
		{time.Hour, 59*time.Minute - 1, true},
		{-time.Hour, -3 * time.Hour, false}, // the clock went back
		{time.Hour, 2 * time.Hour, false},
	} {
		if got := f.isAged(start.Add(c.now))(Event{QueuedAt: start.Add(c.queued)}); got != c.aged {
			t.Errorf("queued %v, now %v: %v", c.queued, c.now, got)
		}
	}
}
