package valid

import (
	"fmt"
	"slices"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
)

// ManifestFormat is the format of the manifests and markers of this version.
const ManifestFormat = 1

// TransferManifest checks a manifest as far as it can be alone: its parts fit each other. The receiver compares it with
// the directory, the definition and the files (daemon protocol 7.2).
func TransferManifest(m *pb.TransferManifest) error { return run(m, (*checker).manifest) }

func (c *checker) manifest(m *pb.TransferManifest) {
	c.must(m.Format == ManifestFormat, "format", "must be "+itoa(ManifestFormat))
	c.uuid("job_id", m.JobId)
	c.must(m.Attempt >= 1, "attempt", "must be at least 1")
	c.hash("definition_sha256", m.DefinitionSha256)
	required(c, "source", m.Source, (*checker).endpointIdentity)
	c.must(m.Source.GetResource() != nil, "source.resource", "is required")
	required(c, "target", m.Target, (*checker).endpointIdentity)
	required(c, "route", m.Route, (*checker).routeIdentity)
	optional(c, "torrent", m.Torrent, (*checker).torrent)
	required(c, "requested", m.Requested, (*checker).someIndices)
	required(c, "baseline", m.Baseline, (*checker).baseline)
	optional(c, "delta", m.Delta, (*checker).indices)
	each(c, "files", m.Files, (*checker).manifestFile)
	each(c, "artifacts", m.Artifacts, (*checker).artifact)
	optional(c, "fingerprints", m.Fingerprints, (*checker).fingerprints)
	required(c, "totals", m.Totals, (*checker).totals)
	c.time("created_at", m.CreatedAt)
	c.manifestSets(m)
	c.manifestSums(m)
}

// manifestSets checks delta, and that files is sorted and has every requested index.
func (c *checker) manifestSets(m *pb.TransferManifest) {
	if c.err != nil {
		return
	}
	requested := spans(m.Requested)
	want := minus(requested, spans(m.Baseline.Present))
	c.must(slices.Equal(spans(m.Delta), want), "delta", "must be requested without baseline.present")
	var files []span
	for i, f := range m.Files {
		if i > 0 && f.Index <= m.Files[i-1].Index {
			c.fail("files["+itoa(i)+"].index", "must be above the one before")
			return
		}
		files = append(files, span{uint64(f.Index), uint64(f.Index) + 1})
	}
	c.must(len(minus(requested, files)) == 0, "files", "must have every requested index")
}

// manifestSums checks totals, and that no two payloads have one name.
func (c *checker) manifestSums(m *pb.TransferManifest) {
	if c.err != nil {
		return
	}
	sum := &pb.ManifestTotals{Files: uint32(len(m.Files))}
	names := make(map[string]struct{}, len(m.Files)+len(m.Artifacts))
	add := func(field, name string) {
		if _, twice := names[name]; twice {
			c.fail(field, "must not be used twice")
		}
		names[name] = struct{}{}
	}
	for i, f := range m.Files {
		var carry bool
		if sum.LogicalBytes, carry = plus(sum.LogicalBytes, f.LogicalBytes); carry {
			c.fail("files["+itoa(i)+"].logical_bytes", "must not make the sum overflow")
		}
		if f.Payload == "" {
			continue
		}
		sum.PayloadFiles++
		sum.PayloadLogicalBytes += f.LogicalBytes
		if sum.PayloadAllocatedBytes, carry = plus(sum.PayloadAllocatedBytes, f.AllocatedBytes); carry {
			c.fail("files["+itoa(i)+"].allocated_bytes", "must not make the sum overflow")
		}
		add("files["+itoa(i)+"].payload", f.Payload)
		if c.err != nil {
			return
		}
	}
	for i, a := range m.Artifacts {
		add("artifacts["+itoa(i)+"].payload", a.Payload)
	}
	t := m.Totals
	c.must(t.Files == sum.Files, "totals.files", "must be the number of files")
	c.must(t.PayloadFiles == sum.PayloadFiles, "totals.payload_files", "must be the number of files with a payload")
	c.must(t.LogicalBytes == sum.LogicalBytes, "totals.logical_bytes", "must be the sum over the files")
	c.must(t.PayloadLogicalBytes == sum.PayloadLogicalBytes, "totals.payload_logical_bytes", "must be the sum over the payload")
	c.must(t.PayloadAllocatedBytes == sum.PayloadAllocatedBytes, "totals.payload_allocated_bytes", "must be the sum over the payload")
}

func plus(a, b uint64) (sum uint64, carry bool) { return a + b, a+b < a }

// EndpointIdentity checks one end of a transfer.
func EndpointIdentity(m *pb.EndpointIdentity) error { return run(m, (*checker).endpointIdentity) }

func (c *checker) endpointIdentity(m *pb.EndpointIdentity) {
	c.uuid("client_id", m.ClientId)
	optional(c, "resource", m.Resource, (*checker).resource)
	c.hashOrEmpty("content_revision", m.ContentRevision)
}

// RouteIdentity checks the name of a route.
func RouteIdentity(m *pb.RouteIdentity) error { return run(m, (*checker).routeIdentity) }

func (c *checker) routeIdentity(m *pb.RouteIdentity) {
	c.uuid("route_id", m.RouteId)
	chosen(c, "kind", m.Kind, pb.RouteKind_name)
}

// ManifestFile checks one file of a manifest. Exactly the files of the action TRANSFER that hold bytes of their own have
// a payload, payload/ and the index in eight digits (daemon protocol 7.1), and its digest.
func ManifestFile(m *pb.ManifestFile) error { return run(m, (*checker).manifestFile) }

func (c *checker) manifestFile(m *pb.ManifestFile) {
	c.path("path", m.Path)
	chosen(c, "kind", m.Kind, pb.FileKind_name)
	chosen(c, "action", m.Action, pb.DeltaAction_name)
	c.symlink(m.Kind, m.SymlinkTarget)
	c.time("mtime", m.Mtime)
	known(c, "stage_method", m.StageMethod, pb.MaterializeMethod_name)
	if m.Payload == "" {
		c.must(m.Action != pb.DeltaAction_DELTA_ACTION_TRANSFER || m.Kind != pb.FileKind_FILE_KIND_REGULAR, "payload", "is required for TRANSFER")
		c.hashOrEmpty("sha256", m.Sha256)
		return
	}
	c.must(m.Action == pb.DeltaAction_DELTA_ACTION_TRANSFER, "payload", "must be empty unless the action is TRANSFER")
	c.must(m.Payload == PayloadName(m.Index), "payload", "must be payload/ and the index in eight digits")
	c.hash("sha256", m.Sha256)
}

// PayloadName returns the name of a file's payload relative to the job directory (daemon protocol 7.1).
func PayloadName(index uint32) string {
	return fmt.Sprintf("payload/%08d", index)
}

// ManifestArtifact checks an auxiliary file.
func ManifestArtifact(m *pb.ManifestArtifact) error { return run(m, (*checker).artifact) }

func (c *checker) artifact(m *pb.ManifestArtifact) {
	chosen(c, "kind", m.Kind, pb.ArtifactKind_name)
	c.path("payload", m.Payload)
	c.must(strings.HasPrefix(m.Payload, "aux/") && strings.Count(m.Payload, "/") == 1, "payload", "must be aux/ and a name")
	c.hash("sha256", m.Sha256)
	c.must(m.Partfile == nil || m.Kind == pb.ArtifactKind_ARTIFACT_KIND_PARTFILE, "partfile", "must be set for PARTFILE only")
}

// ManifestFingerprints checks digests.
func ManifestFingerprints(m *pb.ManifestFingerprints) error { return run(m, (*checker).fingerprints) }

func (c *checker) fingerprints(m *pb.ManifestFingerprints) {
	c.hashOrEmpty("tree_sha256", m.TreeSha256)
	c.hashOrEmpty("info_sha256", m.InfoSha256)
}

func (c *checker) totals(*pb.ManifestTotals) {}

// ReadyMarker checks a marker as far as it can be alone.
func ReadyMarker(m *pb.ReadyMarker) error { return run(m, (*checker).marker) }

func (c *checker) marker(m *pb.ReadyMarker) {
	c.must(m.Format == ManifestFormat, "format", "must be "+itoa(ManifestFormat))
	c.uuid("job_id", m.JobId)
	c.must(m.Attempt >= 1, "attempt", "must be at least 1")
	c.hash("manifest_sha256", m.ManifestSha256)
	c.must(m.ManifestBytes > 0, "manifest_bytes", "must be above 0")
	c.time("written_at", m.WrittenAt)
}
