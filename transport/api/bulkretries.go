package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/transport"
)

func bulkRetryRoutes() []route {
	const base = "/projects/{slug}/bulk-retry-requests"
	return []route{
		{method: "POST", path: base, resource: "commands", write: true, role: agent.Operator, bulk: true, handle: (*API).startBulkRetry,
			doc: doc{group: groupCommands, body: "`filter` of `task_ids`, `engine`, `state` or `status` (default failure), `queue`, `name`, `since`, " +
				"`until` (default: the moment of the request); other keys are dropped and audited. Tasks whose retry by another bulk retry is under " +
				"way or has succeeded since they failed are left out. Optional `max` 1..10000 (1000), `agent_id`, `idempotency_key` 1..200, `dry_run`, " +
				"`confirm_count`, which must be the number of tasks when that is above `agent.bulk_retry_confirm_above`",
				answer: "202 BulkRetry; for a dry run 200 `{dry_run, count, more, must_confirm, engine, rejected_keys, left_out, until, waiting_for, " +
					"tasks}`, with the first 20 tasks, and nothing is written; 400 for a filter that matches nothing or names tasks that cannot be retried; 409 with " +
					"`count` when it must be confirmed, or when another request took tasks meanwhile"}},
		{method: "GET", path: base, resource: "commands", role: agent.Viewer, handle: (*API).listBulkRetries,
			doc: doc{group: groupCommands, query: "`open=true`, " + pageQuery, answer: "200 list of BulkRetry, newest first"}},
		{method: "GET", path: base + "/{id}", resource: "commands", role: agent.Viewer, handle: (*API).getBulkRetry,
			doc: doc{group: groupCommands, answer: "200 BulkRetry: `{id, project_id, status, engine, agent_id, filter, total, waiting, in_flight, " +
				"completed, failed, timeout, refused, cancelled, waiting_for, error, issued_by, created_at, ended_at, timeout_at}`; `id` is that of its command"}},
		{method: "GET", path: base + "/{id}/tasks", resource: "commands", role: agent.Viewer, handle: (*API).bulkRetryTasks,
			doc: doc{group: groupCommands, query: "`status`, " + pageQuery, answer: "200 list of `{position, task_id, task_name, status, " +
				"command_id, agent_id, error, issued_at, ended_at}`, by position"}},
		{method: "POST", path: base + "/{id}/cancel", resource: "commands", write: true, role: agent.Operator, handle: (*API).cancelBulkRetry,
			doc: doc{group: groupCommands, answer: "200 BulkRetry: what no agent has taken is cancelled; 409 when it has ended"}},
		{method: "GET", path: "/projects/{slug}/dead-letters", resource: "tasks", role: agent.Viewer, handle: (*API).listDeadLetters,
			doc: doc{group: groupRecords, query: "`engine` (required), `queue`, `limit` 1..200 (100), `cursor`",
				answer: "200 `{entries: [{task_id, task_name, queue, failed_at, error_excerpt, attempts}], next_cursor, total, engine}`, as an " +
					"agent answers now; 409 with `candidates` when none can, 504 without an answer in 15 s, 502 when it failed"}},
	}
}

// bulkRetryPublic is a bulk retry with its counts.
type bulkRetryPublic struct {
	ID         string          `json:"id"`
	ProjectID  string          `json:"project_id"`
	Status     agent.Status    `json:"status"`
	Engine     string          `json:"engine"`
	AgentID    *string         `json:"agent_id"`
	Filter     json.RawMessage `json:"filter"`
	Total      int             `json:"total"`
	Waiting    int             `json:"waiting"`
	InFlight   int             `json:"in_flight"`
	Completed  int             `json:"completed"`
	Failed     int             `json:"failed"`
	TimedOut   int             `json:"timeout"`
	Refused    int             `json:"refused"`
	Cancelled  int             `json:"cancelled"`
	WaitingFor *string         `json:"waiting_for"`
	Error      *string         `json:"error"`
	IssuedBy   *string         `json:"issued_by"`
	CreatedAt  stamp           `json:"created_at"`
	EndedAt    *stamp          `json:"ended_at"`
	TimeoutAt  stamp           `json:"timeout_at"`
}

func showBulkRetry(b *bulkretry.BulkRetry) bulkRetryPublic {
	p := &b.Parent
	return bulkRetryPublic{ID: p.ID.String(), ProjectID: p.ProjectID.String(), Status: p.Status, Engine: b.Engine, AgentID: idOrNull(b.AgentID),
		Filter: b.Filter, Total: b.Total, Waiting: b.Waiting(), InFlight: b.InFlight, Completed: b.Completed, Failed: b.Failed,
		TimedOut: b.TimedOut, Refused: b.Refused, Cancelled: b.Cancelled, WaitingFor: orNull(b.WaitReason), Error: p.Error,
		IssuedBy: p.IssuedBy, CreatedAt: stamp(p.IssuedAt), EndedAt: maybe(p.CompletedAt), TimeoutAt: stamp(p.TimeoutAt)}
}

// idOrNull shows an id that may be none.
func idOrNull(id uuid.UUID) *string {
	if id == uuid.Nil {
		return nil
	}
	s := id.String()
	return &s
}

// planPublic is what a dry run answers.
type planPublic struct {
	DryRun       bool         `json:"dry_run"`
	Count        int          `json:"count"`
	More         bool         `json:"more"`
	MustConfirm  bool         `json:"must_confirm"`
	Engine       *string      `json:"engine"`
	RejectedKeys []string     `json:"rejected_keys"`
	LeftOut      int          `json:"left_out"`
	Until        stamp        `json:"until"`
	WaitingFor   *string      `json:"waiting_for"`
	Tasks        []taskToShow `json:"tasks"`
}

type taskToShow struct {
	TaskID     string  `json:"task_id"`
	TaskName   string  `json:"task_name"`
	Engine     string  `json:"engine"`
	Queue      *string `json:"queue"`
	State      string  `json:"state"`
	FinishedAt *stamp  `json:"finished_at"`
}

func (a *API) startBulkRetry(w http.ResponseWriter, c *call) error {
	text, err := readBody(c.Request)
	if err != nil {
		return err
	}
	req, err := bulkretry.ParseRequest(text)
	var started bulkretry.Started
	if err == nil {
		req.ProjectNo, req.ProjectID = c.project.No, c.project.ID
		started, err = a.BulkRetries.Start(c.Context(), c.who, req)
	}
	if badFilter(err) {
		transport.WriteErrorAs(w, c.Request, http.StatusBadRequest, err)
		return nil
	}
	if err != nil {
		return err
	}
	if !req.DryRun {
		return reply(w, c, http.StatusAccepted, showBulkRetry(&started.BulkRetry))
	}
	p := started.Plan
	if p.RejectedKeys == nil {
		p.RejectedKeys = []string{}
	}
	return reply(w, c, http.StatusOK, planPublic{DryRun: true, Count: p.Count, More: p.More, MustConfirm: p.MustConfirm,
		Engine: orNull(p.Engine), RejectedKeys: p.RejectedKeys, LeftOut: p.LeftOut, Until: stamp(p.Until), WaitingFor: orNull(p.WaitReason),
		Tasks: each(p.Tasks, func(t *bulkretry.Task) taskToShow {
			return taskToShow{TaskID: t.TaskID, TaskName: t.Name, Engine: t.Engine, Queue: orNull(t.Queue), State: t.State,
				FinishedAt: maybe(t.FinishedAt)}
		})})
}

func (a *API) listBulkRetries(w http.ResponseWriter, c *call) error {
	q := c.query()
	open := q.flag("open", false)
	page := a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return serveList(a, w, c, page, lister[bulkretry.BulkRetry, bulkRetryPublic]{
		read: func(p agent.Page) ([]bulkretry.BulkRetry, error) {
			return a.BulkRetries.List(c.Context(), c.project.No, open, p)
		},
		show:  showBulkRetry,
		place: func(b *bulkretry.BulkRetry) agent.Cursor { return agent.Cursor{At: b.Parent.IssuedAt, ID: b.Parent.ID} },
	})
}

func (a *API) getBulkRetry(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		b, err := a.BulkRetries.Get(c.Context(), c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, showBulkRetry(&b))
	})
}

func (a *API) cancelBulkRetry(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		b, err := a.BulkRetries.Cancel(c.Context(), c.who, c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, showBulkRetry(&b))
	})
}

// bulkTaskPublic is one task of a bulk retry.
type bulkTaskPublic struct {
	Position  int                  `json:"position"`
	TaskID    string               `json:"task_id"`
	TaskName  string               `json:"task_name"`
	Status    bulkretry.TaskStatus `json:"status"`
	CommandID *string              `json:"command_id"`
	AgentID   *string              `json:"agent_id"`
	Error     *string              `json:"error"`
	IssuedAt  *stamp               `json:"issued_at"`
	EndedAt   *stamp               `json:"ended_at"`
}

func showBulkTask(t *bulkretry.TaskRow) bulkTaskPublic {
	return bulkTaskPublic{Position: t.Position, TaskID: t.TaskID, TaskName: t.TaskName, Status: t.Status, CommandID: idOrNull(t.CommandID),
		AgentID: idOrNull(t.AgentID), Error: t.Error, IssuedAt: maybe(t.IssuedAt), EndedAt: maybe(t.EndedAt)}
}

// bulkRetryTasks pages by position, which the cursor carries as a time of so many microseconds.
func (a *API) bulkRetryTasks(w http.ResponseWriter, c *call) error {
	q := c.query()
	status := bulkretry.TaskStatus(q.oneOf("status", bulkretry.Statuses()...))
	page := a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return a.withCommand(c, func(id uuid.UUID) error {
		return serveList(a, w, c, page, lister[bulkretry.TaskRow, bulkTaskPublic]{
			read: func(p agent.Page) ([]bulkretry.TaskRow, error) {
				after := 0
				if !p.After.IsZero() {
					after = int(max(0, min(p.After.At.UnixMicro(), bulkretry.MaxTasks)))
				}
				return a.BulkRetries.Tasks(c.Context(), c.project.No, id, status, after, p.Limit)
			},
			show: showBulkTask,
			place: func(t *bulkretry.TaskRow) agent.Cursor {
				return agent.Cursor{At: time.UnixMicro(int64(t.Position)).UTC(), ID: id}
			},
		})
	})
}

// deadLetterPublic is one entry of a listing (agent protocol E.10).
type deadLetterPublic struct {
	TaskID       string  `json:"task_id"`
	TaskName     *string `json:"task_name"`
	Queue        *string `json:"queue"`
	FailedAt     *string `json:"failed_at"`
	ErrorExcerpt *string `json:"error_excerpt"`
	Attempts     *int64  `json:"attempts"`
}

// maxDeadLetters is the most entries of a page (agent protocol E.10).
const maxDeadLetters = 200

func (a *API) listDeadLetters(w http.ResponseWriter, c *call) error {
	q := c.query()
	r := agent.DeadLetterRequest{ProjectNo: c.project.No, Engine: q.text("engine", 40), Queue: q.text("queue", 200),
		Limit: q.number("limit", 100, maxDeadLetters), Cursor: q.values.Get("cursor")}
	if !q.values.Has("engine") {
		q.bad("engine", "is required")
	}
	if err := q.err(); err != nil {
		return err
	}
	d, err := a.Commands.ListDeadLetters(c.Context(), c.who, r)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		Entries    []deadLetterPublic `json:"entries"`
		NextCursor *string            `json:"next_cursor"`
		Total      *int64             `json:"total"`
		Engine     string             `json:"engine"`
	}{each(d.Entries, func(e *agent.DeadLetter) deadLetterPublic { return deadLetterPublic(*e) }), d.NextCursor, d.Total, d.Engine})
}
