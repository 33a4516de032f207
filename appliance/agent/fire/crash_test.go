package fire_test

import (
	"context"
	"errors"
	"testing"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/store"
	"signalbox/store/storetest"
)

// TestEveryWriteOfAFireIsWholeOrNothing fails the commit of each step of a fire's life, and does the step again, as a
// scheduler, an agent or a worker does: nothing of a failed step is there, and the repeat makes one fire and one command.
func TestEveryWriteOfAFireIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	var commit storetest.Failpoint
	broken := errors.New("the disk is gone")
	r := newRig(t, func(r *rig) {
		r.db = storetest.Open(t, storetest.WithBeforeCommit(&commit), func(o *store.Options) { o.Clock = r.clock })
		r.opts.Trouble = func(string, error) {}
	})
	a := r.agent("a", agent.Offline, "celery")
	s := r.schedule("report", "celery", schedule.FireAll)
	n := schedule.NewFire{Schedule: s, Origin: schedule.OriginSlot, SlotAt: &start, ScheduledFor: start, FireID: schedule.SlotFireID(s.ID, start)}
	rows := func() [3]int {
		return [3]int{r.count(`SELECT count(*) FROM fires`), r.count(`SELECT count(*) FROM pending_fires`), r.count(`SELECT count(*) FROM commands`)}
	}
	begin := func() error {
		return r.db.Update(context.Background(), "start", func(tx *store.Tx) error { _, err := r.fires.StartFire(tx, n); return err })
	}
	commit.Arm(broken, 1)
	if err := begin(); err == nil || rows() != [3]int{} {
		t.Fatalf("%v, rows %v", err, rows())
	}
	for range 2 { // and once more, as after a lost answer
		if err := begin(); err != nil || rows() != [3]int{1, 1, 0} {
			t.Fatalf("%v, rows %v", err, rows())
		}
	}
	r.exec(`UPDATE agents SET state = 'online', offline_since = NULL WHERE agent_no = ?`, a.No)
	commit.Arm(broken, 1) // the replay
	r.run()
	r.awaitThat(func() bool { return commit.Hits() > 0 && r.count(`SELECT count(*) FROM pending_fires`) == 1 }, func() fire.Fire { return fire.Fire{} })
	r.clock.BlockUntil(1)
	r.clock.Advance(r.opts.ReplayInterval)
	f := r.await(n.FireID, fire.Delivered)
	if rows() != [3]int{1, 0, 1} {
		t.Fatalf("rows %v", rows())
	}
	r.answer(*f.CommandID, `{"status":"success"}`)
	r.want(n.FireID, fire.AckedSuccess)
}
