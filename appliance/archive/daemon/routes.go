package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/valid"
)

// RouteKind is what the daemon does for its side of the routes of one kind (6.1). Implementations are safe for concurrent
// use.
type RouteKind interface {
	// Check says what this daemon has against its side of the route: an unknown root, an end that is not configured. nil
	// when it fits. It touches no network.
	Check(r *pb.Route, side pb.ParticipantRole) *pb.ErrorDetail
	// Probe provisions this side where needed and looks whether it works; it may be repeated at any time. A retryable
	// error makes the route DEGRADED and is tried again, any other FAILED.
	Probe(ctx context.Context, p RouteProbe) (*pb.ProbeResult, error)
	// Remove takes away what Probe has left of this side; with provisioned also what it has set up elsewhere.
	Remove(ctx context.Context, p RouteProbe, provisioned bool) error
}

// RouteProbe is one side of a route to be probed.
type RouteProbe struct {
	Route *pb.Route
	Side  pb.ParticipantRole
	// Nonce is control's: 32 hex digits.
	Nonce string
}

type routeKey struct {
	id   uuid.UUID
	side pb.ParticipantRole
}

func (r *RouteRow) key() routeKey { return routeKey{id: r.ID, side: r.Side} }

// Retries of probes, and looks at routes that are ready.
var probeBackoff = archive.Backoff{Initial: time.Second, Cap: time.Minute}

const (
	probePatience  = 4 // failed looks after which a route that was never ready is told to be degraded
	readyLookEvery = time.Minute
)

// prober is the one goroutine that works for a side of a route.
type prober struct {
	again  bool
	cancel context.CancelFunc // of its wait
}

// routeOf returns the route that a command is about.
func routeOf(c *pb.Command) (id string, side pb.ParticipantRole) {
	switch op := c.GetOperation().(type) {
	case *pb.Command_CreateRoute:
		return op.CreateRoute.GetRoute().GetRouteId(), op.CreateRoute.GetSide()
	case *pb.Command_UpdateRoute:
		return op.UpdateRoute.GetRoute().GetRouteId(), op.UpdateRoute.GetSide()
	case *pb.Command_RemoveRoute:
		return op.RemoveRoute.GetRouteId(), op.RemoveRoute.GetSide()
	}
	return "", pb.ParticipantRole_PARTICIPANT_ROLE_UNSPECIFIED
}

// routeRefusal asks the route's kind about a new or changed route.
func (d *Daemon) routeRefusal(_ context.Context, c *pb.Command) *pb.ErrorDetail {
	var r *pb.Route
	var side pb.ParticipantRole
	switch op := c.GetOperation().(type) {
	case *pb.Command_CreateRoute:
		r, side = op.CreateRoute.GetRoute(), op.CreateRoute.GetSide()
	case *pb.Command_UpdateRoute:
		r, side = op.UpdateRoute.GetRoute(), op.UpdateRoute.GetSide()
	}
	if kind := d.o.Routes[r.GetKind()]; kind != nil {
		return kind.Check(r, side)
	}
	return nil // the capability is missing: Decide says so
}

// maxOpenUpdates is how many updates of a side may wait for their acknowledgement. Beyond that a route that comes and goes
// while control is away tells nothing more; the first look after that tells how it is then.
const maxOpenUpdates = 48

// addRouteUpdate appends an update to the route's outbox and writes the row.
func addRouteUpdate(tx Tx, row *RouteRow, state pb.RouteState, probe *pb.ProbeResult, detail *pb.ErrorDetail) error {
	row.State = state
	row.LastSequence++
	if err := tx.PutRoute(*row); err != nil {
		return err
	}
	return tx.InsertRouteUpdate(&pb.RouteUpdate{UpdateId: uuid.NewString(), RouteId: row.ID.String(),
		CreationCommandId: row.CreationCommandID.String(), Sequence: row.LastSequence, CommandId: row.CommandID.String(), Side: row.Side,
		State: state, Probe: probe, Error: detail, ObservedAt: timestamppb.New(tx.Now())})
}

// resumeRoutes takes up the routes of earlier processes.
func (d *Daemon) resumeRoutes(ctx context.Context) error {
	var rows []RouteRow
	err := d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		rows, err = tx.Routes()
		return err
	})
	for _, r := range rows {
		if r.State != pb.RouteState_ROUTE_STATE_REMOVED {
			d.probe(r.key())
		}
	}
	return err
}

// probe has the side of the route looked at now.
func (d *Daemon) probe(key routeKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return
	}
	if p := d.probers[key]; p != nil {
		p.again = true
		if p.cancel != nil {
			p.cancel()
		}
		return
	}
	p := &prober{}
	d.probers[key] = p
	d.group.Go(func() { d.keepRoute(key, p) })
}

// keepRoute works for one side of a route until it is removed or has failed for good.
func (d *Daemon) keepRoute(key routeKey, p *prober) {
	for failures := 0; ; {
		ctx, cancel := context.WithCancel(d.ctx)
		d.mu.Lock()
		p.again, p.cancel = false, cancel
		d.mu.Unlock()
		done, err := d.lookAtRoute(ctx, key, failures)
		wait := readyLookEvery
		if failures++; err == nil {
			failures = 0
		} else {
			wait = probeBackoff.Delay(failures-1, d.o.Random())
		}
		d.mu.Lock()
		end := d.ctx.Err() != nil || done && !p.again
		if end {
			delete(d.probers, key)
		}
		again := p.again
		d.mu.Unlock()
		switch {
		case end:
			cancel()
			return
		case again:
			failures = 0
		default:
			d.sleep(ctx, wait)
			if ctx.Err() != nil {
				failures = 0
			}
		}
		cancel()
	}
}

// lookAtRoute probes or removes the side of the route. done: there is nothing left to look at. An error: look again soon.
func (d *Daemon) lookAtRoute(ctx context.Context, key routeKey, failures int) (done bool, err error) {
	var row RouteRow
	err = d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		row, _, err = tx.Route(key.id, key.side)
		return err
	})
	if err != nil {
		return false, err
	}
	kind := d.o.Routes[row.Route.GetKind()]
	p := RouteProbe{Route: row.Route, Side: row.Side, Nonce: row.ProbeNonce}
	switch {
	case row.State == pb.RouteState_ROUTE_STATE_REMOVED, row.State == pb.RouteState_ROUTE_STATE_FAILED, row.Route == nil:
		return true, nil
	case kind == nil:
		return true, d.routeState(ctx, row, pb.RouteState_ROUTE_STATE_FAILED, nil,
			valid.Detail(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "this daemon does not have routes of this kind any more"))
	case row.State == pb.RouteState_ROUTE_STATE_REMOVING:
		if err := kind.Remove(ctx, p, row.RemoveProvisioned); err != nil {
			return false, err
		}
		return true, d.routeState(ctx, row, pb.RouteState_ROUTE_STATE_REMOVED, nil, nil)
	}
	result, err := kind.Probe(ctx, p)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err == nil {
		if row.State == pb.RouteState_ROUTE_STATE_READY {
			return false, nil
		}
		return false, d.routeState(ctx, row, pb.RouteState_ROUTE_STATE_READY, result, nil)
	}
	detail := backend.Detail(err)
	if !archive.Retryable(detail.GetCode()) {
		return true, d.routeState(ctx, row, pb.RouteState_ROUTE_STATE_FAILED, result, detail)
	}
	patient := row.State != pb.RouteState_ROUTE_STATE_READY && failures < probePatience
	if patient || row.State == pb.RouteState_ROUTE_STATE_DEGRADED {
		return false, err
	}
	return false, errors.Join(err, d.routeState(ctx, row, pb.RouteState_ROUTE_STATE_DEGRADED, result, detail))
}

// routeState tells a new state of the route, unless a command has changed it meanwhile.
func (d *Daemon) routeState(ctx context.Context, was RouteRow, state pb.RouteState, probe *pb.ProbeResult, detail *pb.ErrorDetail) error {
	told := false
	err := d.update(ctx, "daemon.route_state", func(tx Tx) error {
		row, ok, err := tx.Route(was.ID, was.Side)
		if told = ok && row.CommandID == was.CommandID && row.State == was.State; err != nil || !told {
			return err
		}
		passing := state == pb.RouteState_ROUTE_STATE_READY || state == pb.RouteState_ROUTE_STATE_DEGRADED
		if told = !passing || row.LastSequence-row.AckedSequence < maxOpenUpdates; !told {
			return nil
		}
		return addRouteUpdate(tx, &row, state, probe, detail)
	})
	if err != nil || !told {
		return err
	}
	d.tell(Notice{What: WhatRoute, Command: was.ID, Code: detail.GetCode()})
	d.mu.Lock()
	s := d.session
	d.mu.Unlock()
	if s != nil {
		s.pokeRoutes()
	}
	return nil
}

// routeSnapshots are the answer to a ROUTES query: every side with its history, of which each takes at most so many bytes. What
// is cut is the oldest, all of it acknowledged; the sequence of the first update tells how much.
func routeSnapshots(tx ReadTx, most int) ([]proto.Message, error) {
	rows, err := tx.Routes()
	if err != nil {
		return nil, err
	}
	var out []proto.Message
	for _, r := range rows {
		updates, err := tx.RouteUpdates(r.ID, r.Side, 1)
		if err == nil {
			updates, err = newest(updates, r.AckedSequence, most-routeSnapshotFrame)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, &pb.RouteSnapshot{RouteId: r.ID.String(), Side: r.Side, CreationCommandId: r.CreationCommandID.String(),
			LastSequence: r.LastSequence, Updates: updates, State: r.State})
	}
	return out, nil
}

// routeSnapshotFrame is what a RouteSnapshot without updates takes, and more.
const routeSnapshotFrame = 1 << 10

// newest are the last updates that take no more than so many bytes, and all that are not acknowledged.
func newest(list []*pb.RouteUpdate, acked uint64, most int) ([]*pb.RouteUpdate, error) {
	for i := len(list) - 1; i >= 0; i-- {
		n, err := jsonSize(list[i])
		if err != nil {
			return nil, err
		}
		if most -= n; most < 0 && list[i].GetSequence() <= acked {
			return list[i+1:], nil
		}
	}
	return list, nil
}

// pokeRoutes has the route outbox looked at.
func (s *session) pokeRoutes() { poke(s.routesDirty) }

// pumpRoutes sends the updates that control has not acknowledged: at once after the registration, when there are new ones,
// and again every command_retry, unchanged (6.2).
func (s *session) pumpRoutes() error {
	sent := map[routeKey]uint64{}
	timer := s.d.o.Clock.NewTimer(s.retry)
	defer timer.Stop()
	for {
		if err := s.sendRoutes(sent); err != nil {
			return err
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.routesDirty:
		case <-timer.C():
			clear(sent)
			timer.Reset(s.retry)
		}
	}
}

// sendRoutes sends what is neither acknowledged nor sent.
func (s *session) sendRoutes(sent map[routeKey]uint64) error {
	var updates []*pb.RouteUpdate
	err := s.d.o.Store.View(s.ctx, func(tx ReadTx) error {
		updates = nil
		rows, err := tx.Routes()
		if err != nil {
			return err
		}
		for _, r := range rows {
			from := max(r.AckedSequence, sent[r.key()]) + 1
			if from > r.LastSequence {
				continue
			}
			list, err := tx.RouteUpdates(r.ID, r.Side, from)
			if err != nil {
				return err
			}
			updates = append(updates, list...)
			sent[r.key()] = r.LastSequence
		}
		return nil
	})
	for i := 0; i < len(updates) && err == nil; i++ {
		err = s.send(s.ctx, &pb.Envelope{Payload: &pb.Envelope_RouteUpdate{RouteUpdate: updates[i]}}, Bulk, "")
	}
	return err
}

// routeAck takes in which updates control has stored.
func (s *session) routeAck(a *pb.RouteUpdateAck) error {
	id, err := uuid.Parse(a.GetRouteId())
	if err != nil {
		return nil
	}
	return s.d.update(s.ctx, "daemon.route_ack", func(tx Tx) error {
		row, ok, err := tx.Route(id, a.GetSide())
		if err != nil || !ok || row.CreationCommandID.String() != a.GetCreationCommandId() {
			return err
		}
		through := min(a.GetPersistedThrough(), row.LastSequence)
		if through <= row.AckedSequence {
			return nil
		}
		row.AckedSequence = through
		if err := tx.PutRoute(row); err != nil || row.LastSequence <= archive.KeptRouteUpdates {
			return err
		}
		return tx.TrimRouteUpdates(id, row.Side, min(through, row.LastSequence-archive.KeptRouteUpdates))
	})
}
