// Package clock is the time that Signalbox's rules run on: the system's in production, a hand-moved one in tests.
package clock

import (
	"sort"
	"sync"
	"time"
)

// Clock tells the time and makes timers. Now is always UTC. Implementations are safe for concurrent use.
type Clock interface {
	Now() time.Time
	// NewTimer returns a timer that fires once after d. A d of zero or less fires at once.
	NewTimer(d time.Duration) Timer
}

// Timer fires once on C. Stop and Reset behave as those of time.Timer since Go 1.23: after them no stale value is
// received.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
	// ResetAt is Reset with the time to fire at, which fires at once when it has passed. A wait for a known time goes by it:
	// between the computing of a duration and the arming of the timer the clock may move, and a wait from there is too long.
	ResetAt(at time.Time) bool
}

// System returns the system's clock.
func System() Clock { return system{} }

type system struct{}

func (system) Now() time.Time { return time.Now().UTC() }

func (system) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.Timer.C }

func (t systemTimer) ResetAt(at time.Time) bool { return t.Reset(time.Until(at)) }

// Fake is a clock that moves only when told to.
type Fake struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
	moved  *sync.Cond // broadcast whenever the set of armed timers changes
}

// NewFake returns a fake clock standing at now.
func NewFake(now time.Time) *Fake {
	f := &Fake{now: now.UTC(), timers: map[*fakeTimer]struct{}{}}
	f.moved = sync.NewCond(&f.mu)
	return f
}

// Now returns the time the clock stands at.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// NewTimer arms a timer on the fake clock.
func (f *Fake) NewTimer(d time.Duration) Timer {
	t := &fakeTimer{clock: f, c: make(chan time.Time, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.arm(d)
	return t
}

// Advance moves the clock by d and fires, in order of their time, the timers that come due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	due := make([]*fakeTimer, 0, len(f.timers))
	for t := range f.timers {
		if !t.at.After(f.now) {
			due = append(due, t)
		}
	}
	sort.Slice(due, func(i, j int) bool { return due[i].at.Before(due[j].at) })
	for _, t := range due {
		delete(f.timers, t)
		t.c <- f.now
	}
	f.moved.Broadcast()
}

// BlockUntil waits until at least n timers are armed: the way for a test to know that the code under test has reached
// its wait.
func (f *Fake) BlockUntil(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.timers) < n {
		f.moved.Wait()
	}
}

type fakeTimer struct {
	clock *Fake
	c     chan time.Time
	at    time.Time
}

// arm runs under the clock's lock.
func (t *fakeTimer) arm(d time.Duration) {
	t.at = t.clock.now.Add(d)
	if d <= 0 {
		t.c <- t.clock.now
		return
	}
	t.clock.timers[t] = struct{}{}
	t.clock.moved.Broadcast()
}

func (t *fakeTimer) C() <-chan time.Time { return t.c }

// disarm runs under the clock's lock and drops a value nobody has received.
func (t *fakeTimer) disarm() bool {
	_, armed := t.clock.timers[t]
	delete(t.clock.timers, t)
	select {
	case <-t.c:
	default:
	}
	return armed
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.disarm()
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	armed := t.disarm()
	t.arm(d)
	return armed
}

func (t *fakeTimer) ResetAt(at time.Time) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	armed := t.disarm()
	t.arm(at.Sub(t.clock.now))
	return armed
}
