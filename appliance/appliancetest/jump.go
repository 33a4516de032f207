package appliancetest

import (
	"sync"
	"time"

	"signalbox/appliance/clock"
)

// Jump is the system's clock, ahead of it by as much as a test has jumped. Its timers come due when that much time has
// passed, by itself or by a jump. It is safe for concurrent use.
type Jump struct {
	mu     sync.Mutex
	ahead  time.Duration
	timers map[*jumpTimer]struct{}
}

var _ clock.Clock = (*Jump)(nil)

// NewJump returns a clock that is ahead of the system's.
func NewJump(ahead time.Duration) *Jump {
	return &Jump{ahead: ahead, timers: map[*jumpTimer]struct{}{}}
}

// Now is that of a clock.
func (j *Jump) Now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.now()
}

func (j *Jump) now() time.Time { return time.Now().UTC().Add(j.ahead) }

// By moves the clock. Timers that come due by it fire at once.
func (j *Jump) By(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ahead += d
	for t := range j.timers {
		if t.timer.Stop() { // one that has been received from stays as it is
			t.timer.Reset(t.at.Sub(j.now()))
		} else {
			delete(j.timers, t)
		}
	}
}

// NewTimer is that of a clock.
func (j *Jump) NewTimer(d time.Duration) clock.Timer {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := &jumpTimer{jump: j, timer: time.NewTimer(d), at: j.now().Add(d)}
	j.sweep()
	j.timers[t] = struct{}{}
	return t
}

// sweep forgets timers that fired long ago, so that a long test does not collect them.
func (j *Jump) sweep() {
	if len(j.timers)&1023 != 1023 {
		return
	}
	for t := range j.timers {
		if j.now().Sub(t.at) > time.Minute {
			delete(j.timers, t)
		}
	}
}

type jumpTimer struct {
	jump  *Jump
	timer *time.Timer
	at    time.Time
}

// C is that of a timer.
func (t *jumpTimer) C() <-chan time.Time { return t.timer.C }

// Stop is that of a timer.
func (t *jumpTimer) Stop() bool {
	t.jump.mu.Lock()
	defer t.jump.mu.Unlock()
	delete(t.jump.timers, t)
	return t.timer.Stop()
}

// Reset is that of a timer.
func (t *jumpTimer) Reset(d time.Duration) bool {
	t.jump.mu.Lock()
	defer t.jump.mu.Unlock()
	return t.arm(t.jump.now().Add(d))
}

// ResetAt is that of a timer.
func (t *jumpTimer) ResetAt(at time.Time) bool {
	t.jump.mu.Lock()
	defer t.jump.mu.Unlock()
	return t.arm(at)
}

// arm runs under the clock's lock.
func (t *jumpTimer) arm(at time.Time) bool {
	t.at = at
	t.jump.timers[t] = struct{}{}
	return t.timer.Reset(at.Sub(t.jump.now()))
}
