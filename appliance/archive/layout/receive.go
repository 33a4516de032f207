package layout

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent"
)

// Received is a job directory that passed the receiver's checks.
type Received struct {
	Manifest       *pb.TransferManifest
	Marker         *pb.ReadyMarker
	ManifestSHA256 string // of the exact bytes on disk
	Extras         Extras
}

// Extras are names that the manifest does not list. They are ignored, reported, and not removed before the job ends.
type Extras struct {
	Count int
	First []Extra // at most 100
}

// Extra is one name that the manifest does not list.
type Extra struct {
	Name      string // relative to the job directory
	Temporary bool   // it looks like a file in the making
}

const maxExtras = 100

func (x *Extras) add(name string, temporary bool) {
	x.Count++
	if len(x.First) < maxExtras {
		x.First = append(x.First, Extra{name, temporary})
	}
}

// Receive looks at a job directory in an outbox or receive root as its receiver must, in the order of daemon protocol
// 7.3: both files there, marker, size and digest of the manifest, only then its content, only then the payload. It fails
// with *NotReady while something is missing (with the Received so far once the manifest was accepted), and with
// MANIFEST_INVALID or the code of a path for what no waiting mends. Payload is compared by size, the torrent file by its
// digests; everything else is read by VERIFY.
func Receive(ctx context.Context, root *beneath.Root, jobID string, attempt uint32, exp Expect) (*Received, error) {
	dir := JobDir(jobID, attempt)
	exp.JobID, exp.Attempt = jobID, attempt
	marker, manifest, err := readPair(root, dir)
	if err != nil {
		return nil, err
	}
	r := &Received{Marker: &pb.ReadyMarker{}, Manifest: &pb.TransferManifest{}}
	if err := decode(join(dir, MarkerFile), marker, r.Marker); err != nil {
		return nil, err
	}
	if r.ManifestSHA256, err = checkMarker(dir, r.Marker, manifest, exp); err != nil {
		return nil, err
	}
	if err := decode(join(dir, ManifestFile), manifest, r.Manifest); err != nil {
		return nil, err
	}
	if err := ValidateManifest(r.Manifest, exp); err != nil {
		return nil, err
	}
	if err := checkTotals(dir, r); err != nil {
		return nil, err
	}
	if err := checkSizes(ctx, root, dir, r); err != nil {
		return r, err
	}
	return r, checkTorrent(root, dir, r.Manifest)
}

// readPair reads marker and manifest. What is not there, or not there as a regular file with one link, is NotReady.
func readPair(root *beneath.Root, dir string) (marker, manifest []byte, err error) {
	st, err := root.Lstat(dir)
	switch {
	case beneath.IsNotFound(err):
		return nil, nil, &NotReady{Dir: dir, Reason: "it does not exist"}
	case err != nil:
		return nil, nil, err
	case st.Mode&fs.ModeSymlink != 0:
		return nil, nil, failure(beneath.PathUnsafe, dir, "a symbolic link where the job directory belongs")
	case !st.Mode.IsDir():
		return nil, nil, failure(beneath.PathConflict, dir, "is not a directory")
	}
	for _, name := range []string{MarkerFile, ManifestFile} { // both, before either is read
		st, err := root.Lstat(join(dir, name))
		switch {
		case beneath.IsNotFound(err):
			return nil, nil, &NotReady{Dir: dir, Reason: "there is no " + name}
		case err != nil:
			return nil, nil, err
		case !st.Mode.IsRegular() || st.Nlink != 1:
			return nil, nil, &NotReady{Dir: dir, Reason: name + " is not a regular file with one name"}
		}
	}
	if marker, err = readPart(root, dir, MarkerFile, MaxMarker); err != nil {
		return nil, nil, err
	}
	manifest, err = readPart(root, dir, ManifestFile, MaxManifest)
	return marker, manifest, err
}

func readPart(root *beneath.Root, dir, name string, limit int64) ([]byte, error) {
	b, err := readOwn(root, join(dir, name), limit)
	switch {
	case errors.Is(err, errNotOwn) || beneath.IsNotFound(err):
		return nil, &NotReady{Dir: dir, Reason: name + " is being replaced"}
	case beneath.CodeOf(err) == beneath.FilesystemLimit:
		return nil, invalid(join(dir, name), "is larger than %d bytes", limit)
	}
	return b, err
}

// checkMarker holds the marker to the directory and the manifest's bytes to the marker.
func checkMarker(dir string, marker *pb.ReadyMarker, manifest []byte, exp Expect) (string, error) {
	name := join(dir, MarkerFile)
	switch {
	case exp.JobID != "" && marker.JobId != exp.JobID:
		return "", invalid(name, "job_id: is for job %s", marker.JobId)
	case exp.Attempt != 0 && marker.Attempt != exp.Attempt:
		return "", invalid(name, "attempt: is for attempt %d", marker.Attempt)
	case marker.ManifestBytes != uint64(len(manifest)):
		return "", invalid(join(dir, ManifestFile), "has %d bytes, the marker says %d", len(manifest), marker.ManifestBytes)
	}
	sum := digest(manifest)
	if sum != marker.ManifestSha256 {
		return sum, invalid(join(dir, ManifestFile), "has SHA-256 %s, the marker says %s", sum, marker.ManifestSha256)
	}
	if exp.ManifestSHA256 != "" && sum != exp.ManifestSHA256 {
		return sum, invalid(join(dir, ManifestFile), "has SHA-256 %s, the evidence says %s", sum, exp.ManifestSHA256)
	}
	return sum, nil
}

func checkTotals(dir string, r *Received) error {
	if r.Marker.PayloadFiles != r.Manifest.Totals.PayloadFiles || r.Marker.PayloadLogicalBytes != r.Manifest.Totals.PayloadLogicalBytes {
		return invalid(join(dir, MarkerFile), "payload_files and payload_logical_bytes: must be the manifest's totals")
	}
	return nil
}

// checkSizes compares the sizes of payload and artifacts, and lists what does not belong.
func checkSizes(ctx context.Context, root *beneath.Root, dir string, r *Received) error {
	missing := &NotReady{Dir: dir, Reason: "payload is missing or has another size", Want: r.Manifest.Totals.PayloadLogicalBytes}
	names := map[string]bool{}
	for name, size := range listed(r.Manifest) {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		names[name] = true
		st, err := root.Lstat(join(dir, name))
		if err != nil && !beneath.IsNotFound(err) {
			return err
		}
		if err == nil && st.Mode&fs.ModeSymlink != 0 {
			return failure(beneath.PathUnsafe, join(dir, name), "a symbolic link where payload belongs")
		}
		if err != nil || !st.Mode.IsRegular() || uint64(st.Size) != size {
			if missing.Incomplete++; missing.First == "" {
				missing.First = name
			}
		}
		if err == nil && st.Mode.IsRegular() && strings.HasPrefix(name, Payload+"/") {
			missing.Have += min(uint64(st.Size), size)
		}
	}
	var err error
	if r.Extras, err = extras(root, dir, names); err != nil {
		return err
	}
	if missing.Incomplete > 0 {
		return missing
	}
	return nil
}

// checkTorrent compares the torrent file, if there is one, with the manifest.
func checkTorrent(root *beneath.Root, dir string, m *pb.TransferManifest) error {
	for _, a := range m.Artifacts {
		if !isMetainfo(a) {
			continue
		}
		name := join(dir, a.Payload)
		content, err := root.ReadFile(name, torrent.MaxMetainfoBytes)
		if err != nil {
			return err
		}
		if sum := digest(content); sum != a.Sha256 {
			return failure(integrity, name, "has SHA-256 %s, the manifest says %s", sum, a.Sha256)
		}
		if err := checkMetainfo(name, content, m); err != nil {
			return err
		}
	}
	return nil
}

// extras lists the names in a job directory that are not in names.
func extras(root *beneath.Root, dir string, names map[string]bool) (Extras, error) {
	var x Extras
	for _, at := range []string{"", Payload + "/", Aux + "/"} {
		err := root.ReadDir(join(dir, at), func(e beneath.Entry) error {
			name := at + e.Name
			own := at == "" && (name == ManifestFile || name == MarkerFile || e.Type.IsDir() && (name == Payload || name == Aux))
			if !own && !names[name] {
				x.add(name, IsTemporary(e.Name))
			}
			return nil
		})
		if err != nil && !(beneath.IsNotFound(err) && at != "") {
			return x, err
		}
	}
	return x, nil
}

// join joins a job directory, which is "" when it is the root itself, and a name in it that may end in a slash.
func join(dir, name string) string {
	name = strings.TrimSuffix(name, "/")
	switch {
	case dir == "":
		return name
	case name == "":
		return dir
	}
	return dir + "/" + name
}
