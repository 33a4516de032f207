package route

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// createAgain has a side created anew at a daemon whose new database does not know it. The creation gets a command, and with
// it a history, of its own; the history of the one before stays as it was stored. The source is asked at once, the target
// when its turn has come: a probe goes over both.
func (r *Routes) createAgain(tx Tx, row *Route, s *Side) error {
	if err := r.reset(tx, s); err != nil {
		return err
	}
	s.Accepted, s.State = false, pb.RouteState_ROUTE_STATE_PROVISIONING
	s.compared()
	if err := tx.RoutePutSide(s); err != nil {
		return err
	}
	if s.Role == source {
		if err := r.probeSource(tx, row); err != nil {
			return err
		}
	}
	if err := r.calm(tx, s.Daemon.No); err != nil {
		return err
	}
	return r.settle(tx, row.No)
}

// reset forgets what the side's daemon was asked last.
func (r *Routes) reset(tx Tx, s *Side) error {
	if s.LatestNo != 0 {
		if err := r.o.Commands.Close(tx, s.LatestNo); err != nil {
			return err
		}
	}
	if err := tx.RouteDropBuffered(s); err != nil {
		return err
	}
	s.Nonce, s.Error, s.Probe, s.UpdatedAt = "", nil, nil, tx.Now()
	return nil
}

// probeSource asks the source for a new probe.
func (r *Routes) probeSource(tx Tx, row *Route) error {
	nonce, err := newNonce()
	if err != nil {
		return err
	}
	return r.ask(tx, row, source, nonce)
}

// formerly sees to a database that control asked for nothing lately: one that comes back after another of the same daemon
// was there, as when two daemons have one ID. It holds the side by a creation of its own, and if that was one of control's,
// the side goes back to it, as far as its history was stored; what the other database was asked is closed. It reports
// whether the side is to be probed anew.
func (r *Routes) formerly(tx Tx, row *Route, s *Side, snap *pb.RouteSnapshot) (back bool, err error) {
	if !s.renewed() || row.Broken {
		return false, nil
	}
	creation, err := uuid.Parse(snap.GetCreationCommandId())
	if err != nil || creation == s.Creation && s.Accepted {
		return false, nil // compared as any other
	}
	if creation != s.Creation {
		c, ok, err := tx.RouteCreation(s.Daemon.No, creation)
		if err != nil || !ok || c.GetRoute().GetRouteId() != row.ID.String() || c.GetSide() != s.Role {
			return false, err
		}
	}
	if err := r.reset(tx, s); err != nil {
		return false, err
	}
	s.Creation, s.Latest, s.Accepted = creation, creation, true
	first, err := tx.RouteFirst(s)
	if err != nil {
		return false, err
	}
	s.LastSequence = max(first, 1) - 1 // what is not kept any more was applied
	s.State = pb.RouteState_ROUTE_STATE_PROVISIONING
	s.AskedAfter = 0
	for {
		u, ok, err := tx.RouteUpdateAt(s, s.LastSequence+1)
		if err != nil || !ok {
			s.AskedAfter = s.LastSequence // all of it was acknowledged
			return true, err
		}
		s.apply(u.Message)
	}
}
