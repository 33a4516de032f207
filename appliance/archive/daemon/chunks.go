package daemon

import (
	"context"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// room is how many bytes of a frame the entries may fill: 90 % of the limit (5.2), less the envelope around them.
func room(limits *pb.Limits) int { return int(limits.GetMaxEnvelopeBytes()/10)*9 - 4<<10 }

// jsonSize is the size of the message in a frame, with the comma behind it.
func jsonSize(m proto.Message) (int, error) {
	b, err := frame.Marshal(m)
	return len(b) + 1, err
}

// stream is one answer attempt: chunks of one view, sent as they fill. Sending blocks while the outbound queue is full.
type stream struct {
	s        *session
	query    *pb.InventoryQuery
	command  string
	snapshot string
	revision uint64

	header *pb.ContentTree // for chunk 0 of a tree; nil afterwards
	// treeRevision is the content revision of the tree.
	treeRevision string
	index        uint32
	total        uint32
	size         int // of the entries that wait
	waiting      []proto.Message
}

// add puts an entry into the stream, and sends the chunk before it when that is full.
func (t *stream) add(ctx context.Context, entry proto.Message) error {
	n, err := jsonSize(entry)
	if err != nil {
		return err
	}
	most, err := t.room()
	if err != nil {
		return err
	}
	if len(t.waiting) > 0 && (len(t.waiting) >= int(t.s.limits.GetMaxChunkEntries()) || t.size+n > most) {
		if err := t.flush(ctx, false, ""); err != nil {
			return err
		}
		if most, err = t.room(); err != nil {
			return err
		}
	}
	if n > most {
		return refuse(pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED, "an entry has %d bytes, more than an envelope takes", n)
	}
	t.waiting = append(t.waiting, entry)
	t.size += n
	t.total++
	return nil
}

// room is what the present chunk may hold; the header of a tree takes its part of chunk 0.
func (t *stream) room() (int, error) {
	most := room(t.s.limits)
	if t.header == nil {
		return most, nil
	}
	n, err := jsonSize(t.header)
	return most - n, err
}

// finish sends the last chunk.
func (t *stream) finish(ctx context.Context, next string) error { return t.flush(ctx, true, next) }

// flush sends what waits as one chunk, if the inventory is still at the view's revision.
func (t *stream) flush(ctx context.Context, last bool, next string) error {
	now, err := t.s.d.inventoryRevision(ctx)
	if err != nil {
		return err
	}
	if now != t.revision {
		return refuse(pb.ErrorCode_ERROR_CODE_STALE_REVISION, "the inventory changed from revision %d to %d while it was told", t.revision, now)
	}
	c := t.chunk()
	t.fill(c)
	if c.LastChunk = last; last {
		c.EntriesTotal, c.NextPageToken = t.total, next
	}
	t.header, t.waiting, t.size = nil, nil, 0
	t.index++
	return t.s.send(ctx, &pb.Envelope{Payload: &pb.Envelope_InventoryChunk{InventoryChunk: c}}, Bulk, "")
}

// fail ends the stream with an error chunk.
func (t *stream) fail(detail *pb.ErrorDetail) error {
	c := t.chunk()
	c.LastChunk, c.Error = true, detail
	return t.s.send(t.s.ctx, &pb.Envelope{Payload: &pb.Envelope_InventoryChunk{InventoryChunk: c}}, Bulk, "")
}

func (t *stream) chunk() *pb.InventoryChunk {
	return &pb.InventoryChunk{QueryId: t.query.GetQueryId(), CommandId: t.command, SnapshotId: t.snapshot, Revision: t.revision, ChunkIndex: t.index}
}

// fill puts the entries that wait into the chunk.
func (t *stream) fill(c *pb.InventoryChunk) {
	switch t.query.GetScope() {
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		c.Content = &pb.InventoryChunk_Resources{Resources: &pb.ResourceList{Entries: entries[*pb.ResourceSummary](t.waiting)}}
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		if t.header != nil {
			t.treeRevision = t.header.GetContentRevision()
		}
		c.Content = &pb.InventoryChunk_ContentTree{ContentTree: &pb.ContentTreePart{Header: t.header, Files: entries[*pb.FileEntry](t.waiting),
			ContentRevision: t.treeRevision}}
	case pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS:
		c.Content = &pb.InventoryChunk_Jobs{Jobs: &pb.JobCursorList{Entries: entries[*pb.JobCursor](t.waiting)}}
	case pb.InventoryScope_INVENTORY_SCOPE_ROUTES:
		c.Content = &pb.InventoryChunk_Routes{Routes: &pb.RouteSnapshotList{Entries: entries[*pb.RouteSnapshot](t.waiting)}}
	case pb.InventoryScope_INVENTORY_SCOPE_STORAGE:
		c.Content = &pb.InventoryChunk_Storage{Storage: &pb.StorageList{Entries: entries[*pb.StorageEntry](t.waiting)}}
	}
}

func entries[T proto.Message](list []proto.Message) []T {
	out := make([]T, len(list))
	for i, m := range list {
		out[i] = m.(T)
	}
	return out
}
