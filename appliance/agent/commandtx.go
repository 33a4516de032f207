package agent

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
)

// CommandAgent is what the rules of commands need to know of the agent a command is for.
type CommandAgent struct {
	No            int64
	ID            uuid.UUID
	Name          string
	ProjectNo     int64
	ProjectID     uuid.UUID
	ProjectActive bool
	State         State
	LastSeenAt    *time.Time
	LastConnectAt *time.Time
	RevokedAt     *time.Time
	Engines       []string
	Capabilities  map[string][]string
}

// ReportedInventory is Agent.ReportedInventory.
func (a *CommandAgent) ReportedInventory() bool { return a.LastConnectAt != nil || len(a.Engines) > 0 }

// CommandProject is what the rules of commands need to know of a project.
type CommandProject struct {
	No     int64
	ID     uuid.UUID
	Active bool
}

// CommandTask is what a retry tells the agent about the task it retries, from its projection.
type CommandTask struct {
	Name     string
	Priority string
	HadArgs  bool // arguments of the original were reported
}

// BulkStanding is where a bulk retry stands, as an explanation of its parent or of one of its children tells it.
type BulkStanding struct {
	ParentNo     int64 // 0: the command has nothing to do with a bulk retry
	ParentID     uuid.UUID
	ParentStatus Status
	Position     int // of the child's task, from 1; 0 for the parent
	Total        int
	InFlight     int // children that are issued and not ended
	Completed    int
	Failed       int
	TimedOut     int
	Refused      int
	Cancelled    int
	WaitReason   string // why nothing is issued at present
}

// Waiting is how many tasks have no child yet.
func (b *BulkStanding) Waiting() int {
	return b.Total - b.InFlight - b.Completed - b.Failed - b.TimedOut - b.Refused - b.Cancelled
}

// CommandFilter narrows a list of commands. Zero fields do not filter.
type CommandFilter struct {
	Status  Status
	AgentID uuid.UUID
	Action  string
	Since   time.Time // issued at or after
}

// StreamFilter narrows the log of transitions. Zero fields do not filter.
type StreamFilter struct {
	CommandID uuid.UUID
	Status    Status // status after the transition
	AgentID   uuid.UUID
	Action    string
}

// StreamItem is one transition with its command as it stands at the time of reading.
type StreamItem struct {
	Transition Transition
	Command    Command
}

// StreamBounds are the ends of the log of transitions.
type StreamBounds struct {
	Pruned int64 // highest transition of the project that retention removed: positions below it have a gap
	First  int64 // lowest transition kept, in any project; 0: none is
	Head   int64 // highest transition number ever given, in any project
}

// Deliverable selects what one session of an agent may take.
type Deliverable struct {
	AgentNo      int64
	RetryEngines []string // engines whose retry contract the session states
	Limit        int
	// Redispatch includes dispatched rows of redeliverable actions whose last hand-over lies in [SentAfter, SentUpTo].
	Redispatch          bool
	SentAfter, SentUpTo time.Time
}

// DeliverableRow is one row that a session may try to claim.
type DeliverableRow struct {
	CommandNo int64
	Status    Status
}

// CommandCounts are the open commands of all projects.
type CommandCounts struct {
	Pending, Dispatched int64
	// OldestUnacked is when the oldest command that is handed over and not acknowledged was handed over; the zero time when
	// there is none.
	OldestUnacked time.Time
}

// CommandReadTx is what Commands reads. Single-row methods fail with NotFound when there is no row.
type CommandReadTx interface {
	Reader
	// CommandProject finds a project by number, or by slug when no is 0. Archived projects are found too.
	CommandProject(no int64, slug string) (CommandProject, error)
	// CommandAgent finds an agent of the project, also when it is revoked.
	CommandAgent(projectNo int64, id uuid.UUID) (CommandAgent, error)
	// CommandAgentByNo finds an agent by its number, also when it is revoked.
	CommandAgentByNo(agentNo int64) (CommandAgent, error)
	// CommandAgents lists the agents of the project that are not revoked, by name.
	CommandAgents(projectNo int64) ([]CommandAgent, error)
	// CommandBulk finds the bulk retry that a command is the parent or a child of; the zero value when there is none.
	CommandBulk(commandNo int64) (BulkStanding, error)
	// CommandAgentAlive tells whether the agent is revoked or its project archived: the check before every claim.
	CommandAgentAlive(agentNo int64) (revoked, archived bool, err error)
	// CommandTask finds the projection of a task.
	CommandTask(projectNo int64, engine, taskID string) (CommandTask, error)

	CommandByNo(no int64) (Command, error)
	CommandByID(projectNo int64, id uuid.UUID) (Command, error)
	// CommandOfAgent finds a command only under its own agent and project: a foreign id is NotFound.
	CommandOfAgent(projectNo, agentNo int64, id uuid.UUID) (Command, error)
	CommandByKey(projectNo int64, idempotencyKey string) (Command, error)
	// CommandList returns a page, newest first.
	CommandList(projectNo int64, f CommandFilter, page Page) ([]Command, error)
	// CommandsWithPrefix returns the ids in [from, to] of the project, at most limit.
	CommandsWithPrefix(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error)
	CommandCounts() (CommandCounts, error)

	// CommandsDeliverable lists what a session may try to claim: children of bulk retries, then the others, each in the
	// order of issue.
	CommandsDeliverable(q Deliverable) ([]DeliverableRow, error)
	// CommandNextDispatchedAt returns the earliest hand-over after the given time among the agent's dispatched rows of
	// redeliverable actions that live at least until interval after it; the zero time when there is none.
	CommandNextDispatchedAt(agentNo int64, after time.Time, interval time.Duration) (time.Time, error)
	// CommandDeadlineAfter tells whether an open command's deadline lies after the time. This and the next methods pass over
	// the parents of bulk retries, which have no agent: their deadline is that of the whole.
	CommandDeadlineAfter(latest time.Time) (bool, error)
	// CommandsExpired lists open commands whose deadline lies before now.
	CommandsExpired(now time.Time, limit int) ([]int64, error)
	// CommandsStranded lists dispatched, unacked commands of redeliverable actions whose deadline lies ahead of now and
	// whose last hand-over was to a WebSocket session.
	CommandsStranded(now time.Time, limit int) ([]int64, error)
	// CommandsPendingAgents lists the agents above the number that have a pending command, by number.
	CommandsPendingAgents(above int64, limit int) ([]int64, error)
	// CommandNextDeadline returns the earliest deadline of an open command; the zero time when there is none.
	CommandNextDeadline() (time.Time, error)

	// CommandTasksStarted lists tasks of active projects that began before the cutoff and are still started, by the time they
	// began, behind the place of one.
	CommandTasksStarted(before, at time.Time, after int64, limit int) ([]StartedTask, error)
	// CommandsOpenTargets returns OpenTarget of every open command of an action.
	CommandsOpenTargets(action string) (map[string]bool, error)

	// CommandDeliveries returns the ledger of a command, oldest first.
	CommandDeliveries(commandNo int64) ([]Delivery, error)
	// CommandTransitions returns the timeline of a command, oldest first, at most limit of the newest.
	CommandTransitions(commandNo int64, limit int) ([]Transition, error)
	// CommandStream returns transitions of the project with numbers in (after, upTo], oldest first.
	CommandStream(projectNo, after, upTo int64, f StreamFilter, limit int) ([]StreamItem, error)
	CommandStreamBounds(projectNo int64) (StreamBounds, error)
}

// CommandTx is what Commands writes through.
type CommandTx interface {
	Writer
	CommandReadTx
	audit.Tx

	// InsertCommand stores a new command and returns its number.
	InsertCommand(c Command) (int64, error)
	// UpdateCommand stores every changeable field of c, guarded by the status and hand-over that before had. It
	// reports whether the guard held; when it did not, nothing changed.
	UpdateCommand(before, c Command) (bool, error)
	// CommandsBoundDeadlines brings every deadline of an open command that lies after the time forward to it.
	CommandsBoundDeadlines(latest time.Time) error
	// InsertTransition appends to the timeline.
	InsertTransition(projectNo int64, t Transition) error
	// InsertDelivery appends an attempt to the ledger, numbering it, after it has superseded the open ones.
	InsertDelivery(d Delivery) (no int64, err error)
	// MarkDeliverySent stamps an attempt; a second stamp changes nothing.
	MarkDeliverySent(deliveryNo int64, at time.Time) error
	// AckDeliveries marks the open unacked attempts of a command.
	AckDeliveries(commandNo int64, at time.Time) error
	// FinishDelivery ends one attempt when it is still open, and reports whether it was.
	FinishDelivery(deliveryNo int64, at time.Time, outcome DeliveryOutcome, reason *string) (bool, error)
	// FinishDeliveries ends every open attempt of a command.
	FinishDeliveries(commandNo int64, at time.Time, outcome DeliveryOutcome, reason *string) error
	// CommandReconcileTask corrects the state of a stored task. It returns the state it had and whether it changed;
	// an unknown task changes nothing, and neither does an answer that the task waits or runs when more was heard of the
	// task after asked.
	CommandReconcileTask(projectNo int64, engine, taskID, state string, asked time.Time, finishedAt *time.Time, exception *string) (from string, changed bool, err error)
	// PruneCommands removes terminal commands that ended before the cutoff among the scan rows after afterNo, with
	// their ledger and timeline, and raises the projects' watermarks. next is where to go on; 0 when nothing is left.
	PruneCommands(afterNo int64, cutoff time.Time, scan int) (removed int, next int64, err error)
}
