package room

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// ConnectionModel decides how the status of an agent is told (H.7).
type ConnectionModel string

// The connection models (A.3).
const (
	AlwaysOn           ConnectionModel = "always_on"
	SessionAddressable ConnectionModel = "session_addressable"
	SessionPassive     ConnectionModel = "session_passive"
	AutoSession        ConnectionModel = "auto_session"
)

// Capability says whether an agent obeys a command (A.3, D.7).
type Capability string

// The capabilities.
const (
	CapabilityUnsupported      Capability = "unsupported"
	CapabilityAlways           Capability = "always"
	CapabilitySessionDependent Capability = "session_dependent"
)

// CommandCapabilities are those of the three commands that reach an agent.
type CommandCapabilities struct {
	Reset     Capability `json:"reset"`
	Compact   Capability `json:"compact"`
	Interrupt Capability `json:"interrupt"`
}

// Profile is what the server reads of an integration_profile.
type Profile struct {
	ConnectionModel ConnectionModel     `json:"connection_model"`
	MessageExchange bool                `json:"message_exchange"`
	TaskProtocol    TaskProtocol        `json:"task_protocol"`
	Commands        CommandCapabilities `json:"command_capabilities"`
}

// TaskProtocol is descriptive only.
type TaskProtocol struct {
	CanDelegate bool `json:"can_delegate"`
	CanAccept   bool `json:"can_accept"`
}

// Agent is the identity behind connections: a participant of rooms with its own key and numbering.
type Agent struct {
	No            int64
	ID            uuid.UUID
	Name          string
	OwnerNo       int64     // 0: nobody
	OwnerID       uuid.UUID // uuid.Nil: nobody
	OwnerName     string
	OwnerAdmin    bool
	ParentNo      int64 // 0: none
	Type          string
	Description   string
	DisplayName   string
	IconURL       string
	ConnectorType string
	Profile       Profile
	RawProfile    json.RawMessage // integration_profile as it arrived
	Tools, Models json.RawMessage
	Metadata      json.RawMessage
	Policy        *Policy // nil: open
	KeySetAt      time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// Actor is the agent as whoever does something.
func (a Agent) Actor() Actor {
	return Actor{Kind: KindAgent, No: a.No, ID: a.ID, Name: a.Name, OwnerNo: a.OwnerNo, Admin: a.OwnerAdmin}
}

// Status is how an agent is told to be (H.7).
type Status string

// The statuses.
const (
	StatusLive               Status = "live"
	StatusDisconnected       Status = "disconnected"
	StatusAwaitingManualPoll Status = "awaiting_manual_poll"
	StatusNoSession          Status = "no_session"
	StatusDormant            Status = "dormant"
	StatusNotPermitted       Status = "not_permitted"
)
