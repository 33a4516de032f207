package api

import (
	"net/http"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// projectPublic is ProjectPublic (agent protocol H.4).
type projectPublic struct {
	ID                    string   `json:"id"`
	Slug                  string   `json:"slug"`
	Name                  string   `json:"name"`
	Description           *string  `json:"description"`
	Environment           string   `json:"environment"`
	Timezone              string   `json:"timezone"`
	RetentionDays         int      `json:"retention_days"`
	IsActive              bool     `json:"is_active"`
	DefaultSchedulerOwner string   `json:"default_scheduler_owner"`
	AllowedSchedulers     []string `json:"allowed_schedulers"`
	CreatedAt             stamp    `json:"created_at"`
	UpdatedAt             stamp    `json:"updated_at"`
}

func showProject(p *agent.Project) projectPublic {
	return projectPublic{ID: p.ID.String(), Slug: p.Slug, Name: p.Name, Description: p.Description,
		Environment: p.Environment, Timezone: p.Timezone, RetentionDays: p.RetentionDays, IsActive: p.IsActive,
		DefaultSchedulerOwner: p.DefaultSchedulerOwner, AllowedSchedulers: p.AllowedSchedulers,
		CreatedAt: stamp(p.CreatedAt), UpdatedAt: stamp(p.UpdatedAt)}
}

// listProjects lists what the principal may see: a key bound to a project sees that one.
func (a *API) listProjects(w http.ResponseWriter, c *call) error {
	q := c.query()
	archived := q.flag("include_archived", false)
	if err := q.err(); err != nil {
		return err
	}
	if archived {
		if err := agent.Authorize(c.who, "projects", false, agent.Admin, nil); err != nil {
			return err
		}
	}
	all, err := a.Directory.ListProjects(c.Context(), archived)
	if err != nil {
		return err
	}
	out := make([]projectPublic, 0, len(all))
	for i := range all {
		if c.who.ProjectID == nil || *c.who.ProjectID == all[i].ID {
			out = append(out, showProject(&all[i]))
		}
	}
	return reply(w, c, http.StatusOK, out)
}

func (a *API) createProject(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	n := agent.NewProject{Slug: b.required("slug"), Name: b.required("name"), Description: b.text("description"),
		Environment: orEmpty(b.text("environment")), Timezone: orEmpty(b.text("timezone")),
		RetentionDays: b.int("retention_days"), DefaultSchedulerOwner: orEmpty(b.text("default_scheduler_owner")),
		AllowedSchedulers: b.texts("allowed_schedulers", maxSchedulers)}
	if err := b.err(); err != nil {
		return err
	}
	p, err := a.Directory.CreateProject(c.Context(), c.who, n)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, showProject(&p))
}

// maxSchedulers bounds what is read of allowed_schedulers; the Directory has the rule.
const maxSchedulers = 1000

func (a *API) getProject(w http.ResponseWriter, c *call) error {
	return reply(w, c, http.StatusOK, showProject(&c.project))
}

// patchProject changes fields, or brings an archived project back: the one request that finds archived projects.
func (a *API) patchProject(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	if active := b.flag("is_active"); active != nil || b.err() != nil {
		return a.activateProject(w, c, b)
	}
	if !c.project.IsActive {
		return fault.New(fault.NotFound, "project not found")
	}
	var p agent.ProjectPatch
	change(b, "slug", b.text, &p.Slug)
	change(b, "name", b.text, &p.Name)
	change(b, "environment", b.text, &p.Environment)
	change(b, "timezone", b.text, &p.Timezone)
	change(b, "retention_days", b.int, &p.RetentionDays)
	change(b, "default_scheduler_owner", b.text, &p.DefaultSchedulerOwner)
	if b.has("description") {
		p.Description = agent.SetTo(b.text("description"))
	}
	if b.has("allowed_schedulers") {
		p.AllowedSchedulers = agent.SetTo(b.texts("allowed_schedulers", maxSchedulers))
	}
	if err := b.err(); err != nil {
		return err
	}
	updated, err := a.Directory.UpdateProject(c.Context(), c.who, c.project.Slug, p)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showProject(&updated))
}

// change sets the field when the body has it. A null leaves what is there.
func change[T any](_ *body, name string, read func(string) *T, field *agent.Change[T]) {
	if v := read(name); v != nil {
		*field = agent.SetTo(*v)
	}
}

// activateProject brings a project back. It stands alone, so that a refused field cannot leave half of a request done.
func (a *API) activateProject(w http.ResponseWriter, c *call, b *body) error {
	if b.err() == nil {
		if active, _ := b.root.Get("is_active").Bool(); !active {
			b.bad("is_active", "must be true; DELETE archives a project")
		} else if members(b.root) > 1 {
			b.bad("is_active", "must be the only field")
		}
	}
	if err := b.err(); err != nil {
		return err
	}
	if err := agent.Authorize(c.who, "projects", true, agent.Admin, nil); err != nil {
		return err
	}
	p, err := a.Directory.ActivateProject(c.Context(), c.who, c.project.Slug)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showProject(&p))
}

func members(v rawjson.Value) (n int) {
	for range v.EachMember() {
		n++
	}
	return n
}

func (a *API) archiveProject(w http.ResponseWriter, c *call) error {
	if err := a.Directory.ArchiveProject(c.Context(), c.who, c.PathValue("slug")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
