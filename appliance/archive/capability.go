package archive

import (
	"slices"

	pb "signalbox/appliance/archive/archivepb"
)

// Capabilities that gate optional behaviour (daemon protocol 2.4). A name that is not announced is never assumed.
const (
	CapRouteSharedDirectory = "route.shared_directory"
	CapRouteRsyncSSH        = "route.rsync_ssh"
	CapRouteSyncthing       = "route.syncthing"
	CapRouteProvisioning    = "route.provisioning"
	CapSparse               = "content.sparse"
	CapReflink              = "content.reflink"
	CapHardlink             = "content.hardlink"
	CapPartfileCopy         = "content.partfile_copy"
	CapPartfileExplode      = "content.partfile_explode"
	CapV2                   = "content.v2"
	CapPaddingSynthesis     = "content.padding_synthesis"
	CapEviction             = "resource.eviction"
	CapExportMetainfo       = "backend.export_metainfo"
	CapAddVerified          = "backend.add_verified"
	CapVerifyPieces         = "verify.pieces"
)

var capabilities = []string{CapRouteSharedDirectory, CapRouteRsyncSSH, CapRouteSyncthing, CapRouteProvisioning, CapSparse,
	CapReflink, CapHardlink, CapPartfileCopy, CapPartfileExplode, CapV2, CapPaddingSynthesis, CapEviction, CapExportMetainfo,
	CapAddVerified, CapVerifyPieces}

// Capabilities returns every capability that this version knows: a new slice.
func Capabilities() []string { return slices.Clone(capabilities) }

// RouteCapability returns the capability that gates routes of the kind, "" for an unknown one.
func RouteCapability(kind pb.RouteKind) string {
	switch kind {
	case pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY:
		return CapRouteSharedDirectory
	case pb.RouteKind_ROUTE_KIND_RSYNC_SSH:
		return CapRouteRsyncSSH
	case pb.RouteKind_ROUTE_KIND_SYNCTHING:
		return CapRouteSyncthing
	}
	return ""
}
