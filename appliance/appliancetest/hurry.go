package appliancetest

import (
	"time"

	"signalbox/appliance/clock"
)

// Hurry returns the system's clock with timers that take one part in so many of their time, and never more than most:
// clients that live by it come back as often as they must without waiting for long.
func Hurry(parts int, most time.Duration) clock.Clock {
	return hurry{clock.System(), time.Duration(parts), most}
}

type hurry struct {
	clock.Clock
	parts, most time.Duration
}

func (h hurry) of(d time.Duration) time.Duration { return min(d/h.parts, h.most) }

// NewTimer is that of a clock.
func (h hurry) NewTimer(d time.Duration) clock.Timer { return hurryTimer{h.Clock.NewTimer(h.of(d)), h} }

type hurryTimer struct {
	clock.Timer
	clock hurry
}

// Reset is that of a timer.
func (t hurryTimer) Reset(d time.Duration) bool { return t.Timer.Reset(t.clock.of(d)) }

// ResetAt is that of a timer.
func (t hurryTimer) ResetAt(at time.Time) bool { return t.Reset(at.Sub(t.clock.Now())) }
