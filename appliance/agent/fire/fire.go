// Package fire keeps the fires of schedules (agent protocol G.2 to G.5): each is handed to an online agent that lists the
// schedule's engine, or buffered until one comes, and its history says what became of it. Who decides that a schedule
// fires is package schedule's concern.
//
// Whatever belongs to one step of a fire (its row, its command, its place in the buffer, its audit row, the count that
// trips the circuit breaker) is written in one transaction: a crash leaves all of the step or nothing.
package fire

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent/schedule"
)

// Fire is one row of the history of fires (agent protocol G.5).
type Fire struct {
	No           int64
	ID           uuid.UUID
	FireID       uuid.UUID // what the agent de-duplicates by
	ScheduleNo   int64
	ScheduleID   uuid.UUID
	ScheduleName string
	ProjectNo    int64
	Engine       string // the schedule's at this moment
	Origin       schedule.Origin
	SlotAt       *time.Time // the slot it belongs to; nil: triggered by hand
	CommandNo    int64      // of the newest schedule.fire command; 0: none yet
	CommandID    *uuid.UUID
	Status       Status
	ScheduledFor time.Time
	FiredAt      time.Time
	AckedAt      *time.Time
	LatencyMS    *int64 // from FiredAt to AckedAt
	FinishedAt   *time.Time
	ErrorCode    *string
	ErrorMessage *string
}

// Error codes of fires.
const (
	CodeCatchUp   = "catch_up"          // dropped at replay by the schedule's catch_up (agent protocol L34)
	CodeExpired   = "expired"           // no agent came before the buffer time ran out
	CodeAgent     = "agent_failed"      // the agent answered with a failure
	CodeCommand   = "command_failed"    // the command ended without an answer of the agent, for one because it could not be signed
	CodeCancelled = "command_cancelled" // an operator cancelled the command
	CodeRefused   = "issue_refused"     // the command could not be issued
)

// Limits of agent protocol G.5, in characters.
const (
	maxErrorCode    = 64
	maxErrorMessage = 2000
)

// Pending is a fire in the buffer (agent protocol G.4).
type Pending struct {
	No           int64
	ID           uuid.UUID
	FireNo       int64
	ScheduleNo   int64
	ProjectNo    int64
	Engine       string
	Payload      []byte // of the schedule.fire command
	ScheduledFor time.Time
	EnqueuedAt   time.Time
	ExpiresAt    time.Time
}

// Group is what replay looks at together: the buffered fires of one project and engine.
type Group struct {
	ProjectNo int64
	Engine    string
}

// Target is an agent that a fire may be handed to.
type Target struct {
	AgentNo  int64
	AgentID  uuid.UUID
	Name     string
	Declared bool // by declared engines: it reports no inventory
}

// Filter narrows a list of fires; zero fields match everything.
type Filter struct {
	ScheduleID uuid.UUID
	Status     Status
	Since      time.Time // fired at or after
}
