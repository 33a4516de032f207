package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
)

const groupSchedules = "Schedules"

// schedulesBase is where the routes of schedules begin, below Prefix.
const schedulesBase = "/projects/{slug}/schedules"

func scheduleRoutes() []route {
	const (
		fields = "`name`, `engine`, `kind`, `expression`, `task_name`; optional `timezone`, `queue`, `priority`, `args`, `kwargs`, " +
			"`catch_up`, `is_enabled`, `external_id`, `source`, `source_hash`"
		set = "`source`, `schedules` (at most 1000, fields as of POST), `prune`, `adopt`, `confirm_count`"
	)
	write := func(method, path, body, answer string, handle handler) route {
		return route{method: method, path: schedulesBase + path, resource: "schedules", write: true, role: agent.Operator,
			handle: handle, doc: doc{group: groupSchedules, body: body, answer: answer}}
	}
	return []route{
		{method: "GET", path: schedulesBase, resource: "schedules", role: agent.Viewer, handle: (*API).listSchedules,
			doc: doc{group: groupSchedules, query: "`engine`, `scheduler`, `source`, `enabled`, " + pageQuery,
				answer: "200 list of Schedule, by name"}},
		{method: "GET", path: schedulesBase + "/{id}", resource: "schedules", role: agent.Viewer, handle: (*API).getSchedule,
			doc: doc{group: groupSchedules, answer: "200 Schedule and `misfires`, at most 20, newest first: `{at, first_slot, last_slot, slots, reason}`"}},
		write("POST", "", fields+", `scheduler`", "201 Schedule and `warnings`: sentences, one when no agent of the project lists its engine; 409 for a taken name", (*API).createSchedule),
		write("PATCH", "/{id}", "any of the fields of POST but `scheduler`; null clears `queue`, `external_id`, `source_hash`",
			"200 Schedule and `warnings`, as of POST. Slots count from now when the timing changes or it is enabled", (*API).patchSchedule),
		write("DELETE", "/{id}", "", "204, with its fires. One of another scheduler is deleted there too: 409 when no online agent lists that "+
			"scheduler; `?forget=true` removes the record here alone", (*API).deleteSchedule),
		write("POST", "/{id}/enable", "", "200 Schedule and `warnings`", enableSchedule(true)),
		write("POST", "/{id}/disable", "", "200 Schedule and `warnings`", enableSchedule(false)),
		write("POST", "/{id}/trigger", "optional `fire_id`: a repeat with it answers with the same fire, at any time",
			"200 Schedule and `fire`: `{fire_id, command_id, buffered, repeated}`, null for another scheduler's, which got a command. 409 for a "+
				"disabled one, and for a `fire_id` that is the id of another schedule's fire or of a slot's; 429 too soon after the one before",
			(*API).triggerSchedule),
		write("POST", ":import", set, "200 `{changes, warnings}`: `changes` is an array of `{action: create|update|unchanged|delete, name, id, fields}`. "+
			"All or nothing; 409 for a schedule of another source unless `adopt`; 422 of `confirm_count`, with `count`, when `prune` would "+
			"delete more than half of the source's schedules and it is not that number", importSchedules(true)),
		{method: "POST", path: schedulesBase + ":diff", resource: "schedules", role: agent.Viewer, handle: importSchedules(false),
			doc: doc{group: groupSchedules, body: set, answer: "200 `{changes, warnings}` that `:import` would make and give; " +
				"changes nothing, so the scope is `schedules:read`"}},
		write("POST", ":resync", "", "202 `{agents_dispatched, schedulers_observed}`: every online agent is asked for the schedules of each "+
			"scheduler adapter that it lists", (*API).resyncSchedules),
	}
}

// schedulePublic is SchedulePublic (agent protocol H.6): the fields of G.1, and why a schedule was disabled by itself.
type schedulePublic struct {
	ID                  string           `json:"id"`
	ProjectID           string           `json:"project_id"`
	Engine              string           `json:"engine"`
	Scheduler           string           `json:"scheduler"`
	Name                string           `json:"name"`
	TaskName            string           `json:"task_name"`
	Kind                schedule.Kind    `json:"kind"`
	Expression          string           `json:"expression"`
	Timezone            string           `json:"timezone"`
	Queue               *string          `json:"queue"`
	Priority            string           `json:"priority"`
	Args                json.RawMessage  `json:"args"`
	Kwargs              json.RawMessage  `json:"kwargs"`
	IsEnabled           bool             `json:"is_enabled"`
	LastRunAt           *stamp           `json:"last_run_at"`
	NextRunAt           *stamp           `json:"next_run_at"`
	TotalRuns           int64            `json:"total_runs"`
	ExternalID          *string          `json:"external_id"`
	CatchUp             schedule.CatchUp `json:"catch_up"`
	Source              string           `json:"source"`
	SourceHash          *string          `json:"source_hash"`
	ConsecutiveFailures int              `json:"consecutive_failures"`
	SkippedSlots24h     int64            `json:"skipped_slots_24h"`
	DisabledReason      *string          `json:"disabled_reason"`
	CreatedAt           stamp            `json:"created_at"`
	UpdatedAt           stamp            `json:"updated_at"`
}

func showSchedule(s *schedule.Shown) schedulePublic {
	return schedulePublic{ID: s.ID.String(), ProjectID: s.ProjectID.String(), Engine: s.Engine, Scheduler: s.Scheduler, Name: s.Name,
		TaskName: s.TaskName, Kind: s.Kind, Expression: s.Expression, Timezone: s.Timezone, Queue: s.Queue, Priority: s.Priority,
		Args: raw(s.Args), Kwargs: raw(s.Kwargs), IsEnabled: s.IsEnabled, LastRunAt: maybe(s.LastRunAt), NextRunAt: maybe(s.NextRunAt),
		TotalRuns: s.TotalRuns, ExternalID: s.ExternalID, CatchUp: s.CatchUp, Source: s.Source, SourceHash: s.SourceHash,
		ConsecutiveFailures: s.ConsecutiveFailures, SkippedSlots24h: s.SkippedSlots24h, DisabledReason: s.DisabledReason,
		CreatedAt: stamp(s.CreatedAt), UpdatedAt: stamp(s.UpdatedAt)}
}

type misfirePublic struct {
	At        stamp                  `json:"at"`
	FirstSlot stamp                  `json:"first_slot"`
	LastSlot  stamp                  `json:"last_slot"`
	Slots     int64                  `json:"slots"`
	Reason    schedule.MisfireReason `json:"reason"`
}

func showMisfire(m *schedule.Misfire) misfirePublic {
	return misfirePublic{stamp(m.At), stamp(m.FirstSlot), stamp(m.LastSlot), m.Slots, m.Reason}
}

// encodeScheduleCursor writes the place of a schedule (agent protocol H.3): base64url of <name>|<uuid hex>.
func encodeScheduleCursor(s *schedule.Shown) string {
	return base64.RawURLEncoding.EncodeToString([]byte(s.Name + "|" + strings.ReplaceAll(s.ID.String(), "-", "")))
}

// maxScheduleCursor bounds what is decoded: a name of 200 characters has 800 bytes at most.
const maxScheduleCursor = 1200

// decodeScheduleCursor reads a cursor, encoded or plain; one that is malformed is the first page.
func decodeScheduleCursor(s string) (name string, id uuid.UUID) {
	if len(s) > maxScheduleCursor {
		return "", uuid.Nil
	}
	text := s
	if b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "=")); err == nil {
		text = string(b)
	}
	at := strings.LastIndexByte(text, '|')
	if at < 1 || len(text)-at-1 != 32 {
		return "", uuid.Nil
	}
	id, err := uuid.Parse(text[at+1:])
	if err != nil {
		return "", uuid.Nil
	}
	return text[:at], id
}

// maxSourceLen is the longest source (agent protocol G.1).
const maxSourceLen = 64

func (a *API) listSchedules(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := schedule.Filter{Engine: q.text("engine", maxEngineLen), Scheduler: q.text("scheduler", maxEngineLen), Source: q.text("source", maxSourceLen)}
	if q.values.Has("enabled") {
		enabled := q.flag("enabled", false)
		f.Enabled = &enabled
	}
	page := schedule.Page{Limit: a.page(q).Limit}
	page.AfterName, page.AfterID = decodeScheduleCursor(q.values.Get("cursor"))
	if err := q.err(); err != nil {
		return err
	}
	rows, err := a.Schedules.List(c.Context(), c.project.No, f, page)
	if err != nil {
		return err
	}
	out := list[schedulePublic]{Items: each(rows, showSchedule)}
	if len(rows) == page.Limit {
		next := encodeScheduleCursor(&rows[len(rows)-1])
		out.NextCursor = &next
	}
	return reply(w, c, http.StatusOK, out)
}

func (a *API) getSchedule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	s, misfires, err := a.Schedules.Get(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		schedulePublic
		Misfires []misfirePublic `json:"misfires"`
	}{showSchedule(&s), each(misfires, showMisfire)})
}
