package agent_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

// ingestStart is where the fake clock of these tests stands at first.
var ingestStart = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// applier stands in for Commands.
type applier struct {
	result func(id string) error
	calls  []string
}

func (a *applier) ApplyAck(_ agent.CommandTx, _ agent.Peer, id string, _ rawjson.Value) error {
	a.calls = append(a.calls, "ack "+id)
	return nil
}

func (a *applier) ApplyResult(_ agent.CommandTx, _ agent.Peer, id string, _ rawjson.Value) error {
	a.calls = append(a.calls, "result "+id)
	if a.result != nil {
		return a.result(id)
	}
	return nil
}

// observed records what the Router reported.
type observed struct {
	mu      sync.Mutex
	stored  map[string]int
	ended   []string
	depths  []string
	logged  []string
	dropped []string
	status  int
}

func (o *observed) EventsStored(_ uuid.UUID, engine, kind string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored[engine+" "+kind] += n
}
func (o *observed) TaskEnded(_ uuid.UUID, name, kind string, runtime time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = append(o.ended, fmt.Sprint(name, " ", kind, " ", runtime))
}
func (o *observed) QueueDepth(_ uuid.UUID, engine, queue string, depth int64) {
	o.depths = append(o.depths, fmt.Sprint(engine, " ", queue, " ", depth))
}
func (o *observed) FrameLogged(_ agent.Peer, f agent.Frame) {
	o.logged = append(o.logged, f.Type+" "+string(f.Payload.Raw()))
}
func (o *observed) FrameDropped(_ agent.Peer, typ string, _ error) {
	o.dropped = append(o.dropped, typ)
}
func (o *observed) StatusDropped(agent.Peer) { o.status++ }

// ingestRig is a Router and Records over a real database with one project and one agent.
type ingestRig struct {
	t       testing.TB
	clock   *clock.Fake
	db      *store.DB
	hub     *wake.Hub
	cmds    *applier
	seen    *observed
	router  *agent.Router
	records *agent.Records
	peer    agent.Peer
}

func newIngestRig(t testing.TB, opts ...storetest.Option) *ingestRig {
	t.Helper()
	g := &ingestRig{t: t, clock: clock.NewFake(ingestStart), hub: wake.New(), cmds: &applier{},
		seen: &observed{stored: map[string]int{}}}
	g.db = storetest.Open(t, append(opts, func(o *store.Options) { o.Clock = g.clock })...)
	g.peer = agent.Peer{ProjectNo: 1, ProjectID: uuid.New(), AgentNo: 1, AgentID: uuid.New(), Transport: agent.WebSocket,
		Session: "s", Worker: "w-1"}
	at := ingestStart.UnixMicro()
	g.exec(`INSERT INTO projects (id, slug, name, environment, timezone, retention_days, is_active, default_scheduler_owner,
		created_at, updated_at) VALUES (?, 'one', 'One', 'production', 'UTC', 10, 1, 'z', ?, ?)`, g.peer.ProjectID, at, at)
	g.exec(`INSERT INTO agents (id, project_no, name, token_hash, protocol_version, framework_adapter, engine_adapters,
		scheduler_adapters, capabilities, state, host, created_at, updated_at)
		VALUES (?, 1, 'a', ?, '0', 'unknown', '[]', '[]', '{}', 'unknown', '{}', ?, ?)`, g.peer.AgentID,
		strings.Repeat("0", 64), at, at)
	g.exec(`INSERT INTO agent_workers (id, agent_no, worker_id, framework, state, last_seen_at, last_connect_at, created_at,
		updated_at) VALUES (?, 1, 'w-1', 'bare', 'offline', 0, 0, ?, ?)`, uuid.New(), at, at)
	var err error
	g.router, err = agent.NewRouter(store.Bind[agent.RouterTx, agent.RouterReadTx](g.db), g.cmds, g.hub,
		agent.RouterOptions{Clock: g.clock, Observer: g.seen, ExtraPatterns: []string{"^iban$"}})
	if err != nil {
		t.Fatal(err)
	}
	g.records, err = agent.NewRecords(store.Bind[agent.RecordsTx, agent.RecordsReadTx](g.db),
		agent.RecordsOptions{RetentionDays: 30, Clock: g.clock})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *ingestRig) exec(query string, args ...any) {
	g.t.Helper()
	if err := g.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
}

// text returns the columns of the rows of a query, as one line.
func (g *ingestRig) text(query string, args ...any) string {
	g.t.Helper()
	var out []string
	if err := g.db.View(context.Background(), func(tx *store.ReadTx) error {
		rows, err := tx.Query(query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var s *string
			if err := rows.Scan(&s); err != nil {
				return err
			}
			if s == nil {
				out = append(out, "NULL")
			} else {
				out = append(out, *s)
			}
		}
		return rows.Err()
	}); err != nil {
		g.t.Fatal(err)
	}
	return strings.Join(out, " | ")
}

func (g *ingestRig) want(name, got, want string) {
	g.t.Helper()
	if got != want {
		g.t.Errorf("%s:\n got %s\nwant %s", name, got, want)
	}
}

func frame(t testing.TB, typ, id, payload string) agent.Frame {
	t.Helper()
	doc, err := rawjson.Parse([]byte(payload))
	if err != nil {
		t.Fatalf("%s: %v", payload, err)
	}
	return agent.Frame{Type: typ, ID: id, At: ingestStart, Payload: doc.Root()}
}

// batch is an event_batch of events.
func batch(t testing.TB, events ...string) agent.Frame {
	t.Helper()
	return frame(t, agent.FrameEventBatch, "ev", `{"events":[`+strings.Join(events, ",")+`]}`)
}

// event is one event, offset from ingestStart.
func event(kind, taskID string, offset time.Duration, data string) string {
	return fmt.Sprintf(`{"id":%q,"kind":%q,"engine":"celery","task_id":%q,"occurred_at":%q,"data":%s}`, uuid.NewString(), kind,
		taskID, ingestStart.Add(offset).Format(time.RFC3339Nano), data)
}

func (g *ingestRig) dispatch(frames ...agent.Frame) []agent.Outcome {
	g.t.Helper()
	return g.router.Dispatch(context.Background(), g.peer, frames)
}

// one dispatches a frame and returns "verdict received/accepted".
func (g *ingestRig) one(f agent.Frame) string {
	g.t.Helper()
	o := g.dispatch(f)[0]
	return fmt.Sprintf("%d %d/%d", o.Verdict, o.Received, o.Accepted)
}
