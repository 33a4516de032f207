package daemon

import (
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Identity is who this daemon is and what it has seen of control.
type Identity struct {
	ClientID uuid.UUID
	// Epoch names the database; it is made with it and never changes.
	Epoch uuid.UUID
	// LastGeneration is the highest connection generation this database has stored; 0 when none.
	LastGeneration uint64
	// InventoryRevision counts the changes of the inventory; InventoryToken is the backend's change token that it
	// stands for.
	InventoryRevision uint64
	InventoryToken    string
	Reconnect         Reconnect
}

// Reconnect holds what control said about coming back, kept for the next start (2.5). Zero fields: nothing said yet.
type Reconnect struct {
	Initial     time.Duration
	Cap         time.Duration
	StableReset time.Duration
	// MaxActiveCursors is the limit last negotiated.
	MaxActiveCursors uint32
}

// StoredCommand is a command with the answer it was given.
type StoredCommand struct {
	ID    uuid.UUID
	JobID uuid.UUID // uuid.Nil for commands without a job
	// Payload is the command without attempt, in deterministic binary form; Digest its SHA-256.
	Payload []byte
	Digest  string
	// Unreadable marks a command that was refused because it could not be read in full: Payload holds what could.
	Unreadable bool
	Status     pb.AckStatus
	Error      *pb.ErrorDetail
	DecidedAt  time.Time
}

// JobRow is the durable state of one job.
type JobRow struct {
	ID         uuid.UUID
	Definition *pb.JobDefinition // shared: not to be modified
	Digest     string
	Role       pb.ParticipantRole
	// Revision and Sequence are the local cursor.
	Revision, Sequence uint64
	// ConfirmedRevision and ConfirmedSequence are what control has confirmed to this daemon (2.6).
	ConfirmedRevision, ConfirmedSequence uint64
	// TrimmedThrough is the highest sequence of a dropped event; snapshots begin above it.
	TrimmedThrough uint64
	State          pb.JobState
	Committed      bool
	// CommitEvidenceSHA256 is set once the committed step has its evidence.
	CommitEvidenceSHA256 string
	// Undone tells that a CancelJob was accepted: its clean-up may have removed names, which cannot be taken back.
	Undone bool
	// Ended tells that CloseJob or ABANDON ended the job here.
	Ended bool
	// Closing tells that the job's own files are still to be removed.
	Closing bool
	// EndedAt is when the job ended; zero before.
	EndedAt time.Time
}

// LeaseKind tells which command gave a lease.
type LeaseKind uint8

// The kinds of leases. LeaseUnknown belongs to retired IDs that were never seen.
const (
	LeaseUnknown LeaseKind = iota
	LeaseStep
	LeaseCancel
)

// Lease is the right to emit events under a command.
type Lease struct {
	CommandID uuid.UUID
	JobID     uuid.UUID
	Kind      LeaseKind
	Step      pb.JobStep
	Attempt   uint32
	State     pb.LeaseState // OPEN, SETTLED or RETIRED
	// Started tells that STEP_STARTED was made.
	Started bool
	// EndSequence is the sequence of the terminal event; 0 when there is none yet. A step lease that CancelJob closed
	// takes that of STEP_CANCELLED.
	EndSequence uint64
}

// OutboxEvent is one event with its delivery state.
type OutboxEvent struct {
	Event *pb.JobEvent
	// Sent events are immutable: their bytes may have left.
	Sent bool
	// Acked events are stored by control.
	Acked bool
}

// RouteRow is one side of a route at this daemon.
type RouteRow struct {
	ID    uuid.UUID
	Side  pb.ParticipantRole
	Route *pb.Route // shared: not to be modified
	// CreationCommandID is the CreateRoute that opened the sequence, CommandID the latest command about the route.
	CreationCommandID uuid.UUID
	CommandID         uuid.UUID
	ProbeNonce        string
	LastSequence      uint64
	AckedSequence     uint64
	State             pb.RouteState
	RemoveProvisioned bool
}
