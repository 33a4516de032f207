package preflight

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

func TestGoodFactsPass(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]*Facts{"transfer": good(), "adoption": goodAdoption(), "eviction": goodEviction()} {
		if d := conclude(f); d != nil {
			t.Errorf("%s: %v", name, d)
		}
	}
}

// variant is a change of good facts and what comes of it; code 0 means that they still pass.
type variant struct {
	check int
	name  string
	from  func() *Facts
	edit  func(*Facts)
	code  pb.ErrorCode
	text  string
}

const (
	ok                 pb.ErrorCode = 0
	unavailable                     = pb.ErrorCode_ERROR_CODE_UNAVAILABLE
	invalid                         = pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT
	unsupported                     = pb.ErrorCode_ERROR_CODE_UNSUPPORTED
	notReady                        = pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY
	notFound                        = pb.ErrorCode_ERROR_CODE_NOT_FOUND
	busy                            = pb.ErrorCode_ERROR_CODE_BUSY
	staleFingerprint                = pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT
	resourceConflict                = pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT
	resourceIncomplete              = pb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE
	unsafeState                     = pb.ErrorCode_ERROR_CODE_UNSAFE_STATE
	pathUnsafe                      = pb.ErrorCode_ERROR_CODE_PATH_UNSAFE
	pathConflict                    = pb.ErrorCode_ERROR_CODE_PATH_CONFLICT
	filesystemLimit                 = pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT
	partfileMismatch                = pb.ErrorCode_ERROR_CODE_PARTFILE_MISMATCH
	unsupportedFormat               = pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT
	noSpace                         = pb.ErrorCode_ERROR_CODE_NO_SPACE
	denied                          = pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED
)

func drop(list []string, s string) (out []string) {
	for _, have := range list {
		if have != s {
			out = append(out, have)
		}
	}
	return out
}

// atTarget gives the target the same resource at the destination, with its files 0 to n-1 complete.
func atTarget(f *Facts, n int) {
	f.TargetTree = aTree(nas, "r2", revision2)
	f.TargetTree.Header.BackendState = pb.BackendState_BACKEND_STATE_STOPPED_INCOMPLETE
	for i := n; i < len(f.TargetTree.Files); i++ {
		f.TargetTree.Files[i].Completed = 50
	}
	f.TargetResource = &pb.ResourceSummary{Resource: f.TargetTree.Header.Resource, ContentRootId: "archive", RelativeDir: "tv"}
}

func occupy(f *Facts, path string, size uint64) {
	f.Occupant = &pb.ResourceSummary{ContentRootId: "archive", RelativeDir: "tv"}
	f.OccupantTree = aPlain(nas, "r9", revision2, "")
	f.OccupantTree.Files = []File{regular(0, path, size)}
}

var variants = []variant{
	{1, "source offline", good, func(f *Facts) { f.Source.Online = false }, unavailable, "seedbox is offline"},
	{1, "target offline", good, func(f *Facts) { f.Target.Online = false }, unavailable, "nas is offline"},
	{1, "source can only be a target", good, func(f *Facts) { f.Source.Role = pb.ClientRole_CLIENT_ROLE_TARGET }, invalid, "seedbox cannot be the source"},
	{1, "source is only a source", good, func(f *Facts) { f.Source.Role = pb.ClientRole_CLIENT_ROLE_SOURCE }, ok, ""},
	{1, "target can only be a source", good, func(f *Facts) { f.Target.Role = pb.ClientRole_CLIENT_ROLE_SOURCE }, invalid, "nas cannot be the target"},
	{1, "target is paused", good, func(f *Facts) { f.Target.Paused = true }, unavailable, "two databases"},
	{1, "one daemon", good, func(f *Facts) { f.Source = f.Target }, invalid, "two daemons"},
	{1, "adopting daemon can only be a source", goodAdoption, func(f *Facts) { f.Target.Role = pb.ClientRole_CLIENT_ROLE_SOURCE }, invalid, "cannot be the target"},

	{2, "source lacks the route's capability", good, func(f *Facts) { f.Source.Capabilities = drop(f.Source.Capabilities, archive.CapRouteSharedDirectory) }, unsupported, "seedbox does not announce route.shared_directory"},
	{2, "target lacks the route's capability", good, func(f *Facts) { f.Target.Capabilities = drop(f.Target.Capabilities, archive.CapRouteSharedDirectory) }, unsupported, "nas does not announce"},
	{2, "sparse required, not announced", good, func(f *Facts) { f.Policies.SparsePolicy = pb.SparsePolicy_SPARSE_POLICY_REQUIRE }, unsupported, "content.sparse"},
	{2, "sparse required, announced", good, func(f *Facts) {
		f.Policies.SparsePolicy = pb.SparsePolicy_SPARSE_POLICY_REQUIRE
		f.Source.Capabilities = append(f.Source.Capabilities, archive.CapSparse)
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapSparse)
	}, ok, ""},
	{2, "chosen method not announced", good, func(f *Facts) {
		completePolicies(f, &pb.JobPolicies{StageMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK}})
	}, unsupported, "seedbox does not announce content.reflink"},
	{2, "eviction not announced", goodEviction, func(f *Facts) { f.Source.Capabilities = drop(f.Source.Capabilities, archive.CapEviction) }, unsupported, "resource.eviction"},
	{2, "eviction is not asked of the target", goodEviction, func(f *Facts) { f.Target.Capabilities = nil }, ok, ""},

	{3, "no route", good, func(f *Facts) { f.Route = nil }, notFound, "route does not exist"},
	{3, "route not ready", good, func(f *Facts) { f.Route.Ready, f.Route.Why = false, "the target nas is still PROBING" }, notReady, "home is not ready: the target nas is still PROBING"},
	{3, "route between others", good, func(f *Facts) { f.Route.Message.TargetClientId = uuid.NewString() }, invalid, "does not lead from"},

	{4, "reserved", good, func(f *Facts) { f.Holder = &Holder{Job: seedbox, What: "the same torrent"} }, busy, seedbox.String() + " holds the same torrent"},
	{4, "target is full", good, func(f *Facts) { f.Target.ActiveJobs = 256 }, busy, "takes part in 256 jobs"},
	{4, "one below the limit", good, func(f *Facts) { f.Target.ActiveJobs, f.Source.ActiveJobs = 255, 255 }, ok, ""},

	{5, "no resource", good, func(f *Facts) { f.Resource = nil }, notFound, "seedbox does not have the resource"},
	{5, "changed since the preview", good, func(f *Facts) { f.Previewed, f.PreviewedSource = true, revision2 }, staleFingerprint, "seedbox has changed since the preview"},
	{5, "as previewed", good, func(f *Facts) { f.Previewed, f.PreviewedSource = true, revision1 }, ok, ""},
	{5, "no identity", good, func(f *Facts) { f.SourceTree.Header.Resource.Identity = &pb.ResourceIdentity{DisplayName: "x"} }, unsupportedFormat, "no identity"},

	{6, "target changed since the preview", good, func(f *Facts) {
		atTarget(f, 1)
		f.Previewed, f.PreviewedSource, f.PreviewedTarget = true, revision1, revision1
	}, staleFingerprint, "nas has of the content has changed"},
	{6, "appeared since the preview", good, func(f *Facts) { atTarget(f, 1); f.Previewed, f.PreviewedSource = true, revision1 }, staleFingerprint, "nas"},
	{6, "target as previewed", good, func(f *Facts) {
		atTarget(f, 1)
		f.Previewed, f.PreviewedSource, f.PreviewedTarget = true, revision1, revision2
	}, ok, ""},
	{6, "identities disagree", good, func(f *Facts) {
		atTarget(f, 1)
		f.SourceTree.Header.Resource.Identity.InfohashV2 = strings.Repeat("1", 64)
		f.TargetTree.Header.Resource.Identity = &pb.ResourceIdentity{InfohashV1: infohash, InfohashV2: strings.Repeat("2", 64)}
	}, resourceConflict, "differs in another"},
	{6, "in another root", good, func(f *Facts) { atTarget(f, 1); f.TargetResource.ContentRootId = "old" }, resourceConflict, "root old, directory \"tv\"; adopt it"},
	{6, "in another directory", good, func(f *Facts) { atTarget(f, 1); f.TargetResource.RelativeDir = "films" }, resourceConflict, "films"},
	{6, "another selection", good, func(f *Facts) { atTarget(f, 1); f.TargetTree.Files[2].Selected = false }, resourceConflict, "e2.mkv\" is not wanted there"},
	{6, "selection of content that nobody manages", good, func(f *Facts) {
		atTarget(f, 1)
		f.TargetTree.Files[2].Selected = false
		f.TargetTree.Header.BackendState = pb.BackendState_BACKEND_STATE_NOT_MANAGED
	}, ok, ""},
	{6, "its client is checking", good, func(f *Facts) {
		atTarget(f, 1)
		f.TargetTree.Header.BackendState = pb.BackendState_BACKEND_STATE_CHECKING
	}, unsafeState, "nas is at work on this content (CHECKING)"},
	{6, "nothing to bring", good, func(f *Facts) { atTarget(f, 3) }, resourceConflict, "every requested file already; adopt it"},
	{6, "name taken by other content", good, func(f *Facts) { occupy(f, "Show/e1.mkv", 7) }, pathConflict, "7 bytes of 2025-01-02 03:04:05 UTC there, 100 bytes of"},
	{6, "name taken by a file of the same size", good, func(f *Facts) { occupy(f, "Show/e1.mkv", 100) }, ok, ""},
	{6, "the same, not to be adopted", good, func(f *Facts) {
		occupy(f, "Show/e1.mkv", 100)
		f.Policies.ConflictPolicy = pb.ConflictPolicy_CONFLICT_POLICY_FAIL
	}, pathConflict, "e1.mkv"},
	{6, "directory taken, names free", good, func(f *Facts) { occupy(f, "Show/other.mkv", 7) }, ok, ""},
	{6, "keeper lost it", goodEviction, func(f *Facts) { f.TargetTree = nil }, unsafeState, "nas no longer has the content"},
	{6, "keeper has a part", goodEviction, func(f *Facts) { f.TargetTree.Files[1].Completed = 99 }, unsafeState, "e1.mkv\", which daemon nas does not keep"},
	{6, "source has more than was requested", goodEviction, func(f *Facts) { f.Requested = archive.Span(0, 2) }, unsafeState, "e2.mkv"},
	{6, "what is not there is not lost", goodEviction, func(f *Facts) {
		f.Requested = archive.Span(0, 2)
		f.SourceTree.Files[2].Completed, f.SourceTree.Files[2].Disk, f.SourceTree.Files[2].Selected = 0, 0, false
	}, ok, ""},
	{6, "fragments of a file that is not wanted", goodEviction, func(f *Facts) {
		f.Requested = archive.Span(0, 2)
		f.SourceTree.Files[2].Completed, f.SourceTree.Files[2].Disk, f.SourceTree.Files[2].Selected = 10, 20, false
	}, ok, ""},
	{6, "a wanted file that is incomplete", goodEviction, func(f *Facts) {
		f.Requested = archive.Span(0, 2)
		f.SourceTree.Files[2].Completed, f.SourceTree.Files[2].Disk = 10, 20
	}, unsafeState, "e2.mkv"},
	{6, "commit of another daemon", goodEviction, func(f *Facts) { f.Commit.ClientId = seedbox.String() }, invalid, "commit is not of daemon nas"},
	{6, "commit of other content", goodEviction, func(f *Facts) {
		f.Commit.Resource = proto.CloneOf(f.Commit.Resource)
		f.Commit.Resource.Identity = &pb.ResourceIdentity{InfohashV1: strings.Repeat("c", 40)}
	}, resourceConflict, "is not what the job has brought"},
	{6, "no commit", goodEviction, func(f *Facts) { f.Commit = nil }, invalid, "rests on the commit"},

	{7, "nothing requested", good, func(f *Facts) { f.Requested = archive.IndexSet{} }, invalid, "no file is requested"},
	{7, "index beyond the tree", good, func(f *Facts) { f.Requested = archive.Span(0, 4) }, invalid, "no file 3"},
	{7, "padding", good, func(f *Facts) { f.SourceTree.Files[1].Kind = pb.FileKind_FILE_KIND_PADDING }, invalid, "file 1 is padding"},
	{7, "symbolic link", good, func(f *Facts) { f.SourceTree.Files[1].Kind = pb.FileKind_FILE_KIND_SYMLINK }, unsupportedFormat, "e1.mkv\" is a symbolic link"},
	{7, "incomplete", good, func(f *Facts) { f.SourceTree.Files[1].Completed = 99 }, resourceIncomplete, "e1.mkv\" is not complete at daemon seedbox: 99 of 100"},
	{7, "not under its final name", good, func(f *Facts) { f.SourceTree.Files[1].Present = pb.DiskPresence_DISK_PRESENCE_INCOMPLETE_NAME }, resourceIncomplete, "e1.mkv"},
	{7, "empty file", good, func(f *Facts) {
		f.SourceTree.Files[2].Logical, f.SourceTree.Files[2].Completed, f.SourceTree.Files[2].Present = 0, 0, pb.DiskPresence_DISK_PRESENCE_ABSENT
	}, ok, ""},
	{7, "adopting a file that is short", goodAdoption, func(f *Facts) { f.SourceTree.Files[1].Disk = 99 }, resourceIncomplete, "99 of 100"},
	{7, "adopting what nobody has hashed yet", goodAdoption, func(f *Facts) { f.SourceTree.Files[1].Completed = 0 }, ok, ""},

	{8, "checking", good, func(f *Facts) { f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_CHECKING }, unsafeState, "seedbox is in state CHECKING"},
	{8, "moving", good, func(f *Facts) { f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_MOVING }, unsafeState, "MOVING"},
	{8, "downloading", good, func(f *Facts) { f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_DOWNLOADING }, unsafeState, "DOWNLOADING"},
	{8, "error", good, func(f *Facts) { f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_ERROR }, unsafeState, "ERROR"},
	{8, "not told", good, func(f *Facts) { f.SourceTree.Header.BackendState = 0 }, unsafeState, "UNSPECIFIED"},
	{8, "stopped", good, func(f *Facts) { f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_STOPPED_COMPLETE }, ok, ""},
	{8, "stopped incomplete", good, func(f *Facts) {
		f.SourceTree.Header.BackendState = pb.BackendState_BACKEND_STATE_STOPPED_INCOMPLETE
	}, ok, ""},
	{8, "shared with another entry", goodEviction, func(f *Facts) { f.SourceTree.Header.SharedWith = []string{"r7"} }, unsafeState, "r7"},
	{8, "library links", goodEviction, func(f *Facts) { f.SourceTree.Files[0].Links = 2 }, unsafeState, "e0.mkv\" has 2 names"},
	{8, "library links that may stay", goodEviction, func(f *Facts) { f.SourceTree.Files[0].Links, f.AllowLibraryLinks = 2, true }, ok, ""},

	{9, "unknown content root", good, func(f *Facts) { f.Destination.ContentRootId = "x" }, invalid, "no content root \"x\""},
	{9, "a receive root", good, func(f *Facts) { f.Destination.ContentRootId = "receive" }, invalid, "no content root"},
	{9, "read-only content root", good, func(f *Facts) { f.TargetStorage[0].Writable = false }, denied, "cannot write to content root archive"},
	{9, "content root with an error", good, func(f *Facts) {
		f.TargetStorage[0].Error = &pb.ErrorDetail{Code: unavailable, Message: "not mounted"}
	}, unavailable, "not mounted"},
	{9, "directory that escapes", good, func(f *Facts) { f.Destination.RelativeDir = "../x" }, pathUnsafe, "../x"},
	{9, "path that escapes", good, func(f *Facts) { f.SourceTree.Files[1].Path = "Show/../../x" }, pathUnsafe, "Show/../../x"},
	{9, "path of nobody's file", good, func(f *Facts) {
		f.SourceTree.Files[1].Path, f.Requested = "Show/../../x", archive.Indices(0)
		f.SourceTree.Header.Torrent.V1LayoutAligned = true
	}, ok, ""},
	{9, "a name that Windows refuses", good, func(f *Facts) {
		f.TargetStorage[0].Profile.WindowsNames, f.SourceTree.Files[1].Path = true, "Show/e1: pilot.mkv"
	}, pathUnsafe, "e1: pilot.mkv"},
	{9, "two names that differ by case, target folds", good, func(f *Facts) {
		f.TargetStorage[0].Profile.CaseSensitive, f.SourceTree.Files[1].Path = false, "Show/E0.MKV"
	}, pathConflict, "Show/e0.mkv"},
	{9, "two names that differ by case, target does not", good, func(f *Facts) { f.SourceTree.Files[1].Path = "Show/E0.MKV" }, ok, ""},
	{9, "a name too long", good, func(f *Facts) { f.TargetStorage[0].Profile.MaxNameBytes = 5 }, filesystemLimit, "names of at most 5"},

	{10, "file too large", good, func(f *Facts) { f.TargetStorage[0].Profile.MaxFileBytes = 99 }, filesystemLimit, "file of 100 bytes, the target holds files of at most 99"},
	{10, "file as large as possible", good, func(f *Facts) { f.TargetStorage[0].Profile.MaxFileBytes = 100 }, ok, ""},
	{10, "holes that must stay", good, func(f *Facts) {
		f.Policies.SparsePolicy = pb.SparsePolicy_SPARSE_POLICY_REQUIRE
		f.Source.Capabilities = append(f.Source.Capabilities, archive.CapSparse)
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapSparse)
		f.SourceTree.Files[1].Sparse, f.TargetStorage[0].Profile.SupportsSparse = true, false
	}, pb.ErrorCode_ERROR_CODE_SPARSE_LOST, "e1.mkv"},

	{11, "a neighbour is missing", good, func(f *Facts) { f.Requested = archive.Indices(0) }, partfileMismatch, "piece 1 of file \"Show/e0.mkv\" also holds bytes of file \"Show/e1.mkv\""},
	{11, "the operator accepts DROP", good, func(f *Facts) { f.Requested, f.AcceptDrop = archive.Indices(0), true }, ok, ""},
	{11, "DROP into a torrent client that would start", good, func(f *Facts) {
		f.Requested, f.AcceptDrop = archive.Indices(0), true
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapAddVerified)
	}, partfileMismatch, "leave it stopped"},
	{11, "an aligned layout", good, func(f *Facts) { f.Requested = archive.Indices(0); f.SourceTree.Header.Torrent.V1LayoutAligned = true }, ok, ""},
	{11, "version 2", good, func(f *Facts) { f.Requested = archive.Indices(0); f.SourceTree.Header.Torrent.MetaVersion = 2 }, ok, ""},
	{11, "no torrent", good, func(f *Facts) { f.Requested = archive.Indices(0); f.SourceTree.Header.Torrent = nil }, ok, ""},
	{11, "both sides explode, neighbours complete", good, func(f *Facts) { f.Requested = archive.Indices(0); explodes(f) }, ok, ""},
	{11, "both sides explode, a neighbour is incomplete", good, func(f *Facts) {
		f.Requested = archive.Indices(0)
		explodes(f)
		f.SourceTree.Files[1].Completed = 64
	}, partfileMismatch, "e1.mkv"},
	{11, "both sides explode, a file far away is incomplete", good, func(f *Facts) {
		f.Requested = archive.Indices(0)
		explodes(f)
		f.SourceTree.Files[2].Completed = 64
	}, ok, ""},
	{11, "both sides copy partfiles, one is there", good, func(f *Facts) {
		f.Requested = archive.Indices(0)
		f.Source.Capabilities = append(f.Source.Capabilities, archive.CapPartfileCopy)
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapPartfileCopy)
		f.SourceTree.Header.Partfile = &pb.PartfileFacts{Present: true, Bytes: 1000, PiecesStored: 1}
	}, ok, ""},
	{11, "both sides copy partfiles, none is there", good, func(f *Facts) {
		f.Requested = archive.Indices(0)
		f.Source.Capabilities = append(f.Source.Capabilities, archive.CapPartfileCopy)
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapPartfileCopy)
	}, partfileMismatch, "piece 1"},
	{11, "only the source explodes", good, func(f *Facts) {
		f.Requested = archive.Indices(0)
		f.Source.Capabilities = append(f.Source.Capabilities, archive.CapPartfileExplode)
	}, partfileMismatch, "piece 1"},

	{12, "pure version 2, target cannot", good, version2, unsupportedFormat, "nas cannot hold torrents of version 2"},
	{12, "pure version 2, target can", good, func(f *Facts) { version2(f); f.Target.Capabilities = append(f.Target.Capabilities, archive.CapV2) }, ok, ""},

	{13, "no room", good, func(f *Facts) { f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+299, 1<<30+299 }, noSpace, "nas needs 300 B for receive root receive and content root archive"},
	{13, "just enough", good, func(f *Facts) { f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+300, 1<<30+300 }, ok, ""},
	{13, "less than what stays free", good, func(f *Facts) { f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<29, 1<<29 }, noSpace, "1.0 GiB"},
	{13, "a second copy on the same file system", good, func(f *Facts) {
		f.Policies.MaterializeMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE}
		f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+599, 1<<30+599
	}, noSpace, "600 B"},
	{13, "two file systems, content root full", good, func(f *Facts) { apart(f); f.TargetStorage[0].FreeBytes = 1<<30 + 299 }, noSpace, "content root archive"},
	{13, "two file systems, receive root full", good, func(f *Facts) { apart(f); f.TargetStorage[1].FreeBytes = 1<<30 + 299 }, noSpace, "receive root receive"},
	{13, "two file systems, both just enough", good, func(f *Facts) {
		apart(f)
		f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+300, 1<<30+300
	}, ok, ""},
	{13, "what is there needs no room", good, func(f *Facts) {
		atTarget(f, 2)
		f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+100, 1<<30+100
	}, ok, ""},
	{13, "holes need no room", good, func(f *Facts) {
		f.SourceTree.Files[1].Sparse, f.SourceTree.Files[1].Allocated = true, 10
		f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+210, 1<<30+210
	}, ok, ""},
	{13, "holes that are filled do", good, func(f *Facts) {
		f.SourceTree.Files[1].Sparse, f.SourceTree.Files[1].Allocated = true, 10
		f.Policies.SparsePolicy = pb.SparsePolicy_SPARSE_POLICY_DENSE
		f.TargetStorage[0].FreeBytes, f.TargetStorage[1].FreeBytes = 1<<30+210, 1<<30+210
	}, noSpace, "300 B"},
	{13, "receive root is gone", good, func(f *Facts) { f.TargetStorage = f.TargetStorage[:1] }, notReady, "no longer has the receive root"},
	{13, "receive root is read-only", good, func(f *Facts) { f.TargetStorage[1].Writable = false }, denied, "receive root receive"},
	{13, "no method works", good, func(f *Facts) {
		apart(f)
		f.Policies.MaterializeMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME}
	}, unsupported, "none of the materialize methods"},

	{14, "links take no room", good, func(f *Facts) { f.SourceStorage[1].FreeBytes = 0 }, ok, ""},
	{14, "copies do", good, func(f *Facts) {
		f.Policies.StageMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE}
		f.SourceStorage[1].FreeBytes = 299
	}, noSpace, "seedbox needs 300 B for outbox root outbox"},
	{14, "links are not possible", good, func(f *Facts) {
		f.SourceStorage[0].SameFilesystemAs, f.SourceStorage[1].SameFilesystemAs, f.SourceStorage[1].FreeBytes = nil, nil, 299
	}, noSpace, "outbox"},
	{14, "copies fit", good, func(f *Facts) {
		f.SourceStorage[0].SameFilesystemAs, f.SourceStorage[1].SameFilesystemAs, f.SourceStorage[1].FreeBytes = nil, nil, 300
	}, ok, ""},
	{14, "outbox root is gone", good, func(f *Facts) { f.SourceStorage = f.SourceStorage[:1] }, notReady, "outbox root"},

	{15, "no torrent file, target is a torrent client", good, func(f *Facts) {
		f.SourceTree.Header.MetainfoAvailable = false
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapAddVerified)
	}, unsupportedFormat, "supply the torrent file"},
	{15, "no torrent file, target is a directory", good, func(f *Facts) { f.SourceTree.Header.MetainfoAvailable = false }, ok, ""},
	{15, "no torrent at all, target is a torrent client", good, func(f *Facts) {
		f.SourceTree = aPlain(seedbox, "r1", revision1, strings.Repeat("f", 64))
		f.Target.Capabilities = append(f.Target.Capabilities, archive.CapAddVerified)
	}, unsupportedFormat, "belongs to no torrent"},
}

func explodes(f *Facts) {
	f.Source.Capabilities = append(f.Source.Capabilities, archive.CapPartfileExplode)
	f.Target.Capabilities = append(f.Target.Capabilities, archive.CapPartfileExplode)
}

func version2(f *Facts) {
	f.SourceTree.Header.Torrent.MetaVersion = 2
	f.SourceTree.Header.Resource.Identity = &pb.ResourceIdentity{InfohashV2: strings.Repeat("d", 64), DisplayName: "Show"}
}

func apart(f *Facts) {
	f.TargetStorage[0].SameFilesystemAs, f.TargetStorage[1].SameFilesystemAs = nil, nil
}

func TestEveryCheck(t *testing.T) {
	t.Parallel()
	passed, failed := map[int]int{}, map[int]int{}
	for _, v := range variants {
		f := v.from()
		v.edit(f)
		d := conclude(f)
		name := fmt.Sprintf("check %d: %s", v.check, v.name)
		if d.GetCode() != v.code || !strings.Contains(d.GetMessage(), v.text) {
			t.Errorf("%s: %v, want %s with %q", name, d, v.code, v.text)
			continue
		}
		if v.code == ok {
			passed[v.check]++
			continue
		}
		failed[v.check]++
		if d.GetDetails()["check"] != fmt.Sprint(v.check) {
			t.Errorf("%s: found by check %s", name, d.GetDetails()["check"])
		}
		if d.GetRetryable() != archive.Retryable(d.GetCode()) {
			t.Errorf("%s: retryable %v", name, d.GetRetryable())
		}
	}
	for n := 1; n <= 15; n++ {
		if failed[n] == 0 {
			t.Errorf("no variant fails check %d", n)
		}
	}
}

func TestFailuresNameTheFile(t *testing.T) {
	t.Parallel()
	for _, v := range variants {
		f := v.from()
		v.edit(f)
		d := conclude(f)
		if v.code == ok || !strings.Contains(v.text, ".mkv") {
			continue
		}
		if d.GetDetails()["path"] == "" {
			t.Errorf("%s: no path in %v", v.name, d.GetDetails())
		}
		for k, s := range d.GetDetails() {
			if len(s) > 1024 || len(k) > 40 {
				t.Errorf("%s: detail %s is too long", v.name, k)
			}
		}
	}
	d := failure(invalid, "next", strings.Repeat("ü", 2000))
	if len(d.GetMessage()) > 1024 || !strings.HasSuffix(d.GetMessage(), "ü...") {
		t.Errorf("a long message is cut badly: %d bytes, ...%q", len(d.GetMessage()), d.GetMessage()[1000:])
	}
}

func TestPoliciesGetDefaults(t *testing.T) {
	t.Parallel()
	f := good()
	f.Source.Capabilities, f.Target.Capabilities = nil, []string{archive.CapReflink}
	completePolicies(f, nil)
	want := archive.DefaultPolicies()
	want.StageMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE}
	want.MaterializeMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME,
		pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK, pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE}
	if !proto.Equal(f.Policies, want) {
		t.Errorf("got %v\nwant %v", f.Policies, want)
	}
	asked := &pb.JobPolicies{VerifyLevel: pb.VerifyLevel_VERIFY_LEVEL_STRICT, SparsePolicy: pb.SparsePolicy_SPARSE_POLICY_DENSE,
		PartfileMode: pb.PartfileMode_PARTFILE_MODE_DROP, ConflictPolicy: pb.ConflictPolicy_CONFLICT_POLICY_FAIL,
		StageMethods:       []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY},
		MaterializeMethods: []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK},
		Quiesce:            pb.QuiescePolicy_QUIESCE_POLICY_ALWAYS, Activation: pb.ActivationPolicy_ACTIVATION_POLICY_LEAVE_STOPPED,
		KeepFreeBytes: 5, TrashRetention: want.TrashRetention, Cleanup: pb.CleanupPolicy_CLEANUP_POLICY_KEEP_ALL}
	completePolicies(f, asked)
	if !proto.Equal(f.Policies, asked) || !f.ChoseStage || !f.ChoseMaterialize {
		t.Errorf("what was asked was changed: %v", f.Policies)
	}
}
