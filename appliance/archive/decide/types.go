package decide

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Position is a place in a job's history. Revision and Sequence move together but are compared apart (4.2).
type Position struct {
	Revision uint64
	Sequence uint64
}

// Ahead reports whether p is above q in revision or sequence.
func (p Position) Ahead(q Position) bool { return p.Revision > q.Revision || p.Sequence > q.Sequence }

// Max returns the higher of each part.
func (p Position) Max(q Position) Position {
	return Position{max(p.Revision, q.Revision), max(p.Sequence, q.Sequence)}
}

// Cursor is a JobCursor with its ids parsed. Its Position is (revision, last_event_sequence).
type Cursor struct {
	Position
	Job            uuid.UUID
	State          pb.JobState
	Committed      bool
	Role           pb.ParticipantRole
	Definition     string // digest of the definition, 64 hex
	ActiveStep     pb.JobStep
	Open           []uuid.UUID // accepted ExecuteStep and CancelJob commands without a terminal event
	Settled        []uuid.UUID // those whose terminal event is not yet acknowledged
	OutboxFirst    uint64      // lowest unacknowledged event, 0: none
	CommitEvidence string      // digest, "" without one
}

// Ended reports whether the cursor is that of a job that CloseJob or ABANDON ended at the daemon. A job ended as
// CANCELLED looks like one that is wound down and is treated as such.
func (c *Cursor) Ended() bool { return c.State == completed || c.State == failed }

// Lists reports whether a command is in one of the cursor's lists.
func (c *Cursor) Lists(id uuid.UUID) bool {
	return slices.Contains(c.Open, id) || slices.Contains(c.Settled, id)
}

// Status is where a command row stands; the values are those of the column daemon_commands.state.
type Status string

// The statuses of a command row.
const (
	Pending    Status = "pending"    // never sent
	Sent       Status = "sent"       // sent at least once, not acknowledged, attempts left
	Parked     Status = "parked"     // not acknowledged, no attempts left
	Accepted   Status = "accepted"   // acknowledged, or found in the daemon's cursor
	Rejected   Status = "rejected"   // acknowledged REJECTED
	Conflicted Status = "conflict"   // acknowledged CONFLICT
	Withdrawn  Status = "withdrawn"  // an ExecuteStep that is never sent again; it may have arrived
	Superseded Status = "superseded" // another decision took its place; it may have arrived
	Closed     Status = "closed"     // accepted, and what it asked for has ended
)

// Command is a command row of the job as control holds it.
type Command struct {
	ID          uuid.UUID // the zero UUID in a row that an action of the same result asks for
	Role        pb.ParticipantRole
	Kind        archive.CommandKind
	Step        pb.JobStep // ExecuteStep
	Attempt     uint32     // step_attempt of ExecuteStep
	Status      Status
	EverSent    bool          // bytes may have left, whatever became of it later
	Lease       pb.LeaseState // SETTLED: its terminal event is stored; RETIRED: its retirement is acknowledged
	Expected    Position      // of its precondition
	Payload     string        // SHA-256 of the payload
	Disposition pb.ReconcileDisposition
	Position    Position     // authoritative cursor of a ReconcileJob
	Retires     []uuid.UUID  // retire_command_ids of a ReconcileJob
	Final       pb.JobState  // authoritative.state of an ABANDON, final_state of a CloseJob
	Code        pb.ErrorCode // of a rejection
}

// Participant is one daemon's part in the job.
type Participant struct {
	Role   pb.ParticipantRole // UNSPECIFIED: the operation has no such participant
	Online bool               // the daemon owns its generation

	// Position is P of the protocol: the last position that this daemon produced, or was given by an acknowledged
	// command.
	Position
	State          pb.JobState // the daemon's own state as last known; 0 before anything is known
	Committed      bool        // never goes back to false
	CommitEvidence string      // digest
	Assigned       bool        // an AssignJob or RESTORE_DEFINITION was acknowledged, or the job was in its cursor
	Decided        bool        // decided under the daemon's present generation (4.1)
	Absent         bool        // it last said, by its list or by NOT_FOUND, that it does not have the job
	WoundDown      bool
	Resuming       bool // a person resumed the job and its ReconcileJob RESUME is not acknowledged yet
	Closed         bool // CloseJob or ABANDON took effect there
	Expecting      bool // after a go-ahead, until the next event in order has come (2.8)
	Registered     bool // registered since control started; counts only with Job.OldCopy (4.6)

	// Reported is the last cursor that the daemon sent: K. Nil before the first and when it said that it has no such job.
	Reported *Cursor
}

// Job is control's view of one job: the row, the participants and every command row of it.
type Job struct {
	ID          uuid.UUID
	Operation   pb.JobOperation
	Carrier     pb.ParticipantRole // executor of TRANSFER, by the route's kind
	Placeholder bool               // made for a job that only a daemon knew (4.2 rows 2, 3)
	Definition  string             // digest; "" before ASSIGNING and in a placeholder
	Cleanup     pb.CleanupPolicy   // of the definition's policies

	State   pb.JobState
	Kept    pb.JobState   // WAITING: the state it returns to
	Wait    pb.WaitReason // WAITING
	Outcome pb.JobState   // CANCELLING: CANCELLED or FAILED
	Code    pb.ErrorCode  // why FAILED, CANCELLING or MANUAL; the last failure while WAITING

	Position             // the job's own revision and last event sequence
	Completed     int    // completed steps; the index of the active one
	StepAttempt   uint32 // highest step_attempt of the active step
	Failures      uint32 // of the active step, counted against the allowance
	Allowance     uint32 // archive.StepAttempts unless a person granted more
	Committed     bool   // any participant's flag; never goes back to false
	Undone        bool   // a participant has undone its part, or may have
	EndedByPerson bool   // terminal by an operator's decision

	// Facts that the caller looks up before each call.
	RetentionOver bool // EVICT: the time before PURGE is over
	VerifyFresh   bool // EVICT: the VERIFY evidence is younger than max_verify_age
	RouteDown     bool // the step TRANSFER is still to come and the route is not ready for it
	OldCopy       bool // control found that it runs an old copy of its database (4.6)

	Parties  [2]Participant // by role: source, target
	Commands []Command      // all of the job, in the order they were made
}

// Party returns the participant of a role, nil when the job has none.
func (j *Job) Party(role pb.ParticipantRole) *Participant {
	if role != source && role != target {
		return nil
	}
	p := &j.Parties[role-1]
	if p.Role == 0 {
		return nil
	}
	return p
}

// Command returns the row of an id.
func (j *Job) Command(id uuid.UUID) *Command {
	if id == uuid.Nil {
		return nil
	}
	for i := range j.Commands {
		if j.Commands[i].ID == id {
			return &j.Commands[i]
		}
	}
	return nil
}

// Step returns the active step, UNSPECIFIED when all are completed.
func (j *Job) Step() pb.JobStep { return archive.StepAt(j.Operation, j.Completed) }

// Action is one thing to write in the transaction of a decision, in the order of the list. The concrete types follow.
type Action interface{ action() }

type (
	// Acknowledge: the row was found in the daemon's cursor; store it as ACCEPTED (4.3).
	Acknowledge struct{ ID uuid.UUID }
	// CloseLease: what the row asked for has ended: its terminal event is stored, a CancelJob closed its lease, or the
	// snapshot it asked for is judged. A lease becomes SETTLED.
	CloseLease struct{ ID uuid.UUID }
	// Retire: the retirement of the row's lease is acknowledged; it is RETIRED and the row is never sent again.
	Retire struct{ ID uuid.UUID }
	// Withdraw: never send the ExecuteStep again; it counts as possibly executed.
	Withdraw struct{ ID uuid.UUID }
	// Supersede: another decision takes the place of the unacknowledged row; never send it again.
	Supersede struct{ ID uuid.UUID }
	// Park: automatic delivery of the row stopped; its attempts are used up.
	Park struct{ ID uuid.UUID }
	// Grant: a new allowance of attempts for the same row.
	Grant struct{ ID uuid.UUID }
	// Resend: send the unacknowledged row again under its id. The queue does that by itself; the action says that 4.3
	// has compared the row and found it not in flight.
	Resend struct{ ID uuid.UUID }

	// Assign: a new AssignJob row.
	Assign struct{ Role pb.ParticipantRole }
	// Execute: a new ExecuteStep row.
	Execute struct {
		Role     pb.ParticipantRole
		Step     pb.JobStep
		Attempt  uint32
		Expected Position
	}
	// Cancel: a new CancelJob row.
	Cancel struct {
		Role     pb.ParticipantRole
		Cleanup  pb.CleanupPolicy
		Expected Position
	}
	// Close: a new CloseJob row.
	Close struct {
		Role     pb.ParticipantRole
		Final    pb.JobState
		Discard  bool
		Expected Position
	}
	// Reconcile: a new ReconcileJob row.
	Reconcile struct {
		Role          pb.ParticipantRole
		Disposition   pb.ReconcileDisposition
		Authoritative Cursor
		Retire        []uuid.UUID
		Expected      Position
		Definition    string // digest for the precondition: the daemon's own where control has none or another
		Code          pb.ErrorCode
	}
	// RequestSnapshot: a new RequestJobSnapshot row for the full job (from sequence 1, with evidence).
	RequestSnapshot struct{ Role pb.ParticipantRole }

	// Ack: a JobEventAck, with the go-ahead of 4.5 or without.
	Ack struct {
		Role    pb.ParticipantRole
		Through uint64
		GoAhead bool
	}
	// DecideAgain: call Decide for the participant in the same transaction, with Participant.Reported of the returned job
	// as K (the cursor that came with the acknowledgement; nil: the daemon does not have the job).
	DecideAgain struct {
		Role    pb.ParticipantRole
		Refused *Refused
	}
	// TakeAside: events set aside under the row can be judged now.
	TakeAside struct{ ID uuid.UUID }
	// DropAside: events set aside of the participant can never be accepted.
	DropAside struct{ Role pb.ParticipantRole }

	// MakePlaceholder: create the job row for a job that control does not know, with the returned Job's state.
	MakePlaceholder struct{}
	// StoreDefinition: write the immutable definition and its digest.
	StoreDefinition struct{}
	// RunChecks: the preflight is to run (again).
	RunChecks struct{}
	// Reserve: take the reservations of the job.
	Reserve struct{}
	// ReserveAgain: a terminal job became MANUAL: take its reservations back. A job that holds one since gets the event
	// Displaced.
	ReserveAgain struct{}
	// Release: give the reservations up.
	Release struct{}
	// FollowUp: the job completed; make the EVICT that the operator's policy asks for.
	FollowUp struct{}
	// StoreEvidence: the event's evidence is that of its step.
	StoreEvidence struct{ Step pb.JobStep }
	// Audit: an entry of the audit log: a decision of a person, or one that overrules it.
	Audit struct{ What Decision }
	// Alert: what an operator must know.
	Alert struct {
		Kind archive.AlertKind
		Role pb.ParticipantRole
		Code pb.ErrorCode
	}
)

func (Acknowledge) action()     {}
func (CloseLease) action()      {}
func (Retire) action()          {}
func (Withdraw) action()        {}
func (Supersede) action()       {}
func (Park) action()            {}
func (Grant) action()           {}
func (Resend) action()          {}
func (Assign) action()          {}
func (Execute) action()         {}
func (Cancel) action()          {}
func (Close) action()           {}
func (Reconcile) action()       {}
func (RequestSnapshot) action() {}
func (Ack) action()             {}
func (DecideAgain) action()     {}
func (TakeAside) action()       {}
func (DropAside) action()       {}
func (MakePlaceholder) action() {}
func (StoreDefinition) action() {}
func (RunChecks) action()       {}
func (Reserve) action()         {}
func (ReserveAgain) action()    {}
func (Release) action()         {}
func (FollowUp) action()        {}
func (StoreEvidence) action()   {}
func (Audit) action()           {}
func (Alert) action()           {}

// Decision names what a person decided, or what became of it; a value of the audit log.
type Decision string

// The decisions.
const (
	Started         Decision = "job.start"
	CancelAsked     Decision = "job.cancel"
	CancelWithdrawn Decision = "job.cancel_withdrawn" // a commit came first
	Resumed         Decision = "job.resume"
	AcceptedAs      Decision = "job.complete" // accepted as completed
	Abandoned       Decision = "job.abandon"
	Granted         Decision = "job.grant"
)

// Refused is the ReconcileJob or other command whose rejection made a new decision necessary.
type Refused struct {
	Kind        archive.CommandKind
	Disposition pb.ReconcileDisposition
	Expected    Position
	Retires     []uuid.UUID
	Code        pb.ErrorCode
}

// Input is what a decision of 4.2 rests on: one job at one participant.
type Input struct {
	Job  *Job // nil: control does not know the job
	Role pb.ParticipantRole
	K    *Cursor // nil: the daemon does not list the job, or answered NOT_FOUND

	Snapshot     uuid.UUID // K comes from the complete answer to this RequestJobSnapshot
	Registration bool      // K comes from a registration; otherwise from an acknowledgement or a snapshot
	NewEpoch     bool      // the daemon's database is a new one
	RolledBack   bool      // the daemon's database is an old copy (4.6)
	Refused      *Refused  // the rejection that K came with
}

// Row names the rule that decided: "4.2/16", "4.1" for a resent ReconcileJob, "4.4" for a snapshot that is not valid.
type Row string

// Outcome is a decision: the next job and what to write with it. Job.Party(role).Decided says whether the job is decided
// at the participant; until then no other command goes out for it there and no event of it is applied.
type Outcome struct {
	Row     Row
	Job     Job
	Actions []Action
}
