package route_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/route"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func TestProbeGoesOverTheSourceFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create()
	r.wantState(pb.RouteState_ROUTE_STATE_PROVISIONING, "source seedbox has not confirmed")
	r.t_.none()
	c := r.s.one()
	create := c.GetCreateRoute()
	if create.GetSide() != source || create.GetExpectedSequence() != 0 || len(create.GetProbeNonce()) != 32 ||
		create.GetRoute().GetSource().GetShared().GetSharedMarker() != "outbox" || create.GetRoute().GetTarget().GetRootId() != "receive" {
		t.Fatalf("%v", c)
	}
	if ack := r.s.send(r.s.next(c, pb.RouteState_ROUTE_STATE_PROBING)); ack.GetPersistedThrough() != 1 {
		t.Errorf("ack: %v", ack)
	}
	r.t_.none() // the probe file is not there yet
	r.wantState(pb.RouteState_ROUTE_STATE_PROVISIONING, "source seedbox is still PROBING")
	r.s.send(r.s.next(c, pb.RouteState_ROUTE_STATE_READY))
	c2 := r.t_.one()
	if c2.GetCreateRoute().GetSide() != target || c2.GetCreateRoute().GetProbeNonce() != create.GetProbeNonce() {
		t.Fatalf("the target is asked for another nonce: %v", c2)
	}
	r.wantState(pb.RouteState_ROUTE_STATE_PROBING, "target nas has not reported")
	r.t_.answer(c2)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	if !slices.Equal(r.ready, []bool{true}) {
		t.Errorf("told of changes %v", r.ready)
	}
	r.s.none()
	r.t_.none()
}

func TestTestProbesBothSidesAnew(t *testing.T) {
	t.Parallel()
	r := made(t)
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	r.wantState(pb.RouteState_ROUTE_STATE_PROVISIONING, "")
	c := r.s.one()
	if u := c.GetUpdateRoute(); u.GetExpectedSequence() != 2 || u.GetProbeNonce() == "" {
		t.Fatalf("%v", c)
	}
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatalf("a second test, with the first confirmed: %v", err)
	}
	late := r.s.next(c, pb.RouteState_ROUTE_STATE_READY)
	if err := r.routes.Test(ctx, r.id); !fault.Is(err, fault.Conflict) {
		t.Errorf("a test while the source has not answered: %v", err)
	}
	c2 := r.s.one()
	if c2.GetUpdateRoute().GetExpectedSequence() != 2 {
		t.Fatalf("%v", c2)
	}
	// READY of the former probe follows neither the latest command nor its nonce.
	r.s.send(late)
	r.t_.take()
	if r.view().Verdict.Ready {
		t.Error("ready by the answer to a former probe")
	}
	r.s.answer(c2)
}

func TestTestAfterFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create()
	c := r.s.receive()[0]
	r.s.ack(c, pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND, Message: "no outbox root"})
	r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "did not take the route: no outbox root")
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	c2 := r.s.one()
	if c2.GetCreateRoute() == nil || c2.GetCommandId() == c.GetCommandId() {
		t.Fatalf("a refused side is not created anew: %v", c2)
	}
	r.s.answer(c2)
	// The target fails its probe, is repaired, and probed again: its side is updated.
	c3 := r.t_.one()
	u := r.t_.next(c3, pb.RouteState_ROUTE_STATE_FAILED)
	u.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, Message: "receive root is read-only"}
	r.t_.send(u)
	r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "receive root is read-only")
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	r.s.answer(r.s.one())
	c4 := r.t_.one()
	if c4.GetUpdateRoute().GetExpectedSequence() != 1 {
		t.Fatalf("%v", c4)
	}
	r.t_.answer(c4)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
}

func TestUnansweredCommandIsSentAgainOnRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create()
	var first *pb.Command
	for range 3 {
		first = r.s.receive()[0]
		r.clock.Advance(15 * time.Second)
	}
	if n := len(r.s.receive()); n != 0 {
		t.Fatal("sent a fourth time")
	}
	r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "did not acknowledge")
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	again := r.s.one()
	if again.GetCommandId() != first.GetCommandId() {
		t.Error("another command is sent while nobody knows of the first")
	}
	r.s.answer(again)
	r.t_.answer(r.t_.one())
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
}

func TestOfflineAndDegradedClearReady(t *testing.T) {
	t.Parallel()
	r := made(t)
	offline := func(d *daemon, on int) {
		t.Helper()
		if err := r.db.Update(ctx, "online", func(tx *store.Tx) error {
			if _, err := tx.Exec(`UPDATE daemons SET online = ? WHERE daemon_no = ?`, on, d.link.Daemon.No); err != nil {
				return err
			}
			if on == 1 {
				return r.routes.OnRegister(tx, d.link, route.Same)
			}
			return r.routes.OnOffline(tx, d.link.Daemon.No)
		}); err != nil {
			t.Fatal(err)
		}
	}
	offline(r.t_, 0)
	r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "target nas is offline")
	offline(r.t_, 1)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	u := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_DEGRADED)
	u.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true, Message: "outbox is not mounted"}
	r.s.send(u)
	r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "outbox is not mounted")
	if !slices.Equal(r.ready, []bool{true, false, true, false}) {
		t.Errorf("told of changes %v", r.ready)
	}
	r.s.none()
	r.t_.none()
}

func TestRemove(t *testing.T) {
	t.Parallel()
	r := made(t)
	r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, route_no, created_at) VALUES (1, ?, 1, '', '{}', 30, ?, 0)`, uuid.New(), r.no)
	if err := r.routes.Remove(ctx, r.id, true); !fault.Is(err, fault.Conflict) {
		t.Fatalf("an active job uses it: %v", err)
	}
	r.exec(`UPDATE archive_jobs SET state = 90`)
	if err := r.routes.Remove(ctx, r.id, true); err != nil {
		t.Fatal(err)
	}
	r.wantState(pb.RouteState_ROUTE_STATE_REMOVING, "seedbox has not removed")
	for _, d := range []*daemon{r.s, r.t_} {
		c := d.one()
		if m := c.GetRemoveRoute(); m.GetRouteId() != r.id.String() || m.GetExpectedSequence() != 2 || !m.GetRemoveProvisioned() || m.GetSide() != d.side {
			t.Fatalf("%v", c)
		}
		if err := r.routes.Test(ctx, r.id); !fault.Is(err, fault.Conflict) {
			t.Errorf("a removed route is tested: %v", err)
		}
		if ack := d.send(d.next(c, pb.RouteState_ROUTE_STATE_REMOVED)); ack.GetPersistedThrough() != 3 {
			t.Errorf("ack: %v", ack)
		}
	}
	r.wantState(pb.RouteState_ROUTE_STATE_REMOVED, "")
	if list, err := r.routes.List(ctx, false); err != nil || len(list) != 0 {
		t.Errorf("listed: %v, %v", list, err)
	}
	if list, err := r.routes.List(ctx, true); err != nil || len(list) != 1 {
		t.Errorf("listed with removed ones: %v, %v", list, err)
	}
	r.create() // the name is free
}

func TestRemoveThatADaemonRefuses(t *testing.T) {
	t.Parallel()
	r := made(t)
	if err := r.routes.Remove(ctx, r.id, false); err != nil {
		t.Fatal(err)
	}
	// The target does not know it; the source is one update ahead.
	r.t_.ack(r.t_.receive()[0], pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND})
	ahead := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY)
	ahead.Probe = r.s.log[1].Probe
	r.s.ack(r.s.receive()[0], pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE})
	r.s.tell(r.s.one(), r.s.snapshot())
	c := r.s.one()
	if c.GetRemoveRoute().GetExpectedSequence() != 3 {
		t.Fatalf("%v", c)
	}
	r.s.send(r.s.next(c, pb.RouteState_ROUTE_STATE_REMOVED))
	r.wantState(pb.RouteState_ROUTE_STATE_REMOVED, "")
}

func TestCreateIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, test := range []struct {
		name string
		edit func(*route.New)
		code fault.Code
		text string
	}{
		{"kind", func(n *route.New) { n.Kind = pb.RouteKind_ROUTE_KIND_RSYNC_SSH }, fault.Invalid, "RSYNC_SSH is not offered"},
		{"no name", func(n *route.New) { n.Name = "" }, fault.Invalid, "name"},
		{"control characters", func(n *route.New) { n.Name = "a\nb" }, fault.Invalid, "name"},
		{"one daemon", func(n *route.New) { n.Target = n.Source }, fault.Invalid, "target"},
		{"unknown daemon", func(n *route.New) { n.Target = uuid.New() }, fault.NotFound, "target"},
		{"in-place writes", func(n *route.New) { n.Options = &pb.RouteOptions{InPlaceWrites: true} }, fault.Invalid, "in_place_writes"},
		{"root of nobody", func(n *route.New) { n.SourceRoot = "" }, fault.Invalid, "source_root"},
	} {
		n := r.request()
		test.edit(&n)
		if _, err := r.routes.Create(ctx, n); !fault.Is(err, test.code) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	r.exec(`UPDATE daemons SET role = 2 WHERE daemon_no = ?`, r.s.link.Daemon.No)
	if _, err := r.routes.Create(ctx, r.request()); !fault.Is(err, fault.Invalid) || !strings.HasPrefix(err.Error(), "source: daemon seedbox has the role TARGET only") {
		t.Errorf("role: %v", err)
	}
	r.exec(`UPDATE daemons SET role = 3`)
	r.exec(`DELETE FROM daemon_capabilities WHERE name = 'route.shared_directory' AND daemon_no = ?`, r.t_.link.Daemon.No)
	if _, err := r.routes.Create(ctx, r.request()); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "nas does not offer route.shared_directory (UNSUPPORTED)") {
		t.Errorf("capability: %v", err)
	}
	if n := r.count(`SELECT count(*) FROM archive_routes`) + r.count(`SELECT count(*) FROM daemon_commands`); n != 0 {
		t.Errorf("refused routes left %d rows", n)
	}
	r.exec(`INSERT INTO daemon_capabilities (daemon_no, name) VALUES (?, 'route.shared_directory')`, r.t_.link.Daemon.No)
	r.create()
	if _, err := r.routes.Create(ctx, r.request()); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), `"home" exists`) {
		t.Errorf("a taken name: %v", err)
	}
}

func TestCreateFindsTheRoots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	put := func(d *daemon, id string, kind pb.RootKind) {
		t.Helper()
		b, err := proto.Marshal(&pb.StorageEntry{RootId: id, RootKind: kind})
		if err != nil {
			t.Fatal(err)
		}
		r.exec(`INSERT INTO daemon_storage (daemon_no, root_id, entry, seen_at) VALUES (?, ?, ?, 0)`, d.link.Daemon.No, id, b)
	}
	put(r.s, "out", pb.RootKind_ROOT_KIND_OUTBOX)
	put(r.s, "movies", pb.RootKind_ROOT_KIND_CONTENT)
	put(r.t_, "in1", pb.RootKind_ROOT_KIND_RECEIVE)
	put(r.t_, "in2", pb.RootKind_ROOT_KIND_RECEIVE)
	n := r.request()
	n.SourceRoot, n.TargetRoot = "", ""
	if _, err := r.routes.Create(ctx, n); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "in1, in2") {
		t.Errorf("two receive roots: %v", err)
	}
	n.TargetRoot = "movies"
	if _, err := r.routes.Create(ctx, n); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `no receive root "movies"`) {
		t.Errorf("a root that is not there: %v", err)
	}
	n.TargetRoot = "in2"
	id, err := r.routes.Create(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := r.routes.Show(ctx, id.String())
	if err != nil || v.Message.GetSource().GetRootId() != "out" || v.Message.GetTarget().GetRootId() != "in2" {
		t.Errorf("%v, %v", v.Message, err)
	}
}
