package schedule_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/store/storetest"
)

// sized notes how many rows of histories each transaction removed.
type sized struct {
	agent.Store[schedule.Tx, schedule.ReadTx]
	mu    sync.Mutex
	most  int
	after func(op string) // told after each update
}

const countHistory = `SELECT (SELECT count(*) FROM fires) + (SELECT count(*) FROM schedule_misfires)`

func (s *sized) Update(ctx context.Context, op string, fn func(schedule.Tx) error) error {
	err := s.Store.Update(ctx, op, func(tx schedule.Tx) error {
		count := func() (n int) {
			_ = any(tx).(*store.Tx).QueryRow(countHistory).Scan(&n)
			return n
		}
		before := count()
		err := fn(tx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.most = max(s.most, before-count())
		return err
	})
	if s.after != nil {
		s.after(op)
	}
	return err
}

func (s *sized) largest() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// history gives a schedule n fires, the first ten of which wait in the buffer, and as many misfires.
func (r *rig) history(s schedule.Schedule, n int) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		for _, query := range []string{
			`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < ?1)
			INSERT INTO fires (id, fire_id, schedule_no, project_no, origin, slot_at, status, scheduled_for, fired_at)
			SELECT randomblob(16), randomblob(16), ?2, ?3, 'slot', i, iif(i <= 10, 'buffered', 'acked_success'), i, i FROM n`,
			`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < ?1)
			INSERT INTO schedule_misfires (schedule_no, at, first_slot, last_slot, slots, reason) SELECT ?2, i + ?3 * 0, i, i, 1, 'catch_up_one' FROM n`,
			`INSERT INTO pending_fires (id, fire_no, schedule_no, project_no, engine, payload, scheduled_for, enqueued_at, expires_at)
			SELECT randomblob(16), fire_no, schedule_no, project_no, 'celery', '{}', slot_at, slot_at, slot_at + ?1 + ?3 * 0 FROM fires
			WHERE schedule_no = ?2 AND status = 'buffered'`} {
			if _, err := tx.Exec(query, n, s.No, r.project.No); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *rig) count(query string, args ...any) (n int) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) })
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// A schedule with a long history is deleted at once, however it is deleted: nothing of it is found any more, it is never due,
// and its name is free. No transaction holds the others up for the history.
func TestDeleteAnswersAtOnce(t *testing.T) {
	t.Parallel()
	one := 1
	for what, remove := range map[string]func(r *rig, s schedule.Schedule) error{
		"delete": func(r *rig, s schedule.Schedule) error {
			return r.sched.Delete(t.Context(), r.by, r.project.No, s.ID, false)
		},
		"prune": func(r *rig, s schedule.Schedule) error {
			_, err := r.sched.Apply(t.Context(), r.by, r.project, schedule.Import{Source: "git", Prune: true, ConfirmCount: &one})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			st := &sized{Store: r.st.Store}
			r.st.Store = st
			def := define("tick", schedule.Interval, "1s", schedule.FireOne)
			def.Source = "git"
			s, other := r.create(def), r.create(define("other", schedule.Interval, "1h", schedule.FireOne))
			r.history(s, 1000)
			r.history(other, 300)
			if err := remove(r, s); err != nil {
				t.Fatal(err)
			}
			if n := st.largest(); n != 0 {
				t.Errorf("the answer waited for %d rows of the history", n)
			}
			_, _, err := r.sched.Get(t.Context(), r.project.No, s.ID)
			wantFault(t, err, fault.NotFound, "")
			wantFault(t, r.sched.Delete(t.Context(), r.by, r.project.No, s.ID, false), fault.NotFound, "")
			for _, text := range []string{"tick", s.ID.String()[:8]} {
				if ids, err := r.sched.Resolve(t.Context(), r.project.No, text); err != nil || len(ids) != 0 {
					t.Errorf("%s is found: %v, %v", text, ids, err)
				}
			}
			if rows, err := r.sched.List(t.Context(), r.project.No, schedule.Filter{}, schedule.Page{Limit: 10}); err != nil || len(rows) != 1 {
				t.Errorf("listed: %+v, %v", rows, err)
			}
			again := r.create(def)
			r.clock.Advance(time.Second)
			r.step()
			r.checkSlots(again, schedule.OriginSlot, start.Add(time.Second))
			if n := len(r.fires(s)); n != 1000 {
				t.Errorf("%d fires", n)
			}
			if n, err := r.sched.Purge(t.Context()); err != nil || n != 2011 { // fires, misfires, the buffer, and the schedule
				t.Errorf("purged %d, %v", n, err)
			}
			if n := st.largest(); n != 200 {
				t.Errorf("one transaction removed %d", n)
			}
			if n := r.count(countHistory); n != 601 || r.count(`SELECT count(*) FROM schedules`) != 2 || r.count(`SELECT count(*) FROM pending_fires`) != 10 {
				t.Errorf("%d rows of histories are left", n)
			}
			if n, err := r.sched.Purge(t.Context()); err != nil || n != 0 {
				t.Errorf("purged %d again, %v", n, err)
			}
		})
	}
}

// The purge that a stop or a death cut off goes on with the next start; what is deleted while it runs wakes it; and it tries
// again after a failure.
func TestThePurgeGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.create(define("tick", schedule.Interval, "1s", schedule.FireOne))
	r.history(s, 1000)
	if err := r.sched.Delete(t.Context(), r.by, r.project.No, s.ID, false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	slices := 0
	r.st.Store = &sized{Store: r.st.Store, after: func(string) {
		if slices++; slices == 3 {
			cancel(context.Canceled)
		}
	}}
	if n, err := r.sched.Purge(ctx); !fault.Is(err, fault.Canceled) || n != 600 {
		t.Fatalf("stopped after %d rows: %v", n, err)
	}

	var commit storetest.Failpoint
	r.options = append(r.options, storetest.WithBeforeCommit(&commit))
	r.db = storetest.Reopen(t, r.db, r.options...)
	r.restart()
	gone := make(chan struct{}, 100)
	troubles := make(chan error, 1)
	r.st.Store = &sized{Store: r.st.Store, after: func(string) { gone <- struct{}{} }}
	r.purged = func(_ string, err error) { troubles <- err }
	await := func() {
		t.Helper()
		for r.count(`SELECT count(*) FROM schedules`) > 0 {
			<-gone
		}
	}
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { done <- r.sched.RunPurge(ctx) }()
	await()
	if n := r.count(countHistory); n != 0 {
		t.Errorf("%d rows of the history are left", n)
	}
	for _, id := range []uuid.UUID{r.create(define("a", schedule.Interval, "1s", "")).ID, r.create(define("b", schedule.Interval, "1s", "")).ID} {
		if err := r.sched.Delete(t.Context(), r.by, r.project.No, id, false); err != nil {
			t.Fatal(err)
		}
	}
	await()
	c := r.create(define("c", schedule.Interval, "1s", ""))
	r.update(func(tx *store.Tx) error {
		// Before anybody can see that it is deleted: a hint of before may still be under way.
		tx.AfterCommit(func() { commit.Arm(errOdd, 1) })
		return tx.DeleteSchedule(c.No)
	})
	r.hub.Wake(schedule.Gone{})
	if err := <-troubles; !fault.Is(err, fault.Unavailable) {
		t.Errorf("trouble: %v", err)
	}
	r.clock.BlockUntil(1)
	r.clock.Advance(10 * time.Second)
	await()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
