package fire_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
	"signalbox/store"
)

// TestFireIDOfAnother asks for a fire under an id that is another's: nothing of that one is told, and nothing passes for done.
func TestFireIDOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one, two := r.schedule("one", "celery", schedule.FireAll), r.schedule("two", "celery", schedule.FireAll)
	trigger := func(s schedule.Schedule, id uuid.UUID) (out schedule.Fired, err error) {
		err = r.db.Update(context.Background(), "test", func(tx *store.Tx) (err error) {
			out, err = r.fires.StartFire(tx, schedule.NewFire{Schedule: s, Origin: schedule.OriginTrigger, ScheduledFor: tx.Now(), FireID: id})
			return err
		})
		return out, err
	}
	first := r.slot(one, start)
	for what, s := range map[string]schedule.Schedule{"another schedule": two, "a slot of its own": one} {
		got, err := trigger(s, first.FireID)
		if !fault.Is(err, fault.Conflict) || fault.Details(err)["field"] != "fire_id" || got.Repeated {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	id := uuid.New()
	if got, err := trigger(one, id); err != nil || got.Repeated {
		t.Fatal(got, err)
	}
	if got, err := trigger(one, id); err != nil || !got.Repeated || got.FireID != id {
		t.Errorf("a repeat: %+v, %v", got, err)
	}

	// The id of a slot that is still to come can be told beforehand: whoever takes it takes no slot away.
	slot := start.Add(time.Hour)
	if _, err := trigger(two, schedule.SlotFireID(one.ID, slot)); err != nil {
		t.Fatal(err)
	}
	fired := r.slot(one, slot)
	if fired.Repeated || r.count(`SELECT count(*) FROM fires WHERE schedule_no = ? AND slot_at = ?`, one.No, slot) != 1 {
		t.Errorf("the slot was not fired: %+v", fired)
	}
	if again := r.slot(one, slot); !again.Repeated || again.FireID != fired.FireID {
		t.Errorf("the slot again: %+v", again)
	}
}

// TestPruneAfterAClockThatWasAhead keeps retention going behind fires that were fired under a clock that was ahead.
func TestPruneAfterAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.schedule("report", "celery", schedule.FireAll)
	old := r.slots(s, 250)
	r.exec(`UPDATE fires SET status = 'failed'`)
	r.exec(`DELETE FROM pending_fires`)
	r.exec(`UPDATE fires SET fired_at = ? WHERE fire_id = ?`, start.AddDate(2, 0, 0), old[10].FireID)
	r.exec(`UPDATE fires SET fired_at = ? WHERE fire_id = ?`, start.AddDate(2, 0, 0), old[249].FireID)
	r.clock.Advance(31 * 24 * time.Hour)
	n, err := r.fires.Prune(context.Background(), r.clock.Now().AddDate(0, 0, -30))
	if err != nil || n != 249 {
		t.Errorf("%d were pruned, %v; want all but the newest, whose time is to come", n, err)
	}
}
