package bulkretry_test

import (
	"context"
	"testing"
	"time"

	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/clock"
)

// Hints about others, however often, do not hold up the look at all at the interval.
func TestHintsDoNotHoldUpTheScan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asleep := make(chan struct{}, 100)
	r.opts.Clock = clock.Told{Fake: r.clock, Set: asleep}
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
