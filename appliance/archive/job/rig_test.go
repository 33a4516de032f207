package job_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

const token = "a token of this test that is long enough"

// rig is control without sockets: a real database, registry and queue, and a job engine whose background work the test
// runs by hand (run).
type rig struct {
	t      testing.TB
	db     *store.DB
	clk    *clock.Fake
	hub    *wake.Hub
	reg    *registry.Registry
	queue  *command.Queue
	eng    *job.Engine
	before storetest.Failpoint
	after  storetest.Failpoint
	seen   *counts
	checks *preflight
	stor   *storage
	routes *routes
	routeN int64
	epoch  uuid.UUID
	nas    *actor // source
	vault  *actor // target
}

// counts is an observer.
type counts struct {
	mu       sync.Mutex
	accepted map[pb.JobEventKind]int
	refused  []pb.ErrorCode
	dropped  []string
	repeated int
	aside    int
	rows     []string
	failed   []string
}

func (c *counts) Accepted(k pb.JobEventKind) { c.lock(func() { c.accepted[k]++ }) }
func (c *counts) Repeated()                  { c.lock(func() { c.repeated++ }) }
func (c *counts) SetAside()                  { c.lock(func() { c.aside++ }) }
func (c *counts) Dropped(why string)         { c.lock(func() { c.dropped = append(c.dropped, why) }) }
func (c *counts) Refused(e pb.ErrorCode)     { c.lock(func() { c.refused = append(c.refused, e) }) }
func (c *counts) Moved(_, _ pb.JobState)     {}
func (c *counts) Decided(row string)         { c.lock(func() { c.rows = append(c.rows, row) }) }
func (c *counts) Failed(what string, err error) {
	c.lock(func() { c.failed = append(c.failed, what+": "+err.Error()) })
}
func (c *counts) lock(fn func()) { c.mu.Lock(); defer c.mu.Unlock(); fn() }

// preflight passes with the definition of the preview, or with what the test says.
type preflight struct {
	mu    sync.Mutex
	out   []job.Outcome
	calls []job.Check
	def   *pb.JobDefinition
}

func (p *preflight) Check(_ context.Context, c job.Check) (job.Outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
	if len(p.out) > 0 {
		out := p.out[0]
		p.out = p.out[1:]
		return out, nil
	}
	def := proto.CloneOf(p.def)
	if c.Request.Operation == pb.JobOperation_JOB_OPERATION_EVICT && def.GetOperation() != c.Request.Operation {
		def = evictOf(def, c.Commit)
	}
	return job.Outcome{Definition: def}, nil
}

type storage struct {
	mu    sync.Mutex
	room  bool
	asked []job.RoomRequest
}

func (s *storage) Room(_ context.Context, r job.RoomRequest) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	return s.room, nil
}

type routes struct {
	mu         sync.Mutex
	ready      bool
	reconciled bool
}

func (r *routes) Ready(job.ReadTx, int64) (bool, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready, "the test says so", nil
}

func (r *routes) Reconciled(job.ReadTx, int64, int64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reconciled, nil
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewFake(start), checks: &preflight{}, stor: &storage{}, routes: &routes{ready: true, reconciled: true},
		seen: &counts{accepted: map[pb.JobEventKind]int{}}, epoch: uuid.New()}
	r.db = storetest.Open(t, r.options)
	r.boot()
	r.nas = r.actor("nas", pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE)
	r.vault = r.actor("vault", pb.ParticipantRole_PARTICIPANT_ROLE_TARGET)
	r.nas.register()
	r.vault.register()
	r.route()
	return r
}

func (r *rig) options(o *store.Options) {
	o.Clock = r.clk
	o.Hooks.BeforeCommit = func([]string) error { return r.before.Pass() }
	o.Hooks.AfterCommitBeforeReply = func([]string) error { return r.after.Pass() }
}

// boot makes the parts on the database, as a start of the process does.
func (r *rig) boot() {
	r.t.Helper()
	r.hub = wake.New()
	r.reg = registry.New(store.Bind[registry.Tx, registry.ReadTx](r.db), registry.Options{Tokens: []registry.Digest{
		registry.DigestOf([]byte(token))}, ServerID: uuid.New(), ServerEpoch: r.epoch, Clock: r.clk, Hub: r.hub})
	r.queue = command.NewQueue(store.Bind[command.Tx, command.ReadTx](r.db), r.reg, command.Options{Clock: r.clk, Hub: r.hub})
	r.eng = job.New(job.Parts{Store: store.Bind[job.Tx, job.ReadTx](r.db), Commands: r.queue, Daemons: r.reg,
		Audit: audit.New(audit.NewKeys(secret.NewBytes([]byte(strings.Repeat("m", 32))))), Hub: r.hub, Preflight: r.checks,
		Storage: r.stor, Routes: r.routes}, job.Options{Clock: r.clk, Observer: r.seen, KeepProgress: 100})
	r.reg.SetHooks(registry.Hooks{OnRegister: r.eng.OnRegister, OnOffline: []func(registry.Tx, int64) error{r.eng.OnOffline}})
	for _, k := range job.Kinds() {
		r.queue.Handle(k, r.eng)
	}
	r.ok("start", r.reg.Start(r.ctx()))
}

// restart ends the process and starts the next one on the same file. Connections are gone.
func (r *rig) restart() {
	r.t.Helper()
	r.db = storetest.Reopen(r.t, r.db, r.options)
	r.boot()
	for _, a := range []*actor{r.nas, r.vault} {
		a.sending = nil
	}
}

// run does the engine's background work until it rests.
func (r *rig) run() {
	r.t.Helper()
	r.ok("work", r.eng.Work(r.ctx()))
}

func (r *rig) ctx() context.Context { return r.t.Context() }

func (r *rig) ok(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) wants(what string, err error, code fault.Code, words string) {
	r.t.Helper()
	if fault.CodeOf(err) != code || !strings.Contains(fault.Message(err), words) {
		r.t.Fatalf("%s: %v (%s), want %s with %q", what, err, fault.CodeOf(err), code, words)
	}
}

func (r *rig) exec(query string, args ...any) int64 {
	r.t.Helper()
	var id int64
	r.ok(query, r.db.Update(r.ctx(), "test", func(tx *store.Tx) error {
		res, err := tx.Exec(query, args...)
		id = res.LastInsertID()
		return err
	}))
	return id
}

func (r *rig) number(query string, args ...any) (n int64) {
	r.t.Helper()
	r.ok(query, r.db.View(r.ctx(), func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) }))
	return n
}

// digest is the whole content of the tables of jobs and commands.
func (r *rig) digest() string {
	r.t.Helper()
	h := sha256.New()
	for _, table := range []string{"archive_jobs", "archive_participants", "daemon_commands", "daemon_deliveries",
		"archive_events", "archive_events_aside", "archive_evidence", "archive_reservations", "archive_timeline",
		"archive_alerts", "audit_log", "daemons"} {
		r.ok(table, r.db.View(r.ctx(), func(tx *store.ReadTx) error {
			var columns []string
			rows, err := tx.Query(`SELECT 'quote(' || name || ')' FROM pragma_table_info(?)`, table)
			if err != nil {
				return err
			}
			for rows.Next() {
				var c string
				if err := rows.Scan(&c); err != nil {
					return err
				}
				columns = append(columns, c)
			}
			if rows, err = tx.Query(`SELECT ` + strings.Join(columns, ` || '|' || `) + ` FROM ` + table); err != nil {
				return err
			}
			for rows.Next() {
				var line string
				if err := rows.Scan(&line); err != nil {
					return err
				}
				fmt.Fprintln(h, table, line)
			}
			return rows.Err()
		}))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (r *rig) route() {
	r.t.Helper()
	id := uuid.New()
	r.routeN = r.exec(`INSERT INTO archive_routes (id, name, kind, source_daemon_no, target_daemon_no, route, state, created_at,
		updated_at) VALUES (?, 'way', 10, ?, ?, x'', 30, 1, 1)`, id, r.nas.no(), r.vault.no())
	r.checks.def = r.transferDefinition(id)
}

var hex64 = strings.Repeat("ab", 32)

func (r *rig) transferDefinition(route uuid.UUID) *pb.JobDefinition {
	policies := archive.DefaultPolicies()
	return &pb.JobDefinition{Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, Source: &pb.ResourceRef{
		ClientId: r.nas.id.String(), ResourceId: "film", Identity: &pb.ResourceIdentity{InfohashV1: strings.Repeat("1", 40),
			DisplayName: "Film"}}, TargetClientId: r.vault.id.String(), RouteId: route.String(),
		Requested: &pb.IndexSet{Ranges: []*pb.IndexRange{{First: 0, Last: 2}}}, SourceContentRevision: hex64,
		Baseline:    &pb.TargetBaseline{FilesystemProfile: &pb.FilesystemProfile{CaseSensitive: true}},
		Destination: &pb.Destination{ContentRootId: "films"}, Policies: policies}
}

func evictOf(of *pb.JobDefinition, commit *pb.CommitEvidence) *pb.JobDefinition {
	def := proto.CloneOf(of)
	def.Operation, def.RouteId, def.Baseline, def.Destination = pb.JobOperation_JOB_OPERATION_EVICT, "", nil, nil
	def.ParentJobId = commit.GetJobId()
	def.Eviction = &pb.EvictionBasis{TargetCommit: commit, MaxVerifyAge: durationpb.New(24 * time.Hour)}
	return def
}

func (r *rig) request() job.Request {
	def := r.checks.def
	route, _ := uuid.Parse(def.RouteId)
	return job.Request{Operation: def.Operation, Source: r.nas.id, Target: r.vault.id, ResourceID: def.Source.ResourceId, Route: route,
		Destination: def.Destination}
}

// preview stores a preview that passed.
func (r *rig) preview(req job.Request, def *pb.JobDefinition) uuid.UUID {
	r.t.Helper()
	id := uuid.New()
	raw, err := json.Marshal(req)
	r.ok("request", err)
	draft, err := proto.Marshal(def)
	r.ok("draft", err)
	r.exec(`INSERT INTO archive_previews (id, operation, request, state, draft, created_at) VALUES (?, ?, ?, 'passed', ?, 1)`, id,
		int32(req.Operation), string(raw), draft)
	return id
}

// begin starts a TRANSFER of a fresh preview and runs its preflight.
func (r *rig) begin() uuid.UUID {
	r.t.Helper()
	id, err := r.eng.Start(r.ctx(), r.preview(r.request(), r.checks.def), job.StartOptions{}, job.By{Principal: "ann"})
	r.ok("start", err)
	r.run()
	return id
}

func (r *rig) show(id uuid.UUID) job.Detail {
	r.t.Helper()
	d, err := r.eng.Show(r.ctx(), id)
	r.ok("show", err)
	return d
}

func (r *rig) explain(id uuid.UUID) (job.Explanation, error) {
	d, err := r.eng.Show(r.ctx(), id)
	return d.Explanation, err
}

// in fails the test unless the job is in the state, and for WAITING for the reason.
func (r *rig) in(id uuid.UUID, state pb.JobState, wait ...pb.WaitReason) job.Detail {
	r.t.Helper()
	d := r.show(id)
	if d.State != state || len(wait) > 0 && d.Wait != wait[0] {
		r.t.Fatalf("job is %v %v (kept %v, error %v), want %v %v\n%s", d.State, d.Wait, d.Kept, d.Error, state, wait, r.story(id))
	}
	return d
}

func (r *rig) story(id uuid.UUID) string {
	var b strings.Builder
	entries, _, err := r.eng.Timeline(r.ctx(), id, "", 500)
	r.ok("timeline", err)
	for _, e := range entries {
		fmt.Fprintf(&b, "%3d %-10s %-10s %-12v %s\n", e.No, e.Daemon, e.Event, e.State, e.Detail)
	}
	return b.String()
}

// assignAll has both daemons accept the job.
func (r *rig) assignAll() {
	r.t.Helper()
	r.nas.accept(r.nas.one(archive.AssignJob))
	r.vault.accept(r.vault.one(archive.AssignJob))
}

// step has a daemon do one step from its command to its end.
func (a *actor) step(id uuid.UUID, step pb.JobStep) {
	a.r.t.Helper()
	c := a.one(archive.ExecuteStep)
	if got := c.GetExecuteStep().GetStep(); got != step {
		a.r.t.Fatalf("step %v, want %v", got, step)
	}
	a.accept(c)
	a.does(id, startedEvent)
	a.does(id, completedEvent)
}

// upTo has the daemons do the steps of a TRANSFER before the one.
func (r *rig) upTo(id uuid.UUID, step pb.JobStep) {
	r.t.Helper()
	r.assignAll()
	for _, s := range archive.Plan(pb.JobOperation_JOB_OPERATION_TRANSFER) {
		if s.Step == step {
			return
		}
		a := r.vault
		if s.Step == pb.JobStep_JOB_STEP_STAGE {
			a = r.nas
		}
		a.step(id, s.Step)
	}
}

const (
	accepted       = pb.AckStatus_ACK_STATUS_ACCEPTED
	leaseNone      = pb.LeaseState_LEASE_STATE_NONE
	leaseOpen      = pb.LeaseState_LEASE_STATE_OPEN
	assigned       = pb.JobState_JOB_STATE_ASSIGNED
	assigning      = pb.JobState_JOB_STATE_ASSIGNING
	preflightState = pb.JobState_JOB_STATE_PREFLIGHT
	running        = pb.JobState_JOB_STATE_RUNNING
	stalled        = pb.JobState_JOB_STATE_STALLED
	waiting        = pb.JobState_JOB_STATE_WAITING
	cancelling     = pb.JobState_JOB_STATE_CANCELLING
	cancelled      = pb.JobState_JOB_STATE_CANCELLED
	manual         = pb.JobState_JOB_STATE_MANUAL
	completed      = pb.JobState_JOB_STATE_COMPLETED
	failed         = pb.JobState_JOB_STATE_FAILED

	startedEvent   = pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED
	progressEvent  = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
	stalledEvent   = pb.JobEventKind_JOB_EVENT_KIND_STALLED
	resumedEvent   = pb.JobEventKind_JOB_EVENT_KIND_RESUMED
	completedEvent = pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED
	failedEvent    = pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED
	cancelledEvent = pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED
	heldEvent      = pb.JobEventKind_JOB_EVENT_KIND_HELD

	stage       = pb.JobStep_JOB_STEP_STAGE
	transfer    = pb.JobStep_JOB_STEP_TRANSFER
	materialize = pb.JobStep_JOB_STEP_MATERIALIZE
	verify      = pb.JobStep_JOB_STEP_VERIFY
	commit      = pb.JobStep_JOB_STEP_COMMIT
	release     = pb.JobStep_JOB_STEP_RELEASE
	purge       = pb.JobStep_JOB_STEP_PURGE
)

// routeChanged tells the engine that the route may be ready.
func (r *rig) routeChanged() {
	r.t.Helper()
	r.ok("route", r.db.Update(r.ctx(), "test", func(tx *store.Tx) error { return r.eng.OnRoute(tx, r.routeN) }))
}

// reopen opens the file of the rig's database again.
func reopen(r *rig, o storetest.Option) *store.DB {
	r.t.Helper()
	return storetest.Reopen(r.t, r.db, o)
}
