package route

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// OnRoutes compares the complete routes of a daemon with what is stored (daemon protocol 6.4). It is called in the
// transaction that completes the inventory request.
func (r *Routes) OnRoutes(tx Tx, link archive.Link, requestNo int64, list []*pb.RouteSnapshot) error {
	shown := map[sideKey]bool{}
	for _, snap := range list {
		id, err := uuid.Parse(snap.GetRouteId())
		if err != nil {
			continue
		}
		row, ok, err := tx.RouteByID(id)
		if err != nil {
			return err
		}
		if !ok {
			if err := r.removeUnknown(tx, link.Daemon, id, snap); err != nil {
				return err
			}
			continue
		}
		s, ok, err := tx.RouteSide(row.No, snap.GetSide())
		if err != nil {
			return err
		}
		if !ok || s.Daemon.No != link.Daemon.No {
			if err := r.removeUnknown(tx, link.Daemon, id, snap); err != nil {
				return err
			}
			continue
		}
		shown[sideKey{row.No, s.Role}] = true
		if err := r.compare(tx, &row, &s, requestNo, snap); err != nil {
			return err
		}
	}
	return r.missing(tx, link.Daemon, requestNo, shown)
}

type sideKey struct {
	routeNo int64
	role    pb.ParticipantRole
}

// removeUnknown has the daemon drop a side that control does not know. What was provisioned for it stays.
func (r *Routes) removeUnknown(tx Tx, daemon archive.DaemonRef, id uuid.UUID, snap *pb.RouteSnapshot) error {
	if snap.GetState() == pb.RouteState_ROUTE_STATE_REMOVED {
		return nil
	}
	asked, err := removalAsked(tx, daemon.No, id)
	if err != nil || asked {
		return err
	}
	_, err = r.o.Commands.Enqueue(tx, daemon, &pb.Command{CommandId: uuid.NewString(), Operation: &pb.Command_RemoveRoute{
		RemoveRoute: &pb.RemoveRoute{RouteId: id.String(), Side: snap.GetSide(), ExpectedSequence: snap.GetLastSequence()}}})
	return err
}

// compare adopts the daemon's history when the stored one is its beginning; else the route is broken.
func (r *Routes) compare(tx Tx, row *Route, s *Side, requestNo int64, snap *pb.RouteSnapshot) error {
	if s.renewed() && requestNo < s.AskedNo { // it may tell of the database before: the one that is asked for decides
		return nil
	}
	back, err := r.formerly(tx, row, s, snap)
	if err != nil {
		return err
	}
	why, err := differs(tx, s, snap)
	if err != nil {
		return err
	}
	if why != "" {
		return r.breakRoute(tx, row, s, why)
	}
	if snap.GetLastSequence() < s.LastSequence {
		switch {
		case !s.Quarantined || requestNo < s.AskedNo:
			return nil // updates that came after the snapshot was taken
		case snap.GetLastSequence() < s.AskedAfter:
			return r.breakRoute(tx, row, s, fmt.Sprintf("the daemon has %d updates, but it had sent %d", snap.GetLastSequence(), s.AskedAfter))
		}
	}
	for _, u := range snap.GetUpdates() {
		if u.GetSequence() <= s.LastSequence {
			continue
		}
		if err := r.adopt(tx, s, u); err != nil {
			return err
		}
	}
	if err := errors.Join(r.drain(tx, s), trim(tx, s)); err != nil {
		return err
	}
	left, err := tx.RouteBuffered(s)
	if err != nil {
		return err
	}
	if s.Quarantined && requestNo >= s.AskedNo && s.AskedNo != 0 {
		s.compared()
	}
	s.UpdatedAt = tx.Now()
	if back { // what was probed meanwhile was of another database
		s.FreshAfter = s.LastSequence
	}
	if err := tx.RoutePutSide(s); err != nil {
		return err
	}
	if back && s.Role == source && row.RemovedAt.IsZero() && !row.Broken {
		if err := r.probeSource(tx, row); err != nil {
			return err
		}
	}
	if err := r.calm(tx, s.Daemon.No); err != nil {
		return err
	}
	if left > 0 { // updates above a gap that came after the snapshot was taken
		return r.quarantine(tx, s, "updates are missing that the daemon's history did not show yet")
	}
	if !row.RemovedAt.IsZero() && s.State != pb.RouteState_ROUTE_STATE_REMOVED {
		if err := r.askRemoval(tx, s, row.ID, false); err != nil {
			return err
		}
	}
	return r.settle(tx, row.No)
}

// differs tells why the stored history is not the beginning of the daemon's; empty when it is, as far as both go.
func differs(tx ReadTx, s *Side, snap *pb.RouteSnapshot) (string, error) {
	if snap.GetCreationCommandId() != s.Creation.String() {
		return "the daemon has the route from another creation", nil
	}
	// A long history is told from its newest updates: the sequence of the first says how many were cut.
	n, last := uint64(len(snap.GetUpdates())), snap.GetLastSequence()
	first := last - n + 1
	switch {
	case n > last || n == 0 && last > 0:
		return fmt.Sprintf("the daemon's history has %d updates and ends with number %d", n, last), nil
	case first > s.LastSequence+1:
		return fmt.Sprintf("the daemon's history begins with update %d, and control has only %d", first, s.LastSequence), nil
	}
	for n, u := range snap.GetUpdates() {
		if u.GetSequence() != first+uint64(n) || u.GetCreationCommandId() != snap.GetCreationCommandId() || u.GetRouteId() != snap.GetRouteId() ||
			u.GetSide() != snap.GetSide() {
			return fmt.Sprintf("the daemon's history does not hold together at update %d", first+uint64(n)), nil
		}
		stored, ok, err := tx.RouteUpdateAt(s, u.GetSequence())
		if err != nil {
			return "", err
		}
		if ok && !proto.Equal(stored.Message, u) {
			return fmt.Sprintf("update %d differs from the one that the daemon sent before", u.GetSequence()), nil
		}
	}
	return "", nil
}

// adopt stores and applies an update that control missed.
func (r *Routes) adopt(tx Tx, s *Side, u *pb.RouteUpdate) error {
	stored, ok, err := tx.RouteUpdateAt(s, u.GetSequence())
	switch {
	case err != nil:
		return err
	case ok:
		err = tx.RouteApplyUpdate(&stored)
	default:
		id, parseErr := uuid.Parse(u.GetUpdateId())
		if parseErr != nil {
			return parseErr
		}
		err = tx.RouteInsertUpdate(&Update{RouteNo: s.RouteNo, Side: s.Role, Creation: s.Creation, Sequence: u.GetSequence(), ID: id,
			Message: u, At: tx.Now()})
	}
	s.apply(u)
	return err
}

// breakRoute fails a route for good.
func (r *Routes) breakRoute(tx Tx, row *Route, s *Side, why string) error {
	if row.Broken {
		return nil
	}
	name := row.Source.Name
	if s.Role == target {
		name = row.Target.Name
	}
	row.Broken = true
	row.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_ROUTE_GAP, Message: fmt.Sprintf("daemon %s: %s", name, why)}
	row.UpdatedAt = tx.Now()
	if err := tx.RouteUpdate(row); err != nil {
		return err
	}
	if row.RemovedAt.IsZero() {
		if err := r.alert(tx, s.Daemon.No, row.Name, why); err != nil {
			return err
		}
	}
	if err := tx.RouteDropBuffered(s); err != nil {
		return err
	}
	if !row.RemovedAt.IsZero() && s.State != pb.RouteState_ROUTE_STATE_REMOVED {
		if err := r.askRemoval(tx, s, row.ID, false); err != nil {
			return err
		}
	}
	return r.settle(tx, row.No)
}

// missing finds sides in quarantine that the daemon does not know any more.
func (r *Routes) missing(tx Tx, daemon archive.DaemonRef, requestNo int64, shown map[sideKey]bool) error {
	rows, err := tx.RoutesOf(daemon.No)
	if err != nil {
		return err
	}
	for _, row := range rows {
		for _, role := range []pb.ParticipantRole{source, target} {
			s, ok, err := tx.RouteSide(row.No, role)
			if err != nil {
				return err
			}
			if !ok || s.Daemon.No != daemon.No || shown[sideKey{row.No, role}] || requestNo < s.AskedNo {
				continue
			}
			renewed := s.renewed()
			switch {
			case !row.RemovedAt.IsZero() && (s.Accepted || s.LastSequence > 0) && s.State != pb.RouteState_ROUTE_STATE_REMOVED:
				s.State, s.UpdatedAt = pb.RouteState_ROUTE_STATE_REMOVED, tx.Now()
				if err = tx.RoutePutSide(&s); err == nil {
					err = r.settle(tx, row.No)
				}
			case renewed && !row.Broken && (s.Accepted || s.LastSequence > 0):
				err = r.createAgain(tx, &row, &s)
			case s.Quarantined && (s.Accepted || s.LastSequence > 0):
				err = r.breakRoute(tx, &row, &s, "it no longer knows the route")
			case s.Quarantined:
				s.compared()
				s.UpdatedAt = tx.Now()
				if err = tx.RoutePutSide(&s); err == nil {
					err = r.calm(tx, s.Daemon.No)
				}
				if err == nil {
					err = r.settle(tx, row.No)
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// compared ends the side's quarantine.
func (s *Side) compared() { s.Quarantined, s.Quarantine, s.AskedNo, s.AskedAfter = false, "", 0, 0 }

// Came is with which database a daemon registered.
type Came int

// What a registration tells.
const (
	// Same is the database from before.
	Same Came = iota
	// OldCopy: the daemon's database, or control's, is an older copy (4.6).
	OldCopy
	// NewDatabase: the daemon's state epoch is another than before.
	NewDatabase
)

// OnRegister is told of a registration in its transaction. Routes of a daemon that came with another database, or an older
// copy, are read anew. A side that a new database does not know is created there again, under the same route ID: jobs name
// the route in definitions that never change (daemon protocol 9, row 13).
func (r *Routes) OnRegister(tx Tx, link archive.Link, came Came) error {
	rows, err := tx.RoutesOf(link.Daemon.No)
	if err != nil {
		return err
	}
	asked := int64(0)
	for _, row := range rows {
		for _, role := range []pb.ParticipantRole{source, target} {
			s, ok, err := tx.RouteSide(row.No, role)
			if err != nil {
				return err
			}
			if !ok || s.Daemon.No != link.Daemon.No || came == Same && !s.Quarantined {
				continue
			}
			if asked, err = r.askAgain(tx, &s, asked, came); err != nil {
				return err
			}
		}
		if err := r.settle(tx, row.No); err != nil {
			return err
		}
	}
	return nil
}

// askAgain makes sure that a side in quarantine is asked for; one request serves all sides of a daemon.
func (r *Routes) askAgain(tx Tx, s *Side, asked int64, came Came) (int64, error) {
	asking, err := tx.RouteAsking(s.AskedNo)
	if err != nil || asking && came == Same {
		return asked, err
	}
	if asked == 0 {
		if asked, err = r.o.Ask(tx, s.Daemon); err != nil {
			asked = 0 // too many requests: the next registration or update asks again
		}
	}
	switch {
	case came == NewDatabase:
		s.Quarantine = newDatabase
	case came == OldCopy && !s.renewed():
		s.Quarantine = "the daemon or control came back with an older copy of its database"
	}
	s.Quarantined, s.AskedNo, s.AskedAfter, s.UpdatedAt = true, asked, s.LastSequence, tx.Now()
	return asked, tx.RoutePutSide(s)
}

// OnOffline is told, in its transaction, that a daemon was marked offline.
func (r *Routes) OnOffline(tx Tx, daemonNo int64) error {
	rows, err := tx.RoutesOf(daemonNo)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if err := r.settle(tx, row.No); err != nil {
			return err
		}
	}
	return nil
}

// OnForget deletes the removed routes of a daemon that is forgotten, as far as no job names them.
func (r *Routes) OnForget(tx Tx, daemonNo int64) error { return tx.RouteForget(daemonNo) }
