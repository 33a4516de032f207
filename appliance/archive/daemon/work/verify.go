package work

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/verify"
)

// verify reads every byte once for all digests, then has the backend hold the content, stopped (daemon protocol 3.2).
//
// Every level reads every byte: nothing that MATERIALIZE has compared is taken on trust, for a copy is proven by what the
// disk gives back and not by what was written. QUICK and STANDARD are the same here. STRICT has the backend read everything
// by itself as well, so that two readings agree.
func (w *Worker) verify(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	var e *pb.VerifyEvidence
	var err error
	if t.Job.Definition.GetOperation() == pb.JobOperation_JOB_OPERATION_TRANSFER {
		e, err = w.verifyReceived(ctx, t)
	} else {
		e, err = w.verifyHeld(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	e.Level, e.VerifiedAt = t.Job.Definition.GetPolicies().GetVerifyLevel(), timestamppb.New(w.o.Clock.Now())
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Verify{Verify: e}}, nil
}

// verifyReceived proves what MATERIALIZE has published, by the torrent's own hashes and the manifest's digests.
func (w *Worker) verifyReceived(ctx context.Context, t *daemon.Task) (*pb.VerifyEvidence, error) {
	receive, _, err := w.receiveRoot(t.Job)
	if err != nil {
		return nil, err
	}
	to, _, err := w.contentRoot(t.Job)
	if err != nil {
		return nil, err
	}
	dir, got, err := w.transferred(ctx, receive, t.Job, t.Execute.GetVerify().GetManifestSha256())
	if err != nil {
		return nil, err
	}
	metainfo, meta, err := readMetainfo(receive, dir, got.Manifest)
	if err != nil {
		return nil, err
	}
	content, name := manifestContent(t.Job, got.Manifest, meta)
	result, err := w.read(ctx, t, content, opener{to, name})
	if err != nil {
		return nil, explained(err, got.Manifest)
	}
	w.o.Reached("verify: read")
	add := addition(t.Job, got.Manifest, metainfo)
	add.Proven = result
	resource, err := w.register(ctx, t.Job, add, meta)
	if err != nil {
		return nil, err
	}
	tree, err := w.treeOf(ctx, t, resource)
	if err != nil {
		return nil, err
	}
	e := evidenceOf(result)
	e.ManifestSha256 = got.ManifestSHA256
	if meta == nil {
		if err := listed(tree, got.Manifest); err != nil {
			return nil, err
		}
	}
	return e, w.confirm(ctx, t, tree, result, meta != nil, e)
}

// listed compares the backend's list of content without a torrent with the manifest: every file is there, of its kind.
func listed(tree *backend.Tree, m *pb.TransferManifest) error {
	at := make(map[string]int, tree.Files.Len())
	for i := range tree.Files.Len() {
		at[tree.Files.Entry(i).GetPath()] = i
	}
	for _, f := range m.GetFiles() {
		i, there := at[f.GetPath()]
		if there {
			e := tree.Files.Entry(i)
			there = e.GetKind() == f.GetKind() && e.GetLogicalBytes() == f.GetLogicalBytes() && e.GetSymlinkTarget() == f.GetSymlinkTarget()
		}
		if !there {
			return failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, fmt.Sprintf("the backend does not hold %s as it was published", f.GetPath()), "path", f.GetPath())
		}
	}
	return nil
}

// confirm compares the backend's view of the content with the job. The daemon's own reading counts more: it has already
// found everything right when the backend is asked (daemon protocol 9, row 33).
//
// Of a torrent of version 1, a file may share pieces with files that are not part of the job; without their bytes the
// pieces cannot be proven, and the backend does not hold the file as complete. A job with partfile mode DROP accepts this,
// and the evidence counts the pieces; whether the content may be started is for COMMIT to say (3.3).
func (w *Worker) confirm(ctx context.Context, t *daemon.Task, tree *backend.Tree, r *verify.Result, indexed bool, e *pb.VerifyEvidence) error {
	want, err := requestedSet(t.Job)
	if err != nil {
		return err
	}
	for i := range tree.Files.Len() {
		f := tree.Files.Entry(i)
		if f.GetKind() == pb.FileKind_FILE_KIND_PADDING || indexed && !want.Contains(f.GetIndex()) {
			continue
		}
		if f.GetPresent() != pb.DiskPresence_DISK_PRESENCE_FINAL_NAME {
			return failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, fmt.Sprintf("the backend does not find %s", f.GetPath()), "path", f.GetPath())
		}
		if f.GetCompletedBytes() == f.GetLogicalBytes() {
			continue
		}
		if !indexed || i >= len(r.Files) || r.Files[i].State != verify.Unproven {
			return failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, fmt.Sprintf("the backend does not hold %s as complete", f.GetPath()), "path", f.GetPath())
		}
		if t.Job.Definition.GetOperation() == pb.JobOperation_JOB_OPERATION_EVICT ||
			t.Job.Definition.GetPolicies().GetPartfileMode() != pb.PartfileMode_PARTFILE_MODE_DROP {
			return failure(pb.ErrorCode_ERROR_CODE_PARTFILE_MISMATCH, fmt.Sprintf("%s shares a piece with a file that is not there, so it cannot be proven "+
				"in full", f.GetPath()), "path", f.GetPath())
		}
	}
	e.ContentRevision = tree.Header.GetContentRevision()
	if t.Job.Definition.GetPolicies().GetVerifyLevel() == pb.VerifyLevel_VERIFY_LEVEL_STRICT {
		if err := w.second(ctx, t, tree, r, e); err != nil {
			return err
		}
	}
	e.BackendConfirmed = true
	return nil
}

// second is the backend's own reading of everything.
func (w *Worker) second(ctx context.Context, t *daemon.Task, tree *backend.Tree, r *verify.Result, e *pb.VerifyEvidence) error {
	m := counting(t)
	own, err := w.o.Backend.Check(ctx, tree.Header.GetResource().GetResourceId(), func(p verify.Progress) { m.at(p.Bytes, p.TotalBytes, p.Files, p.TotalFiles) })
	if err != nil {
		return err
	}
	if own.Err != nil && !unproven(r) {
		return failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, "the backend's own reading disagrees: "+backend.Detail(own.Err).GetMessage(),
			"path", backend.Detail(own.Err).GetDetails()["path"])
	}
	if own.ContentRevision != e.ContentRevision {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content changed while the backend read it", "expected", e.ContentRevision,
			"found", own.ContentRevision)
	}
	return nil
}

// unproven reports files that cannot be proven in full.
func unproven(r *verify.Result) bool {
	for i := range r.Files {
		if r.Files[i].State == verify.Unproven {
			return true
		}
	}
	return false
}

// verifyHeld proves content that the backend holds: of ADOPT, and of EVICT at the target.
func (w *Worker) verifyHeld(ctx context.Context, t *daemon.Task) (*pb.VerifyEvidence, error) {
	resource, err := w.targetResource(ctx, t.Job)
	if err != nil {
		return nil, err
	}
	tree, err := w.treeOf(ctx, t, resource)
	if err != nil {
		return nil, err
	}
	root, err := w.root(tree.Location.RootID, "content root of the resource")
	if err != nil {
		return nil, err
	}
	content, err := w.heldContent(ctx, t.Job, resource, tree)
	if err != nil {
		return nil, err
	}
	result, err := w.read(ctx, t, content, opener{root, tree.Files.DiskPath})
	if err != nil {
		return nil, err
	}
	if content.Torrent == nil {
		if err := sameTree(t.Job, tree, result); err != nil {
			return nil, err
		}
	}
	w.o.Reached("verify: read")
	again, err := w.treeOf(ctx, t, resource)
	if err != nil {
		return nil, err
	}
	if again.Header.GetContentRevision() != tree.Header.GetContentRevision() {
		return nil, failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content changed while it was read", "expected",
			tree.Header.GetContentRevision(), "found", again.Header.GetContentRevision())
	}
	e := evidenceOf(result)
	if err := w.confirm(ctx, t, again, result, content.Torrent != nil, e); err != nil {
		return nil, err
	}
	if t.Job.Definition.GetOperation() == pb.JobOperation_JOB_OPERATION_EVICT {
		return e, w.markKept(ctx, t.Job, again)
	}
	return e, nil
}

// heldContent says what of a resource is to be proven.
func (w *Worker) heldContent(ctx context.Context, job *daemon.Job, resource string, tree *backend.Tree) (verify.Content, error) {
	var content verify.Content
	if !tree.Header.GetMetainfoAvailable() {
		for i := range tree.Files.Len() {
			f := tree.Files.Entry(i)
			content.Files = append(content.Files, verify.Entry{Path: f.GetPath(), Bytes: int64(f.GetLogicalBytes()),
				Symlink: f.GetKind() == pb.FileKind_FILE_KIND_SYMLINK})
		}
		return content, nil
	}
	metainfo, err := w.o.Backend.Metainfo(ctx, resource)
	if err != nil {
		return content, err
	}
	if content.Torrent, err = torrent.Parse(metainfo); err != nil {
		return content, err
	}
	want, err := requestedSet(job)
	if err != nil {
		return content, err
	}
	content.Selected = func(i int) bool { return want.Contains(uint32(i)) }
	return content, nil
}

// sameTree compares what was read with the identity that the job has for the content: all that proves content without a
// torrent.
func sameTree(job *daemon.Job, tree *backend.Tree, r *verify.Result) error {
	identity := job.Definition.GetSource().GetIdentity()
	if job.Definition.GetOperation() == pb.JobOperation_JOB_OPERATION_EVICT {
		identity = job.Definition.GetEviction().GetTargetCommit().GetResource().GetIdentity()
	}
	want := identity.GetTreeFingerprint()
	if want == "" {
		return nil
	}
	var files []*pb.ManifestFile
	for i := range tree.Files.Len() {
		f := tree.Files.Entry(i)
		files = append(files, &pb.ManifestFile{Path: f.GetPath(), Kind: f.GetKind(), Action: pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET,
			LogicalBytes: f.GetLogicalBytes(), SymlinkTarget: f.GetSymlinkTarget(), Sha256: fmt.Sprintf("%x", r.Files[i].SHA256)})
	}
	if got := layout.TreeFingerprint(files); got != want {
		return failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, "the content as read is not the content of the job", "expected", want, "found", got)
	}
	return nil
}

// read runs the verification.
func (w *Worker) read(ctx context.Context, t *daemon.Task, c verify.Content, open verify.Opener) (*verify.Result, error) {
	m := counting(t)
	r, err := verify.Run(ctx, c, open, verify.Options{BytesPerSecond: w.o.ReadRate, Clock: w.o.Clock, Readers: w.o.Readers, StopAtFirstBad: true,
		Progress: func(p verify.Progress) { m.at(p.Bytes, p.TotalBytes, p.Files, p.TotalFiles) }})
	if err != nil {
		return nil, err
	}
	return r, r.Err(c)
}

func evidenceOf(r *verify.Result) *pb.VerifyEvidence {
	return &pb.VerifyEvidence{FilesChecked: uint32(r.FilesChecked), BytesRead: uint64(r.BytesRead), PiecesChecked: uint32(r.PiecesChecked),
		PiecesGood: uint32(r.PiecesGood), PiecesUnselectedSkipped: uint32(r.PiecesSkipped)}
}

// readMetainfo reads the torrent file of a job directory, if there is one.
func readMetainfo(r *beneath.Root, dir string, m *pb.TransferManifest) ([]byte, *torrent.Metainfo, error) {
	for _, a := range m.GetArtifacts() {
		if a.GetKind() != pb.ArtifactKind_ARTIFACT_KIND_METAINFO {
			continue
		}
		name := path.Join(layout.Jobs, dir, a.GetPayload())
		data, err := r.ReadFile(name, torrent.MaxMetainfoBytes)
		if err != nil {
			return nil, nil, err
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(data)); sum != a.GetSha256() {
			return nil, nil, failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, fmt.Sprintf("the received torrent file %s has SHA-256 %s, the manifest "+
				"says %s", name, sum, a.GetSha256()), "path", name)
		}
		meta, err := torrent.Parse(data)
		return data, meta, err
	}
	return nil, nil, nil
}

// manifestContent is what VERIFY reads, and where each file stands.
func manifestContent(job *daemon.Job, m *pb.TransferManifest, meta *torrent.Metainfo) (verify.Content, func(int) string) {
	if meta == nil {
		var c verify.Content
		for _, f := range m.GetFiles() {
			c.Files = append(c.Files, verify.Entry{Path: f.GetPath(), Bytes: int64(f.GetLogicalBytes()), Symlink: f.GetKind() == pb.FileKind_FILE_KIND_SYMLINK})
		}
		c.Want = func(i int) ([32]byte, bool) { return wanted(m.GetFiles()[i]) }
		return c, func(i int) string { return finalName(job, m.GetFiles()[i].GetPath()) }
	}
	byIndex := map[int]*pb.ManifestFile{}
	for _, f := range m.GetFiles() {
		byIndex[int(f.GetIndex())] = f
	}
	set, _ := archive.ReadIndexSet("requested", job.Definition.GetRequested()) // read before, by whoever accepted the job
	return verify.Content{Torrent: meta, Selected: func(i int) bool { return set.Contains(uint32(i)) },
		Want: func(i int) ([32]byte, bool) { return wanted(byIndex[i]) }}, func(i int) string { return finalName(job, meta.Files[i].Path) }
}

func wanted(f *pb.ManifestFile) (digest [32]byte, known bool) {
	if d := digestOf(f.GetSha256()); d != nil {
		return *d, true
	}
	return digest, false
}

// explained adds to a mismatch that the bytes may have changed at the source: a payload that was staged or carried as a
// hard link shares its inode (daemon protocol 9, row 18).
func explained(err error, m *pb.TransferManifest) error {
	var step *daemon.StepError
	if err == nil || !errors.As(outcome(err), &step) || step.Detail.GetCode() != pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE {
		return err
	}
	for _, f := range m.GetFiles() {
		if f.GetStageMethod() == pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK && strings.HasSuffix(step.Detail.GetDetails()["path"], f.GetPath()) {
			return &daemon.StepError{Detail: valid.Detail(step.Detail.GetCode(), "the source changed after it was staged, or the copy did: "+
				step.Detail.GetMessage(), "path", step.Detail.GetDetails()["path"]), Err: err}
		}
	}
	return err
}
