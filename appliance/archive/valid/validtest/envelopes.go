package validtest

import (
	"fmt"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame/canonical"
)

// File is one file of a tree.
func File(index uint32) *pb.FileEntry {
	return &pb.FileEntry{Index: index, Path: fmt.Sprintf("A film (2020)/part %d — é.mkv", index), Kind: pb.FileKind_FILE_KIND_REGULAR, LogicalBytes: 100, AllocatedBytes: 90,
		CompletedBytes: 100, Selected: true, Sparse: true, DiskBytes: 100, Mtime: at(7), LinkCount: 2, FirstPiece: index, LastPiece: index + 1,
		PiecesRoot: Hash(13), Executable: true, Hidden: true, Present: pb.DiskPresence_DISK_PRESENCE_FINAL_NAME, ContentRevision: Hash(7)}
}

// Tree is a tree without its files.
func Tree() *pb.ContentTree {
	return &pb.ContentTree{Resource: Resource(Client), ContentRevision: Hash(7),
		Torrent:  &pb.TorrentFacts{MetaVersion: 2, PieceBytes: 1 << 20, PieceCount: 10, Private: true, Name: "A film (2020)", MultiFile: true, HasPadding: true, V1LayoutAligned: true},
		Partfile: &pb.PartfileFacts{Present: true, Bytes: 100, PieceBytes: 1 << 20, PieceCount: 10, PiecesStored: 1},
		Totals:   &pb.ContentTotals{Logical: 400, Selected: 300, CompletedSelected: 300, Allocated: 290, Padding: 10, FileCount: 4},

		BackendState: pb.BackendState_BACKEND_STATE_SEEDING, SharedWith: []string{"torrent:2"}, MetainfoAvailable: true}
}

// command fills the head of a command, jobCommand that of a job command.
func command(c *pb.Command) *pb.Command {
	c.CommandId, c.ClientId, c.IssuedAt, c.Attempt = UUID(1), Client, at(8), 2
	return c
}

func jobCommand(c *pb.Command) *pb.Command {
	c.JobId = Job
	c.Precondition = &pb.CommandPrecondition{ExpectedRevision: 3, ExpectedLastEventSequence: 5, DefinitionSha256: canonical.Sum(Definition())}
	return command(c)
}

// Commands returns one of every operation and step.
func Commands() []*pb.Command {
	definition := Definition()
	assign := jobCommand(&pb.Command{Operation: &pb.Command_AssignJob{AssignJob: &pb.AssignJob{Definition: definition,
		Role: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, DefinitionSha256: canonical.Sum(definition)}}})
	assign.Precondition.ExpectedRevision, assign.Precondition.ExpectedLastEventSequence = 0, 0
	out := []*pb.Command{
		assign,
		jobCommand(&pb.Command{Operation: &pb.Command_CancelJob{CancelJob: &pb.CancelJobCommand{Reason: "by request", Cleanup: pb.CleanupPolicy_CLEANUP_POLICY_KEEP_ALL}}}),
		jobCommand(&pb.Command{Operation: &pb.Command_ReconcileJob{ReconcileJob: &pb.ReconcileJobCommand{Authoritative: Cursor(Job), RetireCommandIds: []string{UUID(1), UUID(2)},
			Disposition: pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION, Reason: Failure(), Definition: definition}}}),
		jobCommand(&pb.Command{Operation: &pb.Command_RequestJobSnapshot{RequestJobSnapshot: &pb.RequestJobSnapshot{FromSequence: 1, IncludeEvidence: true}}}),
		jobCommand(&pb.Command{Operation: &pb.Command_CloseJob{CloseJob: &pb.CloseJob{FinalState: pb.JobState_JOB_STATE_CANCELLED, DiscardJobFiles: true}}}),
		command(&pb.Command{Operation: &pb.Command_InventoryQuery{InventoryQuery: &pb.InventoryQuery{QueryId: UUID(8), Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES,
			Purpose: pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW, ResourceIds: []string{"torrent:1", "torrent:2"}, PageSize: 500, PageToken: "next", ExpectedRevision: 4,
			Filter: &pb.ResourceFilter{Text: "film", Categories: []string{"films"}, States: []pb.BackendState{pb.BackendState_BACKEND_STATE_SEEDING},
				ContentRootIds: []string{"films"}, Identity: Identity()}}}}),
		command(&pb.Command{Operation: &pb.Command_InventoryQuery{InventoryQuery: &pb.InventoryQuery{QueryId: UUID(8), Scope: pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE,
			Purpose: pb.InventoryPurpose_INVENTORY_PURPOSE_PREFLIGHT, ResourceIds: []string{"torrent:1"}, PageSize: 1, ExpectedContentRevision: Hash(7)}}}),
		command(&pb.Command{Operation: &pb.Command_RemoveRoute{RemoveRoute: &pb.RemoveRoute{RouteId: UUID(4), Side: pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE,
			ExpectedSequence: 3, RemoveProvisioned: true}}}),
	}
	nonce := strings.Repeat("ab", 16)
	for _, r := range Routes() {
		out = append(out,
			command(&pb.Command{Operation: &pb.Command_CreateRoute{CreateRoute: &pb.CreateRoute{Route: r, Side: pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE, ProbeNonce: nonce}}}),
			command(&pb.Command{Operation: &pb.Command_UpdateRoute{UpdateRoute: &pb.UpdateRoute{Route: r, Side: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, ExpectedSequence: 3, ProbeNonce: nonce}}}))
	}
	for _, e := range Executes() {
		out = append(out, jobCommand(&pb.Command{Operation: &pb.Command_ExecuteStep{ExecuteStep: e}}))
	}
	return out
}

// Executes returns one of every step, and both kinds of MATERIALIZE.
func Executes() []*pb.ExecuteStepCommand {
	dir := Job + "-1"
	out := []*pb.ExecuteStepCommand{
		{Step: pb.JobStep_JOB_STEP_STAGE, Params: &pb.ExecuteStepCommand_Stage{Stage: &pb.StageParams{ExpectedContentRevision: Hash(7)}}},
		{Step: pb.JobStep_JOB_STEP_TRANSFER, Params: &pb.ExecuteStepCommand_Transfer{Transfer: &pb.TransferParams{ManifestSha256: Hash(10), JobDir: dir}}},
		{Step: pb.JobStep_JOB_STEP_MATERIALIZE, Params: &pb.ExecuteStepCommand_Materialize{Materialize: &pb.MaterializeParams{ManifestSha256: Hash(10), JobDir: dir}}},
		{Step: pb.JobStep_JOB_STEP_MATERIALIZE, Params: &pb.ExecuteStepCommand_Materialize{Materialize: &pb.MaterializeParams{AdoptContentRevision: Hash(9)}}},
		{Step: pb.JobStep_JOB_STEP_VERIFY, Params: &pb.ExecuteStepCommand_Verify{Verify: &pb.VerifyParams{ManifestSha256: Hash(10), MaterializeEvidenceSha256: Hash(14)}}},
		{Step: pb.JobStep_JOB_STEP_COMMIT, Params: &pb.ExecuteStepCommand_Commit{Commit: &pb.CommitParams{VerifyEvidenceSha256: Hash(8)}}},
		{Step: pb.JobStep_JOB_STEP_RELEASE, Params: &pb.ExecuteStepCommand_Release{Release: &pb.ReleaseParams{TargetCommit: commit(), ReverifyEvidenceSha256: Hash(8), ExpectedContentRevision: Hash(7)}}},
		{Step: pb.JobStep_JOB_STEP_PURGE, Params: &pb.ExecuteStepCommand_Purge{Purge: &pb.PurgeParams{ReleaseEvidenceSha256: Hash(15), NotBefore: at(10)}}},
	}
	for _, e := range out {
		e.StepAttempt = 1
	}
	return out
}

// Registration is a registration of Client.
func Registration() *pb.RegisterRequest {
	return &pb.RegisterRequest{ProtocolVersion: Version(), ClientId: Client, ClientName: "box", Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET,
		ConnectionInstanceId: UUID(9), Capabilities: []string{"content.hardlink", "verify.pieces"}, ActiveJobs: []*pb.JobCursor{Cursor(Job), Cursor(UUID(30))},
		Token: Token, StateEpoch: UUID(31), OfferedLimits: Limits(), Software: "signalbox/1", LastGeneration: 4}
}

// Chunks returns one of every list, and one with an error.
func Chunks() []*pb.InventoryChunk {
	summary := &pb.ResourceSummary{Resource: Resource(Client), ContentRevision: Hash(7), LogicalBytes: 400, SelectedBytes: 300, CompletedSelectedBytes: 300, FileCount: 4,
		BackendState: pb.BackendState_BACKEND_STATE_SEEDING, ContentRootId: "films", RelativeDir: "new", Category: "films", Labels: []string{"a"}, PartialSelection: true, AddedAt: at(11)}
	root := &pb.StorageEntry{RootId: "films", RootKind: pb.RootKind_ROOT_KIND_CONTENT, TotalBytes: 1 << 41, FreeBytes: 1 << 40, Profile: Profile(),
		SameFilesystemAs: []string{"receive"}, Writable: true, Error: Failure()}
	history := &pb.RouteSnapshot{RouteId: UUID(4), Side: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, CreationCommandId: UUID(7), LastSequence: 2,
		Updates: []*pb.RouteUpdate{Update(1), Update(2)}, State: pb.RouteState_ROUTE_STATE_READY}
	out := []*pb.InventoryChunk{
		{Content: &pb.InventoryChunk_Resources{Resources: &pb.ResourceList{Entries: []*pb.ResourceSummary{summary}}}, EntriesTotal: 1, NextPageToken: "next"},
		{Content: &pb.InventoryChunk_ContentTree{ContentTree: &pb.ContentTreePart{Header: Tree(), Files: []*pb.FileEntry{File(0), File(1)}, ContentRevision: Hash(7)}}, EntriesTotal: 2},
		{Content: &pb.InventoryChunk_Jobs{Jobs: &pb.JobCursorList{Entries: []*pb.JobCursor{Cursor(Job)}}}, EntriesTotal: 1},
		{Content: &pb.InventoryChunk_Routes{Routes: &pb.RouteSnapshotList{Entries: []*pb.RouteSnapshot{history}}}, EntriesTotal: 1},
		{Content: &pb.InventoryChunk_Storage{Storage: &pb.StorageList{Entries: []*pb.StorageEntry{root}}}, EntriesTotal: 1},
		{Error: Failure()},
	}
	for _, c := range out {
		c.QueryId, c.CommandId, c.SnapshotId, c.Revision, c.LastChunk = UUID(8), UUID(1), UUID(32), 4, true
	}
	return out
}

// Snapshot is a part with an event of every kind.
func Snapshot() *pb.JobSnapshot {
	s := &pb.JobSnapshot{CommandId: UUID(1), SnapshotId: UUID(33), PartIndex: 1, LastPart: true, Cursor: Cursor(Job),
		Commands: []*pb.CommandRecord{{CommandId: UUID(2), PayloadSha256: Hash(16), Status: pb.AckStatus_ACK_STATUS_ACCEPTED,
			LeaseState: pb.LeaseState_LEASE_STATE_SETTLED, Step: pb.JobStep_JOB_STEP_VERIFY}},
		JournalSummary: &pb.JournalSummary{Intents: 5, Built: 4, Published: 3, RolledBack: 2, Trashed: 1}, StateEpoch: UUID(31)}
	for _, k := range Kinds() {
		s.Events = append(s.Events, Event(k))
	}
	for _, step := range Steps() {
		s.Evidence = append(s.Evidence, Evidence()[step])
	}
	return s
}

// Kinds returns the kinds of events in ascending order.
func Kinds() []pb.JobEventKind {
	return []pb.JobEventKind{pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED, pb.JobEventKind_JOB_EVENT_KIND_PROGRESS, pb.JobEventKind_JOB_EVENT_KIND_STALLED,
		pb.JobEventKind_JOB_EVENT_KIND_RESUMED, pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED, pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED,
		pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED, pb.JobEventKind_JOB_EVENT_KIND_HELD}
}

// Steps returns the steps in ascending order.
func Steps() []pb.JobStep {
	return []pb.JobStep{pb.JobStep_JOB_STEP_STAGE, pb.JobStep_JOB_STEP_TRANSFER, pb.JobStep_JOB_STEP_MATERIALIZE, pb.JobStep_JOB_STEP_VERIFY,
		pb.JobStep_JOB_STEP_COMMIT, pb.JobStep_JOB_STEP_RELEASE, pb.JobStep_JOB_STEP_PURGE}
}

// Envelopes returns an envelope of every payload, with every variant of commands, events and chunks, by name.
func Envelopes() map[string]*pb.Envelope {
	out := make(map[string]*pb.Envelope)
	add := func(name string, generation uint64, e *pb.Envelope) {
		e.EnvelopeId, e.Version, e.SentAt, e.ClientId, e.ConnectionGeneration, e.CorrelationId = UUID(40), Version(), at(12), Client, generation, UUID(41)
		out[name] = e
	}
	add("register_request", 0, &pb.Envelope{Payload: &pb.Envelope_RegisterRequest{RegisterRequest: Registration()}})
	add("register_response", 5, &pb.Envelope{Payload: &pb.Envelope_RegisterResponse{RegisterResponse: &pb.RegisterResponse{NegotiatedVersion: Version(), ConnectionGeneration: 5,
		ServerId: UUID(42), ServerEpoch: UUID(43), ServerTime: at(13), Limits: Limits(), Capabilities: []string{"content.hardlink"}, ControlCursors: []*pb.JobCursor{Cursor(Job)},
		Liveness: &pb.LivenessSettings{HeartbeatInterval: seconds(15), OfflineThreshold: seconds(45), StableReset: seconds(60), ReconnectInitial: seconds(1), ReconnectCap: seconds(60),
			CommandRetry: seconds(15), CommandAttempts: 3, RegistrationDeadline: seconds(10)}}}})
	add("register_rejected", 0, &pb.Envelope{Payload: &pb.Envelope_RegisterRejected{RegisterRejected: &pb.RegisterRejected{Error: Failure(), SupportedMajor: 2, SupportedMinorMax: 1, RetryAfter: seconds(5)}}})
	add("heartbeat", 5, &pb.Envelope{Payload: &pb.Envelope_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: 1, SentAt: at(14), OutboxDepth: 2, BusyWorkers: 1}}})
	add("heartbeat_ack", 5, &pb.Envelope{Payload: &pb.Envelope_HeartbeatAck{HeartbeatAck: &pb.HeartbeatAck{Sequence: 1, ServerTime: at(15)}}})
	for i, c := range Commands() {
		add(fmt.Sprintf("command_%02d", i), 5, &pb.Envelope{Payload: &pb.Envelope_Command{Command: c}})
	}
	add("command_ack", 5, &pb.Envelope{Payload: &pb.Envelope_CommandAck{CommandAck: &pb.CommandAck{CommandId: UUID(1), Status: pb.AckStatus_ACK_STATUS_DUPLICATE,
		StoredStatus: pb.AckStatus_ACK_STATUS_REJECTED, Error: Failure(), Cursor: Cursor(Job), DecidedAt: at(16), PayloadSha256: Hash(16)}}})
	for _, k := range Kinds() {
		add(fmt.Sprintf("job_event_%02d", k), 5, &pb.Envelope{Payload: &pb.Envelope_JobEvent{JobEvent: Event(k)}})
	}
	add("job_event_ack", 5, &pb.Envelope{Payload: &pb.Envelope_JobEventAck{JobEventAck: &pb.JobEventAck{JobId: Job, PersistedThrough: 5, Revision: 3, GoAhead: true}}})
	add("job_snapshot", 5, &pb.Envelope{Payload: &pb.Envelope_JobSnapshot{JobSnapshot: Snapshot()}})
	for i, c := range Chunks() {
		add(fmt.Sprintf("inventory_chunk_%d", i), 5, &pb.Envelope{Payload: &pb.Envelope_InventoryChunk{InventoryChunk: c}})
	}
	add("route_update", 5, &pb.Envelope{Payload: &pb.Envelope_RouteUpdate{RouteUpdate: Update(1)}})
	add("route_update_ack", 5, &pb.Envelope{Payload: &pb.Envelope_RouteUpdateAck{RouteUpdateAck: &pb.RouteUpdateAck{RouteId: UUID(4),
		Side: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, CreationCommandId: UUID(7), PersistedThrough: 1}}})
	add("protocol_error", 5, &pb.Envelope{Payload: &pb.Envelope_ProtocolError{ProtocolError: &pb.ProtocolError{Error: Failure(), OffendingEnvelopeId: UUID(44), Fatal: true}}})
	return out
}

// Manifest is a manifest with files of every kind.
func Manifest() *pb.TransferManifest {
	file := func(index uint32) *pb.ManifestFile {
		return &pb.ManifestFile{Index: index, Path: fmt.Sprintf("A film (2020)/%d.mkv", index), Kind: pb.FileKind_FILE_KIND_REGULAR, Action: pb.DeltaAction_DELTA_ACTION_TRANSFER,
			LogicalBytes: 100, AllocatedBytes: 90, Sparse: true, DataExtents: 2, Sha256: Hash(17), Payload: fmt.Sprintf("payload/%08d", index), Mtime: at(17), Executable: true,
			StageMethod: pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK, LinkGroup: 1}
	}
	present, padding, link := file(1), file(3), file(5)
	present.Action, present.Payload = pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET, ""
	padding.Kind, padding.Action, padding.Payload, padding.Sha256 = pb.FileKind_FILE_KIND_PADDING, pb.DeltaAction_DELTA_ACTION_SYNTHESIZE, "", ""
	link.Kind, link.SymlinkTarget, link.Payload, link.Sha256 = pb.FileKind_FILE_KIND_SYMLINK, "A film (2020)/0.mkv", "", ""
	return &pb.TransferManifest{Format: 1, JobId: Job, Attempt: 1, DefinitionSha256: canonical.Sum(Definition()),
		Source: &pb.EndpointIdentity{ClientId: Client, Resource: Resource(Client), ContentRevision: Hash(7), BackendKind: "directory"},
		Target: &pb.EndpointIdentity{ClientId: Target, BackendKind: "directory"},
		Route:  &pb.RouteIdentity{RouteId: UUID(4), Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY}, Torrent: Tree().Torrent,
		Requested: indices(0, 2, 5, 5), Baseline: baseline(), Delta: indices(0, 0, 2, 2, 5, 5),
		Files: []*pb.ManifestFile{file(0), present, file(2), padding, link},
		Artifacts: []*pb.ManifestArtifact{
			{Kind: pb.ArtifactKind_ARTIFACT_KIND_METAINFO, Payload: "aux/metainfo", Bytes: 100, Sha256: Hash(18)},
			{Kind: pb.ArtifactKind_ARTIFACT_KIND_PARTFILE, Payload: "aux/partfile", Bytes: 100, Sha256: Hash(19), Partfile: &pb.PartfileFormat{Format: "libtorrent", PieceBytes: 1 << 20, PieceCount: 10}}},
		Fingerprints: &pb.ManifestFingerprints{TreeSha256: Hash(20), InfoSha256: Hash(21)},
		Totals:       &pb.ManifestTotals{Files: 5, PayloadFiles: 2, LogicalBytes: 500, PayloadLogicalBytes: 200, PayloadAllocatedBytes: 180}, CreatedAt: at(18)}
}

// Marker is the marker of a job directory.
func Marker() *pb.ReadyMarker {
	return &pb.ReadyMarker{Format: 1, JobId: Job, Attempt: 1, ManifestSha256: Hash(10), ManifestBytes: 2000, PayloadFiles: 2, PayloadLogicalBytes: 200, WrittenAt: at(19)}
}
