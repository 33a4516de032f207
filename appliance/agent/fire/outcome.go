package fire

import (
	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// became follows every stored change of a fire: it counts, and a finish moves the circuit breaker.
func (f *Fires) became(tx Tx, from Status, fire Fire) error {
	status := fire.Status
	tx.AfterCommit(func() { f.opts.Observer.FireBecame(status) })
	switch {
	case !status.Finished():
		return nil
	case !status.Bad():
		return tx.ScheduleCountFailure(fire.ScheduleNo, 0)
	case from.Bad(): // a result that came after the command had failed: one fire, counted already
		return nil
	}
	if err := tx.ScheduleCountFailure(fire.ScheduleNo, 1); err != nil {
		return err
	}
	return f.trip(tx, fire.ScheduleNo)
}

// move stores a transition of a fire, when the table allows it and nobody else was faster.
func (f *Fires) move(tx Tx, fire Fire, to Status, why *Trouble) error {
	next, ok := fire.To(to, tx.Now(), why)
	if !ok {
		return nil
	}
	return f.save(tx, fire.Status, next)
}

func (f *Fires) save(tx Tx, from Status, next Fire) error {
	ok, err := tx.UpdateFire(from, next)
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.Stale, "fire was changed by somebody else")
	}
	return f.became(tx, from, next)
}

// trip disables a schedule whose last fires all failed (agent protocol G.5). Enabling it again starts the count afresh.
func (f *Fires) trip(tx Tx, scheduleNo int64) error {
	if f.opts.BreakerThreshold <= 0 {
		return nil
	}
	s, err := tx.ScheduleByNo(scheduleNo)
	if fault.Is(err, fault.NotFound) { // deleted meanwhile
		return nil
	}
	if err != nil || !s.IsEnabled || s.ConsecutiveFailures < f.opts.BreakerThreshold {
		return err
	}
	reason := "circuit breaker: the last " + itoa(s.ConsecutiveFailures) + " fires failed"
	if s.ConsecutiveFailures == 1 {
		reason = "circuit breaker: the last fire failed"
	}
	was, err := tx.ScheduleDisable(s.No, reason)
	if err != nil || !was {
		return err
	}
	if err := f.opts.News.BreakerTripped(tx, s, reason); err != nil {
		return err
	}
	id := s.ID.String()
	meta := []byte(`{"consecutive_failures":` + itoa(s.ConsecutiveFailures) + `,"name":`)
	meta = append(rawjson.AppendString(meta, s.Name), `,"threshold":`+itoa(f.opts.BreakerThreshold)+`}`...)
	return f.log.Append(tx, audit.Entry{ProjectNo: s.ProjectNo, Action: "schedule.circuit_breaker.tripped", TargetType: "schedule",
		TargetID: &id, Result: audit.Success, Outcome: audit.Allow, Metadata: meta})
}

// fireOf finds the fire that a command belongs to; ok is false for other commands, and for schedule.fire commands that
// people issued themselves.
func fireOf(ctx agent.CommandTx, cmd agent.Command) (tx Tx, fire Fire, ok bool, err error) {
	if cmd.Action != actionFire {
		return nil, Fire{}, false, nil
	}
	if tx, err = own(ctx); err != nil {
		return nil, Fire{}, false, err
	}
	fire, err = tx.FireOfCommand(cmd.No)
	if fault.Is(err, fault.NotFound) {
		return nil, Fire{}, false, nil
	}
	return tx, fire, err == nil, err
}

// CommandAnswered moves the fire with its agent's result, whatever has become of the command (agent protocol E.4, G.5).
func (f *Fires) CommandAnswered(ctx agent.CommandTx, cmd agent.Command, success bool, errText *string) error {
	tx, fire, ok, err := fireOf(ctx, cmd)
	if err != nil || !ok {
		return err
	}
	if success {
		return f.move(tx, fire, AckedSuccess, nil)
	}
	why := Trouble{Code: CodeAgent, Message: "the agent gave no reason"}
	if errText != nil && *errText != "" {
		why.Message = *errText
	}
	return f.move(tx, fire, AckedFailed, &why)
}

// CommandEnded ends the fire of a command that ended without a result. A command that timed out leaves it to a later
// result (agent protocol G.5).
func (f *Fires) CommandEnded(ctx agent.CommandTx, cmd agent.Command) error {
	if cmd.Action != actionFire {
		return nil
	}
	project := cmd.ProjectNo
	ctx.Hint(func() { f.buffer.ended(project) })
	var why Trouble
	switch cmd.Status {
	case agent.Failed:
		why = Trouble{Code: CodeCommand, Message: "the command failed"}
		if cmd.Error != nil && *cmd.Error != "" {
			why.Message = *cmd.Error
		}
	case agent.Cancelled:
		why = Trouble{Code: CodeCancelled, Message: "the command was cancelled"}
	default:
		return nil
	}
	tx, fire, ok, err := fireOf(ctx, cmd)
	if err != nil || !ok {
		return err
	}
	// A result that came first has settled the fire: Failed is no step from there.
	return f.move(tx, fire, Failed, &why)
}
