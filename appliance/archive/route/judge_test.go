package route

import (
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
)

// ready are facts of a route of which all five conditions hold.
func ready() Facts {
	side := func(role pb.ParticipantRole) *Side {
		return &Side{Role: role, Accepted: true, Nonce: "n1", LastSequence: 3, FreshAfter: 2, State: pb.RouteState_ROUTE_STATE_READY,
			Probe: &pb.ProbeResult{Sha256: "d1"}}
	}
	f := Facts{Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, Source: SideFacts{Daemon: "seedbox", Online: true, Side: side(source)},
		Target: SideFacts{Daemon: "nas", Online: true, Side: side(target)}}
	f.Target.Side.Probe = &pb.ProbeResult{NonceSeen: "n1", Sha256: "d1", SameFilesystem: true}
	return f
}

func TestJudgeTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	failed := &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, Message: "cannot write"}
	for _, test := range []struct {
		name  string
		edit  func(*Facts)
		state pb.RouteState
		why   string
	}{
		{"all conditions hold", func(*Facts) {}, pb.RouteState_ROUTE_STATE_READY, ""},
		{"1: source has not confirmed", func(f *Facts) { f.Source.Side.Accepted = false }, pb.RouteState_ROUTE_STATE_PROVISIONING, "source seedbox has not confirmed"},
		{"1: target has not confirmed", func(f *Facts) { f.Target.Side.Accepted = false }, pb.RouteState_ROUTE_STATE_PROVISIONING, "target nas has not confirmed"},
		{"1: target refused", func(f *Facts) { f.Target.Side.Accepted, f.Target.Side.Error = false, failed }, pb.RouteState_ROUTE_STATE_FAILED, "did not take the route: cannot write"},
		{"1: target not asked", func(f *Facts) { f.Target.Side = nil }, pb.RouteState_ROUTE_STATE_PROVISIONING, "has not been asked"},
		{"2: source in quarantine", func(f *Facts) { f.Source.Side.Quarantined, f.Source.Side.Quarantine = true, "a gap" }, pb.RouteState_ROUTE_STATE_DEGRADED, "quarantine until its history is compared: a gap"},
		{"2: target in quarantine", func(f *Facts) { f.Target.Side.Quarantined = true }, pb.RouteState_ROUTE_STATE_DEGRADED, "quarantine"},
		{"2: broken", func(f *Facts) { f.Broken, f.Error = true, failed }, pb.RouteState_ROUTE_STATE_FAILED, "cannot write; create the route again"},
		{"3: source degraded", func(f *Facts) {
			f.Source.Side.State, f.Source.Side.Error = pb.RouteState_ROUTE_STATE_DEGRADED, failed
		}, pb.RouteState_ROUTE_STATE_DEGRADED, "reports DEGRADED: cannot write"},
		{"3: target failed", func(f *Facts) {
			f.Target.Side.State, f.Target.Side.Error = pb.RouteState_ROUTE_STATE_FAILED, failed
		}, pb.RouteState_ROUTE_STATE_FAILED, "reports FAILED: cannot write"},
		{"3: target still probing", func(f *Facts) { f.Target.Side.State = pb.RouteState_ROUTE_STATE_PROBING }, pb.RouteState_ROUTE_STATE_PROBING, "still PROBING"},
		{"3: source ready, but before the latest command", func(f *Facts) { f.Source.Side.FreshAfter = 3 }, pb.RouteState_ROUTE_STATE_PROBING, "latest probe"},
		{"3: target ready, but before the latest command", func(f *Facts) { f.Target.Side.FreshAfter = 3 }, pb.RouteState_ROUTE_STATE_PROBING, "latest probe"},
		{"3: target removed its side", func(f *Facts) { f.Target.Side.State = pb.RouteState_ROUTE_STATE_REMOVED }, pb.RouteState_ROUTE_STATE_FAILED, "removed its side"},
		{"4: another probe of the source", func(f *Facts) { f.Source.Side.Nonce = "n2" }, pb.RouteState_ROUTE_STATE_FAILED, "not been asked for the source's latest probe"},
		{"4: no probe file", func(f *Facts) { f.Target.Side.Probe.NonceSeen = "" }, pb.RouteState_ROUTE_STATE_FAILED, "found no probe file"},
		{"4: an old probe file", func(f *Facts) { f.Target.Side.Probe.NonceSeen = "n0" }, pb.RouteState_ROUTE_STATE_FAILED, "older probe file"},
		{"4: other bytes", func(f *Facts) { f.Target.Side.Probe.Sha256 = "d2" }, pb.RouteState_ROUTE_STATE_FAILED, "other bytes"},
		{"4: no digest at the source", func(f *Facts) { f.Source.Side.Probe, f.Target.Side.Probe.Sha256 = nil, "" }, pb.RouteState_ROUTE_STATE_FAILED, "other bytes"},
		{"4: no probe at the target", func(f *Facts) { f.Target.Side.Probe = nil }, pb.RouteState_ROUTE_STATE_FAILED, "found no probe file"},
		{"4: another file system", func(f *Facts) { f.Target.Side.Probe.SameFilesystem = false }, pb.RouteState_ROUTE_STATE_FAILED, "mounted"},
		{"5: source offline", func(f *Facts) { f.Source.Online = false }, pb.RouteState_ROUTE_STATE_DEGRADED, "source seedbox is offline"},
		{"5: target offline", func(f *Facts) { f.Target.Online = false }, pb.RouteState_ROUTE_STATE_DEGRADED, "target nas is offline"},
		{"a failure hides that a daemon is offline", func(f *Facts) {
			f.Source.Online, f.Target.Side.State = false, pb.RouteState_ROUTE_STATE_FAILED
		}, pb.RouteState_ROUTE_STATE_FAILED, "offline"},
		{"a kind that is not offered", func(f *Facts) { f.Kind = pb.RouteKind_ROUTE_KIND_SYNCTHING }, pb.RouteState_ROUTE_STATE_FAILED, "SYNCTHING are not offered"},
		{"being removed", func(f *Facts) { f.Removing = true }, pb.RouteState_ROUTE_STATE_REMOVING, "seedbox has not removed"},
		{"removed", func(f *Facts) {
			f.Removing = true
			f.Source.Side.State, f.Target.Side.State = pb.RouteState_ROUTE_STATE_REMOVED, pb.RouteState_ROUTE_STATE_REMOVED
		}, pb.RouteState_ROUTE_STATE_REMOVED, "is removed"},
		{"removed before the target was asked", func(f *Facts) {
			f.Removing, f.Target.Side, f.Source.Side.State = true, nil, pb.RouteState_ROUTE_STATE_REMOVED
		}, pb.RouteState_ROUTE_STATE_REMOVED, "is removed"},
	} {
		f := ready()
		test.edit(&f)
		v := Judge(f)
		if v.State != test.state || v.Ready != (test.why == "") || v.Ready != (v.State == pb.RouteState_ROUTE_STATE_READY) ||
			!strings.Contains(strings.Join(v.Why, "; "), test.why) {
			t.Errorf("%s: %+v, want %s and %q", test.name, v, test.state, test.why)
		}
	}
}

func TestPlaceDecidesEveryArrival(t *testing.T) {
	t.Parallel()
	u := func(seq uint64, id string) *pb.RouteUpdate {
		return &pb.RouteUpdate{UpdateId: id, Sequence: seq, State: pb.RouteState_ROUTE_STATE_READY}
	}
	other := u(2, "b")
	other.State = pb.RouteState_ROUTE_STATE_FAILED
	for _, test := range []struct {
		name     string
		u        *pb.RouteUpdate
		at, byID *pb.RouteUpdate
		want     arrival
	}{
		{"next sequence", u(3, "c"), nil, nil, inOrder},
		{"first sequence", u(3, "c"), nil, nil, inOrder},
		{"identical repetition", u(2, "b"), u(2, "b"), u(2, "b"), repeated},
		{"same ID and sequence, other content", other, u(2, "b"), u(2, "b"), conflict},
		{"same sequence, other ID", u(2, "x"), u(2, "b"), nil, conflict},
		{"same ID, next sequence", u(3, "b"), nil, u(2, "b"), conflict},
		{"same ID, high sequence", u(9, "b"), nil, u(2, "b"), conflict},
		{"sequence too high", u(4, "d"), nil, nil, tooHigh},
		{"repetition of a buffered one", u(5, "e"), u(5, "e"), u(5, "e"), repeated},
		{"other content than a buffered one", u(5, "f"), u(5, "e"), nil, conflict},
		{"lower than stored, unknown", u(1, "y"), nil, nil, conflict},
		{"no sequence", u(0, "z"), nil, nil, conflict},
		{"a sequence beyond all", u(1<<63, "z"), nil, nil, conflict},
	} {
		if got := place(2, test.u, test.at, test.byID); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}
