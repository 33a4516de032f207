package route

import (
	"fmt"

	pb "signalbox/appliance/archive/archivepb"
)

// Facts are what readiness is judged from.
type Facts struct {
	Kind     pb.RouteKind
	Broken   bool
	Error    *pb.ErrorDetail // why it is broken
	Removing bool
	Source   SideFacts
	Target   SideFacts
}

// SideFacts are those of one side.
type SideFacts struct {
	Daemon string // its name
	Online bool
	// Side is nil until the daemon was asked.
	Side *Side
}

// Verdict is what a route is good for now.
type Verdict struct {
	State pb.RouteState
	Ready bool
	// Why says in plain words what keeps the route from being ready, one sentence a reason; empty when it is ready.
	Why []string
	// Error is the first reason that a daemon reported, or that control found; may be nil.
	Error *pb.ErrorDetail
}

// Judge computes the readiness of a route (daemon protocol 6.3). It looks at nothing but the facts.
func Judge(f Facts) Verdict {
	v := Verdict{State: pb.RouteState_ROUTE_STATE_READY, Error: f.Error}
	if f.Removing {
		v.State = pb.RouteState_ROUTE_STATE_REMOVED
		v.Why = []string{"the route is removed"}
		for _, s := range []SideFacts{f.Source, f.Target} {
			if s.Side != nil && s.Side.State != pb.RouteState_ROUTE_STATE_REMOVED {
				v.State = pb.RouteState_ROUTE_STATE_REMOVING
				v.Why = append(v.Why, fmt.Sprintf("daemon %s has not removed its side yet", s.Daemon))
			}
		}
		return v
	}
	if f.Broken {
		v.worse(pb.RouteState_ROUTE_STATE_FAILED, f.Error, "%s; create the route again", orText(f.Error, "the histories of the route disagree"))
	}
	v.side(f.Source, source)
	v.side(f.Target, target)
	if k, ok := kinds[f.Kind]; !ok {
		v.worse(pb.RouteState_ROUTE_STATE_FAILED, nil, "routes of kind %s are not offered", kindName(f.Kind))
	} else if len(v.Why) == 0 {
		if why := k.cross(f.Source.Side, f.Target.Side); why != "" {
			v.worse(pb.RouteState_ROUTE_STATE_FAILED, nil, "%s", why)
		}
	}
	v.Ready = len(v.Why) == 0
	return v
}

// rank orders states by how much they say: a failure hides a probe that is under way.
var rank = map[pb.RouteState]int{pb.RouteState_ROUTE_STATE_READY: 0, pb.RouteState_ROUTE_STATE_DEGRADED: 1,
	pb.RouteState_ROUTE_STATE_PROBING: 2, pb.RouteState_ROUTE_STATE_PROVISIONING: 3, pb.RouteState_ROUTE_STATE_FAILED: 4}

func (v *Verdict) worse(state pb.RouteState, detail *pb.ErrorDetail, format string, args ...any) {
	if rank[state] > rank[v.State] {
		v.State = state
	}
	if v.Error == nil {
		v.Error = detail
	}
	v.Why = append(v.Why, fmt.Sprintf(format, args...))
}

// side applies the conditions 1, 2, 3 and 5 to one side.
func (v *Verdict) side(f SideFacts, role pb.ParticipantRole) {
	who := fmt.Sprintf("%s %s", roleName(role), f.Daemon)
	if !f.Online {
		v.worse(pb.RouteState_ROUTE_STATE_DEGRADED, nil, "%s is offline", who)
	}
	s := f.Side
	switch {
	case s == nil, s.unasked():
		v.worse(pb.RouteState_ROUTE_STATE_PROVISIONING, nil, "%s has not been asked yet: the source's probe comes first", who)
		if s == nil || !s.Quarantined {
			return
		}
	case s.refused():
		v.worse(pb.RouteState_ROUTE_STATE_FAILED, s.Error, "%s did not take the route: %s", who, s.Error.GetMessage())
	case !s.Accepted:
		v.worse(pb.RouteState_ROUTE_STATE_PROVISIONING, nil, "%s has not confirmed the route yet", who)
	}
	if s.Quarantined {
		v.worse(pb.RouteState_ROUTE_STATE_DEGRADED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_ROUTE_GAP,
			Message: s.Quarantine}, "the updates of %s are in quarantine until its history is compared: %s", who, s.Quarantine)
	}
	fresh := s.LastSequence > s.FreshAfter
	switch {
	case !s.Accepted, s.unasked():
	case !fresh:
		v.worse(pb.RouteState_ROUTE_STATE_PROBING, nil, "%s has not reported on the latest probe yet", who)
	case s.State == pb.RouteState_ROUTE_STATE_FAILED, s.State == pb.RouteState_ROUTE_STATE_DEGRADED:
		v.worse(s.State, s.Error, "%s reports %s: %s", who, stateName(s.State), orText(s.Error, "no reason given"))
	case s.State == pb.RouteState_ROUTE_STATE_REMOVING, s.State == pb.RouteState_ROUTE_STATE_REMOVED:
		v.worse(pb.RouteState_ROUTE_STATE_FAILED, nil, "%s has removed its side", who)
	case s.State != pb.RouteState_ROUTE_STATE_READY:
		v.worse(pb.RouteState_ROUTE_STATE_PROBING, nil, "%s is still %s", who, stateName(s.State))
	}
}

func orText(e *pb.ErrorDetail, text string) string {
	if e.GetMessage() != "" {
		return e.GetMessage()
	}
	return text
}

func roleName(r pb.ParticipantRole) string {
	if r == source {
		return "the source"
	}
	return "the target"
}

func stateName(s pb.RouteState) string { return trimEnum(s.String(), "ROUTE_STATE_") }

func kindName(k pb.RouteKind) string { return trimEnum(k.String(), "ROUTE_KIND_") }

func trimEnum(s, prefix string) string {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):]
	}
	return s
}
