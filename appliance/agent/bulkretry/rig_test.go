package bulkretry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const commandTimeout = time.Minute

// rig is Service and Commands on a real database, with one project, one agent, a clock that stands, and what the agent
// knows: that outlives a death of the server.
type rig struct {
	t       testing.TB
	db      *store.DB
	clock   *clock.Fake
	hub     *wake.Hub
	cmds    *agent.Commands
	service *bulkretry.Service
	step    *bulkretry.Stepper
	live    sessions
	project agent.Project
	worker  agent.Agent
	opts    bulkretry.Options
	options []storetest.Option

	retried map[string]int // by task: how often the agent was told to retry it
	owed    []answer       // results that the server has not taken yet, oldest first
	refuse  map[string]bool
}

type answer struct {
	command, task string
	ok            bool
}

type sessions map[uuid.UUID][]agent.SessionInfo

func (s sessions) Sessions(id uuid.UUID) []agent.SessionInfo { return s[id] }

var operator = agent.Principal{ID: "olga", Name: "olga", Role: agent.Operator}

func newRig(t testing.TB, options ...storetest.Option) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(start), live: sessions{}, retried: map[string]int{}, refuse: map[string]bool{}}
	r.opts = bulkretry.Options{MaxInFlight: 2, ParentTimeout: 15 * time.Minute, Scan: time.Second, ScanBatch: 10, ConfirmAbove: 100,
		Clock: r.clock, Trouble: func(op string, err error) { t.Logf("%s: %v", op, err) }}
	r.options = append(options, func(o *store.Options) { o.Clock = r.clock })
	r.db = storetest.Open(t, r.options...)
	r.project = agent.Project{ID: uuid.New(), Slug: "plant", Name: "plant", Environment: "production", Timezone: "UTC", RetentionDays: 30,
		IsActive: true, DefaultSchedulerOwner: "z4j-scheduler", CreatedAt: start, UpdatedAt: start}
	r.update(func(tx *store.Tx) (err error) { r.project.No, err = tx.InsertProject(r.project); return err })
	r.worker = r.agent("a")
	r.connect(r.worker)
	r.build()
	return r
}

// build makes the services, as a start of the appliance does.
func (r *rig) build() {
	if r.step != nil {
		r.step.Close()
	}
	r.hub = wake.New()
	log := audit.New(audit.NewKeys(secret.NewBytes([]byte("0123456789abcdef0123456789abcdef"))))
	r.cmds = agent.NewCommands(store.Bind[agent.CommandTx, agent.CommandReadTx](r.db), r.live, log, r.hub, agent.CommandOptions{
		Timeout: commandTimeout, RedispatchWindow: commandTimeout, RedispatchMinInterval: 10 * time.Second, Clock: r.clock})
	r.service = bulkretry.New(store.Bind[bulkretry.Tx, bulkretry.ReadTx](r.db), r.cmds, r.hub, r.opts)
	r.service.SetSlice(2)
	r.step = bulkretry.NewStepper(r.service)
}

// restart is a death of the server and its next start. What the agent owes it still owes.
func (r *rig) restart() {
	r.t.Helper()
	r.db = storetest.Reopen(r.t, r.db, r.options...)
	r.build()
	if _, err := r.service.Recover(context.Background()); err != nil {
		r.t.Fatal(err)
	}
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

// agent mints an agent that reports to retry tasks of celery.
func (r *rig) agent(name string) agent.Agent {
	r.t.Helper()
	a := agent.Agent{ID: uuid.New(), ProjectNo: r.project.No, ProjectID: r.project.ID, Name: name, ProtocolVersion: "0",
		FrameworkAdapter: "unknown", State: agent.Unknown, Host: []byte("{}"), CreatedAt: r.clock.Now()}
	caps, _ := json.Marshal(map[string][]string{"celery": {"retry_task", "retry_by_reference_v1"}})
	r.update(func(tx *store.Tx) (err error) {
		if a.No, err = tx.InsertAgent(a, secret.TokenHash([]byte("x"), name)); err != nil {
			return err
		}
		_, err = tx.Exec(`UPDATE agents SET engine_adapters = '["celery"]', capabilities = ?, last_connect_at = ?, state = 'online',
			last_seen_at = ? WHERE agent_no = ?`, string(caps), tx.Now(), tx.Now(), a.No)
		return err
	})
	return a
}

func (r *rig) connect(a agent.Agent) {
	r.live[a.ID] = []agent.SessionInfo{{Transport: agent.WebSocket, Session: "s", RetryEngines: []string{"celery"}}}
}

func (r *rig) disconnect(a agent.Agent) { delete(r.live, a.ID) }

// fail stores failed tasks, or lets them fail again, at the clock's time.
func (r *rig) fail(ids ...string) {
	r.t.Helper()
	r.failAs("mail.send", ids...)
}

func (r *rig) failAs(name string, ids ...string) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		for _, id := range ids {
			var known int
			if err := tx.QueryRow(`SELECT count(*) FROM tasks WHERE task_id = ?`, id).Scan(&known); err != nil {
				return err
			}
			if known == 0 {
				row, err := uuid.NewV7()
				if err != nil {
					return err
				}
				if _, err := tx.Exec(`INSERT INTO tasks (id, project_no, engine, task_id, name, queue, state, priority, created_at, updated_at)
					VALUES (?, ?, 'celery', ?, ?, 'mail', 'failure', 'normal', ?, ?)`, row, r.project.No, id, name, tx.Now(), tx.Now()); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(`UPDATE tasks SET state = 'failure', finished_at = ?, updated_at = ? WHERE task_id = ?`, tx.Now(), tx.Now(),
				id); err != nil {
				return err
			}
		}
		return nil
	})
}

func taskIDs(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("t-%d", i+1))
	}
	return ids
}

// request asks to retry every failed task under a key; "" is none.
func (r *rig) request(key string) bulkretry.Request {
	q := bulkretry.Request{ProjectNo: r.project.No, ProjectID: r.project.ID, Max: bulkretry.DefaultMax,
		Filter: bulkretry.Filter{Engine: "celery", State: agent.TaskFailure}}
	if key != "" {
		q.IdempotencyKey = &key
	}
	return q
}

func (r *rig) start(q bulkretry.Request) bulkretry.BulkRetry {
	r.t.Helper()
	s, err := r.service.Start(context.Background(), operator, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.BulkRetry
}

func (r *rig) get(b bulkretry.BulkRetry) bulkretry.BulkRetry {
	r.t.Helper()
	b, err := r.service.Get(context.Background(), r.project.No, b.Parent.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) turn() {
	r.t.Helper()
	if err := r.step.Turn(context.Background(), true); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) peer() agent.Peer {
	return agent.Peer{ProjectNo: r.project.No, ProjectID: r.project.ID, AgentNo: r.worker.No, AgentID: r.worker.ID,
		Transport: agent.WebSocket, Session: "s"}
}

// claim hands the agent what waits for it. What it is given it does at once, and owes the result.
func (r *rig) claim() (n int, err error) {
	res, err := r.cmds.ClaimPending(context.Background(), r.peer(), agent.ClaimRequest{Limit: 50, RetryEngines: []string{"celery"}})
	for _, c := range res.Claimed {
		if c.Command.Action != "retry_task" {
			r.t.Errorf("the agent was given %s", c.Command.Action)
		}
		task := (*c.Command.TargetID)[len("celery:"):]
		r.retried[task]++
		r.owed = append(r.owed, answer{c.Command.ID.String(), task, !r.refuse[task]})
	}
	return len(res.Claimed), err
}

// pay sends the oldest result that is owed; one that the server did not take is owed still.
func (r *rig) pay() error {
	a := r.owed[0]
	payload := `{"status":"success","result":{"new_task_id":"n"}}`
	if !a.ok {
		payload = `{"status":"failed","error":"no such task"}`
	}
	doc, err := rawjson.Parse([]byte(payload))
	if err != nil {
		return err
	}
	defer doc.Release()
	err = r.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		return r.cmds.ApplyResult(tx, r.peer(), a.command, doc.Root())
	})
	if err == nil {
		r.owed = r.owed[1:]
	}
	return err
}

// work turns, claims and pays until nothing moves any more.
func (r *rig) work() {
	r.t.Helper()
	for moved := true; moved; {
		r.turn()
		n, err := r.claim()
		if err != nil {
			r.t.Fatal(err)
		}
		moved = n+len(r.owed) > 0
		for len(r.owed) > 0 {
			if err := r.pay(); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// sweep lets time pass and ends what it is over for.
func (r *rig) sweep(d time.Duration) error {
	r.clock.Advance(d)
	_, err := r.cmds.SweepTimeouts(context.Background())
	return err
}
