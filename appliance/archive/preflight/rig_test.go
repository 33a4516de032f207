package preflight_test

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/preflight"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/archive/route"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var ctx = context.Background()

var begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

type owners struct{}

func (o owners) Owner(tx registry.FenceTx, link archive.Link) (registry.Owner, error) {
	return o.Owned(tx, link)
}

func (owners) Owned(tx registry.FenceTx, link archive.Link) (registry.Owner, error) {
	o, err := tx.RegistryOwner(link.Daemon.No)
	if err == nil && (o.Generation != link.Generation || !o.Online) {
		err = fault.New(fault.Stale, "generation %d is over", link.Generation)
	}
	return o, err
}

func (owners) Current(int64) (archive.Link, bool) { return archive.Link{}, false }

func (owners) Liveness() registry.Liveness {
	return registry.Liveness{CommandRetry: 15 * time.Second, CommandAttempts: 3}
}

func (owners) RaiseAlert(tx registry.AlertTx, kind archive.AlertKind, daemonNo, jobNo int64, detail string) error {
	return tx.RegistryRaise(kind, daemonNo, jobNo, detail)
}

// readiness says whether the rig's route is ready.
type readiness struct {
	mu  sync.Mutex
	why string
}

func (r *readiness) Ready(route.ReadTx, int64) (bool, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why == "", r.why, nil
}

func (r *readiness) set(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
}

// rig is a preflight between two daemons that answer by themselves.
type rig struct {
	t      testing.TB
	clock  *clock.Fake
	db     *store.DB
	hub    *wake.Hub
	queue  *command.Queue
	inv    *inventory.Inventory
	pre    *preflight.Preflight
	route  readiness
	stop   func()
	s, n   *daemon // source and target
	routes uuid.UUID
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin)}
	r.db = storetest.Open(t, r.clocked)
	r.start()
	r.s = r.daemon("seedbox", archive.CapHardlink, archive.CapEviction)
	r.n = r.daemon("nas", archive.CapHardlink)
	r.s.roots = []*pb.StorageEntry{root("data", pb.RootKind_ROOT_KIND_CONTENT, "outbox"), root("outbox", pb.RootKind_ROOT_KIND_OUTBOX, "data")}
	r.n.roots = []*pb.StorageEntry{root("archive", pb.RootKind_ROOT_KIND_CONTENT, "receive"), root("receive", pb.RootKind_ROOT_KIND_RECEIVE, "archive")}
	r.s.put("r1", "data", "tv", tree("Show", 3))
	r.routes = uuid.New()
	m, err := proto.Marshal(&pb.Route{RouteId: r.routes.String(), Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY,
		SourceClientId: r.s.link.Daemon.ID.String(), TargetClientId: r.n.link.Daemon.ID.String(),
		Source: &pb.RouteEndpoint{RootId: "outbox"}, Target: &pb.RouteEndpoint{RootId: "receive"}, DisplayName: "home"})
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`INSERT INTO archive_routes (id, name, kind, source_daemon_no, target_daemon_no, route, state, created_at, updated_at)
		VALUES (?, 'home', 10, ?, ?, ?, 30, 0, 0)`, r.routes, r.s.link.Daemon.No, r.n.link.Daemon.No, m)
	return r
}

func (r *rig) clocked(o *store.Options) { o.Clock = r.clock }

func (r *rig) start() {
	r.t.Helper()
	r.hub = wake.New()
	r.queue = command.NewQueue(store.Bind[command.Tx, command.ReadTx](r.db), owners{}, command.Options{Clock: r.clock, Hub: r.hub})
	r.inv = inventory.New(store.Bind[inventory.Tx, inventory.ReadTx](r.db), inventory.Options{
		Commands: inventory.Queued{Queue: r.queue}, Clock: r.clock, Hub: r.hub,
		Fence: func(tx inventory.Tx, link archive.Link) error { _, err := owners{}.Owned(tx, link); return err }})
	r.queue.Handle(archive.InventoryQuery, r.inv)
	r.pre = preflight.New(store.Bind[preflight.Tx, preflight.ReadTx](r.db), preflight.Options{Inventory: r.inv, Routes: &r.route, Hub: r.hub, Clock: r.clock,
		Upkeep:  store.BindUpkeep[preflight.Tx, preflight.ReadTx](r.db),
		Trouble: func(err error) { r.t.Errorf("trouble: %v", err) }})
	if err := r.inv.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	if err := r.pre.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = r.pre.Run(run) }()
	r.stop = func() { cancel(); <-done }
	r.t.Cleanup(r.stop)
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	if err := r.db.Update(ctx, "test", func(tx *store.Tx) error { _, err := tx.Exec(query, args...); return err }); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) count(query string, args ...any) (n int64) {
	r.t.Helper()
	if err := r.db.View(ctx, func(tx *store.ReadTx) error { return tx.QueryRow(query, args...).Scan(&n) }); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func root(id string, kind pb.RootKind, same string) *pb.StorageEntry {
	return &pb.StorageEntry{RootId: id, RootKind: kind, TotalBytes: 1 << 40, FreeBytes: 1 << 40, Writable: true, SameFilesystemAs: []string{same},
		Profile: &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, SupportsSparse: true, SupportsHardlink: true}}
}

// held is a resource of a simulated daemon.
type held struct {
	summary *pb.ResourceSummary
	tree    *pb.ContentTree
	// absent hides it from lists of resources.
	absent bool
}

// daemon is a daemon that answers inventory queries by itself until its socket is cut.
type daemon struct {
	r    *rig
	name string
	link archive.Link
	stop func()

	mu       sync.Mutex
	held     map[string]*held
	roots    []*pb.StorageEntry
	revision uint64
	asked    []string // scopes in order
	before   func(q *pb.InventoryQuery) *pb.ErrorDetail
}

func (r *rig) daemon(name string, caps ...string) *daemon {
	r.t.Helper()
	d := &daemon{r: r, name: name, held: map[string]*held{}, revision: 1,
		link: archive.Link{Daemon: archive.DaemonRef{ID: uuid.New()}, Generation: 1, Epoch: uuid.New()}}
	limits, err := proto.Marshal(&pb.Limits{MaxEnvelopeBytes: 1 << 20, MaxActiveCursors: 256})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO daemons (id, name, role, software, major, minor, negotiated_minor, limits, generation,
			generation_used, instance_id, state_epoch, epoch_since, first_epoch, online, registered_at, last_seen_at, created_at)
			VALUES (?, ?, 3, 'test', 2, 0, 0, ?, 1, 1, ?, ?, 0, ?, 1, 0, 0, 0)`, d.link.Daemon.ID, name, limits, uuid.New(), d.link.Epoch, d.link.Epoch)
		if err != nil {
			return err
		}
		d.link.Daemon.No = res.LastInsertID()
		for _, c := range append(caps, archive.CapRouteSharedDirectory) {
			if _, err := tx.Exec(`INSERT INTO daemon_capabilities (daemon_no, name) VALUES (?, ?)`, d.link.Daemon.No, c); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	d.connect()
	return d
}

// connect has the daemon answer until cut.
func (d *daemon) connect() {
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	lines := d.r.queue.Connect(d.link, func() {})
	watch := d.r.hub.Watch(archive.DaemonKey(d.link.Daemon.No))
	inv, queue := d.r.inv, d.r.queue
	go func() {
		defer close(done)
		defer watch.Stop()
		for {
			claimed, err := lines.Next(run, 1<<20)
			if err != nil {
				return
			}
			for _, c := range claimed {
				_, digest := frame.PayloadIdentity(c.Command)
				if err := queue.Acked(run, d.link, &pb.CommandAck{CommandId: c.Command.GetCommandId(), Status: pb.AckStatus_ACK_STATUS_ACCEPTED,
					PayloadSha256: digest}); err != nil {
					return
				}
				for _, chunk := range d.answer(c.Command) {
					if err := inv.Chunk(run, d.link, chunk); err != nil {
						return
					}
				}
			}
			if len(claimed) > 0 {
				continue
			}
			select {
			case <-watch.C():
			case <-run.Done():
				return
			}
		}
	}()
	d.stop = func() { cancel(); <-done }
	d.r.t.Cleanup(d.stop)
}

func (d *daemon) answer(c *pb.Command) []*pb.InventoryChunk {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := c.GetInventoryQuery()
	chunk := func() *pb.InventoryChunk {
		return &pb.InventoryChunk{QueryId: q.GetQueryId(), CommandId: c.GetCommandId(), SnapshotId: q.GetQueryId(), Revision: d.revision}
	}
	d.asked = append(d.asked, strings.TrimPrefix(q.GetScope().String(), "INVENTORY_SCOPE_"))
	if d.before != nil {
		if e := d.before(q); e != nil {
			last := chunk()
			last.LastChunk, last.Error = true, e
			return []*pb.InventoryChunk{last}
		}
	}
	last := chunk()
	last.LastChunk = true
	switch q.GetScope() {
	case pb.InventoryScope_INVENTORY_SCOPE_RESOURCES:
		list := &pb.ResourceList{}
		for id, h := range d.held {
			if !h.absent && (len(q.GetResourceIds()) == 0 || q.GetResourceIds()[0] == id) && fitsFilter(h.summary, q.GetFilter()) {
				list.Entries = append(list.Entries, h.summary)
			}
		}
		last.Content, last.EntriesTotal = &pb.InventoryChunk_Resources{Resources: list}, uint32(len(list.Entries))
	case pb.InventoryScope_INVENTORY_SCOPE_STORAGE:
		last.Content, last.EntriesTotal = &pb.InventoryChunk_Storage{Storage: &pb.StorageList{Entries: d.roots}}, uint32(len(d.roots))
	case pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE:
		h := d.held[q.GetResourceIds()[0]]
		if h == nil {
			last.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND, Message: "no such resource"}
			return []*pb.InventoryChunk{last}
		}
		return d.chunks(chunk, h.tree)
	}
	return []*pb.InventoryChunk{last}
}

// chunks splits a tree as a daemon would.
func (d *daemon) chunks(chunk func() *pb.InventoryChunk, t *pb.ContentTree) (out []*pb.InventoryChunk) {
	header := proto.CloneOf(&pb.ContentTree{Resource: t.Resource, ContentRevision: t.ContentRevision, Torrent: t.Torrent, Partfile: t.Partfile,
		BackendState: t.BackendState, SharedWith: t.SharedWith, MetainfoAvailable: t.MetainfoAvailable})
	for at := 0; at == 0 || at < len(t.Files); at += 500 {
		c := chunk()
		part := &pb.ContentTreePart{Header: header, ContentRevision: t.ContentRevision, Files: t.Files[at:min(at+500, len(t.Files))]}
		header = nil
		c.ChunkIndex, c.Content = uint32(len(out)), &pb.InventoryChunk_ContentTree{ContentTree: part}
		out = append(out, c)
	}
	last := out[len(out)-1]
	last.LastChunk, last.EntriesTotal = true, uint32(len(t.Files))
	return out
}

func fitsFilter(s *pb.ResourceSummary, f *pb.ResourceFilter) bool {
	if f.GetIdentity() != nil && !archive.IdentityMatch(f.GetIdentity(), s.GetResource().GetIdentity()) {
		return false
	}
	if len(f.GetContentRootIds()) > 0 && f.GetContentRootIds()[0] != s.GetContentRootId() {
		return false
	}
	return strings.Contains(s.GetResource().GetIdentity().GetDisplayName(), f.GetText())
}

// tree is a torrent of n files.
func tree(name string, n int) *pb.ContentTree {
	t := &pb.ContentTree{Resource: &pb.ResourceRef{Identity: &pb.ResourceIdentity{InfohashV1: fmt.Sprintf("%040x", name), DisplayName: name}},
		Torrent:      &pb.TorrentFacts{MetaVersion: 1, PieceBytes: 100, PieceCount: uint32(n), Name: name, MultiFile: true, V1LayoutAligned: true},
		BackendState: pb.BackendState_BACKEND_STATE_SEEDING, MetainfoAvailable: true}
	for i := range n {
		t.Files = append(t.Files, &pb.FileEntry{Index: uint32(i), Path: path.Join(name, fmt.Sprintf("e%d.mkv", i)), Kind: pb.FileKind_FILE_KIND_REGULAR,
			LogicalBytes: 100, AllocatedBytes: 100, CompletedBytes: 100, DiskBytes: 100, Selected: true, LinkCount: 1,
			FirstPiece: uint32(i), LastPiece: uint32(i), Present: pb.DiskPresence_DISK_PRESENCE_FINAL_NAME})
	}
	return t
}

// put gives the daemon a resource; its content revision follows from the place and the edits so far.
func (d *daemon) put(id, rootID, dir string, t *pb.ContentTree) *held {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Resource.ClientId, t.Resource.ResourceId = d.link.Daemon.ID.String(), id
	h := &held{tree: t, summary: &pb.ResourceSummary{Resource: t.Resource, ContentRootId: rootID, RelativeDir: dir}}
	d.held[id] = h
	d.stamp(h)
	return h
}

// stamp gives the tree a new content revision.
func (d *daemon) stamp(h *held) {
	d.revision++
	h.tree.ContentRevision = fmt.Sprintf("%064x", d.revision)
	for _, f := range h.tree.Files {
		f.ContentRevision = h.tree.ContentRevision
	}
	h.summary.ContentRevision = h.tree.ContentRevision
}

// change edits the daemon's content.
func (d *daemon) change(id string, fn func(h *held)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[id]
	h.tree = proto.CloneOf(h.tree)
	fn(h)
	d.stamp(h)
}

func (r *rig) transfer() job.Request {
	return job.Request{Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, Source: r.s.link.Daemon.ID, Target: r.n.link.Daemon.ID,
		ResourceID: "r1", Route: r.routes}
}

// preview makes a preview and waits for its end.
func (r *rig) preview(req job.Request, patterns ...string) preflight.Preview {
	r.t.Helper()
	id, err := r.pre.PreviewFiles(ctx, req, patterns, "alice")
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := r.pre.Wait(ctx, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) passed(req job.Request, patterns ...string) preflight.Preview {
	r.t.Helper()
	v := r.preview(req, patterns...)
	if v.State != preflight.Passed {
		r.t.Fatalf("failed: %v", v.Error)
	}
	return v
}
