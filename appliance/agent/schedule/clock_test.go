package schedule_test

import (
	"testing"
	"time"

	"signalbox/appliance/agent/schedule"
)

// TestMadeWhileTheClockWasAhead makes an interval under a clock that is a year ahead. Once the clock is right, the interval
// goes on from then and not in a year.
func TestMadeWhileTheClockWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.step()
	r.clock.Advance(365 * 24 * time.Hour)
	s := r.create(define("tick", schedule.Interval, "90s", schedule.FireOne))
	off := r.create(func() schedule.Definition {
		d := define("off", schedule.Interval, "90s", schedule.FireOne)
		no := false
		d.IsEnabled = &no
		return d
	}())
	r.step()
	r.clock.Advance(-365 * 24 * time.Hour)
	now := r.clock.Now()
	if next := r.step(); next.IsZero() || next.Sub(now) > 90*time.Second {
		t.Errorf("the next slot of an interval of 90 s is %v, and it is %v", next, now)
	}
	got, err := r.sched.SetEnabled(t.Context(), r.by, r.project.No, off.ID, true)
	if err != nil || got.NextRunAt == nil || got.NextRunAt.Sub(now) > 90*time.Second {
		t.Errorf("enabled: next %v, %v", got.NextRunAt, err)
	}
	r.run(now.Add(5 * time.Minute))
	if n := len(r.fires(s)); n < 3 || n > 4 {
		t.Errorf("%d fires in 5 minutes", n)
	}
}
