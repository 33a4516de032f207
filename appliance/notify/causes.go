package notify

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// OnTaskFailed collects a new failure of a task. groupKey is the fingerprint of the failure; "" groups by engine and task
// name.
func (s *Service) OnTaskFailed(tx CollectTx, f agent.FailedTask, groupKey string) error {
	if told, err := s.told(tx, f.ProjectNo, TaskFailed); err != nil || !told {
		return err
	}
	name := f.TaskName
	if name == "" {
		name = "unknown"
	}
	if groupKey == "" {
		groupKey = f.Engine + "\n" + name
	}
	exception, _, _ := strings.Cut(strings.TrimSpace(f.Exception), "\n")
	title := "task " + name + " failed"
	if exception != "" {
		title += ": " + exception
	}
	links := map[string]string{"engine": f.Engine, "task_id": f.TaskID, "task_name": name, "event_id": f.EventID.String()}
	if f.Queue != "" {
		links["queue"] = f.Queue
	}
	return s.Collect(tx, Occurrence{ProjectNo: f.ProjectNo, Trigger: TaskFailed, Name: name, GroupKey: groupKey, Title: title,
		Detail: f.Exception, At: f.OccurredAt, Links: links})
}

// CommandEnded implements agent.CommandHook: commands that had no result in time are collected. The commands of a bulk
// retry are told together.
func (s *Service) CommandEnded(tx CollectTx, cmd agent.Command) error {
	if cmd.Status != agent.TimedOut {
		return nil
	}
	if told, err := s.told(tx, cmd.ProjectNo, CommandTimeout); err != nil || !told {
		return err
	}
	key := "action:" + cmd.Action
	if cmd.ParentNo != 0 {
		key = "parent:" + strconv.FormatInt(cmd.ParentNo, 10)
	}
	links := map[string]string{"command_id": cmd.ID.String(), "action": cmd.Action}
	if cmd.AgentID != uuid.Nil {
		links["agent_id"] = cmd.AgentID.String()
	}
	if cmd.TargetID != nil {
		links["target_id"] = *cmd.TargetID
	}
	state := "No agent took it."
	if cmd.DispatchedAt != nil {
		state = "It was handed to its agent, which gave no result in time."
	}
	return s.Collect(tx, Occurrence{ProjectNo: cmd.ProjectNo, Trigger: CommandTimeout, Name: cmd.Action, GroupKey: key,
		Title: "command " + cmd.Action + " timed out", Detail: state, At: tx.Now(), Links: links})
}

// Fire is what is told of a schedule's fire. ScheduleID and ScheduleName are needed.
type Fire struct {
	ProjectNo    int64
	ScheduleID   uuid.UUID
	ScheduleName string
	FireID       uuid.UUID // uuid.Nil: the circuit breaker, which is no fire's
	ScheduledFor time.Time // zero: not told
	Reason       string    // a sentence
}

// FireBuffered collects a fire that waits for an agent.
func (s *Service) FireBuffered(tx CollectTx, f Fire) error {
	return s.fire(tx, FireBuffered, "a fire of schedule "+f.ScheduleName+" waits for an agent", f)
}

// FireExpired collects a fire that waited too long.
func (s *Service) FireExpired(tx CollectTx, f Fire) error {
	return s.fire(tx, FireExpired, "a fire of schedule "+f.ScheduleName+" was given up", f)
}

// BreakerTripped collects a schedule that was turned off because its fires failed.
func (s *Service) BreakerTripped(tx CollectTx, f Fire) error {
	return s.fire(tx, CircuitBreaker, "schedule "+f.ScheduleName+" was turned off by its circuit breaker", f)
}

func (s *Service) fire(tx CollectTx, t Trigger, title string, f Fire) error {
	if told, err := s.told(tx, f.ProjectNo, t); err != nil || !told {
		return err
	}
	links := map[string]string{"schedule_id": f.ScheduleID.String(), "schedule": f.ScheduleName}
	if f.FireID != uuid.Nil {
		links["fire_id"] = f.FireID.String()
	}
	if !f.ScheduledFor.IsZero() {
		links["scheduled_for"] = f.ScheduledFor.UTC().Format(time.RFC3339)
	}
	return s.Collect(tx, Occurrence{ProjectNo: f.ProjectNo, Trigger: t, Name: f.ScheduleName, GroupKey: f.ScheduleID.String(),
		Title: title, Detail: f.Reason, At: tx.Now(), Links: links})
}
