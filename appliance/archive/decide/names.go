package decide

import pb "signalbox/appliance/archive/archivepb"

// Short names of the schema's values, as the reference writes them.
const (
	source = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	target = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET

	noState    = pb.JobState_JOB_STATE_UNSPECIFIED
	pending    = pb.JobState_JOB_STATE_PENDING
	preflight  = pb.JobState_JOB_STATE_PREFLIGHT
	assigning  = pb.JobState_JOB_STATE_ASSIGNING
	assigned   = pb.JobState_JOB_STATE_ASSIGNED
	running    = pb.JobState_JOB_STATE_RUNNING
	stalled    = pb.JobState_JOB_STATE_STALLED
	waiting    = pb.JobState_JOB_STATE_WAITING
	cancelling = pb.JobState_JOB_STATE_CANCELLING
	manual     = pb.JobState_JOB_STATE_MANUAL
	completed  = pb.JobState_JOB_STATE_COMPLETED
	failed     = pb.JobState_JOB_STATE_FAILED
	cancelled  = pb.JobState_JOB_STATE_CANCELLED

	noStep   = pb.JobStep_JOB_STEP_UNSPECIFIED
	transfer = pb.JobStep_JOB_STEP_TRANSFER
	release  = pb.JobStep_JOB_STEP_RELEASE
	purge    = pb.JobStep_JOB_STEP_PURGE

	waitOffline    = pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE
	waitUnacked    = pb.WaitReason_WAIT_REASON_COMMAND_UNACKED
	waitSpace      = pb.WaitReason_WAIT_REASON_NO_SPACE
	waitBackoff    = pb.WaitReason_WAIT_REASON_RETRY_BACKOFF
	waitBackend    = pb.WaitReason_WAIT_REASON_BACKEND_UNAVAILABLE
	waitRoute      = pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY
	waitReconcile  = pb.WaitReason_WAIT_REASON_RECONCILING
	waitOperator   = pb.WaitReason_WAIT_REASON_OPERATOR_HOLD
	waitRetention  = pb.WaitReason_WAIT_REASON_RETENTION
	leaseNone      = pb.LeaseState_LEASE_STATE_NONE
	leaseOpen      = pb.LeaseState_LEASE_STATE_OPEN
	leaseSettled   = pb.LeaseState_LEASE_STATE_SETTLED
	leaseRetired   = pb.LeaseState_LEASE_STATE_RETIRED
	resume         = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME
	restore        = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION
	hold           = pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD
	abandon        = pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON
	stepStarted    = pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED
	progressed     = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
	stalledEvent   = pb.JobEventKind_JOB_EVENT_KIND_STALLED
	resumedEvent   = pb.JobEventKind_JOB_EVENT_KIND_RESUMED
	stepCompleted  = pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED
	stepFailed     = pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED
	stepCancelled  = pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED
	held           = pb.JobEventKind_JOB_EVENT_KIND_HELD
	discardFiles   = pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES
	codeNone       = pb.ErrorCode_ERROR_CODE_UNSPECIFIED
	codeNotFound   = pb.ErrorCode_ERROR_CODE_NOT_FOUND
	codeCommand    = pb.ErrorCode_ERROR_CODE_COMMAND_CONFLICT
	codeRevision   = pb.ErrorCode_ERROR_CODE_STALE_REVISION
	codeSequence   = pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE
	codeLease      = pb.ErrorCode_ERROR_CODE_STALE_LEASE
	codeGeneration = pb.ErrorCode_ERROR_CODE_STALE_GENERATION
	codeEvent      = pb.ErrorCode_ERROR_CODE_EVENT_CONFLICT
	codeBusy       = pb.ErrorCode_ERROR_CODE_BUSY
	codeSpace      = pb.ErrorCode_ERROR_CODE_NO_SPACE
	codeCancelled  = pb.ErrorCode_ERROR_CODE_CANCELLED
	codeUnsafe     = pb.ErrorCode_ERROR_CODE_UNSAFE_STATE
	codeCommit     = pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT
	codeManual     = pb.ErrorCode_ERROR_CODE_MANUAL_REQUIRED
	codeLost       = pb.ErrorCode_ERROR_CODE_STATE_LOST
	codeInvalid    = pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT
)
