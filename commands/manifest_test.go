package commands

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/layout"
)

// jobDirectory writes a job directory with one file and returns its path.
func jobDirectory(t *testing.T) string {
	t.Helper()
	const job = "0190c5f0-0000-7000-8000-000000000001"
	content := []byte("what was archived")
	sum := sha256.Sum256(content)
	dir := t.TempDir()
	root, err := beneath.Open(dir, beneath.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := layout.CreateJobDir(root, job, 3); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, filepath.FromSlash(layout.JobDir(job, 3)))
	if err := os.MkdirAll(filepath.Join(path, layout.Payload), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, filepath.FromSlash(layout.PayloadName(0))), content, 0o644); err != nil {
		t.Fatal(err)
	}
	size, hex64 := uint64(len(content)), strings.Repeat("0a", 32)
	indices := func() *pb.IndexSet { return &pb.IndexSet{Ranges: []*pb.IndexRange{{}}} }
	m := &pb.TransferManifest{Format: 1, JobId: job, Attempt: 3, DefinitionSha256: hex64,
		Source: &pb.EndpointIdentity{ClientId: "0190c5f0-0000-7000-8000-00000000000a", ContentRevision: hex64, BackendKind: "directory",
			Resource: &pb.ResourceRef{ClientId: "0190c5f0-0000-7000-8000-00000000000a", ResourceId: "tree:t", Identity: &pb.ResourceIdentity{TreeFingerprint: hex64, DisplayName: "t"}}},
		Target:    &pb.EndpointIdentity{ClientId: "0190c5f0-0000-7000-8000-00000000000b"},
		Route:     &pb.RouteIdentity{RouteId: "0190c5f0-0000-7000-8000-00000000000c", Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY},
		Requested: indices(), Delta: indices(),
		Baseline: &pb.TargetBaseline{Present: &pb.IndexSet{}, FilesystemProfile: &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, MaxNameBytes: 255}},
		Files: []*pb.ManifestFile{{Path: "t/a", Kind: pb.FileKind_FILE_KIND_REGULAR, Action: pb.DeltaAction_DELTA_ACTION_TRANSFER, LogicalBytes: size, AllocatedBytes: 4096,
			Mtime: timestamppb.New(time.Unix(1e9, 0)), Sha256: hex.EncodeToString(sum[:]), Payload: layout.PayloadName(0)}},
		Totals:    &pb.ManifestTotals{Files: 1, LogicalBytes: size, PayloadFiles: 1, PayloadLogicalBytes: size, PayloadAllocatedBytes: 4096},
		CreatedAt: timestamppb.New(time.Unix(1e9, 0))}
	m.Fingerprints = &pb.ManifestFingerprints{TreeSha256: layout.TreeFingerprint(m.Files)}
	w, err := layout.WriteManifest(root, m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := layout.WriteMarker(root, m, w, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestManifestVerify(t *testing.T) {
	t.Parallel()
	dir := jobDirectory(t)
	run := func(terminal bool, args ...string) (code int, out, talk string) {
		var o, e bytes.Buffer
		opts := newOptions(Stdio{Out: &o, Err: &e, IsTerminal: terminal}, Assets{})
		code = opts.execute(t.Context(), append([]string{"manifest", "verify"}, args...))
		return code, o.String(), e.String()
	}
	if code, out, talk := run(false, dir); code != ExitOK || !strings.Contains(out, "1 file, 17 B") || !strings.Contains(out, "is what its manifest says") || talk != "" {
		t.Errorf("good: %d %s%s", code, out, talk)
	}
	if code, out, _ := run(false, dir, "--json"); code != ExitOK || !strings.HasPrefix(out, `{"schema_version":1,"verdict":{"ok":true,`) ||
		!strings.Contains(out, `"job_id":"0190c5f0-0000-7000-8000-000000000001","attempt":3,`) || !strings.Contains(out, `"problems":[]`) {
		t.Errorf("good: %d %s", code, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "stray"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, talk := run(true, dir); code != ExitOK || !strings.Contains(talk, "not in the manifest and ignored: 1 name, such as stray") {
		t.Errorf("with another name: %d %s", code, talk)
	}
	// One byte of the payload is another one.
	if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(layout.PayloadName(0))), []byte("what was archiveD"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, talk := run(false, dir); code != ExitFailed || !strings.Contains(out, "integrity_failure") || !strings.Contains(talk, "is not what its manifest says: 1 problem") {
		t.Errorf("changed: %d %s%s", code, out, talk)
	}
	if code, out, _ := run(false, dir, "--json"); code != ExitFailed || strings.Count(out, "\n") != 1 || !strings.Contains(out, `"ok":false`) {
		t.Errorf("changed: %d %s", code, out)
	}
	if code, _, _ := run(false, filepath.Join(dir, "nowhere")); code != ExitNotFound {
		t.Errorf("no directory: %d", code)
	}
	if code, _, _ := run(false, filepath.Join(dir, "manifest.json")); code != ExitUsage {
		t.Errorf("a file: %d", code)
	}
	if code, _, _ := run(false, t.TempDir()); code != ExitFailed {
		t.Errorf("an empty directory: %d", code)
	}
}
