package route

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// maxBuffered is how many updates above a gap are kept (daemon protocol 6.4).
const maxBuffered = 16

// arrival is what an update is to the side it belongs to.
type arrival int

const (
	inOrder  arrival = iota + 1 // the next sequence
	repeated                    // identical to a stored one
	conflict                    // same ID or same sequence, other content
	tooHigh                     // above a gap
)

// place decides what an update is (daemon protocol 6.4): at is what is stored under its sequence and byID what is stored
// under its ID, nil for nothing.
func place(last uint64, u *pb.RouteUpdate, at, byID *pb.RouteUpdate) arrival {
	switch {
	case at != nil && proto.Equal(at, u):
		return repeated
	case at != nil || byID != nil || u.GetSequence() > math.MaxInt64: // no history is that long
		return conflict
	case u.GetSequence() == last+1:
		return inOrder
	case u.GetSequence()+archive.KeptRouteUpdates <= last:
		return repeated // it was stored, and is not kept any more
	case u.GetSequence() <= last:
		return conflict // the newest up to last are stored, so this cannot be one of them
	}
	return tooHigh
}

// Update takes an update of a daemon's side. The acknowledgement, after COMMIT, names how far the history is stored
// without a gap; nil: the update is not acknowledged.
func (r *Routes) Update(ctx context.Context, link archive.Link, u *pb.RouteUpdate) (*pb.RouteUpdateAck, error) {
	id, err := uuid.Parse(u.GetUpdateId())
	if err != nil {
		return nil, fault.Field("update_id", "is no UUID")
	}
	var ack *pb.RouteUpdateAck
	err = r.store.Update(ctx, "route update", func(tx Tx) error {
		ack = nil
		if err := r.o.Fence(tx, link); err != nil {
			return err
		}
		s, ok, err := r.sideOf(tx, link, u)
		if err != nil {
			return err
		}
		if !ok {
			return r.askUnknown(tx, link.Daemon)
		}
		acked, err := r.arrived(tx, &s, id, u)
		if err != nil {
			return err
		}
		if acked {
			ack = &pb.RouteUpdateAck{RouteId: u.GetRouteId(), Side: u.GetSide(), CreationCommandId: u.GetCreationCommandId(),
				PersistedThrough: s.LastSequence}
		}
		return nil
	})
	return ack, err
}

// sideOf finds the side that an update is of; false when control knows no such creation at this daemon.
func (r *Routes) sideOf(tx Tx, link archive.Link, u *pb.RouteUpdate) (Side, bool, error) {
	id, err := uuid.Parse(u.GetRouteId())
	if err != nil {
		return Side{}, false, nil
	}
	row, ok, err := tx.RouteByID(id)
	if err != nil || !ok {
		return Side{}, false, err
	}
	s, ok, err := tx.RouteSide(row.No, u.GetSide())
	ok = ok && s.Daemon.No == link.Daemon.No && s.Creation.String() == u.GetCreationCommandId()
	return s, ok, err
}

// askUnknown asks for the routes of a daemon that told of one that control does not know. The answer says what it has.
func (r *Routes) askUnknown(tx Tx, daemon archive.DaemonRef) error {
	asking, err := tx.RouteAskingOf(daemon.No)
	if err != nil || asking {
		return err
	}
	_, err = r.o.Ask(tx, daemon)
	if fault.Is(err, fault.Unavailable) {
		return nil // the update comes again
	}
	return err
}

func (r *Routes) arrived(tx Tx, s *Side, id uuid.UUID, u *pb.RouteUpdate) (acked bool, err error) {
	at, _, err := tx.RouteUpdateAt(s, u.GetSequence())
	if err != nil {
		return false, err
	}
	byID, _, err := tx.RouteUpdateByID(s, id)
	if err != nil {
		return false, err
	}
	row := Update{RouteNo: s.RouteNo, Side: s.Role, Creation: s.Creation, Sequence: u.GetSequence(), ID: id, Message: u, At: tx.Now()}
	switch place(s.LastSequence, u, at.Message, byID.Message) {
	case repeated:
		// One that is buffered is not persisted in order: its acknowledgement does not cover it.
		return true, nil
	case inOrder:
		if err := tx.RouteInsertUpdate(&row); err != nil {
			return false, err
		}
		s.apply(u)
		if err := r.drain(tx, s); err != nil {
			return false, err
		}
		s.UpdatedAt = tx.Now()
		if err := errors.Join(tx.RoutePutSide(s), trim(tx, s)); err != nil {
			return false, err
		}
		return true, r.settle(tx, s.RouteNo)
	case tooHigh:
		n, err := tx.RouteBuffered(s)
		if err != nil {
			return false, err
		}
		if n < maxBuffered {
			row.Buffered = true
			if err := tx.RouteInsertUpdate(&row); err != nil {
				return false, err
			}
		}
		return false, r.quarantine(tx, s, fmt.Sprintf("update %d came after update %d", u.GetSequence(), s.LastSequence))
	}
	return false, r.quarantine(tx, s, fmt.Sprintf("update %d came with other content than the stored one", u.GetSequence()))
}

// apply moves the side on by its next update.
func (s *Side) apply(u *pb.RouteUpdate) {
	s.LastSequence = u.GetSequence()
	s.State = u.GetState()
	if s.Accepted || u.GetError() != nil {
		s.Error = u.GetError()
	}
	if u.GetProbe() != nil {
		s.Probe = u.GetProbe()
	}
}

// trim keeps the newest updates of the side.
func trim(tx Tx, s *Side) error {
	if s.LastSequence <= archive.KeptRouteUpdates {
		return nil
	}
	return tx.RouteTrimUpdates(s, s.LastSequence-archive.KeptRouteUpdates)
}

// drain applies the buffered updates that a filled gap has joined to the others.
func (r *Routes) drain(tx Tx, s *Side) error {
	for {
		next, ok, err := tx.RouteUpdateAt(s, s.LastSequence+1)
		if err != nil || !ok {
			return err
		}
		if err := tx.RouteApplyUpdate(&next); err != nil {
			return err
		}
		s.apply(next.Message)
	}
}

// quarantine keeps the route from being ready until the daemon's history was compared, and asks for it once.
func (r *Routes) quarantine(tx Tx, s *Side, why string) error {
	asking := false
	if s.Quarantined && s.AskedNo != 0 {
		var err error
		if asking, err = tx.RouteAsking(s.AskedNo); err != nil {
			return err
		}
	} else if !s.renewed() {
		s.Quarantine = why
	}
	s.Quarantined, s.UpdatedAt = true, tx.Now()
	if !asking {
		no, err := r.o.Ask(tx, s.Daemon)
		if err != nil && !fault.Is(err, fault.Unavailable) {
			return err
		}
		s.AskedNo, s.AskedAfter = no, s.LastSequence
	}
	if err := tx.RoutePutSide(s); err != nil {
		return err
	}
	row, _, err := tx.RouteByNo(s.RouteNo)
	if err == nil && !asking && row.RemovedAt.IsZero() {
		err = r.alert(tx, s.Daemon.No, row.Name, s.Quarantine)
	}
	if err != nil {
		return err
	}
	return r.settle(tx, s.RouteNo)
}

// commandAccepted is told that a daemon has accepted a route command.
func (r *Routes) commandAccepted(tx Tx, id uuid.UUID) error {
	s, ok, err := tx.RouteSideOfCommand(id)
	if err != nil || !ok || s.Latest != id || s.unasked() {
		return err // a removal is answered by an update
	}
	s.Accepted, s.UpdatedAt = true, tx.Now()
	if s.Error != nil && s.LastSequence <= s.FreshAfter {
		s.Error = nil // it was of the wait for this answer
	}
	if err := tx.RoutePutSide(&s); err != nil {
		return err
	}
	return r.settle(tx, s.RouteNo)
}

// commandRejected is told that a daemon has refused a route command.
func (r *Routes) commandRejected(tx Tx, id uuid.UUID, detail *pb.ErrorDetail) error {
	if detail.GetCode() == 0 {
		detail = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_INTERNAL, Message: "the daemon refused without a reason"}
	}
	s, ok, err := tx.RouteSideOfCommand(id)
	if err != nil || !ok || s.Latest == id && s.unasked() {
		return err
	}
	s.UpdatedAt = tx.Now()
	switch {
	case s.Remove == id && detail.GetCode() == pb.ErrorCode_ERROR_CODE_NOT_FOUND:
		s.State = pb.RouteState_ROUTE_STATE_REMOVED
	case s.Remove == id:
		s.Error = detail
	default:
		s.Accepted, s.Error = false, detail
	}
	if detail.GetCode() == pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE {
		return r.quarantine(tx, &s, "the daemon is at another sequence than control")
	}
	if err := tx.RoutePutSide(&s); err != nil {
		return err
	}
	return r.settle(tx, s.RouteNo)
}

// commandExhausted is told that a route command was sent as often as it may be and not answered. A late answer still
// counts; Test lets the same command go out again.
func (r *Routes) commandExhausted(tx Tx, id uuid.UUID) error {
	s, ok, err := tx.RouteSideOfCommand(id)
	if err != nil || !ok || s.Latest == id && (s.Accepted || s.unasked()) {
		return err
	}
	s.Error = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true,
		Message: "the daemon did not acknowledge the command; test the route to send it again"}
	s.UpdatedAt = tx.Now()
	if err := tx.RoutePutSide(&s); err != nil {
		return err
	}
	return r.settle(tx, s.RouteNo)
}
