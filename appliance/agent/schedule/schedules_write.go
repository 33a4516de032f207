package schedule

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// Create stores a schedule of the project. Errors: Invalid naming field and rule, also for a timing that never comes due;
// Conflict for a taken name and for a scheduler that the project does not allow.
func (s *Schedules) Create(ctx context.Context, who agent.Principal, p agent.Project, d Definition) (Shown, error) {
	var out Schedule
	err := s.st.Update(ctx, "create schedule", func(tx Tx) (err error) {
		out, err = s.create(tx, who, p, d)
		return err
	})
	return Shown{Schedule: out}, err
}

func (s *Schedules) create(tx Tx, who agent.Principal, p agent.Project, d Definition) (Schedule, error) {
	row := d.schedule()
	if err := row.validate(); err != nil {
		return row, err
	}
	if err := allowed(p, row.Scheduler); err != nil {
		return row, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return row, fault.Wrap(fault.Internal, err, "make an id")
	}
	row.ID, row.ProjectNo, row.ProjectID, row.CreatedAt, row.UpdatedAt = id, p.No, p.ID, tx.Now(), tx.Now()
	if err := row.settle(nil, tx.Now()); err != nil {
		return row, err
	}
	if row.No, err = tx.InsertSchedule(row); err != nil {
		return row, nameTaken(err)
	}
	s.wakeAfter(tx)
	return row, s.record(tx, who, "schedule.created", &row, map[string]any{"kind": row.Kind, "expression": row.Expression,
		"source": row.Source})
}

// allowed applies the project's list of schedulers (agent protocol A.1). Ours is part of the appliance and needs no leave.
func allowed(p agent.Project, scheduler string) error {
	if scheduler == Own || p.AllowedSchedulers == nil {
		return nil
	}
	for _, name := range p.AllowedSchedulers {
		if name == scheduler {
			return nil
		}
	}
	return fault.Field("scheduler", "must be %s or one of the project's allowed_schedulers", Own)
}

func nameTaken(err error) error {
	if fault.Is(err, fault.Conflict) {
		return fault.Wrap(fault.Conflict, err, "name: another schedule of this project and scheduler has it; update that one, or choose another name").With("field", "name")
	}
	return err
}

// Update changes fields of a schedule; a patch that changes nothing writes nothing. Slots count from now on when its timing
// changes or it is enabled. Errors as of Create, and NotFound.
func (s *Schedules) Update(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, patch Patch) (out Shown, err error) {
	err = s.st.Update(ctx, "update schedule", func(tx Tx) error {
		before, err := find(tx, projectNo, id)
		if err != nil {
			return err
		}
		row := before
		patch.apply(&row)
		if err := s.change(tx, who, before, &row, "schedule.updated"); err != nil {
			return err
		}
		out, err = show(tx, row)
		return err
	})
	return out, err
}

// change stores what differs between before and row, which is checked and settled.
func (s *Schedules) change(tx Tx, who agent.Principal, before Schedule, row *Schedule, action string) error {
	fields := differing(&before, row)
	if len(fields) == 0 {
		*row = before
		return nil
	}
	if err := row.validate(); err != nil {
		return err
	}
	if err := row.settle(&before, tx.Now()); err != nil {
		return err
	}
	if before.IsEnabled != row.IsEnabled && !row.Ours() {
		verb := "schedule.disable"
		if row.IsEnabled {
			verb = "schedule.enable"
		}
		if err := s.control(tx, who, row, verb); err != nil {
			return err
		}
	}
	row.UpdatedAt = tx.Now()
	if err := tx.UpdateSchedule(*row); err != nil {
		return nameTaken(err)
	}
	s.wakeAfter(tx)
	return s.record(tx, who, action, row, map[string]any{"fields": fields})
}

// SetEnabled enables or disables a schedule; doing so again changes nothing. Enabling sets its failures back to 0, and slots
// count from now on. A schedule of another scheduler is controlled through an online agent that lists that scheduler
// (agent protocol G.6): Conflict when there is none.
func (s *Schedules) SetEnabled(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, enabled bool) (out Shown, err error) {
	action := "schedule.disabled"
	if enabled {
		action = "schedule.enabled"
	}
	err = s.st.Update(ctx, "enable or disable schedule", func(tx Tx) error {
		before, err := find(tx, projectNo, id)
		if err != nil {
			return err
		}
		row := before
		row.IsEnabled = enabled
		if err := s.change(tx, who, before, &row, action); err != nil {
			return err
		}
		out, err = show(tx, row)
		return err
	})
	return out, err
}

// Delete removes a schedule with its fires: no read finds them when it returns, nothing of it fires any more, and its name is
// free. The rows of a long history go afterwards, see RunPurge. One of another scheduler is deleted there through an online
// agent that lists that scheduler; Conflict when there is none, unless forget is set: then only the record here goes.
func (s *Schedules) Delete(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, forget bool) error {
	return s.st.Update(ctx, "delete schedule", func(tx Tx) error {
		row, err := find(tx, projectNo, id)
		if err != nil {
			return err
		}
		if !row.Ours() && !forget {
			if err := s.control(tx, who, &row, "schedule.delete"); err != nil {
				return err
			}
		}
		return s.delete(tx, who, &row)
	})
}

func (s *Schedules) delete(tx Tx, who agent.Principal, row *Schedule) error {
	if err := tx.DeleteSchedule(row.No); err != nil {
		return err
	}
	tx.Hint(func() { s.hub.Wake(Gone{}) })
	return s.record(tx, who, "schedule.deleted", row, nil)
}
