package api

import (
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
)

const groupFires = "Fires"

func fireRoutes() []route {
	const base = "/projects/{slug}/fires"
	const row = "`id`, `fire_id`, `schedule_id`, `schedule_name`, `engine`, `origin` slot, catch_up or trigger, `slot_at`, `command_id`, `status`, " +
		"`scheduled_for`, `fired_at`, `acked_at`, `latency_ms`, `finished_at`, `error_code`, `error_message`"
	return []route{
		{method: "GET", path: base, resource: "schedules", role: agent.Viewer, handle: (*API).listFires,
			doc: doc{group: groupFires, query: "`status`, `schedule_id`, `since` (fired), " + pageQuery, answer: "200 list of Fire, newest first: " + row}},
		{method: "GET", path: base + "/{id}", resource: "schedules", role: agent.Viewer, handle: (*API).getFire,
			doc: doc{group: groupFires, answer: "200 Fire; `{id}` is its `fire_id`"}},
		{method: "GET", path: base + "/{id}/explain", resource: "schedules", role: agent.Viewer, handle: (*API).explainFire,
			doc: doc{group: groupFires, answer: "200 `{fire, summary, sentences, waiting_for, candidates, next, expires_at}`; candidates are agents: " +
				"`{agent_id, name, state, engines, declared, eligible, reason}`"}},
		{method: "GET", path: "/projects/{slug}/schedules/{id}/fires", resource: "schedules", role: agent.Viewer, handle: (*API).scheduleFires,
			doc: doc{group: groupFires, query: "`limit` 1..1000, default 100", answer: "200 array of Fire, newest first"}},
		{method: "GET", path: "/projects/{slug}/schedules/{id}/explain", resource: "schedules", role: agent.Viewer, handle: (*API).explainSchedule,
			doc: doc{group: groupFires, answer: "200 `{schedule_id, name, summary, sentences, buffered, expires_at, next}`: when it fires next, how its last " +
				"fires ended, what its buffered fires wait for"}},
		{method: "GET", path: "/projects/{slug}/schedules/runs", resource: "schedules", role: agent.Viewer, handle: (*API).scheduleRuns,
			doc: doc{group: groupFires, query: "`limit` 1..500 of each schedule, default 10", answer: "200 array of Fire, newest first, at most 5000"}},
	}
}

func declaredRoutes() []route {
	const path = "/projects/{slug}/agents/{id}/declared-engines"
	const answer = "200 `{agent_id, engines, declared_by, declared_at, in_use}`"
	return []route{
		{method: "GET", path: path, resource: "agents", role: agent.Viewer, handle: (*API).getDeclared,
			doc: doc{group: groupAgents, answer: answer}},
		{method: "PUT", path: path, resource: "agents", write: true, role: agent.Admin, handle: (*API).putDeclared,
			doc: doc{group: groupAgents, body: "`engines`: 1 to 16 names. They count for fires while the agent reports no inventory, as long-poll " +
				"agents do not", answer: answer}},
		{method: "DELETE", path: path, resource: "agents", write: true, role: agent.Admin, handle: (*API).deleteDeclared,
			doc: doc{group: groupAgents, answer: "204 cleared, also when nothing is declared"}},
	}
}

// firePublic is a fire (agent protocol H.6) and what we know beside it.
type firePublic struct {
	ID           string  `json:"id"`
	FireID       string  `json:"fire_id"`
	ScheduleID   string  `json:"schedule_id"`
	ScheduleName string  `json:"schedule_name"`
	Engine       string  `json:"engine"`
	Origin       string  `json:"origin"`
	SlotAt       *stamp  `json:"slot_at"`
	CommandID    *string `json:"command_id"`
	Status       string  `json:"status"`
	ScheduledFor stamp   `json:"scheduled_for"`
	FiredAt      stamp   `json:"fired_at"`
	AckedAt      *stamp  `json:"acked_at"`
	LatencyMS    *int64  `json:"latency_ms"`
	FinishedAt   *stamp  `json:"finished_at"`
	ErrorCode    *string `json:"error_code"`
	ErrorMessage *string `json:"error_message"`
}

func showFire(f *fire.Fire) firePublic {
	out := firePublic{ID: f.ID.String(), FireID: f.FireID.String(), ScheduleID: f.ScheduleID.String(), ScheduleName: f.ScheduleName,
		Engine: f.Engine, Origin: string(f.Origin), SlotAt: maybe(f.SlotAt), Status: string(f.Status), ScheduledFor: stamp(f.ScheduledFor),
		FiredAt: stamp(f.FiredAt), AckedAt: maybe(f.AckedAt), LatencyMS: f.LatencyMS, FinishedAt: maybe(f.FinishedAt),
		ErrorCode: f.ErrorCode, ErrorMessage: f.ErrorMessage}
	if f.CommandID != nil {
		id := f.CommandID.String()
		out.CommandID = &id
	}
	return out
}

// fireStatuses are the words of a status filter.
func fireStatuses() (out []string) {
	for _, s := range fire.Statuses() {
		out = append(out, string(s))
	}
	return out
}

func (a *API) listFires(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := fire.Filter{Status: fire.Status(q.oneOf("status", fireStatuses()...)), ScheduleID: q.id("schedule_id"), Since: q.time("since")}
	page := a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return serveList(a, w, c, page, lister[fire.Fire, firePublic]{
		read:  func(p agent.Page) ([]fire.Fire, error) { return a.Fires.List(c.Context(), c.project.No, f, p) },
		show:  showFire,
		place: (*fire.Fire).Place,
	})
}

func (a *API) getFire(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	f, err := a.Fires.Get(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showFire(&f))
}

// Defaults of lists of fires (agent protocol H.6).
const (
	firesShown = 100
	runsShown  = 10
)

func (a *API) scheduleFires(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	q := c.query()
	limit := q.number("limit", firesShown, fire.MaxOfSchedule)
	if err := q.err(); err != nil {
		return err
	}
	fires, err := a.Fires.OfSchedule(c.Context(), c.project.No, id, limit)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(fires, showFire))
}

func (a *API) scheduleRuns(w http.ResponseWriter, c *call) error {
	q := c.query()
	limit := q.number("limit", runsShown, fire.MaxRuns)
	if err := q.err(); err != nil {
		return err
	}
	fires, err := a.Fires.Runs(c.Context(), c.project.No, limit)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(fires, showFire))
}

type fireCandidate struct {
	AgentID  string      `json:"agent_id"`
	Name     string      `json:"name"`
	State    agent.State `json:"state"`
	Engines  []string    `json:"engines"`
	Declared bool        `json:"declared"`
	Eligible bool        `json:"eligible"`
	Reason   string      `json:"reason"`
}

func showFireCandidate(c *fire.Candidate) fireCandidate {
	return fireCandidate{AgentID: c.AgentID.String(), Name: c.Agent, State: c.State, Engines: texts(c.Engines), Declared: c.Declared,
		Eligible: c.Eligible, Reason: c.Reason}
}

func (a *API) explainFire(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	e, err := a.Fires.Explain(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		Fire       firePublic      `json:"fire"`
		Summary    string          `json:"summary"`
		Sentences  []string        `json:"sentences"`
		WaitingFor *string         `json:"waiting_for"`
		Candidates []fireCandidate `json:"candidates"`
		Next       nextPublic      `json:"next"`
		ExpiresAt  *stamp          `json:"expires_at"`
	}{showFire(&e.Fire), e.Summary, texts(e.Sentences), orNull(e.WaitingFor), each(e.Candidates, showFireCandidate),
		nextPublic{e.Next.What, maybe(e.Next.At)}, maybe(e.ExpiresAt)})
}

func (a *API) explainSchedule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	e, err := a.Fires.ExplainSchedule(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		ScheduleID string     `json:"schedule_id"`
		Name       string     `json:"name"`
		Summary    string     `json:"summary"`
		Sentences  []string   `json:"sentences"`
		Buffered   int        `json:"buffered"`
		ExpiresAt  *stamp     `json:"expires_at"`
		Next       nextPublic `json:"next"`
	}{e.Schedule.ID.String(), e.Schedule.Name, e.Summary, texts(e.Sentences), e.Buffered, maybe(e.ExpiresAt),
		nextPublic{e.Next.What, maybe(e.Next.At)}})
}

// declaredPublic is what was declared of an agent's engines.
type declaredPublic struct {
	AgentID    string   `json:"agent_id"`
	Engines    []string `json:"engines"`
	DeclaredBy *string  `json:"declared_by"`
	DeclaredAt *stamp   `json:"declared_at"`
	InUse      bool     `json:"in_use"`
}

func showDeclared(id uuid.UUID, d *fire.Declaration) declaredPublic {
	return declaredPublic{AgentID: id.String(), Engines: texts(d.Engines), DeclaredBy: orNull(d.By), DeclaredAt: maybe(d.At), InUse: d.InUse}
}

func (a *API) getDeclared(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	d, err := a.Fires.Declaration(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showDeclared(id, &d))
}

func (a *API) putDeclared(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("engines")
	engines := b.texts("engines", fire.MaxDeclared)
	if b.err() == nil && len(engines) == 0 {
		b.bad("engines", "must name at least one engine; DELETE clears what is declared")
	}
	if err := b.err(); err != nil {
		return err
	}
	d, err := a.Fires.Declare(c.Context(), c.who, c.project.No, id, engines)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showDeclared(id, &d))
}

func (a *API) deleteDeclared(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if _, err := a.Fires.Declare(c.Context(), c.who, c.project.No, id, nil); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
