package inventory

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

var (
	client   = uuid.MustParse("6f1c2f0a-0001-4000-8000-000000000001")
	snapshot = uuid.MustParse("6f1c2f0a-0002-4000-8000-000000000001")
	other    = uuid.MustParse("6f1c2f0a-0003-4000-8000-000000000001")
)

const contentRevision = "00000000000000000000000000000000000000000000000000000000000000aa"

func treeRequest() *Request {
	return &Request{Scope: pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE, State: Open,
		Query: &pb.InventoryQuery{ResourceIds: []string{"r"}, PageSize: treePage}}
}

// under is a query that has received n chunks with n entries.
func under(n int) *Query {
	q := &Query{State: Open, Generation: 1, Snapshot: snapshot, Revision: 7, Chunks: n, Entries: int64(n), LastIndex: int64(n) - 1,
		AfterIndex: -1, ContentRevision: contentRevision}
	if n == 0 {
		q.Snapshot, q.ContentRevision, q.Revision = uuid.Nil, "", 0
	}
	return q
}

func files(indices ...uint32) *pb.ContentTreePart {
	p := &pb.ContentTreePart{ContentRevision: contentRevision}
	for _, i := range indices {
		p.Files = append(p.Files, &pb.FileEntry{Index: i, ContentRevision: contentRevision})
	}
	return p
}

func withHeader(p *pb.ContentTreePart) *pb.ContentTreePart {
	p.Header = &pb.ContentTree{Resource: &pb.ResourceRef{ClientId: client.String(), ResourceId: "r"}, ContentRevision: contentRevision}
	return p
}

func treeChunk(index uint32, last bool, p *pb.ContentTreePart) *pb.InventoryChunk {
	return &pb.InventoryChunk{SnapshotId: snapshot.String(), Revision: 7, ChunkIndex: index, LastChunk: last,
		Content: &pb.InventoryChunk_ContentTree{ContentTree: p}}
}

func lastOf(c *pb.InventoryChunk, total uint32) *pb.InventoryChunk {
	c.LastChunk, c.EntriesTotal = true, total
	return c
}

func edit(c *pb.InventoryChunk, fn func(*pb.InventoryChunk)) *pb.InventoryChunk { fn(c); return c }

func TestAcceptFollowsTheSnapshotRules(t *testing.T) {
	t.Parallel()
	unavailable := &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE, Retryable: true}
	for _, test := range []struct {
		name    string
		q       *Query
		c       *pb.InventoryChunk
		verdict verdict
		rule    string // part of the message of a refusal
		discard bool
	}{
		{"first chunk", under(0), treeChunk(0, false, withHeader(files(0, 1))), stage, "", false},
		{"next chunk", under(2), treeChunk(2, false, files(2)), stage, "", false},
		{"last chunk", under(2), lastOf(treeChunk(2, true, files(2)), 3), finish, "", false},
		{"last chunk without files", under(2), lastOf(treeChunk(2, true, files()), 2), finish, "", false},
		{"only chunk", under(0), lastOf(treeChunk(0, true, withHeader(files(0))), 1), finish, "", false},
		{"gap", under(2), treeChunk(3, false, files(3)), faulty, "chunk_index: 3 came where 2", false},
		{"repeated chunk", under(2), treeChunk(1, false, files(1)), faulty, "chunk_index: 1 came where 2", false},
		{"begins in the middle", under(0), treeChunk(1, false, files(1)), faulty, "chunk_index: 1 came where 0", false},
		{"changed revision", under(2), edit(treeChunk(2, false, files(2)), func(c *pb.InventoryChunk) { c.Revision = 8 }), faulty, "revision", false},
		{"wrong total", under(2), lastOf(treeChunk(2, true, files(2)), 4), faulty, "entries_total: it says 4, but 3", false},
		{"no total", under(2), lastOf(treeChunk(2, true, files(2)), 0), faulty, "entries_total: it says 0", false},
		{"total too early", under(2), edit(treeChunk(2, false, files(2)), func(c *pb.InventoryChunk) { c.EntriesTotal = 3 }), faulty, "last chunk", false},
		{"token too early", under(2), edit(treeChunk(2, false, files(2)), func(c *pb.InventoryChunk) { c.NextPageToken = "x" }), faulty, "last chunk", false},
		{"long token", under(2), edit(lastOf(treeChunk(2, true, files(2)), 3), func(c *pb.InventoryChunk) { c.NextPageToken = strings.Repeat("x", 257) }),
			faulty, "next_page_token", false},
		{"a page that leads nowhere", under(0), edit(lastOf(treeChunk(0, true, withHeader(files())), 0), func(c *pb.InventoryChunk) { c.NextPageToken = "x" }),
			faulty, "next_page_token", false},
		{"no snapshot", under(0), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) { c.SnapshotId = "x" }), faulty, "snapshot_id", false},
		{"second snapshot", under(2), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) { c.SnapshotId = other.String() }), stage, "", true},
		{"second snapshot of another revision", under(2), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) {
			c.SnapshotId, c.Revision = other.String(), 9
		}), stage, "", true},
		{"second snapshot in its middle", under(2), edit(treeChunk(2, false, files(2)), func(c *pb.InventoryChunk) { c.SnapshotId = other.String() }), faulty, "chunk_index", true},
		{"error", under(2), &pb.InventoryChunk{SnapshotId: snapshot.String(), Revision: 7, ChunkIndex: 2, LastChunk: true, Error: unavailable}, fail, "", false},
		{"error at once", under(0), &pb.InventoryChunk{SnapshotId: snapshot.String(), LastChunk: true, Error: unavailable}, fail, "", false},
		{"error that is not last", under(2), &pb.InventoryChunk{SnapshotId: snapshot.String(), Revision: 7, ChunkIndex: 2, Error: unavailable}, faulty, "error", false},
		{"error with entries", under(2), edit(treeChunk(2, true, files(2)), func(c *pb.InventoryChunk) { c.Error = unavailable }), faulty, "error", false},
		{"another scope", under(0), &pb.InventoryChunk{SnapshotId: snapshot.String(), Content: &pb.InventoryChunk_Storage{Storage: &pb.StorageList{}}}, faulty, "scope", false},
		{"no header", under(0), treeChunk(0, false, files(0)), faulty, "no header", false},
		{"late header", under(2), treeChunk(2, false, withHeader(files(2))), faulty, "only the first", false},
		{"header of another resource", under(0), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) {
			c.GetContentTree().Header.Resource.ResourceId = "s"
		}), faulty, `resource "s"`, false},
		{"header of another client", under(0), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) {
			c.GetContentTree().Header.Resource.ClientId = other.String()
		}), faulty, "header", false},
		{"header with files", under(0), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) {
			c.GetContentTree().Header.Files = files(0).Files
		}), faulty, "header has files", false},
		{"content revision changes", under(2), edit(treeChunk(2, false, files(2)), func(c *pb.InventoryChunk) { c.GetContentTree().ContentRevision = "bb" }),
			faulty, "content_revision changed", false},
		{"content revision of an entry", under(2), edit(treeChunk(2, false, files(2)), func(c *pb.InventoryChunk) {
			c.GetContentTree().Files[0].ContentRevision = "bb"
		}), faulty, "file 2", false},
		{"content revision missing", under(0), edit(treeChunk(0, false, withHeader(files(0))), func(c *pb.InventoryChunk) {
			c.GetContentTree().ContentRevision = ""
		}), faulty, "content_revision is missing", false},
		{"file twice", under(2), treeChunk(2, false, files(1)), faulty, "file 1 comes after file 1", false},
		{"files out of order", under(2), treeChunk(2, false, files(4, 3)), faulty, "file 3 comes after file 4", false},
	} {
		got := accept(treeRequest(), test.q, client, test.c)
		if got.verdict != test.verdict || got.discard != test.discard || !strings.Contains(got.error.GetMessage(), test.rule) {
			t.Errorf("%s: verdict %d, discard %v, %v; want %d, %v, %q", test.name, got.verdict, got.discard, got.error, test.verdict, test.discard, test.rule)
		}
		if (got.verdict == faulty) != (got.error.GetCode() == pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION) {
			t.Errorf("%s: code %s", test.name, got.error.GetCode())
		}
	}
}

func TestAcceptLimitsTheEntries(t *testing.T) {
	t.Parallel()
	q := under(1)
	q.Entries = MaxTreeFiles - 1
	if got := accept(treeRequest(), q, client, treeChunk(1, false, files(1))); got.verdict != stage {
		t.Errorf("the last file allowed: %+v", got)
	}
	if got := accept(treeRequest(), q, client, treeChunk(2, false, files(2))); got.verdict != fail || got.error.GetCode() != pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED {
		t.Errorf("one file more: %+v", got)
	}
}

func TestAcceptHoldsPagesTogether(t *testing.T) {
	t.Parallel()
	r := treeRequest()
	r.Revision, r.Entries = 7, 5
	page := func() *Query {
		return &Query{State: Open, Page: 1, LastIndex: 4, AfterIndex: 4, ContentRevision: contentRevision, AfterRevision: contentRevision}
	}
	if got := accept(r, page(), client, lastOf(treeChunk(0, true, files(5)), 1)); got.verdict != finish {
		t.Errorf("a page that goes on: %+v", got)
	}
	if got := accept(r, page(), client, lastOf(treeChunk(0, true, files(4)), 1)); got.verdict != faulty {
		t.Errorf("a page that repeats a file: %+v", got)
	}
	changed := edit(lastOf(treeChunk(0, true, files(5)), 1), func(c *pb.InventoryChunk) { c.Revision = 8 })
	if got := accept(r, page(), client, changed); got.verdict != fail || got.error.GetCode() != pb.ErrorCode_ERROR_CODE_STALE_REVISION {
		t.Errorf("a page of another revision: %+v", got)
	}
}

func TestAcceptChecksResources(t *testing.T) {
	t.Parallel()
	r := &Request{Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, State: Open, Query: &pb.InventoryQuery{PageSize: 2}}
	list := func(ids ...string) *pb.InventoryChunk {
		l := &pb.ResourceList{}
		for _, id := range ids {
			l.Entries = append(l.Entries, &pb.ResourceSummary{Resource: &pb.ResourceRef{ClientId: client.String(), ResourceId: id}})
		}
		return &pb.InventoryChunk{SnapshotId: snapshot.String(), Revision: 7, Content: &pb.InventoryChunk_Resources{Resources: l}}
	}
	for _, test := range []struct {
		name string
		c    *pb.InventoryChunk
		rule string
	}{
		{"two", list("a", "b"), ""},
		{"none, and no list either", &pb.InventoryChunk{SnapshotId: snapshot.String(), Revision: 7, LastChunk: true}, ""},
		{"more than asked for", list("a", "b", "c"), "more than the 2"},
		{"no ID", list(""), "0 bytes"},
		{"long ID", list(strings.Repeat("x", 161)), "161 bytes"},
		{"of another client", edit(list("a"), func(c *pb.InventoryChunk) { c.GetResources().Entries[0].Resource.ClientId = other.String() }), "belongs to"},
	} {
		q := under(0)
		if got := accept(r, q, client, test.c); (got.verdict == faulty) != (test.rule != "") || !strings.Contains(got.error.GetMessage(), test.rule) {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}
