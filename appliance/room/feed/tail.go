package feed

import (
	"sync"
)

const (
	// maxTail and maxTailBytes bound what one agent's tail holds, however slow its readers are.
	maxTail      = 256
	maxTailBytes = 512 << 10
	// tailShards spreads the tails over locks, so that the writer's goroutine and thousands of readers meet seldom.
	tailShards = 64
)

// tails finds the tail of an agent. Only agents with a reader have one.
type tails struct {
	limit  int
	shards [tailShards]struct {
		mu   sync.RWMutex
		tail map[int64]*tail
	}
}

func (t *tails) init(limit int) {
	t.limit = limit
	for i := range t.shards {
		t.shards[i].tail = map[int64]*tail{}
	}
}

// get returns the agent's tail, nil when nobody reads.
func (t *tails) get(agentNo int64) *tail {
	s := &t.shards[uint64(agentNo)%tailShards]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tail[agentNo]
}

func (t *tails) attach(r *Reader) *tail {
	s := &t.shards[uint64(r.agentNo)%tailShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.tail[r.agentNo]
	if one == nil {
		one = &tail{limit: t.limit}
		s.tail[r.agentNo] = one
	}
	one.add(r)
	return one
}

func (t *tails) detach(r *Reader) {
	s := &t.shards[uint64(r.agentNo)%tailShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.tail.remove(r) {
		delete(s.tail, r.agentNo)
	}
}

// tail is the newest events of one agent: all of its numbers above base, while known. It holds only what some reader
// has not asked for yet.
type tail struct {
	limit int

	mu      sync.Mutex
	readers []*Reader // replaced, never changed
	known   bool
	base    int64
	events  []Event
	bytes   int
	version int64 // counts what happened to it
}

func (t *tail) add(r *Reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers = append(append(make([]*Reader, 0, len(t.readers)+1), t.readers...), r)
}

// remove reports whether that was the last reader.
func (t *tail) remove(r *Reader) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := make([]*Reader, 0, len(t.readers))
	for _, other := range t.readers {
		if other != r {
			left = append(left, other)
		}
	}
	t.readers = left
	t.shed()
	return len(left) == 0
}

// last is the highest number the tail knows of.
func (t *tail) last() int64 { return t.base + int64(len(t.events)) }

// push adds the next event. It returns the readers to wake.
func (t *tail) push(e Event) []*Reader {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	switch {
	case t.known && e.Sequence <= t.last():
		return t.readers // the snapshot that made it known has seen this one
	case !t.known || e.Sequence != t.last()+1:
		t.clear()
		t.known, t.base = true, e.Sequence-1
	}
	t.events = append(t.events, e)
	t.bytes += e.Size()
	t.fit()
	return t.readers
}

// fit drops the oldest events of a tail that has grown too large.
func (t *tail) fit() {
	n, bytes := len(t.events)-t.limit, t.bytes
	if n <= 0 && bytes <= maxTailBytes {
		return
	}
	// A quarter at once, so that a reader that stands still costs no copy for each event.
	n = max(n, len(t.events)/4)
	for i, e := range t.events {
		if i >= n && bytes <= maxTailBytes {
			break
		}
		n, bytes = max(n, i+1), bytes-e.Size()
	}
	t.drop(n)
}

// drop forgets the oldest n events.
func (t *tail) drop(n int) {
	for _, e := range t.events[:n] {
		t.bytes -= e.Size()
	}
	t.base += int64(n)
	left := copy(t.events, t.events[n:])
	clear(t.events[left:])
	t.events = t.events[:left]
	if left == 0 && cap(t.events) > 16 {
		t.events = nil
	}
}

// shed drops what every reader has passed.
func (t *tail) shed() {
	if len(t.events) == 0 {
		return
	}
	lowest := t.last()
	for _, r := range t.readers {
		lowest = min(lowest, r.passed)
	}
	if n := lowest - t.base; n > 0 {
		t.drop(int(n))
	}
}

func (t *tail) clear() {
	t.events, t.bytes, t.known = nil, 0, false
}

// reset makes the tail unknown: events were removed. It returns the readers to wake.
func (t *tail) reset() []*Reader {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	t.clear()
	return t.readers
}

// passTo drops events that retention took.
func (t *tail) passTo(through int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := min(through-t.base, int64(len(t.events))); t.known && n > 0 {
		t.drop(int(n))
	}
}

// mark is taken before a snapshot, for learn.
func (t *tail) mark(r *Reader, after int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.passed = after
	t.shed()
	return t.version
}

// learn tells the tail what was the last number in a snapshot taken after the mark. Whatever was committed behind that
// snapshot is pushed later, so an empty tail that starts there misses nothing.
func (t *tail) learn(version, head int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.version == version && !t.known {
		t.known, t.base = true, head
	}
}

// page copies up to limit events above after; false when the tail does not reach back that far.
func (t *tail) page(r *Reader, after int64, limit int, aged func(Event) bool) (p Page, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.passed = after
	if !t.known || after < t.base || after > t.last() {
		return p, false
	}
	p.Head = t.last()
	from := t.events[after-t.base:]
	if len(from) > 0 && aged(from[0]) {
		return Page{}, false
	}
	if n := min(limit, len(from)); n > 0 {
		p.Events = append(make([]Event, 0, n), from[:n]...)
	}
	t.shed()
	return p, true
}
