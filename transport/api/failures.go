package api

import (
	"net/http"
	"strconv"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
)

const groupFailures = "Failures"

func failureRoutes() []route {
	const base = "/projects/{slug}/failures"
	change := func(verb string, to failure.State, answer string) route {
		return route{method: "POST", path: base + "/{id}/" + verb, resource: "failures", write: true, role: agent.Operator,
			handle: setFailureState(to), doc: doc{group: groupFailures, answer: answer}}
	}
	return []route{
		{method: "GET", path: base, resource: "failures", role: agent.Viewer, handle: (*API).listFailures,
			doc: doc{group: groupFailures, query: "`state` open, resolved or ignored, `engine`, `task_name`, `since` (last seen), " + pageQuery,
				answer: "200 list of FailureGroup, the last seen first: `id`, `project_id`, `fingerprint`, `catch_all`, `engine`, " +
					"`task_name`, `exception_class`, `frames`, `state`, `state_by`, `state_at`, `reopened`, `failures`, " +
					"`first_seen_at`, `last_seen_at`, `sample_task_id`, `sample_exception`"}},
		{method: "GET", path: base + "/{id}", resource: "failures", role: agent.Viewer, handle: (*API).getFailure,
			doc: doc{group: groupFailures, query: "`latest` 0..500, default 20",
				answer: "200 FailureGroup, `sample_traceback` and `latest`, newest first: `{event_id, engine, task_id, occurred_at, " +
					"task_name, task_state}`, the last two of the task as it is now, null when it is gone"}},
		change("resolve", failure.Resolved, "200 FailureGroup; a failure that happens later opens it again"),
		change("ignore", failure.Ignored, "200 FailureGroup; failures are counted, and it stays ignored"),
		change("reopen", failure.Open, "200 FailureGroup"),
	}
}

// failurePublic is a group of failed tasks.
type failurePublic struct {
	ID              string   `json:"id"`
	ProjectID       string   `json:"project_id"`
	Fingerprint     string   `json:"fingerprint"`
	CatchAll        bool     `json:"catch_all"`
	Engine          string   `json:"engine"`
	TaskName        string   `json:"task_name"`
	ExceptionClass  string   `json:"exception_class"`
	Frames          []string `json:"frames"`
	State           string   `json:"state"`
	StateBy         *string  `json:"state_by"`
	StateAt         stamp    `json:"state_at"`
	Reopened        int      `json:"reopened"`
	Failures        int64    `json:"failures"`
	FirstSeenAt     stamp    `json:"first_seen_at"`
	LastSeenAt      stamp    `json:"last_seen_at"`
	SampleTaskID    string   `json:"sample_task_id"`
	SampleException string   `json:"sample_exception"`
}

func showFailure(g *failure.Group) failurePublic {
	return failurePublic{ID: g.ID.String(), ProjectID: g.ProjectID.String(), Fingerprint: g.Fingerprint, CatchAll: g.CatchAll(),
		Engine: g.Engine, TaskName: g.TaskName, ExceptionClass: g.Class, Frames: texts(g.Frames), State: string(g.State),
		StateBy: orNull(g.StateBy), StateAt: stamp(g.StateAt), Reopened: g.Reopened, Failures: g.Failures,
		FirstSeenAt: stamp(g.FirstSeen), LastSeenAt: stamp(g.LastSeen), SampleTaskID: g.Sample.TaskID,
		SampleException: g.Sample.Exception}
}

// failedTask is one failure of a group.
type failedTask struct {
	EventID    string  `json:"event_id"`
	Engine     string  `json:"engine"`
	TaskID     string  `json:"task_id"`
	OccurredAt stamp   `json:"occurred_at"`
	TaskName   *string `json:"task_name"`
	TaskState  *string `json:"task_state"`
}

func showFailedTask(f *failure.Failure) failedTask {
	return failedTask{EventID: f.EventID.String(), Engine: f.Engine, TaskID: f.TaskID, OccurredAt: stamp(f.OccurredAt),
		TaskName: orNull(f.TaskName), TaskState: orNull(f.TaskState)}
}

func (a *API) listFailures(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := failure.Filter{State: q.oneOf("state", failure.States()...), Engine: q.text("engine", maxEngineLen),
		TaskName: q.text("task_name", maxNameLen), Since: q.time("since")}
	page := a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return serveList(a, w, c, page, lister[failure.Group, failurePublic]{
		read: func(p agent.Page) ([]failure.Group, error) { return a.Failures.List(c.Context(), c.project.No, f, p) },
		show: showFailure, place: failure.Cursor,
	})
}

// shownFailures is how many failures of a group are shown when the request does not say.
const shownFailures = 20

func (a *API) getFailure(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	q, n := c.query(), shownFailures
	if q.values.Has("latest") {
		if n, err = strconv.Atoi(q.values.Get("latest")); err != nil || n < 0 || n > failure.MaxShown {
			q.bad("latest", "must be an integer from 0 to %d", failure.MaxShown)
		}
	}
	if err := q.err(); err != nil {
		return err
	}
	g, latest, err := a.Failures.Show(c.Context(), c.project.No, id, n)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		failurePublic
		SampleTraceback *string      `json:"sample_traceback"`
		Latest          []failedTask `json:"latest"`
	}{showFailure(&g), orNull(g.Sample.Traceback), each(latest, showFailedTask)})
}

func setFailureState(to failure.State) handler {
	return func(a *API, w http.ResponseWriter, c *call) error {
		id, err := c.pathID("id")
		if err != nil {
			return err
		}
		g, err := a.Failures.SetState(c.Context(), c.who, c.project.No, id, to)
		if err != nil {
			return err
		}
		return reply(w, c, http.StatusOK, showFailure(&g))
	}
}
