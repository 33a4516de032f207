package api

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// Bounds of the names that lists are filtered by (agent protocol H.5).
const (
	maxEngineLen = 40
	maxTaskIDLen = 200
	maxKindLen   = 80
	maxNameLen   = 500
	maxSearchLen = 500
)

// eventPublic is one event (agent protocol H.5).
type eventPublic struct {
	ID         string          `json:"id"`
	ProjectID  string          `json:"project_id"`
	AgentID    string          `json:"agent_id"`
	Engine     string          `json:"engine"`
	TaskID     string          `json:"task_id"`
	Kind       string          `json:"kind"`
	OccurredAt stamp           `json:"occurred_at"`
	Payload    json.RawMessage `json:"payload"`
}

func showEvent(e *agent.Event) eventPublic {
	return eventPublic{ID: e.ID.String(), ProjectID: e.ProjectID.String(), AgentID: e.AgentID.String(), Engine: e.Engine,
		TaskID: e.TaskID, Kind: e.Kind, OccurredAt: stamp(e.OccurredAt), Payload: raw(e.Payload)}
}

// eventFilter reads what lists and streams of events are filtered by.
func eventFilter(q *query) agent.EventFilter {
	return agent.EventFilter{Engine: q.text("engine", maxEngineLen), TaskID: q.text("task_id", maxTaskIDLen),
		Kind: q.text("kind", maxKindLen), AgentID: q.id("agent_id"), Since: q.time("since")}
}

func (a *API) listEvents(w http.ResponseWriter, c *call) error {
	q := c.query()
	f, page := eventFilter(q), a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return serveList(a, w, c, page, lister[agent.Event, eventPublic]{
		read: func(p agent.Page) ([]agent.Event, error) {
			return a.Records.ListEvents(c.Context(), c.project.No, f, p)
		},
		show: showEvent, place: agent.EventCursor,
	})
}

// taskPublic is TaskPublic (agent protocol H.5).
type taskPublic struct {
	ID           string          `json:"id"`
	ProjectID    string          `json:"project_id"`
	Engine       string          `json:"engine"`
	TaskID       string          `json:"task_id"`
	Name         string          `json:"name"`
	Queue        *string         `json:"queue"`
	State        string          `json:"state"`
	Priority     string          `json:"priority"`
	Args         json.RawMessage `json:"args"`
	Kwargs       json.RawMessage `json:"kwargs"`
	Result       json.RawMessage `json:"result"`
	Exception    *string         `json:"exception"`
	Traceback    *string         `json:"traceback"`
	RetryCount   int             `json:"retry_count"`
	ETA          *stamp          `json:"eta"`
	ReceivedAt   *stamp          `json:"received_at"`
	StartedAt    *stamp          `json:"started_at"`
	FinishedAt   *stamp          `json:"finished_at"`
	RuntimeMS    *int64          `json:"runtime_ms"`
	WorkerName   *string         `json:"worker_name"`
	ParentTaskID *string         `json:"parent_task_id"`
	RootTaskID   *string         `json:"root_task_id"`
	Tags         json.RawMessage `json:"tags"`
	CreatedAt    stamp           `json:"created_at"`
	UpdatedAt    stamp           `json:"updated_at"`
}

func showTask(t *agent.Task) taskPublic {
	out := taskPublic{ID: t.ID.String(), ProjectID: t.ProjectID.String(), Engine: t.Engine, TaskID: t.TaskID,
		Name: t.Name, Queue: t.Queue, State: t.State, Priority: t.Priority, Args: raw(t.Args), Kwargs: raw(t.Kwargs),
		Result: raw(t.Result), Exception: t.Exception, Traceback: t.Traceback, RetryCount: t.RetryCount,
		ETA: maybe(t.ETA), ReceivedAt: maybe(t.ReceivedAt), StartedAt: maybe(t.StartedAt),
		FinishedAt: maybe(t.FinishedAt), RuntimeMS: t.RuntimeMS, WorkerName: t.WorkerName,
		ParentTaskID: t.ParentTaskID, RootTaskID: t.RootTaskID, Tags: raw(t.Tags), CreatedAt: stamp(t.CreatedAt),
		UpdatedAt: stamp(t.UpdatedAt)}
	if out.Tags == nil {
		out.Tags = json.RawMessage("[]")
	}
	return out
}

func (a *API) listTasks(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := agent.TaskFilter{State: q.oneOf("state", agent.TaskStates()...),
		Priority: q.oneOf("priority", agent.TaskPriorities()...), Name: q.text("name", maxNameLen),
		Search: q.text("search", maxSearchLen), Queue: q.text("queue", maxTaskIDLen),
		Worker: q.text("worker", maxTaskIDLen), Since: q.time("since"), Until: q.time("until")}
	if q.values.Has("engine") { // ignoring a filter would answer with rows that were not asked for
		q.bad("engine", "tasks cannot be listed by engine")
	}
	page, form := a.page(q), exportForm(q, taskColumns)
	if err := q.err(); err != nil {
		return err
	}
	tasks := lister[agent.Task, taskPublic]{
		read: func(p agent.Page) ([]agent.Task, error) {
			return a.Records.ListTasks(c.Context(), c.project.No, f, p)
		},
		show: showTask, place: agent.TaskCursor,
	}
	if form != nil {
		return a.export(w, c, "tasks", form, tasks.pages())
	}
	return serveList(a, w, c, page, tasks)
}

func (a *API) getTask(w http.ResponseWriter, c *call) error {
	t, err := a.Records.GetTask(c.Context(), c.project.No, c.PathValue("engine"), c.PathValue("task_id"))
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showTask(&t))
}

type treePublic struct {
	RootTaskID string       `json:"root_task_id"`
	NodeCount  int          `json:"node_count"`
	Truncated  bool         `json:"truncated"`
	Nodes      []nodePublic `json:"nodes"`
}

type nodePublic struct {
	TaskID       string  `json:"task_id"`
	Name         string  `json:"name"`
	State        string  `json:"state"`
	ParentTaskID *string `json:"parent_task_id"`
	RootTaskID   *string `json:"root_task_id"`
	ReceivedAt   *stamp  `json:"received_at"`
	FinishedAt   *stamp  `json:"finished_at"`
}

func showNode(n *agent.TaskNode) nodePublic {
	return nodePublic{TaskID: n.TaskID, Name: n.Name, State: n.State, ParentTaskID: n.ParentTaskID,
		RootTaskID: n.RootTaskID, ReceivedAt: maybe(n.ReceivedAt), FinishedAt: maybe(n.FinishedAt)}
}

func (a *API) taskTree(w http.ResponseWriter, c *call) error {
	t, err := a.Records.TaskTree(c.Context(), c.project.No, c.PathValue("engine"), c.PathValue("task_id"))
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, treePublic{RootTaskID: t.RootTaskID, NodeCount: len(t.Nodes),
		Truncated: t.Truncated, Nodes: each(t.Nodes, showNode)})
}

// maxBulkIDs is the most tasks one bulk-delete names (agent protocol H.5).
const maxBulkIDs = 1000

type deletedPublic struct {
	DeletedCount int `json:"deleted_count"`
}

// bulkDelete refuses unknown fields: a filter that was misspelt would delete everything.
func (a *API) bulkDelete(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("task_ids", "filter_state", "filter_name", "filter_queue", "filter_since", "filter_until")
	d := agent.BulkDelete{IDs: b.ids("task_ids", maxBulkIDs), Filter: agent.TaskFilter{
		State: b.word("filter_state", agent.TaskStates()), Name: b.short("filter_name", maxNameLen),
		Queue: b.short("filter_queue", maxTaskIDLen), Since: b.time("filter_since"), Until: b.time("filter_until")}}
	if err := b.err(); err != nil {
		return err
	}
	n, err := a.Records.BulkDeleteTasks(c.Context(), c.project.No, d)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, deletedPublic{n})
}

// workerPublic is WorkerPublic (agent protocol H.5).
type workerPublic struct {
	ID            string          `json:"id"`
	ProjectID     string          `json:"project_id"`
	Engine        string          `json:"engine"`
	Name          string          `json:"name"`
	Hostname      *string         `json:"hostname"`
	PID           *int64          `json:"pid"`
	Concurrency   *int64          `json:"concurrency"`
	Queues        []string        `json:"queues"`
	State         string          `json:"state"`
	LastHeartbeat *stamp          `json:"last_heartbeat"`
	LoadAverage   json.RawMessage `json:"load_average"`
	ActiveTasks   int64           `json:"active_tasks"`
	Processed     int64           `json:"processed"`
	Failed        int64           `json:"failed"`
	Succeeded     int64           `json:"succeeded"`
	Retried       int64           `json:"retried"`
	CreatedAt     stamp           `json:"created_at"`
}

func showWorker(w *agent.Worker) workerPublic {
	return workerPublic{ID: w.ID.String(), ProjectID: w.ProjectID.String(), Engine: w.Engine, Name: w.Name,
		Hostname: w.Hostname, PID: w.PID, Concurrency: w.Concurrency, Queues: texts(w.Queues), State: w.State,
		LastHeartbeat: maybe(w.LastHeartbeat), LoadAverage: raw(w.LoadAverage), ActiveTasks: w.ActiveTasks,
		Processed: w.Processed, Failed: w.Failed, Succeeded: w.Succeeded, Retried: w.Retried,
		CreatedAt: stamp(w.CreatedAt)}
}

func (a *API) listWorkers(w http.ResponseWriter, c *call) error {
	rows, err := a.Records.ListWorkers(c.Context(), c.project.No)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(rows, showWorker))
}

func (a *API) getWorker(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	row, err := a.Records.GetWorker(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	meta := raw(row.Metadata)
	if meta == nil {
		meta = json.RawMessage("{}")
	}
	return reply(w, c, http.StatusOK, struct {
		workerPublic
		Metadata json.RawMessage `json:"metadata"`
	}{showWorker(&row), meta})
}

// queuePublic is a queue (agent protocol H.5) with its depth as last reported.
type queuePublic struct {
	ID            string  `json:"id"`
	ProjectID     string  `json:"project_id"`
	Name          string  `json:"name"`
	Engine        string  `json:"engine"`
	BrokerType    *string `json:"broker_type"`
	BrokerURLHint *string `json:"broker_url_hint"`
	PendingCount  *int64  `json:"pending_count"`
	LastSeenAt    stamp   `json:"last_seen_at"`
	CreatedAt     stamp   `json:"created_at"`
}

func showQueue(q *agent.Queue) queuePublic {
	return queuePublic{ID: q.ID.String(), ProjectID: q.ProjectID.String(), Name: q.Name, Engine: q.Engine,
		BrokerType: q.BrokerType, BrokerURLHint: q.BrokerURLHint, PendingCount: q.PendingCount,
		LastSeenAt: stamp(q.LastSeenAt), CreatedAt: stamp(q.CreatedAt)}
}

func (a *API) listQueues(w http.ResponseWriter, c *call) error {
	rows, err := a.Records.ListQueues(c.Context(), c.project.No)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(rows, showQueue))
}

// ids is an optional list of UUIDs.
func (b *body) ids(name string, most int) []uuid.UUID {
	var out []uuid.UUID
	for _, s := range b.texts(name, most) {
		id, err := uuid.Parse(s)
		if err != nil {
			b.bad(name, "must be a list of UUIDs")
			return nil
		}
		out = append(out, id)
	}
	return out
}

// word is an optional text of a list.
func (b *body) word(name string, words []string) string {
	s := b.text(name)
	if s == nil {
		return ""
	}
	for _, w := range words {
		if *s == w {
			return w
		}
	}
	b.bad(name, "must be one of %v", words)
	return ""
}

// short is an optional text of 1 to limit characters.
func (b *body) short(name string, limit int) string {
	s := b.text(name)
	if s == nil {
		return ""
	}
	if !between(*s, 1, limit) {
		b.bad(name, "must have 1 to %d characters", limit)
		return ""
	}
	return *s
}
