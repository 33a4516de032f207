package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
)

// TestALongHistoryFitsAnEnvelope gives a route a history of 1,500 updates: with the smallest envelope the snapshot shows the
// newest of them that fit, and what is acknowledged and old is not kept.
func TestALongHistoryFitsAnEnvelope(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.control.limits = small()
		twoRoots(t, r)
		r.start()
		w := r.accept()
		x := route(self, sourceSide)
		w.accepted(routeCommand(&pb.CreateRoute{Route: x, Side: sourceSide, ProbeNonce: nonce}))
		ready := w.update(pb.RouteState_ROUTE_STATE_READY)
		id := uuid.MustParse(x.GetRouteId())
		const all = 1500
		ctx := context.Background()
		stored := func() (n int, last uint64) {
			t.Helper()
			if err := r.db.View(ctx, func(tx daemon.ReadTx) error {
				list, err := tx.RouteUpdates(id, sourceSide, 1)
				if n = len(list); n > 0 {
					last = list[n-1].GetSequence()
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return n, last
		}
		if err := r.db.Update(ctx, "test", func(tx daemon.Tx) error {
			row, _, err := tx.Route(id, sourceSide)
			for err == nil && row.LastSequence < all {
				row.LastSequence++
				u := &pb.RouteUpdate{UpdateId: uuid.NewString(), RouteId: x.GetRouteId(), CreationCommandId: ready.GetCreationCommandId(),
					Sequence: row.LastSequence, CommandId: ready.GetCommandId(), Side: sourceSide, State: row.State, Probe: ready.GetProbe(),
					ObservedAt: ready.GetObservedAt()}
				err = tx.InsertRouteUpdate(u)
			}
			row.AckedSequence = row.LastSequence - 2
			if err == nil {
				err = tx.PutRoute(row)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		r.restart()
		w = r.accept()
		snap := lastOf(w.answer(query(routesScope, nil))).GetRoutes().GetEntries()[0] // the wire checks its size
		shown := snap.GetUpdates()
		if n := len(shown); n < 20 || n > 200 || snap.GetLastSequence() != all || shown[n-1].GetSequence() != all ||
			shown[0].GetSequence() != uint64(all-n+1) {
			t.Errorf("%d updates, from %d to %d", n, shown[0].GetSequence(), snap.GetLastSequence())
		}
		w.routeAck(shown[len(shown)-1])
		r.until("the trim", func() bool { n, _ := stored(); return n == archive.KeptRouteUpdates })
		if _, last := stored(); last != all {
			t.Errorf("the last one is %d", last)
		}
	})
}

// TestARouteThatFlapsWhileControlIsAway tells so often how it is that what waits stays small, and how it is in the end once
// control has taken that in.
func TestARouteThatFlapsWhileControlIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		outbox := twoRoots(t, r)
		r.start()
		w := r.accept()
		x := route(self, targetSide)
		w.accepted(routeCommand(&pb.CreateRoute{Route: x, Side: targetSide, ProbeNonce: nonce}))
		probe := filepath.Join(outbox, ".archive-control", "route-"+x.GetRouteId()+".probe")
		text := "archive-control route probe\n" + x.GetRouteId() + "\n" + nonce + "\n"
		id := uuid.MustParse(x.GetRouteId())
		row := func() (row daemon.RouteRow) {
			t.Helper()
			if err := r.db.View(context.Background(), func(tx daemon.ReadTx) (err error) {
				row, _, err = tx.Route(id, targetSide)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return row
		}
		const most = 48
		for row().LastSequence < most {
			before := row().State
			err := os.WriteFile(probe, []byte(text), 0o600)
			if before == pb.RouteState_ROUTE_STATE_READY {
				err = os.Remove(probe)
			}
			if err != nil {
				t.Fatal(err)
			}
			r.until("the next state", func() bool { return row().State != before })
		}
		was := row()
		turned := os.Remove
		if was.State != pb.RouteState_ROUTE_STATE_READY {
			turned = func(name string) error { return os.WriteFile(name, []byte(text), 0o600) }
		}
		if err := turned(probe); err != nil {
			t.Fatal(err)
		}
		for range 40 { // many looks, and nothing more is told
			r.clock.Advance(10 * second)
		}
		if now := row(); now.LastSequence != most || now.State != was.State {
			t.Errorf("%d updates wait, in %v", now.LastSequence, now.State)
		}
		w.push(&pb.Envelope{Payload: &pb.Envelope_RouteUpdateAck{RouteUpdateAck: &pb.RouteUpdateAck{RouteId: x.GetRouteId(), Side: targetSide,
			CreationCommandId: was.CreationCommandID.String(), PersistedThrough: most}}})
		r.until("how it is now", func() bool { return row().LastSequence == most+1 && row().State != was.State })
		if strings.Contains(row().State.String(), "FAILED") {
			t.Error(row().State)
		}
	})
}
