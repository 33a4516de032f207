package route_test

import (
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/route"
	"signalbox/store"
)

func TestSnapshotsThatCannotBeAdopted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		snap func(s *pb.RouteSnapshot) []*pb.RouteSnapshot
		why  string
	}{
		{"shorter than what was sent", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.LastSequence, s.Updates = 1, s.Updates[:1]
			return []*pb.RouteSnapshot{s}
		}, "has 1 updates, but it had sent 2"},
		{"with a hole", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.Updates = s.Updates[:1]
			return []*pb.RouteSnapshot{s}
		}, "does not hold together at update 2"},
		{"cut behind what was sent", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.LastSequence, s.Updates = 4, []*pb.RouteUpdate{proto.CloneOf(s.Updates[1])}
			s.Updates[0].Sequence = 4
			return []*pb.RouteSnapshot{s}
		}, "begins with update 4, and control has only 2"},
		{"cut, with another update than was sent", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.Updates = []*pb.RouteUpdate{proto.CloneOf(s.Updates[1])}
			s.Updates[0].UpdateId = uuid.NewString()
			return []*pb.RouteSnapshot{s}
		}, "update 2 differs"},
		{"with nothing", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.Updates = nil
			return []*pb.RouteSnapshot{s}
		}, "has 0 updates and ends with number 2"},
		{"out of order", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.Updates[0], s.Updates[1] = s.Updates[1], s.Updates[0]
			return []*pb.RouteSnapshot{s}
		}, "does not hold together"},
		{"of another creation", func(s *pb.RouteSnapshot) []*pb.RouteSnapshot {
			s.CreationCommandId = uuid.NewString()
			return []*pb.RouteSnapshot{s}
		}, "another creation"},
		{"without the route", func(*pb.RouteSnapshot) []*pb.RouteSnapshot { return nil }, "no longer knows"},
	} {
		r := made(t)
		u := proto.CloneOf(r.s.log[1])
		u.UpdateId = uuid.NewString()
		r.s.send(u)
		r.s.tell(r.s.one(), test.snap(r.s.snapshot())...)
		r.wantState(pb.RouteState_ROUTE_STATE_FAILED, test.why)
		if v := r.view(); v.Error.GetCode() != pb.ErrorCode_ERROR_CODE_ROUTE_GAP {
			t.Errorf("%s: code %s", test.name, v.Error.GetCode())
		}
	}
}

// TestHistoriesAreBounded has a route come and go a thousand times: both sides keep the newest updates, a snapshot that begins
// with one of them is adopted, and an update from before the cut that comes once more is acknowledged.
func TestHistoriesAreBounded(t *testing.T) {
	t.Parallel()
	r := made(t)
	first := r.s.log[0]
	flip := func(send bool) {
		state := pb.RouteState_ROUTE_STATE_READY
		if len(r.s.log)%2 == 0 {
			state = pb.RouteState_ROUTE_STATE_DEGRADED
		}
		u := r.s.next(&pb.Command{}, state)
		u.Probe = r.s.log[1].Probe
		if send {
			r.s.send(u)
		}
	}
	kept := func(what string) {
		t.Helper()
		if n := r.count(`SELECT count(*) FROM archive_route_updates WHERE side = 1`); n != archive.KeptRouteUpdates {
			t.Errorf("%s: %d updates are kept", what, n)
		}
	}
	for range 4 * archive.KeptRouteUpdates {
		flip(true)
	}
	kept("after all")
	if ack := r.s.send(first); ack.GetPersistedThrough() != uint64(len(r.s.log)) {
		t.Errorf("an update from before the cut: %v", ack)
	}
	// The connection loses some; what the daemon kept begins behind the middle, and joins what control has.
	for range 10 {
		flip(false)
	}
	flip(true)
	snap := r.s.snapshot()
	snap.Updates = snap.Updates[len(snap.Updates)-archive.KeptRouteUpdates:]
	r.s.tell(r.s.one(), snap)
	kept("after the snapshot")
	v := r.view()
	if v.SourceSide.LastSequence != uint64(len(r.s.log)) || v.SourceSide.Quarantined || v.Broken {
		t.Errorf("%+v", v.SourceSide)
	}
}

// A snapshot that was taken before the latest updates were sent tells nothing against them.
func TestSnapshotThatUpdatesOvertook(t *testing.T) {
	t.Parallel()
	r := made(t)
	u := proto.CloneOf(r.s.log[1])
	u.UpdateId = uuid.NewString()
	r.s.send(u)
	c, snap := r.s.one(), r.s.snapshot()
	more := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY)
	more.Probe = r.s.log[1].Probe
	r.s.send(more)
	r.s.tell(c, snap)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	if v := r.view(); v.SourceSide.LastSequence != 3 {
		t.Errorf("%+v", v.SourceSide)
	}
}

func TestRefusedSequenceIsReconciled(t *testing.T) {
	t.Parallel()
	r := made(t)
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	missed := r.s.next(&pb.Command{}, pb.RouteState_ROUTE_STATE_READY)
	missed.Probe = r.s.log[1].Probe
	r.s.ack(r.s.receive()[0], pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE, Message: "at 3"})
	r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "another sequence")
	r.s.tell(r.s.one(), r.s.snapshot())
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	c := r.s.one()
	if c.GetUpdateRoute().GetExpectedSequence() != 3 {
		t.Fatalf("%v", c)
	}
	r.s.answer(c)
	r.t_.answer(r.t_.one())
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
}

// register tells of a registration.
func (d *daemon) register(came route.Came) {
	d.r.t.Helper()
	if err := d.r.db.Update(ctx, "register", func(tx *store.Tx) error { return d.r.routes.OnRegister(tx, d.link, came) }); err != nil {
		d.r.t.Fatal(err)
	}
}

func (r *rig) reconciled() (yes bool) {
	r.t.Helper()
	if err := r.db.View(ctx, func(tx *store.ReadTx) (err error) { yes, err = r.routes.Reconciled(tx, r.no); return err }); err != nil {
		r.t.Fatal(err)
	}
	return yes
}

// An older copy of a database is the same database: it must know what it has said.
func TestDaemonThatCameBackWithAnOlderDatabase(t *testing.T) {
	t.Parallel()
	r := made(t)
	r.s.register(route.OldCopy)
	r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "older copy of its database")
	r.s.tell(r.s.one(), r.s.snapshot())
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")

	r = made(t)
	r.s.register(route.OldCopy)
	r.s.tell(r.s.one())
	r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "no longer knows the route")
}

// TestDaemonThatCameBackWithANewDatabase: row 13. A side that the new database does not know is created again under the
// same route ID, by a command of its own, and the route becomes ready by itself.
func TestDaemonThatCameBackWithANewDatabase(t *testing.T) {
	t.Parallel()
	r := made(t)
	before := r.t_.creation
	r.t_.register(route.NewDatabase)
	r.wantState(pb.RouteState_ROUTE_STATE_DEGRADED, "new database")
	if r.reconciled() {
		t.Error("reconciled before the daemon has told what it knows")
	}
	r.t_.tell(r.t_.one())
	r.wantState(pb.RouteState_ROUTE_STATE_PROVISIONING, "has not confirmed the route yet")
	if r.reconciled() {
		t.Error("reconciled before the daemon has its side")
	}
	c := r.t_.one()
	if x := c.GetCreateRoute(); x.GetRoute().GetRouteId() != r.id.String() || x.GetExpectedSequence() != 0 || c.GetCommandId() == before {
		t.Fatalf("command: %v", c)
	}
	if !r.reconciled() {
		t.Error("not reconciled although both have their sides")
	}
	r.s.none() // its probe file is there
	r.t_.answer(c)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	if r.ready[len(r.ready)-1] != true || r.alert != "" {
		t.Errorf("told %v, alert %q", r.ready, r.alert)
	}
	if n := r.count(`SELECT count(*) FROM archive_route_updates WHERE side = 2`); n != 4 {
		t.Errorf("%d updates of the target are stored, want those of both creations", n)
	}

	// The source leaves another probe file, and the target reads it.
	r.s.register(route.NewDatabase)
	r.s.tell(r.s.one())
	c = r.s.one()
	if c.GetCreateRoute() == nil {
		t.Fatalf("command: %v", c)
	}
	r.s.answer(c)
	c = r.t_.one()
	if c.GetUpdateRoute() == nil {
		t.Fatalf("command: %v", c)
	}
	r.t_.answer(c)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")

	// Both at once: the target is asked when the source has left its probe.
	r.t_.register(route.NewDatabase)
	r.s.register(route.NewDatabase)
	r.t_.tell(r.t_.one())
	r.t_.none()
	r.s.tell(r.s.one())
	r.s.answer(r.s.one())
	c = r.t_.one()
	if c.GetCreateRoute() == nil {
		t.Fatalf("command: %v", c)
	}
	r.t_.answer(c)
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
}

// What was on its way to the database before means nothing to the new one, and its answer nothing to the new creation.
func TestNewDatabaseRefusesWhatWasOnItsWay(t *testing.T) {
	t.Parallel()
	r := made(t)
	if err := r.routes.Test(ctx, r.id); err != nil {
		t.Fatal(err)
	}
	old := r.s.receive()[0]
	r.s.register(route.NewDatabase)
	var query *pb.Command
	for _, c := range r.s.receive() {
		if c.GetInventoryQuery() != nil {
			query = c
		}
	}
	r.s.ack(query, pb.AckStatus_ACK_STATUS_ACCEPTED, nil)
	r.s.tell(query)
	r.s.ack(old, pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_NOT_FOUND, Message: "unknown here"})
	r.wantState(pb.RouteState_ROUTE_STATE_PROVISIONING, "has not confirmed the route yet")
	r.s.answer(r.s.one())
	r.t_.answer(r.t_.one())
	r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
}

// answerAll has the daemons, which know the route, do what they are asked until nothing is left.
func (r *rig) answerAll() {
	r.t.Helper()
	for asked := true; asked; {
		asked = false
		for _, d := range []*daemon{r.s, r.t_} {
			for _, c := range d.take() {
				if c.GetUpdateRoute() == nil {
					r.t.Errorf("%s is asked for %v", d.name, c)
				}
				d.answer(c)
				asked = true
			}
		}
	}
}

// Two databases with one ID take turns (row 47): each has its own creation, and what comes back goes on with the one it had.
func TestDatabasesThatTakeTurns(t *testing.T) {
	t.Parallel()
	for _, side := range []pb.ParticipantRole{source, target} {
		for stage := range 4 { // the other database was not told of the side, asked, has taken it, has probed it
			r := made(t)
			d := r.s
			if side == target {
				d = r.t_
			}
			creation, log := d.creation, d.log
			d.register(route.NewDatabase)
			if q := d.one(); stage > 0 {
				d.tell(q)
			}
			switch stage {
			case 2:
				d.one()
			case 3:
				d.answer(d.one())
			}
			other, otherLog := d.creation, d.log
			d.creation, d.log = creation, log
			d.register(route.NewDatabase)
			var query *pb.Command
			for _, c := range d.receive() {
				if c.GetInventoryQuery() != nil {
					query = c
				} else {
					d.ack(c, pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, Message: "known here"})
				}
			}
			d.ack(query, pb.AckStatus_ACK_STATUS_ACCEPTED, nil)
			d.tell(query, d.snapshot())
			r.answerAll()
			r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
			if stage < 3 {
				continue
			}
			d.creation, d.log = other, otherLog
			d.register(route.NewDatabase)
			d.tell(d.one(), d.snapshot())
			r.answerAll()
			r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
			// A history that is not the stored one breaks the route also then.
			d.register(route.NewDatabase)
			d.creation = creation
			snap := d.snapshot()
			d.tell(d.one(), snap)
			r.wantState(pb.RouteState_ROUTE_STATE_FAILED, "create the route again")
		}
	}
}

// A database that comes back while a query of before is open answers that one first. Nothing is judged by it (row 47).
func TestQueryOfBeforeDecidesNothing(t *testing.T) {
	t.Parallel()
	for _, side := range []pb.ParticipantRole{source, target} {
		r := made(t)
		d := r.s
		if side == target {
			d = r.t_
		}
		creation, log := d.creation, d.log
		d.register(route.NewDatabase)
		d.tell(d.one())
		d.one() // the creation: the other database is told of it, and gone
		d.register(route.NewDatabase)
		first := d.queries()
		d.creation, d.log = creation, log
		d.register(route.NewDatabase)
		second := d.queries()
		if len(first) != 1 || len(second) == 0 || proto.Equal(first[0], second[len(second)-1]) {
			t.Fatalf("queries %v, then %v", first, second)
		}
		if proto.Equal(first[0], second[0]) {
			second = second[1:]
		}
		d.tell(first[0], d.snapshot())
		d.tell(second[0], d.snapshot())
		r.answerAll()
		r.wantState(pb.RouteState_ROUTE_STATE_READY, "")
	}
}

// queries takes what the daemon is sent and returns the queries; it refuses to create what it has.
func (d *daemon) queries() (list []*pb.Command) {
	d.r.t.Helper()
	for _, c := range d.receive() {
		if c.GetInventoryQuery() != nil {
			list = append(list, c)
		} else {
			d.ack(c, pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, Message: "known here"})
		}
	}
	return list
}
