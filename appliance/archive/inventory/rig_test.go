package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

var ctx = context.Background()

var begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// owners is the registry as the queue sees it, on the real rows.
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

// rig is an inventory on a real database and a real command queue.
type rig struct {
	t      testing.TB
	clock  *clock.Fake
	db     *store.DB
	hub    *wake.Hub
	queue  *command.Queue
	inv    *inventory.Inventory
	routes [][]*pb.RouteSnapshot // what OnRoutes was given
	stop   func()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin)}
	r.db = storetest.Open(t, r.clocked)
	r.start()
	return r
}

func (r *rig) clocked(o *store.Options) { o.Clock = r.clock }

func (r *rig) start() {
	r.t.Helper()
	r.hub = wake.New()
	r.queue = command.NewQueue(store.Bind[command.Tx, command.ReadTx](r.db), owners{}, command.Options{Clock: r.clock, Hub: r.hub})
	r.inv = inventory.New(store.Bind[inventory.Tx, inventory.ReadTx](r.db), inventory.Options{
		Commands: inventory.Queued{Queue: r.queue}, Clock: r.clock, Hub: r.hub,
		Fence: func(tx inventory.Tx, link archive.Link) error { _, err := owners{}.Owned(tx, link); return err },
		OnRoutes: func(_ inventory.Tx, _ archive.Link, _ int64, list []*pb.RouteSnapshot) error {
			r.routes = append(r.routes, list)
			return nil
		},
		Upkeep: store.BindUpkeep[inventory.Tx, inventory.ReadTx](r.db)})
	r.queue.Handle(archive.InventoryQuery, r.inv)
	if err := r.inv.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = r.inv.Run(run) }()
	r.stop = func() { cancel(); <-done }
	r.t.Cleanup(r.stop)
}

// restart is the end of one process and the start of the next.
func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.db = storetest.Reopen(r.t, r.db, r.clocked)
	r.start()
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

// daemon is a daemon that answers as the test says.
type daemon struct {
	r     *rig
	link  archive.Link
	lines *command.Sending
}

func (r *rig) daemon(name string) *daemon {
	r.t.Helper()
	d := &daemon{r: r, link: archive.Link{Daemon: archive.DaemonRef{ID: uuid.New()}, Generation: 1, Epoch: uuid.New()}}
	if err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO daemons (id, name, role, software, major, minor, negotiated_minor, limits, generation,
			generation_used, instance_id, state_epoch, epoch_since, first_epoch, online, registered_at, last_seen_at, created_at)
			VALUES (?, ?, 3, 'test', 2, 0, 0, x'', 1, 1, ?, ?, 0, ?, 1, 0, 0, 0)`, d.link.Daemon.ID, name, uuid.New(), d.link.Epoch, d.link.Epoch)
		d.link.Daemon.No = res.LastInsertID()
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	d.connect()
	return d
}

func (d *daemon) connect() { d.lines = d.r.queue.Connect(d.link, func() {}) }

// reconnect registers anew: the next generation takes over.
func (d *daemon) reconnect() {
	d.r.t.Helper()
	_ = d.lines.Close(ctx, "test")
	d.link.Generation++
	d.r.exec(`UPDATE daemons SET generation = ?, online = 1 WHERE daemon_no = ?`, d.link.Generation, d.link.Daemon.No)
	if err := d.r.db.Update(ctx, "register", func(tx *store.Tx) error { return d.r.inv.OnRegister(tx, d.link) }); err != nil {
		d.r.t.Fatal(err)
	}
	d.connect()
}

// take receives the commands that may be sent now, and acknowledges them.
func (d *daemon) take() []*pb.Command {
	d.r.t.Helper()
	out := d.receive()
	for _, c := range out {
		d.ack(c, pb.AckStatus_ACK_STATUS_ACCEPTED, nil)
	}
	return out
}

func (d *daemon) receive() []*pb.Command {
	d.r.t.Helper()
	var out []*pb.Command
	for {
		claimed, err := d.lines.Next(ctx, 1<<20)
		if err != nil {
			d.r.t.Fatal(err)
		}
		if len(claimed) == 0 {
			return out
		}
		for _, c := range claimed {
			out = append(out, c.Command)
		}
	}
}

func (d *daemon) ack(c *pb.Command, status pb.AckStatus, detail *pb.ErrorDetail) {
	d.r.t.Helper()
	_, digest := frame.PayloadIdentity(c)
	if err := d.r.queue.Acked(ctx, d.link, &pb.CommandAck{CommandId: c.GetCommandId(), Status: status, PayloadSha256: digest,
		Error: detail}); err != nil {
		d.r.t.Fatal(err)
	}
}

// query asks, and returns the wire query as the daemon got it.
func (d *daemon) query(q *pb.InventoryQuery) (*pb.Command, func() (inventory.Result, error)) {
	d.r.t.Helper()
	_, wait, err := d.r.inv.Query(ctx, d.link.Daemon.ID, q, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
	if err != nil {
		d.r.t.Fatal(err)
	}
	return d.one(), func() (inventory.Result, error) { return wait(ctx) }
}

// one takes the only command that is to be sent.
func (d *daemon) one() *pb.Command {
	d.r.t.Helper()
	list := d.take()
	if len(list) != 1 {
		d.r.t.Fatalf("%d commands are sent, want 1", len(list))
	}
	return list[0]
}

// none checks that nothing is to be sent.
func (d *daemon) none() {
	d.r.t.Helper()
	if list := d.take(); len(list) != 0 {
		d.r.t.Fatalf("commands are sent that should not be: %v", list)
	}
}

func (d *daemon) chunk(c *pb.InventoryChunk) {
	d.r.t.Helper()
	if err := d.r.inv.Chunk(ctx, d.link, c); err != nil {
		d.r.t.Fatal(err)
	}
}

// answer is a snapshot in the making.
type answer struct {
	d        *daemon
	c        *pb.Command
	snapshot string
	revision uint64
	next     uint32
	total    uint32
}

func (d *daemon) answer(c *pb.Command, revision uint64) *answer {
	return &answer{d: d, c: c, snapshot: uuid.NewString(), revision: revision}
}

// part is the next chunk, to be changed by the caller before it is sent.
func (a *answer) part(content any, last bool) *pb.InventoryChunk {
	c := &pb.InventoryChunk{QueryId: a.c.GetInventoryQuery().GetQueryId(), CommandId: a.c.GetCommandId(), SnapshotId: a.snapshot,
		Revision: a.revision, ChunkIndex: a.next, LastChunk: last}
	a.next++
	switch v := content.(type) {
	case []*pb.ResourceSummary:
		c.Content = &pb.InventoryChunk_Resources{Resources: &pb.ResourceList{Entries: v}}
		a.total += uint32(len(v))
	case *pb.ContentTreePart:
		c.Content = &pb.InventoryChunk_ContentTree{ContentTree: v}
		a.total += uint32(len(v.GetFiles()))
	case []*pb.StorageEntry:
		c.Content = &pb.InventoryChunk_Storage{Storage: &pb.StorageList{Entries: v}}
		a.total += uint32(len(v))
	case []*pb.RouteSnapshot:
		c.Content = &pb.InventoryChunk_Routes{Routes: &pb.RouteSnapshotList{Entries: v}}
		a.total += uint32(len(v))
	case []*pb.JobCursor:
		c.Content = &pb.InventoryChunk_Jobs{Jobs: &pb.JobCursorList{Entries: v}}
		a.total += uint32(len(v))
	}
	if last {
		c.EntriesTotal = a.total
	}
	return c
}

func (a *answer) send(content any, last bool) { a.d.r.t.Helper(); a.d.chunk(a.part(content, last)) }

const treeRevision = "00000000000000000000000000000000000000000000000000000000000000aa"

func (d *daemon) resource(id string) *pb.ResourceSummary {
	return &pb.ResourceSummary{Resource: &pb.ResourceRef{ClientId: d.link.Daemon.ID.String(), ResourceId: id,
		Identity: &pb.ResourceIdentity{InfohashV1: fmt.Sprintf("%040x", id), DisplayName: "name of " + id}}, ContentRootId: "content"}
}

func (d *daemon) resources(ids ...string) []*pb.ResourceSummary {
	var out []*pb.ResourceSummary
	for _, id := range ids {
		out = append(out, d.resource(id))
	}
	return out
}

// tree is a part of a content tree with the files first to last.
func (d *daemon) tree(resource, revision string, header bool, first, last int) *pb.ContentTreePart {
	p := &pb.ContentTreePart{ContentRevision: revision}
	if header {
		p.Header = &pb.ContentTree{Resource: d.resource(resource).Resource, ContentRevision: revision}
	}
	for i := first; i <= last; i++ {
		p.Files = append(p.Files, &pb.FileEntry{Index: uint32(i), Path: fmt.Sprintf("%s/file %d", resource, i), ContentRevision: revision,
			Kind: pb.FileKind_FILE_KIND_REGULAR, LogicalBytes: 10, CompletedBytes: 10, Selected: true})
	}
	return p
}

func treeQuery(resource string) *pb.InventoryQuery {
	return &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE, ResourceIds: []string{resource}}
}

func scope(s pb.InventoryScope) *pb.InventoryQuery { return &pb.InventoryQuery{Scope: s} }

var resourcesQuery = scope(pb.InventoryScope_INVENTORY_SCOPE_RESOURCES)

// names lists the stored resources of the daemon; an absent one has a star.
func (d *daemon) names() (out []string) {
	d.r.t.Helper()
	p, err := d.r.inv.Resources(ctx, inventory.Filter{DaemonNo: d.link.Daemon.No, Absent: true}, "", 1000)
	if err != nil {
		d.r.t.Fatal(err)
	}
	for _, r := range p.Resources {
		name := r.Summary.GetResource().GetResourceId()
		if r.Absent {
			name += "*"
		}
		out = append(out, name)
	}
	return out
}

func asError(err error, target any) bool { return errors.As(err, target) }

func clone(c *pb.Command) *pb.Command { return proto.CloneOf(c) }
