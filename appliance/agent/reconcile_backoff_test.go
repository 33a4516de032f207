package agent_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/store"
)

const startedFor = 15 * time.Minute

// reconciler is a rig whose agent can be asked about tasks of celery.
func reconciler(t *testing.T) *commandRig {
	r := newCommandRig(t)
	r.report(r.agent, map[string][]string{"celery": {}})
	r.presence.set(r.agent.ID, agent.SessionInfo{Transport: agent.WebSocket, Session: "s"})
	return r
}

// begin stores tasks that began so long ago.
func (r *commandRig) begin(ago time.Duration, ids ...string) {
	r.t.Helper()
	r.setup(func(tx *store.Tx) error {
		for _, id := range ids {
			row, err := uuid.NewV7()
			if err != nil {
				return err
			}
			at := tx.Now().Add(-ago)
			if _, err := tx.Exec(`INSERT INTO tasks (id, project_no, engine, task_id, name, state, priority, started_at, created_at, updated_at)
				VALUES (?, ?, 'celery', ?, 'mail.send', 'started', 'normal', ?, ?, ?)`, row, r.project.No, id, at, at, at); err != nil {
				return err
			}
		}
		return nil
	})
}

// asks sweeps, answers every question with the state, and returns the tasks that were asked about; "" leaves them open.
func (r *commandRig) asks(state string) (tasks []string) {
	r.t.Helper()
	n, err := r.cmds.SweepStarted(context.Background(), r.clock.Now().Add(-startedFor))
	if err != nil {
		r.t.Fatal(err)
	}
	p := r.peer(agent.WebSocket)
	for _, c := range r.claim(p, 500).Claimed {
		tasks = append(tasks, (*c.Command.TargetID)[len("celery:"):])
		if state != "" {
			r.apply(p, c.Command.ID.String(), `{"status":"success","result":{"engine_state":"`+state+`","finished_at":null,"exception":null}}`)
		}
	}
	if len(tasks) != n {
		r.t.Errorf("%d commands were issued and %d claimed", n, len(tasks))
	}
	return tasks
}

// A task that truly runs is asked about more and more seldom: after 10 minutes, then after twice as long each time, up to
// six hours.
func TestStartedTasksAreAskedAboutMoreAndMoreSeldom(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"started", "unknown"} {
		r := reconciler(t)
		r.begin(startedFor+time.Second, "long")
		var gaps []time.Duration
		last := time.Time{}
		for until := r.clock.Now().Add(36 * time.Hour); r.clock.Now().Before(until); r.clock.Advance(5 * time.Minute) {
			if len(r.asks(state)) == 0 {
				continue
			}
			if !last.IsZero() {
				gaps = append(gaps, r.clock.Now().Sub(last))
			}
			last = r.clock.Now()
		}
		m := time.Minute
		want := []time.Duration{10 * m, 20 * m, 40 * m, 80 * m, 160 * m, 320 * m, 360 * m, 360 * m, 360 * m, 360 * m}
		if !slices.Equal(gaps, want) {
			t.Errorf("%s: asked about after %v, want %v", state, gaps, want)
		}
	}
}

// A question that nobody answers is put again at the next sweep after its end; a task that began anew starts over; a new
// service, as after a restart, asks once more.
func TestWhatEndsTheWait(t *testing.T) {
	t.Parallel()
	r := reconciler(t)
	r.begin(startedFor+time.Second, "long")
	for range 3 {
		if got := r.asks(""); len(got) != 1 {
			t.Fatalf("asked about %v", got)
		}
		r.clock.Advance(5 * time.Minute)
		if _, err := r.cmds.SweepTimeouts(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 { // up to hours
		r.asks("started")
		r.clock.Advance(6 * time.Hour)
	}
	r.asks("started")
	r.clock.Advance(5 * time.Minute)
	if got := r.asks("started"); len(got) != 0 {
		t.Fatalf("asked about %v again", got)
	}
	r.setup(func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE tasks SET started_at = ? WHERE task_id = 'long'`, tx.Now().Add(-startedFor-time.Second))
		return err
	})
	if got := r.asks("started"); len(got) != 1 {
		t.Errorf("a task that began anew: asked about %v", got)
	}
	r.clock.Advance(5 * time.Minute)
	if got := r.asks("started"); len(got) != 0 {
		t.Errorf("asked about %v after 5 minutes", got)
	}
	r.clock.Advance(5 * time.Minute)
	if got := r.asks("success"); len(got) != 1 {
		t.Errorf("asked about %v after 10 minutes", got)
	}
	r.clock.Advance(time.Hour)
	if got := r.asks("started"); len(got) != 0 {
		t.Errorf("asked about %v, which has ended", got)
	}
}

// Tasks that are left alone do not keep others from being asked about, and no sweep asks about more than 100.
func TestASweepLooksPastTasksThatAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := reconciler(t)
	var old []string
	for i := range 250 {
		old = append(old, fmt.Sprintf("old-%d", i))
	}
	r.begin(2*startedFor, old...)
	asked := map[string]int{}
	for _, want := range []int{100, 100, 50} {
		got := r.asks("started")
		if len(got) != want {
			t.Fatalf("asked about %d tasks, want %d", len(got), want)
		}
		for _, id := range got {
			asked[id]++
		}
	}
	r.begin(startedFor+time.Second, "new")
	if got := r.asks("started"); !slices.Equal(got, []string{"new"}) {
		t.Errorf("asked about %v, want the new task", got)
	}
	if len(asked) != len(old) {
		t.Errorf("asked about %d of %d tasks", len(asked), len(old))
	}
}
