package fire_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
)

// issuedOf are the slots of a schedule that have a command, in the order of issue.
func (r *rig) issuedOf(s schedule.Schedule) (slots []time.Time) {
	r.t.Helper()
	for _, f := range r.commands() {
		if f.ScheduleID == s.ID {
			slots = append(slots, f.ScheduledFor)
		}
	}
	return slots
}

// spoil makes the command of a buffered fire one that is refused; mend undoes that.
func (r *rig) spoil(id uuid.UUID) (mend func()) {
	r.t.Helper()
	const swap = `UPDATE pending_fires SET payload = replace(payload, ?, ?) WHERE fire_no = (SELECT fire_no FROM fires WHERE fire_id = ?)`
	r.exec(swap, `"schedule_id"`, `"schedule_jd"`, id)
	r.exec(`UPDATE pending_fires SET payload = replace(payload, '{"args"', '{"schedule_id":"other","args"')
		WHERE fire_no = (SELECT fire_no FROM fires WHERE fire_id = ?)`, id)
	return func() {
		r.t.Helper()
		r.exec(`UPDATE pending_fires SET payload = replace(payload, '{"schedule_id":"other",', '{')
			WHERE fire_no = (SELECT fire_no FROM fires WHERE fire_id = ?)`, id)
		r.exec(swap, `"schedule_jd"`, `"schedule_id"`, id)
	}
}

// A fire that is refused holds up the later ones of its schedule, and nobody else: replay goes on behind it, page by page.
func TestReplayGoesOnBehindWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.worker = w.agent("a", agent.Offline, "celery")
	bad, good := w.schedule("bad", "celery", schedule.FireAll), w.schedule("good", "celery", schedule.FireAll)
	mend := w.spoil(w.slots(bad, 150)[0].FireID)
	last := w.slot(good, start.Add(200*time.Minute))
	w.comes()
	for range 2 {
		if err := turn(w); err != nil {
			t.Fatal(err)
		}
		if got := w.issuedOf(bad); len(got) != 0 {
			t.Errorf("%d fires were handed over before one that is older", len(got))
		}
		w.want(last.FireID, fire.Delivered)
	}
	mend()
	if err := turn(w); err != nil {
		t.Fatal(err)
	}
	if got := w.issuedOf(bad); len(got) != 150 || !slices.IsSortedFunc(got, time.Time.Compare) {
		t.Errorf("%d fires were handed over in the end, by slot %v", len(got), slices.IsSortedFunc(got, time.Time.Compare))
	}
}

// Far behind what is refused, fires are reached by the next turns.
func TestReplayGoesOnInTheNextTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	bad, good := r.schedule("bad", "celery", schedule.FireAll), r.schedule("good", "celery", schedule.FireAll)
	r.spoil(r.slots(bad, 520)[0].FireID)
	last := r.slot(good, start.Add(600*time.Minute))
	r.online(a)
	turn, stop := r.fires.Turns()
	defer stop()
	for _, want := range []fire.Status{fire.Buffered, fire.Delivered} {
		if err := turn(ctx); err != nil {
			t.Fatal(err)
		}
		r.want(last.FireID, want)
	}
	if got := r.issuedOf(bad); len(got) != 0 {
		t.Errorf("%d fires were handed over before one that is older", len(got))
	}
}

// A slot that comes due while older ones of its schedule wait for room does not overtake them; other schedules do.
func TestSlotsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	s, other, skip := r.schedule("report", "celery", schedule.FireAll), r.schedule("other", "celery", schedule.FireAll),
		r.schedule("skip", "celery", schedule.Skip)
	r.slots(s, 201)
	r.run()
	r.online(a)
	issued := func() int { return len(r.issuedOf(s)) }
	r.awaitThat(func() bool { return issued() == 200 }, func() fire.Fire { return fire.Fire{} })
	next := r.slot(s, start.Add(201*time.Minute))
	if f := r.want(next.FireID, fire.Buffered); !next.Buffered || f.CommandID != nil {
		t.Errorf("%+v", next)
	}
	for _, free := range []schedule.Schedule{other, skip} {
		r.want(r.slot(free, start.Add(201*time.Minute)).FireID, fire.Delivered)
	}
	by := r.start(schedule.NewFire{Schedule: s, Origin: schedule.OriginTrigger, ScheduledFor: r.clock.Now(), FireID: uuid.New()})
	r.want(by.FireID, fire.Delivered) // somebody asks for it now
	for _, f := range r.commands()[:20] {
		r.answer(*f.CommandID, `{"status":"success"}`)
	}
	r.await(next.FireID, fire.Delivered)
	slots := slices.DeleteFunc(r.issuedOf(s), func(at time.Time) bool { return at.Equal(r.clock.Now()) })
	if len(slots) != 201 || !slices.IsSortedFunc(slots, time.Time.Compare) {
		t.Errorf("%d slots, in order %v", len(slots), slices.IsSortedFunc(slots, time.Time.Compare))
	}
	// What was buffered without an agent is followed by what comes due once there is one again, without a wait for the interval.
	r.exec(`UPDATE agents SET state = 'offline', offline_since = 1 WHERE agent_no = ?`, a.No)
	older := r.slot(s, start.Add(202*time.Minute))
	r.want(older.FireID, fire.Buffered)
	r.exec(`UPDATE agents SET state = 'online', offline_since = NULL WHERE agent_no = ?`, a.No) // before anybody was told
	newer := r.slot(s, start.Add(203*time.Minute))
	r.await(older.FireID, fire.Delivered)
	r.await(newer.FireID, fire.Delivered)
	if slots := r.issuedOf(s); !slices.Equal(slots[len(slots)-2:], []time.Time{start.Add(202 * time.Minute), start.Add(203 * time.Minute)}) {
		t.Errorf("in the end %v", slots[len(slots)-2:])
	}
}
