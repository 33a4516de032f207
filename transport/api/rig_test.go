package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is where the clock of these tests stands at first.
var start = time.Date(2026, 6, 1, 12, 0, 0, 123456000, time.UTC)

// rig is the surface over the real services on a real database with one project and one agent.
type rig struct {
	t         testing.TB
	clock     *clock.Fake
	db        *store.DB
	hub       *wake.Hub
	directory *agent.Directory
	commands  *agent.Commands
	router    *agent.Router
	records   *agent.Records
	failures  *failure.Service
	schedules *schedule.Schedules
	sessions  sessions
	rooms     *roomRig
	api       *API
	handler   http.Handler

	project agent.Project
	agent   agent.Agent
	peer    agent.Peer
	admin   string // a global admin's key
}

type sessions struct {
	mu   sync.Mutex
	live []agent.SessionInfo
}

func (s *sessions) Sessions(uuid.UUID) []agent.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

type fixedStatus struct{}

func (fixedStatus) Status(context.Context) (Status, error) {
	return Status{Version: "1.2.3", StartedAt: start, StorePath: "/data/signalbox.db", StoreBytes: 4096, SchemaVersion: 1,
		WebSockets: 2, LongPolls: 3}, nil
}

func newRig(t testing.TB, change ...func(*Options)) *rig {
	t.Helper()
	g := &rig{t: t, clock: clock.NewFake(start), hub: wake.New()}
	g.db = storetest.Open(t, func(o *store.Options) { o.Clock = g.clock })
	master := agent.SecretSet{Current: secret.NewBytes(bytes.Repeat([]byte{7}, 32))}
	log := audit.New(master.AuditKeys())
	g.directory = agent.NewDirectory(store.Bind[agent.DirectoryTx, agent.DirectoryReadTx](g.db), master, log, g.hub,
		agent.DirectoryOptions{})
	g.commands = agent.NewCommands(store.Bind[agent.CommandTx, agent.CommandReadTx](g.db), &g.sessions, log, g.hub,
		agent.CommandOptions{Timeout: time.Minute, RedispatchWindow: 30 * time.Second, RedispatchMinInterval: 5 * time.Second,
			Clock: g.clock})
	var err error
	recorder := failure.NewRecorder(failure.RecorderOptions{})
	g.router, err = agent.NewRouter(store.Bind[agent.RouterTx, agent.RouterReadTx](g.db), g.commands, g.hub,
		agent.RouterOptions{Clock: g.clock, OnFailure: func(tx agent.RouterTx, failed []agent.FailedTask) error {
			_, err := recorder.Record(tx.(*store.Tx), failed)
			return err
		}})
	g.must(err)
	g.failures = failure.NewService(store.Bind[failure.ServiceTx, failure.ReadTx](g.db), log,
		failure.ServiceOptions{RetentionDays: 30, Clock: g.clock})
	g.records, err = agent.NewRecords(store.Bind[agent.RecordsTx, agent.RecordsReadTx](g.db),
		agent.RecordsOptions{RetentionDays: 30, Clock: g.clock})
	g.must(err)
	o := Options{DefaultPage: 3, MaxPage: 5, Epoch: "0123456789abcdef", KnownAgentVersion: "1.13.0", Clock: g.clock,
		Log: zerolog.Nop()}
	for _, fn := range change {
		fn(&o)
	}
	fires := fire.New(store.Bind[fire.Tx, fire.ReadTx](g.db), g.commands, &g.sessions, log, g.hub,
		fire.Options{Retention: time.Hour, ReplayInterval: time.Minute, Clock: g.clock})
	g.schedules = schedule.NewSchedules(store.Bind[schedule.Tx, schedule.ReadTx](g.db), fires, g.commands, log, g.hub,
		schedule.Options{Clock: g.clock, TriggerEvery: 5 * time.Second})
	g.api = New(Services{Directory: g.directory, Commands: g.commands, Records: g.records, Failures: g.failures, Schedules: g.schedules, Fires: fires,
		Audit:    BindAudit(log, store.Bind[audit.PruneTx, audit.ReadTx](g.db)),
		Presence: &g.sessions, System: fixedStatus{}, Upkeep: g.db, Hub: g.hub, Rooms: g.buildRooms(log),
		Notifications: g.buildNotify(log)}, o)
	mux := http.NewServeMux()
	g.api.Routes(mux)
	g.handler = transport.Front{Log: zerolog.Nop()}.Wrap(transport.Mux(mux))
	g.seed()
	return g
}

func (g *rig) seed() {
	ctx, root := context.Background(), agent.LocalPrincipal()
	var err error
	g.project, err = g.directory.CreateProject(ctx, root, agent.NewProject{Slug: "one", Name: "One"})
	g.must(err)
	_, err = g.directory.CreateProject(ctx, root, agent.NewProject{Slug: "two", Name: "Two"})
	g.must(err)
	m, err := g.directory.MintAgent(ctx, root, "one", "worker-1")
	g.must(err)
	g.agent = m.Agent
	g.peer = agent.Peer{ProjectNo: g.project.No, ProjectID: g.project.ID, AgentNo: g.agent.No, AgentID: g.agent.ID,
		Transport: agent.WebSocket, Session: "s-1"}
	g.admin = g.key(agent.NewAPIKey{Role: agent.Admin})
}

// online lets the agent say hello.
func (g *rig) online() {
	g.t.Helper()
	caps := []string{"retry_task", "cancel_task", "requeue_dead_letter", "bulk_retry", "retry_by_reference_v1"}
	_, err := g.directory.MarkOnline(context.Background(), g.peer, agent.Hello{ProtocolVersion: "2", AgentVersion: "1.13.2",
		Framework: "bare", Engines: []string{"celery"}, Capabilities: map[string][]string{"celery": caps},
		Host: []byte(`{"name":"box-1"}`)})
	g.must(err)
	g.sessions.mu.Lock()
	g.sessions.live = []agent.SessionInfo{{Transport: agent.WebSocket, Session: "s-1", Remote: "192.0.2.7",
		ConnectedAt: start, LastFrameAt: start, RetryEngines: []string{"celery"}}}
	g.sessions.mu.Unlock()
}

// key makes an API key and returns it.
func (g *rig) key(n agent.NewAPIKey) string {
	g.t.Helper()
	n.Name = "key " + string(n.Role)
	_, text, err := g.directory.CreateAPIKey(context.Background(), agent.LocalPrincipal(), n)
	g.must(err)
	return text.Reveal()
}

func (g *rig) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// answer is a response in full.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request with a key, "" for none.
func (g *rig) do(key, method, path, body string) answer {
	g.t.Helper()
	r := httptest.NewRequest(method, Prefix+path, strings.NewReader(body))
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	w := httptest.NewRecorder()
	g.handler.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

// ok sends a request of the admin, which must succeed with the status, and decodes its answer.
func (g *rig) ok(status int, method, path, body string, out any) answer {
	g.t.Helper()
	a := g.do(g.admin, method, path, body)
	if a.status != status {
		g.t.Fatalf("%s %s: %d, want %d: %s", method, path, a.status, status, a.body)
	}
	if out != nil {
		g.must(json.Unmarshal([]byte(a.body), out))
	}
	return a
}

// events lets the agent report tasks with these ids, one event each.
func (g *rig) events(kind string, ids ...string) {
	g.t.Helper()
	var list []string
	for i, id := range ids {
		list = append(list, fmt.Sprintf(`{"id":%q,"kind":%q,"engine":"celery","task_id":%q,"occurred_at":%q,"data":{"task_name":"mail.send",
			"queue":"mail","args":[1.50,"<b>"],"kwargs":{}}}`, uuid.NewString(), kind, id,
			g.clock.Now().Add(time.Duration(i)*time.Millisecond).Format(time.RFC3339Nano)))
	}
	doc, err := rawjson.Parse([]byte(`{"events":[` + strings.Join(list, ",") + `]}`))
	g.must(err)
	out := g.router.Dispatch(context.Background(), g.peer,
		[]agent.Frame{{Type: agent.FrameEventBatch, ID: "f", At: g.clock.Now(), Payload: doc.Root()}})
	if out[0].Verdict != agent.Durable || out[0].Accepted != len(ids) {
		g.t.Fatalf("events: %+v", out[0])
	}
}

// row is what these tests read of the rows of any list.
type row struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Action string `json:"action"`
}

// issue asks for a command and returns its id.
func (g *rig) issue(taskID string) uuid.UUID {
	g.t.Helper()
	var c row
	g.ok(http.StatusAccepted, "POST", "/projects/one/commands/cancel-task",
		fmt.Sprintf(`{"agent_id":%q,"engine":"celery","task_id":%q}`, g.agent.ID, taskID), &c)
	return uuid.MustParse(c.ID)
}

// state is every row of the database but the last use of keys, for comparing before and after.
func (g *rig) state() string {
	g.t.Helper()
	var b strings.Builder
	g.must(g.db.View(context.Background(), func(tx *store.ReadTx) error {
		for _, q := range []string{"SELECT group_concat(slug || name || updated_at || is_active) FROM projects",
			"SELECT group_concat(name || state || coalesce(revoked_at, '')) FROM agents",
			"SELECT group_concat(name || role || coalesce(revoked_at, '')) FROM api_keys",
			"SELECT group_concat(action || status || timeout_at) FROM commands",
			"SELECT group_concat(name || role || coalesce(disabled_at, '') || coalesce(password_hash, '')) FROM people",
			"SELECT group_concat(name || key_hash || coalesce(policy, '')) FROM room_agents",
			"SELECT group_concat(name || description || last_position || coalesce(archived_at, '') || cast_revision) FROM rooms",
			"SELECT count(*) || '' FROM room_links", "SELECT count(*) || '' FROM room_people", "SELECT count(*) || '' FROM registration_keys",
			"SELECT count(*) || '' FROM tasks", "SELECT count(*) || '' FROM events", "SELECT count(*) || '' FROM audit_log"} {
			var s *string
			if err := tx.QueryRow(q).Scan(&s); err != nil {
				return err
			}
			fmt.Fprintln(&b, orEmpty(s))
		}
		return nil
	}))
	return b.String()
}

// serve makes a server of the rig, for answers that do not end by themselves.
func (g *rig) serve() *httptest.Server {
	s := httptest.NewServer(g.handler)
	g.t.Cleanup(s.Close)
	return s
}

func mustPrefixes(t testing.TB, texts ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
