// Package daemon is the engine of an archive daemon: it decides about control's commands, keeps the durable state of
// jobs, runs the work of leased steps in bounded workers, and delivers events, snapshots, inventory and route updates.
//
// The engine owns no socket and no SQL: a Dialer gives it connections, a Store its transactions, Steps the work itself.
package daemon

import (
	"context"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Steps does the work of steps and the clean-up of jobs. The engine calls it from its workers: several jobs at a time,
// one call per job at a time. Every method must end soon after ctx is cancelled (CancelJob, retirement, HOLD, the end
// of the process) and must find its place again when it is called anew: the journal tells what was done.
//
// A method that finds an effect of its step (content at work in the backend, a trash directory of the job) without a
// journal row or commit record of its own returns *Held with STATE_LOST (daemon protocol 3.7).
type Steps interface {
	// Run does the step of t and returns its evidence. Other results: *StepError becomes STEP_FAILED, *Held becomes
	// HELD, any other error STEP_FAILED with INTERNAL. What it returns after ctx was cancelled is dropped: the lease
	// is not open any more, or the step is run again by the next process.
	Run(ctx context.Context, t *Task) (*pb.StepEvidence, error)
	// Undo rolls back what the journal of the job lists and still matches, for a CancelJob of an uncommitted job
	// (3.5, 7.6). KEEP_ALL keeps the job's own directories; published names are rolled back under both policies.
	// nil becomes STEP_CANCELLED and *Held becomes HELD. A retryable *StepError is tried again later; every other
	// error holds the job for a person.
	Undo(ctx context.Context, job *Job, cleanup pb.CleanupPolicy) error
	// Close removes the job's own directories and work areas by journal after CloseJob, never content and never trash
	// (2.6). It is not called when the files are to be kept. An error is tried again later, also by the next process.
	Close(ctx context.Context, job *Job) error
}

// Job is what a worker knows of its job. Its fields do not change during a call; messages are shared and must not be
// modified.
type Job struct {
	ID         uuid.UUID
	ClientID   uuid.UUID // this daemon
	Definition *pb.JobDefinition
	// Digest is the SHA-256 of the definition: 64 hex digits.
	Digest string
	Role   pb.ParticipantRole
	// Committed is the commit flag when the call began.
	Committed bool
	// Route is this daemon's side of the job's route; nil for jobs without one and for a route that is not there.
	Route *pb.Route
	// RouteSide is the side that this daemon has of Route.
	RouteSide pb.ParticipantRole
	// Record is the commit record, nil before the commit point. A COMMIT or RELEASE that finds it only rolls forward.
	Record *CommitRecord
	// Journal is the job's own journal.
	Journal Journal
	// Evidence returns the evidence of the latest STEP_COMPLETED of the step that this daemon made for this job, nil
	// when there is none. It reads the database.
	Evidence func(ctx context.Context, step pb.JobStep) (*pb.StepEvidence, error)
}

// Task is one leased step at work.
type Task struct {
	Job       *Job
	CommandID uuid.UUID
	// Execute has the step and its parameters.
	Execute *pb.ExecuteStepCommand
	// Resumed tells that an earlier process, or an earlier call, has already started this lease.
	Resumed bool

	// Confirmed blocks until control has confirmed the lease: for COMMIT to this process, for RELEASE and PURGE over
	// the present connection, so that a source gives up nothing while control is out of reach (3.5, 3.6). It is
	// called before the step's irreversible point, by PURGE before every entry. It costs nothing once confirmed. The
	// error is that of ctx.
	Confirmed func(ctx context.Context) error
	// Commit writes the commit record and sets the commit flag in one fully synchronous transaction, only while the
	// lease is open and confirmed; COMMIT and RELEASE call it before their first irreversible effect (3.7). It calls
	// Confirmed by itself. A repetition with an equal record succeeds without effect. After an error nothing
	// irreversible may be done; it is returned from Run as it is.
	Commit func(ctx context.Context, r CommitRecord) error
	// Progress reports fractions and counters of the step: fraction_complete, bytes, files and rate. The engine fills
	// in the rest, keeps to the progress economy (2.8) and finds stalls. It takes p over and does not block.
	Progress func(p *pb.Progress)
}

// CommitRecord is the durable decision to make a job's result effective.
type CommitRecord struct {
	CommitID uuid.UUID
	Step     pb.JobStep // COMMIT or RELEASE
	// VerifyEvidenceSHA256 is the digest of the verification that the commit rests on: 64 hex digits.
	VerifyEvidenceSHA256 string
	// Action is what to do after the record, in the worker's own form; the engine keeps it unread. At most 64 KiB.
	Action []byte
}

// JournalState tells how far an entry came.
type JournalState string

// States of a journal entry. An entry is INTENT before its effect; the others are written after theirs.
const (
	// Intent: the effect may or may not have happened; the next process looks.
	Intent JournalState = "intent"
	// Built: the file stands under its temporary name.
	Built JournalState = "built"
	// Published: the file stands under its intended name.
	Published JournalState = "published"
	// RolledBack: the name was removed again, or was found changed and left.
	RolledBack JournalState = "rolled_back"
	// Trashed: released content stands in the trash area.
	Trashed JournalState = "trashed"
	// Removed: what the entry names was removed for good, by PURGE or after CloseJob.
	Removed JournalState = "removed"
)

// JournalEntry is one name that a job made, moved or is about to (7.6). Step, Index and Name are its key within the
// job.
type JournalEntry struct {
	// Step is the step that works on the entry.
	Step pb.JobStep
	// Index is the file's index in the content tree. Entries about other things (job directory, work area, artifacts,
	// trash directory) use -1.
	Index int64
	// RootID is the configured root that the names are relative to.
	RootID string
	// Name is the intended name, relative to the root, at most 4096 bytes.
	Name string
	// TempName is where the thing stands before it is published, or stood before it was released; relative to
	// TempRootID, or to the root when that is empty.
	TempName   string
	TempRootID string
	Method     pb.MaterializeMethod
	// Device, Inode, Size and MtimeNs identify the file; 0 until known.
	Device  uint64
	Inode   uint64
	Size    uint64
	MtimeNs int64
	// SHA256 of the content where it is known: 64 hex digits or empty.
	SHA256 string
	State  JournalState
	// Detail is the worker's own, at most 4 KiB.
	Detail []byte
}

// Journal is the durable list of a job's entries. Every write is fully synchronous: it is on disk when Put returns.
// Safe for concurrent use.
type Journal interface {
	// Put inserts the entries, or replaces those with the same key, all in one transaction.
	Put(ctx context.Context, entries ...JournalEntry) error
	// List calls fn for the entries of the steps, of all steps when none is named, in order of step, index and name,
	// until it returns false. It reads pages: fn may call Put.
	List(ctx context.Context, fn func(JournalEntry) bool, steps ...pb.JobStep) error
	// Get returns one entry by its key.
	Get(ctx context.Context, step pb.JobStep, index int64, name string) (e JournalEntry, ok bool, err error)
}

// StepError is a step that failed: it becomes STEP_FAILED with the detail.
type StepError struct {
	Detail *pb.ErrorDetail
	// Err is the cause, for the log only.
	Err error
}

// Error names the code and the message.
func (e *StepError) Error() string { return detailText(e.Detail, e.Err) }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// Held is an inconsistency that only a person can judge: it becomes HELD, and the job MANUAL.
type Held struct {
	Detail *pb.ErrorDetail
	// Err is the cause, for the log only.
	Err error
}

// Error names the code and the message.
func (e *Held) Error() string { return detailText(e.Detail, e.Err) }

// Unwrap returns the cause.
func (e *Held) Unwrap() error { return e.Err }

func detailText(d *pb.ErrorDetail, err error) string {
	s := d.GetCode().String() + ": " + d.GetMessage()
	if err != nil {
		s += ": " + err.Error()
	}
	return s
}
