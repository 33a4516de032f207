package notify_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
	"signalbox/store"
)

// TestOneTransaction: what one transaction collects of a kind is one message, with the newest of it; what it collects is
// stored with its cause or not at all.
func TestOneTransaction(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "", time.Minute, g.channel("ops"))
	collect := func(result error) error {
		return store.Bind[notify.Tx, notify.ReadTx](g.db).Update(ctx, "test", func(tx notify.Tx) error {
			for i, name := range []string{"a", "b", "a", "a"} {
				f := agent.FailedTask{ProjectNo: g.project.No, Engine: "celery", TaskID: "t", TaskName: name, EventID: uuid.New(),
					Exception: []string{"first", "second", "third", "fourth"}[i], OccurredAt: start.Add([]time.Duration{0, 0, 2, 1}[i] * time.Hour)}
				if err := g.s.OnTaskFailed(tx, f, ""); err != nil {
					return err
				}
			}
			return result
		})
	}
	if refused := errors.New("no"); !errors.Is(collect(refused), refused) {
		t.Error("a transaction that failed was kept")
	}
	g.must(collect(nil))
	g.run(g.s.Run)
	for _, m := range g.out.await(2) {
		b := bodyOf(t, m.Message)
		if b["name"] == "b" {
			if b["collected"] != 1.0 || b["detail"] != "second" {
				t.Errorf("of b: %s", m.Body)
			}
			continue
		}
		if m.Subject != "[one] task a failed: fourth (3 times)" || b["collected"] != 3.0 || b["first_at"] != "2026-06-01T12:00:00Z" ||
			b["last_at"] != "2026-06-01T14:00:00Z" {
			t.Errorf("of a: %s", m.Body)
		}
	}
	if n := g.settled(notify.Delivered, 2); len(n) != 2 {
		t.Errorf("%d messages", len(n))
	}
}
