package failure

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
)

// State is what people think of a group.
type State string

// The states of a group.
const (
	Open     State = "open"     // in by the first failure, by Reopen, and from resolved by a recurrence
	Resolved State = "resolved" // in by Resolve
	Ignored  State = "ignored"  // in by Ignore; a recurrence is counted and changes nothing
)

// States lists them, for filters and help texts.
func States() []string { return []string{string(Open), string(Resolved), string(Ignored)} }

const (
	// maxSampleException and maxSampleTraceback bound what is kept of the newest failure, in bytes.
	maxSampleException = 2 << 10
	maxSampleTraceback = 16 << 10
)

// Group is the failures of one kind.
type Group struct {
	Identity
	No        int64
	ID        uuid.UUID
	ProjectNo int64
	ProjectID uuid.UUID
	State     State
	StateBy   string // who set the state; "" for the first failure or a recurrence
	StateAt   time.Time
	Reopened  int   // how often a recurrence opened it again
	Failures  int64 // how many there were, also those whose rows retention has removed
	FirstSeen time.Time
	LastSeen  time.Time
	Sample    Sample
}

// CatchAll tells whether the group takes what lies beyond the cap of groups.
func (g *Group) CatchAll() bool { return g.Fingerprint == CatchAll }

// Sample is the newest failure of a group.
type Sample struct {
	TaskID    string
	Exception string
	Traceback string
}

// Failure is one failure of a group.
type Failure struct {
	EventID    uuid.UUID // of the event that told it
	Engine     string
	TaskID     string
	OccurredAt time.Time
	// TaskName and TaskState are those of the task's row now; "" when it is gone.
	TaskName  string
	TaskState string
}

// NewFailure is a failure that is ready to be stored.
type NewFailure struct {
	GroupNo    int64
	OccurredAt time.Time
	EventNo    int64
}

// Head is what recording must know of a stored group.
type Head struct {
	Fingerprint string
	No          int64
	ID          uuid.UUID
	State       State
	StateAt     time.Time
	LastSeen    time.Time
}

// Change is what the failures of one transaction change of a stored group.
type Change struct {
	No          int64
	Failures    int
	First, Last time.Time // widen first and last seen
	Reopen      bool      // it was resolved: open at the transaction's time, by nobody
	Sample      *Sample   // nil: keep the one that is there
}

// Filter narrows a list of groups. Zero fields do not filter.
type Filter struct {
	State    string
	Engine   string
	TaskName string
	Since    time.Time // last seen at or after
}

// Tx is what recording writes through, inside the transaction that stores the event.
type Tx interface {
	Now() time.Time
	AfterCommit(func())
	// FailureHeads returns those groups of the project that are stored, in no order.
	FailureHeads(projectNo int64, fingerprints []string) ([]Head, error)
	// CountFailureGroups counts the groups of the project, at most limit, the one that catches all not counted.
	CountFailureGroups(projectNo int64, limit int) (int, error)
	// InsertFailureGroup stores a new group and returns its number.
	InsertFailureGroup(g *Group) (int64, error)
	// AddToFailureGroup applies a change.
	AddToFailureGroup(c *Change) error
	// InsertFailures stores failures of stored groups.
	InsertFailures(failures []NewFailure) error
}

// ReadTx is what Service reads.
type ReadTx interface {
	agent.Reader
	// FailureGroups returns a page, the last seen first. Samples have no traceback.
	FailureGroups(projectNo int64, f Filter, page agent.Page) ([]Group, error)
	// FailureGroup finds a group of the project; NotFound when there is none.
	FailureGroup(projectNo int64, id uuid.UUID) (Group, error)
	// FailureGroupIDs returns ids of the project's groups in [from, to].
	FailureGroupIDs(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error)
	// FailuresOf returns the latest failures of a group, newest first.
	FailuresOf(groupNo int64, limit int) ([]Failure, error)
	// Retention lists the projects with how long they keep their records.
	Retention() ([]agent.ProjectRetention, error)
	// FailuresExpired tells whether the project has failures, or groups to remove, before the cutoff.
	FailuresExpired(projectNo int64, cutoff time.Time) (bool, error)
}

// ServiceTx is what Service writes through.
type ServiceTx interface {
	agent.Writer
	ReadTx
	audit.Tx
	// SetFailureState sets the state of a group as of the transaction's time.
	SetFailureState(groupNo int64, state State, by string) error
	// PruneFailures removes at most limit failures of the project before the cutoff.
	PruneFailures(projectNo int64, cutoff time.Time, limit int) (int, error)
	// PruneFailureGroups removes at most limit groups of the project, none of them ignored, that were last seen before the
	// cutoff and have no failures left.
	PruneFailureGroups(projectNo int64, cutoff time.Time, limit int) (int, error)
}
