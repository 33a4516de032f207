package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// MaxImport is how many schedules one import may hold.
const MaxImport = 1000

// Import is a set of schedules from one source, such as a file that is kept under version control. What it says of a
// schedule is the whole of it: fields that it leaves out take their defaults, but is_enabled keeps what is there.
type Import struct {
	Source    string // of every schedule of the set
	Prune     bool   // delete the source's schedules that the set does not hold
	Adopt     bool   // take over schedules of the same name from other sources
	Schedules []Definition
	// ConfirmCount is the number of schedules that the caller means to delete; nil says nothing. See confirmed.
	ConfirmCount *int
}

// ImportAction says what an import does with one schedule.
type ImportAction string

// The actions.
const (
	ImportCreate    ImportAction = "create"
	ImportUpdate    ImportAction = "update"
	ImportUnchanged ImportAction = "unchanged"
	ImportDelete    ImportAction = "delete"
)

// ImportChange is what an import does with one schedule.
type ImportChange struct {
	Action ImportAction
	Name   string
	ID     *uuid.UUID // nil: it is not there yet
	Fields []string   // of ImportUpdate: the fields that change
}

// Diff tells what Apply would do, in the order of the set, deletions last. Errors are those of Apply.
func (s *Schedules) Diff(ctx context.Context, p agent.Project, in Import) (out []ImportChange, err error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	err = s.st.View(ctx, func(tx ReadTx) error {
		steps, err := in.plan(tx, p)
		out = changes(steps)
		return err
	})
	return out, err
}

// Apply makes the project's schedules what the set says, all or nothing, and returns what it did. Doing it again changes
// nothing. Errors: Invalid naming the schedule, field and rule; Conflict for a schedule of the same name that has another
// source, unless Adopt is set; Invalid of confirm_count, with the count, when more than half of the source's schedules would be
// deleted and the caller did not say how many.
func (s *Schedules) Apply(ctx context.Context, who agent.Principal, p agent.Project, in Import) (out []ImportChange, err error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	err = s.st.Update(ctx, "import schedules", func(tx Tx) error {
		steps, err := in.plan(tx, p)
		if err != nil {
			return err
		}
		if err := in.confirmed(steps); err != nil {
			return err
		}
		for i := range steps {
			if err := s.apply(tx, who, p, &steps[i]); err != nil {
				return within(steps[i].at, err)
			}
		}
		out = changes(steps)
		return nil
	})
	return out, err
}

// step is a change with what is needed to make it.
type step struct {
	ImportChange
	at          string // place in the set
	def         Definition
	before, row Schedule
}

func changes(steps []step) []ImportChange {
	out := make([]ImportChange, len(steps))
	for i := range steps {
		out[i] = steps[i].ImportChange
	}
	return out
}

func (s *Schedules) apply(tx Tx, who agent.Principal, p agent.Project, st *step) error {
	switch st.Action {
	case ImportCreate:
		row, err := s.create(tx, who, p, st.def)
		st.ID = &row.ID
		return err
	case ImportUpdate:
		return s.change(tx, who, st.before, &st.row, "schedule.updated")
	case ImportDelete:
		return s.delete(tx, who, &st.before)
	}
	return nil
}

// within says in which schedule of the set a field broke its rule.
func within(at string, err error) error {
	var e *fault.Error
	if at == "" || !errors.As(err, &e) || e.Details["field"] == nil {
		return err
	}
	field, _ := e.Details["field"].(string)
	moved := *e
	moved.Msg = at + "." + e.Msg
	moved.Details = maps.Clone(e.Details)
	moved.Details["field"] = at + "." + field
	return &moved
}

// check looks at the set by itself.
func (in *Import) check() error {
	if err := checkText("source", in.Source, 1, maxSource); err != nil {
		return err
	}
	if len(in.Schedules) > MaxImport {
		return fault.Field("schedules", "must have at most %d entries", MaxImport)
	}
	first := map[string]int{}
	for i := range in.Schedules {
		d := &in.Schedules[i]
		at := fmt.Sprintf("schedules[%d]", i)
		if d.Scheduler != "" && d.Scheduler != Own {
			return within(at, fault.Field("scheduler", "must be %s: schedules of another scheduler are imported there", Own))
		}
		d.Source = in.Source
		row := d.schedule()
		if err := row.validate(); err != nil {
			return within(at, err)
		}
		if before, twice := first[d.Name]; twice {
			return within(at, fault.Field("name", "is that of schedules[%d] too", before))
		}
		first[d.Name] = i
	}
	return nil
}

// confirmed refuses to delete more than half of the source's schedules, or another number of them than the caller says: a
// file that came out empty must not take everything away.
func (in *Import) confirmed(steps []step) error {
	deletes, held := 0, 0
	for i := range steps {
		switch before := &steps[i].before; {
		case steps[i].Action == ImportDelete:
			deletes++
		case before.No != 0 && before.Source == in.Source:
			held++
		}
	}
	if n := in.ConfirmCount; n != nil && *n != deletes || n == nil && deletes > held {
		return fault.Field("confirm_count", "must be %d to delete %d of the %d schedules of the source %s", deletes, deletes, deletes+held,
			in.Source).With("count", deletes)
	}
	return nil
}

// plan compares the set with what is there.
func (in *Import) plan(tx ReadTx, p agent.Project) ([]step, error) {
	var out []step
	held := map[int64]bool{}
	for i := range in.Schedules {
		st := step{at: fmt.Sprintf("schedules[%d]", i), def: in.Schedules[i]}
		st.Name = st.def.Name
		before, err := tx.ScheduleByName(p.No, Own, st.Name)
		switch {
		case fault.Is(err, fault.NotFound):
			st.Action = ImportCreate
			row := st.def.schedule()
			if err := row.settle(nil, tx.Now()); err != nil {
				return nil, within(st.at, err)
			}
		case err != nil:
			return nil, err
		default:
			if before.Source != in.Source && !in.Adopt {
				return nil, within(st.at, fault.New(fault.Conflict, "name: %q is there from the source %q; import with adopt (--adopt) "+
					"to take it over", st.Name, before.Source).With("field", "name"))
			}
			held[before.No] = true
			if err := st.update(before, tx); err != nil {
				return nil, within(st.at, err)
			}
		}
		out = append(out, st)
	}
	if !in.Prune {
		return out, nil
	}
	for page := (Page{Limit: 500}); ; {
		rows, err := tx.ScheduleList(p.No, Filter{Scheduler: Own, Source: in.Source}, page)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			if !held[row.No] {
				out = append(out, step{ImportChange: ImportChange{Action: ImportDelete, Name: row.Name, ID: &row.ID}, before: row})
			}
		}
		if len(rows) < page.Limit {
			return out, nil
		}
		page.AfterName, page.AfterID = rows[len(rows)-1].Name, rows[len(rows)-1].ID
	}
}

// update compares one definition with the schedule that is there.
func (st *step) update(before Schedule, tx ReadTx) error {
	row := st.def.schedule()
	if st.def.IsEnabled == nil {
		row.IsEnabled = before.IsEnabled
	}
	next := before
	next.Engine, next.Kind, next.Expression, next.Timezone = row.Engine, row.Kind, row.Expression, row.Timezone
	next.TaskName, next.Queue, next.Priority, next.Args, next.Kwargs = row.TaskName, row.Queue, row.Priority, row.Args, row.Kwargs
	next.CatchUp, next.IsEnabled, next.ExternalID = row.CatchUp, row.IsEnabled, row.ExternalID
	next.Source, next.SourceHash = row.Source, row.SourceHash
	st.ID, st.before, st.row = &before.ID, before, next
	if st.Fields = differing(&before, &next); len(st.Fields) == 0 {
		st.Action = ImportUnchanged
		return nil
	}
	st.Action = ImportUpdate
	settled := next
	return settled.settle(&before, tx.Now())
}
