package agent_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

// commandRig is the Commands service on a real database with one project, one agent and a clock that stands.
type commandRig struct {
	t        testing.TB
	db       *store.DB
	clock    *clock.Fake
	hub      *wake.Hub
	st       *watchedStore
	presence *knownSessions
	counts   *commandCounts
	cmds     *agent.Commands
	project  agent.Project
	agent    agent.Agent
	by       agent.Principal
}

// watchedStore counts write transactions and lets a test act just before one.
type watchedStore struct {
	agent.Store[agent.CommandTx, agent.CommandReadTx]
	mu      sync.Mutex
	updates int
	views   int
	before  func(op string)
}

func (s *watchedStore) Update(ctx context.Context, op string, fn func(agent.CommandTx) error) error {
	s.mu.Lock()
	s.updates++
	before := s.before
	s.mu.Unlock()
	if before != nil {
		before(op)
	}
	return s.Store.Update(ctx, op, fn)
}

func (s *watchedStore) View(ctx context.Context, fn func(agent.CommandReadTx) error) error {
	s.mu.Lock()
	s.views++
	s.mu.Unlock()
	return s.Store.View(ctx, fn)
}

func (s *watchedStore) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updates
}

type knownSessions struct {
	mu       sync.Mutex
	sessions map[uuid.UUID][]agent.SessionInfo
}

func (k *knownSessions) Sessions(id uuid.UUID) []agent.SessionInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sessions[id]
}

func (k *knownSessions) set(id uuid.UUID, s ...agent.SessionInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sessions[id] = s
}

// commandCounts is an observer that counts.
type commandCounts struct {
	mu                           sync.Mutex
	issued, claimed, redelivered int
	ended, late                  map[agent.Status]int
}

func (c *commandCounts) CommandIssued(uuid.UUID, string) { c.mu.Lock(); c.issued++; c.mu.Unlock() }

func (c *commandCounts) CommandClaimed(_ agent.Transport, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claimed++; again {
		c.redelivered++
	}
}

func (c *commandCounts) CommandEnded(_ uuid.UUID, _ string, s agent.Status) {
	c.mu.Lock()
	c.ended[s]++
	c.mu.Unlock()
}
func (c *commandCounts) CommandLateResult(s agent.Status) { c.mu.Lock(); c.late[s]++; c.mu.Unlock() }

var rigStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newCommandRig(t testing.TB, opts ...storetest.Option) *commandRig {
	t.Helper()
	r := &commandRig{t: t, clock: clock.NewFake(rigStart), hub: wake.New(),
		presence: &knownSessions{sessions: map[uuid.UUID][]agent.SessionInfo{}},
		counts:   &commandCounts{ended: map[agent.Status]int{}, late: map[agent.Status]int{}},
		by:       agent.Principal{Kind: "local", ID: "local", Name: "local", Role: agent.Admin}}
	r.db = storetest.Open(t, append(opts, storetest.Option(func(o *store.Options) { o.Clock = r.clock }))...)
	r.st = &watchedStore{Store: store.Bind[agent.CommandTx, agent.CommandReadTx](r.db)}
	master := secret.NewBytes([]byte("0123456789abcdef0123456789abcdef"))
	r.cmds = agent.NewCommands(r.st, r.presence, audit.New(audit.NewKeys(master)), r.hub, agent.CommandOptions{
		Timeout: time.Minute, RedispatchWindow: time.Minute, RedispatchMinInterval: 10 * time.Second, Clock: r.clock, Observer: r.counts,
		PurgeToken: func(project uuid.UUID, queue string, depth int64) string {
			return secret.PurgeToken(secret.ProjectSecret(master.Reveal(), project), queue, depth)
		}})
	r.project = r.addProject("plant")
	r.agent = r.addAgent(r.project, "worker-1", agent.Online)
	return r
}

func (r *commandRig) setup(fn func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(context.Background(), "set up", fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *commandRig) addProject(slug string) agent.Project {
	p := agent.Project{ID: uuid.New(), Slug: slug, Name: slug, Environment: "production", Timezone: "UTC", RetentionDays: 30, IsActive: true,
		DefaultSchedulerOwner: "z4j-scheduler", CreatedAt: r.clock.Now(), UpdatedAt: r.clock.Now()}
	r.setup(func(tx *store.Tx) (err error) { p.No, err = tx.InsertProject(p); return err })
	return p
}

// addAgent mints an agent in a state, with an unreported inventory.
func (r *commandRig) addAgent(p agent.Project, name string, state agent.State) agent.Agent {
	a := agent.Agent{ID: uuid.New(), ProjectNo: p.No, ProjectID: p.ID, Name: name, ProtocolVersion: "0", FrameworkAdapter: "unknown",
		State: agent.Unknown, Host: []byte("{}"), CreatedAt: r.clock.Now()}
	hash := secret.TokenHash([]byte("x"), name+p.Slug)
	r.setup(func(tx *store.Tx) (err error) {
		if a.No, err = tx.InsertAgent(a, hash); err != nil {
			return err
		}
		return r.setState(tx, a.No, state)
	})
	return a
}

func (r *commandRig) setState(tx *store.Tx, agentNo int64, s agent.State) error {
	_, err := tx.Exec(`UPDATE agents SET state = ?, offline_since = CASE WHEN ? = 'offline' THEN ? END WHERE agent_no = ?`,
		string(s), string(s), r.clock.Now(), agentNo)
	return err
}

// report gives an agent an inventory.
func (r *commandRig) report(a agent.Agent, capabilities map[string][]string) {
	r.t.Helper()
	engines := []string{}
	for e := range capabilities {
		engines = append(engines, e)
	}
	list, _ := json.Marshal(engines)
	caps, _ := json.Marshal(capabilities)
	r.setup(func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE agents SET engine_adapters = ?, capabilities = ?, last_connect_at = ? WHERE agent_no = ?`,
			string(list), string(caps), r.clock.Now(), a.No)
		return err
	})
}

func (r *commandRig) peer(t agent.Transport) agent.Peer {
	return agent.Peer{ProjectNo: r.project.No, ProjectID: r.project.ID, AgentNo: r.agent.No, AgentID: r.agent.ID, Transport: t, Session: "session-" + string(t)}
}

func (r *commandRig) request(action, payload string) agent.IssueRequest {
	return agent.IssueRequest{ProjectNo: r.project.No, AgentID: r.agent.ID, Action: action, Payload: []byte(payload)}
}

func (r *commandRig) issue(action, payload string) agent.Command {
	r.t.Helper()
	got, err := r.cmds.Issue(context.Background(), r.by, r.request(action, payload))
	if err != nil {
		r.t.Fatalf("issue %s: %v", action, err)
	}
	return got.Command
}

// bulk stores n commands in one transaction, for tests of many: pending, or ended now with three transitions each.
func (r *commandRig) bulk(n int, ended bool) (first agent.Command) {
	r.t.Helper()
	r.setup(func(tx *store.Tx) error {
		for i := range n {
			c := agent.Command{ID: uuid.New(), ProjectNo: r.project.No, AgentNo: r.agent.No, Action: "restart_worker", TargetType: "worker",
				Payload: []byte(restartPayload), Status: agent.Pending, IssuedAt: tx.Now(), TimeoutAt: tx.Now().Add(time.Minute)}
			var err error
			if c.No, err = tx.InsertCommand(c); err != nil {
				return err
			}
			if i == 0 {
				first = c
			}
			if !ended {
				continue
			}
			if _, err := tx.InsertDelivery(agent.Delivery{CommandNo: c.No, Transport: agent.WebSocket, ClaimedAt: tx.Now(), Outcome: agent.DeliveryInFlight}); err != nil {
				return err
			}
			for _, event := range []string{agent.EventIssued, agent.EventClaimed, agent.EventCompleted} {
				if err := tx.InsertTransition(c.ProjectNo, agent.Transition{CommandNo: c.No, At: tx.Now(), Event: event, Status: agent.Completed}); err != nil {
					return err
				}
			}
			done, err := c.Complete(nil, tx.Now())
			if err != nil {
				return err
			}
			if _, err := tx.UpdateCommand(c, done); err != nil {
				return err
			}
		}
		return nil
	})
	return first
}

const (
	cancelPayload  = `{"engine":"celery","task_id":"t"}`
	restartPayload = `{"worker_name":"celery@h"}`
)

func (r *commandRig) claim(p agent.Peer, limit int, engines ...string) agent.ClaimResult {
	r.t.Helper()
	res, err := r.cmds.ClaimPending(context.Background(), p, agent.ClaimRequest{Limit: limit, RetryEngines: engines, Redispatch: p.Transport == agent.LongPoll})
	if err != nil {
		r.t.Fatalf("claim: %v", err)
	}
	return res
}

func (r *commandRig) claimOne(p agent.Peer) agent.Claimed {
	r.t.Helper()
	res := r.claim(p, 10)
	if len(res.Claimed) != 1 {
		r.t.Fatalf("claimed %d commands, want 1", len(res.Claimed))
	}
	return res.Claimed[0]
}

// applyFrame applies an ack ("") or a result as the Router would.
func (r *commandRig) applyFrame(p agent.Peer, id, result string) error {
	return r.st.Update(context.Background(), "apply", func(tx agent.CommandTx) error {
		if result == "" {
			return r.cmds.ApplyAck(tx, p, id, rawjson.Value{})
		}
		doc, err := rawjson.Parse([]byte(result))
		if err != nil {
			return err
		}
		return r.cmds.ApplyResult(tx, p, id, doc.Root())
	})
}

func (r *commandRig) apply(p agent.Peer, id, result string) {
	r.t.Helper()
	if err := r.applyFrame(p, id, result); err != nil {
		r.t.Fatalf("apply %q: %v", result, err)
	}
}

func (r *commandRig) get(c agent.Command) agent.Command {
	r.t.Helper()
	got, err := r.cmds.Get(context.Background(), r.project.No, c.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

// outcomes is the ledger of a command in short.
func (r *commandRig) outcomes(c agent.Command) (out []agent.DeliveryOutcome) {
	r.t.Helper()
	ds, err := r.cmds.Deliveries(context.Background(), r.project.No, c.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	for i, d := range ds {
		if d.Attempt != i+1 {
			r.t.Errorf("attempt %d is numbered %d", i+1, d.Attempt)
		}
		out = append(out, d.Outcome)
	}
	return out
}

// events is the timeline of a command in short.
func (r *commandRig) events(c agent.Command) (out []string) {
	r.t.Helper()
	ts, err := r.cmds.Timeline(context.Background(), r.project.No, c.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, tr := range ts {
		out = append(out, tr.Event)
	}
	return out
}

// audits lists the actions of the audit log.
func (r *commandRig) audits() (out []string) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		rows, err := tx.AuditRows(0, 1000)
		for _, row := range rows {
			out = append(out, row.Action)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// rows counts the rows of a table.
func (r *commandRig) rows(table string) (n int) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		return tx.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// hinted tells whether the watch got a hint.
func hinted(w *wake.Watch) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func wantFault(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Errorf("got %v, want %q", err, code)
	}
}
