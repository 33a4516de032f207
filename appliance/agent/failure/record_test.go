package failure_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/store/storetest"
)

var start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

var ctx = context.Background()

// rig is a Recorder and a Service over a real database with two projects.
type rig struct {
	t        testing.TB
	clock    *clock.Fake
	db       *store.DB
	recorder *failure.Recorder
	service  *failure.Service
	audit    *audit.Log
	overflow []uuid.UUID
	projects [2]uuid.UUID
}

func newRig(t testing.TB, most int) *rig {
	t.Helper()
	g := &rig{t: t, clock: clock.NewFake(start), projects: [2]uuid.UUID{uuid.New(), uuid.New()}}
	g.db = storetest.Open(t, func(o *store.Options) { o.Clock = g.clock })
	for i, id := range g.projects {
		g.exec(`INSERT INTO projects (id, slug, name, environment, timezone, retention_days, is_active, default_scheduler_owner,
			created_at, updated_at) VALUES (?, ?, 'One', 'production', 'UTC', ?, 1, 'z', ?, ?)`, id, fmt.Sprint("p-", i), 10*(i+1), start, start)
	}
	g.exec(`INSERT INTO agents (id, project_no, name, token_hash, protocol_version, framework_adapter, engine_adapters,
		scheduler_adapters, capabilities, state, host, created_at, updated_at)
		VALUES (?, 1, 'a', ?, '0', 'unknown', '[]', '[]', '{}', 'unknown', '{}', ?, ?)`, uuid.New(), strings.Repeat("0", 64), start, start)
	g.recorder = failure.NewRecorder(failure.RecorderOptions{MaxGroups: most,
		Overflow: func(id uuid.UUID, _ int) { g.overflow = append(g.overflow, id) }})
	g.audit = audit.New(audit.NewKeys(secret.NewBytes(bytes.Repeat([]byte{7}, 32))))
	g.service = failure.NewService(store.Bind[failure.ServiceTx, failure.ReadTx](g.db), g.audit,
		failure.ServiceOptions{RetentionDays: 30, Clock: g.clock})
	return g
}

func (g *rig) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) exec(query string, args ...any) {
	g.t.Helper()
	g.must(g.db.Update(ctx, "test", func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}))
}

// task is a failed task of the first project, at the clock's time.
func (g *rig) task(name, exception string) agent.FailedTask {
	return agent.FailedTask{ProjectNo: 1, ProjectID: g.projects[0], AgentNo: 1, EventID: uuid.New(), Engine: "celery",
		TaskID: uuid.NewString(), TaskName: name, Exception: exception, OccurredAt: g.clock.Now(), ReceivedAt: g.clock.Now()}
}

func (g *rig) record(f agent.FailedTask) failure.Group {
	g.t.Helper()
	return *g.recordAll(f)[0]
}

// recordAll stores the events of failures and records them, in one transaction.
func (g *rig) recordAll(failed ...agent.FailedTask) (out []*failure.Group) {
	g.t.Helper()
	g.must(g.db.Update(ctx, "record", func(tx *store.Tx) error {
		for i := range failed {
			f := &failed[i]
			ev := agent.NewEvent{ID: f.EventID, ProjectNo: f.ProjectNo, AgentNo: 1, Engine: f.Engine, TaskID: f.TaskID,
				Kind: "task.failed", OccurredAt: f.OccurredAt, Payload: "{}"}
			if added, err := tx.InsertEvent(&ev); err != nil || !added {
				return fmt.Errorf("event %d: %v %w", i, added, err)
			}
			f.EventNo = ev.No
		}
		var err error
		out, err = g.recorder.Record(tx, failed)
		return err
	}))
	return out
}

func (g *rig) show(id uuid.UUID) (failure.Group, []failure.Failure) {
	g.t.Helper()
	group, latest, err := g.service.Show(ctx, 1, id, 100)
	g.must(err)
	return group, latest
}

func (g *rig) set(id uuid.UUID, to failure.State) failure.Group {
	g.t.Helper()
	group, err := g.service.SetState(ctx, agent.LocalPrincipal(), 1, id, to)
	g.must(err)
	return group
}

func TestRecordCounts(t *testing.T) {
	t.Parallel()
	g := newRig(t, 0)
	first := g.task("mail.send", "SMTPError: no 1")
	first.Traceback = "Traceback (most recent call last):\n  File \"/a/b.py\", line 1, in f\nSMTPError: no 1\n"
	a := g.record(first)
	if a.State != failure.Open || a.No == 0 || a.Class != "SMTPError" {
		t.Fatalf("first %+v", a)
	}
	g.clock.Advance(time.Minute)
	second := first
	second.EventID, second.TaskID, second.Exception, second.OccurredAt = uuid.New(), "t-2", "SMTPError: no 2", g.clock.Now()
	if b := g.record(second); b.ID != a.ID || b.Fingerprint != a.Fingerprint {
		t.Fatalf("second %+v", b)
	}
	older := first // arrives late: counted, and not the newest
	older.EventID, older.TaskID, older.OccurredAt = uuid.New(), "t-0", start.Add(-time.Hour)
	g.record(older)
	g.record(g.task("mail.send", "SMTPError: no 1")) // without a traceback it is another group
	got, latest := g.show(a.ID)
	if got.Failures != 3 || !got.FirstSeen.Equal(older.OccurredAt) || !got.LastSeen.Equal(second.OccurredAt) ||
		got.Sample.TaskID != "t-2" || got.Sample.Exception != "SMTPError: no 2" || got.Sample.Traceback != first.Traceback ||
		got.ProjectID != g.projects[0] || got.StateBy != "" || strings.Join(got.Frames, ",") != "a/b.py in f" {
		t.Errorf("group %+v", got)
	}
	if len(latest) != 3 || latest[0].TaskID != "t-2" || latest[2].TaskID != "t-0" || latest[0].EventID != second.EventID {
		t.Errorf("latest %+v", latest)
	}
	groups, err := g.service.List(ctx, 1, failure.Filter{}, agent.Page{Limit: 10})
	if err != nil || len(groups) != 2 || groups[0].Sample.Traceback != "" {
		t.Errorf("list %+v %v", groups, err)
	}
	if groups, err := g.service.List(ctx, 2, failure.Filter{}, agent.Page{Limit: 10}); err != nil || len(groups) != 0 {
		t.Errorf("another project: %+v %v", groups, err)
	}
}

func TestSampleIsBounded(t *testing.T) {
	t.Parallel()
	g := newRig(t, 0)
	f := g.task("a", "E: "+strings.Repeat("é", 5000))
	f.Traceback = strings.Repeat("ü", 20000)
	got, _ := g.show(g.record(f).ID)
	if n := len(got.Sample.Exception); n > 2<<10 || n < 2<<10-1 {
		t.Errorf("exception of %d bytes", n)
	}
	if n := len(got.Sample.Traceback); n != 16<<10 {
		t.Errorf("traceback of %d bytes", n)
	}
}

// TestStates goes through every state and what a failure makes of it.
func TestStates(t *testing.T) {
	t.Parallel()
	g := newRig(t, 0)
	id := g.record(g.task("a", "E: 1")).ID
	wait := func() { g.clock.Advance(time.Minute) }
	fail := func(at time.Time) failure.State {
		f := g.task("a", "E: 1")
		f.OccurredAt = at.Truncate(time.Second)
		return g.record(f).State
	}
	wait()
	before := g.clock.Now()
	wait()
	if got := g.set(id, failure.Resolved); got.State != failure.Resolved || got.StateBy != "local" || !got.StateAt.Equal(g.clock.Now()) {
		t.Fatalf("resolved %+v", got)
	}
	if got := fail(before); got != failure.Resolved {
		t.Errorf("a failure from before: %s", got)
	}
	wait()
	if got := fail(g.clock.Now()); got != failure.Open {
		t.Errorf("a recurrence: %s", got)
	}
	if got, _ := g.show(id); got.State != failure.Open || got.Reopened != 1 || got.StateBy != "" || !got.StateAt.Equal(g.clock.Now()) ||
		got.Failures != 3 {
		t.Errorf("reopened %+v", got)
	}
	if got := fail(g.clock.Now()); got != failure.Open {
		t.Errorf("another: %s", got)
	}
	if got, _ := g.show(id); got.Reopened != 1 {
		t.Errorf("reopened %d times", got.Reopened)
	}
	g.clock.Advance(300 * time.Millisecond) // events are stored to the second
	g.set(id, failure.Resolved)
	if got := fail(g.clock.Now()); got != failure.Open {
		t.Errorf("a recurrence in the same second: %s", got)
	}
	g.set(id, failure.Ignored)
	wait()
	if got := fail(g.clock.Now()); got != failure.Ignored {
		t.Errorf("ignored: %s", got)
	}
	g.set(id, failure.Ignored) // changes nothing, and is no news
	g.set(id, failure.Open)
	rows, err := g.audit.List(ctx, store.Bind[audit.PruneTx, audit.ReadTx](g.db), audit.Filter{}, 0, 100)
	g.must(err)
	var actions []string
	for _, r := range rows {
		actions = append(actions, r.Action)
	}
	if got := strings.Join(actions, " "); got != "failure.reopened failure.ignored failure.resolved failure.resolved" {
		t.Errorf("audit: %s", got)
	}
	if _, err := g.service.SetState(ctx, agent.LocalPrincipal(), 2, id, failure.Open); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another project: %v", err)
	}
	if _, err := g.service.SetState(ctx, agent.LocalPrincipal(), 1, id, "gone"); !fault.Is(err, fault.Invalid) {
		t.Errorf("to a state there is not: %v", err)
	}
}

func TestCapOfGroups(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	for i := range 10 {
		f := g.task(fmt.Sprint("task-", i), "E: 1")
		got := g.record(f)
		if got.CatchAll() != (i >= 3) {
			t.Errorf("failure %d: %+v", i, got)
		}
	}
	if got := g.record(g.task("task-0", "E: 2")); got.CatchAll() {
		t.Error("a group that is there is not found any more")
	}
	other := g.task("task-9", "E: 1")
	other.ProjectNo, other.ProjectID = 2, g.projects[1]
	if got := g.record(other); got.CatchAll() {
		t.Error("the cap of one project holds for another")
	}
	groups, err := g.service.List(ctx, 1, failure.Filter{Engine: "*"}, agent.Page{Limit: 10})
	g.must(err)
	if len(groups) != 1 || groups[0].Failures != 7 || !groups[0].CatchAll() {
		t.Fatalf("catch-all %+v", groups)
	}
	_, latest := g.show(groups[0].ID)
	if len(latest) != 7 || latest[0].Engine != "celery" {
		t.Errorf("latest %+v", latest)
	}
	if len(g.overflow) != 1 || g.overflow[0] != g.projects[0] {
		t.Errorf("told %v", g.overflow)
	}
	g.clock.Advance(2 * time.Hour)
	g.record(g.task("task-8", "E: 1"))
	if len(g.overflow) != 2 {
		t.Errorf("told %d times", len(g.overflow))
	}
}

func TestListPagesAndFilters(t *testing.T) {
	t.Parallel()
	g := newRig(t, 0)
	var ids []uuid.UUID
	for i := range 5 {
		f := g.task(fmt.Sprint("task-", i), "E: 1")
		if i == 2 {
			f.Engine = "rq"
		}
		if i != 1 { // two of one time
			g.clock.Advance(time.Minute)
		}
		f.OccurredAt = g.clock.Now()
		ids = append(ids, g.record(f).ID)
	}
	g.set(ids[3], failure.Resolved)
	g.set(ids[4], failure.Ignored)
	names := func(f failure.Filter) string {
		var out []string
		var after agent.Cursor
		for range 10 {
			page, err := g.service.List(ctx, 1, f, agent.Page{Limit: 2, After: after})
			g.must(err)
			for i := range page {
				out = append(out, strings.TrimPrefix(page[i].TaskName, "task-"))
				after = failure.Cursor(&page[i])
			}
			if len(page) < 2 {
				return strings.Join(out, "")
			}
		}
		return "no end"
	}
	for want, f := range map[string]failure.Filter{
		"3":  {State: "resolved"},
		"4":  {State: "ignored"},
		"2":  {Engine: "rq"},
		"1":  {TaskName: "task-1"},
		"43": {Since: start.Add(3 * time.Minute)},
		"":   {TaskName: "task-1", State: "ignored"},
	} {
		if got := names(f); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
	if got := names(failure.Filter{}); got != "43210" && got != "43201" {
		t.Errorf("all: %s", got)
	}
	if _, err := g.service.List(ctx, 1, failure.Filter{State: "closed"}, agent.Page{Limit: 2}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a state there is not: %v", err)
	}
	found, err := g.service.Resolve(ctx, 1, ids[0].String()[:8])
	if err != nil || len(found) != 1 || found[0] != ids[0] {
		t.Errorf("resolve %v %v", found, err)
	}
	if found, err := g.service.Resolve(ctx, 2, ids[0].String()); err != nil || len(found) != 0 {
		t.Errorf("resolve in another project %v %v", found, err)
	}
}

// TestPrune: failures go with the retention of events, by project; groups go when they have none left, unless ignored.
func TestPrune(t *testing.T) {
	t.Parallel()
	g := newRig(t, 0)
	old := g.record(g.task("old", "E: 1")).ID
	ignored := g.record(g.task("ignored", "E: 1")).ID
	g.set(ignored, failure.Ignored)
	var busiest []agent.FailedTask
	for range 250 {
		busiest = append(busiest, g.task("busy", "E: 1"))
	}
	g.recordAll(busiest...)
	other := g.task("other", "E: 1")
	other.ProjectNo, other.ProjectID = 2, g.projects[1]
	g.record(other)
	g.clock.Advance(9 * 24 * time.Hour)
	busy := g.record(g.task("busy", "E: 1")).ID
	prune := func() (total int) {
		for more := true; more; {
			n, again, err := g.service.Prune(ctx)
			g.must(err)
			if n > 200 {
				t.Fatalf("a slice of %d", n)
			}
			total, more = total+n, again
		}
		return total
	}
	if n := prune(); n != 0 {
		t.Errorf("%d removed too early", n)
	}
	g.clock.Advance(2 * 24 * time.Hour) // the first project keeps ten days, the other twenty
	if n := prune(); n != 253 {
		t.Errorf("%d removed, want 252 failures and a group", n)
	}
	if n := prune(); n != 0 {
		t.Errorf("%d removed again", n)
	}
	if _, err := g.service.Get(ctx, 1, old); !fault.Is(err, fault.NotFound) {
		t.Errorf("a group without failures: %v", err)
	}
	if got, latest := g.show(busy); got.Failures != 251 || len(latest) != 1 {
		t.Errorf("a busy group: %d, %d left", got.Failures, len(latest))
	}
	if got, latest := g.show(ignored); got.State != failure.Ignored || len(latest) != 0 {
		t.Errorf("an ignored group: %+v", got)
	}
}
