// Package validtest makes valid messages of the daemon protocol for tests: one of every payload, operation, step,
// evidence, list and kind of route, with every field filled that may be filled together.
package validtest

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame/canonical"
)

// Client and Target are the clients of the messages; Token is the token of the registration.
const (
	Client = "0b7f3c52-8f0e-4a43-9a38-0000000000c1"
	Target = "0b7f3c52-8f0e-4a43-9a38-0000000000c2"
	Job    = "0b7f3c52-8f0e-4a43-9a38-0000000000a1"
	Token  = "token-of-a-test-with-32-bytes-or-more"
)

// UUID returns the n-th of a row of UUIDs.
func UUID(n int) string { return fmt.Sprintf("4f1d1d0e-8a90-4c6e-b1a0-%012d", n) }

// Hash returns the n-th of a row of digests.
func Hash(n int) string { return fmt.Sprintf("%064x", n+0xabc000) }

func at(n int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 1, 2, 3, 4, n, 5000, time.UTC))
}

func seconds(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }

// Version is version 2.0.
func Version() *pb.ProtocolVersion { return &pb.ProtocolVersion{Major: 2} }

// Identity is that of a torrent of both versions.
func Identity() *pb.ResourceIdentity {
	return &pb.ResourceIdentity{InfohashV1: Hash(1)[24:], InfohashV2: Hash(2), TreeFingerprint: Hash(3), DisplayName: "A film (2020)"}
}

// Resource is a resource of the client.
func Resource(client string) *pb.ResourceRef {
	return &pb.ResourceRef{ClientId: client, ResourceId: "torrent:1", Identity: Identity()}
}

// Failure is a retryable error.
func Failure() *pb.ErrorDetail {
	return &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NO_SPACE, Retryable: true, Message: "The destination has too little room.",
		Details: map[string]string{"needed_bytes": "100", "path": "films/a.mkv"}, RetryAfter: seconds(30)}
}

// Progress is half of a step.
func Progress() *pb.Progress {
	return &pb.Progress{FractionComplete: 0.5, OverallFractionComplete: 0.25,
		Bytes:      &pb.ByteCounters{Known: true, LogicalTotal: 100, LogicalDone: 50, AllocatedTotal: 90, AllocatedDone: 45},
		FilesTotal: 4, FilesDone: 2, LastContentMovementAt: at(9), BytesPerSecond: 1000}
}

// Cursor is that of a running job.
func Cursor(job string) *pb.JobCursor {
	return &pb.JobCursor{JobId: job, Revision: 3, LastEventSequence: 5, State: pb.JobState_JOB_STATE_RUNNING, Committed: true,
		Role: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, DefinitionSha256: canonical.Sum(Definition()), ActiveStep: pb.JobStep_JOB_STEP_COMMIT,
		OpenCommandIds: []string{UUID(1)}, SettledCommandIds: []string{UUID(2)}, OutboxFirstSequence: 4, CommitEvidenceSha256: Hash(5)}
}

// Limits are the defaults.
func Limits() *pb.Limits {
	return &pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxChunkEntries: 500, MaxOutboundEnvelopes: 256, MaxOutboundBytes: 8 << 20, MaxActiveCursors: 256}
}

// Profile is that of a usual Linux file system.
func Profile() *pb.FilesystemProfile {
	return &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, WindowsNames: true, MaxFileBytes: 1 << 44, MaxNameBytes: 255,
		SupportsSparse: true, SupportsHardlink: true, SupportsReflink: true, SupportsNoreplaceRename: true}
}

func indices(pairs ...uint32) *pb.IndexSet {
	s := new(pb.IndexSet)
	for i := 0; i < len(pairs); i += 2 {
		s.Ranges = append(s.Ranges, &pb.IndexRange{First: pairs[i], Last: pairs[i+1]})
	}
	return s
}

func baseline() *pb.TargetBaseline {
	return &pb.TargetBaseline{TargetContentRevision: Hash(6), Present: indices(1, 1), FreeBytes: 1 << 40, BackendHasResource: true, FilesystemProfile: Profile()}
}

// Definition is that of a TRANSFER with everything that other operations have, too.
func Definition() *pb.JobDefinition {
	return &pb.JobDefinition{JobId: Job, Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, ParentJobId: UUID(3), Source: Resource(Client),
		TargetClientId: Target, RouteId: UUID(4), Requested: indices(0, 2, 5, 5), SourceContentRevision: Hash(7), Baseline: baseline(),
		Destination: &pb.Destination{ContentRootId: "films", RelativeDir: "new/films", Category: "films", Labels: []string{"a", "b"}, PreserveLayout: true},
		Policies: &pb.JobPolicies{VerifyLevel: pb.VerifyLevel_VERIFY_LEVEL_STANDARD, SparsePolicy: pb.SparsePolicy_SPARSE_POLICY_PREFER,
			PartfileMode: pb.PartfileMode_PARTFILE_MODE_AUTO, ConflictPolicy: pb.ConflictPolicy_CONFLICT_POLICY_ADOPT_IDENTICAL,
			StageMethods:       []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK, pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE},
			MaterializeMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME},
			Quiesce:            pb.QuiescePolicy_QUIESCE_POLICY_IF_INCOMPLETE, Activation: pb.ActivationPolicy_ACTIVATION_POLICY_START,
			KeepFreeBytes: 1 << 30, TrashRetention: seconds(7 * 24 * 3600), Cleanup: pb.CleanupPolicy_CLEANUP_POLICY_DISCARD_JOB_FILES},
		RequiredCapabilities: []string{"content.hardlink", "route.shared_directory"}, CreatedAt: at(1),
		Eviction: &pb.EvictionBasis{TargetCommit: commit(), MaxVerifyAge: seconds(24 * 3600), AllowLibraryLinks: true}}
}

func commit() *pb.CommitEvidence {
	return &pb.CommitEvidence{CommitId: UUID(5), JobId: Job, ClientId: Target, VerifyEvidenceSha256: Hash(8), Resource: Resource(Target),
		ContentRevision: Hash(9), ActivatedAt: at(2), ActivationState: pb.BackendState_BACKEND_STATE_SEEDING}
}

// Evidence returns one of every step.
func Evidence() map[pb.JobStep]*pb.StepEvidence {
	dir := Job + "-1"
	methods := map[string]uint32{"HARDLINK": 2, "COPY_SPARSE": 1}
	return map[pb.JobStep]*pb.StepEvidence{
		pb.JobStep_JOB_STEP_STAGE: {Evidence: &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{JobDir: dir, ManifestSha256: Hash(10), ManifestBytes: 2000,
			PayloadFiles: 3, PayloadLogicalBytes: 100, PayloadAllocatedBytes: 90, Methods: methods, ContentRevision: Hash(7)}}},
		pb.JobStep_JOB_STEP_TRANSFER: {Evidence: &pb.StepEvidence_Transfer{Transfer: &pb.TransferEvidence{JobDir: dir, ManifestSha256: Hash(10), Files: 3,
			LogicalBytes: 100, AllocatedBytes: 90, CarrierDetail: "linked"}}},
		pb.JobStep_JOB_STEP_MATERIALIZE: {Evidence: &pb.StepEvidence_Materialize{Materialize: &pb.MaterializeEvidence{ProvenanceSha256: Hash(11), Methods: methods,
			FilesCreated: 3, FilesAlreadyPresent: 1, PaddingSynthesized: 1, PartfileResult: pb.PartfileMode_PARTFILE_MODE_DROP, SparseKept: 1, SparseLost: 1}}},
		pb.JobStep_JOB_STEP_VERIFY: {Evidence: &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{Level: pb.VerifyLevel_VERIFY_LEVEL_STRICT, FilesChecked: 4,
			BytesRead: 100, PiecesChecked: 10, PiecesGood: 10, PiecesUnselectedSkipped: 1, BackendConfirmed: true, ManifestSha256: Hash(10),
			ContentRevision: Hash(9), VerifiedAt: at(3)}}},
		pb.JobStep_JOB_STEP_COMMIT: {Evidence: &pb.StepEvidence_Commit{Commit: commit()}},
		pb.JobStep_JOB_STEP_RELEASE: {Evidence: &pb.StepEvidence_Release{Release: &pb.ReleaseEvidence{ReleasedResourceId: "torrent:1", TrashEntries: 4,
			TrashBytes: 100, SharedNamesKept: 1, ReleasedAt: at(4)}}},
		pb.JobStep_JOB_STEP_PURGE: {Evidence: &pb.StepEvidence_Purge{Purge: &pb.PurgeEvidence{EntriesRemoved: 4, BytesFreed: 100, EntriesSkippedChanged: 1}}},
	}
}

// Event returns one of the kind, under the step COMMIT.
func Event(kind pb.JobEventKind) *pb.JobEvent {
	states := map[pb.JobEventKind]pb.JobState{
		pb.JobEventKind_JOB_EVENT_KIND_STALLED:        pb.JobState_JOB_STATE_STALLED,
		pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED: pb.JobState_JOB_STATE_ASSIGNED,
		pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED:    pb.JobState_JOB_STATE_ASSIGNED,
		pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED: pb.JobState_JOB_STATE_CANCELLED,
		pb.JobEventKind_JOB_EVENT_KIND_HELD:           pb.JobState_JOB_STATE_MANUAL,
	}
	e := &pb.JobEvent{EventId: UUID(10 + int(kind)), JobId: Job, Sequence: uint64(kind), ResultingRevision: 3, CommandId: UUID(1), Kind: kind,
		Step: pb.JobStep_JOB_STEP_COMMIT, State: states[kind], Committed: true, Progress: Progress(), Error: Failure(),
		Evidence: Evidence()[pb.JobStep_JOB_STEP_COMMIT], OccurredAt: at(5)}
	if e.State == 0 {
		e.State = pb.JobState_JOB_STATE_RUNNING
	}
	return e
}

// Routes returns a route of every kind.
func Routes() []*pb.Route {
	route := func(kind pb.RouteKind, source, target *pb.RouteEndpoint) *pb.Route {
		return &pb.Route{RouteId: UUID(4), Kind: kind, SourceClientId: Client, TargetClientId: Target, Source: source, Target: target,
			Options:     &pb.RouteOptions{BandwidthBytesPerSecond: 1000, Schedule: "night", MaxParallelJobs: 2},
			DisplayName: "box to home"}
	}
	shared := func(root string) *pb.RouteEndpoint {
		return &pb.RouteEndpoint{RootId: root, Endpoint: &pb.RouteEndpoint_Shared{Shared: &pb.SharedEndpoint{SharedMarker: "marker"}}}
	}
	rsync := func(root string) *pb.RouteEndpoint {
		return &pb.RouteEndpoint{RootId: root, Endpoint: &pb.RouteEndpoint_Rsync{Rsync: &pb.RsyncEndpoint{Host: "box", Port: 22, User: "u", HostKey: "ssh-ed25519 AAAA", KeyRef: "box"}}}
	}
	syncthing := func(root string) *pb.RouteEndpoint {
		return &pb.RouteEndpoint{RootId: root, Endpoint: &pb.RouteEndpoint_Syncthing{Syncthing: &pb.SyncthingEndpoint{DeviceId: "D", FolderId: "f"}}}
	}
	return []*pb.Route{
		route(pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, shared("outbox"), shared("receive")),
		route(pb.RouteKind_ROUTE_KIND_RSYNC_SSH, rsync("outbox"), rsync("receive")),
		route(pb.RouteKind_ROUTE_KIND_SYNCTHING, syncthing("outbox"), syncthing("receive")),
	}
}

// Update is one of a route that is ready.
func Update(sequence uint64) *pb.RouteUpdate {
	return &pb.RouteUpdate{UpdateId: UUID(20 + int(sequence)), RouteId: UUID(4), CreationCommandId: UUID(7), Sequence: sequence, CommandId: UUID(7),
		Side: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, State: pb.RouteState_ROUTE_STATE_READY,
		Probe: &pb.ProbeResult{NonceSeen: strings.Repeat("ab", 16), Sha256: Hash(12), SameFilesystem: true, FreeBytes: 1 << 40, SparseOk: true,
			NoreplaceRenameOk: true, DurableRename: true, Profile: Profile()},
		Error: Failure(), ObservedAt: at(6)}
}
