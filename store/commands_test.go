package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/store/storetest"
)

// commandFixture stores a project, an agent and a pending command under the idempotency key "k".
func commandFixture(t *testing.T, db *store.DB) (c agent.Command) {
	t.Helper()
	err := db.Update(context.Background(), "set up", func(tx *store.Tx) error {
		now := tx.Now()
		project, err := tx.InsertProject(agent.Project{ID: uuid.New(), Slug: "plant", Name: "plant", Environment: "production", Timezone: "UTC",
			RetentionDays: 30, IsActive: true, DefaultSchedulerOwner: "z4j-scheduler", CreatedAt: now, UpdatedAt: now})
		if err != nil {
			return err
		}
		no, err := tx.InsertAgent(agent.Agent{ID: uuid.New(), ProjectNo: project, Name: "a", ProtocolVersion: "0", FrameworkAdapter: "unknown",
			State: agent.Online, Host: []byte("{}"), CreatedAt: now}, uuid.New().String()+uuid.New().String()[:28])
		if err != nil {
			return err
		}
		key := "k"
		c = agent.Command{ID: uuid.New(), ProjectNo: project, AgentNo: no, Action: "cancel_task", TargetType: "task", Payload: []byte("{}"),
			IdempotencyKey: &key, Status: agent.Pending, IssuedAt: now, TimeoutAt: now.Add(time.Minute)}
		c.No, err = tx.InsertCommand(c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestUpdateCommandIsGuarded(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	c := commandFixture(t, db)
	update := func(before, after agent.Command) (ok bool) {
		t.Helper()
		err := db.Update(context.Background(), "update", func(tx *store.Tx) (err error) {
			ok, err = tx.UpdateCommand(before, after)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	claimed, err := c.Claim(c.IssuedAt.Add(time.Second), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !update(c, claimed) {
		t.Fatal("the first claim lost")
	}
	if update(c, claimed) {
		t.Error("a second claim won")
	}
	again, err := claimed.Redispatch(c.IssuedAt.Add(20*time.Second), time.Minute, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if !update(claimed, again) {
		t.Fatal("the first redispatch lost")
	}
	if update(claimed, again) {
		t.Error("a redispatch of an old hand-over won")
	}
	err = db.View(context.Background(), func(tx *store.ReadTx) error {
		got, err := tx.CommandByNo(c.No)
		if err == nil && (got.Status != agent.Dispatched || !got.DispatchedAt.Equal(*again.DispatchedAt) || !got.TimeoutAt.Equal(claimed.TimeoutAt)) {
			t.Errorf("stored %+v", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestIdempotencyKeyIsUniqueInItsProject(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	c := commandFixture(t, db)
	c.ID = uuid.New()
	err := db.Update(context.Background(), "insert", func(tx *store.Tx) error {
		_, err := tx.InsertCommand(c)
		return err
	})
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("a second command under the key: %v", err)
	}
}

func TestOneOpenDeliveryAtATime(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	c := commandFixture(t, db)
	var nos []int64
	var late bool
	err := db.Update(context.Background(), "deliver", func(tx *store.Tx) error {
		for range 3 {
			no, err := tx.InsertDelivery(agent.Delivery{CommandNo: c.No, Transport: agent.LongPoll, ClaimedAt: tx.Now(), Outcome: agent.DeliveryInFlight})
			if err != nil {
				return err
			}
			nos = append(nos, no)
		}
		if err := tx.AckDeliveries(c.No, tx.Now()); err != nil {
			return err
		}
		var err error
		if late, err = tx.FinishDelivery(nos[0], tx.Now(), agent.DeliverySendFailed, nil); err != nil {
			return err
		}
		return tx.MarkDeliverySent(nos[2], tx.Now())
	})
	if err != nil || late {
		t.Fatalf("ended an old attempt: %v, %v", late, err)
	}
	err = db.View(context.Background(), func(tx *store.ReadTx) error {
		ds, err := tx.CommandDeliveries(c.No)
		want := []agent.DeliveryOutcome{agent.DeliverySuperseded, agent.DeliverySuperseded, agent.DeliveryAcked}
		for i, d := range ds {
			if d.Outcome != want[i] || d.Attempt != i+1 || (d.FinishedAt == nil) != (i == 2) || (d.SentAt != nil) != (i == 2) {
				t.Errorf("attempt %d: %+v", i+1, d)
			}
		}
		if len(ds) != 3 {
			t.Errorf("%d attempts", len(ds))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
