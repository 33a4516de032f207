package daemon

import (
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
)

// Machine is what this daemon can and may do; it does not change while the process runs.
type Machine struct {
	ClientID     string
	Role         pb.ClientRole
	Capabilities []string
	// MaxJobs bounds the active jobs: they must fit a registration.
	MaxJobs int
}

// Facts are everything that a decision about one command looks at, read in the transaction that stores the decision.
type Facts struct {
	Machine Machine
	// Digest is that of the command's payload.
	Digest string
	// Refusal is what the checks of the frame found wrong with the command; Partial tells that it was not readable in
	// full, so that its digest means nothing.
	Refusal *pb.ErrorDetail
	Partial bool

	// Known is the stored command with the same ID.
	Known *StoredCommand
	// Retired tells that an earlier ReconcileJob named the ID.
	Retired bool
	// Job is the command's job, nil when it is unknown here.
	Job *JobFacts
	// ActiveJobs counts the jobs that have not ended.
	ActiveJobs int
	// Named holds the leases that a ReconcileJob names and that exist, of any job.
	Named map[uuid.UUID]Lease
	// RouteKind is that of the job's route; unset while the route is unknown here.
	RouteKind pb.RouteKind

	// OpenQueries counts the inventory answers at work.
	OpenQueries int
	Route       RouteFacts
}

// JobFacts are the state of a known job.
type JobFacts struct {
	Row    JobRow
	Leases []Lease
	// Unacked holds the command IDs of events that control has not confirmed.
	Unacked []uuid.UUID
}

func (j *JobFacts) open() []Lease {
	var out []Lease
	for _, l := range j.Leases {
		if l.State == pb.LeaseState_LEASE_STATE_OPEN {
			out = append(out, l)
		}
	}
	return out
}

// Outcome is a decision and everything that its transaction writes beside the command itself.
type Outcome struct {
	// Status is what the acknowledgement says; Stored the first answer when it is DUPLICATE.
	Status pb.AckStatus
	Stored pb.AckStatus
	Error  *pb.ErrorDetail
	// Store tells that the command is new and is to be stored with its answer.
	Store bool

	// NewJob is to be inserted, Job to be updated; at most one is set.
	NewJob *JobRow
	Job    *JobRow
	// Leases are to be put.
	Leases []Lease
	// DropEvents names leases whose unconfirmed events are dropped, with Job; DropOutbox drops all of the job.
	DropEvents []uuid.UUID
	DropOutbox bool
	// DropAbove, when set, drops the job's events above the sequence, with Job.
	DropAbove *uint64
	// AckAll marks every event of the job as confirmed.
	AckAll bool
	// Route is to be put, with a first update of its state.
	Route *RouteRow

	// Interrupt tells that the worker of the job must stop; Work that the job has something to do.
	Interrupt, Work bool
}

func rejected(code pb.ErrorCode, format string, args ...any) Outcome {
	return Outcome{Status: pb.AckStatus_ACK_STATUS_REJECTED, Store: true, Error: valid.Detail(code, fmt.Sprintf(format, args...))}
}

func accepted() Outcome {
	return Outcome{Status: pb.AckStatus_ACK_STATUS_ACCEPTED, Store: true}
}

// highestCounter bounds the revisions and sequences that a command may name: above it the local counters could run out.
const highestCounter = math.MaxInt64 >> 8

// Decide is the decision table of daemon protocol 2.6, row by row from the top. It is pure.
func Decide(c *pb.Command, f Facts) Outcome {
	if f.Known != nil {
		return repeated(c, f)
	}
	if c.GetClientId() != f.Machine.ClientID {
		o := rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "client_id: the command is for another client")
		o.Store = false
		return o
	}
	if f.Refusal != nil {
		return Outcome{Status: pb.AckStatus_ACK_STATUS_REJECTED, Store: true, Error: f.Refusal}
	}
	if c.GetOperation() == nil {
		return rejected(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "the operation is unknown here")
	}
	if f.Retired {
		return rejected(pb.ErrorCode_ERROR_CODE_STALE_LEASE, "the command was retired before it came")
	}
	switch op := c.GetOperation().(type) {
	case *pb.Command_InventoryQuery:
		return decideQuery(f)
	case *pb.Command_CreateRoute:
		return decideCreateRoute(c, op.CreateRoute, f)
	case *pb.Command_UpdateRoute:
		return decideUpdateRoute(c, op.UpdateRoute, f)
	case *pb.Command_RemoveRoute:
		return decideRemoveRoute(c, op.RemoveRoute, f)
	}
	return decideJob(c, f)
}

// repeated answers a command whose ID is known.
func repeated(c *pb.Command, f Facts) Outcome {
	if !f.Known.Unreadable && !samePayload(c, f) {
		return Outcome{Status: pb.AckStatus_ACK_STATUS_CONFLICT,
			Error: valid.Detail(pb.ErrorCode_ERROR_CODE_COMMAND_CONFLICT, "the command ID is stored with another payload")}
	}
	return Outcome{Status: pb.AckStatus_ACK_STATUS_DUPLICATE, Stored: f.Known.Status, Error: f.Known.Error}
}

// samePayload compares digests, and messages where the digests differ: an upgrade may have taught this program fields
// that the stored form does not have in the same place.
func samePayload(c *pb.Command, f Facts) bool {
	if f.Partial {
		return false
	}
	if c.GetCommandId() == f.Known.ID.String() && f.Digest == f.Known.Digest {
		return true
	}
	var stored pb.Command
	if proto.Unmarshal(f.Known.Payload, &stored) != nil {
		return false
	}
	plain := proto.CloneOf(c)
	plain.Attempt = 0
	return frame.Equal(&stored, plain)
}

// decideJob decides about a command for a job.
func decideJob(c *pb.Command, f Facts) Outcome {
	reconcile := c.GetReconcileJob()
	if f.Job == nil {
		switch {
		case c.GetAssignJob() != nil:
			return decideAssign(c, f)
		case reconcile.GetDisposition() == pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION:
			return decideRestore(c, f)
		}
		return rejected(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "the job is unknown here")
	}
	row := f.Job.Row
	if row.Ended {
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job has ended here as %s", stateName(row.State))
	}
	if c.GetRequestJobSnapshot() != nil {
		return accepted()
	}
	p := c.GetPrecondition()
	if p == nil {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "precondition: is required")
	}
	if p.GetDefinitionSha256() != row.Digest {
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job has another definition here")
	}
	if p.GetExpectedRevision() > highestCounter || p.GetExpectedLastEventSequence() > highestCounter {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "precondition: the revision or sequence is too high")
	}
	if reconcile != nil {
		return decideReconcile(c, f)
	}
	ahead := false
	switch rev, seq := p.GetExpectedRevision(), p.GetExpectedLastEventSequence(); {
	case rev < row.Revision:
		return rejected(pb.ErrorCode_ERROR_CODE_STALE_REVISION, "the job is at revision %d here, the command expects %d", row.Revision, rev)
	case seq < row.Sequence:
		return rejected(pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE, "the job is at event %d here, the command expects %d", row.Sequence, seq)
	case rev > row.Revision || seq > row.Sequence:
		if len(f.Job.open()) > 0 || len(f.Job.Unacked) > 0 {
			return rejected(pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE,
				"the job is at revision %d and event %d here and has work or events of its own, the command expects %d and %d",
				row.Revision, row.Sequence, rev, seq)
		}
		ahead = true
	}
	o := decideState(c, f)
	if o.Status != pb.AckStatus_ACK_STATUS_ACCEPTED {
		return o
	}
	if ahead {
		o.Job.Revision, o.Job.Sequence = p.GetExpectedRevision(), p.GetExpectedLastEventSequence()
	}
	o.Job.ConfirmedRevision = max(o.Job.ConfirmedRevision, p.GetExpectedRevision())
	o.Job.ConfirmedSequence = max(o.Job.ConfirmedSequence, p.GetExpectedLastEventSequence())
	return o
}

// decideState is the part of the decision that depends on the state of the job (3.5). The cursor fits.
func decideState(c *pb.Command, f Facts) Outcome {
	row := f.Job.Row
	switch op := c.GetOperation().(type) {
	case *pb.Command_ExecuteStep:
		return decideExecute(c, op.ExecuteStep, f)
	case *pb.Command_CancelJob:
		return decideCancel(c, f)
	case *pb.Command_CloseJob:
		return decideClose(op.CloseJob, f)
	case *pb.Command_AssignJob:
		// Revision 0 is below that of every known job: an expectation that fits was not made for an assignment.
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "precondition: an assignment expects revision 0, the job is at %d", row.Revision)
	}
	return rejected(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "the operation is unknown here")
}

func decideExecute(c *pb.Command, x *pb.ExecuteStepCommand, f Facts) Outcome {
	row := f.Job.Row
	if row.State != pb.JobState_JOB_STATE_ASSIGNED {
		if len(f.Job.open()) > 0 {
			return rejected(pb.ErrorCode_ERROR_CODE_BUSY, "another step of the job is at work")
		}
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job is %s here", stateName(row.State))
	}
	if why := executes(row, x.GetStep(), f.RouteKind); why != "" {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "execute_step.step: %s", why)
	}
	o := accepted()
	row.State = pb.JobState_JOB_STATE_RUNNING
	o.Job, o.Work = &row, true
	o.Leases = []Lease{{CommandID: uuid.MustParse(c.GetCommandId()), JobID: row.ID, Kind: LeaseStep, Step: x.GetStep(),
		Attempt: x.GetStepAttempt(), State: pb.LeaseState_LEASE_STATE_OPEN}}
	return o
}

func decideCancel(c *pb.Command, f Facts) Outcome {
	row := f.Job.Row
	switch {
	case row.State == pb.JobState_JOB_STATE_CANCELLING:
		return rejected(pb.ErrorCode_ERROR_CODE_BUSY, "the job is being cancelled already")
	case row.Committed:
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job is committed here")
	case row.State == pb.JobState_JOB_STATE_MANUAL || row.State == pb.JobState_JOB_STATE_CANCELLED:
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job is %s here", stateName(row.State))
	}
	o := accepted()
	for _, l := range f.Job.open() {
		l.State = pb.LeaseState_LEASE_STATE_SETTLED // by the STEP_CANCELLED that follows
		o.Leases = append(o.Leases, l)
	}
	row.State, row.Undone = pb.JobState_JOB_STATE_CANCELLING, true
	o.Job, o.Interrupt, o.Work = &row, true, true
	o.Leases = append(o.Leases, Lease{CommandID: uuid.MustParse(c.GetCommandId()), JobID: row.ID, Kind: LeaseCancel,
		State: pb.LeaseState_LEASE_STATE_OPEN})
	return o
}

func decideClose(x *pb.CloseJob, f Facts) Outcome {
	row := f.Job.Row
	switch {
	case len(f.Job.open()) > 0:
		return rejected(pb.ErrorCode_ERROR_CODE_BUSY, "a step of the job is at work")
	case row.State == pb.JobState_JOB_STATE_MANUAL:
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job is held for a person here")
	case !terminal(x.GetFinalState()):
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "close_job.final_state: must be COMPLETED, FAILED or CANCELLED")
	}
	o := accepted()
	row.State, row.Ended, row.Closing = x.GetFinalState(), true, x.GetDiscardJobFiles()
	o.Job, o.AckAll, o.Work = &row, true, row.Closing
	return o
}

func decideAssign(c *pb.Command, f Facts) Outcome {
	a, p := c.GetAssignJob(), c.GetPrecondition()
	if p.GetExpectedRevision() != 0 || p.GetExpectedLastEventSequence() != 0 {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "precondition: a new job has revision 0 and no event")
	}
	row, refusal := f.newJob(c, a.GetDefinition(), a.GetRole(), a.GetDefinitionSha256())
	if refusal != nil {
		return *refusal
	}
	row.Revision, row.ConfirmedRevision = 1, 1
	o := accepted()
	o.NewJob = row
	return o
}

// newJob checks a definition that this daemon is to take part in.
func (f Facts) newJob(c *pb.Command, d *pb.JobDefinition, role pb.ParticipantRole, digest string) (*JobRow, *Outcome) {
	refuse := func(code pb.ErrorCode, format string, args ...any) (*JobRow, *Outcome) {
		o := rejected(code, format, args...)
		return nil, &o
	}
	const invalid = pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT
	id, err := uuid.Parse(c.GetJobId())
	switch {
	case err != nil:
		return refuse(invalid, "job_id: must be a UUID")
	case d == nil:
		return refuse(invalid, "definition: is required")
	case d.GetJobId() != c.GetJobId():
		return refuse(invalid, "definition.job_id: is not that of the command")
	case frame.Digest(d) != digest || c.GetPrecondition().GetDefinitionSha256() != digest:
		return refuse(invalid, "definition_sha256: is not the digest of the definition")
	}
	if why := f.Machine.takesPart(d, role); why != "" {
		return refuse(invalid, "role: %s", why)
	}
	for _, name := range d.GetRequiredCapabilities() {
		if !slices.Contains(f.Machine.Capabilities, name) {
			return refuse(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "the job requires %s, which this daemon does not have", name)
		}
	}
	if f.ActiveJobs >= f.Machine.MaxJobs {
		return refuse(pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED, "this daemon already has %d active jobs", f.ActiveJobs)
	}
	return &JobRow{ID: id, Definition: d, Digest: digest, Role: role, State: pb.JobState_JOB_STATE_ASSIGNED}, nil
}

// takesPart says why this daemon cannot have the role in the job; "" when it can.
func (m Machine) takesPart(d *pb.JobDefinition, role pb.ParticipantRole) string {
	switch role {
	case pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE:
		if d.GetOperation() == pb.JobOperation_JOB_OPERATION_ADOPT {
			return "an ADOPT has no source"
		}
		if d.GetSource().GetClientId() != m.ClientID {
			return "another client is the source of the job"
		}
		if m.Role == pb.ClientRole_CLIENT_ROLE_TARGET {
			return "this daemon is no source"
		}
	case pb.ParticipantRole_PARTICIPANT_ROLE_TARGET:
		if d.GetTargetClientId() != m.ClientID {
			return "another client is the target of the job"
		}
		if m.Role == pb.ClientRole_CLIENT_ROLE_SOURCE {
			return "this daemon is no target"
		}
	default:
		return "must be SOURCE or TARGET"
	}
	return ""
}

func decideQuery(f Facts) Outcome {
	if f.OpenQueries >= maxOpenSnapshots {
		return rejected(pb.ErrorCode_ERROR_CODE_BUSY, "%d inventory answers are at work", f.OpenQueries)
	}
	return accepted()
}

func terminal(s pb.JobState) bool {
	return s == pb.JobState_JOB_STATE_COMPLETED || s == pb.JobState_JOB_STATE_FAILED || s == pb.JobState_JOB_STATE_CANCELLED
}
