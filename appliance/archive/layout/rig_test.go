package layout_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/layout"
)

const (
	jobID    = "0190c5f0-0000-7000-8000-000000000001"
	otherJob = "0190c5f0-0000-7000-8000-000000000002"
	sourceID = "0190c5f0-0000-7000-8000-00000000000a"
	targetID = "0190c5f0-0000-7000-8000-00000000000b"
	routeID  = "0190c5f0-0000-7000-8000-00000000000c"
	revision = "00000000000000000000000000000000000000000000000000000000000000aa"
	metainfo = "d8:announce3:xyz4:infod4:name1:tee"
	info     = "d4:name1:te"

	manifestInvalid = pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID
	integrity       = pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)

func sum(b string) string {
	s := sha256.Sum256([]byte(b))
	return hex.EncodeToString(s[:])
}

func mustCode(t *testing.T, what string, err error, want beneath.Code) {
	t.Helper()
	if got := beneath.CodeOf(err); got != want {
		t.Errorf("%s: code %v, want %v (%v)", what, got, want, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func indices(list ...uint32) *pb.IndexSet {
	s := &pb.IndexSet{}
	for _, i := range list {
		s.Ranges = append(s.Ranges, &pb.IndexRange{First: i, Last: i})
	}
	return s
}

func definition() *pb.JobDefinition {
	return &pb.JobDefinition{
		JobId:     jobID,
		Operation: pb.JobOperation_JOB_OPERATION_TRANSFER,
		Source: &pb.ResourceRef{ClientId: sourceID, ResourceId: "tree:t",
			Identity: &pb.ResourceIdentity{InfohashV2: sum(info), DisplayName: "t"}},
		TargetClientId:        targetID,
		RouteId:               routeID,
		Requested:             indices(0, 2, 4, 5),
		SourceContentRevision: revision,
		Baseline: &pb.TargetBaseline{Present: indices(2), FilesystemProfile: &pb.FilesystemProfile{CaseSensitive: true,
			NormalizationPreserving: true, MaxNameBytes: 255}},
	}
}

var payload = map[string]string{"payload/00000000": "first file", "payload/00000005": "last", "aux/metainfo": metainfo}

// manifest describes payload: two files to transfer, a link, one that the target has, padding and one nobody wants.
func manifest() *pb.TransferManifest {
	d := definition()
	old := timestamppb.New(now.Add(-1000 * time.Hour))
	file := func(i uint32, path string, kind pb.FileKind, action pb.DeltaAction, content string) *pb.ManifestFile {
		f := &pb.ManifestFile{Index: i, Path: path, Kind: kind, Action: action, LogicalBytes: uint64(len(content)), AllocatedBytes: 4096, Mtime: old}
		if kind == pb.FileKind_FILE_KIND_REGULAR && action != pb.DeltaAction_DELTA_ACTION_OMIT {
			f.Sha256 = sum(content)
		}
		if action == pb.DeltaAction_DELTA_ACTION_TRANSFER && kind == pb.FileKind_FILE_KIND_REGULAR {
			f.Payload = layout.PayloadName(i)
		}
		return f
	}
	const regular, transfer = pb.FileKind_FILE_KIND_REGULAR, pb.DeltaAction_DELTA_ACTION_TRANSFER
	link := file(4, "t/link", pb.FileKind_FILE_KIND_SYMLINK, transfer, "")
	link.SymlinkTarget = "t/a"
	m := &pb.TransferManifest{
		Format: 1, JobId: jobID, Attempt: 3, DefinitionSha256: frame.Digest(d),
		Source:    &pb.EndpointIdentity{ClientId: sourceID, Resource: d.Source, ContentRevision: revision, BackendKind: "directory"},
		Target:    &pb.EndpointIdentity{ClientId: targetID},
		Route:     &pb.RouteIdentity{RouteId: routeID, Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY},
		Torrent:   &pb.TorrentFacts{MetaVersion: 2, PieceBytes: 16384, PieceCount: 1, Name: "t", MultiFile: true},
		Requested: d.Requested, Baseline: d.Baseline, Delta: indices(0, 4, 5),
		Files: []*pb.ManifestFile{
			file(0, "t/b", regular, transfer, payload["payload/00000000"]),
			file(1, "t/.pad/6", pb.FileKind_FILE_KIND_PADDING, pb.DeltaAction_DELTA_ACTION_SYNTHESIZE, "......"),
			file(2, "t/a", regular, pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET, "at the target"),
			file(3, "t/unwanted", regular, pb.DeltaAction_DELTA_ACTION_OMIT, "unwanted"),
			link,
			file(5, "t/é", regular, transfer, payload["payload/00000005"]),
		},
		Artifacts: []*pb.ManifestArtifact{{Kind: pb.ArtifactKind_ARTIFACT_KIND_METAINFO, Payload: layout.Metainfo, Bytes: uint64(len(metainfo)), Sha256: sum(metainfo)}},
		CreatedAt: timestamppb.New(now),
	}
	settle(m)
	return m
}

// settle computes fingerprints and totals.
func settle(m *pb.TransferManifest) {
	m.Fingerprints = &pb.ManifestFingerprints{TreeSha256: layout.TreeFingerprint(m.Files), InfoSha256: sum(info)}
	m.Totals = &pb.ManifestTotals{Files: uint32(len(m.Files))}
	for _, f := range m.Files {
		m.Totals.LogicalBytes += f.LogicalBytes
		if f.Payload != "" {
			m.Totals.PayloadFiles++
			m.Totals.PayloadLogicalBytes += f.LogicalBytes
			m.Totals.PayloadAllocatedBytes += f.AllocatedBytes
		}
	}
}

func expect() layout.Expect {
	return layout.Expect{Definition: definition(), ClientID: targetID, RouteKind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY}
}

// put makes the job directory with its payload.
func put(t *testing.T, r *beneath.Root) {
	t.Helper()
	must(t, layout.CreateJobDir(r, jobID, 3))
	for name, content := range payload {
		beneathtest.Write(t, r, layout.JobDir(jobID, 3)+"/"+name, []byte(content))
	}
}

// seal writes manifest and marker.
func seal(t *testing.T, r *beneath.Root, m *pb.TransferManifest) layout.Written {
	t.Helper()
	w, err := layout.WriteManifest(r, m)
	must(t, err)
	_, err = layout.WriteMarker(r, m, w, now)
	must(t, err)
	return w
}

// staged is a root with a complete job directory, and the path of that directory.
func staged(t *testing.T) (*beneath.Root, string) {
	t.Helper()
	root := t.TempDir()
	r := beneathtest.Open(t, root)
	put(t, r)
	seal(t, r, manifest())
	return r, filepath.Join(root, layout.JobDir(jobID, 3))
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
