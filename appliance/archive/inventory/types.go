package inventory

import (
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Limits of daemon protocol 5.2, and our own.
const (
	// MaxTreeFiles is the most files of one content tree.
	MaxTreeFiles = 200_000
	// MaxOpen is the most snapshots that a daemon is asked for at a time; more queries wait for their turn.
	MaxOpen = 4
	// MaxWaiting is the most open requests of one daemon; beyond it the answer is BUSY.
	MaxWaiting = 32
	// ChunkIdle is the longest time between two chunks.
	ChunkIdle = 30 * time.Second
	// FirstChunk is the longest time between the acceptance of a query and its first chunk: a daemon may have to read a
	// large tree first.
	FirstChunk = 10 * time.Minute
	// MaxEntries is the most entries of a view of other scopes, over all its pages.
	MaxEntries = 1_000_000
	// DefaultPage is the page size of queries that do not name one. A page of resources is stored in one transaction.
	DefaultPage = 2000
	// treePage asks for as much as one query may.
	treePage = 10_000
	// maxRestarts is how often a request begins anew because the inventory changed under it or the connection ended.
	maxRestarts = 3
	// maxFaults is how often a request begins anew after a faulty answer (daemon protocol 9, row 10).
	maxFaults = 1
)

// State tells how far a request or a query is.
type State string

// The states.
const (
	Open     State = "open"
	Complete State = "complete"
	Failed   State = "failed"
)

// ViewKey is the key under which watchers of a daemon's stored inventory are woken.
type ViewKey struct{ DaemonNo int64 }

// Request is one view that control wants of a daemon.
type Request struct {
	No         int64
	ID         uuid.UUID
	DaemonNo   int64
	Scope      pb.InventoryScope
	Purpose    pb.InventoryPurpose
	Query      *pb.InventoryQuery // without query_id and the state of paging
	Single     bool               // one page, not all of them
	State      State
	Faults     int
	Restarts   int
	FirstQuery int64     // query of the first page, since the request was begun last
	Epoch      uuid.UUID // of the daemon's database that answered; uuid.Nil before
	Revision   uint64
	Entries    int64 // of complete pages
	NextPage   string
	Error      *pb.ErrorDetail
	CreatedAt  time.Time
	FinishedAt time.Time
}

// Full reports whether the request is for all resources of the daemon.
func (r *Request) Full() bool {
	q := r.Query
	return r.Scope == pb.InventoryScope_INVENTORY_SCOPE_RESOURCES && !r.Single && q.GetFilter() == nil &&
		len(q.GetResourceIds()) == 0 && q.GetPageToken() == ""
}

// Query is one page of a request on its way, as it is stored.
type Query struct {
	No              int64
	ID              uuid.UUID
	RequestNo       int64
	DaemonNo        int64
	CommandNo       int64
	CommandID       uuid.UUID
	Page            int
	State           State
	Generation      int64 // of the connection that answers; 0: no answer yet
	Snapshot        uuid.UUID
	Revision        uint64
	Chunks          int // received of the snapshot
	Entries         int64
	LastIndex       int64 // CONTENT_TREE: index of the last file, -1 before the first
	ContentRevision string
	// AfterIndex and AfterRevision are LastIndex and ContentRevision at the end of the page before.
	AfterIndex    int64
	AfterRevision string
	CreatedAt     time.Time
}

// Staged is one chunk as it is staged.
type Staged struct {
	RequestNo  int64
	QueryNo    int64
	ChunkIndex int
	DaemonNo   int64
	Generation int64
	Snapshot   uuid.UUID
	Entries    int
	LastIndex  int64
	Chunk      []byte // deterministic InventoryChunk
}

// Result is what a complete request found. The entries are read with the package's readers.
type Result struct {
	RequestNo int64
	RequestID uuid.UUID
	Epoch     uuid.UUID // (Epoch, Revision) is the comparable pair (5.4)
	Revision  uint64
	Entries   int64
	NextPage  string // of a request for a single page
	// FirstQuery tells the resources that the request saw: theirs is not below it.
	FirstQuery int64
}

// View is how fresh a scope of a daemon is.
type View struct {
	DaemonNo    int64
	Scope       pb.InventoryScope
	Epoch       uuid.UUID
	Revision    uint64
	RequestNo   int64
	Entries     int64
	CommittedAt time.Time
}

// Resource is one stored resource of a daemon.
type Resource struct {
	No       int64
	DaemonNo int64
	DaemonID uuid.UUID
	Summary  *pb.ResourceSummary
	Revision uint64
	// FirstQuery is that of the request that saw it last.
	FirstQuery int64
	Absent     bool // missing from a view that should have shown it
	SeenAt     time.Time
}

// Tree is a stored content tree without its files.
type Tree struct {
	No              int64
	DaemonNo        int64
	ResourceID      string
	ContentRevision string
	Header          *pb.ContentTree
	Files           int64
	Epoch           uuid.UUID
	Revision        uint64
	RequestNo       int64
	FetchedAt       time.Time
}

// Storage is one stored root of a daemon.
type Storage struct {
	Entry  *pb.StorageEntry
	SeenAt time.Time
}
