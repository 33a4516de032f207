package route_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

func TestUpdateRows(t *testing.T) {
	t.Parallel()
	t.Run("identical repetition", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		for n, u := range r.s.log {
			if ack := r.s.send(proto.CloneOf(u)); ack.GetPersistedThrough() != 2 {
				t.Errorf("update %d again: %v", n+1, ack)
			}
		}
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	})
	for _, test := range []struct {
		name string
		make func(d *daemon) *pb.RouteUpdate
	}{
		{"same ID and sequence, other content", func(d *daemon) *pb.RouteUpdate {
			u := proto.CloneOf(d.log[1])
			u.Probe.FreeBytes = 1
			return u
		}},
		{"same sequence, other ID", func(d *daemon) *pb.RouteUpdate {
			u := proto.CloneOf(d.log[1])
			u.UpdateId = uuid.NewString()
			return u
		}},
		{"same ID, next sequence", func(d *daemon) *pb.RouteUpdate {
			u := proto.CloneOf(d.log[1])
			u.Sequence = 3
			return u
		}},
		{"lower sequence, unknown ID", func(d *daemon) *pb.RouteUpdate {
			u := proto.CloneOf(d.log[0])
			u.UpdateId = uuid.NewString()
			return u
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := made(t)
			if ack := r.s.send(test.make(r.s)); ack != nil {
				t.Errorf("a conflict is acknowledged: %v", ack)
			}
			r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "quarantine")
			if v := r.view(); v.Error.GetCode() != pb.ErrorCode_ERROR_CODE_ROUTE_GAP {
				t.Errorf("code %s", v.Error.GetCode())
			}
			if !strings.HasPrefix(r.alert, "route home: update") {
				t.Errorf("alert %q", r.alert)
			}
			// The daemon's true history agrees with what is stored: all is well.
			r.s.tell(r.s.one(), r.s.snapshot())
			r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
			if r.alert != "" {
				t.Errorf("the alert stays: %q", r.alert)
			}
		})
		t.Run(test.name+", and a history that disagrees", func(t *testing.T) {
			t.Parallel()
			r := made(t)
			bad := test.make(r.s)
			r.s.send(bad)
			r.s.log[0] = proto.CloneOf(r.s.log[0])
			r.s.log[0].State = pb.RouteState_ROUTE_STATE_PROVISIONING
			r.s.tell(r.s.one(), r.s.snapshot())
			r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "create the route again")
			if err := r.routes.Test(ctx, r.id); !fault.Is(err, fault.Conflict) {
				t.Errorf("a broken route is tested: %v", err)
			}
			if r.alert == "" {
				t.Error("no alert of a broken route")
			}
			if err := r.routes.Remove(ctx, r.id, false); err != nil || r.alert != "" {
				t.Errorf("removed: %v, alert %q", err, r.alert)
			}
		})
	}
	t.Run("sequence too high", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		lost := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_DEGRADED)
		lost.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true}
		later := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY)
		later.Probe = r.s.log[1].Probe
		if ack := r.s.send(later); ack != nil {
			t.Errorf("an update above a gap is acknowledged: %v", ack)
		}
		r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "update 4 came after update 2")
		// What fills the gap applies both, but only the snapshot ends the quarantine.
		if ack := r.s.send(lost); ack.GetPersistedThrough() != 4 {
			t.Errorf("ack: %v", ack)
		}
		r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "quarantine")
		r.s.tell(r.s.one(), r.s.snapshot())
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	})
	t.Run("removed in quarantine", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_PROBING)
		r.s.send(r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY))
		if r.alert == "" {
			t.Error("no alert of a route in quarantine")
		}
		if err := r.routes.Remove(ctx, r.id, false); err != nil || r.alert != "" {
			t.Errorf("removed: %v, alert %q", err, r.alert)
		}
		// Whatever its daemon still tells of it concerns nobody.
		r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_PROBING)
		r.s.send(r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY))
		if r.alert != "" {
			t.Errorf("alert of a removed route: %q", r.alert)
		}
	})
	t.Run("sequence too high, filled by the snapshot", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		lost := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_PROBING)
		later := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY)
		later.Probe = r.s.log[1].Probe
		r.s.send(later)
		r.s.tell(r.s.one(), r.s.snapshot())
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
		if ack := r.s.send(lost); ack.GetPersistedThrough() != 4 {
			t.Errorf("ack of the adopted one: %v", ack)
		}
	})
	t.Run("buffer is bounded", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_PROBING)
		for range 30 {
			r.s.send(r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_PROBING))
		}
		if n := r.count(`SELECT count(*) FROM archive_route_updates WHERE buffered = 1`); n != 16 {
			t.Errorf("%d updates are buffered", n)
		}
		r.s.tell(r.s.one(), r.s.snapshot()) // asked once
		if v := r.view(); v.SourceSide.LastSequence != 33 || v.SourceSide.Quarantined {
			t.Errorf("%+v", v.SourceSide)
		}
	})
	t.Run("buffered content differs from the snapshot", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_PROBING)
		u := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY)
		r.s.send(u)
		changed := proto.CloneOf(u)
		changed.State = pb.RouteState_ROUTE_STATE_PROBING
		r.s.log[3] = changed
		r.s.tell(r.s.one(), r.s.snapshot())
		r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "update 4 differs")
	})
	t.Run("unknown creation command", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		u := proto.CloneOf(r.s.log[0])
		u.CreationCommandId = uuid.NewString()
		if ack := r.s.send(u); ack != nil {
			t.Errorf("acknowledged: %v", ack)
		}
		if ack := r.s.send(proto.CloneOf(u)); ack != nil { // resent: asked once
			t.Errorf("acknowledged: %v", ack)
		}
		r.s.tell(r.s.one(), r.s.snapshot())
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	})
	t.Run("unknown route", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		u := proto.CloneOf(r.s.log[0])
		u.RouteId, u.CreationCommandId = uuid.NewString(), uuid.NewString()
		if ack := r.s.send(u); ack != nil {
			t.Errorf("acknowledged: %v", ack)
		}
		strange := &pb.RouteSnapshot{RouteId: u.RouteId, Side: source, CreationCommandId: u.CreationCommandId, LastSequence: 1, Updates: []*pb.RouteUpdate{u}}
		r.s.tell(r.s.one(), r.s.snapshot(), strange)
		c := r.s.receive()
		if len(c) != 1 || c[0].GetRemoveRoute().GetRouteId() != u.RouteId || c[0].GetRemoveRoute().GetRemoveProvisioned() ||
			c[0].GetRemoveRoute().GetExpectedSequence() != 1 {
			t.Fatalf("%v", c)
		}
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
		// It is not asked twice to remove it.
		r.s.send(proto.CloneOf(u))
		for _, c := range r.s.receive() {
			r.s.ack(c, pb.AckStatus_ACK_STATUS_ACCEPTED, nil)
			r.s.tell(c, r.s.snapshot(), strange)
		}
		if n := r.count(`SELECT count(*) FROM daemon_commands WHERE kind = 24`); n != 1 {
			t.Errorf("%d commands to remove it", n)
		}
	})
	t.Run("the other daemon's side", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		if ack := r.t_.send(proto.CloneOf(r.s.log[0])); ack != nil {
			t.Errorf("acknowledged: %v", ack)
		}
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	})
	t.Run("an old connection", func(t *testing.T) {
		t.Parallel()
		r := made(t)
		stale := r.s.link
		stale.Generation = 0
		if _, err := r.routes.Update(ctx, stale, r.s.log[0]); !fault.Is(err, fault.Stale) {
			t.Errorf("%v", err)
		}
	})
}
