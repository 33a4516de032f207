package fire_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
)

// write is one write of the fire path, or several that follow one another.
type write struct {
	name    string
	catchUp schedule.CatchUp
	agent   agent.State          // of the agent that lists the engine
	given   func(w *world)       // what was before
	step    func(w *world) error // what writes; it is done again after a death, as a scheduler, a worker, an agent or a person does
	writes  int                  // transactions of the step
	want    map[fire.Status]int  // in the end
	others  string               // a query that must give 1 in the end, for what is not a fire
}

var ctx = context.Background()

func decide(w *world) error { _, err := w.runner.Step(ctx); return err }

func turn(w *world) error { return w.fires.Turn(ctx) }

// byHand is the fire_id that a person gives to a trigger.
var byHand = uuid.MustParse("3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10")

func trigger(w *world) error {
	_, err := w.sched.Trigger(ctx, agent.LocalPrincipal(), w.project.No, w.every.ID, byHand)
	return err
}

// remove deletes the schedule, and so does a repeat.
func remove(w *world) error {
	err := w.sched.Delete(ctx, agent.LocalPrincipal(), w.project.No, w.every.ID, false)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// comes is an agent that comes online while nobody looks.
func (w *world) comes() {
	w.exec(`UPDATE agents SET state = 'online', offline_since = NULL WHERE agent_no = ?`, w.worker.No)
}

func handedOver(w *world) {
	w.fired()
	if got, err := w.claim(); err != nil || len(got.Claimed) != 1 {
		w.t.Fatal(got, err)
	}
	w.clock.Advance(time.Second)
}

func timedOut(w *world) {
	handedOver(w)
	w.clock.Advance(2 * time.Minute)
	if n, err := w.cmds.SweepTimeouts(ctx); n != 1 || err != nil {
		w.t.Fatal(n, err)
	}
}

func cancelled(w *world) {
	handedOver(w)
	if _, err := w.cmds.Cancel(ctx, agent.LocalPrincipal(), w.project.No, *w.fire.CommandID); err != nil {
		w.t.Fatal(err)
	}
}

func buffered(n int) func(*world) {
	return func(w *world) { w.slots(w.every, n); w.comes() }
}

const (
	success = `{"status":"success","result":{"task_id":"x"}}`
	failure = `{"status":"failed","error":"no such task"}`
)

func result(payload string) func(*world) error {
	return func(w *world) error { return w.result(payload) }
}

var writes = []write{
	{name: "a slot is handed over", agent: agent.Online, given: func(w *world) { w.due(1) }, step: decide, writes: 1,
		want: map[fire.Status]int{fire.Delivered: 1}},
	{name: "a slot is buffered", agent: agent.Offline, given: func(w *world) { w.due(1) }, step: decide, writes: 1,
		want: map[fire.Status]int{fire.Buffered: 1}},
	{name: "missed slots are fired", agent: agent.Online, catchUp: schedule.FireAll, given: func(w *world) { w.due(30) }, step: decide, writes: 1,
		want: map[fire.Status]int{fire.Delivered: 30}},
	{name: "many missed slots are fired", agent: agent.Offline, catchUp: schedule.FireAll, given: func(w *world) { w.due(250) }, step: decide, writes: 3,
		want: map[fire.Status]int{fire.Buffered: 250}},
	{name: "the newest of the missed slots is fired", agent: agent.Online, catchUp: schedule.FireOne, given: func(w *world) { w.due(30) }, step: decide,
		writes: 1, want: map[fire.Status]int{fire.Delivered: 1}, others: `SELECT count(*) FROM schedule_misfires WHERE slots = 29`},
	{name: "missed slots are passed over", agent: agent.Online, catchUp: schedule.Skip,
		given: func(w *world) { w.due(31); w.exec(`UPDATE schedules SET expression = '*/10 * * * *'`) },
		step:  decide, writes: 1, others: `SELECT count(*) FROM schedule_misfires WHERE slots = 3 AND reason = 'catch_up_skip'`},
	{name: "a timing that cannot be read disables", agent: agent.Online,
		given: func(w *world) { w.due(1); w.exec(`UPDATE schedules SET timezone = 'Nowhere/None'`) }, step: decide, writes: 1,
		others: `SELECT count(*) FROM schedules WHERE is_enabled = 0`},
	{name: "what was decided ahead of the clock begins anew", agent: agent.Online,
		given: func(w *world) { w.exec(`UPDATE schedules SET decided_at = ?`, start.Add(time.Hour)); w.due(1) }, step: decide, writes: 1,
		others: `SELECT count(*) FROM schedules WHERE decided_at < 1772370000000000`},
	{name: "a trigger is handed over", agent: agent.Online, step: trigger, writes: 1, want: map[fire.Status]int{fire.Delivered: 1},
		others: `SELECT total_runs FROM schedules`},
	{name: "a trigger is buffered", agent: agent.Offline, step: trigger, writes: 1, want: map[fire.Status]int{fire.Buffered: 1},
		others: `SELECT count(*) FROM audit_log WHERE action = 'schedule.triggered'`},
	{name: "replay of all", agent: agent.Offline, catchUp: schedule.FireAll, given: buffered(150), step: turn, writes: 2,
		want: map[fire.Status]int{fire.Delivered: 150}},
	{name: "replay of the newest", agent: agent.Offline, catchUp: schedule.FireOne, given: buffered(3), step: turn, writes: 1,
		want: map[fire.Status]int{fire.Delivered: 1, fire.BufferExpired: 2}},
	{name: "replay of none", agent: agent.Offline, catchUp: schedule.Skip, given: buffered(3), step: turn, writes: 1,
		want: map[fire.Status]int{fire.BufferExpired: 3}},
	{name: "a session claims the command", agent: agent.Online, given: (*world).fired, step: func(w *world) error { _, err := w.claim(); return err },
		writes: 1, want: map[fire.Status]int{fire.Delivered: 1}},
	{name: "the frame could not be sent", agent: agent.Online, given: (*world).fired, writes: 2, want: map[fire.Status]int{fire.Delivered: 1},
		step: func(w *world) error {
			got, err := w.claim()
			for _, c := range got.Claimed {
				if err = w.cmds.SendFailed(ctx, c, "gone"); err != nil {
					return err
				}
			}
			return err
		}},
	{name: "the frame could not be signed", agent: agent.Online, given: (*world).fired, writes: 2, want: map[fire.Status]int{fire.Failed: 1},
		step: func(w *world) error {
			got, err := w.claim()
			for _, c := range got.Claimed {
				if err = w.cmds.SignFailed(ctx, c); err != nil {
					return err
				}
			}
			return err
		}, others: `SELECT consecutive_failures FROM schedules`},
	{name: "the agent accepts", agent: agent.Online, given: handedOver, step: (*world).ack, writes: 1, want: map[fire.Status]int{fire.Delivered: 1}},
	{name: "success", agent: agent.Online, given: handedOver, step: result(success), writes: 1, want: map[fire.Status]int{fire.AckedSuccess: 1},
		others: `SELECT consecutive_failures = 0 FROM schedules`},
	{name: "failure", agent: agent.Online, given: handedOver, step: result(failure), writes: 1, want: map[fire.Status]int{fire.AckedFailed: 1},
		others: `SELECT consecutive_failures FROM schedules`},
	{name: "the failure that trips the breaker", agent: agent.Online,
		given: func(w *world) { handedOver(w); w.exec(`UPDATE schedules SET consecutive_failures = 4`) }, step: result(failure), writes: 1,
		want:   map[fire.Status]int{fire.AckedFailed: 1},
		others: `SELECT count(*) FROM audit_log WHERE action = 'schedule.circuit_breaker.tripped'`},
	{name: "the breaker of a lowered threshold", agent: agent.Online,
		given: func(w *world) { w.exec(`UPDATE schedules SET consecutive_failures = 7`) }, writes: 1,
		step:   func(w *world) error { _, err := w.fires.TripBreakers(ctx); return err },
		others: `SELECT count(*) FROM audit_log WHERE action = 'schedule.circuit_breaker.tripped'`},
	{name: "the command times out", agent: agent.Online, given: func(w *world) { handedOver(w); w.clock.Advance(2 * time.Minute) }, writes: 1,
		step: func(w *world) error { _, err := w.cmds.SweepTimeouts(ctx); return err }, want: map[fire.Status]int{fire.Delivered: 1},
		others: `SELECT count(*) FROM commands WHERE status = 'timeout'`},
	{name: "success after the command timed out", agent: agent.Online, given: timedOut, step: result(success), writes: 1,
		want: map[fire.Status]int{fire.AckedSuccess: 1}},
	{name: "failure after the command timed out", agent: agent.Online, given: timedOut, step: result(failure), writes: 1,
		want: map[fire.Status]int{fire.AckedFailed: 1}, others: `SELECT consecutive_failures FROM schedules`},
	{name: "a person cancels the command", agent: agent.Online, given: handedOver, writes: 1,
		step: func(w *world) error {
			_, err := w.cmds.Cancel(ctx, agent.LocalPrincipal(), w.project.No, *w.fire.CommandID)
			if fault.Is(err, fault.Conflict) { // it is cancelled already
				return nil
			}
			return err
		}, want: map[fire.Status]int{fire.Failed: 1}, others: `SELECT consecutive_failures FROM schedules`},
	{name: "success after the command was cancelled", agent: agent.Online, given: cancelled, step: result(success), writes: 1,
		want: map[fire.Status]int{fire.AckedSuccess: 1}, others: `SELECT consecutive_failures = 0 FROM schedules`},
	{name: "failure after the command was cancelled", agent: agent.Online, given: cancelled, step: result(failure), writes: 1,
		want: map[fire.Status]int{fire.AckedFailed: 1}, others: `SELECT consecutive_failures FROM schedules`},
	{name: "the buffer time runs out", agent: agent.Offline, given: func(w *world) { w.slots(w.every, 150); w.clock.Advance(retention) }, step: turn,
		writes: 2, want: map[fire.Status]int{fire.BufferExpired: 150},
		others: `SELECT count(*) = 150 FROM audit_log WHERE action = 'schedule.fire.buffer_expired'`},
	{name: "the buffer time of a clock that was ahead", agent: agent.Offline,
		given: func(w *world) { w.clock.Advance(retention); w.fired(); w.clock.Advance(-retention) }, step: turn, writes: 1,
		want: map[fire.Status]int{fire.Buffered: 1}, others: `SELECT count(*) FROM pending_fires WHERE expires_at = enqueued_at`},
	{name: "a schedule is deleted", agent: agent.Offline, given: func(w *world) { w.slots(w.every, 3) }, step: remove, writes: 1,
		want:   map[fire.Status]int{fire.Buffered: 3},
		others: `SELECT count(*) FROM schedules WHERE deleted_at IS NOT NULL AND next_run_at IS NULL`},
	{name: "a deleted schedule's agent answers", agent: agent.Online,
		given: func(w *world) {
			handedOver(w)
			if err := remove(w); err != nil {
				w.t.Fatal(err)
			}
		}, step: result(failure), writes: 1, want: map[fire.Status]int{fire.Delivered: 1},
		others: `SELECT count(*) FROM commands WHERE status = 'failed'`},
	{name: "the history of a deleted schedule goes", agent: agent.Offline,
		given: func(w *world) {
			w.slots(w.every, 150)
			if err := remove(w); err != nil {
				w.t.Fatal(err)
			}
		}, step: func(w *world) error { _, err := w.sched.Purge(ctx); return err }, writes: 2,
		others: `SELECT count(*) = 0 FROM schedules`},
	{name: "the history is pruned", agent: agent.Online, given: func(w *world) { w.slots(w.every, 3); w.clock.Advance(time.Hour) }, writes: 1,
		step: func(w *world) error { _, err := w.fires.Prune(ctx, w.clock.Now()); return err }},
}

// TestDeathAroundEveryWrite kills the process just before and just after the commit of each transaction of the fire path. The
// database then holds what was before the transaction, or after it, and nothing between; a new process that does the same
// again comes to what one comes to that never died: no fire twice and none lost.
func TestDeathAroundEveryWrite(t *testing.T) {
	t.Parallel()
	for _, wr := range writes {
		t.Run(wr.name, func(t *testing.T) {
			t.Parallel()
			states, end := wr.alive(t)
			for at := 1; at <= wr.writes; at++ {
				wr.dies(t, at, false, states[at-1], end)
				wr.dies(t, at, true, states[at], end)
			}
		})
	}
}

// before is the world before the write.
func (wr *write) before(t *testing.T) *world {
	w := newWorld(t)
	w.worker = w.agent("a", wr.agent, "celery")
	how := wr.catchUp
	if how == "" {
		how = schedule.FireOne
	}
	w.every = w.schedule("report", "celery", how)
	if wr.given != nil {
		wr.given(w)
	}
	return w
}

// alive does it without a death: the states around the transactions, and the end.
func (wr *write) alive(t *testing.T) (states []string, end string) {
	t.Helper()
	w := wr.before(t)
	states = []string{w.dump(true)}
	w.death.saw = func() { states = append(states, w.dump(true)) }
	if err := wr.step(w); err != nil {
		t.Fatal(err)
	}
	w.death.saw = nil
	if len(states)-1 != wr.writes {
		t.Fatalf("%d transactions, want %d", len(states)-1, wr.writes)
	}
	if got := w.statuses(); !maps.Equal(got, wr.want) {
		t.Fatalf("fires are %v, want %v", got, wr.want)
	}
	if wr.others != "" && w.count(wr.others) != 1 {
		t.Fatalf("%s is not 1", wr.others)
	}
	return states, w.dump(false)
}

func (wr *write) dies(t *testing.T, at int, after bool, state, end string) {
	t.Helper()
	name := fmt.Sprintf("at commit %d, after it %v", at, after)
	w := wr.before(t)
	w.death.arm(at, after)
	if err := wr.step(w); err == nil {
		t.Fatalf("%s: the step told nothing of the death", name)
	}
	w.reopen()
	if got := w.dump(true); got != state {
		t.Fatalf("%s: the database holds\n%s\nwant\n%s", name, got, state)
	}
	w.start()
	for range 2 { // and once more, as after a lost answer: nothing further comes of it
		if err := wr.step(w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := w.dump(false); got != end {
			t.Fatalf("%s: it came to\n%s\nwant\n%s", name, got, end)
		}
	}
	for id, commands := range w.claims {
		if len(commands) > 1 {
			t.Errorf("%s: fire %s came as the commands %v", name, id, slices.Collect(maps.Keys(commands)))
		}
	}
}
