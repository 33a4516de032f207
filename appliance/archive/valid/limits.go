package valid

import pb "signalbox/appliance/archive/archivepb"

// Sizes and counts of daemon protocol 5.2.
const (
	// RegistrationBytes is the longest frame before the registration, and of a RegisterResponse.
	RegistrationBytes = 512 << 10

	MinEnvelopeBytes, DefaultEnvelopeBytes, MaxEnvelopeBytes             = 64 << 10, 1 << 20, 4 << 20
	MinChunkEntries, DefaultChunkEntries, MaxChunkEntries                = 50, 500, 2000
	MinOutboundEnvelopes, DefaultOutboundEnvelopes, MaxOutboundEnvelopes = 64, 256, 1024
	MinOutboundBytes, DefaultOutboundBytes, MaxOutboundBytes             = 1 << 20, 8 << 20, 32 << 20
	MinActiveCursors, DefaultActiveCursors, MaxActiveCursors             = 16, 256, 512

	// MaxFilesPerTree is the number of files of one content tree.
	MaxFilesPerTree = 200_000
)

// DefaultLimits returns the limits that a side offers unless it is told otherwise.
func DefaultLimits() *pb.Limits {
	return &pb.Limits{
		MaxEnvelopeBytes:     DefaultEnvelopeBytes,
		MaxChunkEntries:      DefaultChunkEntries,
		MaxOutboundEnvelopes: DefaultOutboundEnvelopes,
		MaxOutboundBytes:     DefaultOutboundBytes,
		MaxActiveCursors:     DefaultActiveCursors,
	}
}

// LowerLimits returns the lower of both offers, field by field (daemon protocol 2.5).
func LowerLimits(a, b *pb.Limits) *pb.Limits {
	return &pb.Limits{
		MaxEnvelopeBytes:     min(a.GetMaxEnvelopeBytes(), b.GetMaxEnvelopeBytes()),
		MaxChunkEntries:      min(a.GetMaxChunkEntries(), b.GetMaxChunkEntries()),
		MaxOutboundEnvelopes: min(a.GetMaxOutboundEnvelopes(), b.GetMaxOutboundEnvelopes()),
		MaxOutboundBytes:     min(a.GetMaxOutboundBytes(), b.GetMaxOutboundBytes()),
		MaxActiveCursors:     min(a.GetMaxActiveCursors(), b.GetMaxActiveCursors()),
	}
}
