package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

const (
	// maxStreamScan is how many positions of the log one StreamEvents looks at: a reader of a quiet project beside busy
	// ones moves on in bounded steps.
	maxStreamScan = 5000
	// maxTreeNodes is the cap of a task tree (agent protocol H.5).
	maxTreeNodes = 500
	// maxBulkDeleteIDs is how many tasks one bulk-delete may name.
	maxBulkDeleteIDs = 1000
	// maxListed bounds the lists that have no pages.
	maxListed = 5000
	// pruneSlice is how many rows retention looks at or removes in one transaction: a commit of others waits no longer
	// than for that.
	pruneSlice = 100
)

// EventFilter narrows a list or stream of events. Zero fields do not filter.
type EventFilter struct {
	Engine  string
	TaskID  string
	Kind    string
	AgentID uuid.UUID
	Since   time.Time // occurred at or after
}

// TaskFilter narrows a list of tasks. Zero fields do not filter.
type TaskFilter struct {
	State    string
	Priority string
	Name     string
	Search   string // part of the name or of the task id, ASCII letters without regard to case
	Queue    string
	Worker   string
	Since    time.Time // row created at or after
	Until    time.Time // row created before
}

func (f *TaskFilter) check() error {
	if f.State != "" && !slices.Contains(TaskStates(), f.State) {
		return fault.Field("state", "must be one of %v", TaskStates())
	}
	if f.Priority != "" && !slices.Contains(TaskPriorities(), f.Priority) {
		return fault.Field("priority", "must be one of %v", TaskPriorities())
	}
	return nil
}

// EventBounds are the ends of a project's log of events.
type EventBounds struct {
	Pruned int64 // low watermark: the highest position that retention removed; a reader below it has a gap
	Head   int64 // high watermark: the highest position ever given, in any project
}

// EventStream is one step along the log of events.
type EventStream struct {
	Events []Event // oldest first
	Next   int64   // position to go on from
	More   bool    // there is more to look at already
	Bounds EventBounds
	// Gap tells that rows after the asked position are missing: retention removed some of them, or the position lies
	// beyond the head, which means that it belongs to another database.
	Gap bool
}

// TaskNode is a task as a node of its tree.
type TaskNode struct {
	TaskID       string
	Name         string
	State        string
	ParentTaskID *string
	RootTaskID   *string
	ReceivedAt   *time.Time
	FinishedAt   *time.Time
}

// TaskTree is a task's whole family (agent protocol H.5).
type TaskTree struct {
	RootTaskID string
	Truncated  bool // there are more nodes than the cap
	Nodes      []TaskNode
}

// BulkDelete names the tasks to delete: by row id, or by a filter with at least one condition; never both.
type BulkDelete struct {
	IDs    []uuid.UUID
	Filter TaskFilter
}

// ProjectRetention is how many days a project keeps its records.
type ProjectRetention struct {
	ProjectNo int64
	Days      int
}

// RecordsReadTx is what Records reads.
type RecordsReadTx interface {
	Reader
	// ListEvents returns a page, newest first by (occurred_at, id).
	ListEvents(projectNo int64, f EventFilter, page Page) ([]Event, error)
	// EventsBetween returns events with positions in (after, upTo], oldest first.
	EventsBetween(projectNo, after, upTo int64, f EventFilter, limit int) ([]Event, error)
	EventBounds(projectNo int64) (EventBounds, error)
	// ListTasks returns a page, newest first by id.
	ListTasks(projectNo int64, f TaskFilter, page Page) ([]Task, error)
	// TaskIDs lists tasks that pass the filter with ids in (after, upTo], oldest first.
	TaskIDs(projectNo int64, f TaskFilter, after, upTo uuid.UUID, limit int) ([]uuid.UUID, error)
	// GetTask and GetWorker fail with NotFound.
	GetTask(projectNo int64, engine, taskID string) (Task, error)
	TasksOfRoot(projectNo int64, engine, rootID string, limit int) ([]TaskNode, error)
	ListWorkers(projectNo int64, limit int) ([]Worker, error)
	GetWorker(projectNo int64, id uuid.UUID) (Worker, error)
	// AnyWorkerSilent tells whether an online worker was last heard before the time.
	AnyWorkerSilent(before time.Time) (bool, error)
	// CountWorkersOnline counts over all projects.
	CountWorkersOnline() (int, error)
	ListQueues(projectNo int64, limit int) ([]Queue, error)
	Retention() ([]ProjectRetention, error)
	EventsExpired(projectNo int64, cutoff time.Time) (bool, error)
}

// RecordsTx is what Records removes through.
type RecordsTx interface {
	Writer
	DeleteTask(projectNo int64, id uuid.UUID) (bool, error)
	// DeleteTasks removes those of the tasks that pass the filter.
	DeleteTasks(projectNo int64, f TaskFilter, ids []uuid.UUID) (int, error)
	// PruneEvents removes at most limit events before the cutoff and raises the project's low watermark.
	PruneEvents(projectNo int64, cutoff time.Time, limit int) (int, error)
	// PruneTasks looks at the scan next tasks in (after, before) and removes what was not changed since the cutoff and has
	// no events left. next is where to go on, the nil UUID at the end.
	PruneTasks(projectNo int64, cutoff time.Time, after, before uuid.UUID, scan int) (removed int, next uuid.UUID, err error)
	PruneAgentStatus(cutoff time.Time, scan int) (int, error)
	// SilenceWorkers marks at most limit online workers unknown that were last heard before the time.
	SilenceWorkers(before time.Time, limit int) (int, error)
	PruneTelemetryLosses(cutoff time.Time, limit int) (int, error)
	// PruneWorkers removes at most limit workers, and as many queues, not heard of since the cutoff; it returns the larger
	// count.
	PruneWorkers(cutoff time.Time, limit int) (int, error)
}

// RecordsOptions are the settings of Records.
type RecordsOptions struct {
	// RetentionDays is how long events, tasks and agent status are kept at most; a project may ask for less. It must be
	// above zero.
	RetentionDays int
	Clock         clock.Clock // nil: the system's
}

// Records reads and retires what the Router stored. Safe for concurrent use.
type Records struct {
	st    Store[RecordsTx, RecordsReadTx]
	days  int
	clock clock.Clock

	mu    sync.Mutex
	tasks pruneCursor // where the walk over old tasks stands
}

// NewRecords builds Records.
func NewRecords(st Store[RecordsTx, RecordsReadTx], opts RecordsOptions) (*Records, error) {
	if opts.RetentionDays < 1 {
		return nil, fault.Field("event_retention_days", "must be at least 1, got %d", opts.RetentionDays)
	}
	r := &Records{st: st, days: opts.RetentionDays, clock: opts.Clock}
	if r.clock == nil {
		r.clock = clock.System()
	}
	return r, nil
}

// ListEvents returns a page of the project's events, newest first. The next page starts after EventCursor of the last.
func (r *Records) ListEvents(ctx context.Context, projectNo int64, f EventFilter, page Page) (events []Event, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		events, err = tx.ListEvents(projectNo, f, page)
		return err
	})
	return events, err
}

// EventCursor is the place of an event in ListEvents.
func EventCursor(e *Event) Cursor { return Cursor{At: e.OccurredAt, ID: e.ID} }

// TaskCursor is the place of a task in ListTasks.
func TaskCursor(t *Task) Cursor { return Cursor{At: t.CreatedAt, ID: t.ID} }

// StreamEvents returns the project's events after a position of the log, in the order stored. A step looks at a bounded
// part of the log, so it may return no events and yet a later Next; go on while More is set, then wait for
// ProjectEvents. Watch first, then read, then wait.
func (r *Records) StreamEvents(ctx context.Context, projectNo, after int64, f EventFilter, limit int) (s EventStream, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) error {
		b, err := tx.EventBounds(projectNo)
		if err != nil {
			return err
		}
		after := max(after, 0)
		s = EventStream{Bounds: b, Gap: after < b.Pruned || after > b.Head, Next: after}
		if after >= b.Head {
			s.Next = b.Head
			return nil
		}
		upTo := min(b.Head, after+maxStreamScan)
		if s.Events, err = tx.EventsBetween(projectNo, after, upTo, f, limit); err != nil {
			return err
		}
		s.Next = upTo
		if n := len(s.Events); n > 0 && n == limit {
			s.Next = s.Events[n-1].No
		}
		s.More = s.Next < b.Head
		return nil
	})
	return s, err
}

// EventBounds returns the ends of the project's log of events.
func (r *Records) EventBounds(ctx context.Context, projectNo int64) (b EventBounds, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		b, err = tx.EventBounds(projectNo)
		return err
	})
	return b, err
}

// ListTasks returns a page of the project's tasks, newest first. Invalid for an unknown state or priority.
func (r *Records) ListTasks(ctx context.Context, projectNo int64, f TaskFilter, page Page) (tasks []Task, err error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		tasks, err = tx.ListTasks(projectNo, f, page)
		return err
	})
	return tasks, err
}

// GetTask finds a task by its identity; NotFound when there is none.
func (r *Records) GetTask(ctx context.Context, projectNo int64, engine, taskID string) (t Task, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		t, err = tx.GetTask(projectNo, engine, taskID)
		return err
	})
	return t, err
}

// TaskTree returns the family of a task: everything with the same root, at most 500 nodes. NotFound when the task does
// not exist.
func (r *Records) TaskTree(ctx context.Context, projectNo int64, engine, taskID string) (tree TaskTree, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) error {
		t, err := tx.GetTask(projectNo, engine, taskID)
		if err != nil {
			return err
		}
		tree.RootTaskID = taskID
		if t.RootTaskID != nil {
			tree.RootTaskID = *t.RootTaskID
		}
		if tree.Nodes, err = tx.TasksOfRoot(projectNo, engine, tree.RootTaskID, maxTreeNodes+1); err != nil {
			return err
		}
		if len(tree.Nodes) > maxTreeNodes {
			tree.Nodes, tree.Truncated = tree.Nodes[:maxTreeNodes], true
		}
		return nil
	})
	return tree, err
}

// ListWorkers returns the project's workers by engine and name.
func (r *Records) ListWorkers(ctx context.Context, projectNo int64) (workers []Worker, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		workers, err = tx.ListWorkers(projectNo, maxListed)
		return err
	})
	return workers, err
}

// CountWorkersOnline counts the online workers of all projects.
func (r *Records) CountWorkersOnline(ctx context.Context) (n int, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		n, err = tx.CountWorkersOnline()
		return err
	})
	return n, err
}

// GetWorker finds a worker of the project; NotFound when there is none.
func (r *Records) GetWorker(ctx context.Context, projectNo int64, id uuid.UUID) (w Worker, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		w, err = tx.GetWorker(projectNo, id)
		return err
	})
	return w, err
}

// ListQueues returns the project's queues by engine and name.
func (r *Records) ListQueues(ctx context.Context, projectNo int64) (queues []Queue, err error) {
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		queues, err = tx.ListQueues(projectNo, maxListed)
		return err
	})
	return queues, err
}
