package archivesim

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
)

// command answers one command and begins what it asks for.
func (d *Daemon) command(c *pb.Command) error {
	at := time.Now()
	ack, then := d.decide(c)
	e := d.envelope("")
	e.Payload = &pb.Envelope_CommandAck{CommandAck: ack}
	if c.GetExecuteStep() != nil && ack.GetStatus() == pb.AckStatus_ACK_STATUS_ACCEPTED {
		d.o.Recorder.begun(c.GetJobId(), at)
	}
	if err := d.conn.Send(d.ctx, e, daemon.Urgent); err != nil {
		return err
	}
	if ack.GetStatus() == pb.AckStatus_ACK_STATUS_ACCEPTED {
		d.o.Recorder.Commands.Add(1)
	}
	if then != nil {
		d.group.Go(func() {
			if err := then(); err != nil {
				d.end(err)
			}
		})
	}
	return nil
}

// decide answers as a daemon with nothing against it would (daemon protocol 2.6). then is the work that follows the answer.
func (d *Daemon) decide(c *pb.Command) (ack *pb.CommandAck, then func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.jobs[c.GetJobId()]
	if was := d.known[c.GetCommandId()]; was != nil {
		again := proto.CloneOf(was)
		again.StoredStatus, again.Status = was.GetStatus(), pb.AckStatus_ACK_STATUS_DUPLICATE
		if j != nil {
			again.Cursor = j.cursorNow()
		}
		return again, nil
	}
	ack = &pb.CommandAck{CommandId: c.GetCommandId(), Status: pb.AckStatus_ACK_STATUS_ACCEPTED, DecidedAt: timestamppb.Now(),
		PayloadSha256: archive.PayloadDigest(c)}
	d.known[c.GetCommandId()] = ack
	refuse := func(code pb.ErrorCode, message string) {
		d.o.Recorder.Trouble.Add(1)
		ack.Status, ack.Error = pb.AckStatus_ACK_STATUS_REJECTED, valid.Detail(code, message)
	}
	switch op := c.GetOperation().(type) {
	case *pb.Command_InventoryQuery:
		return ack, func() error { return d.answer(c.GetCommandId(), op.InventoryQuery) }
	case *pb.Command_CreateRoute, *pb.Command_UpdateRoute, *pb.Command_RemoveRoute:
		return ack, d.routed(c)
	case *pb.Command_AssignJob:
		j = newJob(op.AssignJob)
		d.jobs[c.GetJobId()] = j
	case *pb.Command_ExecuteStep:
		if j == nil {
			refuse(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "the simulated daemon does not have this job")
			return ack, nil
		}
		then = d.execute(j, c)
	case *pb.Command_CancelJob:
		if j == nil {
			refuse(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "the simulated daemon does not have this job")
			return ack, nil
		}
		if j.committed() {
			refuse(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the job is committed")
			break
		}
		then = d.cancel(j, c)
	case *pb.Command_CloseJob:
		if j != nil {
			j.close(op.CloseJob.GetFinalState())
			delete(d.jobs, c.GetJobId())
			d.o.Recorder.over(c.GetJobId())
		}
		if d.o.Closed != nil {
			then = func() error {
				d.o.Closed(c.GetJobId(), op.CloseJob.GetFinalState())
				return nil
			}
		}
	default:
		refuse(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "a simulated daemon does not reconcile")
	}
	if j != nil {
		ack.Cursor = j.cursorNow()
	}
	return ack, then
}

type routeKey struct {
	id   string
	side pb.ParticipantRole
}

// sideOfRoute is this daemon's side of a route.
type sideOfRoute struct {
	creation string
	updates  []*pb.RouteUpdate
}

// routed takes a command about a route and has its outcome told: the probe finds at the target what the source would have
// written.
func (d *Daemon) routed(c *pb.Command) func() error {
	var (
		key   routeKey
		nonce string
		state = pb.RouteState_ROUTE_STATE_READY
	)
	switch op := c.GetOperation().(type) {
	case *pb.Command_CreateRoute:
		key, nonce = routeKey{op.CreateRoute.GetRoute().GetRouteId(), op.CreateRoute.GetSide()}, op.CreateRoute.GetProbeNonce()
		d.routes[key] = &sideOfRoute{creation: c.GetCommandId()}
	case *pb.Command_UpdateRoute:
		key, nonce = routeKey{op.UpdateRoute.GetRoute().GetRouteId(), op.UpdateRoute.GetSide()}, op.UpdateRoute.GetProbeNonce()
	case *pb.Command_RemoveRoute:
		key, state = routeKey{op.RemoveRoute.GetRouteId(), op.RemoveRoute.GetSide()}, pb.RouteState_ROUTE_STATE_REMOVED
	}
	side := d.routes[key]
	if side == nil {
		return nil
	}
	u := &pb.RouteUpdate{UpdateId: uuid.NewString(), RouteId: key.id, CreationCommandId: side.creation, Sequence: uint64(len(side.updates)) + 1,
		CommandId: c.GetCommandId(), Side: key.side, State: state, ObservedAt: timestamppb.Now()}
	if state == pb.RouteState_ROUTE_STATE_READY {
		u.Probe = &pb.ProbeResult{NonceSeen: nonce, Sha256: sum("probe", key.id, nonce), SameFilesystem: true, FreeBytes: 1 << 49, SparseOk: true,
			NoreplaceRenameOk: true, DurableRename: true, Profile: profile()}
	}
	side.updates = append(side.updates, u)
	return func() error {
		e := d.envelope("")
		e.Payload = &pb.Envelope_RouteUpdate{RouteUpdate: u}
		return d.conn.Send(d.ctx, e, daemon.Bulk)
	}
}

// routeAcknowledged forgets a side whose removal control has.
func (d *Daemon) routeAcknowledged(a *pb.RouteUpdateAck) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := routeKey{a.GetRouteId(), a.GetSide()}
	side := d.routes[key]
	if side == nil || side.creation != a.GetCreationCommandId() {
		return
	}
	last := side.updates[len(side.updates)-1]
	if last.GetState() == pb.RouteState_ROUTE_STATE_REMOVED && a.GetPersistedThrough() >= last.GetSequence() {
		delete(d.routes, key)
		close(d.fewer)
		d.fewer = make(chan struct{})
	}
}

// RoutesGone waits until control has removed every route that the daemon was given, and has the daemon's word for it.
func (d *Daemon) RoutesGone(ctx context.Context) error {
	for {
		d.mu.Lock()
		n, fewer := len(d.routes), d.fewer
		d.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-fewer:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.ctx.Done():
			return context.Cause(d.ctx)
		}
	}
}
