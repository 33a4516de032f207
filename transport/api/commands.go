package api

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/transport"
)

// commandPublic is CommandPublic (agent protocol E.9).
type commandPublic struct {
	ID           string          `json:"id"`
	ProjectID    string          `json:"project_id"`
	AgentID      *string         `json:"agent_id"` // null for the parent of a bulk retry
	IssuedBy     *string         `json:"issued_by"`
	Action       string          `json:"action"`
	TargetType   string          `json:"target_type"`
	TargetID     *string         `json:"target_id"`
	Payload      json.RawMessage `json:"payload"`
	Status       agent.Status    `json:"status"`
	Result       json.RawMessage `json:"result"`
	Error        *string         `json:"error"`
	IssuedAt     stamp           `json:"issued_at"`
	DispatchedAt *stamp          `json:"dispatched_at"`
	CompletedAt  *stamp          `json:"completed_at"`
	TimeoutAt    stamp           `json:"timeout_at"`
}

func showCommand(c *agent.Command) commandPublic {
	return commandPublic{ID: c.ID.String(), ProjectID: c.ProjectID.String(), AgentID: idOrNull(c.AgentID),
		IssuedBy: c.IssuedBy, Action: c.Action, TargetType: c.TargetType, TargetID: c.TargetID, Payload: raw(c.Payload),
		Status: c.Status, Result: raw(c.Result), Error: c.Error, IssuedAt: stamp(c.IssuedAt),
		DispatchedAt: maybe(c.DispatchedAt), CompletedAt: maybe(c.CompletedAt), TimeoutAt: stamp(c.TimeoutAt)}
}

// issueRoute serves one of the routes of agent protocol E.9.
func issueRoute(name string) func(*API, http.ResponseWriter, *call) error {
	return func(a *API, w http.ResponseWriter, c *call) error {
		text, err := readBody(c.Request)
		if err != nil {
			return err
		}
		req, err := agent.ParseRoute(name, text)
		if err == nil && namesTasks(req) { // agent protocol E.9
			return fault.New(fault.Gone, "tasks are no longer named here: POST %s/projects/%s/bulk-retry-requests retries each with a "+
				"command of its own", Prefix, c.project.Slug).With("route", "bulk-retry-requests")
		}
		if err == nil {
			err = a.issue(w, c, req)
		}
		if badFilter(err) { // a bulk retry: agent protocol E.9
			transport.WriteErrorAs(w, c.Request, http.StatusBadRequest, err)
			return nil
		}
		return err
	}
}

// namesTasks tells whether a request is for one bulk_retry command that names its tasks.
func namesTasks(req agent.IssueRequest) bool {
	if req.Action != "bulk_retry" {
		return false
	}
	doc, err := rawjson.Parse(req.Payload)
	if err != nil {
		return false
	}
	defer doc.Release()
	return !doc.Root().Get("filter").Get("task_ids").IsAbsent()
}

// badFilter tells whether err is about the filter of a bulk action.
func badFilter(err error) bool {
	field, _ := fault.Details(err)["field"].(string)
	return fault.Is(err, fault.Invalid) && (field == "filter" || strings.HasPrefix(field, "filter."))
}

// issueAny serves every action by one body. Bulk actions count as they do on their own routes.
func (a *API) issueAny(w http.ResponseWriter, c *call) error {
	text, err := readBody(c.Request)
	if err != nil {
		return err
	}
	req, err := agent.ParseGeneric(text)
	if err != nil {
		return err
	}
	if spec, ok := agent.LookupAction(req.Action); ok && spec.Bulk {
		if err := a.countBulk(c); err != nil {
			return err
		}
	}
	return a.issue(w, c, req)
}

func (a *API) issue(w http.ResponseWriter, c *call, req agent.IssueRequest) error {
	req.ProjectNo = c.project.No
	issued, err := a.Commands.Issue(c.Context(), c.who, req)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusAccepted, showCommand(&issued.Command))
}

// statuses are the words of a status filter.
var statuses = []string{string(agent.Pending), string(agent.Dispatched), string(agent.Completed), string(agent.Failed),
	string(agent.TimedOut), string(agent.Cancelled)}

// maxActionLen is the longest action (agent protocol E.1).
const maxActionLen = 80

func (a *API) listCommands(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := agent.CommandFilter{Status: agent.Status(q.oneOf("status", statuses...)), AgentID: q.id("agent_id"),
		Action: q.text("action", maxActionLen), Since: q.time("since")}
	page := a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return serveList(a, w, c, page, lister[agent.Command, commandPublic]{
		read: func(p agent.Page) ([]agent.Command, error) {
			return a.Commands.List(c.Context(), c.project.No, f, p)
		},
		show:  showCommand,
		place: func(c *agent.Command) agent.Cursor { return agent.Cursor{At: c.IssuedAt, ID: c.ID} },
	})
}

func (a *API) getCommand(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		cmd, err := a.Commands.Get(c.Context(), c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, showCommand(&cmd))
	})
}

func (a *API) withCommand(c *call, fn func(uuid.UUID) error) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	return fn(id)
}

func (a *API) cancelCommand(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		cmd, err := a.Commands.Cancel(c.Context(), c.who, c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, showCommand(&cmd))
	})
}

type deliveryPublic struct {
	Attempt    int                   `json:"attempt"`
	Transport  agent.Transport       `json:"transport"`
	SessionID  string                `json:"session_id"`
	WorkerID   *string               `json:"worker_id"`
	ClaimedAt  stamp                 `json:"claimed_at"`
	SentAt     *stamp                `json:"sent_at"`
	AckedAt    *stamp                `json:"acked_at"`
	FinishedAt *stamp                `json:"finished_at"`
	Outcome    agent.DeliveryOutcome `json:"outcome"`
	Reason     *string               `json:"reason"`
}

func showDelivery(d *agent.Delivery) deliveryPublic {
	return deliveryPublic{Attempt: d.Attempt, Transport: d.Transport, SessionID: d.Session, WorkerID: orNull(d.Worker),
		ClaimedAt: stamp(d.ClaimedAt), SentAt: maybe(d.SentAt), AckedAt: maybe(d.AckedAt),
		FinishedAt: maybe(d.FinishedAt), Outcome: d.Outcome, Reason: d.Reason}
}

func (a *API) commandDeliveries(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		rows, err := a.Commands.Deliveries(c.Context(), c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, each(rows, showDelivery))
	})
}

type transitionPublic struct {
	Seq    int64        `json:"seq"`
	At     stamp        `json:"at"`
	Status agent.Status `json:"status"`
	Event  string       `json:"event"`
	Detail *string      `json:"detail"`
}

func showTransition(t *agent.Transition) transitionPublic {
	return transitionPublic{Seq: t.No, At: stamp(t.At), Status: t.Status, Event: t.Event, Detail: t.Detail}
}

func (a *API) commandTimeline(w http.ResponseWriter, c *call) error {
	return a.withCommand(c, func(id uuid.UUID) error {
		rows, err := a.Commands.Timeline(c.Context(), c.project.No, id)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, each(rows, showTransition))
	})
}
