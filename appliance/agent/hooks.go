package agent

import (
	"time"

	"github.com/google/uuid"
)

// CommandHook is told what becomes of commands, inside the transaction that stores it: what it writes through tx is
// durable together with the change or not at all. An error rolls the change back, so it returns none but the store's.
type CommandHook interface {
	// CommandEnded follows a command that became completed, failed, timeout or cancelled.
	CommandEnded(tx CommandTx, cmd Command) error
	// CommandAnswered follows a result of the command's agent, also a late one of a command that had ended: cmd is the
	// command as it was before. errText is nil when the agent gave none.
	CommandAnswered(tx CommandTx, cmd Command, success bool, errText *string) error
}

// AddHook registers a hook. It is called before the first command is issued, never concurrently with one.
func (c *Commands) AddHook(h CommandHook) { c.hooks = append(c.hooks, h) }

func (c *Commands) ended(tx CommandTx, cmd Command) error {
	for _, h := range c.hooks {
		if err := h.CommandEnded(tx, cmd); err != nil {
			return err
		}
	}
	return nil
}

func (c *Commands) answered(tx CommandTx, cmd Command, success bool, errText *string) error {
	for _, h := range c.hooks {
		if err := h.CommandAnswered(tx, cmd, success, errText); err != nil {
			return err
		}
	}
	return nil
}

// FailedTask is what a new task.failed event tells, redacted.
type FailedTask struct {
	ProjectNo  int64
	ProjectID  uuid.UUID
	AgentNo    int64
	EventNo    int64 // position of the event in the log
	EventID    uuid.UUID
	Engine     string
	TaskID     string
	TaskName   string // "" when no event of the task has named it
	Queue      string // "" when the event names none
	Exception  string // class and message as the agent reports them; "" when it reports none
	Traceback  string // "" when it reports none
	OccurredAt time.Time
	ReceivedAt time.Time
}

// FailureHook is told of the new failures of tasks, inside the transaction that stores their events and at its end: never of
// a replay, and once for each event. They are of one project, at least one, in the order of their events. It returns none but
// the store's errors.
type FailureHook func(tx RouterTx, failed []FailedTask) error
