// Package backend is the one seam between the archive daemon and whatever holds the content: plain directories now,
// qBittorrent and Transmission behind the same interface later (daemon protocol 8.1).
//
// What holds for every implementation, and is checked by package backendtest:
//
//   - Every call has a timeout of its own beside ctx where it talks to another program, tries again only reads, and
//     reads back after each change before it reports success.
//   - Nothing moves, renames, overwrites or deletes content, whatever is asked (product rules P1, P3).
//   - Nothing starts a torrent but Activate and Unquiesce, and nothing lets one download (P3).
//   - Errors are fault errors with the daemon protocol's code in their details, or errors of beneath and pathrule;
//     Detail turns all of them into an ErrorDetail. None holds an announce URL or a credential (8.7).
package backend

import (
	"context"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/verify"
)

// Backend is what the daemon needs of a program or directory that holds content. Implementations are safe for
// concurrent use. Resource IDs are the backend's own, 1 to 160 bytes, and stay the same as long as the resource exists.
// Calls that name an unknown resource fail with NOT_FOUND.
type Backend interface {
	// Describe tells what the backend is and can do. It fails with BACKEND_UNAVAILABLE when it is not reachable.
	Describe(ctx context.Context) (Description, error)

	// ListResources returns a consistent list. It reads no content.
	ListResources(ctx context.Context) (*Listing, error)

	// ContentTree returns the full tree of a resource with presence on disk, selection, completion and partfile facts.
	ContentTree(ctx context.Context, resourceID string, o TreeOptions) (*Tree, error)

	// Metainfo returns the exact bytes of the torrent file. Its infohashes have been compared with the resource's. It
	// fails with NOT_FOUND when the resource has none or the backend cannot give it.
	Metainfo(ctx context.Context, resourceID string) ([]byte, error)

	// Quiesce stops the transfers of one resource and returns when it is idle: nothing changes its files until
	// Unquiesce. It fails with UNSAFE_STATE when the resource does not come to rest. Repeating it is harmless. The
	// caller stores the backend state that ContentTree gave before, so that it survives a crash.
	Quiesce(ctx context.Context, resourceID string) error
	// Unquiesce restores the state from before Quiesce. A resource that was downloading is left stopped (P3).
	Unquiesce(ctx context.Context, resourceID string, earlier archivepb.BackendState) error

	// AddStopped registers content that stands at its final place. It is idempotent by identity, never starts anything
	// and never moves or renames content. A resource that exists at another place or with another selection is
	// RESOURCE_CONFLICT and stays as it is. It returns the resource's ID.
	AddStopped(ctx context.Context, a Addition) (resourceID string, err error)

	// Check reads all selected content and returns what it found, file by file in the order of the tree. Bad content
	// is a finding, not an error. progress may be nil.
	Check(ctx context.Context, resourceID string, progress func(verify.Progress)) (*CheckResult, error)

	// Activate starts a resource and returns its state as read back. It refuses with RESOURCE_INCOMPLETE if a selected
	// file is incomplete, and never starts a download. Repeating it is harmless.
	Activate(ctx context.Context, resourceID string) (archivepb.BackendState, error)

	// RemoveEntry forgets the torrent, never the data. job names the directory that the backend's own files go to in
	// its trash, if it has any; they are returned. Repeating it, also for a resource that is gone, is harmless.
	RemoveEntry(ctx context.Context, resourceID, job string) ([]Trashed, error)

	// MapPath turns a path as the backend names it into a content root and a path below it. The longest configured
	// prefix wins; no mapping is PATH_UNMAPPED.
	MapPath(backendPath string) (Location, error)
	// UnmapPath is the reverse.
	UnmapPath(l Location) (string, error)
}

// Description is what a backend says about itself.
type Description struct {
	Kind         string   // "directory", "qbittorrent", "transmission": backend_kind of manifests
	Version      string   // for people
	Capabilities []string // capability strings of daemon protocol 2.4 that the backend brings, sorted
	MaxFiles     int      // most files of one resource
	// PartfileFormat names the format of its partfiles; empty: it has none.
	PartfileFormat string
	// SparseUnselected: fragments of unselected files are written into the files themselves (EXPLODE).
	SparseUnselected bool
	// NeedsPadding: padding files must exist on disk (SYNTHESIZE).
	NeedsPadding bool
}

// Location is a place below a content root.
type Location struct {
	RootID string
	// Dir is the save directory: relative to the root, "/"-separated, "" for the root itself. Paths of file entries are
	// relative to it.
	Dir string
}

// Listing is the answer of ListResources.
type Listing struct {
	// Token changes whenever the set of resources, a selection, a completion, a path, a size or an mtime differs from the
	// list before; equal tokens mean equal lists. The inventory revision (5.4) is raised when it changes.
	Token string
	// Resources are sorted by resource ID. client_id is empty: the daemon fills it in. A resource that is content without
	// a torrent and has not been hashed yet has an identity with nothing but a display name; see TreeOptions.
	Resources []*archivepb.ResourceSummary
}

// TreeOptions say how much work ContentTree may do.
type TreeOptions struct {
	// CachedOnly forbids reading content. If something would have to be hashed, the call fails with BUSY, which is
	// retryable: the caller runs it again without the option, apart from whoever waits, and answers from then on. Content
	// without a torrent gets its identity only by this.
	CachedOnly bool
	// Progress is told how far the hashing is, if there is any.
	Progress func(verify.Progress)
}

// Tree is a content tree whose entries are made on demand, so that 200,000 files do not stand in memory as messages.
// It is a snapshot: it does not change and costs nothing to keep but memory. It is safe for concurrent use.
type Tree struct {
	// Header is the ContentTree message without files. client_id is empty.
	Header *archivepb.ContentTree
	// Location is where the content lies. RootID is empty when its place is not known.
	Location Location
	Files    FileList
}

// FileList gives the entries of a tree by their place in it, which is not always their index.
type FileList interface {
	Len() int
	// Entry makes a new message, with content_revision set.
	Entry(i int) *archivepb.FileEntry
	// DiskPath is the path of the file below the content root as it is on disk now, with the suffix that some
	// backends give to incomplete files; "" if the place is not known.
	DiskPath(i int) string
}

// Addition is what AddStopped registers.
type Addition struct {
	// Metainfo is the exact torrent file; nil for content without a torrent.
	Metainfo []byte
	// Name is the top-level name; only for content without a torrent.
	Name     string
	Location Location
	// Selected tells which indices are wanted; nil: all.
	Selected *archivepb.IndexSet
	Category string
	Labels   []string
	// Proven is what VERIFY found when it read the content, nil if it did not. A backend may use it to spare a second
	// reading, as far as it can tell that the files are still the same.
	Proven *verify.Result
}

// CheckResult is what Check found.
type CheckResult struct {
	Verify          *verify.Result
	ContentRevision string // of the tree as it is after the check
	Err             error  // nil if every selected file is complete, else the first bad file by name
}

// Unadder is a Backend whose entries may have files of others beside its own.
type Unadder interface {
	// UndoAdd is RemoveEntry of what AddStopped made alone: what somebody else has given to the entry since stays where it
	// is, and so may the entry.
	UndoAdd(ctx context.Context, resourceID, job string) ([]Trashed, error)
}

// Trashed is a file of the backend's own that RemoveEntry put aside.
type Trashed struct {
	// RootID is the content root; empty: the file had to stay in the directory it came from, in its trash area.
	RootID string
	Name   string // relative to the root, or to the directory it came from
}
