package schedule

import (
	"time"

	"github.com/google/uuid"
)

// Own is the scheduler whose schedules are fired here. Schedules of any other scheduler are records of an adapter's or an
// external process's: they are never fired by us (agent protocol G.6).
const Own = "signalbox"

// Kind tells how an expression is read.
type Kind string

// The kinds of agent protocol G.1.
const (
	Cron     Kind = "cron"
	Interval Kind = "interval"
	Clocked  Kind = "clocked"
	Solar    Kind = "solar" // refused for our own scheduler
)

// CatchUp says what becomes of missed slots (agent protocol G.1, G.4).
type CatchUp string

// The three ways.
const (
	Skip    CatchUp = "skip"
	FireOne CatchUp = "fire_one_missed"
	FireAll CatchUp = "fire_all_missed"
)

// Schedule is one schedule (agent protocol G.1).
type Schedule struct {
	No         int64 // key inside the database, never shown
	ID         uuid.UUID
	ProjectNo  int64
	ProjectID  uuid.UUID
	Engine     string
	Scheduler  string
	Name       string // unique in its project and scheduler
	TaskName   string
	Kind       Kind
	Expression string
	Timezone   string // IANA name
	Queue      *string
	Priority   string // critical, high, normal or low
	Args       []byte // JSON array
	Kwargs     []byte // JSON object
	IsEnabled  bool
	CatchUp    CatchUp
	ExternalID *string
	Source     string
	SourceHash *string
	// AnchorAt is where an interval counts from; slots lie strictly after it.
	AnchorAt time.Time
	// DecidedAt is the last slot that was decided, or the time from which slots count: the next lies after it.
	DecidedAt           time.Time
	NextRunAt           *time.Time // nil: there is no further slot, it is disabled, or the scheduler is not ours
	LastRunAt           *time.Time // scheduled time of the last fire
	TotalRuns           int64
	ConsecutiveFailures int
	DisabledReason      *string // why it was disabled by itself; nil: by a person, or not at all
	CreatedAt           time.Time
	UpdatedAt           time.Time
}

// Ours tells whether the schedule is fired here.
func (s *Schedule) Ours() bool { return s.Scheduler == Own }

// MisfireReason says why slots were passed over.
type MisfireReason string

// The reasons.
const (
	MisfireSkip MisfireReason = "catch_up_skip" // catch_up skip
	MisfireOne  MisfireReason = "catch_up_one"  // catch_up fire_one_missed: a later slot was fired for them
	MisfireCap  MisfireReason = "catch_up_cap"  // catch_up fire_all_missed beyond the cap
)

// Misfire is a run of slots that were not fired.
type Misfire struct {
	No         int64
	ScheduleNo int64
	At         time.Time // when it was decided
	FirstSlot  time.Time
	LastSlot   time.Time
	Slots      int64
	Reason     MisfireReason
}
