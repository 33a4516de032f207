package fire_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/rawjson"
	"signalbox/store"
	"signalbox/store/storetest"
)

var errDeath = errors.New("the process died")

// reaper has a process die at a commit: from there on nothing more is written.
type reaper struct {
	mu    sync.Mutex
	left  int // commits until death; 0: it lives
	after bool
	dead  bool
	saw   func() // told after each commit; nil: nobody is
}

func (r *reaper) arm(at int, after bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.after = at, after
}

func (r *reaper) before([]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return errDeath
	}
	if r.left > 0 && !r.after {
		if r.left--; r.left == 0 {
			r.dead = true
			return errDeath
		}
	}
	return nil
}

func (r *reaper) afterwards([]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saw != nil {
		r.saw()
	}
	if r.left > 0 && r.after {
		if r.left--; r.left == 0 {
			r.dead = true
			return errDeath
		}
	}
	return nil
}

// world is a rig with the scheduler and the service of schedules, in a process that can die.
type world struct {
	*rig
	death  *reaper
	sched  *schedule.Schedules
	runner *schedule.Scheduler
	worker agent.Agent
	every  schedule.Schedule // every minute
	fire   schedule.Fired    // what the step is about
	claims map[uuid.UUID]map[uuid.UUID]bool
}

func newWorld(t *testing.T) *world {
	w := &world{death: &reaper{}, claims: map[uuid.UUID]map[uuid.UUID]bool{}}
	w.rig = newRig(t, func(r *rig) { r.db = storetest.Open(t, w.options(r)...) })
	w.start()
	return w
}

func (w *world) options(r *rig) []storetest.Option {
	return []storetest.Option{func(o *store.Options) {
		o.Clock = r.clock
		o.Hooks.BeforeCommit, o.Hooks.AfterCommitBeforeReply = w.death.before, w.death.afterwards
	}}
}

// start makes the services with what the database holds, as a start of the appliance does.
func (w *world) start() {
	w.t.Helper()
	w.build()
	if _, err := w.cmds.Rescue(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	st := store.Bind[schedule.Tx, schedule.ReadTx](w.db)
	w.sched = schedule.NewSchedules(st, w.fires, w.cmds, w.log, w.hub, schedule.Options{Clock: w.clock, TriggerEvery: 5 * time.Second})
	w.runner = schedule.NewScheduler(st, w.fires, w.log, w.hub, schedule.SchedulerOptions{Clock: w.clock, CatchUpRate: math.MaxInt})
}

// reopen opens the database of the process that died.
func (w *world) reopen() {
	w.t.Helper()
	w.death = &reaper{}
	w.db = storetest.Reopen(w.t, w.db, w.options(w.rig)...)
}

// fired fires the schedule for the slot at the start.
func (w *world) fired() { w.fire = w.slot(w.every, start) }

// due lets the schedule come due n times.
func (w *world) due(n int) { w.clock.Advance(time.Duration(n) * time.Minute) }

func (w *world) peer() agent.Peer {
	return agent.Peer{ProjectNo: w.project.No, ProjectID: w.project.ID, AgentNo: w.worker.No, AgentID: w.worker.ID, Transport: agent.WebSocket,
		Session: "s", Worker: "w"}
}

// claim takes a command as a session does, and notes which commands bring a fire.
func (w *world) claim() (agent.ClaimResult, error) {
	got, err := w.cmds.ClaimPending(context.Background(), w.peer(), agent.ClaimRequest{Limit: 10})
	for _, c := range got.Claimed {
		doc, err := rawjson.Parse(c.Command.Payload)
		if err != nil {
			return got, err
		}
		text, _ := doc.Root().Get("fire_id").Str()
		doc.Release()
		id := uuid.MustParse(text)
		if w.claims[id] == nil {
			w.claims[id] = map[uuid.UUID]bool{}
		}
		w.claims[id][c.Command.ID] = true
	}
	return got, err
}

// result is the frame that the agent sends, and sends again until it is acknowledged.
func (w *world) result(payload string) error {
	doc, err := rawjson.Parse([]byte(payload))
	if err != nil {
		return err
	}
	defer doc.Release()
	return w.db.Update(context.Background(), "result", func(tx *store.Tx) error {
		return w.cmds.ApplyResult(tx, w.peer(), w.fire.CommandID.String(), doc.Root())
	})
}

func (w *world) ack() error {
	return w.db.Update(context.Background(), "ack", func(tx *store.Tx) error {
		return w.cmds.ApplyAck(tx, w.peer(), w.fire.CommandID.String(), rawjson.Value{})
	})
}

// dump is what the fire path has written, but for random ids.
func (w *world) dump(commands bool) string {
	w.t.Helper()
	queries := []string{
		`SELECT json_array('fire', fire_no, schedule_no, origin, slot_at, status, scheduled_for, acked_at, latency_ms, finished_at, error_code,
			error_message, EXISTS (SELECT 1 FROM commands c WHERE c.command_no = f.command_no AND c.id = f.command_id AND
			c.action = 'schedule.fire')) FROM fires f ORDER BY fire_no`,
		`SELECT json_array('commands', (SELECT count(*) FROM commands), (SELECT count(DISTINCT command_no) FROM fires))`,
		`SELECT json_array('pending', fire_no, schedule_no, engine, scheduled_for, enqueued_at, expires_at) FROM pending_fires ORDER BY fire_no`,
		`SELECT json_array('schedule', schedule_no, name, is_enabled, decided_at, next_run_at, last_run_at, total_runs, consecutive_failures,
			disabled_reason) FROM schedules ORDER BY schedule_no`,
		`SELECT json_array('misfire', schedule_no, at, first_slot, last_slot, slots, reason) FROM schedule_misfires ORDER BY misfire_no`,
		`SELECT json_array('audit', action, result, outcome) FROM audit_log WHERE action LIKE 'schedule.%' ORDER BY audit_no`,
	}
	if commands {
		queries = append(queries, `SELECT json_array('command', command_no, action, status, dispatched_at, acked_at, completed_at, error)
			FROM commands ORDER BY command_no`)
	}
	var out strings.Builder
	for _, q := range queries {
		err := w.db.View(context.Background(), func(tx *store.ReadTx) error {
			rows, err := tx.Query(q)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var line string
				if err := rows.Scan(&line); err != nil {
					return err
				}
				fmt.Fprintln(&out, line)
			}
			return rows.Err()
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return out.String()
}

// statuses counts the fires by status.
func (w *world) statuses() map[fire.Status]int {
	w.t.Helper()
	out := map[fire.Status]int{}
	for _, s := range fire.Statuses() {
		if n := w.count(`SELECT count(*) FROM fires WHERE status = ?`, string(s)); n > 0 {
			out[s] = n
		}
	}
	return out
}
