package valid

import (
	pb "signalbox/appliance/archive/archivepb"
)

// longestTrash is the longest trash_retention (daemon protocol 2.7).
const longestTrash = 90 * day

// JobDefinition checks a definition (daemon protocol 2.7).
func JobDefinition(m *pb.JobDefinition) error { return run(m, (*checker).definition) }

func (c *checker) definition(m *pb.JobDefinition) {
	const (
		transfer = pb.JobOperation_JOB_OPERATION_TRANSFER
		adopt    = pb.JobOperation_JOB_OPERATION_ADOPT
		evict    = pb.JobOperation_JOB_OPERATION_EVICT
	)
	c.uuid("job_id", m.JobId)
	chosen(c, "operation", m.Operation, pb.JobOperation_name)
	c.uuidOrEmpty("parent_job_id", m.ParentJobId)
	required(c, "source", m.Source, (*checker).resource)
	c.uuid("target_client_id", m.TargetClientId)
	if m.Operation == adopt {
		c.must(m.TargetClientId == m.Source.GetClientId(), "target_client_id", "must be the client of source for ADOPT")
	}
	if m.Operation == transfer {
		c.uuid("route_id", m.RouteId)
	} else {
		c.must(m.RouteId == "", "route_id", "must be empty unless the job is a TRANSFER")
	}
	required(c, "requested", m.Requested, (*checker).someIndices)
	c.hash("source_content_revision", m.SourceContentRevision)
	if m.Operation == transfer {
		required(c, "baseline", m.Baseline, (*checker).baseline)
	}
	optional(c, "baseline", m.Baseline, (*checker).baseline)
	if m.Operation == transfer || m.Operation == adopt {
		required(c, "destination", m.Destination, (*checker).destination)
	}
	optional(c, "destination", m.Destination, (*checker).destination)
	required(c, "policies", m.Policies, (*checker).policies)
	c.capabilities("required_capabilities", m.RequiredCapabilities)
	c.time("created_at", m.CreatedAt)
	if m.Operation == evict {
		required(c, "eviction", m.Eviction, (*checker).eviction)
	}
	optional(c, "eviction", m.Eviction, (*checker).eviction)
}

// EvictionBasis checks what an EVICT rests on.
func EvictionBasis(m *pb.EvictionBasis) error { return run(m, (*checker).eviction) }

func (c *checker) eviction(m *pb.EvictionBasis) {
	required(c, "target_commit", m.TargetCommit, (*checker).commitEvidence)
	c.duration("max_verify_age", m.MaxVerifyAge, day)
}

// TargetBaseline checks a baseline.
func TargetBaseline(m *pb.TargetBaseline) error { return run(m, (*checker).baseline) }

func (c *checker) baseline(m *pb.TargetBaseline) {
	c.hashOrEmpty("target_content_revision", m.TargetContentRevision)
	optional(c, "present", m.Present, (*checker).indices)
}

// Destination checks a destination.
func Destination(m *pb.Destination) error { return run(m, (*checker).destination) }

func (c *checker) destination(m *pb.Destination) {
	c.must(m.ContentRootId != "", "content_root_id", "is required")
	c.pathOrEmpty("relative_dir", m.RelativeDir)
}

// JobPolicies checks policies. Each must be chosen: a policy that is unset may be one that was lost.
func JobPolicies(m *pb.JobPolicies) error { return run(m, (*checker).policies) }

func (c *checker) policies(m *pb.JobPolicies) {
	chosen(c, "verify_level", m.VerifyLevel, pb.VerifyLevel_name)
	chosen(c, "sparse_policy", m.SparsePolicy, pb.SparsePolicy_name)
	chosen(c, "partfile_mode", m.PartfileMode, pb.PartfileMode_name)
	chosen(c, "conflict_policy", m.ConflictPolicy, pb.ConflictPolicy_name)
	chosenAll(c, "stage_methods", m.StageMethods, pb.MaterializeMethod_name)
	chosenAll(c, "materialize_methods", m.MaterializeMethods, pb.MaterializeMethod_name)
	chosen(c, "quiesce", m.Quiesce, pb.QuiescePolicy_name)
	chosen(c, "activation", m.Activation, pb.ActivationPolicy_name)
	c.duration("trash_retention", m.TrashRetention, longestTrash)
	chosen(c, "cleanup", m.Cleanup, pb.CleanupPolicy_name)
}

// JobEvent checks an event (daemon protocol 2.8) as far as it can be alone.
func JobEvent(m *pb.JobEvent) error { return run(m, (*checker).event) }

// eventStates is the client's state after an event of each kind.
var eventStates = map[pb.JobEventKind]pb.JobState{
	pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED:   pb.JobState_JOB_STATE_RUNNING,
	pb.JobEventKind_JOB_EVENT_KIND_PROGRESS:       pb.JobState_JOB_STATE_RUNNING,
	pb.JobEventKind_JOB_EVENT_KIND_STALLED:        pb.JobState_JOB_STATE_STALLED,
	pb.JobEventKind_JOB_EVENT_KIND_RESUMED:        pb.JobState_JOB_STATE_RUNNING,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED: pb.JobState_JOB_STATE_ASSIGNED,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED:    pb.JobState_JOB_STATE_ASSIGNED,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED: pb.JobState_JOB_STATE_CANCELLED,
	pb.JobEventKind_JOB_EVENT_KIND_HELD:           pb.JobState_JOB_STATE_MANUAL,
}

func (c *checker) event(m *pb.JobEvent) {
	const (
		progress  = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
		stalled   = pb.JobEventKind_JOB_EVENT_KIND_STALLED
		resumed   = pb.JobEventKind_JOB_EVENT_KIND_RESUMED
		completed = pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED
		failed    = pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED
		cancelled = pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED
		held      = pb.JobEventKind_JOB_EVENT_KIND_HELD
	)
	c.uuid("event_id", m.EventId)
	c.uuid("job_id", m.JobId)
	c.must(m.Sequence >= 1, "sequence", "must be at least 1")
	c.counter("sequence", m.Sequence)
	c.must(m.ResultingRevision >= 1, "resulting_revision", "must be at least 1")
	c.counter("resulting_revision", m.ResultingRevision)
	c.uuid("command_id", m.CommandId)
	chosen(c, "kind", m.Kind, pb.JobEventKind_name)
	known(c, "step", m.Step, pb.JobStep_name)
	c.must(m.Step != 0 || m.Kind == cancelled || m.Kind == held, "step", "is required for this kind")
	known(c, "state", m.State, pb.JobState_name)
	c.must(m.State == eventStates[m.Kind], "state", "must be that of the kind")
	switch m.Kind {
	case progress, stalled, resumed, completed:
		c.must(m.Progress != nil, "progress", "is required for this kind")
	case failed, held:
		c.must(m.Error != nil, "error", "is required for this kind")
	}
	optional(c, "progress", m.Progress, (*checker).progress)
	optional(c, "error", m.Error, (*checker).detail)
	if m.Kind == completed {
		c.must(m.Evidence != nil, "evidence", "is required for this kind")
		c.must(m.Evidence == nil || EvidenceStep(m.Evidence) == m.Step, "evidence", "must be that of the step")
	}
	optional(c, "evidence", m.Evidence, (*checker).evidence)
	c.time("occurred_at", m.OccurredAt)
}

// JobEventAck checks the answer to events.
func JobEventAck(m *pb.JobEventAck) error { return run(m, (*checker).eventAck) }

func (c *checker) eventAck(m *pb.JobEventAck) { c.uuid("job_id", m.JobId) }

// JobSnapshot checks one part of a snapshot (daemon protocol 2.9).
func JobSnapshot(m *pb.JobSnapshot) error { return run(m, (*checker).snapshot) }

func (c *checker) snapshot(m *pb.JobSnapshot) {
	c.uuid("command_id", m.CommandId)
	c.uuid("snapshot_id", m.SnapshotId)
	if m.Error != nil {
		c.must(m.LastPart, "error", "must be in the last part")
		c.must(len(m.Events) == 0 && len(m.Commands) == 0 && len(m.Evidence) == 0 && m.JournalSummary == nil, "error", "must be alone")
		optional(c, "error", m.Error, (*checker).detail)
		optional(c, "cursor", m.Cursor, (*checker).cursor)
		c.uuidOrEmpty("state_epoch", m.StateEpoch)
		return
	}
	required(c, "cursor", m.Cursor, (*checker).cursor)
	each(c, "events", m.Events, (*checker).event)
	for i, e := range m.Events {
		if c.err != nil {
			return
		}
		c.must(e.JobId == m.Cursor.GetJobId(), "events["+itoa(i)+"].job_id", "must be the job of the cursor")
		c.must(i == 0 || e.Sequence > m.Events[i-1].Sequence, "events["+itoa(i)+"].sequence", "must be above the one before")
	}
	each(c, "commands", m.Commands, (*checker).record)
	each(c, "evidence", m.Evidence, (*checker).evidence)
	c.uuid("state_epoch", m.StateEpoch)
}

// CommandRecord checks a command of a snapshot.
func CommandRecord(m *pb.CommandRecord) error { return run(m, (*checker).record) }

func (c *checker) record(m *pb.CommandRecord) {
	c.uuid("command_id", m.CommandId)
	c.hash("payload_sha256", m.PayloadSha256)
	chosen(c, "status", m.Status, pb.AckStatus_name)
	chosen(c, "lease_state", m.LeaseState, pb.LeaseState_name)
	known(c, "step", m.Step, pb.JobStep_name)
}
