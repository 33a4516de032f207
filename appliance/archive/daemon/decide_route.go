package daemon

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// RouteFacts are what a route command looks at.
type RouteFacts struct {
	// Row is this side of the route, nil when it is unknown here.
	Row *RouteRow
	// ActiveJobs counts the jobs that use the route.
	ActiveJobs int
	// Refusal is what the route's kind has against it: an unknown root, an endpoint that is not configured.
	Refusal *pb.ErrorDetail
}

func decideCreateRoute(c *pb.Command, x *pb.CreateRoute, f Facts) Outcome {
	if f.Route.Row != nil {
		return rejected(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the route is known here; a new one needs a new route ID")
	}
	if x.GetExpectedSequence() != 0 {
		return rejected(pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE, "a new route has no update, the command expects %d", x.GetExpectedSequence())
	}
	if o := f.routeFits(x.GetRoute(), x.GetSide()); o != nil {
		return *o
	}
	id, command := uuid.MustParse(x.GetRoute().GetRouteId()), uuid.MustParse(c.GetCommandId())
	o := accepted()
	o.Route = &RouteRow{ID: id, Side: x.GetSide(), Route: x.GetRoute(), CreationCommandID: command, CommandID: command,
		ProbeNonce: x.GetProbeNonce(), State: pb.RouteState_ROUTE_STATE_PROVISIONING}
	return o
}

func decideUpdateRoute(c *pb.Command, x *pb.UpdateRoute, f Facts) Outcome {
	if o := f.knownRoute(x.GetExpectedSequence()); o != nil {
		return *o
	}
	row := *f.Route.Row
	if was, is := row.Route, x.GetRoute(); was.GetKind() != is.GetKind() || was.GetSourceClientId() != is.GetSourceClientId() ||
		was.GetTargetClientId() != is.GetTargetClientId() {
		return rejected(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "update_route.route: kind and clients of a route do not change")
	}
	if o := f.routeFits(x.GetRoute(), x.GetSide()); o != nil {
		return *o
	}
	o := accepted()
	row.Route, row.CommandID, row.ProbeNonce, row.State = x.GetRoute(), uuid.MustParse(c.GetCommandId()), x.GetProbeNonce(),
		pb.RouteState_ROUTE_STATE_PROBING
	o.Route = &row
	return o
}

func decideRemoveRoute(c *pb.Command, x *pb.RemoveRoute, f Facts) Outcome {
	if o := f.knownRoute(x.GetExpectedSequence()); o != nil {
		return *o
	}
	if f.Route.ActiveJobs > 0 {
		return rejected(pb.ErrorCode_ERROR_CODE_BUSY, "%d active jobs use the route", f.Route.ActiveJobs)
	}
	o := accepted()
	row := *f.Route.Row
	row.CommandID, row.RemoveProvisioned, row.State = uuid.MustParse(c.GetCommandId()), x.GetRemoveProvisioned(),
		pb.RouteState_ROUTE_STATE_REMOVING
	o.Route = &row
	return o
}

// knownRoute refuses a change of a route that is not here, or was made for another state of it.
func (f Facts) knownRoute(expected uint64) *Outcome {
	row := f.Route.Row
	if row == nil || row.State == pb.RouteState_ROUTE_STATE_REMOVED || row.State == pb.RouteState_ROUTE_STATE_REMOVING {
		o := rejected(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "the route is unknown here")
		return &o
	}
	if expected != row.LastSequence {
		o := rejected(pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE, "the route is at update %d here, the command expects %d", row.LastSequence, expected)
		return &o
	}
	return nil
}

// routeFits checks the route itself.
func (f Facts) routeFits(r *pb.Route, side pb.ParticipantRole) *Outcome {
	refuse := func(code pb.ErrorCode, format string, args ...any) *Outcome {
		o := rejected(code, format, args...)
		return &o
	}
	own := r.GetSourceClientId()
	if side == pb.ParticipantRole_PARTICIPANT_ROLE_TARGET {
		own = r.GetTargetClientId()
	}
	capability := archive.RouteCapability(r.GetKind())
	switch {
	case own != f.Machine.ClientID:
		return refuse(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "side: another client has this side of the route")
	case capability == "" || !slices.Contains(f.Machine.Capabilities, capability) ||
		!slices.Contains(f.Machine.Capabilities, archive.CapRouteProvisioning):
		return refuse(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "this daemon does not have routes of this kind")
	case r.GetOptions().GetInPlaceWrites():
		return refuse(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "route.options.in_place_writes: must be false")
	case f.Route.Refusal != nil:
		return &Outcome{Status: pb.AckStatus_ACK_STATUS_REJECTED, Store: true, Error: f.Route.Refusal}
	}
	return nil
}
