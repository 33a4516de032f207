package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
)

const (
	sourceSide = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	targetSide = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
	shared     = pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY
)

// twoRoots gives the daemon an outbox and a receive root, and lets it see the outbox as that of the other daemon, too.
func twoRoots(t *testing.T, r *rig) (outbox string) {
	t.Helper()
	open := func(owner beneath.Owner, dir string) func() (*beneath.Root, error) {
		root, err := beneath.Open(dir, beneath.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
		claimed, err := beneath.Open(dir, beneath.Options{})
		if err == nil {
			err = errors.Join(claimed.Claim(owner, true), claimed.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() (*beneath.Root, error) { return root, nil }
	}
	outbox = t.TempDir()
	r.options.Roots = []daemon.Root{{ID: "out", Kind: pb.RootKind_ROOT_KIND_OUTBOX, Open: open(beneath.Owner{Root: "out", Daemon: other.String()}, outbox)},
		{ID: "in", Kind: pb.RootKind_ROOT_KIND_RECEIVE, Open: open(beneath.Owner{Root: "in", Daemon: self.String()}, t.TempDir())}}
	r.options.Routes = map[pb.RouteKind]daemon.RouteKind{shared: daemon.NewSharedDirectory(r.options.Roots,
		[]daemon.Share{{Marker: "nas", Open: r.options.Roots[0].Open}})}
	return outbox
}

func route(own uuid.UUID, side pb.ParticipantRole) *pb.Route {
	end := func(root string) *pb.RouteEndpoint {
		return &pb.RouteEndpoint{RootId: root, Endpoint: &pb.RouteEndpoint_Shared{Shared: &pb.SharedEndpoint{SharedMarker: "nas"}}}
	}
	x := &pb.Route{RouteId: uuid.NewString(), Kind: shared, SourceClientId: own.String(), TargetClientId: other.String(), Source: end("out"), Target: end("in")}
	if side == targetSide {
		x.SourceClientId, x.TargetClientId = x.TargetClientId, x.SourceClientId
	}
	return x
}

func routeCommand(x any) *pb.Command {
	c := &pb.Command{CommandId: uuid.NewString(), ClientId: self.String(), IssuedAt: timestamppb.New(epoch), Attempt: 1}
	switch x := x.(type) {
	case *pb.CreateRoute:
		c.Operation = &pb.Command_CreateRoute{CreateRoute: x}
	case *pb.UpdateRoute:
		c.Operation = &pb.Command_UpdateRoute{UpdateRoute: x}
	case *pb.RemoveRoute:
		c.Operation = &pb.Command_RemoveRoute{RemoveRoute: x}
	}
	return c
}

var nonce = strings.Repeat("5a", 16)

func (w *wire) update(state pb.RouteState) *pb.RouteUpdate {
	w.t.Helper()
	return w.take(state.String(), func(e *pb.Envelope) bool { return e.GetRouteUpdate().GetState() == state }).GetRouteUpdate()
}

func (w *wire) routeAck(u *pb.RouteUpdate) {
	w.push(&pb.Envelope{Payload: &pb.Envelope_RouteUpdateAck{RouteUpdateAck: &pb.RouteUpdateAck{RouteId: u.GetRouteId(), Side: u.GetSide(),
		CreationCommandId: u.GetCreationCommandId(), PersistedThrough: u.GetSequence()}}})
}

func TestBothSidesOfASharedDirectory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		outbox := twoRoots(t, r)
		r.start()
		w := r.accept()
		for _, capability := range []string{"route.shared_directory", "route.provisioning"} {
			if !slices.Contains(w.request.GetCapabilities(), capability) {
				t.Errorf("%s is not announced: %v", capability, w.request.GetCapabilities())
			}
		}
		source := route(self, sourceSide)
		create := routeCommand(&pb.CreateRoute{Route: source, Side: sourceSide, ProbeNonce: nonce})
		w.accepted(create)
		first := w.update(pb.RouteState_ROUTE_STATE_PROVISIONING)
		ready := w.update(pb.RouteState_ROUTE_STATE_READY)
		if first.GetSequence() != 1 || ready.GetSequence() != 2 || ready.GetCreationCommandId() != create.GetCommandId() ||
			ready.GetProbe().GetNonceSeen() != nonce || len(ready.GetProbe().GetSha256()) != 64 || ready.GetProbe().GetProfile() == nil {
			t.Errorf("source: %v, %v", first, ready)
		}
		// The target is asked for the same route: it reads the source's probe file where it sees the outbox.
		target := proto.CloneOf(source)
		target.SourceClientId, target.TargetClientId = other.String(), self.String()
		w.accepted(routeCommand(&pb.CreateRoute{Route: target, Side: targetSide, ProbeNonce: nonce}))
		seen := w.take("the target's READY", func(e *pb.Envelope) bool {
			return e.GetRouteUpdate().GetSide() == targetSide && e.GetRouteUpdate().GetState() == pb.RouteState_ROUTE_STATE_READY
		}).GetRouteUpdate()
		if seen.GetProbe().GetNonceSeen() != nonce || seen.GetProbe().GetSha256() != ready.GetProbe().GetSha256() || !seen.GetProbe().GetNoreplaceRenameOk() {
			t.Errorf("target: %v", seen.GetProbe())
		}
		// A new nonce makes a new probe file in the place of the old one.
		w.accepted(routeCommand(&pb.UpdateRoute{Route: source, Side: sourceSide, ExpectedSequence: 2, ProbeNonce: strings.Repeat("77", 16)}))
		w.update(pb.RouteState_ROUTE_STATE_PROBING)
		if u := w.update(pb.RouteState_ROUTE_STATE_READY); u.GetSequence() != 4 || u.GetProbe().GetNonceSeen() != strings.Repeat("77", 16) {
			t.Errorf("after the update: %v", u)
		}
		snapshots := lastOf(w.answer(query(routesScope, nil))).GetRoutes().GetEntries()
		if len(snapshots) != 2 || snapshots[0].GetLastSequence() != 4 || len(snapshots[0].GetUpdates()) != 4 ||
			!proto.Equal(snapshots[0].GetUpdates()[1], ready) {
			t.Errorf("snapshots: %v", snapshots)
		}
		probe := filepath.Join(outbox, ".archive-control", "route-"+source.GetRouteId()+".probe")
		if _, err := os.Stat(probe); err != nil {
			t.Error(err)
		}
		w.accepted(routeCommand(&pb.RemoveRoute{RouteId: source.GetRouteId(), Side: sourceSide, ExpectedSequence: 4}))
		w.update(pb.RouteState_ROUTE_STATE_REMOVING)
		w.update(pb.RouteState_ROUTE_STATE_REMOVED)
		if _, err := os.Stat(probe); !os.IsNotExist(err) {
			t.Errorf("the probe file after the removal: %v", err)
		}
	})
}

func TestRouteUpdatesAreRepeatedUntilAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		twoRoots(t, r)
		r.start()
		w := r.accept()
		w.accepted(routeCommand(&pb.CreateRoute{Route: route(self, sourceSide), Side: sourceSide, ProbeNonce: nonce}))
		w.update(pb.RouteState_ROUTE_STATE_PROVISIONING)
		first := w.update(pb.RouteState_ROUTE_STATE_READY)
		var again *pb.RouteUpdate
		r.until("the repetition", func() bool {
			again = w.poll(func(e *pb.Envelope) bool { return e.GetRouteUpdate().GetSequence() == first.GetSequence() }).GetRouteUpdate()
			return again != nil
		})
		if !proto.Equal(first, again) {
			t.Errorf("repeated as %v, first %v", again, first)
		}
		r.restart()
		w = r.accept() // after a registration at once
		w.update(pb.RouteState_ROUTE_STATE_PROVISIONING)
		if u := w.update(pb.RouteState_ROUTE_STATE_READY); !proto.Equal(first, u) {
			t.Errorf("after a restart: %v, first %v", u, first)
		}
		w.routeAck(first)
		w.noEvents()
		r.restart()
		w = r.accept()
		w.noEvents()
		r.clock.Advance(14 * second)
		r.clock.Advance(2 * second)
		w.noEvents()
		for _, e := range w.held {
			if e.GetRouteUpdate() != nil {
				t.Errorf("an acknowledged update was sent: %v", e.GetRouteUpdate())
			}
		}
	})
}

func TestATargetThatSeesNoProbeIsDegraded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		outbox := twoRoots(t, r)
		r.start()
		w := r.accept()
		x := route(self, targetSide)
		w.accepted(routeCommand(&pb.CreateRoute{Route: x, Side: targetSide, ProbeNonce: nonce}))
		last := uint64(0) // those before are sent again, for nobody acknowledges them
		state := func(want pb.RouteState) *pb.RouteUpdate {
			var u *pb.RouteUpdate
			r.until(want.String(), func() bool {
				u = w.poll(func(e *pb.Envelope) bool {
					return e.GetRouteUpdate().GetState() == want && e.GetRouteUpdate().GetSequence() > last
				}).GetRouteUpdate()
				return u != nil
			})
			last = u.GetSequence()
			return u
		}
		if u := state(pb.RouteState_ROUTE_STATE_DEGRADED); u.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_UNAVAILABLE {
			t.Errorf("without a probe file: %v", u)
		}
		text := "archive-control route probe\n" + x.GetRouteId() + "\n" + nonce + "\n"
		if err := os.WriteFile(filepath.Join(outbox, ".archive-control", "route-"+x.GetRouteId()+".probe"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if u := state(pb.RouteState_ROUTE_STATE_READY); u.GetProbe().GetNonceSeen() != nonce {
			t.Errorf("with it: %v", u)
		}
		// READY does not stay when the outbox of a third machine is mounted there, with a root of the same name, and not on a
		// mount point that is empty, which has no owner file.
		owner := filepath.Join(outbox, ".archive-control", "owner")
		right, err := os.ReadFile(owner)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"out\ndaemon " + uuid.NewString() + "\n", "in\ndaemon " + other.String() + "\n", ""} {
			if err := os.WriteFile(owner, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if u := state(pb.RouteState_ROUTE_STATE_DEGRADED); !strings.Contains(u.GetError().GetMessage(), "mounted?") {
				t.Errorf("with %q: %v", text, u)
			}
			if err := os.WriteFile(owner, right, 0o600); err != nil {
				t.Fatal(err)
			}
			state(pb.RouteState_ROUTE_STATE_READY)
		}
	})
}

func TestRoutesThatDoNotFit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		twoRoots(t, r)
		r.start()
		w := r.accept()
		for name, test := range map[string]struct {
			side   pb.ParticipantRole
			change func(*pb.Route)
			code   pb.ErrorCode
		}{
			"no such outbox":  {sourceSide, func(x *pb.Route) { x.Source.RootId = "in" }, pb.ErrorCode_ERROR_CODE_NOT_FOUND},
			"no such receive": {targetSide, func(x *pb.Route) { x.Target.RootId = "out" }, pb.ErrorCode_ERROR_CODE_NOT_FOUND},
			"no such share":   {targetSide, func(x *pb.Route) { x.Target.GetShared().SharedMarker = "attic" }, pb.ErrorCode_ERROR_CODE_PATH_UNMAPPED},
		} {
			x := route(self, test.side)
			test.change(x)
			c := routeCommand(&pb.CreateRoute{Route: x, Side: test.side, ProbeNonce: nonce})
			w.command(c)
			if a := w.ack(c); a.GetStatus() != pb.AckStatus_ACK_STATUS_REJECTED || a.GetError().GetCode() != test.code {
				t.Errorf("%s: %v", name, a)
			}
		}
	})
}
