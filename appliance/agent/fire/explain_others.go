package fire

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
)

// ScheduleExplanation says where the fires of a schedule stand.
type ScheduleExplanation struct {
	Schedule  schedule.Schedule
	Summary   string
	Sentences []string
	Buffered  int
	ExpiresAt *time.Time // when the first of the buffered fires expires
	Next      agent.NextStep
}

// lastFires is how many fires an explanation of a schedule looks back at.
const lastFires = 10

// ExplainSchedule tells whether and when a schedule fires, what became of its last fires, what its buffered fires wait
// for, and that they would have to wait. NotFound when the project has no such schedule.
func (f *Fires) ExplainSchedule(ctx context.Context, projectNo int64, id uuid.UUID) (ScheduleExplanation, error) {
	var (
		e       ScheduleExplanation
		now     time.Time
		last    []Fire
		buffers []Buffer
		agents  []agentView
	)
	err := f.st.View(ctx, func(tx ReadTx) (err error) {
		now = tx.Now()
		if e.Schedule, err = tx.ScheduleByID(projectNo, id); err != nil {
			return named(err, "schedule not found")
		}
		if last, err = tx.FiresOfSchedule(projectNo, id, lastFires); err != nil {
			return err
		}
		if buffers, err = tx.PendingBuffers(projectNo, e.Schedule.No); err != nil {
			return err
		}
		agents, err = views(tx, projectNo)
		return err
	})
	if err != nil {
		return ScheduleExplanation{}, err
	}
	f.attach(agents)
	e.Sentences = []string{}
	s := &e.Schedule
	switch {
	case !s.IsEnabled && s.DisabledReason != nil:
		e.Summary = "It is disabled: " + *s.DisabledReason + ". `signalbox schedules enable " + s.Name + "` starts it afresh."
	case !s.IsEnabled:
		e.Summary = "It is disabled and does not fire."
	case !s.Ours():
		e.Summary = "It belongs to the scheduler " + s.Scheduler + " and is not fired here."
	case s.NextRunAt == nil:
		e.Summary = "It has no further slot."
	default:
		e.Summary = "It fires next at " + when(now, *s.NextRunAt) + "."
		e.Next = agent.NextStep{What: "it fires", At: s.NextRunAt}
	}
	e.say("%s", e.Summary)
	if n := len(last); n > 0 {
		e.say("Of its last %s: %s.", countOf(n, "fire"), tally(last))
	} else {
		e.say("It has not fired yet.")
	}
	if n := s.ConsecutiveFailures; n > 0 && s.IsEnabled && f.opts.BreakerThreshold > 0 {
		e.say("%s in a row; at %d the circuit breaker disables it.", countOf(n, "failure"), f.opts.BreakerThreshold)
	}
	told := !s.Ours() // no agent takes what is not fired here
	for i := range buffers {
		b := &buffers[i]
		told = told || b.Engine == s.Engine
		e.Buffered += b.Fires
		if e.ExpiresAt == nil || b.Expiry.Before(*e.ExpiresAt) {
			e.ExpiresAt = &b.Expiry
		}
		w := waitFor(b.Engine, agents)
		if w.ready != "" {
			e.say("%s buffered, and agent %s is online to take what catch_up (%s) leaves.", countOf(b.Fires, "fire"), w.ready, s.CatchUp)
			continue
		}
		e.say("%s buffered, waiting for an online agent that lists the engine %s: %s. The first expires at %s.",
			countOf(b.Fires, "fire"), b.Engine, w.why, when(now, b.Expiry))
		e.Sentences = append(e.Sentences, w.hints...)
	}
	if !told {
		if w := unrouted(s.Engine, agents, f.opts.Retention); w != "" {
			e.Sentences = append(e.Sentences, w)
		}
	}
	return e, nil
}

func (e *ScheduleExplanation) say(format string, args ...any) {
	e.Sentences = append(e.Sentences, fmt.Sprintf(format, args...))
}

// tally counts fires by status, in the order of a fire's life.
func tally(fires []Fire) string {
	var parts []string
	for _, s := range Statuses() {
		n := 0
		for i := range fires {
			if fires[i].Status == s {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, itoa(n)+" "+string(s))
		}
	}
	return strings.Join(parts, ", ")
}

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return itoa(n) + " " + noun + "s"
}

// AgentNotes says what an operator should know of an agent and fires: that its inventory is not reported and which fires
// wait because of it, and what is declared. Empty when there is nothing to say. NotFound when there is no such agent.
func (f *Fires) AgentNotes(ctx context.Context, projectNo int64, agentID uuid.UUID) (notes []string, d Declaration, err error) {
	var a agent.Agent
	var buffers []Buffer
	err = f.st.View(ctx, func(tx ReadTx) error {
		if d, a, err = declaration(tx, projectNo, agentID); err != nil {
			return err
		}
		buffers, err = tx.PendingBuffers(projectNo, 0)
		return err
	})
	if err != nil {
		return nil, d, err
	}
	notes = []string{}
	declared := strings.Join(d.Engines, ", ")
	switch {
	case a.RevokedAt != nil:
		return notes, d, nil
	case a.ReportedInventory():
		if len(d.Engines) > 0 {
			notes = append(notes, "The declared engines ("+declared+") are not used: the agent reports its own.")
		}
		return notes, d, nil
	case d.InUse:
		notes = append(notes, "Fires of the declared engines ("+declared+") are routed to it while no online agent reports the engine.")
	case a.State != agent.Unknown:
		notes = append(notes, "It reports no inventory, as long-poll agents do not: no fire of a schedule is routed to it. Declare its engines with "+
			"`signalbox agents declare-engines "+a.Name+" ENGINE` to have them routed.")
	}
	if a.State == agent.Online {
		for _, b := range buffers {
			if !slices.Contains(d.Engines, b.Engine) {
				notes = append(notes, fmt.Sprintf("%s of the engine %s buffered for want of an agent that lists it.", countOf(b.Fires, "fire"), b.Engine))
			}
		}
	}
	return notes, d, nil
}
