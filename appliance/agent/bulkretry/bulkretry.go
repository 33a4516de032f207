// Package bulkretry retries many tasks durably (agent protocol E.9, F.6, L14): a parent command, which is handed to nobody,
// and for each task a child, an ordinary retry_task command to an agent that is claimed before anything else.
//
// What is to be retried is settled at the start and written down; it then goes on through restarts until every task has
// been answered for. The next child is stored together with what says that it was, so that no task gets two. A child that
// an agent took and did not answer ends as timeout and is not repeated: retry_task is handed over at most once. A child
// whose time was over before anybody took it has done nothing, and its task waits again.
package bulkretry

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// TaskStatus is where one task of a bulk retry stands.
type TaskStatus string

// The statuses of a task. Waiting and Issued are open, the others final.
const (
	Waiting   TaskStatus = "waiting"   // no child, or none that anybody took
	Issued    TaskStatus = "issued"    // its child is pending or dispatched
	Completed TaskStatus = "completed" // the agent retried it
	Failed    TaskStatus = "failed"    // the agent says that it could not
	TimedOut  TaskStatus = "timeout"   // an agent took the child and did not answer: it may have been retried
	Refused   TaskStatus = "refused"   // no command could be issued for it
	Cancelled TaskStatus = "cancelled" // given up before any agent took it
)

// Statuses lists the words of a TaskStatus.
func Statuses() []string {
	return []string{string(Waiting), string(Issued), string(Completed), string(Failed), string(TimedOut), string(Refused), string(Cancelled)}
}

// BulkRetry is one bulk retry with its counts.
type BulkRetry struct {
	No        int64
	CommandNo int64 // the parent
	ProjectNo int64
	AgentNo   int64     // the agent that was named; 0: any that can
	AgentID   uuid.UUID // the nil UUID: any that can
	Engine    string
	Filter    json.RawMessage // accepted keys; task_ids as their number
	Request   []byte          // SHA-256 of what was asked for
	Total     int

	InFlight, Completed, Failed, TimedOut, Refused, Cancelled int

	IsOpen     bool
	WaitReason string // why nothing is issued at present; "": nothing keeps it
	CreatedAt  time.Time
	EndedAt    *time.Time

	Parent agent.Command
}

// Waiting is how many tasks have no child yet.
func (b *BulkRetry) Waiting() int {
	return b.Total - b.InFlight - b.Completed - b.Failed - b.TimedOut - b.Refused - b.Cancelled
}

// Task is a task that a filter chose.
type Task struct {
	ID         uuid.UUID // of the row: in the order of arrival
	Engine     string
	TaskID     string
	Name       string
	Queue      string // "" when it is not known
	State      string
	CreatedAt  time.Time
	FinishedAt *time.Time
	Retried    bool // a bulk retry has taken it since it finished last, and is at it or has succeeded
}

// TaskRow is one task of a bulk retry.
type TaskRow struct {
	BulkRetryNo int64
	Position    int // from 1
	TaskID      string
	TaskName    string
	CommandNo   int64     // of the newest child; 0: none yet
	CommandID   uuid.UUID // the nil UUID when there is none, or retention removed it
	AgentID     uuid.UUID
	Status      TaskStatus
	Late        bool // timeout, and later its agent said that it had retried the task
	Error       *string
	IssuedAt    *time.Time
	EndedAt     *time.Time
}

// Open is an open bulk retry.
type Open struct {
	No        int64
	ProjectNo int64
	Deadline  time.Time
}

// OpenCounts are the open bulk retries of all projects, and the tasks that have not ended.
type OpenCounts struct{ BulkRetries, Tasks int64 }

// ReadTx is what the service reads beside the commands. Single-row methods fail with NotFound when there is no row.
type ReadTx interface {
	agent.CommandReadTx
	// BulkRetryCandidates lists tasks that pass the filter, its task ids apart, after a row's id, oldest first.
	BulkRetryCandidates(projectNo int64, f Filter, after uuid.UUID, limit int) ([]Task, error)
	BulkRetryNamed(projectNo int64, engine, taskID string) (t Task, found bool, err error)
	// BulkRetryTaken counts tasks of a bulk retry that another one has taken since they finished last, as Task.Retried.
	BulkRetryTaken(no int64) (int, error)
	// TaskEngines lists the engines that the project's tasks run on.
	TaskEngines(projectNo int64) ([]string, error)

	BulkRetryByNo(no int64) (BulkRetry, error)
	// BulkRetryOf finds the bulk retry of a parent command.
	BulkRetryOf(commandNo int64) (BulkRetry, error)
	// BulkRetriesOpen lists open bulk retries above a number, by number.
	BulkRetriesOpen(above int64, limit int) ([]Open, error)
	// BulkRetriesStaged lists bulk retries whose tasks were still being written.
	BulkRetriesStaged(limit int) ([]int64, error)
	// BulkRetryList returns a page of the project's bulk retries, newest first; the cursor's id is that of a parent.
	BulkRetryList(projectNo int64, open bool, page agent.Page) ([]BulkRetry, error)
	// BulkRetryTasks lists tasks after a position; status "" is every one.
	BulkRetryTasks(no int64, status TaskStatus, after, limit int) ([]TaskRow, error)
	// BulkRetryTaskOf finds the task whose newest child a command is.
	BulkRetryTaskOf(commandNo int64) (TaskRow, error)
	BulkRetryCounts() (OpenCounts, error)
}

// Tx is what the service writes through.
type Tx interface {
	agent.CommandTx
	ReadTx

	// InsertBulkRetry stores a bulk retry that nobody sees before OpenBulkRetry gave it its parent.
	InsertBulkRetry(b BulkRetry) (no int64, err error)
	InsertBulkRetryTasks(no int64, position int, tasks []Task) error
	OpenBulkRetry(no, commandNo int64) error
	// RemoveBulkRetry removes at most limit tasks of a bulk retry that nobody has seen, and itself with the last of them.
	RemoveBulkRetry(no int64, limit int) (done bool, err error)
	// UpdateBulkRetryTask stores status, child, lateness and error of a task.
	UpdateBulkRetryTask(t TaskRow) error
	// CountBulkRetryTask counts a task that ended with the status.
	CountBulkRetryTask(no int64, status TaskStatus) error
	SetBulkRetryWait(no int64, reason string) error
	// TouchBulkRetry moves the deadline of an open parent.
	TouchBulkRetry(commandNo int64, deadline time.Time) error
	// CloseBulkRetry ends a bulk retry; tasks that wait are cancelled with the reason.
	CloseBulkRetry(no int64, reason string) error
}

// Changed is woken after a bulk retry was started or one of its children ended.
type Changed struct{}
