package layout

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/bencode"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/valid"
)

// Expect is what the receiver of a job directory knows. A zero field is not compared.
type Expect struct {
	JobID          string
	Attempt        uint32
	Definition     *pb.JobDefinition // of the assigned job
	ClientID       string            // the receiver
	RouteKind      pb.RouteKind
	ManifestSHA256 string // from an evidence
}

func decode(name string, content []byte, m proto.Message) error {
	if v := frame.DecodeFile(content, m); v != nil {
		return failure(v.Code, name, "%w", v)
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ValidateManifest holds a manifest to daemon protocol 7.2: its own parts, then what the receiver expects, then whether
// the target can hold its names. It looks at no file. The code is MANIFEST_INVALID, or that of a path.
func ValidateManifest(m *pb.TransferManifest, exp Expect) error {
	if err := valid.TransferManifest(m); err != nil {
		code := valid.AsError(err).Code
		if code != pb.ErrorCode_ERROR_CODE_PATH_UNSAFE {
			code = manifestInvalid
		}
		return failure(code, ManifestFile, "%w", err)
	}
	for _, check := range []func(*pb.TransferManifest, Expect) error{checkIdentity, checkDefinition, checkActions, checkPaths, checkFingerprints} {
		if err := check(m, exp); err != nil {
			return err
		}
	}
	return nil
}

func checkIdentity(m *pb.TransferManifest, exp Expect) error {
	switch {
	case exp.JobID != "" && m.JobId != exp.JobID:
		return invalid(ManifestFile, "job_id: must be that of the directory, %s", exp.JobID)
	case exp.Attempt != 0 && m.Attempt != exp.Attempt:
		return invalid(ManifestFile, "attempt: must be that of the directory, %d", exp.Attempt)
	case exp.ClientID != "" && m.Target.ClientId != exp.ClientID:
		return invalid(ManifestFile, "target.client_id: must be the receiver, %s", exp.ClientID)
	case exp.RouteKind != 0 && m.Route.Kind != exp.RouteKind:
		return invalid(ManifestFile, "route.kind: must be that of the route")
	}
	return nil
}

func checkDefinition(m *pb.TransferManifest, exp Expect) error {
	d := exp.Definition
	if d == nil {
		return nil
	}
	for _, c := range []struct {
		same  bool
		field string
	}{
		{m.JobId == d.JobId, "job_id"},
		{m.DefinitionSha256 == frame.Digest(d), "definition_sha256"},
		{m.Source.ClientId == d.Source.GetClientId() && frame.Equal(m.Source.Resource, d.Source), "source"},
		{m.Source.ContentRevision == d.SourceContentRevision, "source.content_revision"},
		{m.Target.ClientId == d.TargetClientId, "target.client_id"},
		{m.Route.RouteId == d.RouteId, "route.route_id"},
		{frame.Equal(m.Requested, d.Requested), "requested"},
		{frame.Equal(m.Baseline, d.Baseline), "baseline"},
	} {
		if !c.same {
			return invalid(ManifestFile, "%s: must be that of the job's definition", c.field)
		}
	}
	return nil
}

// checkActions compares the action of every file with the sets: exactly the delta is transferred.
func checkActions(m *pb.TransferManifest, _ Expect) error {
	for i, f := range m.Files {
		transferred, requested := has(m.Delta, f.Index), has(m.Requested, f.Index)
		ok := false
		switch f.Action {
		case pb.DeltaAction_DELTA_ACTION_TRANSFER:
			ok = transferred
		case pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET:
			ok = requested && !transferred
		case pb.DeltaAction_DELTA_ACTION_SYNTHESIZE, pb.DeltaAction_DELTA_ACTION_OMIT:
			ok = !requested
		}
		if !ok {
			return invalid(ManifestFile, "files[%d].action: does not fit requested, baseline and delta", i)
		}
	}
	return nil
}

// has looks an index up in a set of sorted, disjoint ranges.
func has(s *pb.IndexSet, index uint32) bool {
	_, found := slices.BinarySearchFunc(s.GetRanges(), index, func(r *pb.IndexRange, i uint32) int {
		switch {
		case r.Last < i:
			return -1
		case r.First > i:
			return 1
		}
		return 0
	})
	return found
}

// checkPaths asks whether the target can hold the names that would be made, by the profile of the baseline.
func checkPaths(m *pb.TransferManifest, _ Expect) error {
	profile := m.Baseline.FilesystemProfile
	var paths []string
	for _, f := range m.Files {
		if f.Kind == pb.FileKind_FILE_KIND_SYMLINK {
			if err := pathrule.CheckSymlink(f.Path, f.SymlinkTarget); err != nil {
				return err
			}
		}
		if f.Action == pb.DeltaAction_DELTA_ACTION_OMIT {
			continue
		}
		if profile != nil {
			if err := pathrule.CheckTarget(f.Path, f.LogicalBytes, profile); err != nil {
				return err
			}
		}
		if f.Kind != pb.FileKind_FILE_KIND_PADDING { // padding files may share a name
			paths = append(paths, f.Path)
		}
	}
	if profile == nil {
		profile = &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true}
	}
	if found := pathrule.Conflicts(paths, profile); len(found) > 0 {
		return found[0]
	}
	return nil
}

func checkFingerprints(m *pb.TransferManifest, _ Expect) error {
	if want := TreeFingerprint(m.Files); m.Fingerprints.GetTreeSha256() != want {
		return invalid(ManifestFile, "fingerprints.tree_sha256: is not that of the files, %q", want)
	}
	info := m.Fingerprints.GetInfoSha256()
	has := slices.ContainsFunc(m.Artifacts, isMetainfo)
	switch v2 := m.Source.GetResource().GetIdentity().GetInfohashV2(); {
	case has && m.Torrent == nil:
		return invalid(ManifestFile, "torrent: is required with a METAINFO artifact")
	case has != (info != ""):
		return invalid(ManifestFile, "fingerprints.info_sha256: must be set with a METAINFO artifact, and only then")
	case info != "" && v2 != "" && info != v2:
		return invalid(ManifestFile, "fingerprints.info_sha256: must be the resource's infohash_v2")
	}
	return nil
}

func isMetainfo(a *pb.ManifestArtifact) bool {
	return a.Kind == pb.ArtifactKind_ARTIFACT_KIND_METAINFO
}

// TreeFingerprint computes fingerprints.tree_sha256: the tree fingerprint over the regular files and symbolic links that
// are transferred or present at the target, in the order of their paths. It is empty when there are none, or one of the
// files has no digest.
func TreeFingerprint(files []*pb.ManifestFile) string {
	var list []*pb.ManifestFile
	for _, f := range files {
		switch f.GetAction() {
		case pb.DeltaAction_DELTA_ACTION_TRANSFER, pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET:
			if f.GetKind() != pb.FileKind_FILE_KIND_PADDING {
				list = append(list, f)
			}
		}
	}
	if len(list) == 0 {
		return ""
	}
	slices.SortStableFunc(list, func(a, b *pb.ManifestFile) int { return strings.Compare(a.Path, b.Path) })
	t := torrent.NewTreeFingerprint()
	for _, f := range list {
		if f.Kind == pb.FileKind_FILE_KIND_SYMLINK {
			t.Symlink(f.Path, f.SymlinkTarget)
			continue
		}
		var sum [32]byte
		if n, err := hex.Decode(sum[:], []byte(f.Sha256[:min(len(f.Sha256), 64)])); err != nil || n != len(sum) {
			return ""
		}
		t.File(f.Path, f.LogicalBytes, sum)
	}
	text, err := t.Sum()
	if err != nil {
		return "" // a path twice: refused elsewhere
	}
	return text
}

// InfoDigests returns the SHA-1 and SHA-256 of the info dictionary in a torrent file, in hexadecimal: the first is
// infohash_v1, the second infohash_v2 and fingerprints.info_sha256.
func InfoDigests(metainfo []byte) (sha1Hex, sha256Hex string, err error) {
	d := bencode.NewDecoder(metainfo, bencode.Limits{Bytes: torrent.MaxMetainfoBytes})
	var info []byte
	err = d.Dict(func(key []byte) error {
		from := d.Offset()
		if err := d.Skip(); err != nil {
			return err
		}
		if bytes.Equal(key, []byte("info")) {
			info = d.Slice(from, d.Offset())
		}
		return nil
	})
	if err == nil {
		err = d.End()
	}
	if err == nil && info == nil {
		err = d.Fail(0, "there is no info dictionary")
	}
	if err != nil {
		return "", "", err
	}
	one := sha1.Sum(info)
	return hex.EncodeToString(one[:]), digest(info), nil
}

// checkMetainfo compares the torrent file of a job directory with the manifest and the resource's identity.
func checkMetainfo(name string, content []byte, m *pb.TransferManifest) error {
	v1, v2, err := InfoDigests(content)
	if err != nil {
		return invalid(name, "is no torrent file: %w", err)
	}
	id := m.Source.GetResource().GetIdentity()
	switch {
	case v2 != m.Fingerprints.GetInfoSha256():
		return invalid(name, "its info dictionary has SHA-256 %s, the manifest says %s", v2, m.Fingerprints.GetInfoSha256())
	case id.GetInfohashV1() != "" && id.GetInfohashV1() != v1:
		return invalid(name, "is the torrent %s, the job is about %s", v1, id.GetInfohashV1())
	case id.GetInfohashV2() != "" && id.GetInfohashV2() != v2:
		return invalid(name, "is the torrent %s, the job is about %s", v2, id.GetInfohashV2())
	}
	return nil
}
