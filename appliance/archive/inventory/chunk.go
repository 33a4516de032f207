package inventory

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// bytesOf is the form in which messages are stored.
func bytesOf(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// Chunk takes one part of an answer (daemon protocol 5.3). A part that no open query of this connection asked for is
// dropped. A faulty answer ends the query and not the connection; the error is Stale for a link that lost its generation,
// or one of the database.
func (i *Inventory) Chunk(ctx context.Context, link archive.Link, c *pb.InventoryChunk) error {
	id, err := uuid.Parse(c.GetQueryId())
	if err != nil {
		return nil
	}
	return i.store.Update(ctx, "inventory chunk", func(tx Tx) error {
		if err := i.o.Fence(tx, link); err != nil {
			return err
		}
		q, ok, err := tx.InventoryQuery(id)
		if err != nil || !ok || q.State != Open || q.DaemonNo != link.Daemon.No || q.CommandID.String() != c.GetCommandId() ||
			q.Generation != 0 && q.Generation != link.Generation {
			return err
		}
		r, ok, err := tx.InventoryRequest(q.RequestNo)
		if err != nil || !ok || r.State != Open {
			return err
		}
		return i.take(tx, link, &r, &q, c)
	})
}

func (i *Inventory) take(tx Tx, link archive.Link, r *Request, q *Query, c *pb.InventoryChunk) error {
	q.Generation = link.Generation
	s := accept(r, q, link.Daemon.ID, c)
	if q.Page > 0 && link.Epoch != r.Epoch {
		s = changed(step{}, r, c) // the same number of another database is another revision
	}
	if s.discard {
		if err := tx.InventoryDropStaged(q.RequestNo, q.No); err != nil {
			return err
		}
	}
	switch s.verdict {
	case faulty:
		return i.faulted(tx, r, s.error)
	case fail:
		return i.refused(tx, r, q, s.error)
	}
	chunk, err := bytesOf(c)
	if err != nil {
		return err
	}
	if err := tx.InventoryStage(&Staged{RequestNo: r.No, QueryNo: q.No, ChunkIndex: q.Chunks - 1, DaemonNo: r.DaemonNo,
		Generation: link.Generation, Snapshot: q.Snapshot, Entries: s.entries, LastIndex: q.LastIndex, Chunk: chunk}); err != nil {
		return err
	}
	if s.verdict == finish {
		return i.finishPage(tx, link, r, q, c.GetNextPageToken())
	}
	if err := tx.InventoryUpdateQuery(q); err != nil {
		return err
	}
	i.expectBy(tx, q.No, ChunkIdle)
	return nil
}

// finishPage makes a complete page count and asks for the next one, or ends the request.
func (i *Inventory) finishPage(tx Tx, link archive.Link, r *Request, q *Query, next string) error {
	q.State = Complete
	if err := tx.InventoryUpdateQuery(q); err != nil {
		return err
	}
	if err := i.o.Commands.Close(tx, q.CommandNo); err != nil {
		return err
	}
	i.expectNothing(tx, q.No)
	r.Epoch, r.Revision, r.NextPage = link.Epoch, q.Revision, next
	r.Entries += q.Entries
	if r.Scope == pb.InventoryScope_INVENTORY_SCOPE_RESOURCES {
		if err := i.storeResources(tx, r, q); err != nil {
			return err
		}
	}
	i.freeSlot(tx, r.DaemonNo)
	if next != "" && !r.Single {
		if err := tx.InventoryUpdateRequest(r); err != nil {
			return err
		}
		return i.send(tx, link.Daemon, r, Query{Page: q.Page + 1, AfterIndex: q.LastIndex, AfterRevision: q.ContentRevision})
	}
	return i.complete(tx, link, r, q)
}

// storeResources replaces the rows of a page's resources.
func (i *Inventory) storeResources(tx Tx, r *Request, q *Query) error {
	err := staged(tx, r.No, func(c *pb.InventoryChunk) error {
		for _, s := range c.GetResources().GetEntries() {
			if err := tx.InventoryPutResource(&Resource{DaemonNo: r.DaemonNo, Summary: s, Revision: q.Revision, FirstQuery: r.FirstQuery,
				SeenAt: tx.Now()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tx.InventoryDropStaged(r.No, q.No)
}

// stagedAtOnce is how many staged chunks are held in memory.
const stagedAtOnce = 4

// staged calls fn for the staged chunks of the request in order.
func staged(tx ReadTx, requestNo int64, fn func(*pb.InventoryChunk) error) error {
	for n := 0; ; n += stagedAtOnce {
		list, err := tx.InventoryStaged(requestNo, n, stagedAtOnce)
		if err != nil {
			return err
		}
		for _, b := range list {
			c := &pb.InventoryChunk{}
			if err := proto.Unmarshal(b, c); err != nil {
				return err
			}
			if err := fn(c); err != nil {
				return err
			}
		}
		if len(list) < stagedAtOnce {
			return nil
		}
	}
}

// complete ends a request whose last page has come and puts its result in place of what was known.
func (i *Inventory) complete(tx Tx, link archive.Link, r *Request, q *Query) error {
	var err error
	switch r.Scope {
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		err = i.markAbsent(tx, r)
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		err = i.putTree(tx, r, q)
	case pb.InventoryScope_INVENTORY_SCOPE_STORAGE:
		var entries []*pb.StorageEntry
		err = staged(tx, r.No, func(c *pb.InventoryChunk) error {
			entries = append(entries, c.GetStorage().GetEntries()...)
			return nil
		})
		if err == nil && !r.Single {
			err = tx.InventoryReplaceStorage(r.DaemonNo, entries)
		}
		if err == nil {
			err = tx.InventoryDropStaged(r.No, 0)
		}
	case pb.InventoryScope_INVENTORY_SCOPE_ROUTES:
		if i.o.OnRoutes == nil {
			break
		}
		var routes []*pb.RouteSnapshot
		err = staged(tx, r.No, func(c *pb.InventoryChunk) error {
			routes = append(routes, c.GetRoutes().GetEntries()...)
			return nil
		})
		if err == nil {
			err = i.o.OnRoutes(tx, link, r.No, routes)
		}
	}
	if err != nil {
		return err
	}
	if whole := !r.Single && len(r.Query.GetResourceIds()) == 0 && r.Query.GetFilter() == nil; whole {
		if err := tx.InventoryPutView(View{DaemonNo: r.DaemonNo, Scope: r.Scope, Epoch: r.Epoch, Revision: r.Revision,
			RequestNo: r.No, Entries: r.Entries, CommittedAt: tx.Now()}); err != nil {
			return err
		}
	}
	return i.end(tx, r, Complete, nil)
}

// markAbsent marks the resources that the view should have shown and did not.
func (i *Inventory) markAbsent(tx Tx, r *Request) error {
	if r.Full() {
		_, err := tx.InventoryMarkAbsent(r.DaemonNo, r.FirstQuery)
		return err
	}
	if ids := r.Query.GetResourceIds(); len(ids) > 0 && r.Query.GetFilter() == nil && r.NextPage == "" && r.Query.GetPageToken() == "" {
		return tx.InventoryMarkAbsentOnes(r.DaemonNo, r.FirstQuery, ids)
	}
	return nil
}

// putTree points the tree of the resource to the chunks that have just become complete.
func (i *Inventory) putTree(tx Tx, r *Request, q *Query) error {
	first, err := tx.InventoryStaged(r.No, 0, 1)
	if err != nil {
		return err
	}
	c := &pb.InventoryChunk{}
	if err := proto.Unmarshal(first[0], c); err != nil {
		return err
	}
	if r.Single && (r.NextPage != "" || r.Query.GetPageToken() != "") {
		return nil // a part of a tree is no tree
	}
	former, err := tx.InventoryPutTree(&Tree{DaemonNo: r.DaemonNo, ResourceID: r.Query.GetResourceIds()[0],
		ContentRevision: q.ContentRevision, Header: c.GetContentTree().GetHeader(), Files: r.Entries, Epoch: r.Epoch,
		Revision: r.Revision, RequestNo: r.No, FetchedAt: tx.Now()})
	if err != nil || former == 0 || former == r.No {
		return err
	}
	return tx.InventoryDropStaged(former, 0)
}
