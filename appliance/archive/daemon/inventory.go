package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
)

// Inventory is the part of a backend that queries are answered from; every backend.Backend is one.
type Inventory interface {
	ListResources(ctx context.Context) (*backend.Listing, error)
	ContentTree(ctx context.Context, resourceID string, o backend.TreeOptions) (*backend.Tree, error)
}

// answerQuery starts the answer to an accepted InventoryQuery or RequestJobSnapshot, once on this connection.
func (s *session) answerQuery(c *pb.Command) {
	query, snapshot := c.GetInventoryQuery(), c.GetRequestJobSnapshot()
	if query == nil && snapshot == nil {
		return
	}
	s.mu.Lock()
	again := s.answered[c.GetCommandId()]
	s.answered[c.GetCommandId()] = true
	if query != nil && !again {
		s.queries++
	}
	s.mu.Unlock()
	if again {
		return
	}
	s.group.Go(func() {
		var err error
		if query != nil {
			err = s.answerInventory(c.GetCommandId(), query)
			s.mu.Lock()
			s.queries--
			s.mu.Unlock()
		} else {
			err = s.answerSnapshot(c)
		}
		if err != nil {
			s.end(err)
		}
	})
}

func (s *session) openQueries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queries
}

// refused is an answer that ends with an error chunk.
type refused struct{ detail *pb.ErrorDetail }

func (r *refused) Error() string { return detailText(r.detail, nil) }

func refuse(code pb.ErrorCode, format string, args ...any) error {
	return &refused{detail: valid.Detail(code, fmt.Sprintf(format, args...))}
}

// answerInventory streams the answer to one query. The error is that of the connection or the database; what is wrong with
// the query or the backend goes into an error chunk.
func (s *session) answerInventory(command string, q *pb.InventoryQuery) error {
	t := &stream{s: s, query: q, command: command, snapshot: uuid.NewString()}
	err := t.answer(s.ctx)
	if err == nil || s.ctx.Err() != nil {
		return nil
	}
	detail := errorDetail(err)
	s.d.tell(Notice{What: WhatInventory, Code: detail.GetCode(), Generation: s.generation, Err: err})
	return t.fail(detail)
}

func errorDetail(err error) *pb.ErrorDetail {
	if r, ok := err.(*refused); ok {
		return r.detail
	}
	return backend.Detail(err)
}

// listing is what a query is answered with: entries by their place, all of one view.
type listing struct {
	n     int
	entry func(i int) proto.Message
	// header is the tree's, for chunk 0.
	header *pb.ContentTree
}

// answer fixes a revision, reads the view and streams the page that was asked for.
func (t *stream) answer(ctx context.Context) error {
	place, err := parseToken(t.query)
	if err != nil {
		return err
	}
	resources, err := t.view(ctx, place)
	if err != nil {
		return err
	}
	if want := t.query.GetExpectedRevision(); want != 0 && want != t.revision {
		return refuse(pb.ErrorCode_ERROR_CODE_STALE_REVISION, "the inventory is at revision %d, the query expects %d", t.revision, want)
	}
	if place.revision != 0 && place.revision != t.revision {
		return refuse(pb.ErrorCode_ERROR_CODE_STALE_REVISION, "the page belongs to revision %d, the inventory is at %d", place.revision, t.revision)
	}
	l, err := t.read(ctx, resources)
	if err != nil {
		return err
	}
	if place.offset > l.n {
		return refuse(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "page_token: is beyond the end")
	}
	end := min(l.n, place.offset+int(max(t.query.GetPageSize(), 1)))
	t.header = l.header
	for i := place.offset; i < end; i++ {
		if err := t.add(ctx, l.entry(i)); err != nil {
			return err
		}
	}
	next := ""
	if end < l.n {
		next = pageToken(t.query, t.revision, end)
	}
	return t.finish(ctx, next)
}

// view fixes the inventory revision. The first page of a query about content looks at the content anew.
func (t *stream) view(ctx context.Context, at place) (*backend.Listing, error) {
	scope := t.query.GetScope()
	content := scope == pb.InventoryScope_INVENTORY_SCOPE_RESOURCES ||
		scope == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE && at.revision == 0
	if !content {
		var err error
		t.revision, err = t.s.d.inventoryRevision(ctx)
		return nil, err
	}
	list, revision, err := t.s.d.Rescan(ctx)
	t.revision = revision
	return list, err
}

// Rescan lists the backend's resources and raises the inventory revision when they differ from the last list (5.4).
func (d *Daemon) Rescan(ctx context.Context) (*backend.Listing, uint64, error) {
	list, err := d.o.Inventory.ListResources(ctx)
	if err != nil {
		return nil, 0, err
	}
	var revision uint64
	err = d.update(ctx, "daemon.inventory", func(tx Tx) error {
		id, err := tx.Identity()
		if revision = id.InventoryRevision; err != nil || id.InventoryToken == list.Token {
			return err
		}
		if id.InventoryToken != "" { // the first scan of a database opens its revision
			revision++
		}
		return tx.SetInventory(revision, list.Token)
	})
	return list, revision, err
}

func (d *Daemon) inventoryRevision(ctx context.Context) (uint64, error) {
	var id Identity
	err := d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		id, err = tx.Identity()
		return err
	})
	return id.InventoryRevision, err
}

// read gives the entries of the query's scope.
func (t *stream) read(ctx context.Context, resources *backend.Listing) (listing, error) {
	d := t.s.d
	switch t.query.GetScope() {
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		list := d.matching(resources.Resources, t.query)
		return listing{n: len(list), entry: func(i int) proto.Message { return d.owned(list[i]) }}, nil
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		return d.tree(ctx, t.query)
	case pb.InventoryScope_INVENTORY_SCOPE_STORAGE:
		list := d.storage(ctx)
		return listing{n: len(list), entry: func(i int) proto.Message { return list[i] }}, nil
	}
	var list []proto.Message
	err := d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		if t.query.GetScope() == pb.InventoryScope_INVENTORY_SCOPE_ROUTES {
			list, err = routeSnapshots(tx, room(t.s.limits))
			return err
		}
		cursors, err := activeCursors(tx)
		for _, c := range cursors {
			list = append(list, c)
		}
		return err
	})
	return listing{n: len(list), entry: func(i int) proto.Message { return list[i] }}, err
}

// matching filters the resources. Those that have no identity yet are left out: control takes none without, and they are
// identified in the background.
func (d *Daemon) matching(all []*pb.ResourceSummary, q *pb.InventoryQuery) []*pb.ResourceSummary {
	f := q.GetFilter()
	text := strings.ToLower(f.GetText())
	var out []*pb.ResourceSummary
	for _, r := range all {
		id := r.GetResource()
		if !archive.Identified(id.GetIdentity()) {
			d.identify(Reading{ResourceID: id.GetResourceId(), Name: id.GetIdentity().GetDisplayName(), Bytes: r.GetLogicalBytes()})
			continue
		}
		switch {
		case len(q.GetResourceIds()) > 0 && !slices.Contains(q.GetResourceIds(), id.GetResourceId()):
		case text != "" && !strings.Contains(strings.ToLower(id.GetIdentity().GetDisplayName()), text):
		case len(f.GetCategories()) > 0 && !slices.Contains(f.GetCategories(), r.GetCategory()):
		case len(f.GetStates()) > 0 && !slices.Contains(f.GetStates(), r.GetBackendState()):
		case len(f.GetContentRootIds()) > 0 && !slices.Contains(f.GetContentRootIds(), r.GetContentRootId()):
		case f.GetIdentity() != nil && !archive.IdentityMatch(f.GetIdentity(), id.GetIdentity()):
		default:
			out = append(out, r)
		}
	}
	return out
}

// owned is the summary with this daemon's ID.
func (d *Daemon) owned(r *pb.ResourceSummary) *pb.ResourceSummary {
	r = proto.CloneOf(r)
	r.Resource.ClientId = d.machine.ClientID
	return r
}

// tree reads one content tree. Content that would have to be hashed first is BUSY: it is hashed in the background.
func (d *Daemon) tree(ctx context.Context, q *pb.InventoryQuery) (listing, error) {
	id := q.GetResourceIds()[0]
	tree, err := d.o.Inventory.ContentTree(ctx, id, backend.TreeOptions{CachedOnly: true})
	if backend.CodeOf(err) == pb.ErrorCode_ERROR_CODE_BUSY {
		d.identify(Reading{ResourceID: id})
	}
	if err != nil {
		return listing{}, err
	}
	revision := tree.Header.GetContentRevision()
	switch want := q.GetExpectedContentRevision(); {
	case want != "" && want != revision:
		return listing{}, refuse(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content is at revision %s, the query expects %s", revision, want)
	case tree.Files.Len() > valid.MaxFilesPerTree:
		return listing{}, refuse(pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED, "the resource has %d files, at most %d can be told", tree.Files.Len(), valid.MaxFilesPerTree)
	case !archive.Identified(tree.Header.GetResource().GetIdentity()):
		d.identify(Reading{ResourceID: id})
		return listing{}, refuse(pb.ErrorCode_ERROR_CODE_BUSY, "the content is being identified")
	}
	header := proto.CloneOf(tree.Header)
	header.Resource.ClientId = d.machine.ClientID
	return listing{n: tree.Files.Len(), entry: func(i int) proto.Message { return tree.Files.Entry(i) }, header: header}, nil
}

// identify has a resource hashed in the background, one after the other; queries answer from then on.
func (d *Daemon) identify(r Reading) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hashing[r.ResourceID] != nil || d.ctx.Err() != nil {
		return
	}
	d.hashing[r.ResourceID] = &r
	d.group.Go(func() {
		defer func() {
			d.mu.Lock()
			delete(d.hashing, r.ResourceID)
			d.mu.Unlock()
		}()
		select {
		case d.hasher <- struct{}{}:
		case <-d.ctx.Done():
			return
		}
		defer func() { <-d.hasher }()
		d.mu.Lock()
		r.Active = true
		d.mu.Unlock()
		if _, err := d.o.Inventory.ContentTree(d.ctx, r.ResourceID, backend.TreeOptions{}); err != nil && d.ctx.Err() == nil {
			d.tell(Notice{What: WhatInventory, Code: backend.CodeOf(err), Err: err})
		}
	})
}

// place is where a page begins. revision 0: the first page of any.
type place struct {
	revision uint64
	offset   int
}

// pageToken names the place of the next page. It is bound to the revision and to the question.
func pageToken(q *pb.InventoryQuery, revision uint64, offset int) string {
	return fmt.Sprintf("%d.%d.%s", revision, offset, question(q))
}

// question is a short digest of what is asked, without how it is paged.
func question(q *pb.InventoryQuery) string {
	q = proto.CloneOf(q)
	q.QueryId, q.PageSize, q.PageToken, q.ExpectedRevision, q.ExpectedContentRevision, q.Purpose = "", 0, "", 0, "", 0
	sum := sha256.Sum256(frame.Deterministic(q))
	return hex.EncodeToString(sum[:8])
}

func parseToken(q *pb.InventoryQuery) (place, error) {
	token := q.GetPageToken()
	if token == "" {
		return place{}, nil
	}
	var p place
	var of string
	if n, err := fmt.Sscanf(token, "%d.%d.%16s", &p.revision, &p.offset, &of); n != 3 || err != nil || p.revision == 0 || p.offset < 0 ||
		token != pageToken(q, p.revision, p.offset) {
		return place{}, refuse(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "page_token: is not one of this question")
	}
	return p, nil
}
