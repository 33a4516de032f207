package fire_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/store"
)

// TestReplayByCatchUp is agent protocol G.4 steps 2 to 4.
func TestReplayByCatchUp(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		catchUp schedule.CatchUp
		want    []int // of five slots, which are delivered, in order
	}{
		{schedule.Skip, nil},
		{schedule.FireOne, []int{4}},
		{schedule.FireAll, []int{0, 1, 2, 3, 4}},
	} {
		t.Run(string(tc.catchUp), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			a := r.agent("a", agent.Offline, "celery")
			s := r.schedule("report", "celery", tc.catchUp)
			ids := make([]uuid.UUID, 5) // buffered out of order: the order of replay is that of the slots
			for _, at := range []int{3, 1, 4, 0, 2} {
				ids[at] = r.slot(s, start.Add(time.Duration(at)*time.Minute)).FireID
			}
			r.run()
			r.online(a)
			r.awaitThat(func() bool { return r.count(`SELECT count(*) FROM pending_fires`) == 0 }, func() fire.Fire { return fire.Fire{} })
			for i, id := range ids {
				if slices.Contains(tc.want, i) {
					if f := r.want(id, fire.Delivered); f.CommandID == nil || f.ErrorCode != nil {
						t.Errorf("slot %d: %+v", i, f)
					}
					continue
				}
				if f := r.want(id, fire.BufferExpired); text(f.ErrorCode) != fire.CodeCatchUp || f.FinishedAt == nil {
					t.Errorf("slot %d: %+v", i, f)
				}
			}
			var order []int
			for _, f := range r.commands() {
				order = append(order, slices.Index(ids, f.FireID))
			}
			if !slices.Equal(order, tc.want) {
				t.Errorf("issued in the order %v, want %v", order, tc.want)
			}
			if n := r.count(`SELECT count(*) FROM audit_log WHERE action = 'schedule.fire.buffer_expired'`); n != 0 {
				t.Errorf("%d audit rows of an expiry", n)
			}
			if r.count(`SELECT consecutive_failures FROM schedules`) != 0 {
				t.Error("what is dropped counts as a failure")
			}
		})
	}
}

// commands are the fires that have a command, in the order of issue.
func (r *rig) commands() (fires []fire.Fire) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		rows, err := tx.Query(`SELECT command_no FROM fires WHERE command_no IS NOT NULL ORDER BY command_no`)
		if err != nil {
			return err
		}
		defer rows.Close()
		var nos []int64
		for rows.Next() {
			var no int64
			if err := rows.Scan(&no); err != nil {
				return err
			}
			nos = append(nos, no)
		}
		for _, no := range nos {
			f, err := tx.FireOfCommand(no)
			if err != nil {
				return err
			}
			fires = append(fires, f)
		}
		return rows.Err()
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return fires
}

func TestTheNewestFireIsThatOfTheWholeBuffer(t *testing.T) { // and not of one batch
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	one, all := r.schedule("one", "celery", schedule.FireOne), r.schedule("all", "celery", schedule.FireAll)
	r.slots(one, 260)
	r.slot(all, start.Add(90*time.Minute+30*time.Second))
	r.run()
	r.online(a)
	r.awaitThat(func() bool { return r.count(`SELECT count(*) FROM pending_fires`) == 0 }, func() fire.Fire { return fire.Fire{} })
	got := r.commands()
	if len(got) != 2 || got[0].ScheduleID != all.ID || got[1].ScheduleID != one.ID || !got[1].ScheduledFor.Equal(start.Add(259*time.Minute)) {
		t.Errorf("%+v", got)
	}
}

func TestReplayKeepsToTheWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	r.slots(s, 203)
	r.run()
	r.online(a)
	issued := func() int { return r.count(`SELECT count(*) FROM fires WHERE command_no IS NOT NULL`) }
	r.awaitThat(func() bool { return issued() >= 200 }, func() fire.Fire { return fire.Fire{} })
	if n := r.count(`SELECT count(*) FROM pending_fires`); n != 3 {
		t.Fatalf("%d left, want 3", n)
	}
	// Each command that ends makes room for the next, without waiting for the interval.
	for i, f := range r.commands()[:3] {
		r.answer(*f.CommandID, `{"status":"success"}`)
		r.awaitThat(func() bool { return issued() == 201+i }, func() fire.Fire { return fire.Fire{} })
	}
}

func TestReplayOnTheEventOfAnAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, lp := r.agent("ws", agent.Offline, "celery"), r.agent("lp", agent.Online)
	s := r.schedule("report", "celery", schedule.FireAll)
	r.run()
	first := r.slot(s, start)
	// No agent can: nothing happens, and an agent that lists another engine changes nothing.
	r.agent("rq", agent.Online, "rq")
	r.hub.Wake(agent.AgentsOnline(r.project.No))
	r.want(first.FireID, fire.Buffered)
	r.online(a)
	f := r.await(first.FireID, fire.Delivered)
	r.answer(*f.CommandID, `{"status":"success"}`)
	r.want(first.FireID, fire.AckedSuccess)
	// Declaring the engine of a long-poll agent is such an event too.
	r.exec(`UPDATE agents SET state = 'offline', offline_since = 1 WHERE agent_no = ?`, a.No)
	second := r.slot(s, start.Add(time.Minute))
	r.want(second.FireID, fire.Buffered)
	r.declare(lp, "celery")
	f = r.await(second.FireID, fire.Delivered)
	if cmd := r.command(*f.CommandID); cmd.AgentNo != lp.No {
		t.Errorf("went to %d", cmd.AgentNo)
	}
}

func TestReplayAfterARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	got := r.slot(s, start)
	r.exec(`UPDATE agents SET state = 'online', offline_since = NULL WHERE agent_no = ?`, a.No) // while nobody looked
	r.build()
	r.run()
	r.await(got.FireID, fire.Delivered)
}

func TestTheSweepFindsWhatNoHintTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	r.run()
	got := r.slot(s, start)
	r.clock.BlockUntil(1)
	r.exec(`UPDATE agents SET state = 'online', offline_since = NULL WHERE agent_no = ?`, a.No) // without a wake
	r.want(got.FireID, fire.Buffered)
	r.clock.Advance(10 * time.Second)
	r.await(got.FireID, fire.Delivered)
}

func TestNothingBufferedCostsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.agent("a", agent.Online, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	r.run()
	views := func() int { v, _ := r.st.both(); return v }
	r.awaitThat(func() bool { return views() >= 3 }, func() fire.Fire { return fire.Fire{} }) // the look at the start
	before := views()
	for i := range 5 {
		r.answer(*r.slot(s, start.Add(time.Duration(i)*time.Minute)).CommandID, `{"status":"success"}`)
		r.hub.Wake(agent.AgentsOnline(r.project.No))
		r.clock.Advance(time.Minute)
	}
	if after := views(); after != before {
		t.Errorf("%d reads while nothing was buffered", after-before)
	}
}

// News of other fires, however often, does not hold up the look at the interval.
func TestNewsDoesNotHoldUpTheSweep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	got := r.slot(r.schedule("report", "celery", schedule.FireAll), start)
	r.run()
	r.clock.BlockUntil(1)
	r.exec(`UPDATE agents SET state = 'online', offline_since = NULL WHERE agent_no = ?`, a.No) // without a wake
	views := func() int { v, _ := r.st.both(); return v }
	for i := range 4 {
		r.clock.Advance(4 * time.Second)
		before := views()
		r.slot(r.schedule(fmt.Sprint("s", i), fmt.Sprint("engine", i), schedule.FireAll), start)
		r.awaitThat(func() bool { return views() > before }, func() fire.Fire { return fire.Fire{} })
		r.clock.BlockUntil(1) // the turn is over
	}
	r.await(got.FireID, fire.Delivered)
}

func TestBufferingManyAsksOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.schedule("report", "celery", schedule.FireAll)
	turn, stop := r.fires.Turns()
	defer stop()
	r.slot(s, start)
	if !r.fires.Asked() {
		t.Error("the first fire of a group asked for no turn")
	}
	if err := turn(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		r.slot(s, start.Add(time.Duration(i+1)*time.Minute))
	}
	if r.fires.Asked() {
		t.Error("more fires of a group that is in view asked for a turn")
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.schedule("report", "celery", schedule.FireAll)
	r.run()
	first := r.slot(s, start)
	r.clock.Advance(time.Hour)
	second := r.slot(s, start.Add(time.Hour))
	r.clock.BlockUntil(1)
	r.clock.Advance(retention - time.Hour - time.Microsecond)
	if n, err := r.fires.Expired(context.Background()); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	r.want(first.FireID, fire.Buffered)
	r.clock.Advance(time.Microsecond) // exactly at expires_at
	f := r.await(first.FireID, fire.BufferExpired)
	if text(f.ErrorCode) != fire.CodeExpired || !f.FinishedAt.Equal(start.Add(retention)) || f.AckedAt != nil {
		t.Errorf("%+v", f)
	}
	r.want(second.FireID, fire.Buffered)
	var result, outcome, target, meta string
	if err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		return tx.QueryRow(`SELECT result, outcome, target_id, metadata FROM audit_log WHERE action = 'schedule.fire.buffer_expired'`).
			Scan(&result, &outcome, &target, &meta)
	}); err != nil {
		t.Fatal(err)
	}
	if result != "expired" || outcome != "failure" || target != s.ID.String() {
		t.Errorf("%s %s %s %s", result, outcome, target, meta)
	}
	// An agent that comes at the moment of the expiry comes too late, and takes the next.
	r.clock.Advance(time.Hour - time.Microsecond)
	r.online(r.agent("a", agent.Offline, "celery"))
	r.await(second.FireID, fire.Delivered)
}

func TestAnExpiredFireIsNotReplayed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent("a", agent.Offline, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	got := r.slot(s, start)
	r.clock.Advance(retention)
	r.online(a)
	r.run()
	r.await(got.FireID, fire.BufferExpired)
}

func TestAClockThatWasAheadHoldsNoFireForEver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.schedule("report", "celery", schedule.FireAll)
	r.clock.Advance(365 * 24 * time.Hour)
	got := r.slot(s, start)
	r.clock.Advance(-365 * 24 * time.Hour)
	if _, err := r.fires.Expired(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.clock.Advance(retention)
	if n, err := r.fires.Expired(context.Background()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	r.want(got.FireID, fire.BufferExpired)
}

func TestManyGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ids []uuid.UUID
	for i := range 12 {
		s := r.schedule(fmt.Sprint("s", i), fmt.Sprint("engine", i%4), schedule.FireAll)
		ids = append(ids, r.slot(s, start).FireID)
	}
	r.run()
	r.online(r.agent("a", agent.Offline, "engine1", "engine3"))
	for i, id := range ids {
		if i%2 == 1 {
			r.await(id, fire.Delivered)
		} else {
			r.want(id, fire.Buffered)
		}
	}
	notes, _, err := r.fires.AgentNotes(context.Background(), r.project.No, r.agent("lp", agent.Online).ID)
	if err != nil || len(notes) != 3 { // the inventory, and two engines
		t.Error(notes, err)
	}
}
