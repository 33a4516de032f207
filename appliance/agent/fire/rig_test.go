package fire_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const retention = 7 * 24 * time.Hour

// rig is Fires and Commands on a real database with one project and a clock that stands.
type rig struct {
	t       testing.TB
	db      *store.DB
	clock   *clock.Fake
	hub     *wake.Hub
	cmds    *agent.Commands
	fires   *fire.Fires
	project agent.Project
	counts  *counts
	st      *counted
	opts    fire.Options
	live    *sessions
	log     *audit.Log
}

// counted counts the transactions of Fires.
type counted struct {
	agent.Store[fire.Tx, fire.ReadTx]
	mu             sync.Mutex
	views, updates int
}

func (c *counted) Update(ctx context.Context, op string, fn func(fire.Tx) error) error {
	c.mu.Lock()
	c.updates++
	c.mu.Unlock()
	return c.Store.Update(ctx, op, fn)
}

func (c *counted) View(ctx context.Context, fn func(fire.ReadTx) error) error {
	c.mu.Lock()
	c.views++
	c.mu.Unlock()
	return c.Store.View(ctx, fn)
}

func (c *counted) both() (views, updates int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.views, c.updates
}

type counts struct {
	mu     sync.Mutex
	became map[fire.Status]int
}

func (c *counts) FireBecame(s fire.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.became[s]++
}

type sessions map[uuid.UUID][]agent.SessionInfo

func (s sessions) Sessions(id uuid.UUID) []agent.SessionInfo { return s[id] }

func newRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(start), hub: wake.New(), counts: &counts{became: map[fire.Status]int{}}, live: &sessions{}}
	r.opts = fire.Options{Retention: retention, ReplayInterval: 10 * time.Second, BreakerThreshold: 5, Clock: r.clock, Observer: r.counts,
		Trouble: func(op string, err error) { t.Errorf("%s: %v", op, err) }}
	for _, c := range change {
		c(r)
	}
	if r.db == nil {
		r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clock })
	}
	r.build()
	r.project = agent.Project{ID: uuid.New(), Slug: "plant", Name: "plant", Environment: "production", Timezone: "UTC", RetentionDays: 30,
		IsActive: true, DefaultSchedulerOwner: "z4j-scheduler", CreatedAt: r.clock.Now(), UpdatedAt: r.clock.Now()}
	r.update(func(tx *store.Tx) (err error) { r.project.No, err = tx.InsertProject(r.project); return err })
	return r
}

// build makes the services, as a start of the appliance does.
func (r *rig) build() {
	r.log = audit.New(audit.NewKeys(secret.NewBytes([]byte("0123456789abcdef0123456789abcdef"))))
	r.cmds = agent.NewCommands(store.Bind[agent.CommandTx, agent.CommandReadTx](r.db), r.live, r.log, r.hub, agent.CommandOptions{
		Timeout: time.Minute, RedispatchWindow: time.Minute, RedispatchMinInterval: 10 * time.Second, Clock: r.clock})
	r.st = &counted{Store: store.Bind[fire.Tx, fire.ReadTx](r.db)}
	r.fires = fire.New(r.st, r.cmds, r.live, r.log, r.hub, r.opts)
	r.cmds.AddHook(r.fires)
}

func (r *rig) update(fn func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(context.Background(), "test", fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error { _, err := tx.Exec(query, args...); return err })
}

// count is a number that a query gives.
func (r *rig) count(query string, args ...any) (n int) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) })
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// agent mints an agent in a state; with engines it has reported them over WebSocket.
func (r *rig) agent(name string, state agent.State, engines ...string) agent.Agent {
	r.t.Helper()
	a := agent.Agent{ID: uuid.New(), ProjectNo: r.project.No, ProjectID: r.project.ID, Name: name, ProtocolVersion: "0", FrameworkAdapter: "unknown",
		State: agent.Unknown, Host: []byte("{}"), CreatedAt: r.clock.Now()}
	r.update(func(tx *store.Tx) (err error) {
		if a.No, err = tx.InsertAgent(a, secret.TokenHash([]byte("x"), name)); err != nil {
			return err
		}
		list, _ := json.Marshal(engines)
		if len(engines) > 0 {
			_, err = tx.Exec(`UPDATE agents SET engine_adapters = ?, last_connect_at = ? WHERE agent_no = ?`, string(list), tx.Now(), a.No)
		}
		if err == nil {
			_, err = tx.Exec(`UPDATE agents SET state = ?, offline_since = CASE WHEN ? = 'offline' THEN ? END, last_seen_at = ? WHERE agent_no = ?`,
				string(state), string(state), tx.Now(), tx.Now(), a.No)
		}
		return err
	})
	return a
}

// online brings an agent online and tells so, as the directory does.
func (r *rig) online(a agent.Agent) {
	r.t.Helper()
	r.exec(`UPDATE agents SET state = 'online', offline_since = NULL, last_seen_at = ? WHERE agent_no = ?`, r.clock.Now(), a.No)
	r.hub.Wake(agent.AgentsOnline(r.project.No))
}

func (r *rig) schedule(name, engine string, c schedule.CatchUp) schedule.Schedule {
	r.t.Helper()
	s := schedule.Schedule{ID: uuid.New(), Name: name}
	r.update(func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO schedules (id, project_no, engine, scheduler, name, task_name, kind, expression, timezone, priority, args, kwargs,
			is_enabled, catch_up, source, anchor_at, decided_at, next_run_at, created_at, updated_at)
			VALUES (?, ?, ?, 'signalbox', ?, 'tasks.report', 'cron', '* * * * *', 'UTC', 'normal', '[1,"a"]', '{"k":null}', 1, ?, 'dashboard', ?, ?, ?, ?, ?)`,
			s.ID, r.project.No, engine, name, string(c), tx.Now(), tx.Now(), tx.Now().Add(time.Minute), tx.Now(), tx.Now())
		if err != nil {
			return err
		}
		s, err = tx.ScheduleByNo(res.LastInsertID())
		return err
	})
	return s
}

// slot fires the schedule for a slot.
func (r *rig) slot(s schedule.Schedule, at time.Time) schedule.Fired {
	r.t.Helper()
	return r.start(schedule.NewFire{Schedule: s, Origin: schedule.OriginSlot, SlotAt: &at, ScheduledFor: at, FireID: schedule.SlotFireID(s.ID, at)})
}

// slots fires the schedule for n slots, a minute apart, in one transaction.
func (r *rig) slots(s schedule.Schedule, n int) (out []schedule.Fired) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		out = nil
		for i := range n {
			at := start.Add(time.Duration(i) * time.Minute)
			f, err := r.fires.StartFire(tx, schedule.NewFire{Schedule: s, Origin: schedule.OriginSlot, SlotAt: &at, ScheduledFor: at,
				FireID: schedule.SlotFireID(s.ID, at)})
			if err != nil {
				return err
			}
			out = append(out, f)
		}
		return nil
	})
	return out
}

func (r *rig) start(n schedule.NewFire) (out schedule.Fired) {
	r.t.Helper()
	r.update(func(tx *store.Tx) (err error) { out, err = r.fires.StartFire(tx, n); return err })
	return out
}

func (r *rig) get(id uuid.UUID) fire.Fire {
	r.t.Helper()
	f, err := r.fires.Get(context.Background(), r.project.No, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// want checks the status of a fire.
func (r *rig) want(id uuid.UUID, s fire.Status) fire.Fire {
	r.t.Helper()
	f := r.get(id)
	if f.Status != s {
		r.t.Fatalf("fire %s is %s, want %s", id, f.Status, s)
	}
	return f
}

// answer is the result that the agent of a command sends.
func (r *rig) answer(commandID uuid.UUID, payload string) {
	r.t.Helper()
	doc, err := rawjson.Parse([]byte(payload))
	if err != nil {
		r.t.Fatal(err)
	}
	defer doc.Release()
	r.update(func(tx *store.Tx) error {
		cmd, err := tx.CommandByID(r.project.No, commandID)
		if err != nil {
			return err
		}
		p := agent.Peer{ProjectNo: cmd.ProjectNo, ProjectID: cmd.ProjectID, AgentNo: cmd.AgentNo, AgentID: cmd.AgentID, Transport: agent.WebSocket}
		return r.cmds.ApplyResult(tx, p, commandID.String(), doc.Root())
	})
}

func (r *rig) command(id uuid.UUID) agent.Command {
	r.t.Helper()
	c, err := r.cmds.Get(context.Background(), r.project.No, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// run starts the replay worker; it ends with the test.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.fires.Run(ctx) }()
	r.t.Cleanup(func() { cancel(); <-done })
}

// await waits until a fire has a status.
func (r *rig) await(id uuid.UUID, s fire.Status) fire.Fire {
	r.t.Helper()
	return r.awaitThat(func() bool { return r.get(id).Status == s }, func() fire.Fire { return r.get(id) })
}

func (r *rig) awaitThat(ok func() bool, then func() fire.Fire) fire.Fire {
	r.t.Helper()
	w := r.hub.Watch(agent.ProjectCommands(r.project.No))
	defer w.Stop()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-w.C():
		case <-deadline:
			r.t.Fatal("it did not come to that")
		}
	}
	return then()
}
