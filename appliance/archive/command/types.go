package command

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Kind is the operation of a command: the number of its field in Command. Values are stored.
type Kind = archive.CommandKind

// leases tells the kinds whose acceptance opens a lease.
func leases(k Kind) bool { return k == archive.ExecuteStep || k == archive.CancelJob }

// State is where a command stands. Values are stored.
type State string

// The states. Pending, Sent and Parked are unanswered; of them only Pending and Sent are sent.
const (
	// Pending was never sent. Enqueue makes it.
	Pending State = "pending"
	// Sent has used at least one attempt. Sending makes it, Grant brings it back.
	Sent State = "sent"
	// Parked has used up its attempts; an acknowledgement is still taken.
	Parked State = "parked"
	// Accepted was acknowledged ACCEPTED, or was found in a cursor.
	Accepted State = "accepted"
	// Rejected was acknowledged REJECTED.
	Rejected State = "rejected"
	// Conflict was acknowledged CONFLICT, or with a digest or an answer that contradicts ours.
	Conflict State = "conflict"
	// Withdrawn is never sent again, but may have been executed if it ever was; an acknowledgement is still taken.
	Withdrawn State = "withdrawn"
	// Superseded was replaced by a newer decision before it was answered; an acknowledgement is still taken.
	Superseded State = "superseded"
	// Closed is over: its work is done, or nothing of it can matter any more.
	Closed State = "closed"
)

// Answered tells whether the daemon's decision is known.
func (s State) Answered() bool { return s == Accepted || s == Rejected || s == Conflict }

// Unanswered tells whether a decision is still waited for.
func (s State) Unanswered() bool { return s == Pending || s == Sent || s == Parked }

// Row is a stored command.
type Row struct {
	No          int64
	ID          uuid.UUID
	Daemon      archive.DaemonRef
	JobNo       int64 // 0: of no job
	Kind        Kind
	Step        pb.JobStep // of ExecuteStep
	StepAttempt uint32
	Payload     []byte // the Command without attempt, deterministic; nil in MaySend
	Size        int    // of Payload
	SHA256      string // of Payload, hex
	// The precondition, 0 where there is none.
	ExpectedRevision, ExpectedSequence uint64
	Attempts                           uint32 // sends counted so far
	Allowance                          uint32 // sends in total
	State                              State
	Before                             State // in CommandAcked: what the state was; else empty
	Ack                                *pb.CommandAck
	Lease                              pb.LeaseState
	IssuedAt                           time.Time
	FirstSentAt, LastSentAt            time.Time // zero: never sent
	AckedAt, ClosedAt                  time.Time
}

// EverSent tells whether the daemon may know of the command.
func (r Row) EverSent() bool { return r.Attempts > 0 }

// Command parses the payload.
func (r Row) Command() (*pb.Command, error) {
	c := &pb.Command{}
	if err := proto.Unmarshal(r.Payload, c); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "command %s cannot be read", r.ID)
	}
	return c, nil
}

// New is a command to be stored.
type New struct {
	Daemon archive.DaemonRef
	JobNo  int64 // 0: of no job
	// Command has its operation and, for job commands, job_id and precondition. command_id may be set; client_id,
	// issued_at and attempt are set here. It is changed.
	Command *pb.Command
}

// Outcome of a delivery. Values are stored.
type Outcome string

// The outcomes.
const (
	InFlight   Outcome = "in_flight"   // claimed; sent when SentAt is set; no answer yet
	SendFailed Outcome = "send_failed" // the socket ended before it took the bytes
	Acked      Outcome = "acked"
	Outdated   Outcome = "superseded" // a later attempt was made, or the command was answered through another one
)

// Delivery is one attempt in the ledger.
type Delivery struct {
	No         int64
	CommandNo  int64
	Attempt    uint32
	Generation int64
	ClaimedAt  time.Time
	SentAt     time.Time // zero: nobody knows whether the bytes left
	AckedAt    time.Time
	Outcome    Outcome
	Reason     string
}
