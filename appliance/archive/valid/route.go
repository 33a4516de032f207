package valid

import pb "signalbox/appliance/archive/archivepb"

// nonceDigits is the length of a probe nonce.
const nonceDigits = 32

// Route checks a route (daemon protocol 6.2).
func Route(m *pb.Route) error { return run(m, (*checker).route) }

func (c *checker) route(m *pb.Route) {
	c.uuid("route_id", m.RouteId)
	chosen(c, "kind", m.Kind, pb.RouteKind_name)
	c.uuid("source_client_id", m.SourceClientId)
	c.uuid("target_client_id", m.TargetClientId)
	required(c, "source", m.Source, (*checker).endpoint)
	required(c, "target", m.Target, (*checker).endpoint)
	c.must(endpointKind(m.Source) == m.Kind, "source.endpoint", "must be that of the route's kind")
	c.must(endpointKind(m.Target) == m.Kind, "target.endpoint", "must be that of the route's kind")
	optional(c, "options", m.Options, (*checker).routeOptions)
	c.size("display_name", m.DisplayName, 0, MaxDisplayName)
}

func endpointKind(m *pb.RouteEndpoint) pb.RouteKind {
	switch m.GetEndpoint().(type) {
	case *pb.RouteEndpoint_Shared:
		return pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY
	case *pb.RouteEndpoint_Rsync:
		return pb.RouteKind_ROUTE_KIND_RSYNC_SSH
	case *pb.RouteEndpoint_Syncthing:
		return pb.RouteKind_ROUTE_KIND_SYNCTHING
	}
	return pb.RouteKind_ROUTE_KIND_UNSPECIFIED
}

// RouteEndpoint checks one end of a route.
func RouteEndpoint(m *pb.RouteEndpoint) error { return run(m, (*checker).endpoint) }

func (c *checker) endpoint(m *pb.RouteEndpoint) {
	c.must(m.RootId != "", "root_id", "is required")
	switch e := m.Endpoint.(type) {
	case *pb.RouteEndpoint_Shared:
		required(c, "shared", e.Shared, (*checker).shared)
	case *pb.RouteEndpoint_Rsync:
		required(c, "rsync", e.Rsync, (*checker).rsync)
	case *pb.RouteEndpoint_Syncthing:
		required(c, "syncthing", e.Syncthing, (*checker).syncthing)
	default:
		c.fail("endpoint", "is required")
	}
}

// SharedEndpoint checks an end of a shared directory.
func SharedEndpoint(m *pb.SharedEndpoint) error { return run(m, (*checker).shared) }

func (c *checker) shared(m *pb.SharedEndpoint) { c.printable("shared_marker", m.SharedMarker) }

// RsyncEndpoint checks an end reached over ssh. key_ref is a name, never key material.
func RsyncEndpoint(m *pb.RsyncEndpoint) error { return run(m, (*checker).rsync) }

func (c *checker) rsync(m *pb.RsyncEndpoint) {
	c.printable("host", m.Host)
	c.must(m.Port <= 65535, "port", "must be at most 65535")
	c.printable("user", m.User)
	c.printable("host_key", m.HostKey)
	c.size("key_ref", m.KeyRef, 0, 128)
	c.printable("key_ref", m.KeyRef)
}

// SyncthingEndpoint checks an end that Syncthing serves.
func SyncthingEndpoint(m *pb.SyncthingEndpoint) error { return run(m, (*checker).syncthing) }

func (c *checker) syncthing(m *pb.SyncthingEndpoint) {
	c.printable("device_id", m.DeviceId)
	c.printable("folder_id", m.FolderId)
}

// RouteOptions checks settings of a route.
func RouteOptions(m *pb.RouteOptions) error { return run(m, (*checker).routeOptions) }

func (c *checker) routeOptions(m *pb.RouteOptions) {
	c.must(!m.InPlaceWrites, "in_place_writes", "must be false in this version")
}

// CreateRoute checks the creation of one side of a route.
func CreateRoute(m *pb.CreateRoute) error { return run(m, (*checker).createRoute) }

func (c *checker) createRoute(m *pb.CreateRoute) {
	required(c, "route", m.Route, (*checker).route)
	chosen(c, "side", m.Side, pb.ParticipantRole_name)
	c.nonce("probe_nonce", m.ProbeNonce)
	c.must(m.ExpectedSequence == 0, "expected_sequence", "must be 0 for a creation")
}

func (c *checker) nonce(field, s string) {
	if !isHex(s, nonceDigits) {
		c.fail(field, "must be "+itoa(nonceDigits)+" lowercase hex digits")
	}
}

// UpdateRoute checks the update of one side of a route.
func UpdateRoute(m *pb.UpdateRoute) error { return run(m, (*checker).updateRoute) }

func (c *checker) updateRoute(m *pb.UpdateRoute) {
	required(c, "route", m.Route, (*checker).route)
	chosen(c, "side", m.Side, pb.ParticipantRole_name)
	c.nonce("probe_nonce", m.ProbeNonce)
}

// RemoveRoute checks the removal of one side of a route.
func RemoveRoute(m *pb.RemoveRoute) error { return run(m, (*checker).removeRoute) }

func (c *checker) removeRoute(m *pb.RemoveRoute) {
	c.uuid("route_id", m.RouteId)
	chosen(c, "side", m.Side, pb.ParticipantRole_name)
}

// RouteUpdate checks an update.
func RouteUpdate(m *pb.RouteUpdate) error { return run(m, (*checker).routeUpdate) }

func (c *checker) routeUpdate(m *pb.RouteUpdate) {
	c.uuid("update_id", m.UpdateId)
	c.uuid("route_id", m.RouteId)
	c.uuid("creation_command_id", m.CreationCommandId)
	c.must(m.Sequence >= 1, "sequence", "must be at least 1")
	c.counter("sequence", m.Sequence)
	c.uuidOrEmpty("command_id", m.CommandId)
	chosen(c, "side", m.Side, pb.ParticipantRole_name)
	chosen(c, "state", m.State, pb.RouteState_name)
	switch m.State {
	case pb.RouteState_ROUTE_STATE_READY:
		c.must(m.Probe != nil, "probe", "is required for READY")
	case pb.RouteState_ROUTE_STATE_DEGRADED, pb.RouteState_ROUTE_STATE_FAILED:
		c.must(m.Error != nil, "error", "is required for DEGRADED and FAILED")
	}
	optional(c, "probe", m.Probe, (*checker).probe)
	optional(c, "error", m.Error, (*checker).detail)
	c.time("observed_at", m.ObservedAt)
}

// ProbeResult checks the result of a probe.
func ProbeResult(m *pb.ProbeResult) error { return run(m, (*checker).probe) }

func (c *checker) probe(m *pb.ProbeResult) {
	c.hexOrEmpty("nonce_seen", m.NonceSeen, nonceDigits)
	c.hashOrEmpty("sha256", m.Sha256)
}

// RouteUpdateAck checks the answer to updates.
func RouteUpdateAck(m *pb.RouteUpdateAck) error { return run(m, (*checker).routeUpdateAck) }

func (c *checker) routeUpdateAck(m *pb.RouteUpdateAck) {
	c.uuid("route_id", m.RouteId)
	chosen(c, "side", m.Side, pb.ParticipantRole_name)
	c.uuid("creation_command_id", m.CreationCommandId)
}

// RouteSnapshot checks the history of one side of a route. That it has no gap is the receiver's to check: a gap
// quarantines the route and does not end the connection (daemon protocol 6.4).
func RouteSnapshot(m *pb.RouteSnapshot) error { return run(m, (*checker).routeSnapshot) }

func (c *checker) routeSnapshot(m *pb.RouteSnapshot) {
	c.uuid("route_id", m.RouteId)
	chosen(c, "side", m.Side, pb.ParticipantRole_name)
	c.uuid("creation_command_id", m.CreationCommandId)
	c.counter("last_sequence", m.LastSequence)
	each(c, "updates", m.Updates, (*checker).routeUpdate)
	chosen(c, "state", m.State, pb.RouteState_name)
}
