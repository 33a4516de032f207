package job

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Short names of the schema's values.
const (
	roleNone   = pb.ParticipantRole_PARTICIPANT_ROLE_UNSPECIFIED
	roleSource = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	roleTarget = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET

	statePending    = pb.JobState_JOB_STATE_PENDING
	statePreflight  = pb.JobState_JOB_STATE_PREFLIGHT
	stateAssigning  = pb.JobState_JOB_STATE_ASSIGNING
	stateRunning    = pb.JobState_JOB_STATE_RUNNING
	stateStalled    = pb.JobState_JOB_STATE_STALLED
	stateWaiting    = pb.JobState_JOB_STATE_WAITING
	stateCancelling = pb.JobState_JOB_STATE_CANCELLING
	stateManual     = pb.JobState_JOB_STATE_MANUAL
	stateCompleted  = pb.JobState_JOB_STATE_COMPLETED
	stateFailed     = pb.JobState_JOB_STATE_FAILED
	stateCancelled  = pb.JobState_JOB_STATE_CANCELLED

	waitNone      = pb.WaitReason_WAIT_REASON_UNSPECIFIED
	waitOffline   = pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE
	waitUnacked   = pb.WaitReason_WAIT_REASON_COMMAND_UNACKED
	waitRoute     = pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY
	waitSpace     = pb.WaitReason_WAIT_REASON_NO_SPACE
	waitBackend   = pb.WaitReason_WAIT_REASON_BACKEND_UNAVAILABLE
	waitBackoff   = pb.WaitReason_WAIT_REASON_RETRY_BACKOFF
	waitReconcile = pb.WaitReason_WAIT_REASON_RECONCILING
	waitReserved  = pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED
	waitOperator  = pb.WaitReason_WAIT_REASON_OPERATOR_HOLD
	waitRetention = pb.WaitReason_WAIT_REASON_RETENTION

	codeNone = pb.ErrorCode_ERROR_CODE_UNSPECIFIED
)

var roles = []pb.ParticipantRole{roleSource, roleTarget}

func isTerminal(s pb.JobState) bool { return s >= stateCompleted }

// Texts of enums: lower case, without the prefix.
func stateText(s pb.JobState) string         { return plain(s.String(), "JOB_STATE_") }
func stepText(s pb.JobStep) string           { return plain(s.String(), "JOB_STEP_") }
func waitReason(r pb.WaitReason) string      { return plain(r.String(), "WAIT_REASON_") }
func roleText(r pb.ParticipantRole) string   { return plain(r.String(), "PARTICIPANT_ROLE_") }
func codeText(c pb.ErrorCode) string         { return plain(c.String(), "ERROR_CODE_") }
func kindText(k pb.JobEventKind) string      { return plain(k.String(), "JOB_EVENT_KIND_") }
func operationText(o pb.JobOperation) string { return plain(o.String(), "JOB_OPERATION_") }
func dispositionText(d pb.ReconcileDisposition) string {
	return plain(d.String(), "RECONCILE_DISPOSITION_")
}

func plain(s, prefix string) string { return strings.ToLower(strings.TrimPrefix(s, prefix)) }

// stepsOf lists the steps of an operation.
func stepsOf(op pb.JobOperation) []pb.JobStep {
	var out []pb.JobStep
	for _, p := range archive.Plan(op) {
		out = append(out, p.Step)
	}
	return out
}

// explainCode says in one sentence what a code means where nobody said more.
func explainCode(c pb.ErrorCode) string {
	if s := codeWords[c]; s != "" {
		return s
	}
	return "the daemon reported " + strings.ReplaceAll(codeText(c), "_", " ")
}

var codeWords = map[pb.ErrorCode]string{
	pb.ErrorCode_ERROR_CODE_COMMAND_CONFLICT:   "the daemon holds another payload under the id of a command",
	pb.ErrorCode_ERROR_CODE_STALE_REVISION:     "control and the daemon stand at different revisions of the job",
	pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE:     "control and the daemon stand at different places in the job's events",
	pb.ErrorCode_ERROR_CODE_STALE_LEASE:        "an event came under a command that is not in force",
	pb.ErrorCode_ERROR_CODE_EVENT_CONFLICT:     "two different events claim the same place in the job's history",
	pb.ErrorCode_ERROR_CODE_BUSY:               "another job or command uses what this one needs",
	pb.ErrorCode_ERROR_CODE_CANCELLED:          "ended by request",
	pb.ErrorCode_ERROR_CODE_UNSAFE_STATE:       "the daemon's state of the job contradicts what control knows",
	pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT:    "control and the daemons disagree about whether the job was committed",
	pb.ErrorCode_ERROR_CODE_MANUAL_REQUIRED:    "the job is held for a person",
	pb.ErrorCode_ERROR_CODE_STATE_LOST:         "one side has forgotten what it had acknowledged: a database was lost or restored",
	pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION: "the daemon broke a rule of the protocol",
	pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT:   "a value is outside its rules",
	pb.ErrorCode_ERROR_CODE_INTERNAL:           "an unclassified fault",
}

// parse reads a stored message.
func parse[M proto.Message](raw []byte, m M) (M, error) {
	if err := proto.Unmarshal(raw, m); err != nil {
		return m, fault.Wrap(fault.Internal, err, "a stored message of a job is damaged")
	}
	return m, nil
}

// marshal makes the stored form of a message.
func marshal(m proto.Message) ([]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a message of a job")
	}
	return raw, nil
}
