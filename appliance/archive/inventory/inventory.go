package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Commands is what the inventory needs of the command queue.
type Commands interface {
	// Enqueue stores the command for the daemon and sets its command_id.
	Enqueue(tx Tx, daemon archive.DaemonRef, c *pb.Command) (commandNo int64, err error)
	// Close ends a command that no longer matters: it is not sent again.
	Close(tx Tx, commandNo int64) error
}

// Options of an Inventory.
type Options struct {
	Commands Commands
	// Fence refuses the write of a link that no longer owns its generation.
	Fence func(tx Tx, link archive.Link) error
	Clock clock.Clock
	Hub   *wake.Hub
	// OnRoutes is given the complete answer of a ROUTES request, in the transaction that completes it. May be nil.
	OnRoutes func(tx Tx, link archive.Link, requestNo int64, routes []*pb.RouteSnapshot) error
	// Upkeep runs retention in small slices beside other writes; nil: the ordinary store.
	Upkeep Store
	// Observer may be nil.
	Observer Observer
}

// Observer counts. Its methods must not block.
type Observer interface {
	// Completed is one complete request with its entries.
	Completed(scope pb.InventoryScope, entries int64)
	// Ended is a request that failed.
	Ended(scope pb.InventoryScope, code pb.ErrorCode)
	// Trouble is a background write that did not succeed and is tried again.
	Trouble(what string, err error)
}

type nobody struct{}

func (nobody) Completed(pb.InventoryScope, int64)    {}
func (nobody) Ended(pb.InventoryScope, pb.ErrorCode) {}
func (nobody) Trouble(string, error)                 {}

// Inventory asks daemons what they hold. Safe for concurrent use.
type Inventory struct {
	store Store
	o     Options

	mu   sync.Mutex
	due  map[int64]time.Time // open queries that were answered in part, or accepted: when they time out
	move chan struct{}       // due changed
}

// ErrBusy is in the chain of the error for a daemon with too many requests open.
var ErrBusy = errors.New("too many open requests")

// New makes an Inventory. Start must be called before daemons may register, and Run runs beside it.
func New(store Store, o Options) *Inventory {
	if o.Upkeep == nil {
		o.Upkeep = store
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	return &Inventory{store: store, o: o, due: map[int64]time.Time{}, move: make(chan struct{}, 1)}
}

// Query asks a daemon, for the purpose, and returns at once. wait blocks until the request has ended or ctx has; its error
// is a *QueryError when the request failed. A query without page_size is followed through all its pages; one with a
// page_size is for a single page. Invalid names the field that breaks a rule (5.1); NotFound: no such daemon; Unavailable:
// the daemon is offline, or has too many requests open.
func (i *Inventory) Query(ctx context.Context, daemon uuid.UUID, q *pb.InventoryQuery, purpose pb.InventoryPurpose) (
	id uuid.UUID, wait func(context.Context) (Result, error), err error) {
	var r Request
	err = i.store.Update(ctx, "ask for inventory", func(tx Tx) error {
		d, ok, err := tx.InventoryDaemon(daemon)
		switch {
		case err != nil:
			return err
		case !ok:
			return fault.New(fault.NotFound, "there is no daemon %s", daemon)
		case !d.Online:
			return fault.New(fault.Unavailable, "daemon %s is offline", d.Name)
		}
		r, err = i.Ask(tx, d.Ref, q, purpose)
		return err
	})
	if err != nil {
		return uuid.Nil, nil, err
	}
	return r.ID, func(ctx context.Context) (Result, error) { return i.Wait(ctx, r.No) }, nil
}

// Ask is Query within the caller's transaction, also for a daemon that is offline: the question then waits for it. It is
// refused with Unavailable (BUSY) when the daemon has too many requests open.
func (i *Inventory) Ask(tx Tx, daemon archive.DaemonRef, q *pb.InventoryQuery, purpose pb.InventoryPurpose) (Request, error) {
	r := Request{ID: uuid.New(), DaemonNo: daemon.No, Scope: q.GetScope(), Purpose: purpose, State: Open, CreatedAt: tx.Now(),
		Single: q.GetPageSize() > 0, Query: proto.Clone(q).(*pb.InventoryQuery)}
	r.Query.QueryId = ""
	r.Query.Purpose = purpose
	if err := validQuery(r.Query); err != nil {
		return r, err
	}
	if r.Query.PageSize == 0 {
		r.Query.PageSize = DefaultPage
		if r.Scope != pb.InventoryScope_INVENTORY_SCOPE_RESOURCES {
			r.Query.PageSize = treePage
		}
	}
	open, err := tx.InventoryOpenRequests(daemon.No)
	if err != nil {
		return r, err
	}
	if len(open) >= MaxWaiting {
		e := fault.Wrap(fault.Unavailable, ErrBusy, "the daemon has %d inventory requests open (BUSY)", len(open))
		e.Retry = ChunkIdle
		return r, e
	}
	if err := tx.InventoryInsertRequest(&r); err != nil {
		return r, err
	}
	return r, i.send(tx, daemon, &r, Query{AfterIndex: -1})
}

// validQuery applies the table of daemon protocol 5.1.
func validQuery(q *pb.InventoryQuery) error {
	tree := q.GetScope() == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE
	n := len(q.GetResourceIds())
	switch {
	case q.GetScope() == 0 || pb.InventoryScope_name[int32(q.GetScope())] == "":
		return fault.Field("scope", "is required")
	case q.GetPurpose() == 0 || pb.InventoryPurpose_name[int32(q.GetPurpose())] == "":
		return fault.Field("purpose", "is required")
	case tree && n != 1:
		return fault.Field("resource_ids", "a content tree is asked for exactly one resource, got %d", n)
	case n > 1000:
		return fault.Field("resource_ids", "at most 1000, got %d", n)
	case q.GetFilter() != nil && q.GetScope() != pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		return fault.Field("filter", "only resources are filtered")
	case q.GetPageSize() > 10_000:
		return fault.Field("page_size", "at most 10000, got %d", q.GetPageSize())
	case len(q.GetPageToken()) > 256:
		return fault.Field("page_token", "at most 256 bytes, got %d", len(q.GetPageToken()))
	case q.GetPageToken() != "" && q.GetPageSize() == 0:
		return fault.Field("page_token", "only a single page, with page_size, begins at one")
	case q.GetExpectedContentRevision() != "" && !tree:
		return fault.Field("expected_content_revision", "only a content tree has one")
	}
	for _, id := range q.GetResourceIds() {
		if len(id) < 1 || len(id) > 160 {
			return fault.Field("resource_ids", "an ID has 1 to 160 bytes, got %d", len(id))
		}
	}
	return nil
}

// send stores the query for the next page of the request; at says where it begins.
func (i *Inventory) send(tx Tx, daemon archive.DaemonRef, r *Request, at Query) error {
	q := at
	q.ID, q.RequestNo, q.DaemonNo, q.State, q.CreatedAt = uuid.New(), r.No, r.DaemonNo, Open, tx.Now()
	q.LastIndex, q.ContentRevision = q.AfterIndex, q.AfterRevision
	wire := proto.Clone(r.Query).(*pb.InventoryQuery)
	wire.QueryId = q.ID.String()
	if q.Page > 0 {
		wire.PageToken, wire.ExpectedRevision = r.NextPage, r.Revision
		if r.Scope == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
			wire.ExpectedContentRevision = q.AfterRevision
		}
	}
	c := &pb.Command{Operation: &pb.Command_InventoryQuery{InventoryQuery: wire}}
	no, err := i.o.Commands.Enqueue(tx, daemon, c)
	if err != nil {
		return err
	}
	q.CommandNo = no
	if q.CommandID, err = uuid.Parse(c.GetCommandId()); err != nil {
		return fault.Wrap(fault.Internal, err, "the command of an inventory query has no ID")
	}
	if err := tx.InventoryInsertQuery(&q); err != nil || q.Page > 0 {
		return err
	}
	r.FirstQuery = q.No
	return tx.InventoryUpdateRequest(r)
}

// QueryError is a request that failed.
type QueryError struct {
	Daemon uuid.UUID
	Detail *pb.ErrorDetail
}

// Error names the code and the message.
func (e *QueryError) Error() string {
	return fmt.Sprintf("inventory: %s: %s", archiveCode(e.Detail.GetCode()), e.Detail.GetMessage())
}

// Unwrap gives the fault that callers without a use for details see.
func (e *QueryError) Unwrap() error {
	code := fault.Conflict
	switch e.Detail.GetCode() {
	case pb.ErrorCode_ERROR_CODE_NOT_FOUND:
		code = fault.NotFound
	case pb.ErrorCode_ERROR_CODE_TIMEOUT:
		code = fault.Timeout
	case pb.ErrorCode_ERROR_CODE_STALE_REVISION, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT:
		code = fault.Stale
	case pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT:
		code = fault.Invalid
	default:
		if e.Detail.GetRetryable() {
			code = fault.Unavailable
		}
	}
	return fault.New(code, "%s: %s", archiveCode(e.Detail.GetCode()), e.Detail.GetMessage())
}

func archiveCode(c pb.ErrorCode) string {
	const prefix = "ERROR_CODE_"
	return c.String()[len(prefix):]
}

// Wait blocks until the request has ended, or ctx has.
func (i *Inventory) Wait(ctx context.Context, requestNo int64) (Result, error) {
	w := i.o.Hub.Watch(archive.QueryKey(requestNo))
	defer w.Stop()
	for {
		var r Request
		var d Daemon
		err := i.store.View(ctx, func(tx ReadTx) (err error) {
			ok := false
			if r, ok, err = tx.InventoryRequest(requestNo); err == nil && !ok {
				return fault.New(fault.NotFound, "the inventory request is no longer kept")
			}
			if err == nil {
				d, _, err = tx.InventoryDaemonByNo(r.DaemonNo)
			}
			return err
		})
		if err != nil {
			return Result{}, err
		}
		switch r.State {
		case Complete:
			return Result{RequestNo: r.No, RequestID: r.ID, Epoch: r.Epoch, Revision: r.Revision, Entries: r.Entries,
				NextPage: r.NextPage, FirstQuery: r.FirstQuery}, nil
		case Failed:
			return Result{}, &QueryError{Daemon: d.Ref.ID, Detail: r.Error}
		}
		select {
		case <-w.C():
		case <-ctx.Done():
			return Result{}, fault.Wrap(fault.Canceled, context.Cause(ctx), "the answer was not waited for")
		}
	}
}
