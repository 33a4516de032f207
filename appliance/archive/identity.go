package archive

import pb "signalbox/appliance/archive/archivepb"

// identities returns the three names of a resource that two machines can agree on.
func identities(r *pb.ResourceIdentity) [3]string {
	return [3]string{r.GetInfohashV1(), r.GetInfohashV2(), r.GetTreeFingerprint()}
}

// Identified reports whether at least one of the three identities is set (daemon protocol 2.4).
func Identified(r *pb.ResourceIdentity) bool { return identities(r) != [3]string{} }

// IdentityMatch reports whether two identities name the same content: one of the three is set in both and equal
// (daemon protocol 2.4).
func IdentityMatch(a, b *pb.ResourceIdentity) bool {
	x, y := identities(a), identities(b)
	for i := range x {
		if x[i] != "" && x[i] == y[i] {
			return true
		}
	}
	return false
}

// IdentityConflict reports whether two identities match and yet disagree: one of the three is set in both and differs
// (daemon protocol 2.4). A preflight fails for it with RESOURCE_CONFLICT.
func IdentityConflict(a, b *pb.ResourceIdentity) bool {
	if !IdentityMatch(a, b) {
		return false
	}
	x, y := identities(a), identities(b)
	for i := range x {
		if x[i] != "" && y[i] != "" && x[i] != y[i] {
			return true
		}
	}
	return false
}
