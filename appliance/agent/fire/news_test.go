package fire_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/store"
)

// news notes what it is told, and fails when told to.
type news struct {
	told []string
	err  error
}

func (n *news) tell(what string) error {
	if n.err == nil {
		n.told = append(n.told, what)
	}
	return n.err
}

func (n *news) FireBuffered(_ agent.CommandTx, f fire.Fire) error {
	return n.tell("buffered " + f.ScheduleName + " " + f.FireID.String())
}

func (n *news) FireExpired(_ agent.CommandTx, f fire.Fire) error {
	return n.tell("expired " + f.ScheduleName + " " + f.FireID.String())
}

func (n *news) BreakerTripped(_ agent.CommandTx, s schedule.Schedule, reason string) error {
	return n.tell("tripped " + s.Name + " " + reason)
}

// TestNews: what people want to know is told once, in the transaction that stores it; one that cannot tell stores nothing.
func TestNews(t *testing.T) {
	t.Parallel()
	n := &news{}
	r := newRig(t, func(r *rig) { r.opts.News, r.opts.BreakerThreshold = n, 1 })
	r.agent("a", agent.Online, "celery")
	want := func(told ...string) {
		t.Helper()
		if !slices.Equal(n.told, told) {
			t.Fatalf("told %q, want %q", n.told, told)
		}
	}
	delivered := r.slot(r.schedule("report", "celery", schedule.FireAll), start)
	want()
	waits := r.schedule("waits", "rq", schedule.FireAll)
	id := r.slot(waits, start).FireID
	buffered := "buffered waits " + id.String()
	want(buffered)
	r.slot(waits, start) // the same fire, asked for again
	want(buffered)
	r.answer(*delivered.CommandID, `{"status":"failed","error":"no"}`)
	tripped := "tripped report circuit breaker: the last fire failed"
	want(buffered, tripped)
	r.clock.Advance(retention)
	n.err = errors.New("no news")
	if _, err := r.fires.Expired(context.Background()); !errors.Is(err, n.err) {
		t.Errorf("an expiry that cannot be told: %v", err)
	}
	r.want(id, fire.Buffered)
	before := r.count(`SELECT count(*) FROM fires`)
	at := start.Add(time.Minute)
	err := r.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		_, err := r.fires.StartFire(tx, schedule.NewFire{Schedule: waits, Origin: schedule.OriginSlot, SlotAt: &at, ScheduledFor: at,
			FireID: schedule.SlotFireID(waits.ID, at)})
		return err
	})
	if after := r.count(`SELECT count(*) FROM fires`); !errors.Is(err, n.err) || after != before {
		t.Errorf("a fire that cannot be told: %v, %d fires more", err, after-before)
	}
	n.err = nil
	if got, err := r.fires.Expired(context.Background()); got != 1 || err != nil {
		t.Fatal(got, err)
	}
	want(buffered, tripped, "expired waits "+id.String())
}
