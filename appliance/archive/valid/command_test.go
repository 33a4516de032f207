package valid_test

import (
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid/validtest"
)

// command returns a fresh command of an operation or step.
func command(pick func(*pb.Command) bool) func() *pb.Command {
	return func() *pb.Command {
		for _, c := range validtest.Commands() {
			if pick(c) {
				return c
			}
		}
		panic("no such command")
	}
}

func TestCommands(t *testing.T) {
	hold(t, command(func(c *pb.Command) bool { return c.GetAssignJob() != nil }), []rule[*pb.Command]{
		{"attempt 0", "attempt", func(m *pb.Command) { m.Attempt = 0 }, 0},
		{"no job", "job_id", func(m *pb.Command) { m.JobId = "" }, 0},
		{"no precondition", "precondition", func(m *pb.Command) { m.Precondition = nil }, 0},
		{"no digest", "precondition.definition_sha256", func(m *pb.Command) { m.Precondition.DefinitionSha256 = "" }, 0},
		{"no operation", "operation", func(m *pb.Command) { m.Operation = nil }, unsupported},
		{"empty operation", "assign_job", func(m *pb.Command) { m.Operation = &pb.Command_AssignJob{} }, 0},
		{"revision", "precondition.expected_revision", func(m *pb.Command) { m.Precondition.ExpectedRevision = 1 }, 0},
		{"sequence", "precondition.expected_last_event_sequence", func(m *pb.Command) { m.Precondition.ExpectedLastEventSequence = 1 }, 0},
		{"digest of another", "precondition.definition_sha256", func(m *pb.Command) { m.Precondition.DefinitionSha256 = validtest.Hash(99) }, 0},
		{"role", "assign_job.role", func(m *pb.Command) { m.GetAssignJob().Role = 0 }, unsupported},
		{"definition that lost a method", "assign_job.definition_sha256", func(m *pb.Command) {
			p := m.GetAssignJob().Definition.Policies
			p.StageMethods = p.StageMethods[1:]
		}, 0},
		{"definition of another job", "assign_job.definition.job_id", func(m *pb.Command) { m.GetAssignJob().Definition.JobId = validtest.UUID(99); definitionDigest(m) }, 0},
		{"no definition", "assign_job.definition", func(m *pb.Command) { m.GetAssignJob().Definition = nil }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetExecuteStep().GetStage() != nil }), []rule[*pb.Command]{
		{"no precondition", "precondition", func(m *pb.Command) { m.Precondition = nil }, 0},
		{"no step", "execute_step.step", func(m *pb.Command) { m.GetExecuteStep().Step = 0 }, unsupported},
		{"attempt 0", "execute_step.step_attempt", func(m *pb.Command) { m.GetExecuteStep().StepAttempt = 0 }, 0},
		{"parameters of another step", "execute_step.params", func(m *pb.Command) { m.GetExecuteStep().Step = pb.JobStep_JOB_STEP_VERIFY }, 0},
		{"no parameters", "execute_step.params", func(m *pb.Command) { m.GetExecuteStep().Params = nil }, 0},
		{"empty parameters", "execute_step.stage", func(m *pb.Command) { m.GetExecuteStep().Params = &pb.ExecuteStepCommand_Stage{} }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetExecuteStep().GetTransfer() != nil }), []rule[*pb.Command]{
		{"two components", "execute_step.transfer.job_dir", func(m *pb.Command) { m.GetExecuteStep().GetTransfer().JobDir = "a/b" }, unsafe},
		{"no directory", "execute_step.transfer.job_dir", func(m *pb.Command) { m.GetExecuteStep().GetTransfer().JobDir = "" }, unsafe},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetExecuteStep().GetMaterialize() != nil }), []rule[*pb.Command]{
		{"adoption", "", func(m *pb.Command) {
			m.GetExecuteStep().Params = &pb.ExecuteStepCommand_Materialize{Materialize: &pb.MaterializeParams{AdoptContentRevision: validtest.Hash(1)}}
		}, 0},
		{"manifest without directory", "execute_step.materialize.job_dir", func(m *pb.Command) { m.GetExecuteStep().GetMaterialize().JobDir = "" }, unsafe},
		{"directory without manifest", "execute_step.materialize.manifest_sha256", func(m *pb.Command) { m.GetExecuteStep().GetMaterialize().ManifestSha256 = "" }, 0},
		{"nothing", "execute_step.materialize.adopt_content_revision", func(m *pb.Command) {
			m.GetExecuteStep().Params = &pb.ExecuteStepCommand_Materialize{Materialize: &pb.MaterializeParams{}}
		}, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetExecuteStep().GetVerify() != nil }), []rule[*pb.Command]{
		{"of an EVICT", "", func(m *pb.Command) {
			m.GetExecuteStep().Params = &pb.ExecuteStepCommand_Verify{Verify: &pb.VerifyParams{}}
		}, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetExecuteStep().GetRelease() != nil }), []rule[*pb.Command]{
		{"no commit", "execute_step.release.target_commit", func(m *pb.Command) { m.GetExecuteStep().GetRelease().TargetCommit = nil }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetExecuteStep().GetPurge() != nil }), []rule[*pb.Command]{
		{"no time", "execute_step.purge.not_before", func(m *pb.Command) { m.GetExecuteStep().GetPurge().NotBefore = nil }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetCancelJob() != nil }), []rule[*pb.Command]{
		{"no precondition", "precondition", func(m *pb.Command) { m.Precondition = nil }, 0},
		{"longest reason", "", func(m *pb.Command) { m.GetCancelJob().Reason = strings.Repeat("x", 512) }, 0},
		{"reason too long", "cancel_job.reason", func(m *pb.Command) { m.GetCancelJob().Reason = strings.Repeat("x", 513) }, 0},
		{"no cleanup", "cancel_job.cleanup", func(m *pb.Command) { m.GetCancelJob().Cleanup = 0 }, unsupported},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetReconcileJob() != nil }), []rule[*pb.Command]{
		{"no precondition", "precondition", func(m *pb.Command) { m.Precondition = nil }, 0},
		{"no cursor", "reconcile_job.authoritative", func(m *pb.Command) { m.GetReconcileJob().Authoritative = nil }, 0},
		{"cursor of another job", "reconcile_job.authoritative.job_id", func(m *pb.Command) {
			m.GetReconcileJob().Authoritative.JobId = validtest.UUID(99)
			m.GetReconcileJob().Disposition, m.GetReconcileJob().Definition = pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD, nil
		}, 0},
		{"no disposition", "reconcile_job.disposition", func(m *pb.Command) { m.GetReconcileJob().Disposition = 0 }, unsupported},
		{"definition for another disposition", "reconcile_job.definition", func(m *pb.Command) {
			m.GetReconcileJob().Disposition = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME
		}, 0},
		{"no definition to restore", "reconcile_job.definition", func(m *pb.Command) { m.GetReconcileJob().Definition = nil }, 0},
		{"definition that lost a method", "reconcile_job.authoritative.definition_sha256", func(m *pb.Command) {
			m.GetReconcileJob().Definition.Policies.StageMethods = nil
		}, 0},
		{"definition of another job", "reconcile_job.definition.job_id", func(m *pb.Command) { m.GetReconcileJob().Definition.JobId = validtest.UUID(99) }, 0},
		{"lease", "reconcile_job.retire_command_ids[1]", func(m *pb.Command) { m.GetReconcileJob().RetireCommandIds[1] = "" }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetCloseJob() != nil }), []rule[*pb.Command]{
		{"no precondition", "precondition", func(m *pb.Command) { m.Precondition = nil }, 0},
		{"no state", "close_job.final_state", func(m *pb.Command) { m.GetCloseJob().FinalState = 0 }, unsupported},
		{"state that is no end", "close_job.final_state", func(m *pb.Command) { m.GetCloseJob().FinalState = pb.JobState_JOB_STATE_MANUAL }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetRequestJobSnapshot() != nil }), []rule[*pb.Command]{
		{"no precondition", "", func(m *pb.Command) { m.Precondition = nil }, 0},
		{"no job", "job_id", func(m *pb.Command) { m.JobId = "" }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetCreateRoute() != nil }), []rule[*pb.Command]{
		{"no route", "create_route.route", func(m *pb.Command) { m.GetCreateRoute().Route = nil }, 0},
		{"sequence", "create_route.expected_sequence", func(m *pb.Command) { m.GetCreateRoute().ExpectedSequence = 1 }, 0},
		{"side", "create_route.side", func(m *pb.Command) { m.GetCreateRoute().Side = 0 }, unsupported},
		{"nonce", "create_route.probe_nonce", func(m *pb.Command) { m.GetCreateRoute().ProbeNonce = "" }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetUpdateRoute() != nil }), []rule[*pb.Command]{
		{"nonce", "update_route.probe_nonce", func(m *pb.Command) { m.GetUpdateRoute().ProbeNonce = "" }, 0},
		{"any sequence", "", func(m *pb.Command) { m.GetUpdateRoute().ExpectedSequence = 0 }, 0},
	})
	hold(t, command(func(c *pb.Command) bool { return c.GetRemoveRoute() != nil }), []rule[*pb.Command]{
		{"route", "remove_route.route_id", func(m *pb.Command) { m.GetRemoveRoute().RouteId = "" }, 0},
	})
}

func TestCommandAck(t *testing.T) {
	const (
		accepted = pb.AckStatus_ACK_STATUS_ACCEPTED
		rejected = pb.AckStatus_ACK_STATUS_REJECTED
	)
	hold(t, func() *pb.CommandAck { return validtest.Envelopes()["command_ack"].GetCommandAck() }, []rule[*pb.CommandAck]{
		{"no status", "status", func(m *pb.CommandAck) { m.Status = 0 }, unsupported},
		{"duplicate of a conflict", "stored_status", func(m *pb.CommandAck) { m.StoredStatus = pb.AckStatus_ACK_STATUS_CONFLICT }, 0},
		{"duplicate of nothing", "stored_status", func(m *pb.CommandAck) { m.StoredStatus = 0 }, 0},
		{"duplicate of an acceptance", "", func(m *pb.CommandAck) { m.StoredStatus, m.Error = accepted, nil }, 0},
		{"duplicate of a rejection without error", "error", func(m *pb.CommandAck) { m.Error = nil }, 0},
		{"stored status of none", "stored_status", func(m *pb.CommandAck) { m.Status = accepted }, 0},
		{"accepted", "", func(m *pb.CommandAck) { m.Status, m.StoredStatus, m.Error, m.Cursor = accepted, 0, nil, nil }, 0},
		{"rejected without error", "error", func(m *pb.CommandAck) { m.Status, m.StoredStatus, m.Error = rejected, 0, nil }, 0},
		{"conflict without error", "error", func(m *pb.CommandAck) { m.Status, m.StoredStatus, m.Error = pb.AckStatus_ACK_STATUS_CONFLICT, 0, nil }, 0},
		{"no digest", "payload_sha256", func(m *pb.CommandAck) { m.PayloadSha256 = "" }, 0},
		{"cursor", "cursor.job_id", func(m *pb.CommandAck) { m.Cursor.JobId = "" }, 0},
	})
}
