package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/transport"
)

// scheduleFields are the fields of a schedule that a request may set.
var scheduleFields = []string{"name", "engine", "kind", "expression", "task_name", "timezone", "queue", "priority", "args", "kwargs",
	"catch_up", "is_enabled", "external_id", "source", "source_hash"}

// json is an optional value, as it came; nil when it is absent.
func (b *body) json(name string) *[]byte {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	text := append([]byte(nil), v.Raw()...)
	return &text
}

// definition reads a schedule from an object.
func (b *body) definition() schedule.Definition {
	d := schedule.Definition{Name: b.required("name"), Engine: b.required("engine"), Kind: schedule.Kind(b.required("kind")),
		Expression: b.required("expression"), TaskName: b.required("task_name"), Scheduler: orEmpty(b.text("scheduler")),
		Timezone: orEmpty(b.text("timezone")), Queue: b.text("queue"), Priority: orEmpty(b.text("priority")),
		CatchUp: schedule.CatchUp(orEmpty(b.text("catch_up"))), IsEnabled: b.flag("is_enabled"), ExternalID: b.text("external_id"),
		Source: orEmpty(b.text("source")), SourceHash: b.text("source_hash")}
	if args := b.json("args"); args != nil {
		d.Args = *args
	}
	if kwargs := b.json("kwargs"); kwargs != nil {
		d.Kwargs = *kwargs
	}
	return d
}

func (a *API) createSchedule(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only(append([]string{"scheduler"}, scheduleFields...)...)
	d := b.definition()
	if err := b.err(); err != nil {
		return err
	}
	s, err := a.Schedules.Create(c.Context(), c.who, c.project, d)
	if err != nil {
		return err
	}
	return a.replyWarned(w, c, http.StatusCreated, &s)
}

// schedulePublicWarned is a schedule with what speaks against that its fires are run.
type schedulePublicWarned struct {
	schedulePublic
	Warnings []string `json:"warnings"`
}

// replyWarned answers with a schedule that was made or changed.
func (a *API) replyWarned(w http.ResponseWriter, c *call, status int, s *schedule.Shown) error {
	return reply(w, c, status, schedulePublicWarned{showSchedule(s), a.engineWarnings(c, s.Scheduler, s.Engine)})
}

// engineWarnings warns of engines of a scheduler that no agent lists. The change is durable already: a failure to look is
// logged and warns of nothing.
func (a *API) engineWarnings(c *call, scheduler string, engines ...string) []string {
	if scheduler != schedule.Own {
		return []string{}
	}
	warnings, err := a.Fires.Warnings(c.Context(), c.project.No, engines...)
	if err != nil {
		a.opts.Log.Warn().Err(err).Msg("engines of schedules not looked at")
	}
	return texts(warnings)
}

func (a *API) patchSchedule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	if b.has("scheduler") {
		b.bad("scheduler", "cannot be changed")
	} else {
		b.only(scheduleFields...)
	}
	var p schedule.Patch
	change(b, "name", b.text, &p.Name)
	change(b, "engine", b.text, &p.Engine)
	change(b, "expression", b.text, &p.Expression)
	change(b, "timezone", b.text, &p.Timezone)
	change(b, "task_name", b.text, &p.TaskName)
	change(b, "priority", b.text, &p.Priority)
	change(b, "args", b.json, &p.Args)
	change(b, "kwargs", b.json, &p.Kwargs)
	change(b, "is_enabled", b.flag, &p.IsEnabled)
	change(b, "source", b.text, &p.Source)
	if kind := b.text("kind"); kind != nil {
		p.Kind = agent.SetTo(schedule.Kind(*kind))
	}
	if how := b.text("catch_up"); how != nil {
		p.CatchUp = agent.SetTo(schedule.CatchUp(*how))
	}
	for name, field := range map[string]*agent.Change[*string]{"queue": &p.Queue, "external_id": &p.ExternalID, "source_hash": &p.SourceHash} {
		if b.has(name) {
			*field = agent.SetTo(b.text(name))
		}
	}
	if err := b.err(); err != nil {
		return err
	}
	s, err := a.Schedules.Update(c.Context(), c.who, c.project.No, id, p)
	if err != nil {
		return err
	}
	return a.replyWarned(w, c, http.StatusOK, &s)
}

func (a *API) deleteSchedule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	q := c.query()
	forget := q.flag("forget", false)
	if err := q.err(); err != nil {
		return err
	}
	if err := a.Schedules.Delete(c.Context(), c.who, c.project.No, id, forget); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func enableSchedule(enabled bool) handler {
	return func(a *API, w http.ResponseWriter, c *call) error {
		id, err := c.pathID("id")
		if err != nil {
			return err
		}
		s, err := a.Schedules.SetEnabled(c.Context(), c.who, c.project.No, id, enabled)
		if err != nil {
			return err
		}
		return a.replyWarned(w, c, http.StatusOK, &s)
	}
}

type firedPublic struct {
	FireID    string     `json:"fire_id"`
	CommandID *uuid.UUID `json:"command_id"`
	Buffered  bool       `json:"buffered"`
	Repeated  bool       `json:"repeated"`
}

func (a *API) triggerSchedule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.bodyOr("{}")
	if err != nil {
		return err
	}
	defer b.release()
	b.only("fire_id")
	fireID := uuid.Nil
	if given := b.id("fire_id"); given != nil {
		fireID = *given
	}
	if err := b.err(); err != nil {
		return err
	}
	done, err := a.Schedules.Trigger(c.Context(), c.who, c.project.No, id, fireID)
	if err != nil {
		return err
	}
	out := struct {
		schedulePublic
		Fire *firedPublic `json:"fire"`
	}{schedulePublic: showSchedule(&done.Schedule)}
	if f := done.Fire; f != nil {
		out.Fire = &firedPublic{f.FireID.String(), f.CommandID, f.Buffered, f.Repeated}
	}
	return reply(w, c, http.StatusOK, out)
}

type importChange struct {
	Action schedule.ImportAction `json:"action"`
	Name   string                `json:"name"`
	ID     *uuid.UUID            `json:"id"`
	Fields []string              `json:"fields"`
}

// importSchedules makes the project's schedules what the body says, or tells what that would change.
func importSchedules(apply bool) handler {
	return func(a *API, w http.ResponseWriter, c *call) error {
		b, err := c.body()
		if err != nil {
			return err
		}
		defer b.release()
		in := b.importSet()
		if err := b.err(); err != nil {
			return err
		}
		var changes []schedule.ImportChange
		if apply {
			changes, err = a.Schedules.Apply(c.Context(), c.who, c.project, in)
		} else {
			changes, err = a.Schedules.Diff(c.Context(), c.project, in)
		}
		if err != nil {
			return err
		}
		engines := each(in.Schedules, func(d *schedule.Definition) string { return d.Engine })
		return reply(w, c, http.StatusOK, struct {
			Changes  []importChange `json:"changes"`
			Warnings []string       `json:"warnings"`
		}{each(changes, func(ch *schedule.ImportChange) importChange {
			return importChange{ch.Action, ch.Name, ch.ID, texts(ch.Fields)}
		}), a.engineWarnings(c, schedule.Own, engines...)}) // an import takes our scheduler's alone
	}
}

func (b *body) importSet() schedule.Import {
	b.only("source", "schedules", "prune", "adopt", "confirm_count")
	in := schedule.Import{Source: b.required("source"), Prune: isTrue(b.flag("prune")), Adopt: isTrue(b.flag("adopt")),
		ConfirmCount: b.int("confirm_count")}
	v := b.root.Get("schedules")
	if v.Kind() != rawjson.Array || v.Len() > schedule.MaxImport {
		b.bad("schedules", "must be a list of at most %d objects", schedule.MaxImport)
		return in
	}
	for i, e := range v.Each() {
		item := &body{doc: b.doc, root: e, prefix: fmt.Sprintf("schedules[%d].", i)}
		if e.Kind() != rawjson.Object {
			b.bad(fmt.Sprintf("schedules[%d]", i), "must be an object")
			continue
		}
		item.only(append([]string{"scheduler"}, scheduleFields...)...)
		in.Schedules = append(in.Schedules, item.definition())
		if b.items = append(b.items, item.items...); len(b.items) > 50 {
			break
		}
	}
	return in
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

func (a *API) resyncSchedules(w http.ResponseWriter, c *call) error {
	done, err := a.Schedules.Resync(c.Context(), c.who, c.project.No)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusAccepted, struct {
		AgentsDispatched   int `json:"agents_dispatched"`
		SchedulersObserved int `json:"schedulers_observed"`
	}{done.AgentsDispatched, done.SchedulersObserved})
}

// recordScheduleRefusal writes the audit row of a refused change of schedules (agent protocol H.6). Refusals without a known
// credential leave one row for an address and window, so that strangers do not fill the log.
func (a *API) recordScheduleRefusal(r *http.Request, c *call, refused error) {
	var who agent.Principal
	var projectNo int64
	if c != nil { // otherwise nobody knows who it was
		who, projectNo = c.who, c.project.No
	}
	action := "schedules.access."
	switch fault.CodeOf(refused) {
	case fault.Unauthenticated:
		action += "unauth"
	case fault.Forbidden, fault.IPDenied:
		action += "denied"
	case fault.NotFound:
		action += "not_found"
	case fault.Invalid, fault.Conflict, fault.TooLarge:
		action += "invalid"
	default:
		return
	}
	ip := who.SourceIP
	release := func() {}
	if who.ID == "" {
		ip = transport.AddrKey(transport.ClientAddr(r.Context()))
		if a.opts.Refusals == nil {
			return
		}
		claim, ok := a.opts.Refusals.Claim(action, ip)
		if !ok {
			return
		}
		release = func() { a.opts.Refusals.Release(claim) }
	}
	meta := map[string]string{"method": r.Method, "path": cut(r.URL.Path, 200), "error": string(fault.CodeOf(refused)),
		"message": cut(fault.Message(refused), 300)}
	if field, ok := fault.Details(refused)["field"].(string); ok {
		meta["field"] = cut(field, 100)
	}
	metadata, err := json.Marshal(meta)
	if err == nil {
		e := audit.Entry{ProjectNo: projectNo, Action: action, TargetType: "schedule", Result: audit.Failed, Outcome: audit.Deny, Metadata: metadata}
		e.UserID, e.SourceIP, e.UserAgent = orNull(who.ID), orNull(ip), orNull(r.UserAgent())
		if id := r.PathValue("id"); len(id) <= 64 {
			e.TargetID = orNull(id)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), refusalTimeout)
		defer cancel()
		err = a.Directory.RecordRefusal(ctx, e)
	}
	if err != nil {
		release()
		a.opts.Log.Warn().Err(err).Str("action", action).Msg("audit row of a refusal not written")
	}
}

// changesSchedules tells whether a route is one whose refusals are audited.
func (rt *route) changesSchedules() bool {
	return rt.write && strings.HasPrefix(rt.path, schedulesBase)
}
