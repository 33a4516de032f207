package agent

import (
	"time"

	"github.com/google/uuid"
)

// Status is the state of a command (agent protocol E.3).
type Status string

// The statuses of a command.
//
//   - Pending: stored, nobody has claimed it. In by issue and revert; out by claim, ack, cancel, result and sweep.
//   - Dispatched: claimed for one session. In by claim (and by an ack that overtook it); out by result, cancel, sweep,
//     revert.
//   - Completed, Failed: the agent's result. Terminal.
//   - TimedOut: the deadline passed without a result. Terminal but for revert.
//   - Cancelled: an operator gave it up. Terminal.
const (
	Pending    Status = "pending"
	Dispatched Status = "dispatched"
	Completed  Status = "completed"
	Failed     Status = "failed"
	TimedOut   Status = "timeout"
	Cancelled  Status = "cancelled"
)

// Command is a durable request to one agent (agent protocol E.1). Archive jobs have commands too, with other rules;
// the package tells them apart.
type Command struct {
	No             int64
	ID             uuid.UUID
	ProjectNo      int64
	ProjectID      uuid.UUID
	AgentNo        int64
	AgentID        uuid.UUID
	IssuedBy       *string
	Action         string
	TargetType     string
	TargetID       *string
	Payload        []byte // JSON object
	RetryEngine    string // retry family only: engine whose retry contract the receiver must state; "" otherwise
	IdempotencyKey *string
	ParentNo       int64 // the bulk_retry command it is a child of; 0: none
	Status         Status
	Result         []byte // JSON object or nil
	Error          *string
	IssuedAt       time.Time
	DispatchedAt   *time.Time
	AckedAt        *time.Time
	CompletedAt    *time.Time
	TimeoutAt      time.Time
	SourceIP       *string
}

// DeliveryOutcome is how one attempt to hand a command over stands or ended.
type DeliveryOutcome string

// The outcomes of a delivery. InFlight and Acked are open; the others are final.
const (
	DeliveryInFlight   DeliveryOutcome = "in_flight"
	DeliveryAcked      DeliveryOutcome = "acked"
	DeliverySendFailed DeliveryOutcome = "send_failed"
	DeliverySignFailed DeliveryOutcome = "sign_failed"
	DeliverySuccess    DeliveryOutcome = "success"
	DeliveryFailed     DeliveryOutcome = "failed"
	DeliverySuperseded DeliveryOutcome = "superseded" // a later attempt or a cancel took its place
	DeliveryTimeout    DeliveryOutcome = "timeout"
)

// Delivery is one row of the delivery ledger: one attempt to hand a command over.
type Delivery struct {
	No         int64
	CommandNo  int64
	Attempt    int
	Transport  Transport
	Session    string
	Worker     string
	ClaimedAt  time.Time
	SentAt     *time.Time
	AckedAt    *time.Time
	FinishedAt *time.Time
	Outcome    DeliveryOutcome
	Reason     *string
}

// Transition is one change of a command: a row of its timeline and of the log that watchers resume from.
type Transition struct {
	No        int64
	CommandNo int64
	At        time.Time
	Event     string // issued, claimed, redelivered, reverted, acked, completed, failed, timeout, cancelled, late_result
	Status    Status // after the change
	Detail    *string
}

// Claimed is a command claimed for one session, ready to be signed and sent: the claim and its ledger row are durable.
type Claimed struct {
	Command        Command
	DeliveryNo     int64
	TimeoutSeconds int // for the frame: min(setting, 3600)
}
