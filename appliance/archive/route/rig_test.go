package route_test

import (
	"context"
	"strings"
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
	"signalbox/appliance/archive/route"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

const (
	source = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	target = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
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

// rig is a route between two daemons, with the real inventory and command queue.
type rig struct {
	t      *testing.T
	clock  *clock.Fake
	db     *store.DB
	queue  *command.Queue
	inv    *inventory.Inventory
	routes *route.Routes
	s, t_  *daemon
	id     uuid.UUID
	no     int64
	ready  []bool // what OnChange was told
	alert  string // what Alert was told last
}

type daemon struct {
	r     *rig
	name  string
	link  archive.Link
	lines *command.Sending
	// log is the history of its side of the rig's route, as the daemon has it.
	log      []*pb.RouteUpdate
	creation string
	side     pb.ParticipantRole
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(begin)}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clock })
	hub := wake.New()
	r.queue = command.NewQueue(store.Bind[command.Tx, command.ReadTx](r.db), owners{}, command.Options{Clock: r.clock, Hub: hub})
	fence := func(tx registry.FenceTx, link archive.Link) error { _, err := owners{}.Owned(tx, link); return err }
	r.routes = route.NewRoutes(store.Bind[route.Tx, route.ReadTx](r.db), route.Options{
		Commands: route.Queued{Queue: r.queue}, Hub: hub,
		Fence: func(tx route.Tx, link archive.Link) error { return fence(tx, link) },
		Ask: func(tx route.Tx, d archive.DaemonRef) (int64, error) {
			q, err := r.inv.Ask(any(tx).(inventory.Tx), d, &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_ROUTES},
				pb.InventoryPurpose_INVENTORY_PURPOSE_RECONCILIATION)
			return q.No, err
		},
		OnChange: func(_ route.Tx, no int64, ready bool) error { r.ready = append(r.ready, ready); return nil },
		Alert:    func(_ route.Tx, _ int64, detail string) error { r.alert = detail; return nil }})
	r.inv = inventory.New(store.Bind[inventory.Tx, inventory.ReadTx](r.db), inventory.Options{
		Commands: inventory.Queued{Queue: r.queue}, Clock: r.clock, Hub: hub,
		Fence: func(tx inventory.Tx, link archive.Link) error { return fence(tx, link) },
		OnRoutes: func(tx inventory.Tx, link archive.Link, no int64, list []*pb.RouteSnapshot) error {
			return r.routes.OnRoutes(any(tx).(route.Tx), link, no, list)
		}})
	r.queue.Handle(archive.InventoryQuery, r.inv)
	for _, k := range []archive.CommandKind{archive.CreateRoute, archive.UpdateRoute, archive.RemoveRoute} {
		r.queue.Handle(k, r.routes)
	}
	r.s, r.t_ = r.daemon("seedbox", source), r.daemon("nas", target)
	return r
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

func (r *rig) daemon(name string, side pb.ParticipantRole) *daemon {
	r.t.Helper()
	d := &daemon{r: r, name: name, side: side, link: archive.Link{Daemon: archive.DaemonRef{ID: uuid.New()}, Generation: 1, Epoch: uuid.New()}}
	if err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO daemons (id, name, role, software, major, minor, negotiated_minor, limits, generation,
			generation_used, instance_id, state_epoch, epoch_since, first_epoch, online, registered_at, last_seen_at, created_at)
			VALUES (?, ?, 3, 'test', 2, 0, 0, x'', 1, 1, ?, ?, 0, ?, 1, 0, 0, 0)`, d.link.Daemon.ID, name, uuid.New(), d.link.Epoch, d.link.Epoch)
		if err != nil {
			return err
		}
		d.link.Daemon.No = res.LastInsertID()
		for _, c := range []string{"route.shared_directory", "route.provisioning"} {
			if _, err := tx.Exec(`INSERT INTO daemon_capabilities (daemon_no, name) VALUES (?, ?)`, d.link.Daemon.No, c); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	d.lines = r.queue.Connect(d.link, func() {})
	return d
}

func (r *rig) request() route.New {
	return route.New{Name: "home", Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, Source: r.s.link.Daemon.ID, Target: r.t_.link.Daemon.ID,
		SourceRoot: "outbox", TargetRoot: "receive"}
}

func (r *rig) create() {
	r.t.Helper()
	id, err := r.routes.Create(ctx, r.request())
	if err != nil {
		r.t.Fatal(err)
	}
	r.id, r.no = id, r.count(`SELECT route_no FROM archive_routes WHERE id = ?`, id)
}

// made is a route that both sides have probed: it is ready.
func made(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.create()
	r.s.answer(r.s.one())
	r.t_.answer(r.t_.one())
	if v := r.view(); !v.Verdict.Ready {
		t.Fatalf("not ready: %v", v.Verdict.Why)
	}
	return r
}

func (r *rig) view() route.View {
	r.t.Helper()
	v, _, err := r.routes.Show(ctx, r.id.String())
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// wantState checks the state, in the judgement and as stored, and that the reasons contain a text.
func (r *rig) wantState(state pb.RouteState, why string) {
	r.t.Helper()
	v := r.view()
	if v.Verdict.State != state || v.Route.State != state || !strings.Contains(strings.Join(v.Verdict.Why, "; "), why) {
		r.t.Errorf("state %s, stored %s, because %v; want %s because %q", v.Verdict.State, v.Route.State, v.Verdict.Why, state, why)
	}
	if ready, _, err := r.inTx(); err != nil || ready != (state == pb.RouteState_ROUTE_STATE_READY) {
		r.t.Errorf("Ready: %v, %v", ready, err)
	}
}

func (r *rig) inTx() (ready bool, why string, err error) {
	err = r.db.View(ctx, func(tx *store.ReadTx) error { ready, why, err = r.routes.Ready(tx, r.no); return err })
	return ready, why, err
}

// take receives and acknowledges what is to be sent.
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

func (d *daemon) one() *pb.Command {
	d.r.t.Helper()
	list := d.take()
	if len(list) != 1 {
		d.r.t.Fatalf("%s: %d commands, want 1: %v", d.name, len(list), list)
	}
	return list[0]
}

func (d *daemon) none() {
	d.r.t.Helper()
	if list := d.take(); len(list) > 0 {
		d.r.t.Fatalf("%s: commands that should not be: %v", d.name, list)
	}
}

// next is the next update of the daemon's history.
func (d *daemon) next(c *pb.Command, state pb.RouteState) *pb.RouteUpdate {
	if c.GetCreateRoute() != nil && d.creation != c.GetCommandId() {
		d.creation, d.log = c.GetCommandId(), nil
	}
	u := &pb.RouteUpdate{UpdateId: uuid.NewString(), RouteId: d.r.id.String(), CreationCommandId: d.creation,
		Sequence: uint64(len(d.log)) + 1, CommandId: c.GetCommandId(), Side: d.side, State: state}
	if state == pb.RouteState_ROUTE_STATE_READY {
		nonce := c.GetCreateRoute().GetProbeNonce() + c.GetUpdateRoute().GetProbeNonce()
		u.Probe = &pb.ProbeResult{Sha256: "digest of " + nonce, SameFilesystem: true}
		if d.side == target {
			u.Probe.NonceSeen = nonce
		}
	}
	d.log = append(d.log, u)
	return u
}

func (d *daemon) send(u *pb.RouteUpdate) *pb.RouteUpdateAck {
	d.r.t.Helper()
	ack, err := d.r.routes.Update(ctx, d.link, u)
	if err != nil {
		d.r.t.Fatal(err)
	}
	return ack
}

// answer does the command as a good daemon would: PROBING, then READY.
func (d *daemon) answer(c *pb.Command) {
	d.r.t.Helper()
	d.send(d.next(c, pb.RouteState_ROUTE_STATE_PROBING))
	d.send(d.next(c, pb.RouteState_ROUTE_STATE_READY))
}

func (d *daemon) snapshot() *pb.RouteSnapshot {
	s := &pb.RouteSnapshot{RouteId: d.r.id.String(), Side: d.side, CreationCommandId: d.creation, LastSequence: uint64(len(d.log))}
	for _, u := range d.log {
		s.Updates = append(s.Updates, proto.CloneOf(u))
		s.State = u.GetState()
	}
	return s
}

// tell answers a ROUTES query.
func (d *daemon) tell(c *pb.Command, list ...*pb.RouteSnapshot) {
	d.r.t.Helper()
	q := c.GetInventoryQuery()
	if q.GetScope() != pb.InventoryScope_INVENTORY_SCOPE_ROUTES || q.GetPurpose() != pb.InventoryPurpose_INVENTORY_PURPOSE_RECONCILIATION {
		d.r.t.Fatalf("not a query for routes: %v", c)
	}
	if err := d.r.inv.Chunk(ctx, d.link, &pb.InventoryChunk{QueryId: q.GetQueryId(), CommandId: c.GetCommandId(), SnapshotId: uuid.NewString(),
		Revision: 1, LastChunk: true, EntriesTotal: uint32(len(list)),
		Content: &pb.InventoryChunk_Routes{Routes: &pb.RouteSnapshotList{Entries: list}}}); err != nil {
		d.r.t.Fatal(err)
	}
}
