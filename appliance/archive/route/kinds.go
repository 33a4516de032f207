package route

import (
	"fmt"

	pb "signalbox/appliance/archive/archivepb"
)

// kind is what is particular to one kind of route. Offering another one is another entry of kinds.
type kind struct {
	// capability that both daemons must announce.
	capability string
	// endpoints makes both ends from what an operator asked.
	endpoints func(n New, sourceRoot, targetRoot string) (source, target *pb.RouteEndpoint, err error)
	// cross is condition 4 of daemon protocol 6.3: it looks at both probes and says what is wrong, or nothing. Both sides
	// are READY and fresh.
	cross func(source, target *Side) string
}

var kinds = map[pb.RouteKind]kind{
	pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY: {capability: "route.shared_directory", endpoints: sharedEndpoints, cross: sharedCross},
}

// sharedEndpoints marks both ends with the name under which the target finds the source's outbox: the ID of the outbox
// root, which the owner file in it holds (7.1), unless the operator names another.
func sharedEndpoints(n New, sourceRoot, targetRoot string) (*pb.RouteEndpoint, *pb.RouteEndpoint, error) {
	marker := n.SharedMarker
	if marker == "" {
		marker = sourceRoot
	}
	end := func(root string) *pb.RouteEndpoint {
		return &pb.RouteEndpoint{RootId: root, Endpoint: &pb.RouteEndpoint_Shared{Shared: &pb.SharedEndpoint{SharedMarker: marker}}}
	}
	return end(sourceRoot), end(targetRoot), nil
}

// sharedCross holds the target's reading of the probe file against what the source wrote.
func sharedCross(s, t *Side) string {
	switch {
	case t.Nonce != s.Nonce:
		return "the target has not been asked for the source's latest probe yet"
	case t.Probe.GetNonceSeen() == "":
		return "the target found no probe file of the source: check that it sees the source's outbox directory"
	case t.Probe.GetNonceSeen() != s.Nonce:
		return "the target read an older probe file: it may look at another directory than the source, or at a stale mount"
	case s.Probe.GetSha256() == "" || t.Probe.GetSha256() != s.Probe.GetSha256():
		return fmt.Sprintf("the target read the probe file with other bytes (SHA-256 %.12s…) than the source wrote (%.12s…)",
			t.Probe.GetSha256(), s.Probe.GetSha256())
	case !t.Probe.GetSameFilesystem():
		return "the receive root is not on the file system that it is configured for; is it mounted?"
	}
	return ""
}
