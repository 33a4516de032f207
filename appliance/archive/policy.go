package archive

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "signalbox/appliance/archive/archivepb"
)

// Defaults and bounds of policies (daemon protocol 2.7).
const (
	DefaultKeepFreeBytes  uint64        = 1 << 30
	DefaultTrashRetention time.Duration = 7 * 24 * time.Hour
	MaxTrashRetention     time.Duration = 90 * 24 * time.Hour
	DefaultMaxVerifyAge   time.Duration = 24 * time.Hour
)

// StepAttempts is how often a step may fail with a retryable error before a person is asked (daemon protocol 3.4).
const StepAttempts = 5

// DefaultPolicies returns the policies of a job that asks for nothing special (daemon protocol 2.7): a new message.
func DefaultPolicies() *pb.JobPolicies {
	return &pb.JobPolicies{
		VerifyLevel:    pb.VerifyLevel_VERIFY_LEVEL_STANDARD,
		SparsePolicy:   pb.SparsePolicy_SPARSE_POLICY_PREFER,
		PartfileMode:   pb.PartfileMode_PARTFILE_MODE_AUTO,
		ConflictPolicy: pb.ConflictPolicy_CONFLICT_POLICY_ADOPT_IDENTICAL,
		StageMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK,
			pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK, pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE},
		MaterializeMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME,
			pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK, pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK,
			pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE},
		Quiesce:        pb.QuiescePolicy_QUIESCE_POLICY_IF_INCOMPLETE,
		Activation:     pb.ActivationPolicy_ACTIVATION_POLICY_START,
		KeepFreeBytes:  DefaultKeepFreeBytes,
		TrashRetention: durationpb.New(DefaultTrashRetention),
		Cleanup:        pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES,
	}
}

// Retryable reports column R of the error table (daemon protocol 2.12): the same work may succeed later without a change
// by a person.
func Retryable(code pb.ErrorCode) bool {
	switch code {
	case pb.ErrorCode_ERROR_CODE_BUSY, pb.ErrorCode_ERROR_CODE_UNAVAILABLE, pb.ErrorCode_ERROR_CODE_TIMEOUT,
		pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE, pb.ErrorCode_ERROR_CODE_TRANSFER_INTERRUPTED,
		pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY, pb.ErrorCode_ERROR_CODE_NO_SPACE:
		return true
	}
	return false
}

// WaitFor returns the reason for which a job waits after a retryable failure of a step (daemon protocol 2.12, 3.4),
// UNSPECIFIED for a code that is not retryable.
func WaitFor(code pb.ErrorCode) pb.WaitReason {
	switch {
	case !Retryable(code):
		return pb.WaitReason_WAIT_REASON_UNSPECIFIED
	case code == pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE:
		return pb.WaitReason_WAIT_REASON_BACKEND_UNAVAILABLE
	case code == pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY:
		return pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY
	case code == pb.ErrorCode_ERROR_CODE_NO_SPACE:
		return pb.WaitReason_WAIT_REASON_NO_SPACE
	}
	return pb.WaitReason_WAIT_REASON_RETRY_BACKOFF
}

// KeptRouteUpdates is how many of the newest updates of one side of a route both sides keep; a daemon keeps all besides that
// control has not acknowledged. Older ones tell nothing: the state is in the latest.
const KeptRouteUpdates = 256
