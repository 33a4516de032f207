package layout

import (
	"path"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
)

// WriteManifest flushes every payload and artifact file of m and their directories, then writes m into its job directory.
// m must be complete: what its receiver would refuse is MANIFEST_INVALID, a file that is not there with its size is
// INTEGRITY_FAILURE, and nothing is written. Serialization is not stable between two builds of the program: after a
// restart take the manifest that is there (ReadManifest) instead of writing it anew.
func WriteManifest(root *beneath.Root, m *pb.TransferManifest) (Written, error) {
	dir := JobDir(m.GetJobId(), m.GetAttempt())
	name := dir + "/" + ManifestFile
	if err := ValidateManifest(m, Expect{}); err != nil {
		return Written{}, err
	}
	content, err := frame.Marshal(m)
	if err != nil {
		return Written{}, invalid(name, "%w", err)
	}
	for file, size := range listed(m) {
		if err := flush(root, dir+"/"+file, size); err != nil {
			return Written{}, err
		}
	}
	durable, err := syncDirs(root, dir+"/"+Payload, dir+"/"+Aux, dir)
	if err != nil {
		return Written{}, err
	}
	w, err := WriteAtomic(root, name, content)
	w.Durable = w.Durable && durable
	return w, err
}

// WriteMarker writes the ready marker of m, last of all: w is what WriteManifest or ReadManifest returned.
func WriteMarker(root *beneath.Root, m *pb.TransferManifest, w Written, now time.Time) (Written, error) {
	name := JobDir(m.GetJobId(), m.GetAttempt()) + "/" + MarkerFile
	marker := &pb.ReadyMarker{
		Format:              valid.ManifestFormat,
		JobId:               m.GetJobId(),
		Attempt:             m.GetAttempt(),
		ManifestSha256:      w.SHA256,
		ManifestBytes:       w.Bytes,
		PayloadFiles:        m.GetTotals().GetPayloadFiles(),
		PayloadLogicalBytes: m.GetTotals().GetPayloadLogicalBytes(),
		WrittenAt:           timestamppb.New(now),
	}
	if err := valid.ReadyMarker(marker); err != nil {
		return Written{}, invalid(name, "%w", err)
	}
	content, err := frame.Marshal(marker)
	if err != nil {
		return Written{}, invalid(name, "%w", err)
	}
	return WriteAtomic(root, name, content)
}

// ReadManifest reads the manifest of a job directory of one's own, before there is a marker: NOT_FOUND when it was not
// written yet.
func ReadManifest(root *beneath.Root, jobID string, attempt uint32) (*pb.TransferManifest, Written, error) {
	dir := JobDir(jobID, attempt)
	name := dir + "/" + ManifestFile
	content, err := readOwn(root, name, MaxManifest)
	if err != nil {
		return nil, Written{}, err
	}
	m := &pb.TransferManifest{}
	if err := decode(name, content, m); err != nil {
		return nil, Written{}, err
	}
	if err := ValidateManifest(m, Expect{JobID: jobID, Attempt: attempt}); err != nil {
		return nil, Written{}, err
	}
	durable, err := syncDirs(root, dir) // the process before may have died between the rename and its flush
	return m, Written{SHA256: digest(content), Bytes: uint64(len(content)), Durable: durable}, err
}

// listed yields the names, relative to the job directory, and sizes of all files that a manifest describes.
func listed(m *pb.TransferManifest) func(yield func(string, uint64) bool) {
	return func(yield func(string, uint64) bool) {
		for _, f := range m.GetFiles() {
			if f.GetPayload() != "" && !yield(f.GetPayload(), f.GetLogicalBytes()) {
				return
			}
		}
		for _, a := range m.GetArtifacts() {
			if !yield(a.GetPayload(), a.GetBytes()) {
				return
			}
		}
	}
}

func flush(root *beneath.Root, name string, size uint64) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if uint64(st.Size) != size {
		return failure(integrity, name, "has %d bytes, the manifest says %d of %s", st.Size, size, path.Base(name))
	}
	return f.Sync()
}
