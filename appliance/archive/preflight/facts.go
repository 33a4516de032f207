package preflight

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

const (
	transfer = pb.JobOperation_JOB_OPERATION_TRANSFER
	adopt    = pb.JobOperation_JOB_OPERATION_ADOPT
	evict    = pb.JobOperation_JOB_OPERATION_EVICT
)

// Peer is what checks look at of a daemon.
type Peer struct {
	Ref          archive.DaemonRef
	Name         string
	Role         pb.ClientRole
	Online       bool
	Paused       bool // two databases answer to its id: no new assignments
	Capabilities []string
	Limits       *pb.Limits
	ActiveJobs   int
}

// Has reports whether the daemon announced the capability.
func (p *Peer) Has(capability string) bool {
	for _, c := range p.Capabilities {
		if c == capability {
			return true
		}
	}
	return false
}

// RouteFacts are what checks look at of a route.
type RouteFacts struct {
	No      int64
	Name    string
	Message *pb.Route
	Ready   bool
	Why     string // why it is not
}

// File is one entry of a content tree, without what no check looks at: a tree of 200,000 files stays in tens of megabytes.
type File struct {
	Path        string
	Logical     uint64
	Allocated   uint64
	Completed   uint64
	Disk        uint64
	Mtime       int64 // microseconds since 1970; 0: not known
	Index       uint32
	First, Last uint32 // pieces
	Links       uint32
	Kind        pb.FileKind
	Present     pb.DiskPresence
	Selected    bool
	Sparse      bool
}

// fileOf keeps what checks look at.
func fileOf(e *pb.FileEntry) File {
	f := File{Path: e.GetPath(), Logical: e.GetLogicalBytes(), Allocated: e.GetAllocatedBytes(), Completed: e.GetCompletedBytes(),
		Disk: e.GetDiskBytes(), Index: e.GetIndex(), First: e.GetFirstPiece(), Last: e.GetLastPiece(), Links: e.GetLinkCount(),
		Kind: e.GetKind(), Present: e.GetPresent(), Selected: e.GetSelected(), Sparse: e.GetSparse()}
	if e.GetPadding() {
		f.Kind = pb.FileKind_FILE_KIND_PADDING
	}
	if e.GetMtime() != nil {
		f.Mtime = e.GetMtime().AsTime().UnixMicro()
	}
	return f
}

// complete reports whether all bytes of the file are there and proven.
func (f *File) complete() bool {
	return f.Completed == f.Logical && (f.Logical == 0 || f.Present == pb.DiskPresence_DISK_PRESENCE_FINAL_NAME)
}

// footprint is what a copy of the file takes on disk: its data without holes where these survive.
func (f *File) footprint(sparse bool) uint64 {
	if sparse && f.Sparse {
		return min(f.Allocated, f.Logical)
	}
	return f.Logical
}

// Tree is a content tree.
type Tree struct {
	Header   *pb.ContentTree // without files
	Revision string
	Files    []File // ascending by index
}

// find returns the file of an index.
func (t *Tree) find(index uint32) (*File, bool) {
	lo, hi := 0, len(t.Files)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.Files[mid].Index < index {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(t.Files) && t.Files[lo].Index == index {
		return &t.Files[lo], true
	}
	return nil, false
}

// top is the name under which the content stands in its directory: the first component of its paths.
func (t *Tree) top() string {
	if len(t.Files) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(t.Files[0].Path, "/")
	return name
}

// Holder is a job that holds a name which this one needs.
type Holder struct {
	Job  uuid.UUID
	What string // the name, in words
}

// Facts are everything that checks look at.
type Facts struct {
	Operation pb.JobOperation
	Source    Peer
	Target    Peer // for ADOPT the same as Source
	Route     *RouteFacts
	Holder    *Holder

	Resource   *pb.ResourceSummary // at the source; nil: it is not there
	SourceTree *Tree
	// TargetResource is the resource of the same identity at the target, TargetTree its tree; nil: proven absent.
	TargetResource *pb.ResourceSummary
	TargetTree     *Tree
	// Occupant is another resource that stands at the destination's name, OccupantTree its tree; nil: there is none.
	Occupant      *pb.ResourceSummary
	OccupantTree  *Tree
	SourceStorage []*pb.StorageEntry
	TargetStorage []*pb.StorageEntry

	Requested   archive.IndexSet
	Destination *pb.Destination // TRANSFER and ADOPT
	Policies    *pb.JobPolicies // complete
	// ChoseStage and ChoseMaterialize: the operator named the methods, so all of them must be possible.
	ChoseStage, ChoseMaterialize bool
	AcceptDrop                   bool

	// PreviewedSource and PreviewedTarget are the content revisions of the preview that the job was started from;
	// Previewed tells whether there was one.
	Previewed                        bool
	PreviewedSource, PreviewedTarget string

	Parent            *pb.JobDefinition // EVICT
	ParentID          string
	Commit            *pb.CommitEvidence
	MaxVerifyAge      time.Duration
	AllowLibraryLinks bool
}

// delta are the requested files that the job has to bring.
func (f *Facts) delta() archive.IndexSet { return f.Requested.Minus(f.present()) }

// present are the requested files that the target is proven to have: of a resource of the same identity, complete, and at
// the destination under the same name.
func (f *Facts) present() archive.IndexSet {
	if f.Operation != transfer || f.TargetTree == nil || f.TargetResource == nil ||
		!archive.IdentityMatch(f.SourceTree.Header.GetResource().GetIdentity(), f.TargetTree.Header.GetResource().GetIdentity()) ||
		!f.atDestination(f.TargetResource) {
		return archive.IndexSet{}
	}
	var have []uint32
	for index := range f.Requested.All() {
		s, ok := f.SourceTree.find(index)
		if !ok {
			continue
		}
		if t, ok := f.TargetTree.find(index); ok && t.Path == s.Path && t.Logical == s.Logical && t.Kind == s.Kind && t.complete() {
			have = append(have, index)
		}
	}
	return archive.Indices(have...)
}

// atDestination reports whether a resource of the target stands where the job is to put it.
func (f *Facts) atDestination(r *pb.ResourceSummary) bool {
	return r.GetContentRootId() == f.Destination.GetContentRootId() && r.GetRelativeDir() == f.Destination.GetRelativeDir()
}

// root finds a root by its ID.
func root(list []*pb.StorageEntry, id string) *pb.StorageEntry {
	for _, e := range list {
		if e.GetRootId() == id {
			return e
		}
	}
	return nil
}

// sameFilesystem reports whether two roots of one daemon are on one file system.
func sameFilesystem(a, b *pb.StorageEntry) bool {
	if a == nil || b == nil {
		return false
	}
	if a.GetRootId() == b.GetRootId() {
		return true
	}
	for _, id := range a.GetSameFilesystemAs() {
		if id == b.GetRootId() {
			return true
		}
	}
	for _, id := range b.GetSameFilesystemAs() {
		if id == a.GetRootId() {
			return true
		}
	}
	return false
}

// failure makes an ErrorDetail: what is wrong and, in next, what to do about it. details are pairs of key and value.
func failure(code pb.ErrorCode, next, message string, details ...string) *pb.ErrorDetail {
	if next != "" {
		message += "; " + next
	}
	d := &pb.ErrorDetail{Code: code, Retryable: archive.Retryable(code), Message: clip(message)}
	for i := 0; i+1 < len(details); i += 2 {
		if d.Details == nil {
			d.Details = map[string]string{}
		}
		d.Details[details[i]] = clip(details[i+1])
	}
	return d
}

// clip makes a text fit a message or a detail: valid UTF-8 of at most 1024 bytes.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= 1024 {
		return s
	}
	cut := 1021
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// quote shows a path in a message.
func quote(path string) string {
	if len(path) > 200 {
		return fmt.Sprintf("%q...", strings.ToValidUTF8(path[:200], ""))
	}
	return fmt.Sprintf("%q", path)
}
