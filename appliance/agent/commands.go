package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// SessionInfo is one live session of an agent, as the transports see it.
type SessionInfo struct {
	Transport    Transport
	Session      string
	Worker       string
	WorkerRole   string
	Remote       string
	ConnectedAt  time.Time
	LastFrameAt  time.Time
	RetryEngines []string // engines whose retry contract it states
	Polling      bool     // long-poll: a claiming poll is parked right now
}

// Presence tells which sessions an agent has at this moment. It must not block.
type Presence interface {
	Sessions(agentID uuid.UUID) []SessionInfo
}

// AuditAppender writes an audit row inside the caller's transaction; *audit.Log is one.
type AuditAppender interface {
	Append(tx audit.Tx, e audit.Entry) error
}

// CommandObserver counts what commands do. Methods are called after the commit and must not block.
type CommandObserver interface {
	// CommandIssued counts new commands.
	CommandIssued(project uuid.UUID, action string)
	// CommandClaimed counts hand-overs; redelivery is true for every one but the first.
	CommandClaimed(t Transport, redelivery bool)
	// CommandEnded counts commands that became terminal.
	CommandEnded(project uuid.UUID, action string, status Status)
	// CommandLateResult counts results for commands that were terminal already, by the command's status.
	CommandLateResult(status Status)
}

// CommandOptions are the settings of Commands.
type CommandOptions struct {
	Timeout               time.Duration // from issue, and again from claim, to the deadline
	RedispatchWindow      time.Duration // how long after a hand-over a redeliverable command counts as possibly lost
	RedispatchMinInterval time.Duration // least time between two hand-overs of one command; strictly below the window
	Clock                 clock.Clock
	// PurgeToken computes the confirmation of a queue purge under the project's current secret (agent protocol A.5).
	PurgeToken func(projectID uuid.UUID, queue string, depth int64) string
	Observer   CommandObserver // nil counts nothing
}

// Commands issues, hands over and ends commands, and keeps the ledger that Explain reads (agent protocol E). Safe for
// concurrent use. Every method returns after COMMIT.
type Commands struct {
	st       Store[CommandTx, CommandReadTx]
	presence Presence
	log      AuditAppender
	hub      *wake.Hub
	opts     CommandOptions
	// deadline is what the sweep sleeps until, in Unix microseconds; 0: until something comes.
	deadline atomic.Int64
	hooks    []CommandHook
	flight   flight
	started  startedPlace
	asked    askedTasks
	woken    atomic.Int64 // agent that the last WakePending ended with; 0: the next one begins anew
}

// NewCommands returns the service. It starts nothing.
func NewCommands(st Store[CommandTx, CommandReadTx], presence Presence, log AuditAppender, hub *wake.Hub, opts CommandOptions) *Commands {
	if opts.Observer == nil {
		opts.Observer = countNothing{}
	}
	if opts.Clock == nil {
		opts.Clock = clock.System()
	}
	return &Commands{st: st, presence: presence, log: log, hub: hub, opts: opts}
}

type countNothing struct{}

func (countNothing) CommandIssued(uuid.UUID, string)        {}
func (countNothing) CommandClaimed(Transport, bool)         {}
func (countNothing) CommandEnded(uuid.UUID, string, Status) {}
func (countNothing) CommandLateResult(Status)               {}

// FrameTimeoutSeconds is the timeout_seconds of a command frame: the setting, at most 3600, at least 1.
func (c *Commands) FrameTimeoutSeconds() int {
	return int(max(1, min(c.opts.Timeout/time.Second, 3600)))
}

var _ ResultApplier = (*Commands)(nil)

// put stores a transition of before into after with its timeline row, and arranges the wake-ups for after the commit.
// Stale when the row is not as before describes it.
func (c *Commands) put(tx CommandTx, before, after Command, event string, detail *string) error {
	ok, err := tx.UpdateCommand(before, after)
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.Stale, "command was changed by somebody else")
	}
	return c.record(tx, after, event, detail)
}

// record appends to the timeline and arranges the wake-ups and counts for after the commit.
func (c *Commands) record(tx CommandTx, cmd Command, event string, detail *string) error {
	err := tx.InsertTransition(cmd.ProjectNo, Transition{
		CommandNo: cmd.No, At: tx.Now(), Event: event, Status: cmd.Status, Detail: detail})
	if err != nil {
		return err
	}
	if cmd.Status.Terminal() {
		if err := c.ended(tx, cmd); err != nil {
			return err
		}
	}
	project, agentNo, status, deadline := cmd.ProjectNo, cmd.AgentNo, cmd.Status, cmd.TimeoutAt
	tx.Hint(func() {
		if status != Dispatched { // what ends it came, even when nobody knows whether it was stored
			c.flight.remove(agentNo, cmd.No)
		}
		c.hub.Wake(ProjectCommands(project))
		if status == Pending {
			c.hub.Wake(AgentKey(agentNo))
			c.deadlineSet(deadline)
		}
	})
	tx.AfterCommit(func() {
		if status.Terminal() {
			c.opts.Observer.CommandEnded(cmd.ProjectID, cmd.Action, status)
		}
	})
	return nil
}

// Counts returns how many commands are open, over all projects.
func (c *Commands) Counts(ctx context.Context) (n CommandCounts, err error) {
	err = c.st.View(ctx, func(tx CommandReadTx) error {
		n, err = tx.CommandCounts()
		return err
	})
	return n, err
}
