package inventory

import (
	"fmt"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// verdict is what a chunk does to its query.
type verdict int

const (
	// stage: the chunk is stored and more are to come.
	stage verdict = iota + 1
	// finish: the chunk is stored and the page is complete.
	finish
	// fail: the daemon ended the answer with an error of its own.
	fail
	// faulty: the answer breaks a rule; nothing of it counts.
	faulty
)

// step is the outcome of a chunk.
type step struct {
	verdict verdict
	// discard: what was staged of the query so far goes first, since this is another snapshot.
	discard bool
	// error is set for fail and faulty.
	error *pb.ErrorDetail
	// entries of the chunk.
	entries int
}

func violation(format string, args ...any) step {
	return step{verdict: faulty, error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION,
		Message: fmt.Sprintf(format, args...)}}
}

// accept applies the snapshot rules (daemon protocol 5.3) to the next chunk of the query, and moves q on when the chunk
// counts. It looks at nothing but its arguments.
func accept(r *Request, q *Query, client uuid.UUID, c *pb.InventoryChunk) step {
	snapshot, err := uuid.Parse(c.GetSnapshotId())
	if err != nil || snapshot == uuid.Nil {
		return violation("snapshot_id: %q is no UUID", c.GetSnapshotId())
	}
	var out step
	if q.Snapshot != snapshot {
		out.discard = q.Chunks > 0
		q.Snapshot, q.Chunks, q.Entries = snapshot, 0, 0
		q.LastIndex, q.ContentRevision = q.AfterIndex, q.AfterRevision
		q.Revision = c.GetRevision()
		if q.Page > 0 && q.Revision != r.Revision && c.GetError() == nil {
			return changed(out, r, c)
		}
	}
	if int64(c.GetChunkIndex()) != int64(q.Chunks) {
		return out.and(violation("chunk_index: %d came where %d was expected", c.GetChunkIndex(), q.Chunks))
	}
	if c.GetError() != nil {
		return out.and(acceptError(c))
	}
	if c.GetRevision() != q.Revision {
		return out.and(violation("revision: it changed from %d to %d within a snapshot", q.Revision, c.GetRevision()))
	}
	entries, broken := content(r, q, client, c)
	if broken != "" {
		return out.and(violation("%s", broken))
	}
	q.Chunks++
	q.Entries += int64(entries)
	out.entries = entries
	if limit := limitOf(r.Scope); r.Entries+q.Entries > limit {
		out.verdict = fail
		out.error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED,
			Message: fmt.Sprintf("the answer has more than %d entries", limit)}
		return out
	}
	if !c.GetLastChunk() {
		if c.GetEntriesTotal() != 0 || c.GetNextPageToken() != "" {
			return out.and(violation("entries_total and next_page_token belong to the last chunk"))
		}
		out.verdict = stage
		return out
	}
	if int64(c.GetEntriesTotal()) != q.Entries {
		return out.and(violation("entries_total: it says %d, but %d entries came", c.GetEntriesTotal(), q.Entries))
	}
	if len(c.GetNextPageToken()) > 256 {
		return out.and(violation("next_page_token: %d bytes, at most 256", len(c.GetNextPageToken())))
	}
	if c.GetNextPageToken() != "" && q.Entries == 0 {
		return out.and(violation("next_page_token: a page without entries has no next one"))
	}
	out.verdict = finish
	return out
}

// and keeps what is to be discarded.
func (s step) and(next step) step {
	next.discard = s.discard
	return next
}

// changed is a page of another revision than the pages before it: the view is to be begun anew.
func changed(out step, r *Request, c *pb.InventoryChunk) step {
	out.verdict = fail
	out.error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_REVISION,
		Message: fmt.Sprintf("the inventory changed from revision %d to %d between two pages", r.Revision, c.GetRevision())}
	return out
}

func acceptError(c *pb.InventoryChunk) step {
	if !c.GetLastChunk() || entriesOf(c) > 0 {
		return violation("error: it ends the answer and comes without entries")
	}
	return step{verdict: fail, error: c.GetError()}
}

func limitOf(scope pb.InventoryScope) int64 {
	if scope == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
		return MaxTreeFiles
	}
	return MaxEntries
}

// entriesOf counts the entries of a chunk, whatever its scope.
func entriesOf(c *pb.InventoryChunk) int {
	return len(c.GetResources().GetEntries()) + len(c.GetContentTree().GetFiles()) + len(c.GetJobs().GetEntries()) +
		len(c.GetRoutes().GetEntries()) + len(c.GetStorage().GetEntries())
}

// content checks that the entries fit the query and returns how many there are. broken is the rule that they break.
func content(r *Request, q *Query, client uuid.UUID, c *pb.InventoryChunk) (entries int, broken string) {
	if c.GetContent() == nil && r.Scope != pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
		return 0, "" // nothing to tell, as in an empty list
	}
	fits := false
	switch c.GetContent().(type) {
	case *pb.InventoryChunk_Resources:
		fits = r.Scope == pb.InventoryScope_INVENTORY_SCOPE_RESOURCES
	case *pb.InventoryChunk_ContentTree:
		fits = r.Scope == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE
	case *pb.InventoryChunk_Jobs:
		fits = r.Scope == pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS
	case *pb.InventoryChunk_Routes:
		fits = r.Scope == pb.InventoryScope_INVENTORY_SCOPE_ROUTES
	case *pb.InventoryChunk_Storage:
		fits = r.Scope == pb.InventoryScope_INVENTORY_SCOPE_STORAGE
	}
	if !fits {
		return 0, fmt.Sprintf("content: it does not fit the scope %s", r.Scope)
	}
	switch r.Scope {
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		broken = treeContent(r, q, client, c.GetContentTree())
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		broken = resourceContent(r, q, client, c.GetResources())
	}
	return entriesOf(c), broken
}

func resourceContent(r *Request, q *Query, client uuid.UUID, list *pb.ResourceList) string {
	if q.Entries+int64(len(list.GetEntries())) > int64(r.Query.GetPageSize()) {
		return fmt.Sprintf("resources: more than the %d entries that were asked for", r.Query.GetPageSize())
	}
	for _, s := range list.GetEntries() {
		if s.GetResource().GetClientId() != client.String() {
			return fmt.Sprintf("resources: resource %q belongs to the client %q", s.GetResource().GetResourceId(),
				s.GetResource().GetClientId())
		}
		if n := len(s.GetResource().GetResourceId()); n < 1 || n > 160 {
			return fmt.Sprintf("resources: a resource ID has %d bytes, allowed are 1 to 160", n)
		}
	}
	return ""
}

func treeContent(r *Request, q *Query, client uuid.UUID, part *pb.ContentTreePart) string {
	first := q.Chunks == 0
	switch {
	case first && q.Page == 0 && part.GetHeader() == nil:
		return "content_tree: the first chunk has no header"
	case !first && part.GetHeader() != nil:
		return "content_tree: only the first chunk has a header"
	case part.GetContentRevision() == "":
		return "content_tree: content_revision is missing"
	case q.ContentRevision != "" && q.ContentRevision != part.GetContentRevision():
		return "content_tree: content_revision changed within the tree"
	}
	q.ContentRevision = part.GetContentRevision()
	if h := part.GetHeader(); h != nil {
		if h.GetResource().GetClientId() != client.String() || h.GetResource().GetResourceId() != r.Query.GetResourceIds()[0] {
			return fmt.Sprintf("content_tree: the header is of resource %q", h.GetResource().GetResourceId())
		}
		if h.GetContentRevision() != part.GetContentRevision() {
			return "content_tree: the header has another content_revision than its part"
		}
		if len(h.GetFiles()) > 0 {
			return "content_tree: the header has files"
		}
	}
	for _, f := range part.GetFiles() {
		if int64(f.GetIndex()) <= q.LastIndex {
			return fmt.Sprintf("content_tree: file %d comes after file %d", f.GetIndex(), q.LastIndex)
		}
		if f.GetContentRevision() != part.GetContentRevision() {
			return fmt.Sprintf("content_tree: file %d has another content_revision than its part", f.GetIndex())
		}
		q.LastIndex = int64(f.GetIndex())
	}
	return ""
}
