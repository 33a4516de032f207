package job

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Job is one row of jobs. Numbers of other rows are 0 and times are zero where the column is NULL.
type Job struct {
	No          int64
	ID          uuid.UUID
	Operation   pb.JobOperation
	ParentNo    int64
	SourceNo    int64
	TargetNo    int64
	RouteNo     int64
	Title       string
	Request     string // JSON of a Request
	Placeholder bool   // made for a job that only a daemon knew
	Definition  []byte // deterministic JobDefinition; nil before ASSIGNING and in a placeholder
	Digest      string // its SHA-256

	State      pb.JobState
	Kept       pb.JobState // WAITING: where it returns to
	Wait       pb.WaitReason
	WaitDetail string
	RetryAt    time.Time   // next try of a job that time ends the wait of
	Outcome    pb.JobState // CANCELLING: CANCELLED or FAILED
	Error      []byte      // ErrorDetail

	Revision  int64
	Sequence  int64 // of the last event
	Position  int   // index of the active step, which is the number of completed ones
	Attempt   int   // highest step attempt of the active step
	Failures  int   // of the active step (in PREFLIGHT: of the checks), counted against Allowance
	Allowance int

	Committed bool
	Undone    bool // a participant has undone its part

	Progress    []byte // Progress of the last event that had one
	Permille    int    // overall progress as displayed
	MovedAt     time.Time
	RetainUntil time.Time // EVICT: earliest PURGE
	ByPerson    bool      // a person ended it
	CreatedBy   string
	CreatedAt   time.Time
	StartedAt   time.Time
	EndedAt     time.Time
}

// Asked is what was asked for; zero in a placeholder, which nobody asked for.
func (j Job) Asked() (r Request) {
	if json.Unmarshal([]byte(j.Request), &r) != nil {
		return Request{}
	}
	return r
}

// Participant is one row of participants: the cursor of a daemon as control knows it (P of daemon protocol 4.1), and what
// the daemon last said (K).
type Participant struct {
	JobNo             int64
	DaemonNo          int64
	Role              pb.ParticipantRole
	Revision          int64 // last that this daemon produced, or was given by an acknowledged command
	Sequence          int64
	ConfirmedRevision int64 // what control has confirmed to it
	ConfirmedSequence int64
	State             pb.JobState // of the daemon
	Committed         bool
	CommitDigest      string // of the commit evidence
	Assigned          bool   // acknowledged
	WoundDown         bool
	Closed            bool  // CloseJob or ABANDON acknowledged
	Absent            bool  // it last said that it does not have the job
	Resuming          bool  // a person resumed the job, and this one has not followed
	Expecting         bool  // after a go-ahead, until the next event has come
	Decided           int64 // generation under which the job was decided (4.1); 0: not decided
	Reported          []byte
	ReportedAt        time.Time
	Epoch             uuid.UUID // state epoch of the database that Reported came from
}

// Peer is what the engine looks at of a daemon's row.
type Peer struct {
	No             int64
	ID             uuid.UUID
	Name           string
	Generation     int64
	Online         bool
	Paused         bool
	Limits         []byte // pb.Limits as negotiated last
	Minor          uint32
	RegisteredAt   time.Time
	LastSeenAt     time.Time
	GenerationUsed int64
}

// Stored is one row of events.
type Stored struct {
	JobNo     int64
	Sequence  int64
	EventID   uuid.UUID
	DaemonNo  int64
	CommandNo int64
	Kind      pb.JobEventKind
	Message   []byte // deterministic JobEvent
	At        time.Time
}

// Aside is an event that waits for the acknowledgement of its command (2.8).
type Aside struct {
	No         int64
	JobNo      int64
	DaemonNo   int64
	Generation int64
	Sequence   int64
	Message    []byte
}

// Proof is the evidence of one completed step.
type Proof struct {
	JobNo     int64
	Step      pb.JobStep
	CommandNo int64
	SHA256    string
	Evidence  []byte // deterministic StepEvidence
	At        time.Time
}

// Reservation is a name that a job keeps for itself at a daemon.
type Reservation struct {
	JobNo    int64
	DaemonNo int64
	Kind     string // infohash_v1, infohash_v2, tree, resource or destination
	Name     string
}

// Entry is one line of a job's story.
type Entry struct {
	No        int64
	JobNo     int64
	JobID     uuid.UUID
	DaemonNo  int64
	Daemon    string // its name; empty where the entry names none
	CommandNo int64
	CommandID uuid.UUID
	At        time.Time
	Event     string // see the Event constants
	State     pb.JobState
	Detail    json.RawMessage // an object
}

// The events of a job's story.
const (
	EntryCreated   = "created"
	EntryState     = "state"
	EntryWaiting   = "waiting"
	EntryCommand   = "command"
	EntryAcked     = "acked"
	EntryRejected  = "rejected"
	EntryConflict  = "conflict"
	EntryExhausted = "exhausted"
	EntryWithdrawn = "withdrawn"
	EntryStep      = "step"
	EntryRefused   = "refused"
	EntryDropped   = "dropped"
	EntryEvidence  = "evidence"
	EntryReconcile = "reconcile"
	EntrySnapshot  = "snapshot"
	EntryDecision  = "decision"
	EntryMove      = "move"
	EntryManual    = "manual"
)

// Preview is what the engine looks at of a preview's row.
type Preview struct {
	No      int64
	ID      uuid.UUID
	Request string
	State   string // running, passed or failed
	Draft   []byte // JobDefinition without job_id and created_at
	JobNo   int64
	Error   []byte
}
