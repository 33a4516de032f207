package fire_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
)

// listed walks the list in pages of two and returns the fires' numbers. between is called with the last fire of each page.
func (r *rig) listed(f fire.Filter, between func(last fire.Fire)) (nos []int64) {
	r.t.Helper()
	for page := (agent.Page{Limit: 2}); ; {
		got, err := r.fires.List(context.Background(), r.project.No, f, page)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, f := range got {
			nos = append(nos, f.No)
		}
		if len(got) < page.Limit {
			return nos
		}
		last := got[len(got)-1]
		page.After = last.Place()
		if between != nil {
			between(last)
		}
	}
}

// The list goes from page to page without a gap or a repeat under every filter, with fires of one moment, with a clock that
// was set back, and when the last fire of a page is removed before the next one is asked for.
func TestListPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.agent("a", agent.Online, "celery")
	s, other := r.schedule("report", "celery", schedule.FireOne), r.schedule("other", "celery", schedule.FireOne)
	r.slots(s, 5) // 1 to 5, of one moment
	r.clock.Advance(time.Hour)
	r.slots(other, 3) // 6 to 8
	r.clock.Advance(-30 * time.Minute)
	r.slot(s, start.Add(time.Hour)) // 9, fired before 6 to 8
	r.exec(`UPDATE fires SET status = 'failed' WHERE fire_no IN (1, 3, 4, 7)`)
	since := start.Add(30 * time.Minute)
	for _, tc := range []struct {
		name   string
		filter fire.Filter
		want   []int64
	}{
		{"all", fire.Filter{}, []int64{8, 7, 6, 9, 5, 4, 3, 2, 1}},
		{"of a status", fire.Filter{Status: fire.Failed}, []int64{7, 4, 3, 1}},
		{"since", fire.Filter{Since: since}, []int64{8, 7, 6, 9}},
		{"of a status since", fire.Filter{Status: fire.Delivered, Since: since}, []int64{8, 6, 9}},
		{"of a schedule", fire.Filter{ScheduleID: s.ID}, []int64{9, 5, 4, 3, 2, 1}},
		{"of a schedule and a status", fire.Filter{ScheduleID: s.ID, Status: fire.Failed}, []int64{4, 3, 1}},
		{"of a schedule since", fire.Filter{ScheduleID: s.ID, Since: since}, []int64{9}},
		{"of an unknown schedule", fire.Filter{ScheduleID: uuid.New()}, nil},
	} {
		if got := r.listed(tc.filter, nil); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	removed := func(last fire.Fire) { r.exec(`DELETE FROM fires WHERE fire_no = ?`, last.No) }
	if got := r.listed(fire.Filter{}, removed); !slices.Equal(got, []int64{8, 7, 6, 9, 5, 4, 3, 2, 1}) {
		t.Errorf("with the last of each page removed: %v", got)
	}
}

// What a deleted schedule has left in the buffer is neither handed over, nor expired, nor counted, nor shown.
func TestNothingComesOfADeletedSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.worker = w.agent("a", agent.Offline, "celery")
	w.every = w.schedule("report", "celery", schedule.FireAll)
	other := w.schedule("other", "celery", schedule.FireAll)
	fires := w.slots(w.every, 150)
	kept := w.slot(other, start.Add(3*time.Hour))
	if err := remove(w); err != nil {
		t.Fatal(err)
	}
	if n, err := w.fires.Waiting(ctx); n != 1 || err != nil {
		t.Errorf("%d fires wait, %v", n, err)
	}
	w.comes()
	if err := turn(w); err != nil {
		t.Fatal(err)
	}
	w.want(kept.FireID, fire.Delivered)
	if n := w.count(`SELECT count(*) FROM commands`); n != 1 {
		t.Errorf("%d commands", n)
	}
	w.clock.Advance(retention)
	if n, err := w.fires.Expired(ctx); n != 0 || err != nil {
		t.Errorf("%d fires expired, %v", n, err)
	}
	if got := w.listed(fire.Filter{}, nil); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
	if got, err := w.fires.Runs(ctx, w.project.No, 5); len(got) != 1 || err != nil {
		t.Errorf("runs %+v, %v", got, err)
	}
	id := fires[0].FireID
	if _, err := w.fires.Get(ctx, w.project.No, id); !fault.Is(err, fault.NotFound) {
		t.Errorf("got it: %v", err)
	}
	if ids, err := w.fires.Resolve(ctx, w.project.No, id.String()[:8]); len(ids) != 0 || err != nil {
		t.Errorf("found %v, %v", ids, err)
	}
	if _, err := w.fires.OfSchedule(ctx, w.project.No, w.every.ID, 5); !fault.Is(err, fault.NotFound) {
		t.Errorf("of the schedule: %v", err)
	}
}
