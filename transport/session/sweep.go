package session

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"signalbox/appliance/clock"
)

// sweepGrain is the shortest pause between two rounds: what comes due within it is handled together, so ten thousand
// pings spread over two seconds are a hundred rounds a second, not five thousand.
const sweepGrain = 10 * time.Millisecond

// sweep calls each session when its next time comes: ping, pong wait, idle, first message, drain, end of closing. It is
// one goroutine and one timer for all sessions. Messages do not move a session in the heap; when it comes up it looks at
// what has happened and says when to come back.
type sweep struct {
	clock clock.Clock
	epoch time.Time
	wake  chan struct{} // the earliest time has changed

	mu   sync.Mutex
	heap dueHeap
}

func newSweep(c clock.Clock) *sweep {
	return &sweep{clock: c, epoch: c.Now(), wake: make(chan struct{}, 1)}
}

// now is the time in nanoseconds since the group began, by the monotonic clock: a step of the wall clock must not end
// every session at once. It is never 0, which stands for no time.
func (w *sweep) now() int64 { return int64(w.clock.Now().Sub(w.epoch)) + 1 }

// schedule brings the session up at due (a time of now) or at the time it already has, whichever is earlier.
func (w *sweep) schedule(s *Session, due int64) {
	w.mu.Lock()
	first := false
	switch {
	case s.heapPos == outOfHeap:
		// released: it will not come back
	case s.heapPos < 0:
		s.dueAt = due
		heap.Push(&w.heap, s)
		first = s.heapPos == 0
	case due < s.dueAt:
		s.dueAt = due
		heap.Fix(&w.heap, s.heapPos)
		first = s.heapPos == 0
	}
	w.mu.Unlock()
	if first {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Positions of sessions that are not in the heap.
const (
	notInHeap = -1 // may be scheduled
	outOfHeap = -2 // ended
)

// release takes the session out for good.
func (w *sweep) release(s *Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.heapPos >= 0 {
		heap.Remove(&w.heap, s.heapPos)
	}
	s.heapPos = outOfHeap
}

// run sweeps until ctx ends. It sleeps until the earliest time, and for ever while there is none.
func (w *sweep) run(ctx context.Context) {
	var timer clock.Timer // made when first needed, so that an armed timer means a session that waits
	for {
		pause, armed := w.round()
		var fire <-chan time.Time
		switch {
		case !armed && timer != nil:
			timer.Stop()
		case armed && timer == nil:
			timer = w.clock.NewTimer(max(pause, sweepGrain))
			defer timer.Stop()
			fire = timer.C()
		case armed:
			timer.Reset(max(pause, sweepGrain))
			fire = timer.C()
		}
		if armed && w.overdue() { // the clock moved between the look and the arming of the timer
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-fire:
		}
	}
}

// overdue reports whether a session's time has come.
func (w *sweep) overdue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.heap) > 0 && w.heap[0].dueAt <= w.now()
}

// round brings up all sessions whose time has come and returns the pause until the next.
func (w *sweep) round() (pause time.Duration, armed bool) {
	var due []*Session
	now := w.now()
	w.mu.Lock()
	for len(w.heap) > 0 && w.heap[0].dueAt <= now {
		due = append(due, heap.Pop(&w.heap).(*Session))
	}
	w.mu.Unlock()
	for _, s := range due {
		if next := s.check(now); next != 0 {
			w.schedule(s, next)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.heap) == 0 {
		return 0, false
	}
	return time.Duration(w.heap[0].dueAt - w.now()), true
}

// check does what has come due at now and returns when the session is to be looked at again, 0 for never. It runs on
// the sweep's goroutine and must not block.
func (s *Session) check(now int64) int64 {
	if due := s.closeDue.Load(); due != 0 {
		if now >= due {
			s.kill()
			return 0
		}
		return due
	}
	o := &s.plane.opts
	var next earliest
	if at := s.drainAt.Load(); next.passed(at, now) {
		s.Close(Draining)
		return s.closeDue.Load()
	}
	busy := s.busy.Load()
	if at := s.firstDue.Load(); next.passed(at, now) && !busy {
		s.Close(HandshakeTimeout)
		return s.closeDue.Load()
	}
	if o.IdleTimeout > 0 {
		at := s.heard.Load() + int64(o.IdleTimeout)
		if busy {
			at = max(at, now+int64(o.IdleTimeout))
		}
		if next.passed(at, now) {
			s.Close(Idle)
			return s.closeDue.Load()
		}
	}
	if o.PingInterval > 0 {
		at := s.pongDue.Load()
		if busy && at != 0 {
			at = max(at, now+int64(o.PongWait))
		}
		if next.passed(at, now) {
			s.Close(Unresponsive)
			return s.closeDue.Load()
		}
		s.maybePing(now, &next)
	}
	return int64(next)
}

// maybePing queues a ping when it is time, and starts the wait for the pong unless one runs.
func (s *Session) maybePing(now int64, next *earliest) {
	o := &s.plane.opts
	if now >= s.nextPing {
		s.nextPing += int64(o.PingInterval)
		if s.nextPing <= now { // the clock has jumped: no volley of pings to catch up
			s.nextPing = now + int64(o.PingInterval)
		}
		if s.pongDue.CompareAndSwap(0, now+int64(o.PongWait)) {
			next.passed(now+int64(o.PongWait), now)
		}
		s.mu.Lock()
		if s.reason == None {
			s.ping = true
			s.startWriter()
		}
		s.mu.Unlock()
	}
	next.passed(s.nextPing, now)
}

// earliest collects the first of several future times; 0 is none.
type earliest int64

// passed reports whether at is set and reached, and otherwise counts it in.
func (e *earliest) passed(at, now int64) bool {
	if at == 0 {
		return false
	}
	if at <= now {
		return true
	}
	if *e == 0 || at < int64(*e) {
		*e = earliest(at)
	}
	return false
}

// dueHeap orders sessions by dueAt.
type dueHeap []*Session

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].dueAt < h[j].dueAt }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapPos, h[j].heapPos = i, j
}

// Push is for container/heap.
func (h *dueHeap) Push(x any) {
	s := x.(*Session)
	s.heapPos = len(*h)
	*h = append(*h, s)
}

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.heapPos = notInHeap
	return s
}
