package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// control issues a command about a schedule of another scheduler to an online agent that lists it (agent protocol G.6).
// Conflict when there is none. The command names the schedule as its own scheduler does: by the external id, or by the name
// when there is none. Our id is never sent: no adapter knows it, and one that is asked to delete what it does not know may
// answer success.
func (s *Schedules) control(tx Tx, who agent.Principal, row *Schedule, action string) error {
	agents, err := tx.ScheduleControllers(row.ProjectNo)
	if err != nil {
		return err
	}
	for _, a := range agents {
		if !slices.Contains(a.Schedulers, row.Scheduler) {
			continue
		}
		known := row.Name
		if row.ExternalID != nil {
			known = *row.ExternalID
		}
		_, err := s.issuer.IssueIn(any(tx).(agent.CommandTx), who, agent.IssueRequest{ProjectNo: row.ProjectNo, AgentID: a.AgentID,
			Action: action, Payload: metadata(map[string]any{"scheduler": row.Scheduler, "schedule_id": known})})
		return err
	}
	return fault.New(fault.Conflict, "no online agent lists the scheduler %s, which owns this schedule", row.Scheduler).
		With("scheduler", row.Scheduler)
}

// Triggered is what a trigger did. Fire is nil for a schedule of another scheduler, which got a command instead.
type Triggered struct {
	Schedule Shown
	Fire     *Fired
}

// Trigger fires a schedule once, now, beside its slots (agent protocol G.2). fireID makes a repeat of the request harmless:
// it answers with the fire that is there, whatever has become of the schedule since, and writes nothing. uuid.Nil makes a new
// id. Errors: NotFound; Conflict for a disabled schedule, and naming fire_id for the id of another fire; RateLimited when it
// was triggered a moment ago.
func (s *Schedules) Trigger(ctx context.Context, who agent.Principal, projectNo int64, id, fireID uuid.UUID) (out Triggered, err error) {
	named := fireID != uuid.Nil
	if !named {
		if fireID, err = uuid.NewRandom(); err != nil {
			return out, fault.Wrap(fault.Internal, err, "make an id")
		}
	}
	release := func() {}
	err = s.st.Update(ctx, "trigger schedule", func(tx Tx) error {
		release()
		row, err := find(tx, projectNo, id)
		if err != nil {
			return err
		}
		out = Triggered{}
		if named && row.Ours() {
			if out.Fire, err = s.starter.TriggeredAs(tx, row.No, fireID); err != nil {
				return err
			}
			if out.Fire != nil {
				out.Schedule, err = show(tx, row)
				return err
			}
		}
		if !row.IsEnabled {
			return fault.New(fault.Conflict, "the schedule is disabled: enable it first")
		}
		if release, err = s.throttle(row.No); err != nil {
			return err
		}
		if !row.Ours() {
			if err := s.control(tx, who, &row, "schedule.trigger_now"); err != nil {
				return err
			}
		} else if err := s.fireNow(tx, who, &row, fireID, &out); err != nil {
			return err
		}
		if out.Schedule, err = show(tx, row); err != nil {
			return err
		}
		return s.record(tx, who, "schedule.triggered", &row, map[string]any{"fire_id": fireID.String()})
	})
	if err != nil {
		release()
	}
	return out, err
}

func (s *Schedules) fireNow(tx Tx, who agent.Principal, row *Schedule, fireID uuid.UUID, out *Triggered) error {
	fired, err := s.starter.StartFire(tx, NewFire{Schedule: *row, Origin: OriginTrigger, ScheduledFor: tx.Now(), FireID: fireID, By: who})
	if err != nil {
		return err
	}
	out.Fire = &fired
	now := tx.Now()
	row.LastRunAt = &now
	row.TotalRuns++
	return tx.ScheduleDecided(*row)
}

// throttle takes the schedule's turn, or says when it comes. release gives the turn back.
func (s *Schedules) throttle(no int64) (release func(), err error) {
	release = func() {}
	if s.opts.TriggerEvery <= 0 {
		return release, nil
	}
	now := s.opts.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	before, was := s.triggered[no]
	if wait := s.opts.TriggerEvery - now.Sub(before); was && wait > 0 && wait <= s.opts.TriggerEvery {
		e := fault.New(fault.RateLimited, "the schedule was triggered less than %s ago", s.opts.TriggerEvery)
		e.Retry = wait
		return release, e
	}
	for other, at := range s.triggered { // what is over does not matter any more
		if now.Sub(at) >= s.opts.TriggerEvery {
			delete(s.triggered, other)
		}
	}
	s.triggered[no] = now
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.triggered[no].Equal(now) {
			delete(s.triggered, no)
		}
	}, nil
}

// Resynced counts what a resync asked.
type Resynced struct {
	AgentsDispatched   int // commands issued
	SchedulersObserved int // different schedulers among them
}

// Resync asks every online agent of the project that lists a scheduler adapter for all schedules of each (agent protocol
// G.6).
func (s *Schedules) Resync(ctx context.Context, who agent.Principal, projectNo int64) (out Resynced, err error) {
	err = s.st.Update(ctx, "resync schedules", func(tx Tx) error {
		out = Resynced{}
		agents, err := tx.ScheduleControllers(projectNo)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, a := range agents {
			asked := false
			for _, scheduler := range a.Schedulers {
				if !adapterRule.MatchString(scheduler) { // an agent reports what it likes
					continue
				}
				_, err := s.issuer.IssueIn(any(tx).(agent.CommandTx), who, agent.IssueRequest{ProjectNo: projectNo, AgentID: a.AgentID,
					Action: "schedule.resync", Payload: metadata(map[string]any{"scheduler": scheduler})})
				if err != nil {
					return err
				}
				seen[scheduler], asked = true, true
			}
			if asked {
				out.AgentsDispatched++
			}
		}
		out.SchedulersObserved = len(seen)
		return nil
	})
	return out, err
}

// PruneMisfires removes misfires older than the time, in slices, and returns how many.
func (s *Schedules) PruneMisfires(ctx context.Context, before time.Time) (n int, err error) {
	const slice = 200
	for {
		removed := 0
		err := s.st.Update(ctx, "prune misfires", func(tx Tx) (err error) {
			removed, err = tx.PruneMisfires(before, slice)
			return err
		})
		if n += removed; err != nil || removed < slice {
			return n, err
		}
		if ctx.Err() != nil {
			return n, fault.Wrap(fault.Canceled, context.Cause(ctx), "prune misfires was stopped")
		}
	}
}
