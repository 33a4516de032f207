package notify

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Trigger is a kind of cause.
type Trigger string

// The triggers of rules. Test is no trigger of a rule: it marks messages that were sent for trial.
const (
	TaskFailed     Trigger = "task_failed"     // a task failed; names are those of tasks
	AgentOffline   Trigger = "agent_offline"   // an agent is offline for longer than the grace; names are those of agents
	FireBuffered   Trigger = "fire_buffered"   // a fire waits for an agent; names are those of schedules
	FireExpired    Trigger = "fire_expired"    // a fire waited too long and was given up; names are those of schedules
	CommandTimeout Trigger = "command_timeout" // a command had no result in time; names are those of actions
	CircuitBreaker Trigger = "circuit_breaker" // a schedule was turned off for its failures; names are those of schedules
	SystemTrouble  Trigger = "system_trouble"  // of the appliance itself; names are disk, database and damage
	Test           Trigger = "test"
)

// Triggers lists what a rule can be about.
func Triggers() []Trigger {
	return []Trigger{TaskFailed, AgentOffline, FireBuffered, FireExpired, CommandTimeout, CircuitBreaker, SystemTrouble}
}

func (t Trigger) valid() bool { return slices.Contains(Triggers(), t) }

// Kind is how a channel delivers.
type Kind string

// The kinds of channels.
const (
	Webhook Kind = "webhook" // a signed POST
	Email   Kind = "email"   // SMTP
	Chat    Kind = "service" // a chat or push service
)

// State is what became of a message.
type State string

// The states of a message: Pending until it is delivered, or given up as Dead, from where an operator can send it again.
const (
	Pending   State = "pending"
	Delivered State = "delivered"
	Dead      State = "dead"
)

// Channel is a way to people. Its settings are sealed: nobody is shown them again.
type Channel struct {
	No        int64
	ID        uuid.UUID
	ProjectNo int64
	Name      string
	Kind      Kind
	Target    string // what may be shown of where it leads
	Sealed    []byte
	IsEnabled bool
	Failures  int       // attempts that failed since one succeeded
	RetryAt   time.Time // nothing is sent before it; zero: without failures
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Rule says what is told to which channels.
type Rule struct {
	No        int64
	ID        uuid.UUID
	ProjectNo int64
	Name      string
	Trigger   Trigger
	Pattern   string        // of names, with * and ?; "" is every one
	Group     time.Duration // whole seconds; one message at most in this time for each group
	IsEnabled bool
	Channels  []uuid.UUID
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Notification is one message to one channel: a row of the outbox.
type Notification struct {
	No            int64
	ID            uuid.UUID
	ProjectNo     int64
	RuleID        *uuid.UUID // nil: a test, or the rule is gone
	RuleName      string
	ChannelID     uuid.UUID
	ChannelName   string
	Trigger       Trigger
	Subject       string
	Body          []byte // JSON object: what a webhook carries
	Collected     int64  // occurrences that it tells of
	State         State
	Attempts      int
	NextAttemptAt *time.Time // set exactly while it is pending
	ExpiresAt     time.Time  // an attempt that fails from here on is the last; not read back
	LastError     *string
	CreatedAt     time.Time
	EndedAt       *time.Time
}

// Filter narrows a list of messages. Zero fields do not filter.
type Filter struct {
	State     State
	ChannelID uuid.UUID
}

// Occurrence is one thing that happened.
type Occurrence struct {
	ProjectNo int64
	Trigger   Trigger
	Name      string // what patterns of rules are held against
	GroupKey  string // occurrences of one key are told together; cut to 200 bytes, "" is the name
	Title     string // one line
	Detail    string
	At        time.Time
	Links     map[string]string // ids and the like, by their name
}

// Message is what a channel delivers.
type Message struct {
	ID        uuid.UUID // the same over all attempts
	CreatedAt time.Time
	Subject   string // one line
	Text      string // plain text of several lines
	Body      []byte // JSON object
}
