package valid

import pb "signalbox/appliance/archive/archivepb"

// Sizes of daemon protocol 5.1.
const (
	MaxQueryResources = 1000
	MaxPageSize       = 10_000
	MaxPageToken      = 256
)

// FileEntry checks one file of a resource (daemon protocol 2.10).
func FileEntry(m *pb.FileEntry) error { return run(m, (*checker).file) }

func (c *checker) file(m *pb.FileEntry) {
	c.path("path", m.Path)
	chosen(c, "kind", m.Kind, pb.FileKind_name)
	c.must(m.CompletedBytes <= m.LogicalBytes, "completed_bytes", "must be at most logical_bytes")
	c.must(m.Padding == (m.Kind == pb.FileKind_FILE_KIND_PADDING), "padding", "must be true for PADDING only")
	c.must(!m.Selected || !m.Padding, "selected", "must be false for padding")
	c.time("mtime", m.Mtime)
	c.must(m.FirstPiece <= m.LastPiece, "last_piece", "must be at least first_piece")
	c.hashOrEmpty("pieces_root", m.PiecesRoot)
	c.symlink(m.Kind, m.SymlinkTarget)
	known(c, "present", m.Present, pb.DiskPresence_name)
	c.hash("content_revision", m.ContentRevision)
}

// symlink checks symlink_target: a path inside the torrent's root, of a SYMLINK only.
func (c *checker) symlink(kind pb.FileKind, target string) {
	if kind == pb.FileKind_FILE_KIND_SYMLINK {
		c.path("symlink_target", target)
		return
	}
	c.must(target == "", "symlink_target", "must be set for SYMLINK only")
}

// ContentTree checks a tree. The files of a whole tree have indices in ascending order.
func ContentTree(m *pb.ContentTree) error { return run(m, (*checker).tree) }

func (c *checker) tree(m *pb.ContentTree) {
	required(c, "resource", m.Resource, (*checker).resource)
	c.hash("content_revision", m.ContentRevision)
	optional(c, "torrent", m.Torrent, (*checker).torrent)
	c.must(len(m.Files) <= MaxFilesPerTree, "files", "must have at most "+itoa(MaxFilesPerTree)+" elements")
	c.files(m.Files, m.ContentRevision)
	optional(c, "partfile", m.Partfile, (*checker).partfile)
	known(c, "backend_state", m.BackendState, pb.BackendState_name)
	c.sizes("shared_with", m.SharedWith, 1, MaxResourceID)
}

// files checks the files of one revision.
func (c *checker) files(list []*pb.FileEntry, revision string) {
	each(c, "files", list, (*checker).file)
	for i, f := range list {
		if c.err != nil {
			return
		}
		if f.ContentRevision != revision {
			c.fail("files["+itoa(i)+"].content_revision", "must be that of the tree")
		} else if i > 0 && f.Index <= list[i-1].Index {
			c.fail("files["+itoa(i)+"].index", "must be above the one before")
		}
	}
}

// TorrentFacts checks facts of a torrent.
func TorrentFacts(m *pb.TorrentFacts) error { return run(m, (*checker).torrent) }

func (c *checker) torrent(m *pb.TorrentFacts) {
	c.must(m.MetaVersion == 1 || m.MetaVersion == 2, "meta_version", "must be 1 or 2")
	c.must(m.PieceBytes > 0, "piece_bytes", "must be above 0")
}

// PartfileFacts checks facts of a partfile.
func PartfileFacts(m *pb.PartfileFacts) error { return run(m, (*checker).partfile) }

func (c *checker) partfile(m *pb.PartfileFacts) {
	c.must(m.PiecesStored <= m.PieceCount, "pieces_stored", "must be at most piece_count")
}

// ResourceSummary checks one resource of a list.
func ResourceSummary(m *pb.ResourceSummary) error { return run(m, (*checker).summary) }

func (c *checker) summary(m *pb.ResourceSummary) {
	required(c, "resource", m.Resource, (*checker).resource)
	c.hashOrEmpty("content_revision", m.ContentRevision)
	known(c, "backend_state", m.BackendState, pb.BackendState_name)
	c.pathOrEmpty("relative_dir", m.RelativeDir)
	c.time("added_at", m.AddedAt)
}

// StorageEntry checks one root.
func StorageEntry(m *pb.StorageEntry) error { return run(m, (*checker).storage) }

func (c *checker) storage(m *pb.StorageEntry) {
	c.must(m.RootId != "", "root_id", "is required")
	chosen(c, "root_kind", m.RootKind, pb.RootKind_name)
	optional(c, "error", m.Error, (*checker).detail)
}

// InventoryQuery checks a query (daemon protocol 5.1).
func InventoryQuery(m *pb.InventoryQuery) error { return run(m, (*checker).inventoryQuery) }

func (c *checker) inventoryQuery(m *pb.InventoryQuery) {
	tree := m.Scope == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE
	c.uuid("query_id", m.QueryId)
	chosen(c, "scope", m.Scope, pb.InventoryScope_name)
	chosen(c, "purpose", m.Purpose, pb.InventoryPurpose_name)
	if tree {
		c.must(len(m.ResourceIds) == 1, "resource_ids", "must have exactly 1 element for CONTENT_TREE")
	}
	c.must(len(m.ResourceIds) <= MaxQueryResources, "resource_ids", "must have at most "+itoa(MaxQueryResources)+" elements")
	c.sizes("resource_ids", m.ResourceIds, 1, MaxResourceID)
	c.must(m.Filter == nil || m.Scope == pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, "filter", "must be set for RESOURCES only")
	optional(c, "filter", m.Filter, (*checker).filter)
	c.must(m.PageSize >= 1 && m.PageSize <= MaxPageSize, "page_size", "must be 1 to "+itoa(MaxPageSize))
	c.size("page_token", m.PageToken, 0, MaxPageToken)
	c.must(m.ExpectedContentRevision == "" || tree, "expected_content_revision", "must be set for CONTENT_TREE only")
	c.hashOrEmpty("expected_content_revision", m.ExpectedContentRevision)
}

// ResourceFilter checks a filter.
func ResourceFilter(m *pb.ResourceFilter) error { return run(m, (*checker).filter) }

func (c *checker) filter(m *pb.ResourceFilter) {
	chosenAll(c, "states", m.States, pb.BackendState_name)
	optional(c, "identity", m.Identity, (*checker).identity)
}

// InventoryChunk checks one chunk (daemon protocol 5.1) as far as it can be alone: its scope and place in the stream are
// the receiver's to check.
func InventoryChunk(m *pb.InventoryChunk) error { return run(m, (*checker).chunk) }

func (c *checker) chunk(m *pb.InventoryChunk) {
	c.uuid("query_id", m.QueryId)
	c.uuid("command_id", m.CommandId)
	c.uuid("snapshot_id", m.SnapshotId)
	c.counter("revision", m.Revision)
	c.must(m.LastChunk || m.EntriesTotal == 0, "entries_total", "must be on the last chunk only")
	c.must(m.LastChunk || m.NextPageToken == "", "next_page_token", "must be on the last chunk only")
	c.size("next_page_token", m.NextPageToken, 0, MaxPageToken)
	if m.Error != nil {
		c.must(m.LastChunk, "error", "must be on the last chunk only")
		c.must(m.Content == nil, "error", "must come without entries")
		optional(c, "error", m.Error, (*checker).detail)
		return
	}
	switch l := m.Content.(type) {
	case *pb.InventoryChunk_Resources:
		required(c, "resources", l.Resources, (*checker).resourceList)
	case *pb.InventoryChunk_ContentTree:
		required(c, "content_tree", l.ContentTree, (*checker).treePart)
		header := l.ContentTree.GetHeader() != nil
		c.must(header == (m.ChunkIndex == 0), "content_tree.header", "must be in chunk 0 only, and there")
	case *pb.InventoryChunk_Jobs:
		required(c, "jobs", l.Jobs, (*checker).cursorList)
	case *pb.InventoryChunk_Routes:
		required(c, "routes", l.Routes, (*checker).routeList)
	case *pb.InventoryChunk_Storage:
		required(c, "storage", l.Storage, (*checker).storageList)
	default:
		c.must(m.LastChunk, "content", "is required unless the chunk is the last")
	}
}

// ResourceList checks a list.
func ResourceList(m *pb.ResourceList) error { return run(m, (*checker).resourceList) }

func (c *checker) resourceList(m *pb.ResourceList) {
	each(c, "entries", m.Entries, (*checker).summary)
}

// ContentTreePart checks a part of a tree.
func ContentTreePart(m *pb.ContentTreePart) error { return run(m, (*checker).treePart) }

func (c *checker) treePart(m *pb.ContentTreePart) {
	c.hash("content_revision", m.ContentRevision)
	if h := m.Header; h != nil {
		optional(c, "header", h, (*checker).tree)
		c.must(len(h.Files) == 0, "header.files", "must be empty")
		c.must(h.ContentRevision == m.ContentRevision, "header.content_revision", "must be that of the part")
	}
	c.files(m.Files, m.ContentRevision)
}

// JobCursorList checks a list.
func JobCursorList(m *pb.JobCursorList) error { return run(m, (*checker).cursorList) }

func (c *checker) cursorList(m *pb.JobCursorList) { each(c, "entries", m.Entries, (*checker).cursor) }

// RouteSnapshotList checks a list.
func RouteSnapshotList(m *pb.RouteSnapshotList) error { return run(m, (*checker).routeList) }

func (c *checker) routeList(m *pb.RouteSnapshotList) {
	each(c, "entries", m.Entries, (*checker).routeSnapshot)
}

// StorageList checks a list.
func StorageList(m *pb.StorageList) error { return run(m, (*checker).storageList) }

func (c *checker) storageList(m *pb.StorageList) { each(c, "entries", m.Entries, (*checker).storage) }
