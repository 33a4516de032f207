package daemon

import (
	"context"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Store runs the engine's transactions. Update returns nil only when fn's writes are durable: the database commits
// fully synchronously. fn touches only its tx.
type Store interface {
	Update(ctx context.Context, op string, fn func(Tx) error) error
	View(ctx context.Context, fn func(ReadTx) error) error
}

// ReadTx reads one snapshot of the daemon's database. Methods with a bool tell whether the row exists.
type ReadTx interface {
	// Now is the transaction's time: UTC, whole microseconds.
	Now() time.Time
	Identity() (Identity, error)

	Command(id uuid.UUID) (StoredCommand, bool, error)
	// JobCommands returns the commands of the job in the order of their arrival.
	JobCommands(job uuid.UUID) ([]StoredCommand, error)

	Job(id uuid.UUID) (JobRow, bool, error)
	// ActiveJobs returns the jobs that have not ended, oldest first.
	ActiveJobs() ([]JobRow, error)
	// WorkingJobs returns the jobs that a process must take up at its start: those with an open lease, and those
	// whose files are still to be removed.
	WorkingJobs() ([]uuid.UUID, error)
	// ClosingJobs returns the jobs that ended and whose files are still to be removed.
	ClosingJobs() ([]uuid.UUID, error)
	Lease(id uuid.UUID) (Lease, bool, error)
	// JobLeases returns the leases of the job in the order they were made.
	JobLeases(job uuid.UUID) ([]Lease, error)

	// Events returns up to limit events of the job from the sequence on, ascending.
	Events(job uuid.UUID, from uint64, limit int) ([]OutboxEvent, error)
	// UnackedEvents returns up to limit events that control has not confirmed, from the sequence on, ascending.
	UnackedEvents(job uuid.UUID, from uint64, limit int) ([]OutboxEvent, error)
	// UnackedCommands returns the command IDs of the job's unconfirmed events.
	UnackedCommands(job uuid.UUID) ([]uuid.UUID, error)
	// LastEvent returns the newest event of the lease; with kinds, the newest of one of them.
	LastEvent(command uuid.UUID, kinds ...pb.JobEventKind) (OutboxEvent, bool, error)
	// StepEvidence returns the evidence of the newest STEP_COMPLETED of the step, nil when there is none.
	StepEvidence(job uuid.UUID, step pb.JobStep) (*pb.StepEvidence, error)
	// OutboxDepth is the number of events that control has not confirmed.
	OutboxDepth() (uint64, error)
	CommitRecord(job uuid.UUID) (*CommitRecord, error)

	JournalEntry(job uuid.UUID, step pb.JobStep, index int64, name string) (JournalEntry, bool, error)
	// JournalPage returns up to limit entries after the key of the entry, or from the first.
	JournalPage(job uuid.UUID, after *JournalEntry, limit int) ([]JournalEntry, error)
	JournalSummary(job uuid.UUID) (*pb.JournalSummary, error)

	Route(id uuid.UUID, side pb.ParticipantRole) (RouteRow, bool, error)
	// Routes returns all routes, removed ones included, oldest first.
	Routes() ([]RouteRow, error)
	// RouteUpdates returns the updates of the route from the sequence on, ascending.
	RouteUpdates(id uuid.UUID, side pb.ParticipantRole, from uint64) ([]*pb.RouteUpdate, error)
}

// Tx writes to the daemon's database.
type Tx interface {
	ReadTx
	// AfterCommit has fn called once the transaction is durable; it must not block.
	AfterCommit(fn func())
	// Hint is AfterCommit for what only says "look again": fn is also called when it is unknown whether the transaction is
	// durable.
	Hint(fn func())

	// SetLastGeneration stores the generation; a lower one than is stored changes nothing.
	SetLastGeneration(generation uint64) error
	SetReconnect(r Reconnect) error
	SetInventory(revision uint64, token string) error

	InsertCommand(c StoredCommand) error
	InsertJob(j JobRow) error
	// UpdateJob writes everything of the row except its definition, digest and role.
	UpdateJob(j JobRow) error
	// PutLease inserts or replaces the lease.
	PutLease(l Lease) error

	InsertEvent(e *pb.JobEvent) error
	// ReplaceEvent replaces an event that was never sent; Conflict when it was.
	ReplaceEvent(e *pb.JobEvent) error
	// MarkSent marks the events as sent, before their bytes leave.
	MarkSent(job uuid.UUID, sequences []uint64) error
	// MarkAcked marks the job's events up to the sequence as confirmed and returns how many were not yet.
	MarkAcked(job uuid.UUID, through uint64) (int64, error)
	// DropUnacked removes the unconfirmed events of the lease and returns the highest sequence removed, 0 when none.
	DropUnacked(command uuid.UUID) (uint64, error)
	// DropOutbox removes every unconfirmed event of the job and returns the highest sequence removed, 0 when none.
	DropOutbox(job uuid.UUID) (uint64, error)
	// DropAbove removes the job's events above the sequence.
	DropAbove(job uuid.UUID, sequence uint64) error
	// TrimEvents drops confirmed PROGRESS, STALLED and RESUMED events beyond the newest keep of the job and returns
	// the highest sequence dropped, 0 when none.
	TrimEvents(job uuid.UUID, keep int) (uint64, error)
	PutCommitRecord(job uuid.UUID, r CommitRecord) error

	PutJournal(job uuid.UUID, entries []JournalEntry) error

	PutRoute(r RouteRow) error
	InsertRouteUpdate(u *pb.RouteUpdate) error
	// TrimRouteUpdates deletes the updates of the side through the sequence.
	TrimRouteUpdates(id uuid.UUID, side pb.ParticipantRole, through uint64) error

	// Expire deletes what is kept only to recognise repetitions: ended jobs with all that belongs to them, and
	// commands without a job, from before the time; and what the store caches and nobody has used in a long time. At most
	// limit jobs at a call; it reports whether there is more.
	Expire(before time.Time, limit int) (more bool, err error)
}
