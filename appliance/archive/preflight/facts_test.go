package preflight

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

var (
	seedbox = uuid.MustParse("6f1c2f0a-0001-4000-8000-000000000001")
	nas     = uuid.MustParse("6f1c2f0a-0002-4000-8000-000000000002")
)

const (
	revision1 = "00000000000000000000000000000000000000000000000000000000000000a1"
	revision2 = "00000000000000000000000000000000000000000000000000000000000000a2"
	infohash  = "00000000000000000000000000000000000000b1"
)

func peer(no int64, id uuid.UUID, name string, caps ...string) Peer {
	return Peer{Ref: archive.DaemonRef{No: no, ID: id}, Name: name, Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET, Online: true,
		Capabilities: append(caps, archive.CapRouteSharedDirectory), Limits: &pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxActiveCursors: 256}}
}

func regular(index uint32, path string, size uint64) File {
	return File{Index: index, Path: path, Kind: pb.FileKind_FILE_KIND_REGULAR, Logical: size, Allocated: size, Completed: size, Disk: size,
		Present: pb.DiskPresence_DISK_PRESENCE_FINAL_NAME, Selected: true, Links: 1, Mtime: time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro()}
}

// aTree is a torrent of three files of 100 bytes in pieces of 64, so that neighbours share pieces.
func aTree(client uuid.UUID, resource, revision string) *Tree {
	t := &Tree{Revision: revision, Header: &pb.ContentTree{Resource: &pb.ResourceRef{ClientId: client.String(), ResourceId: resource,
		Identity: &pb.ResourceIdentity{InfohashV1: infohash, DisplayName: "Show"}}, ContentRevision: revision,
		Torrent:           &pb.TorrentFacts{MetaVersion: 1, PieceBytes: 64, PieceCount: 5, Name: "Show", MultiFile: true},
		BackendState:      pb.BackendState_BACKEND_STATE_SEEDING,
		MetainfoAvailable: true}}
	for i := range uint32(3) {
		f := regular(i, fmt.Sprintf("Show/e%d.mkv", i), 100)
		f.First, f.Last = i*100/64, (i*100+99)/64
		t.Files = append(t.Files, f)
	}
	return t
}

// aPlain is content without a torrent.
func aPlain(client uuid.UUID, resource, revision, fingerprint string) *Tree {
	t := aTree(client, resource, revision)
	t.Header.Torrent, t.Header.MetainfoAvailable = nil, false
	t.Header.BackendState = pb.BackendState_BACKEND_STATE_NOT_MANAGED
	t.Header.Resource.Identity = &pb.ResourceIdentity{TreeFingerprint: fingerprint, DisplayName: "Show"}
	return t
}

func storageRoot(id string, kind pb.RootKind, free uint64, same ...string) *pb.StorageEntry {
	return &pb.StorageEntry{RootId: id, RootKind: kind, TotalBytes: 1 << 40, FreeBytes: free, Writable: true, SameFilesystemAs: same,
		Profile: &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, MaxNameBytes: 255, SupportsSparse: true,
			SupportsHardlink: true, SupportsNoreplaceRename: true}}
}

// good are the facts of a transfer that passes.
func good() *Facts {
	f := &Facts{Operation: transfer,
		Source: peer(1, seedbox, "seedbox", archive.CapHardlink), Target: peer(2, nas, "nas", archive.CapHardlink),
		Route: &RouteFacts{No: 1, Name: "home", Ready: true, Message: &pb.Route{RouteId: uuid.NewString(), Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY,
			SourceClientId: seedbox.String(), TargetClientId: nas.String(), Source: &pb.RouteEndpoint{RootId: "outbox"},
			Target: &pb.RouteEndpoint{RootId: "receive"}}},
		Resource: &pb.ResourceSummary{ContentRootId: "data", RelativeDir: "tv"}, SourceTree: aTree(seedbox, "r1", revision1),
		SourceStorage: []*pb.StorageEntry{storageRoot("data", pb.RootKind_ROOT_KIND_CONTENT, 1<<40, "outbox"),
			storageRoot("outbox", pb.RootKind_ROOT_KIND_OUTBOX, 1<<40, "data")},
		TargetStorage: []*pb.StorageEntry{storageRoot("archive", pb.RootKind_ROOT_KIND_CONTENT, 1<<40, "receive"),
			storageRoot("receive", pb.RootKind_ROOT_KIND_RECEIVE, 1<<40, "archive")},
		Requested:    archive.Span(0, 3),
		Destination:  &pb.Destination{ContentRootId: "archive", RelativeDir: "tv", PreserveLayout: true},
		MaxVerifyAge: archive.DefaultMaxVerifyAge}
	completePolicies(f, nil)
	return f
}

// goodAdoption are the facts of an adoption that passes.
func goodAdoption() *Facts {
	f := good()
	f.Operation, f.Route = adopt, nil
	f.Source = f.Target
	f.SourceTree = aTree(nas, "r2", revision2)
	f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_NOT_MANAGED
	f.Resource = &pb.ResourceSummary{ContentRootId: "archive", RelativeDir: "tv"}
	f.SourceStorage = f.TargetStorage
	return f
}

// goodEviction are the facts of an eviction that passes.
func goodEviction() *Facts {
	f := good()
	f.Operation, f.Route, f.Destination = evict, nil, nil
	f.Source.Capabilities = append(f.Source.Capabilities, archive.CapEviction)
	f.SourceStorage, f.TargetStorage = nil, nil
	f.TargetTree = aTree(nas, "r2", revision2)
	f.TargetResource = &pb.ResourceSummary{Resource: f.TargetTree.Header.Resource, ContentRootId: "archive", RelativeDir: "tv"}
	f.Commit = &pb.CommitEvidence{ClientId: nas.String(), Resource: f.TargetTree.Header.Resource, ContentRevision: revision2}
	f.ParentID = uuid.NewString()
	return f
}

// conclude applies all checks.
func conclude(f *Facts) *pb.ErrorDetail {
	if d := run(registryChecks, f); d != nil {
		return d
	}
	return run(contentChecks, f)
}
