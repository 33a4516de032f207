package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

var (
	_ agent.DirectoryTx     = (*Tx)(nil)
	_ agent.DirectoryReadTx = (*ReadTx)(nil)
)

const projectColumns = `p.project_no, p.id, p.slug, p.name, p.description, p.environment, p.timezone, p.retention_days,
	p.is_active, p.default_scheduler_owner, p.allowed_schedulers, p.created_at, p.updated_at`

// projectRow is where a project's columns are scanned to.
type projectRow struct {
	p       agent.Project
	allowed *string
}

func (r *projectRow) dest() []any {
	p := &r.p
	return []any{&p.No, &p.ID, &p.Slug, &p.Name, &p.Description, &p.Environment, &p.Timezone, &p.RetentionDays,
		&p.IsActive, &p.DefaultSchedulerOwner, &r.allowed, &p.CreatedAt, &p.UpdatedAt}
}

func (r *projectRow) project() (agent.Project, error) {
	if r.allowed != nil {
		if err := fromJSON(*r.allowed, &r.p.AllowedSchedulers); err != nil {
			return agent.Project{}, err
		}
	}
	return r.p, nil
}

func scanProject(row *Row) (agent.Project, error) {
	var r projectRow
	if err := row.Scan(r.dest()...); err != nil {
		return agent.Project{}, err
	}
	return r.project()
}

// ProjectBySlug finds a project, archived or not.
func (r *reader) ProjectBySlug(slug string) (agent.Project, error) {
	return scanProject(r.QueryRow(`SELECT `+projectColumns+` FROM projects p WHERE p.slug = ?`, slug))
}

// ProjectByID finds a project, archived or not.
func (r *reader) ProjectByID(id uuid.UUID) (agent.Project, error) {
	return scanProject(r.QueryRow(`SELECT `+projectColumns+` FROM projects p WHERE p.id = ?`, id))
}

// Projects returns projects by slug.
func (r *reader) Projects(includeArchived bool) ([]agent.Project, error) {
	rows, err := r.Query(`SELECT `+projectColumns+` FROM projects p WHERE p.is_active = 1 OR ? ORDER BY p.slug`,
		includeArchived)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.Project{}
	for rows.Next() {
		var row projectRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		p, err := row.project()
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, rows.Err()
}

// CountProjects counts the active projects and all of them.
func (r *reader) CountProjects() (active, total int, err error) {
	err = r.QueryRow(`SELECT coalesce(sum(is_active), 0), count(*) FROM projects`).Scan(&active, &total)
	return active, total, err
}

// InsertProject stores a project and returns its number.
func (tx *Tx) InsertProject(p agent.Project) (int64, error) {
	allowed, err := jsonOrNull(p.AllowedSchedulers, p.AllowedSchedulers == nil)
	if err != nil {
		return 0, err
	}
	res, err := tx.Exec(`INSERT INTO projects (id, slug, name, description, environment, timezone, retention_days, is_active,
		default_scheduler_owner, allowed_schedulers, created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`,
		p.ID, p.Slug, p.Name, p.Description, p.Environment, p.Timezone, p.RetentionDays, p.IsActive,
		p.DefaultSchedulerOwner, allowed, p.CreatedAt, p.UpdatedAt)
	return res.LastInsertID(), err
}

// UpdateProject stores every changeable field of the project.
func (tx *Tx) UpdateProject(p agent.Project) error {
	allowed, err := jsonOrNull(p.AllowedSchedulers, p.AllowedSchedulers == nil)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE projects SET slug = ?, name = ?, description = ?, environment = ?, timezone = ?,
		retention_days = ?, is_active = ?, default_scheduler_owner = ?, allowed_schedulers = ?, updated_at = ?
		WHERE project_no = ?`,
		p.Slug, p.Name, p.Description, p.Environment, p.Timezone, p.RetentionDays, p.IsActive,
		p.DefaultSchedulerOwner, allowed, p.UpdatedAt, p.No)
	return err
}

// jsonText encodes a value for a JSON column.
func jsonText(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "encode a JSON column")
	}
	return string(b), nil
}

// jsonOrNull is jsonText, or NULL.
func jsonOrNull(v any, null bool) (*string, error) {
	if null {
		return nil, nil
	}
	s, err := jsonText(v)
	return &s, err
}

// jsonList encodes a list; nil is the empty list.
func jsonList(list []string) (string, error) {
	if list == nil {
		list = []string{}
	}
	return jsonText(list)
}

// fromJSON decodes a JSON column that this package wrote.
func fromJSON(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fault.Wrap(fault.Internal, err, "decode a JSON column")
	}
	return nil
}

// nonZero is nil for the zero time, which a NULL is scanned to.
func nonZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// orNull is the zero time, which is bound as NULL, for nil.
func orNull(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// scanIDs collects the ids that a query of one column gives.
func (r *reader) scanIDs(query string, args ...any) ([]uuid.UUID, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []uuid.UUID
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, rows.Err()
}
