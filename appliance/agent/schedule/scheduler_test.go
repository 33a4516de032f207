package schedule_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/store/storetest"
)

// checkSlots compares the fires of a schedule with slots, each of which must be there once.
func (r *rig) checkSlots(s schedule.Schedule, origin schedule.Origin, want ...time.Time) {
	r.t.Helper()
	var got []time.Time
	for _, f := range r.fires(s) {
		if f.origin == origin {
			got = append(got, f.slot)
		}
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		r.t.Errorf("%s: fired %s %d times, want %d:\n%.300s\n%.300s", s.Name, origin, len(got), len(want), fmt.Sprint(got), fmt.Sprint(want))
	}
}

// every lists from + k × step, for k in 1..n.
func every(from time.Time, step time.Duration, n int) (out []time.Time) {
	for k := 1; k <= n; k++ {
		out = append(out, from.Add(time.Duration(k)*step))
	}
	return out
}

func TestFiresEverySlotOnce(t *testing.T) {
	r := newRig(t)
	minutely := r.create(define("minutely", schedule.Cron, "* * * * *", schedule.Skip))
	tick := r.create(define("tick", schedule.Interval, "7s", schedule.FireOne))
	once := r.create(define("once", schedule.Clocked, "2027-03-01T12:03:30Z", schedule.FireAll))
	off := r.create(func() schedule.Definition {
		d, no := define("off", schedule.Cron, "* * * * * *", schedule.FireAll), false
		d.IsEnabled = &no
		return d
	}())
	r.run(start.Add(10 * time.Minute))
	r.step()
	r.checkSlots(minutely, schedule.OriginSlot, every(start, time.Minute, 10)...)
	r.checkSlots(tick, schedule.OriginSlot, every(start, 7*time.Second, 85)...)
	r.checkSlots(once, schedule.OriginSlot, start.Add(3*time.Minute+30*time.Second))
	r.checkSlots(off, schedule.OriginSlot)
	got, misfires := r.get(minutely)
	if got.TotalRuns != 10 || !got.LastRunAt.Equal(start.Add(10*time.Minute)) || !got.NextRunAt.Equal(start.Add(11*time.Minute)) || len(misfires) > 0 {
		t.Errorf("minutely is %+v, misfires %v", got, misfires)
	}
	if got, _ := r.get(once); got.NextRunAt != nil || !got.IsEnabled || got.TotalRuns != 1 {
		t.Errorf("once is %+v", got)
	}
	if r.counts.fired != 96 {
		t.Errorf("%d fires counted, want 96", r.counts.fired)
	}
}

// TestADayDown is the table of docs/schedules.md: what becomes of 24 hours of slots under each catch_up.
func TestADayDown(t *testing.T) {
	down := 24 * time.Hour
	for _, late := range []time.Duration{20 * time.Second, 30 * time.Minute} { // after the last hour
		for _, c := range []struct {
			expression string
			step       time.Duration
			how        schedule.CatchUp
			slots      int // on time
			caught     int
			missed     int64
			reason     schedule.MisfireReason
		}{
			{"0 * * * *", time.Hour, schedule.Skip, 0, 0, 24, schedule.MisfireSkip},
			{"0 * * * *", time.Hour, schedule.FireOne, 0, 1, 23, schedule.MisfireOne},
			{"0 * * * *", time.Hour, schedule.FireAll, 0, 24, 0, ""},
			{"* * * * *", time.Minute, schedule.Skip, 1, 0, 1439, schedule.MisfireSkip},
			{"* * * * *", time.Minute, schedule.FireOne, 1, 0, 1439, schedule.MisfireOne},
			{"* * * * *", time.Minute, schedule.FireAll, 1, 999, 440, schedule.MisfireCap},
		} {
			t.Run(fmt.Sprintf("%s %s %s", late, c.step, c.how), func(t *testing.T) {
				r := newRig(t)
				s := r.create(define("s", schedule.Cron, c.expression, c.how))
				r.step()
				total := int((down + late) / c.step)
				if late < time.Minute && c.step == time.Hour { // the last slot is still on time
					c.slots, c.missed, c.caught = 1, 23, map[schedule.CatchUp]int{schedule.FireAll: 23}[c.how]
					if c.how == schedule.FireAll {
						c.missed = 0
					}
				}
				if c.missed > 0 {
					c.missed = int64(total - c.slots - c.caught)
				}
				r.clock.Advance(down + late)
				r.restart()
				r.step()
				all := every(start, c.step, total)
				fired := all[total-c.slots-c.caught:]
				r.checkSlots(s, schedule.OriginCatchUp, fired[:c.caught]...)
				r.checkSlots(s, schedule.OriginSlot, fired[c.caught:]...)
				got, misfires := r.get(s)
				var missed int64
				for _, m := range misfires {
					if missed += m.Slots; m.Reason != c.reason {
						t.Errorf("misfire %+v, want %s", m, c.reason)
					}
				}
				if missed != c.missed || got.SkippedSlots24h != c.missed || r.counts.missed[c.reason] != c.missed {
					t.Errorf("%d slots missed, %d shown, %v counted, want %d", missed, got.SkippedSlots24h, r.counts.missed, c.missed)
				}
				if c.missed > 0 && (!misfires[len(misfires)-1].FirstSlot.Equal(all[0]) || !misfires[0].LastSlot.Equal(all[c.missed-1])) {
					t.Errorf("misfires are %+v", misfires)
				}
				// And goes on as if nothing had been.
				before := len(r.fires(s))
				r.run(r.clock.Now().Add(2 * c.step))
				r.step()
				if n := len(r.fires(s)) - before; n != 2 {
					t.Errorf("%d fires in two periods after it", n)
				}
			})
		}
	}
}

func TestAShortStallFiresEverySlot(t *testing.T) {
	for _, how := range []schedule.CatchUp{schedule.Skip, schedule.FireOne, schedule.FireAll} {
		r := newRig(t)
		s := r.create(define("s", schedule.Interval, "1s", how))
		r.clock.Advance(59 * time.Second)
		r.step()
		r.checkSlots(s, schedule.OriginSlot, every(start, time.Second, 59)...)
		if _, misfires := r.get(s); len(misfires) > 0 {
			t.Errorf("%s: misfires %+v", how, misfires)
		}
	}
}

// A year of missed seconds is counted in bounded transactions.
func TestALongTimeDownIsCounted(t *testing.T) {
	r := newRig(t)
	skip := r.create(define("skip", schedule.Interval, "1s", schedule.Skip))
	all := r.create(define("all", schedule.Interval, "1s", schedule.FireAll))
	const days = 2
	r.clock.Advance(days * 24 * time.Hour)
	r.step()
	total := int64(days * 24 * 3600)
	if missed := r.counts.missed[schedule.MisfireSkip]; missed != total-1 {
		t.Errorf("%d slots skipped, want %d", missed, total-1)
	}
	if missed := r.counts.missed[schedule.MisfireCap]; missed != total-1000 {
		t.Errorf("%d slots beyond the cap, want %d", missed, total-1000)
	}
	if n, m := len(r.fires(skip)), len(r.fires(all)); n != 1 || m != 1000 {
		t.Errorf("fired %d and %d, want 1 and 1000", n, m)
	}
}

// Missed slots come at the rate, and do not hold up those on time.
func TestCatchUpIsPaced(t *testing.T) {
	r := newRig(t)
	r.opts.CatchUpRate = 50
	backlog := r.create(define("backlog", schedule.Cron, "* * * * *", schedule.FireAll))
	r.clock.Advance(10 * time.Hour)
	r.restart()
	tick := r.create(define("tick", schedule.Interval, "1s", schedule.Skip))
	from := r.clock.Now()
	r.run(from.Add(5 * time.Second))
	// A batch of 100 takes two seconds of the rate: at 0, 2 and 4 s.
	if n := len(r.fires(backlog)); n != 300 {
		t.Errorf("%d missed slots fired in 5 s, want 300", n)
	}
	r.step()
	r.checkSlots(tick, schedule.OriginSlot, every(from, time.Second, 5)...)
	r.run(from.Add(time.Minute))
	if n := len(r.fires(backlog)); n != 601 {
		t.Errorf("%d fires in the end, want 601", n)
	}
}

func TestClockSteps(t *testing.T) {
	r := newRig(t)
	hourly := r.create(define("hourly", schedule.Cron, "@hourly", schedule.FireAll))
	r.run(start.Add(3*time.Hour + time.Minute))

	// Back by two hours: no slot again, and the next comes when it comes.
	r.clock.Advance(-2 * time.Hour)
	r.run(start.Add(5*time.Hour + time.Minute))
	r.checkSlots(hourly, schedule.OriginSlot, every(start, time.Hour, 5)...)

	// Forward by a day and back again: what was fired then is not fired again.
	r.clock.Advance(24 * time.Hour)
	r.step()
	if n := len(r.fires(hourly)); n != 29 {
		t.Fatalf("%d fires after a step of a day, want 29", n)
	}
	r.clock.Advance(-24 * time.Hour)
	r.run(start.Add(30*time.Hour + time.Minute))
	seen := map[time.Time]bool{}
	for _, f := range r.fires(hourly) {
		if seen[f.slot] {
			t.Errorf("slot %v fired twice", f.slot)
		}
		seen[f.slot] = true
	}
	if len(seen) != 30 {
		t.Errorf("%d slots fired, want 30", len(seen))
	}
}

// A clock that was years ahead must not leave schedules waiting for years, and what was passed over then is still to come.
func TestAClockFarAheadForAMoment(t *testing.T) {
	r := newRig(t)
	hourly := r.create(define("hourly", schedule.Cron, "@hourly", schedule.Skip))
	r.step()
	r.clock.Advance(10*365*24*time.Hour + time.Minute*30)
	r.step()
	r.clock.Advance(-10*365*24*time.Hour - time.Minute*30)
	r.run(start.Add(3*time.Hour + time.Second))
	r.checkSlots(hourly, schedule.OriginSlot, every(start, time.Hour, 3)...)
}

// A commit that fails before or after it became durable, at each transaction in turn, and a restart then: every slot once,
// none lost.
func TestDeathAroundEveryTransaction(t *testing.T) {
	for _, after := range []bool{false, true} {
		for at := 1; ; at++ {
			var left atomic.Int64
			fail := func([]string) error {
				if left.Add(-1) == 0 {
					return errOdd
				}
				return nil
			}
			r := newRig(t, func(o *store.Options) {
				if after {
					o.Hooks.AfterCommitBeforeReply = fail
				} else {
					o.Hooks.BeforeCommit = fail
				}
			})
			all := r.create(define("all", schedule.Cron, "*/2 * * * *", schedule.FireAll))
			one := r.create(define("one", schedule.Cron, "* * * * *", schedule.FireOne))
			tick := r.create(define("tick", schedule.Interval, "10s", schedule.Skip))
			r.clock.Advance(8*time.Hour + 5*time.Second)
			left.Store(int64(at))
			_, err := r.runner.Step(context.Background())
			left.Store(0)
			died := err != nil
			if died {
				r.db = storetest.Reopen(t, r.db, r.options...)
				r.restart()
			}
			r.run(start.Add(8*time.Hour + time.Minute + time.Second))
			r.step()
			name := fmt.Sprintf("after commit %v, at %d", after, at)
			r.checkSlots(all, schedule.OriginCatchUp, every(start, 2*time.Minute, 239)...)
			r.checkSlots(all, schedule.OriginSlot, start.Add(480*time.Minute))
			r.checkSlots(one, schedule.OriginSlot, start.Add(480*time.Minute), start.Add(481*time.Minute))
			r.checkSlots(tick, schedule.OriginSlot, every(start.Add(8*time.Hour-10*time.Second), 10*time.Second, 7)...)
			if t.Failed() {
				t.Fatal(name)
			}
			if !died {
				if at < 4 {
					t.Errorf("%s: the step had %d transactions only", name, at-1)
				}
				break
			}
		}
	}
}

// One schedule that cannot be fired holds up no other, and is tried again.
func TestABadScheduleStandsAside(t *testing.T) {
	r := newRig(t)
	bad := r.create(define("bad", schedule.Interval, "10s", schedule.FireAll))
	good := r.create(define("good", schedule.Interval, "10s", schedule.FireAll))
	r.starter.refuse = map[int64]error{bad.No: fault.Wrap(fault.Internal, errOdd, "cannot")}
	r.run(start.Add(30 * time.Second))
	r.step()
	r.checkSlots(good, schedule.OriginSlot, every(start, 10*time.Second, 3)...)
	r.checkSlots(bad, schedule.OriginSlot)
	r.starter.refuse = nil
	r.run(start.Add(130 * time.Second))
	r.step()
	if got := r.fires(bad); len(got) != 13 {
		t.Errorf("the bad one fired %v after it was mended", got)
	}
	r.checkSlots(good, schedule.OriginSlot, every(start, 10*time.Second, 13)...)
}

func TestArchivedProjectFiresNothing(t *testing.T) {
	r := newRig(t)
	s := r.create(define("s", schedule.Cron, "* * * * *", schedule.FireAll))
	r.setActive(false)
	r.run(start.Add(10*time.Minute + time.Second))
	if got := r.fires(s); len(got) > 0 {
		t.Errorf("fired %v", got)
	}
	r.setActive(true)
	r.run(start.Add(12*time.Minute + time.Second))
	r.checkSlots(s, schedule.OriginSlot, every(start.Add(10*time.Minute), time.Minute, 2)...)
}

func (r *rig) setActive(active bool) {
	r.project.IsActive = active
	r.update(func(tx *store.Tx) error { return tx.UpdateProject(r.project) })
}

// Run sleeps until the next slot, wakes for an earlier one, and reads nothing in between.
func TestRunSleepsAndWakes(t *testing.T) {
	r := newRig(t)
	asleep := make(chan struct{}, 100)
	r.opts.Clock = clock.Told{Fake: r.clock, Set: asleep}
	r.restart()
	late := r.create(define("late", schedule.Clocked, "2027-03-02T12:00:00Z", schedule.FireOne))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.runner.Run(ctx) }()
	<-asleep
	soon := r.create(define("soon", schedule.Interval, "1h", schedule.FireOne))
	<-asleep
	advance := func(d time.Duration) {
		r.clock.Advance(d)
		<-asleep
	}
	check := func(s schedule.Schedule, n int) {
		t.Helper()
		if got := len(r.fires(s)); got != n {
			t.Fatalf("%s has %d fires, want %d", s.Name, got, n)
		}
	}
	for k := 1; k <= 3; k++ {
		advance(time.Hour)
		check(soon, k)
	}
	// While nothing is due nothing is read, however often the clock is looked at.
	before := r.st.calls.Load()
	for range 50 {
		advance(30 * time.Second)
	}
	if n := r.st.calls.Load() - before; n > 0 {
		t.Errorf("%d transactions while nothing was due", n)
	}
	check(late, 0)
	advance(21*time.Hour - 25*time.Minute)
	check(late, 1)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
