package decide

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Event is something that happens to a job (3.4). The concrete types follow.
type Event interface{ event() }

type (
	// OperatorStart: a person starts a PENDING job.
	OperatorStart struct{}
	// OperatorCancel: a person cancels.
	OperatorCancel struct{}
	// OperatorGrant: a person grants a new allowance: of attempts at the step (OPERATOR_HOLD), or of sends
	// (COMMAND_UNACKED).
	OperatorGrant struct{ Attempts uint32 }
	// OperatorResume, OperatorAccept and OperatorAbandon are the three decisions that end MANUAL.
	OperatorResume  struct{}
	OperatorAccept  struct{}
	OperatorAbandon struct{}

	// ChecksPassed: the preflight passed; Definition is the digest of the definition to write.
	ChecksPassed struct{ Definition string }
	// ChecksFailed: Wait is the reason to wait for; UNSPECIFIED: the failure is permanent.
	ChecksFailed struct {
		Code pb.ErrorCode
		Wait pb.WaitReason
	}

	// Acked: an acknowledgement was stored. Status is ACCEPTED, REJECTED or CONFLICT; a DUPLICATE counts as what was
	// answered first.
	Acked struct {
		ID     uuid.UUID
		Status pb.AckStatus
		Code   pb.ErrorCode // of a rejection
		Cursor *Cursor      // the daemon's cursor after its decision; nil: it sent none
	}
	// Exhausted: the row's attempts are used up.
	Exhausted struct{ ID uuid.UUID }

	// Happened: an event of a daemon was accepted (2.8).
	Happened struct {
		Role           pb.ParticipantRole
		Command        uuid.UUID
		Kind           pb.JobEventKind
		Step           pb.JobStep
		Position       Position // after the event
		Committed      bool
		CommitEvidence string       // digest of the evidence of a completed COMMIT or RELEASE
		Code           pb.ErrorCode // STEP_FAILED, HELD
		Moved          bool         // a counter moved since the last progress
	}
	// CommitSeen: a valid snapshot showed the commit flag without an event (4.4).
	CommitSeen struct {
		Role           pb.ParticipantRole
		CommitEvidence string
	}
	// EventRefused: an event was refused (2.8) with the code.
	EventRefused struct {
		Role    pb.ParticipantRole
		Command uuid.UUID
		Code    pb.ErrorCode
	}
	// ConflictSeen: a verdict or an event shows commit claims that cannot both be true.
	ConflictSeen struct {
		Role pb.ParticipantRole
		Code pb.ErrorCode
	}

	// Offline: the daemon was marked offline.
	Offline struct{ Role pb.ParticipantRole }
	// Cleared: the condition of a WAITING job passed: its time came, the route is ready, there is room.
	Cleared struct{}
	// RouteLost: the route of the job stopped being ready.
	RouteLost struct{}
	// Displaced: a job that had ended took back a reservation that this one held.
	Displaced struct{}
)

func (OperatorStart) event()   {}
func (OperatorCancel) event()  {}
func (OperatorGrant) event()   {}
func (OperatorResume) event()  {}
func (OperatorAccept) event()  {}
func (OperatorAbandon) event() {}
func (ChecksPassed) event()    {}
func (ChecksFailed) event()    {}
func (Acked) event()           {}
func (Exhausted) event()       {}
func (Happened) event()        {}
func (CommitSeen) event()      {}
func (EventRefused) event()    {}
func (ConflictSeen) event()    {}
func (Offline) event()         {}
func (Cleared) event()         {}
func (RouteLost) event()       {}
func (Displaced) event()       {}
