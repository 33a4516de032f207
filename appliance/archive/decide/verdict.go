package decide

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Ruling is what becomes of an event that arrived (2.8).
type Ruling int

// The rulings.
const (
	Accept Ruling = iota + 1 // store it, apply it with Happened, acknowledge after COMMIT
	Repeat                   // an identical repetition: acknowledge again, nothing else
	Aside                    // its command is sent and not yet acknowledged: keep it until then
	Drop                     // no answer, no trace but a count
	Refuse                   // no acknowledgement; EventRefused
	Clash                    // commit claims that cannot both be true; ConflictSeen
)

// Verdict is the judgement of one event.
type Verdict struct {
	Ruling Ruling
	Code   pb.ErrorCode // Refuse, Clash
	Reason string       // one phrase for the log and the timeline: the rule that was broken
}

// Arrival is an event with what control holds beside it.
type Arrival struct {
	Role    pb.ParticipantRole // of the daemon it came from, by its connection
	Message *pb.JobEvent       // validated by field
	ID      uuid.UUID
	Command uuid.UUID
	ByID    *pb.JobEvent // the stored event with the same event_id, of any job; nil: none
	BySeq   *pb.JobEvent // the stored event of this job with the same sequence; nil: none
	Aside   int          // events already set aside for this job
}

// MaxAside is the most events that are set aside for one job (2.8).
const MaxAside = 64

// Snapshot is a complete job snapshot, its parts joined (2.9).
type Snapshot struct {
	Cursor   Cursor
	Epoch    uuid.UUID
	Complete bool // every part through last_part came
	Events   []*pb.JobEvent
	Commands []*pb.CommandRecord
	Evidence []*pb.StepEvidence
	Failed   pb.ErrorCode // the daemon could not make one
}

// Stored is an event that control holds.
type Stored struct {
	Role    pb.ParticipantRole
	Message *pb.JobEvent
}

// Known is what control holds beside a snapshot.
type Known struct {
	Epoch    uuid.UUID                       // as registered
	Events   []Stored                        // all of the job, ascending
	Evidence map[pb.JobStep]*pb.StepEvidence // stored, by step
}

// Checked is the result of ValidateSnapshot: either Defect is "" and the events are to be applied in order, each with
// Happened, then CommitSeen if set, then Decide with the snapshot's cursor; or the outcome of SnapshotFailed is to be.
type Checked struct {
	Defect     string // the condition of 4.4 that does not hold
	Committed  bool   // the cursor or an event of the snapshot is committed
	Events     []*pb.JobEvent
	CommitSeen *CommitSeen
}

// Registration is what 4.6 looks at.
type Registration struct {
	LastGeneration uint64 // of the request
	Issued         uint64 // highest that control has issued to the daemon
	Used           uint64 // highest that control has seen it use
	Known          bool   // control knows the daemon
	SameEpoch      bool
}

// RollbackFinding is the result of Rollback.
type RollbackFinding struct {
	Daemon  bool   // the daemon runs an old copy of its database
	Control bool   // control runs an old copy of its own
	Next    uint64 // generation to issue: above all that either side knows
}
