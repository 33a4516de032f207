package work

import (
	"context"
	"path"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// What a daemon finds of a job that it has no record of, because its database was lost (daemon protocol 9, row 13). A step
// is then made again from what proves itself by digest; the rest is put aside.

// transferred returns the job directory that TRANSFER brought. Without a record of it, it is the one whose manifest has the
// digest that control names: that manifest names the job, its definition and every file.
func (w *Worker) transferred(ctx context.Context, r *beneath.Root, job *daemon.Job, digest string) (string, *layout.Received, error) {
	staged, err := job.Evidence(ctx, pb.JobStep_JOB_STEP_TRANSFER)
	if err != nil {
		return "", nil, err
	}
	if dir := staged.GetTransfer().GetJobDir(); dir != "" {
		got, err := w.received(ctx, r, job, dir, digest, true)
		return dir, got, err
	}
	var attempts []uint32
	if digest != "" {
		if err := layout.JobDirs(r, func(id string, attempt uint32) error {
			if id == job.ID.String() {
				attempts = append(attempts, attempt)
			}
			return nil
		}); err != nil {
			return "", nil, err
		}
	}
	for _, n := range attempts {
		dir := path.Base(layout.JobDir(job.ID.String(), n))
		got, err := w.received(ctx, r, job, dir, digest, true)
		switch {
		case err == nil:
			return dir, got, nil
		case codeOf(err) == pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID: // another attempt's, or not whole
		default:
			return "", nil, err
		}
	}
	return "", nil, held(pb.ErrorCode_ERROR_CODE_STATE_LOST, "this daemon has no record of the transfer that it is to verify, and no job directory with "+
		"the manifest that control names")
}

// payloadBack completes a job directory of which nothing is built as far as this daemon remembers, and which is not complete
// all the same: a database that is gone had begun. What that one moved into the work area moves back to where it came from,
// if it is what the manifest says; what it published stays and is found at its place. It fails with the given error when
// something is gone.
func (m *build) payloadBack(ctx context.Context, incomplete error) (*layout.Received, error) {
	params := m.t.Execute.GetMaterialize()
	got, err := m.w.received(ctx, m.from, m.job, params.GetJobDir(), params.GetManifestSha256(), true)
	if err != nil {
		return nil, incomplete
	}
	dir := path.Join(layout.Jobs, params.GetJobDir())
	for _, a := range got.Manifest.GetArtifacts() {
		if st, there, err := found(m.from, path.Join(dir, a.GetPayload())); err != nil || !there || uint64(st.Size) != a.GetBytes() {
			return nil, incomplete
		}
	}
	for _, f := range got.Manifest.GetFiles() {
		if f.GetPayload() == "" {
			continue
		}
		ok, err := m.fileBack(ctx, path.Join(dir, f.GetPayload()), f)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, incomplete
		}
	}
	return got, nil
}

// fileBack reports whether the payload of a file is there, or the file is at its place.
func (m *build) fileBack(ctx context.Context, payload string, f *pb.ManifestFile) (bool, error) {
	if st, there, err := found(m.from, payload); err != nil || there {
		return there && uint64(st.Size) == f.GetLogicalBytes(), err
	}
	if _, there, err := found(m.to, finalName(m.job, f.GetPath())); err != nil || there {
		return there, err
	}
	built, sum := path.Join(m.work, f.GetPath()), digestOf(f.GetSha256())
	st, there, err := found(m.to, built)
	if err != nil || !there || !st.Mode.IsRegular() || uint64(st.Size) != f.GetLogicalBytes() || sum == nil {
		return false, err
	}
	got, err := copyfile.Digest(ctx, m.to, built, copyfile.Options{Limit: m.w.o.Read})
	if err != nil || got.SHA256 != *sum {
		return false, err
	}
	if err := m.to.RenameNoReplace(built, m.from, payload); err != nil {
		return false, err
	}
	m.w.o.Reached("payload moved back")
	return true, nil
}
