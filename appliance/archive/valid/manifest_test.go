package valid_test

import (
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/valid/validtest"
)

func TestManifest(t *testing.T) {
	set := func(pairs ...uint32) *pb.IndexSet {
		s := new(pb.IndexSet)
		for i := 0; i < len(pairs); i += 2 {
			s.Ranges = append(s.Ranges, &pb.IndexRange{First: pairs[i], Last: pairs[i+1]})
		}
		return s
	}
	hold(t, validtest.Manifest, []rule[*pb.TransferManifest]{
		{"format", "format", func(m *pb.TransferManifest) { m.Format = 2 }, 0},
		{"attempt", "attempt", func(m *pb.TransferManifest) { m.Attempt = 0 }, 0},
		{"no source", "source", func(m *pb.TransferManifest) { m.Source = nil }, 0},
		{"no resource at the source", "source.resource", func(m *pb.TransferManifest) { m.Source.Resource = nil }, 0},
		{"resource at the target", "", func(m *pb.TransferManifest) { m.Target.Resource = validtest.Resource(validtest.Target) }, 0},
		{"no target", "target", func(m *pb.TransferManifest) { m.Target = nil }, 0},
		{"no route", "route", func(m *pb.TransferManifest) { m.Route = nil }, 0},
		{"route kind", "route.kind", func(m *pb.TransferManifest) { m.Route.Kind = 0 }, unsupported},
		{"plain tree", "", func(m *pb.TransferManifest) { m.Torrent = nil }, 0},
		{"nothing requested", "requested", func(m *pb.TransferManifest) { m.Requested = nil }, 0},
		{"no baseline", "baseline", func(m *pb.TransferManifest) { m.Baseline = nil }, 0},
		{"delta in other ranges", "", func(m *pb.TransferManifest) {
			m.Requested, m.Baseline.Present, m.Delta = set(0, 2, 5, 5), nil, set(0, 0, 1, 1, 2, 2, 5, 5)
		}, 0},
		{"delta has too much", "delta", func(m *pb.TransferManifest) { m.Delta = set(0, 2, 5, 5) }, 0},
		{"delta has too little", "delta", func(m *pb.TransferManifest) { m.Delta = set(0, 0, 2, 2) }, 0},
		{"delta not sorted", "delta.ranges[1]", func(m *pb.TransferManifest) { m.Delta = set(2, 2, 0, 0, 5, 5) }, 0},
		{"no delta", "delta", func(m *pb.TransferManifest) { m.Delta = nil }, 0},
		{"all present", "", func(m *pb.TransferManifest) { m.Baseline.Present, m.Delta = set(0, 9), nil }, 0},
		{"requested to the last index", "delta", func(m *pb.TransferManifest) { m.Requested = set(0, 1<<32-1) }, 0},
		{"not sorted", "files[1].index", func(m *pb.TransferManifest) { m.Files[1].Index = 0 }, 0},
		{"requested file missing", "files", func(m *pb.TransferManifest) { m.Files = m.Files[:4] }, 0},
		{"path", "files[2].path", func(m *pb.TransferManifest) { m.Files[2].Path = ".." }, unsafe},
		{"payload missing", "files[0].payload", func(m *pb.TransferManifest) { m.Files[0].Payload = "" }, 0},
		{"payload of another index", "files[0].payload", func(m *pb.TransferManifest) { m.Files[0].Payload = "payload/00000002" }, 0},
		{"payload outside", "files[0].payload", func(m *pb.TransferManifest) { m.Files[0].Payload = "payload/../ready.json" }, 0},
		{"payload of a file that is there", "files[1].payload", func(m *pb.TransferManifest) { m.Files[1].Payload = "payload/00000001" }, 0},
		{"payload without digest", "files[0].sha256", func(m *pb.TransferManifest) { m.Files[0].Sha256 = "" }, 0},
		{"no action", "files[0].action", func(m *pb.TransferManifest) { m.Files[0].Action = 0 }, unsupported},
		{"artifact outside", "artifacts[0].payload", func(m *pb.TransferManifest) { m.Artifacts[0].Payload = "manifest.json" }, 0},
		{"artifact in a directory", "artifacts[0].payload", func(m *pb.TransferManifest) { m.Artifacts[0].Payload = "aux/a/b" }, 0},
		{"artifact above", "artifacts[0].payload", func(m *pb.TransferManifest) { m.Artifacts[0].Payload = "aux/.." }, unsafe},
		{"artifact twice", "artifacts[1].payload", func(m *pb.TransferManifest) { m.Artifacts[1].Payload = "aux/metainfo" }, 0},
		{"format of a torrent file", "artifacts[0].partfile", func(m *pb.TransferManifest) { m.Artifacts[0].Partfile = &pb.PartfileFormat{} }, 0},
		{"no totals", "totals", func(m *pb.TransferManifest) { m.Totals = nil }, 0},
		{"files", "totals.files", func(m *pb.TransferManifest) { m.Totals.Files++ }, 0},
		{"payload files", "totals.payload_files", func(m *pb.TransferManifest) { m.Totals.PayloadFiles-- }, 0},
		{"logical bytes", "totals.logical_bytes", func(m *pb.TransferManifest) { m.Files[3].LogicalBytes++ }, 0},
		{"payload bytes", "totals.payload_logical_bytes", func(m *pb.TransferManifest) { m.Totals.PayloadLogicalBytes++ }, 0},
		{"allocated bytes", "totals.payload_allocated_bytes", func(m *pb.TransferManifest) { m.Totals.PayloadAllocatedBytes++ }, 0},
		{"sum that overflows", "files[2].logical_bytes", func(m *pb.TransferManifest) { m.Files[2].LogicalBytes = 1<<64 - 150 }, 0},
	})
	hold(t, validtest.Marker, []rule[*pb.ReadyMarker]{
		{"format", "format", func(m *pb.ReadyMarker) { m.Format = 0 }, 0},
		{"attempt", "attempt", func(m *pb.ReadyMarker) { m.Attempt = 0 }, 0},
		{"no bytes", "manifest_bytes", func(m *pb.ReadyMarker) { m.ManifestBytes = 0 }, 0},
	})
}

func TestPayloadName(t *testing.T) {
	for index, want := range map[uint32]string{0: "payload/00000000", 7: "payload/00000007", 199_999: "payload/00199999", 1<<32 - 1: "payload/4294967295"} {
		if got := valid.PayloadName(index); got != want {
			t.Errorf("%d: %s", index, got)
		}
	}
}
