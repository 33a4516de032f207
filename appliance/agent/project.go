package agent

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// Defaults of a new project (agent protocol A.1).
const (
	DefaultEnvironment    = "production"
	DefaultTimezone       = "UTC"
	DefaultRetentionDays  = 30
	DefaultSchedulerOwner = "z4j-scheduler"
	firstProjectSlug      = "default"
)

const (
	maxNameLen        = 200
	maxDescriptionLen = 2000
	maxTimezoneLen    = 64
	maxRetentionDays  = 3650
	maxSchedulers     = 32
)

var (
	slugRule  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,48}[a-z0-9]$`)
	slugPath  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,48}[a-z0-9]$`)
	ownerRule = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)
	zoneRule  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)
)

// NewProject asks for a project. Empty and zero fields take their defaults; Slug and Name are required.
type NewProject struct {
	Slug                  string
	Name                  string
	Description           *string
	Environment           string
	Timezone              string
	RetentionDays         *int
	DefaultSchedulerOwner string
	AllowedSchedulers     []string // nil: unrestricted
}

// Change is one field of a patch: the zero Change keeps what is there.
type Change[T any] struct {
	Set bool
	To  T
}

// SetTo is the Change to a value.
func SetTo[T any](v T) Change[T] { return Change[T]{Set: true, To: v} }

func (c Change[T]) apply(field *T) {
	if c.Set {
		*field = c.To
	}
}

// ProjectPatch changes some fields of a project.
type ProjectPatch struct {
	Slug                  Change[string]
	Name                  Change[string]
	Description           Change[*string]
	Environment           Change[string]
	Timezone              Change[string]
	RetentionDays         Change[int]
	DefaultSchedulerOwner Change[string]
	AllowedSchedulers     Change[[]string] // nil: unrestricted
}

// fields names what the patch changes, for the audit row.
func (p *ProjectPatch) fields() []string {
	var out []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"slug", p.Slug.Set}, {"name", p.Name.Set}, {"description", p.Description.Set},
		{"environment", p.Environment.Set}, {"timezone", p.Timezone.Set}, {"retention_days", p.RetentionDays.Set},
		{"default_scheduler_owner", p.DefaultSchedulerOwner.Set}, {"allowed_schedulers", p.AllowedSchedulers.Set},
	} {
		if f.set {
			out = append(out, f.name)
		}
	}
	return out
}

// Apply returns the project with the patch on it.
func (p *ProjectPatch) Apply(to Project) Project {
	p.Slug.apply(&to.Slug)
	p.Name.apply(&to.Name)
	p.Description.apply(&to.Description)
	p.Environment.apply(&to.Environment)
	p.Timezone.apply(&to.Timezone)
	p.RetentionDays.apply(&to.RetentionDays)
	p.DefaultSchedulerOwner.apply(&to.DefaultSchedulerOwner)
	p.AllowedSchedulers.apply(&to.AllowedSchedulers)
	return to
}

// ValidSlugPath tells whether a slug in a path can name a project at all; one that cannot is answered NotFound without
// a lookup (agent protocol A.1).
func ValidSlugPath(slug string) bool { return slugPath.MatchString(slug) }

// Validate checks every field of a project against agent protocol A.1 and names the first that breaks its rule. A bad
// slug is a Conflict, as a taken one is (agent protocol H.4); everything else is Invalid.
func (p *Project) Validate() error {
	if !slugRule.MatchString(p.Slug) {
		return fault.New(fault.Conflict,
			"slug: must be 3..50 characters of a-z, 0-9 and hyphen, with no hyphen at either end").With("field", "slug")
	}
	if err := checkLabel("name", p.Name); err != nil {
		return err
	}
	if p.Description != nil {
		if err := checkText("description", *p.Description, maxDescriptionLen); err != nil {
			return err
		}
	}
	if !ownerRule.MatchString(p.Environment) {
		return fault.Field("environment", "%s", ownerText)
	}
	if utf8.RuneCountInString(p.Timezone) > maxTimezoneLen || !zoneRule.MatchString(p.Timezone) {
		return fault.Field("timezone", "must be a time zone name of at most %d characters, such as Europe/Berlin",
			maxTimezoneLen)
	}
	if p.RetentionDays < 1 || p.RetentionDays > maxRetentionDays {
		return fault.Field("retention_days", "must be 1..%d", maxRetentionDays)
	}
	if !ownerRule.MatchString(p.DefaultSchedulerOwner) {
		return fault.Field("default_scheduler_owner", "%s", ownerText)
	}
	if len(p.AllowedSchedulers) > maxSchedulers {
		return fault.Field("allowed_schedulers", "must have at most %d names", maxSchedulers)
	}
	for _, s := range p.AllowedSchedulers {
		if !ownerRule.MatchString(s) {
			return fault.Field("allowed_schedulers", "each name %s", ownerText)
		}
	}
	return nil
}

const ownerText = "must start with a-z and have at most 40 characters of a-z, 0-9, underscore and hyphen"

// checkLabel checks a one-line name of 1..200 characters.
func checkLabel(field, s string) error {
	if n := utf8.RuneCountInString(s); n < 1 || n > maxNameLen {
		return fault.Field(field, "must have 1..%d characters", maxNameLen)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fault.Field(field, "must not hold control characters")
	}
	if strings.TrimSpace(s) == "" {
		return fault.Field(field, "must not be blank")
	}
	return nil
}

// checkText checks a text that may have several lines.
func checkText(field, s string, limit int) error {
	if utf8.RuneCountInString(s) > limit {
		return fault.Field(field, "must have at most %d characters", limit)
	}
	bad := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, bad) {
		return fault.Field(field, "must not hold control characters")
	}
	return nil
}

// project fills the defaults in.
func (n *NewProject) project() Project {
	p := Project{
		Slug: n.Slug, Name: n.Name, Description: n.Description, Environment: n.Environment, Timezone: n.Timezone,
		RetentionDays: DefaultRetentionDays, IsActive: true, DefaultSchedulerOwner: n.DefaultSchedulerOwner,
		AllowedSchedulers: slices.Clone(n.AllowedSchedulers),
	}
	orDefault(&p.Environment, DefaultEnvironment)
	orDefault(&p.Timezone, DefaultTimezone)
	orDefault(&p.DefaultSchedulerOwner, DefaultSchedulerOwner)
	if n.RetentionDays != nil {
		p.RetentionDays = *n.RetentionDays
	}
	return p
}

func orDefault(s *string, def string) {
	if *s == "" {
		*s = def
	}
}

// CreateProject stores a new active project. Conflict for a bad or taken slug, Invalid for another bad field.
func (d *Directory) CreateProject(ctx context.Context, who Principal, n NewProject) (Project, error) {
	p := n.project()
	if err := p.Validate(); err != nil {
		return Project{}, err
	}
	err := d.st.Update(ctx, "create project", func(tx DirectoryTx) error { return d.createProject(tx, who, &p) })
	if err != nil {
		return Project{}, err
	}
	return p, nil
}

func (d *Directory) createProject(tx DirectoryTx, who Principal, p *Project) error {
	id, err := newID()
	if err != nil {
		return err
	}
	p.ID, p.CreatedAt, p.UpdatedAt = id, tx.Now(), tx.Now()
	if p.No, err = tx.InsertProject(*p); err != nil {
		return slugTaken(err, p.Slug)
	}
	return d.record(tx, who, "project.created", p.No, "project", p.ID.String(), map[string]any{"slug": p.Slug})
}

func slugTaken(err error, slug string) error {
	if fault.Is(err, fault.Conflict) {
		return fault.Wrap(fault.Conflict, err, "slug: is taken").With("field", "slug").With("slug", slug)
	}
	return err
}

// EnsureFirstProject creates the project "default" in a database that never had one, and tells whether it did.
func (d *Directory) EnsureFirstProject(ctx context.Context) (created bool, err error) {
	var total int
	count := func(tx DirectoryReadTx) (err error) {
		_, total, err = tx.CountProjects()
		return err
	}
	if err := d.st.View(ctx, count); err != nil || total > 0 {
		return false, err
	}
	n := NewProject{Slug: firstProjectSlug, Name: "Default"}
	err = d.st.Update(ctx, "create first project", func(tx DirectoryTx) error {
		created = false
		if err := count(tx); err != nil || total > 0 {
			return err
		}
		p := n.project()
		created = true
		return d.createProject(tx, Principal{}, &p)
	})
	return created && err == nil, err
}

// GetProject finds an active project by its slug; an archived one is NotFound unless asked for.
func (d *Directory) GetProject(ctx context.Context, slug string, includeArchived bool) (Project, error) {
	var p Project
	if !ValidSlugPath(slug) {
		return p, fault.New(fault.NotFound, "project not found")
	}
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		p, err = projectBySlug(tx, slug, includeArchived)
		return err
	})
	return p, err
}

func projectBySlug(tx DirectoryReadTx, slug string, includeArchived bool) (Project, error) {
	if !ValidSlugPath(slug) {
		return Project{}, fault.New(fault.NotFound, "project not found")
	}
	p, err := tx.ProjectBySlug(slug)
	if err != nil {
		return Project{}, named(err, "project")
	}
	if !p.IsActive && !includeArchived {
		return Project{}, fault.New(fault.NotFound, "project not found")
	}
	return p, nil
}

// ListProjects returns the projects by slug, the active ones or all.
func (d *Directory) ListProjects(ctx context.Context, includeArchived bool) ([]Project, error) {
	var out []Project
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		out, err = tx.Projects(includeArchived)
		return err
	})
	return out, err
}

// UpdateProject changes an active project. Errors as of CreateProject, and NotFound.
func (d *Directory) UpdateProject(ctx context.Context, who Principal, slug string, patch ProjectPatch) (Project, error) {
	var p Project
	err := d.st.Update(ctx, "update project", func(tx DirectoryTx) error {
		before, err := projectBySlug(tx, slug, false)
		if err != nil {
			return err
		}
		if p = patch.Apply(before); len(patch.fields()) == 0 {
			return nil
		}
		if err := p.Validate(); err != nil {
			return err
		}
		p.UpdatedAt = tx.Now()
		if err := tx.UpdateProject(p); err != nil {
			return slugTaken(err, p.Slug)
		}
		if err := d.opts.ProjectChanged(tx, p); err != nil {
			return err
		}
		meta := map[string]any{"slug": p.Slug, "fields": patch.fields()}
		if before.Slug != p.Slug {
			meta["previous_slug"] = before.Slug
		}
		return d.record(tx, who, "project.updated", p.No, "project", p.ID.String(), meta)
	})
	if err != nil {
		return Project{}, err
	}
	return p, nil
}

// ArchiveProject takes a project out of use: its agents are refused and its sessions woken to end. Archiving it again
// changes nothing. Conflict when it is the last active one.
func (d *Directory) ArchiveProject(ctx context.Context, who Principal, slug string) error {
	return d.st.Update(ctx, "archive project", func(tx DirectoryTx) error {
		p, err := projectBySlug(tx, slug, true)
		if err != nil || !p.IsActive {
			return err
		}
		active, _, err := tx.CountProjects()
		if err != nil {
			return err
		}
		if active <= 1 {
			return fault.New(fault.Conflict, "the last active project cannot be archived").With("slug", p.Slug)
		}
		_, err = d.setActive(tx, who, p, false, "project.archived")
		return err
	})
}

// ActivateProject brings an archived project back; its agents are admitted again. Activating an active one changes
// nothing.
func (d *Directory) ActivateProject(ctx context.Context, who Principal, slug string) (Project, error) {
	var p Project
	err := d.st.Update(ctx, "activate project", func(tx DirectoryTx) error {
		var err error
		if p, err = projectBySlug(tx, slug, true); err != nil || p.IsActive {
			return err
		}
		p, err = d.setActive(tx, who, p, true, "project.updated")
		return err
	})
	if err != nil {
		return Project{}, err
	}
	return p, nil
}

func (d *Directory) setActive(tx DirectoryTx, who Principal, p Project, active bool, action string) (Project, error) {
	p.IsActive, p.UpdatedAt = active, tx.Now()
	if err := tx.UpdateProject(p); err != nil {
		return p, err
	}
	if err := d.opts.ProjectChanged(tx, p); err != nil {
		return p, err
	}
	agents, err := tx.LiveAgentNos(p.No)
	if err != nil {
		return p, err
	}
	d.wakeAfter(tx, agents...)
	meta := map[string]any{"slug": p.Slug, "is_active": active}
	return p, d.record(tx, who, action, p.No, "project", p.ID.String(), meta)
}

// newID makes a random UUID.
func newID() (uuid.UUID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return id, fault.Wrap(fault.Internal, err, "make an id")
	}
	return id, nil
}
