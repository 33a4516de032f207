package agent

import (
	"time"

	"github.com/google/uuid"
)

// Project is a tenant: agents, events and commands belong to exactly one (agent protocol A.1).
type Project struct {
	No                    int64 // key inside the database, never shown
	ID                    uuid.UUID
	Slug                  string
	Name                  string
	Description           *string
	Environment           string
	Timezone              string
	RetentionDays         int
	IsActive              bool // false: archived
	DefaultSchedulerOwner string
	AllowedSchedulers     []string // nil: unrestricted
	CreatedAt, UpdatedAt  time.Time
}

// State is an agent's liveness as the dashboard shows it.
type State string

// The states of an agent. Unknown is the minted state: it has never been heard of.
const (
	Online  State = "online"
	Offline State = "offline"
	Unknown State = "unknown"
)

// Agent is one minted agent (agent protocol A.1). Its token exists only as a hash.
type Agent struct {
	No                int64
	ID                uuid.UUID
	ProjectNo         int64
	ProjectID         uuid.UUID
	Name              string
	ProtocolVersion   string // "0" until the first hello
	FrameworkAdapter  string // "unknown" until the first hello
	EngineAdapters    []string
	SchedulerAdapters []string
	Capabilities      map[string][]string
	State             State
	Host              []byte // JSON object of the last hello
	AgentVersion      string // "" until reported
	RuntimeFeatures   []string
	LastSeenAt        *time.Time
	LastConnectAt     *time.Time
	RevokedAt         *time.Time
	CreatedAt         time.Time
}

// ReportedInventory tells whether the agent ever said which engines it has. An inventory that was not reported is
// unknown, never empty: a long-poll-only agent stays so (agent protocol A.1, F.8).
func (a *Agent) ReportedInventory() bool { return a.LastConnectAt != nil || len(a.EngineAdapters) > 0 }

// Transport names how a session reaches us.
type Transport string

// The two transports of the agent plane.
const (
	WebSocket Transport = "ws"
	LongPoll  Transport = "longpoll"
)

// Peer is an authenticated session of an agent: what the services need to know of it.
type Peer struct {
	ProjectNo int64
	ProjectID uuid.UUID
	AgentNo   int64
	AgentID   uuid.UUID
	Transport Transport
	Session   string // WS: session id; LP: session nonce ("" for the legacy session). Shown in the ledger.
	Worker    string // worker slot; "" is the legacy slot. Always "" over long-poll.
}

// Hello is the inventory of a WebSocket hello (agent protocol B.3), already checked against its limits.
type Hello struct {
	ProtocolVersion string
	AgentVersion    string
	Framework       string
	Engines         []string
	Schedulers      []string
	Capabilities    map[string][]string
	Host            []byte // JSON object as it arrived
	WorkerID        string // "" is the legacy slot
	WorkerRole      string // "" when absent
	WorkerPID       *int
	WorkerStartedAt *time.Time
	RuntimeFeatures []string
}

// AgentWorker is one worker slot of an agent (agent protocol B.5).
type AgentWorker struct {
	ID            uuid.UUID
	AgentID       uuid.UUID
	ProjectID     uuid.UUID
	WorkerID      *string // nil: the legacy slot
	Role          *string
	Framework     string
	PID           *int
	StartedAt     *time.Time
	State         State
	LastSeenAt    time.Time
	LastConnectAt time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// Role is what a principal may do inside its projects: viewer < operator < admin; auditor reads the audit log and what
// a viewer reads.
type Role string

// The roles of agent protocol H.1.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Admin    Role = "admin"
	Auditor  Role = "auditor"
)

// Principal is who a request's credential proved.
type Principal struct {
	Kind      string     // "local" (unix socket) or "api_key"
	ID        string     // "local", or the API key's UUID
	Name      string     // for people
	Role      Role       // within ProjectID, or everywhere
	Scopes    []string   // H.1 scopes, e.g. "agents:write"; "admin:*" implies all
	ProjectID *uuid.UUID // nil: every project
	SourceIP  string     // resolved client address; "" on the unix socket
	UserAgent string
}

// APIKey is a credential for REST and CLI. The key itself exists only as a hash.
type APIKey struct {
	ID         uuid.UUID
	Name       string
	Prefix     string
	Role       Role
	Scopes     []string
	ProjectID  *uuid.UUID
	CreatedBy  string
	CreatedAt  time.Time
	ExpiresAt  *time.Time
	LastUsedAt *time.Time
	RevokedAt  *time.Time
}
