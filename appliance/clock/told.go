package clock

import "time"

// Told is a fake clock that tells on Set when a timer was set again, which a loop does last before it sleeps. Setting blocks
// until Set takes it.
type Told struct {
	*Fake
	Set chan struct{}
}

type toldTimer struct {
	Timer
	set chan struct{}
}

// NewTimer is that of a clock. It tells nothing.
func (c Told) NewTimer(d time.Duration) Timer { return toldTimer{c.Fake.NewTimer(d), c.Set} }

func (t toldTimer) Reset(d time.Duration) bool {
	was := t.Timer.Reset(d)
	t.set <- struct{}{}
	return was
}

func (t toldTimer) ResetAt(at time.Time) bool {
	was := t.Timer.ResetAt(at)
	t.set <- struct{}{}
	return was
}
