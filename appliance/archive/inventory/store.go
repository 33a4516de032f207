package inventory

import (
	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/registry"
)

// ReadTx is the snapshot that inventory is read from. Lookups report false where there is no row.
type ReadTx interface {
	archive.Reader

	InventoryRequest(no int64) (Request, bool, error)
	InventoryRequestByID(id uuid.UUID) (Request, bool, error)
	// InventoryOpenRequests returns the open requests of the daemon, oldest first; daemonNo 0 means all daemons.
	InventoryOpenRequests(daemonNo int64) ([]Request, error)
	InventoryQuery(id uuid.UUID) (Query, bool, error)
	InventoryQueryByNo(no int64) (Query, bool, error)
	InventoryQueryOfCommand(commandNo int64) (Query, bool, error)
	// InventoryOpenQuery returns the open query of the request.
	InventoryOpenQuery(requestNo int64) (Query, bool, error)
	// InventorySentQueries returns the open queries of the daemon whose command was written to a socket, oldest first,
	// with the highest generation of those sockets.
	InventorySentQueries(daemonNo int64) ([]Sent, error)
	// InventoryStaged returns the staged chunks of the request in order, from the n-th (from 0), up to limit.
	InventoryStaged(requestNo int64, n, limit int) ([][]byte, error)

	InventoryDaemon(id uuid.UUID) (Daemon, bool, error)
	InventoryDaemonByNo(no int64) (Daemon, bool, error)
	InventoryView(daemonNo int64, scope pb.InventoryScope) (View, bool, error)
	InventoryViews(daemonNo int64) ([]View, error)
	InventoryResource(daemonNo int64, resourceID string) (Resource, bool, error)
	// InventoryResources returns up to limit resources after the place, in the order of name, daemon and number.
	InventoryResources(f Filter, after Place, limit int) ([]Resource, error)
	// InventoryTree returns the tree of a resource.
	InventoryTree(daemonNo int64, resourceID string) (Tree, bool, error)
	// InventoryTreeChunks returns up to limit chunks of the tree that the request fetched, those with files of an index
	// of at least from, in order.
	InventoryTreeChunks(requestNo, from int64, limit int) ([][]byte, error)
	InventoryStorage(daemonNo int64) ([]Storage, error)
}

// Tx is the write transaction of the inventory.
type Tx interface {
	ReadTx
	registry.FenceTx

	InventoryInsertRequest(r *Request) error // sets No
	InventoryUpdateRequest(r *Request) error
	InventoryInsertQuery(q *Query) error // sets No
	InventoryUpdateQuery(q *Query) error
	// InventoryEndQueries marks the open queries of the request as failed.
	InventoryEndQueries(requestNo int64) error
	InventoryStage(s *Staged) error
	// InventoryDropStaged deletes the staged chunks of one query, or of the whole request when queryNo is 0.
	InventoryDropStaged(requestNo, queryNo int64) error

	InventoryPutResource(r *Resource) error
	// InventoryMarkAbsent marks the daemon's resources that no request with the query as its first, or a later one, saw; count says how many.
	InventoryMarkAbsent(daemonNo, firstQuery int64) (count int64, err error)
	// InventoryMarkAbsentOnes does so for the named ones.
	InventoryMarkAbsentOnes(daemonNo, firstQuery int64, ids []string) error
	// InventoryPutTree replaces the tree of a resource; former is the request whose chunks nobody needs any more, 0 for
	// none.
	InventoryPutTree(t *Tree) (former int64, err error)
	InventoryReplaceStorage(daemonNo int64, entries []*pb.StorageEntry) error
	InventoryPutView(v View) error

	// InventoryPruneAbsent deletes up to limit absent resources that no active job reserves, with their trees.
	InventoryPruneAbsent(limit int) (int64, error)
	// InventoryPruneRequests deletes up to limit ended requests that began before the time and hold no tree.
	InventoryPruneRequests(before int64, limit int) (int64, error)
	// InventoryPruneLooks deletes up to limit ended requests for the storage that began before the time, and their closed
	// commands.
	InventoryPruneLooks(before int64, limit int) (int64, error)
	// InventoryForget deletes everything of the daemon.
	InventoryForget(daemonNo int64) error
}

// Sent is an open query that was sent.
type Sent struct {
	Query
	SentGeneration int64
}

// Daemon is what the inventory looks at of a daemon.
type Daemon struct {
	Ref    archive.DaemonRef
	Name   string
	Online bool
}

// Filter selects stored resources. Zero fields select all.
type Filter struct {
	DaemonNo int64
	Text     string // part of the name, without regard to case
	Identity *pb.ResourceIdentity
	Absent   bool // also absent ones
}

// Place is a place in the list of resources.
type Place struct {
	Name string
	No   int64
}

// Store is where the inventory is kept.
type Store = archive.Store[Tx, ReadTx]
