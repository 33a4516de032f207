package bulkretry_test

import (
	"context"
	"testing"
	"time"

	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/clock"
)

// told is a clock that tells when a timer was set again: Run does so last before it sleeps.
type told struct {
	*clock.Fake
	set chan struct{}
}

type toldTimer struct {
	clock.Timer
	set chan struct{}
}

func (c told) NewTimer(d time.Duration) clock.Timer { return toldTimer{c.Fake.NewTimer(d), c.set} }

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

// Hints about others, however often, do not hold up the look at all at the interval.
func TestHintsDoNotHoldUpTheScan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asleep := make(chan struct{}, 100)
	r.opts.Clock = told{r.clock, asleep}
	r.build()
	r.fail("t-1")
	b := r.start(r.request(""))
	r.exec(`UPDATE projects SET is_active = 0`)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.service.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-asleep
	r.exec(`UPDATE projects SET is_active = 1`) // nobody is told
	for range 4 {
		r.clock.Advance(r.opts.Scan / 2)
		r.hub.Wake(bulkretry.Changed{})
		<-asleep
	}
	for late := time.After(2 * time.Minute); r.get(b).InFlight == 0; {
		select {
		case <-asleep:
		case <-late:
			t.Fatalf("two intervals later it waits still: %+v", r.get(b))
		}
	}
}
