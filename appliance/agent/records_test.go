package agent_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
)

// must returns a value or fails the test.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func eventNames(events []agent.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, strings.TrimPrefix(e.Kind, "task.")+"/"+e.TaskID)
	}
	return strings.Join(out, " ")
}

func taskNames(tasks []agent.Task) string {
	var out []string
	for _, x := range tasks {
		out = append(out, x.TaskID)
	}
	return strings.Join(out, " ")
}

func TestListEvents(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	g.one(batch(t, event("task.sent", "a", -3*time.Second, `{"n":1}`), event("task.started", "a", -time.Second, `{}`),
		event("task.sent", "b", -2*time.Second, `{}`), event("task.exploded", "c", -4*time.Second, `{}`)))
	list := func(f agent.EventFilter, page agent.Page) []agent.Event {
		return must[[]agent.Event](t)(g.records.ListEvents(ctx, 1, f, page))
	}
	all := agent.Page{Limit: 10}
	for _, c := range []struct {
		name string
		f    agent.EventFilter
		want string
	}{
		{"all", agent.EventFilter{}, "started/a sent/b sent/a unknown/c"},
		{"task", agent.EventFilter{Engine: "celery", TaskID: "a"}, "started/a sent/a"},
		{"task and kind", agent.EventFilter{Engine: "celery", TaskID: "a", Kind: "task.sent"}, "sent/a"},
		{"task of another engine", agent.EventFilter{Engine: "rq", TaskID: "a"}, ""},
		{"task without a row", agent.EventFilter{Engine: "celery", TaskID: "c"}, "unknown/c"},
		{"task id alone", agent.EventFilter{TaskID: "a"}, "started/a sent/a"},
		{"kind", agent.EventFilter{Kind: "task.sent"}, "sent/b sent/a"},
		{"agent", agent.EventFilter{AgentID: g.peer.AgentID}, "started/a sent/b sent/a unknown/c"},
		{"another agent", agent.EventFilter{AgentID: uuid.New()}, ""},
		{"since", agent.EventFilter{Since: ingestStart.Add(-2 * time.Second)}, "started/a sent/b"},
	} {
		g.want(c.name, eventNames(list(c.f, all)), c.want)
	}
	e := list(agent.EventFilter{}, all)[2]
	if e.ProjectID != g.peer.ProjectID || e.AgentID != g.peer.AgentID || string(e.Payload) != `{"n":1}` || e.Engine != "celery" {
		t.Errorf("%+v", e)
	}
	for _, f := range []agent.EventFilter{{}, {Engine: "celery", TaskID: "a"}} {
		var got []string
		page := agent.Page{Limit: 1}
		for {
			events := list(f, page)
			if len(events) == 0 {
				break
			}
			got = append(got, eventNames(events))
			page.After = agent.EventCursor(&events[len(events)-1])
		}
		g.want("pages", strings.Join(got, " "), eventNames(list(f, all)))
	}
	if other := must[[]agent.Event](t)(g.records.ListEvents(ctx, 2, agent.EventFilter{}, all)); len(other) != 0 {
		t.Errorf("another project sees %v", other)
	}
}

func TestEventPagesPartEqualTimesByID(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	var events []string
	for i := range 7 {
		events = append(events, event("task.sent", fmt.Sprint("t", i), 0, `{}`))
	}
	g.one(batch(t, events...))
	seen := map[uuid.UUID]bool{}
	page := agent.Page{Limit: 2}
	for range 4 {
		got := must[[]agent.Event](t)(g.records.ListEvents(ctx, 1, agent.EventFilter{}, page))
		for i := range got {
			seen[got[i].ID] = true
			page.After = agent.EventCursor(&got[i])
		}
	}
	if len(seen) != 7 {
		t.Errorf("%d of 7 events on four pages", len(seen))
	}
}

func TestStreamEvents(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	g.exec(`INSERT INTO projects (id, slug, name, environment, timezone, retention_days, is_active, default_scheduler_owner,
		created_at, updated_at) VALUES (?, 'two', 'Two', 'production', 'UTC', 10, 1, 'z', 0, 0)`, uuid.New())
	stream := func(project, after int64, f agent.EventFilter, limit int) string {
		s := must[agent.EventStream](t)(g.records.StreamEvents(ctx, project, after, f, limit))
		return fmt.Sprintf("%s next=%d more=%v gap=%v", eventNames(s.Events), s.Next, s.More, s.Gap)
	}
	g.want("empty", stream(1, 0, agent.EventFilter{}, 10), " next=0 more=false gap=false")
	g.one(batch(t, event("task.sent", "a", 0, `{}`), event("task.sent", "b", -20*24*time.Hour, `{}`), event("task.started", "a", 0, `{}`)))
	g.want("all", stream(1, 0, agent.EventFilter{}, 10), "sent/a sent/b started/a next=3 more=false gap=false")
	g.want("limited", stream(1, 0, agent.EventFilter{}, 2), "sent/a sent/b next=2 more=true gap=false")
	g.want("resumed", stream(1, 2, agent.EventFilter{}, 2), "started/a next=3 more=false gap=false")
	g.want("filtered", stream(1, 0, agent.EventFilter{Kind: "task.started"}, 2), "started/a next=3 more=false gap=false")
	g.want("another project moves on", stream(2, 0, agent.EventFilter{}, 2), " next=3 more=false gap=false")
	g.want("at the head", stream(1, 3, agent.EventFilter{}, 2), " next=3 more=false gap=false")
	g.want("beyond the head", stream(1, 4, agent.EventFilter{}, 2), " next=3 more=false gap=true")
	if n, more, err := g.records.PruneEvents(ctx); n != 1 || more || err != nil {
		t.Errorf("pruned %d %v %v", n, more, err)
	}
	b := must[agent.EventBounds](t)(g.records.EventBounds(ctx, 1))
	g.want("bounds", fmt.Sprint(b), "{2 3}")
	g.want("below the low watermark", stream(1, 1, agent.EventFilter{}, 2), "started/a next=3 more=false gap=true")
	g.want("at the low watermark", stream(1, 2, agent.EventFilter{}, 2), "started/a next=3 more=false gap=false")
	g.want("another project has no gap", stream(2, 1, agent.EventFilter{}, 2), " next=3 more=false gap=false")
}

func TestStreamLooksAtABoundedPartOfTheLog(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	g.one(batch(t, event("task.sent", "a", 0, `{}`)))
	g.exec(`UPDATE events SET event_no = 12000`)
	g.exec(`UPDATE sqlite_sequence SET seq = 12000 WHERE name = 'events'`)
	after, steps := int64(0), 0
	for {
		s := must[agent.EventStream](t)(g.records.StreamEvents(ctx, 1, after, agent.EventFilter{}, 10))
		after = s.Next
		steps++
		if !s.More {
			g.want("last", eventNames(s.Events), "sent/a")
			break
		}
	}
	if steps != 3 || after != 12000 {
		t.Errorf("%d steps to %d", steps, after)
	}
}

func TestListTasks(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	g.one(batch(t, event("task.received", "a", 0, `{"task_name":"mail.send","queue":"q1"}`)))
	g.clock.Advance(time.Minute)
	g.one(batch(t, event("task.failed", "b", 0, `{"task_name":"mail_100%","priority":"high"}`)))
	g.clock.Advance(time.Minute)
	g.one(batch(t, event("task.started", "c", 0, `{"task_name":"mailX100y","worker":"w"}`)))
	list := func(f agent.TaskFilter, page agent.Page) []agent.Task {
		return must[[]agent.Task](t)(g.records.ListTasks(ctx, 1, f, page))
	}
	for _, c := range []struct {
		name string
		f    agent.TaskFilter
		want string
	}{
		{"all", agent.TaskFilter{}, "c b a"},
		{"failure", agent.TaskFilter{State: "failure"}, "b"},
		{"state", agent.TaskFilter{State: "started"}, "c"},
		{"priority", agent.TaskFilter{Priority: "high"}, "b"},
		{"name", agent.TaskFilter{Name: "mail.send"}, "a"},
		{"queue", agent.TaskFilter{Queue: "q1"}, "a"},
		{"worker", agent.TaskFilter{Worker: "w"}, "c"},
		{"search takes wildcards as they are", agent.TaskFilter{Search: "_100%"}, "b"},
		{"search", agent.TaskFilter{Search: "MAIL"}, "c b a"},
		{"since", agent.TaskFilter{Since: ingestStart.Add(time.Minute)}, "c b"},
		{"until", agent.TaskFilter{Until: ingestStart.Add(time.Minute)}, "a"},
	} {
		g.want(c.name, taskNames(list(c.f, agent.Page{Limit: 10})), c.want)
	}
	first := list(agent.TaskFilter{}, agent.Page{Limit: 2})
	g.want("page 2", taskNames(list(agent.TaskFilter{}, agent.Page{Limit: 2, After: agent.TaskCursor(&first[1])})), "a")
	for field, f := range map[string]agent.TaskFilter{"state": {State: "gone"}, "priority": {Priority: "urgent"}} {
		if _, err := g.records.ListTasks(ctx, 1, f, agent.Page{Limit: 1}); !fault.Is(err, fault.Invalid) ||
			!strings.HasPrefix(fault.Message(err), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	x := must[agent.Task](t)(g.records.GetTask(ctx, 1, "celery", "a"))
	if x.ProjectID != g.peer.ProjectID || x.Name != "mail.send" || *x.Queue != "q1" || string(x.Tags) != "[]" || x.ReceivedAt == nil ||
		!x.CreatedAt.Equal(ingestStart) {
		t.Errorf("%+v", x)
	}
	if _, err := g.records.GetTask(ctx, 2, "celery", "a"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project: %v", err)
	}
}

func TestTaskTree(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	events := []string{event("task.received", "root", 0, `{"task_name":"r"}`), event("task.received", "other", 0, `{}`)}
	for i := range 501 {
		events = append(events, event("task.received", fmt.Sprint("c", i), 0, `{"root_task_id":"root","parent_task_id":"root"}`))
	}
	g.one(batch(t, events[:4]...))
	for _, id := range []string{"root", "c1"} {
		tree := must[agent.TaskTree](t)(g.records.TaskTree(ctx, 1, "celery", id))
		var ids []string
		for _, n := range tree.Nodes {
			ids = append(ids, n.TaskID)
		}
		g.want(id, fmt.Sprint(tree.RootTaskID, ids, tree.Truncated), "root[root c0 c1] false")
	}
	g.one(batch(t, events[4:]...))
	tree := must[agent.TaskTree](t)(g.records.TaskTree(ctx, 1, "celery", "c400"))
	if len(tree.Nodes) != 500 || !tree.Truncated {
		t.Errorf("%d nodes, truncated %v", len(tree.Nodes), tree.Truncated)
	}
	if _, err := g.records.TaskTree(ctx, 1, "celery", "nobody"); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
}

func TestWorkersAndQueues(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	g.one(batch(t, event("task.started", "a", 0, `{"worker":"w2","queue":"q2"}`), event("task.started", "b", 0, `{"worker":"w1","queue":"q1"}`)))
	workers := must[[]agent.Worker](t)(g.records.ListWorkers(ctx, 1))
	if len(workers) != 2 || workers[0].Name != "w1" || workers[0].State != "online" || !workers[0].LastHeartbeat.Equal(ingestStart) ||
		len(workers[0].Queues) != 0 || workers[0].ProjectID != g.peer.ProjectID || string(workers[0].Metadata) != "{}" {
		t.Errorf("%+v", workers)
	}
	if w := must[agent.Worker](t)(g.records.GetWorker(ctx, 1, workers[1].ID)); w.Name != "w2" {
		t.Errorf("%+v", w)
	}
	if _, err := g.records.GetWorker(ctx, 2, workers[1].ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project: %v", err)
	}
	queues := must[[]agent.Queue](t)(g.records.ListQueues(ctx, 1))
	if len(queues) != 2 || queues[0].Name != "q1" || queues[0].PendingCount != nil || !queues[0].LastSeenAt.Equal(ingestStart) {
		t.Errorf("%+v", queues)
	}
}

func TestBulkDelete(t *testing.T) {
	var commits atomic.Int64
	g, ctx := newIngestRig(t, func(o *store.Options) {
		o.Hooks.BeforeCommit = func([]string) error { commits.Add(1); return nil }
	}), context.Background()
	var events []string
	for i := range 520 {
		events = append(events, event("task.sent", fmt.Sprint("t", i), 0, `{"queue":"q"}`))
	}
	g.one(batch(t, append(events, event("task.failed", "f", 0, `{}`), event("task.sent", "x", 0, `{}`))...))
	for _, d := range []agent.BulkDelete{{}, {IDs: make([]uuid.UUID, 1001)}, {IDs: make([]uuid.UUID, 1), Filter: agent.TaskFilter{Name: "n"}},
		{Filter: agent.TaskFilter{State: "gone"}}} {
		if _, err := g.records.BulkDeleteTasks(ctx, 1, d); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d ids, %+v: %v", len(d.IDs), d.Filter, err)
		}
	}
	f := must[agent.Task](t)(g.records.GetTask(ctx, 1, "celery", "f"))
	if n := must[int](t)(g.records.BulkDeleteTasks(ctx, 2, agent.BulkDelete{IDs: []uuid.UUID{f.ID}})); n != 0 {
		t.Errorf("another project deleted %d", n)
	}
	if n := must[int](t)(g.records.BulkDeleteTasks(ctx, 1, agent.BulkDelete{IDs: []uuid.UUID{f.ID, f.ID, uuid.New()}})); n != 1 {
		t.Errorf("deleted %d", n)
	}
	if n := must[int](t)(g.records.BulkDeleteTasks(ctx, 2, agent.BulkDelete{Filter: agent.TaskFilter{Queue: "q"}})); n != 0 {
		t.Errorf("another project deleted %d", n)
	}
	before := commits.Load()
	if n := must[int](t)(g.records.BulkDeleteTasks(ctx, 1, agent.BulkDelete{Filter: agent.TaskFilter{Queue: "none"}})); n != 0 {
		t.Errorf("deleted %d", n)
	}
	if n := commits.Load() - before; n != 0 { // searching is not the writer's work
		t.Errorf("%d commits for nothing", n)
	}
	if n := must[int](t)(g.records.BulkDeleteTasks(ctx, 1, agent.BulkDelete{Filter: agent.TaskFilter{Queue: "q"}})); n != 520 {
		t.Errorf("deleted %d", n)
	}
	g.want("left", g.text(`SELECT (SELECT group_concat(task_id) FROM tasks) || ' ' || count(*) FROM events`), "x 522")
}

func TestRetention(t *testing.T) {
	g, ctx := newIngestRig(t), context.Background()
	var old []string
	for i := range 600 {
		old = append(old, event("task.sent", fmt.Sprint("o", i), 0, `{}`))
	}
	g.one(batch(t, append(old, event("worker.online", "", 0, `{"worker":"w","queue":"q"}`))...))
	g.one(frame(t, agent.FrameAgentStatus, "st", `{"telemetry_loss":{"buffer_id":"b","runtime_id":"r"}}`))
	counts := func() string {
		return g.text(`SELECT (SELECT count(*) FROM events) || ' ' || (SELECT count(*) FROM tasks) || ' ' ||
			(SELECT count(*) FROM agent_status) || ' ' || (SELECT count(*) FROM telemetry_losses) ||
			' ' || (SELECT count(*) FROM workers) || ' ' || (SELECT count(*) FROM queues)`)
	}
	steps := func(prune func(context.Context) (int, bool, error)) (out []int) {
		t.Helper()
		for {
			n, more, err := prune(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if out = append(out, n); !more {
				return out
			}
		}
	}
	g.clock.Advance(10 * 24 * time.Hour) // the project keeps 10 days: exactly that old is not older
	for range 2 {
		g.want("in time", fmt.Sprint(steps(g.records.PruneEvents), steps(g.records.PruneTasks), steps(g.records.PruneAgentStatus)), "[0] [0] [0]")
	}
	g.clock.Advance(time.Hour)
	g.one(batch(t, event("task.started", "o7", 10*24*time.Hour, `{}`), event("task.sent", "young", 10*24*time.Hour, `{}`)))
	g.want("tasks with events stay", fmt.Sprint(steps(g.records.PruneTasks)), "[0 0 0 0 0 0 0]")
	g.want("events", fmt.Sprint(steps(g.records.PruneEvents)), "[100 100 100 100 100 100 1]")
	g.want("tasks", fmt.Sprint(steps(g.records.PruneTasks)), "[99 100 100 100 100 100 0]")
	g.want("left", counts(), "2 2 1 1 1 1")
	g.clock.Advance(21 * 24 * time.Hour)
	g.want("status", fmt.Sprint(steps(g.records.PruneAgentStatus)), "[3]")
	g.exec(`UPDATE projects SET retention_days = 3650`)
	g.want("the global limit is smaller", fmt.Sprint(steps(g.records.PruneEvents)), "[0]")
	g.clock.Advance(30 * 24 * time.Hour)
	g.want("the global limit is smaller", fmt.Sprint(steps(g.records.PruneEvents)), "[2]")
	g.want("the rest", fmt.Sprint(steps(g.records.PruneTasks)), "[2]")
	g.want("left", counts(), "0 0 0 0 0 0")
	if _, err := agent.NewRecords(store.Bind[agent.RecordsTx, agent.RecordsReadTx](g.db), agent.RecordsOptions{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no retention: %v", err)
	}
}
