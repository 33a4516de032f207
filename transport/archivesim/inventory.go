package archivesim

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
)

// inventoryRevision is that of all views: nothing ever changes.
const inventoryRevision = 1

// listing is what a query is answered with, made entry by entry.
type listing struct {
	n      int
	entry  func(i int) proto.Message
	header *pb.ContentTree
}

// answer streams the page that the query asks for, chunk by chunk as the connection takes them.
func (d *Daemon) answer(command string, q *pb.InventoryQuery) error {
	snapshot := uuid.NewString()
	index := uint32(0)
	send := func(fill func(*pb.InventoryChunk)) error {
		c := &pb.InventoryChunk{QueryId: q.GetQueryId(), CommandId: command, SnapshotId: snapshot, Revision: inventoryRevision, ChunkIndex: index}
		fill(c)
		index++
		d.o.Recorder.EntryBytes.Add(int64(proto.Size(c)))
		e := d.envelope("")
		e.Payload = &pb.Envelope_InventoryChunk{InventoryChunk: c}
		return d.conn.Send(d.ctx, e, daemon.Bulk)
	}
	l, refused := d.list(q)
	first := 0
	if token := q.GetPageToken(); token != "" && refused == nil {
		var err error
		if first, err = strconv.Atoi(token); err != nil || first < 0 || first > l.n {
			refused = valid.Detail(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "page_token: is none of this daemon")
		}
	}
	if refused != nil {
		return send(func(c *pb.InventoryChunk) { c.LastChunk, c.Error = true, refused })
	}
	end := min(l.n, first+int(q.GetPageSize()))
	for at := first; ; {
		n := min(end-at, int(d.limits.GetMaxChunkEntries()))
		entries := make([]proto.Message, n)
		for i := range entries {
			entries[i] = l.entry(at + i)
		}
		at += n
		err := send(func(c *pb.InventoryChunk) {
			setContent(c, q.GetScope(), l.header, entries)
			if c.LastChunk = at == end; c.LastChunk {
				c.EntriesTotal = uint32(end - first)
				if end < l.n {
					c.NextPageToken = strconv.Itoa(end)
				}
			}
		})
		if err != nil {
			return err
		}
		d.o.Recorder.Entries.Add(int64(n))
		if at == end {
			return nil
		}
	}
}

func entriesOf[T proto.Message](list []proto.Message) []T {
	out := make([]T, len(list))
	for i, m := range list {
		out[i] = m.(T)
	}
	return out
}

func setContent(c *pb.InventoryChunk, scope pb.InventoryScope, header *pb.ContentTree, entries []proto.Message) {
	switch scope {
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		c.Content = &pb.InventoryChunk_Resources{Resources: &pb.ResourceList{Entries: entriesOf[*pb.ResourceSummary](entries)}}
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		part := &pb.ContentTreePart{Files: entriesOf[*pb.FileEntry](entries), ContentRevision: header.GetContentRevision()}
		if c.GetChunkIndex() == 0 {
			part.Header = header
		}
		c.Content = &pb.InventoryChunk_ContentTree{ContentTree: part}
	case pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS:
		c.Content = &pb.InventoryChunk_Jobs{Jobs: &pb.JobCursorList{Entries: entriesOf[*pb.JobCursor](entries)}}
	case pb.InventoryScope_INVENTORY_SCOPE_ROUTES:
		c.Content = &pb.InventoryChunk_Routes{Routes: &pb.RouteSnapshotList{Entries: entriesOf[*pb.RouteSnapshot](entries)}}
	case pb.InventoryScope_INVENTORY_SCOPE_STORAGE:
		c.Content = &pb.InventoryChunk_Storage{Storage: &pb.StorageList{Entries: entriesOf[*pb.StorageEntry](entries)}}
	}
}

// list finds what the query asks for.
func (d *Daemon) list(q *pb.InventoryQuery) (listing, *pb.ErrorDetail) {
	switch q.GetScope() {
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		return d.resources(q), nil
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		n, ok := numberOf(q.GetResourceIds()[0])
		if !ok {
			return listing{}, valid.Detail(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "the simulated daemon has no such resource")
		}
		title, revision := d.title(n), d.revision(n)
		return listing{d.files(n), func(i int) proto.Message { return d.file(title, revision, i) }, d.header(n)}, nil
	case pb.InventoryScope_INVENTORY_SCOPE_STORAGE:
		return fixed(storage()), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.GetScope() == pb.InventoryScope_INVENTORY_SCOPE_ROUTES {
		var list []*pb.RouteSnapshot
		for key, side := range d.routes {
			s := &pb.RouteSnapshot{RouteId: key.id, Side: key.side, CreationCommandId: side.creation, LastSequence: uint64(len(side.updates)),
				Updates: side.updates}
			if n := len(side.updates); n > 0 {
				s.State = side.updates[n-1].GetState()
			}
			list = append(list, s)
		}
		return fixed(list), nil
	}
	var list []*pb.JobCursor
	for _, j := range d.jobs {
		list = append(list, j.cursorNow())
	}
	return fixed(list), nil
}

func fixed[T proto.Message](list []T) listing {
	return listing{n: len(list), entry: func(i int) proto.Message { return list[i] }}
}

// resources are those that were asked for by ID, or all. A filter matches by the title alone: the daemon has no copy of
// others' content, and no states or categories.
func (d *Daemon) resources(q *pb.InventoryQuery) listing {
	if len(q.GetResourceIds()) > 0 {
		var list []*pb.ResourceSummary
		for _, id := range q.GetResourceIds() {
			if n, ok := numberOf(id); ok {
				list = append(list, d.summary(n))
			}
		}
		return fixed(list)
	}
	f := q.GetFilter()
	if f == nil {
		return listing{n: d.o.Content.Resources, entry: func(i int) proto.Message { return d.summary(i) }}
	}
	var list []*pb.ResourceSummary
	for n := range d.o.Content.Resources {
		if f.GetIdentity() != nil || len(f.GetStates())+len(f.GetCategories()) > 0 {
			break
		}
		if strings.Contains(strings.ToLower(d.title(n)), strings.ToLower(f.GetText())) {
			list = append(list, d.summary(n))
		}
	}
	return fixed(list)
}
