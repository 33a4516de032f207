package agent

import (
	"time"

	"github.com/google/uuid"
)

// Event is one stored event (agent protocol D.4, D.5).
type Event struct {
	No         int64 // position in the log of events
	ID         uuid.UUID
	ProjectID  uuid.UUID
	AgentID    uuid.UUID
	Engine     string
	TaskID     string
	Kind       string
	OccurredAt time.Time
	Payload    []byte // JSON object, redacted
}

// Task is the projection of a task's events (agent protocol D.6). JSON fields hold the text that arrived, redacted; nil
// when absent.
type Task struct {
	No           int64
	ID           uuid.UUID
	ProjectID    uuid.UUID
	Engine       string
	TaskID       string
	Name         string
	Queue        *string
	State        string
	Priority     string
	Args         []byte
	Kwargs       []byte
	Result       []byte
	Exception    *string
	Traceback    *string
	RetryCount   int
	ETA          *time.Time
	ReceivedAt   *time.Time
	StartedAt    *time.Time
	FinishedAt   *time.Time
	RuntimeMS    *int64
	WorkerName   *string
	ParentTaskID *string
	RootTaskID   *string
	Tags         []byte
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// Worker is a process that executes tasks, as events and heartbeats describe it (agent protocol D.7).
type Worker struct {
	ID            uuid.UUID
	ProjectID     uuid.UUID
	Engine        string
	Name          string
	Hostname      *string
	PID           *int64
	Concurrency   *int64
	Queues        []string
	State         string
	LastHeartbeat *time.Time
	LoadAverage   []byte
	ActiveTasks   int64
	Processed     int64
	Failed        int64
	Succeeded     int64
	Retried       int64
	Metadata      []byte
	CreatedAt     time.Time
}

// Queue is a task queue, as events and heartbeats describe it (agent protocol D.7).
type Queue struct {
	ID            uuid.UUID
	ProjectID     uuid.UUID
	Engine        string
	Name          string
	BrokerType    *string
	BrokerURLHint *string
	PendingCount  *int64
	LastSeenAt    time.Time
	CreatedAt     time.Time
}

// Cursor is the place of a row in a list that is ordered newest first (agent protocol H.3).
type Cursor struct {
	At time.Time
	ID uuid.UUID
}

// IsZero tells whether the cursor is the beginning.
func (c Cursor) IsZero() bool { return c.ID == uuid.Nil && c.At.IsZero() }
