package schedule

import (
	"context"
	"fmt"
	"time"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
)

// lane is a part of the schedules that are due. Earlier lanes go first.
type lane uint8

const (
	onTime    lane = iota // no slot is late by the grace
	missed                // some are, and at most one will be fired
	missedAll             // some are, and all may be fired
	lanes
)

// batch is what one transaction did.
type batch struct {
	schedules int // decided
	late      int // missed slots fired
}

// room is what is left of one transaction's bounds.
type room struct{ fires, scan int }

// decideBatch decides schedules of a lane in one transaction. A schedule that cannot be decided is put aside, so that it
// holds up no other.
func (s *Scheduler) decideBatch(ctx context.Context, of lane) (batch, error) {
	due, err := s.due(ctx, of)
	if err != nil || len(due) == 0 {
		return batch{}, err
	}
	b, err := s.decideAll(ctx, due)
	if err == nil || passing(err) {
		return b, err
	}
	// One of them is the cause: find it.
	b = batch{}
	for _, d := range due {
		one, err := s.decideAll(ctx, []Due{d})
		switch {
		case err == nil:
			b.late += one.late
		case passing(err):
			return b, err
		default:
			s.opts.Trouble("decide schedule", err)
			s.asides[d.Schedule.No] = s.opts.Clock.Now().Add(aside)
		}
		b.schedules++
	}
	return b, nil
}

// due lists schedules of a lane.
func (s *Scheduler) due(ctx context.Context, of lane) (out []Due, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		now := tx.Now()
		for no, until := range s.asides {
			if !now.Before(until) {
				delete(s.asides, no)
			}
		}
		// A slot on time is late by less than the grace.
		q := DueQuery{After: now.Add(-s.opts.Grace), UpTo: now, Limit: batchFires + len(s.asides)}
		if of != onTime {
			q.After, q.UpTo, q.FireAll = time.Time{}, q.After, new(bool)
			*q.FireAll = of == missedAll
		}
		rows, err := tx.SchedulesDue(q)
		if err != nil {
			return err
		}
		out = out[:0]
		for _, d := range rows {
			if _, left := s.asides[d.Schedule.No]; !left && len(out) < batchFires {
				out = append(out, d)
			}
		}
		return nil
	})
	return out, err
}

// decideAll decides the schedules in one transaction, as far as its bounds go.
func (s *Scheduler) decideAll(ctx context.Context, due []Due) (b batch, err error) {
	err = s.st.Update(ctx, "decide schedules", func(tx Tx) error {
		b = batch{}
		left := room{batchFires, batchScan}
		for _, d := range due {
			if left.fires <= 0 || left.scan <= 0 {
				break
			}
			late, err := s.decideOne(tx, d.Schedule.No, d.ProjectActive, &left)
			if err != nil {
				return fmt.Errorf("schedule %s: %w", d.Schedule.ID, err)
			}
			b.late += late
			b.schedules++
		}
		return nil
	})
	return b, err
}

// decideOne decides the due slots of one schedule, as far as there is room, and returns how many missed ones it fired.
func (s *Scheduler) decideOne(tx Tx, no int64, active bool, left *room) (late int, err error) {
	row, err := tx.ScheduleByNo(no)
	if fault.Is(err, fault.NotFound) { // deleted since it was found
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	now := tx.Now()
	if row.NextRunAt == nil || row.NextRunAt.After(now) { // changed since it was found
		return 0, nil
	}
	t, err := row.Timing()
	if err != nil {
		return 0, s.disable(tx, row, err)
	}
	if !active { // an archived project has no slots
		row.DecidedAt, row.NextRunAt = now, following(t, now)
		return 0, tx.ScheduleDecided(row)
	}
	p := decide(t, row.CatchUp, row.DecidedAt, now,
		limits{grace: s.opts.Grace, most: s.opts.CatchUpMost, fires: left.fires, scan: max(left.scan, 2*s.opts.CatchUpMost)})
	left.fires -= len(p.fires)
	left.scan -= p.looked
	if m := p.misfire; m != nil {
		m.ScheduleNo, m.At = no, now
		if err := tx.InsertMisfire(*m); err != nil {
			return 0, err
		}
		tx.AfterCommit(func() { s.opts.Observer.Misfired(row.ProjectID, m.Reason, m.Slots) })
	}
	for _, f := range p.fires {
		fired, err := s.starter.StartFire(tx, NewFire{Schedule: row, Origin: f.origin, SlotAt: &f.slot, ScheduledFor: f.slot,
			FireID: SlotFireID(row.ID, f.slot)})
		if err != nil {
			return 0, err
		}
		if f.origin == OriginCatchUp {
			late++
		}
		if fired.Repeated {
			continue
		}
		row.LastRunAt = &f.slot
		row.TotalRuns++
		tx.AfterCommit(func() { s.opts.Observer.Fired(row.ProjectID, f.origin, now.Sub(f.slot), fired.Buffered) })
	}
	row.DecidedAt, row.NextRunAt = p.decidedAt, p.next
	return late, tx.ScheduleDecided(row)
}

// disable stops a schedule whose timing cannot be read any more, such as one of a time zone that the machine's database has
// dropped.
func (s *Scheduler) disable(tx Tx, row Schedule, cause error) error {
	reason := "its timing cannot be read: " + cause.Error()
	if _, err := tx.ScheduleDisable(row.No, reason); err != nil {
		return err
	}
	id := row.ID.String()
	return s.log.Append(tx, audit.Entry{ProjectNo: row.ProjectNo, Action: "schedule.disabled", TargetType: "schedule", TargetID: &id,
		Result: audit.Failed, Outcome: audit.Error, Metadata: metadata(map[string]any{"name": row.Name, "reason": reason})})
}
