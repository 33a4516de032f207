package valid

import (
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame/canonical"
)

// MaxReason is the size of a cancellation's reason.
const MaxReason = 512

// CommandID checks the identity of a command alone: without one there is nothing to answer to.
func CommandID(m *pb.Command) error {
	return run(m, func(c *checker, m *pb.Command) { c.uuid("command_id", m.CommandId) })
}

// Command checks a command. The code of the error is what the command is refused with: UNSUPPORTED for an operation or
// required enum that is unset or unknown, INVALID_ARGUMENT otherwise (daemon protocol 2.6). Whether the command is for
// this client is the receiver's to check.
func Command(m *pb.Command) error { return run(m, (*checker).command) }

func (c *checker) command(m *pb.Command) {
	c.uuid("command_id", m.CommandId)
	c.uuid("client_id", m.ClientId)
	c.time("issued_at", m.IssuedAt)
	c.must(m.Attempt >= 1, "attempt", "must be at least 1")
	c.uuidOrEmpty("job_id", m.JobId)
	optional(c, "precondition", m.Precondition, (*checker).precondition)
	switch op := m.Operation.(type) {
	case *pb.Command_AssignJob:
		c.jobCommand(m, true)
		required(c, "assign_job", op.AssignJob, (*checker).assignJob)
		c.assignment(m, op.AssignJob)
	case *pb.Command_ExecuteStep:
		c.jobCommand(m, true)
		required(c, "execute_step", op.ExecuteStep, (*checker).executeStep)
	case *pb.Command_CancelJob:
		c.jobCommand(m, true)
		required(c, "cancel_job", op.CancelJob, (*checker).cancelJob)
	case *pb.Command_ReconcileJob:
		c.jobCommand(m, true)
		required(c, "reconcile_job", op.ReconcileJob, (*checker).reconcileJob)
		c.must(op.ReconcileJob.GetAuthoritative().GetJobId() == m.JobId, "reconcile_job.authoritative.job_id", "must be the job of the command")
	case *pb.Command_InventoryQuery:
		required(c, "inventory_query", op.InventoryQuery, (*checker).inventoryQuery)
	case *pb.Command_RequestJobSnapshot:
		c.jobCommand(m, false)
		required(c, "request_job_snapshot", op.RequestJobSnapshot, (*checker).requestJobSnapshot)
	case *pb.Command_CreateRoute:
		required(c, "create_route", op.CreateRoute, (*checker).createRoute)
	case *pb.Command_UpdateRoute:
		required(c, "update_route", op.UpdateRoute, (*checker).updateRoute)
	case *pb.Command_RemoveRoute:
		required(c, "remove_route", op.RemoveRoute, (*checker).removeRoute)
	case *pb.Command_CloseJob:
		c.jobCommand(m, true)
		required(c, "close_job", op.CloseJob, (*checker).closeJob)
	default:
		c.failAs(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "operation", "is none that this version knows")
	}
}

// jobCommand checks the head of a job command; mutating ones need a precondition.
func (c *checker) jobCommand(m *pb.Command, mutating bool) {
	c.must(m.JobId != "", "job_id", "is required")
	c.must(!mutating || m.Precondition != nil, "precondition", "is required")
}

// assignment checks that the parts of an assignment fit each other.
func (c *checker) assignment(m *pb.Command, a *pb.AssignJob) {
	if c.err != nil {
		return
	}
	p := m.Precondition
	c.must(p.ExpectedRevision == 0, "precondition.expected_revision", "must be 0 for an assignment")
	c.must(p.ExpectedLastEventSequence == 0, "precondition.expected_last_event_sequence", "must be 0 for an assignment")
	c.must(p.DefinitionSha256 == a.DefinitionSha256, "precondition.definition_sha256", "must be that of the assignment")
	c.must(a.Definition.JobId == m.JobId, "assign_job.definition.job_id", "must be the job of the command")
}

// CommandPrecondition checks a precondition.
func CommandPrecondition(m *pb.CommandPrecondition) error { return run(m, (*checker).precondition) }

func (c *checker) precondition(m *pb.CommandPrecondition) {
	c.hash("definition_sha256", m.DefinitionSha256)
}

// AssignJob checks an assignment, the digest of its definition included.
func AssignJob(m *pb.AssignJob) error { return run(m, (*checker).assignJob) }

func (c *checker) assignJob(m *pb.AssignJob) {
	required(c, "definition", m.Definition, (*checker).definition)
	chosen(c, "role", m.Role, pb.ParticipantRole_name)
	c.hash("definition_sha256", m.DefinitionSha256)
	if c.err == nil && canonical.Sum(m.Definition) != m.DefinitionSha256 {
		c.fail("definition_sha256", "must be the digest of the definition")
	}
}

// ExecuteStepCommand checks the start of a step. Which of its parameters are empty depends on the job's operation, which
// the receiver knows.
func ExecuteStepCommand(m *pb.ExecuteStepCommand) error { return run(m, (*checker).executeStep) }

func (c *checker) executeStep(m *pb.ExecuteStepCommand) {
	chosen(c, "step", m.Step, pb.JobStep_name)
	c.must(m.StepAttempt >= 1, "step_attempt", "must be at least 1")
	step := pb.JobStep_JOB_STEP_UNSPECIFIED
	switch p := m.Params.(type) {
	case *pb.ExecuteStepCommand_Stage:
		step = pb.JobStep_JOB_STEP_STAGE
		required(c, "stage", p.Stage, (*checker).stageParams)
	case *pb.ExecuteStepCommand_Transfer:
		step = pb.JobStep_JOB_STEP_TRANSFER
		required(c, "transfer", p.Transfer, (*checker).transferParams)
	case *pb.ExecuteStepCommand_Materialize:
		step = pb.JobStep_JOB_STEP_MATERIALIZE
		required(c, "materialize", p.Materialize, (*checker).materializeParams)
	case *pb.ExecuteStepCommand_Verify:
		step = pb.JobStep_JOB_STEP_VERIFY
		required(c, "verify", p.Verify, (*checker).verifyParams)
	case *pb.ExecuteStepCommand_Commit:
		step = pb.JobStep_JOB_STEP_COMMIT
		required(c, "commit", p.Commit, (*checker).commitParams)
	case *pb.ExecuteStepCommand_Release:
		step = pb.JobStep_JOB_STEP_RELEASE
		required(c, "release", p.Release, (*checker).releaseParams)
	case *pb.ExecuteStepCommand_Purge:
		step = pb.JobStep_JOB_STEP_PURGE
		required(c, "purge", p.Purge, (*checker).purgeParams)
	}
	c.must(step == m.Step, "params", "must be those of the step")
}

// StageParams checks the parameters of STAGE.
func StageParams(m *pb.StageParams) error { return run(m, (*checker).stageParams) }

func (c *checker) stageParams(m *pb.StageParams) {
	c.hash("expected_content_revision", m.ExpectedContentRevision)
}

// TransferParams checks the parameters of TRANSFER.
func TransferParams(m *pb.TransferParams) error { return run(m, (*checker).transferParams) }

func (c *checker) transferParams(m *pb.TransferParams) {
	c.hash("manifest_sha256", m.ManifestSha256)
	c.component("job_dir", m.JobDir)
}

// MaterializeParams checks the parameters of MATERIALIZE: a staged job directory, or a revision to adopt.
func MaterializeParams(m *pb.MaterializeParams) error { return run(m, (*checker).materializeParams) }

func (c *checker) materializeParams(m *pb.MaterializeParams) {
	if m.ManifestSha256 == "" && m.JobDir == "" {
		c.hash("adopt_content_revision", m.AdoptContentRevision)
		return
	}
	c.hash("manifest_sha256", m.ManifestSha256)
	c.component("job_dir", m.JobDir)
	c.hashOrEmpty("adopt_content_revision", m.AdoptContentRevision)
}

// VerifyParams checks the parameters of VERIFY.
func VerifyParams(m *pb.VerifyParams) error { return run(m, (*checker).verifyParams) }

func (c *checker) verifyParams(m *pb.VerifyParams) {
	c.hashOrEmpty("manifest_sha256", m.ManifestSha256)
	c.hashOrEmpty("materialize_evidence_sha256", m.MaterializeEvidenceSha256)
}

// CommitParams checks the parameters of COMMIT.
func CommitParams(m *pb.CommitParams) error { return run(m, (*checker).commitParams) }

func (c *checker) commitParams(m *pb.CommitParams) {
	c.hash("verify_evidence_sha256", m.VerifyEvidenceSha256)
}

// ReleaseParams checks the parameters of RELEASE.
func ReleaseParams(m *pb.ReleaseParams) error { return run(m, (*checker).releaseParams) }

func (c *checker) releaseParams(m *pb.ReleaseParams) {
	required(c, "target_commit", m.TargetCommit, (*checker).commitEvidence)
	c.hash("reverify_evidence_sha256", m.ReverifyEvidenceSha256)
	c.hash("expected_content_revision", m.ExpectedContentRevision)
}

// PurgeParams checks the parameters of PURGE. Without not_before nothing may be purged, so it is required.
func PurgeParams(m *pb.PurgeParams) error { return run(m, (*checker).purgeParams) }

func (c *checker) purgeParams(m *pb.PurgeParams) {
	c.hash("release_evidence_sha256", m.ReleaseEvidenceSha256)
	c.timeRequired("not_before", m.NotBefore)
}

// CancelJobCommand checks a cancellation.
func CancelJobCommand(m *pb.CancelJobCommand) error { return run(m, (*checker).cancelJob) }

func (c *checker) cancelJob(m *pb.CancelJobCommand) {
	c.size("reason", m.Reason, 0, MaxReason)
	chosen(c, "cleanup", m.Cleanup, pb.CleanupPolicy_name)
}

// ReconcileJobCommand checks a reconciliation.
func ReconcileJobCommand(m *pb.ReconcileJobCommand) error { return run(m, (*checker).reconcileJob) }

func (c *checker) reconcileJob(m *pb.ReconcileJobCommand) {
	required(c, "authoritative", m.Authoritative, (*checker).cursor)
	c.uuids("retire_command_ids", m.RetireCommandIds, 0)
	chosen(c, "disposition", m.Disposition, pb.ReconcileDisposition_name)
	optional(c, "reason", m.Reason, (*checker).detail)
	if m.Disposition != pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION {
		c.must(m.Definition == nil, "definition", "must be set only for RESTORE_DEFINITION")
		return
	}
	required(c, "definition", m.Definition, (*checker).definition)
	if c.err != nil {
		return
	}
	c.must(m.Definition.JobId == m.Authoritative.JobId, "definition.job_id", "must be the job of the cursor")
	c.must(canonical.Sum(m.Definition) == m.Authoritative.DefinitionSha256, "authoritative.definition_sha256", "must be the digest of the definition")
}

// CloseJob checks the end of a job.
func CloseJob(m *pb.CloseJob) error { return run(m, (*checker).closeJob) }

func (c *checker) closeJob(m *pb.CloseJob) {
	chosen(c, "final_state", m.FinalState, pb.JobState_name)
	switch m.FinalState {
	case pb.JobState_JOB_STATE_COMPLETED, pb.JobState_JOB_STATE_FAILED, pb.JobState_JOB_STATE_CANCELLED:
	default:
		c.fail("final_state", "must be COMPLETED, FAILED or CANCELLED")
	}
}

// RequestJobSnapshot checks a request; every value of its fields is valid.
func RequestJobSnapshot(m *pb.RequestJobSnapshot) error {
	return run(m, (*checker).requestJobSnapshot)
}

func (c *checker) requestJobSnapshot(*pb.RequestJobSnapshot) {}

// CommandAck checks an acknowledgement.
func CommandAck(m *pb.CommandAck) error { return run(m, (*checker).commandAck) }

func (c *checker) commandAck(m *pb.CommandAck) {
	const (
		accepted  = pb.AckStatus_ACK_STATUS_ACCEPTED
		duplicate = pb.AckStatus_ACK_STATUS_DUPLICATE
		rejected  = pb.AckStatus_ACK_STATUS_REJECTED
		conflict  = pb.AckStatus_ACK_STATUS_CONFLICT
	)
	c.uuid("command_id", m.CommandId)
	chosen(c, "status", m.Status, pb.AckStatus_name)
	known(c, "stored_status", m.StoredStatus, pb.AckStatus_name)
	if m.Status == duplicate {
		c.must(m.StoredStatus == accepted || m.StoredStatus == rejected, "stored_status", "must be ACCEPTED or REJECTED with DUPLICATE")
	} else {
		c.must(m.StoredStatus == 0, "stored_status", "must be set only with DUPLICATE")
	}
	if m.Status == rejected || m.Status == conflict || m.StoredStatus == rejected {
		c.must(m.Error != nil, "error", "is required for a refusal")
	}
	optional(c, "error", m.Error, (*checker).detail)
	optional(c, "cursor", m.Cursor, (*checker).cursor)
	c.time("decided_at", m.DecidedAt)
	c.hash("payload_sha256", m.PayloadSha256)
}
