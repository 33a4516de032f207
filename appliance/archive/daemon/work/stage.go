package work

import (
	"context"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// stage makes the job directory in the outbox (daemon protocol 3.2, 7.1, 7.3). Every requested file is read once from its
// first to its last byte; those that the target lacks are linked, cloned or copied under neutral names; manifest and
// marker come last. The source's content is only read.
func (w *Worker) stage(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	s := &staging{w: w, t: t, job: t.Job, attempt: t.Execute.GetStepAttempt()}
	err := s.run(ctx)
	if err != nil && !ended(ctx, err) {
		// An attempt that failed is given up whole: the next one has a directory of its own (row 2).
		err = afterwards(err, w.giveUp(ctx, t.Job, s.rootID, s.dir))
	}
	if wake := w.wake(ctx, t.Job); err == nil && wake != nil {
		err = wake
	}
	if err != nil {
		return nil, err
	}
	return s.evidence(), nil
}

// staging is one run of STAGE.
type staging struct {
	w        *Worker
	t        *daemon.Task
	job      *daemon.Job
	attempt  uint32
	root     *beneath.Root // outbox
	rootID   string
	dir      string
	known    entries
	tree     *backend.Tree
	content  *beneath.Root
	manifest *pb.TransferManifest
	written  layout.Written
	meter    *meter
	linked   inodes
}

func (s *staging) run(ctx context.Context) error {
	var err error
	if s.root, s.rootID, err = s.w.outboxRoot(s.job); err != nil {
		return err
	}
	s.dir = layout.JobDir(s.job.ID.String(), s.attempt)
	if s.known, err = load(ctx, s.job, pb.JobStep_JOB_STEP_STAGE); err != nil {
		return err
	}
	if e, ours := s.known[s.dir]; ours && e.State == daemon.Published {
		// An earlier process may have written the manifest; what it says is then true for good.
		s.manifest, s.written, err = layout.ReadManifest(s.root, s.job.ID.String(), s.attempt)
		if err == nil {
			return s.seal(ctx)
		}
		if !isNotFound(err) {
			return err
		}
	}
	if err := s.source(ctx); err != nil {
		return err
	}
	if err := s.w.makeJobDir(ctx, s.job, pb.JobStep_JOB_STEP_STAGE, s.known, s.root, s.rootID, s.attempt); err != nil {
		return err
	}
	if err := s.describe(ctx); err != nil {
		return err
	}
	s.linked.cache = s.w.o.Cache
	if err := s.files(ctx); err != nil {
		return err
	}
	if err := s.linked.flush(ctx); err != nil {
		return err
	}
	if err := s.artifacts(ctx); err != nil {
		return err
	}
	// The tree again: nothing of it changed while it was read (row 17), and nobody began to work on it (row 19).
	again, err := s.w.treeOf(ctx, s.t, s.job.Definition.GetSource().GetResourceId())
	if err != nil {
		return err
	}
	if err := restful(again.Header.GetBackendState()); err != nil {
		return err
	}
	if again.Header.GetContentRevision() != s.tree.Header.GetContentRevision() {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content changed while it was staged; make a new preview")
	}
	s.finish()
	s.w.o.Reached("stage: before the manifest")
	if s.written, err = layout.WriteManifest(s.root, s.manifest); err != nil {
		return err
	}
	return s.mark()
}

// seal writes the marker for the manifest of an earlier process, unless that one did.
func (s *staging) seal(ctx context.Context) error {
	_, err := layout.Receive(ctx, s.root, s.job.ID.String(), s.attempt, expectation(s.job, s.written.SHA256))
	if layout.IsNotReady(err) {
		return s.mark()
	}
	return err
}

func (s *staging) mark() error {
	s.w.o.Reached("stage: before the marker")
	_, err := layout.WriteMarker(s.root, s.manifest, s.written, s.w.o.Clock.Now())
	return err
}

// source looks at the content before anything is made.
func (s *staging) source(ctx context.Context) error {
	id := s.job.Definition.GetSource().GetResourceId()
	tree, err := s.w.treeOf(ctx, s.t, id)
	if err != nil {
		return err
	}
	if err := restful(tree.Header.GetBackendState()); err != nil {
		return err
	}
	want, err := requestedSet(s.job)
	if err != nil {
		return err
	}
	complete := true
	for i := range tree.Files.Len() {
		f := tree.Files.Entry(i)
		whole := f.GetCompletedBytes() == f.GetLogicalBytes()
		complete = complete && (whole || f.GetKind() == pb.FileKind_FILE_KIND_PADDING)
		if want.Contains(f.GetIndex()) && !whole {
			return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE, fmt.Sprintf("%s is not complete at the source", f.GetPath()), "path", f.GetPath(),
				"expected", strconv.FormatUint(f.GetLogicalBytes(), 10), "found", strconv.FormatUint(f.GetCompletedBytes(), 10))
		}
	}
	if !complete || s.job.Definition.GetPolicies().GetQuiesce() == pb.QuiescePolicy_QUIESCE_POLICY_ALWAYS {
		if err := s.w.quiesce(ctx, s.job, id, tree.Header.GetBackendState()); err != nil {
			return err
		}
		if tree, err = s.w.treeOf(ctx, s.t, id); err != nil {
			return err
		}
	}
	if want := s.t.Execute.GetStage().GetExpectedContentRevision(); tree.Header.GetContentRevision() != want {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content has changed since the preview; make a new one", "expected", want,
			"found", tree.Header.GetContentRevision())
	}
	s.tree = tree
	s.content, err = s.w.root(tree.Location.RootID, "content root of the resource")
	return err
}

// defaults are the policies of a definition that leaves them open.
var defaults = archive.DefaultPolicies()

// dataOf estimates the bytes of a file that are no holes, for progress alone: the files are not opened yet.
func dataOf(f *pb.FileEntry) uint64 {
	if f.GetSparse() {
		return min(f.GetAllocatedBytes(), f.GetLogicalBytes())
	}
	return f.GetLogicalBytes()
}

// restful refuses content that its backend is at work on.
func restful(state pb.BackendState) error {
	switch state {
	case pb.BackendState_BACKEND_STATE_CHECKING, pb.BackendState_BACKEND_STATE_MOVING, pb.BackendState_BACKEND_STATE_DOWNLOADING,
		pb.BackendState_BACKEND_STATE_ERROR:
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the backend is at work on the content, or reports an error", "state", state.String())
	}
	return nil
}

// describe begins the manifest.
func (s *staging) describe(ctx context.Context) error {
	def := s.job.Definition
	requested, err := requestedSet(s.job)
	if err != nil {
		return err
	}
	present, err := archive.ReadIndexSet("baseline.present", def.GetBaseline().GetPresent())
	if err != nil {
		return err
	}
	about, err := s.w.o.Backend.Describe(ctx)
	if err != nil {
		return err
	}
	s.manifest = &pb.TransferManifest{Format: 1, JobId: s.job.ID.String(), Attempt: s.attempt, DefinitionSha256: s.job.Digest,
		Source: &pb.EndpointIdentity{ClientId: def.GetSource().GetClientId(), Resource: def.GetSource(),
			ContentRevision: def.GetSourceContentRevision(), BackendKind: about.Kind},
		Target:  &pb.EndpointIdentity{ClientId: def.GetTargetClientId(), ContentRevision: def.GetBaseline().GetTargetContentRevision()},
		Route:   &pb.RouteIdentity{RouteId: def.GetRouteId(), Kind: s.job.Route.GetKind()},
		Torrent: s.tree.Header.GetTorrent(), Requested: def.GetRequested(), Baseline: def.GetBaseline(),
		Delta: requested.Minus(present).Message(), CreatedAt: timestamppb.New(s.w.o.Clock.Now()), Fingerprints: &pb.ManifestFingerprints{}}
	delta := requested.Minus(present)
	var total, data uint64
	for i := range s.tree.Files.Len() {
		f := s.tree.Files.Entry(i)
		if !requested.Contains(f.GetIndex()) {
			continue
		}
		m := &pb.ManifestFile{Index: f.GetIndex(), Path: f.GetPath(), Kind: f.GetKind(), LogicalBytes: f.GetLogicalBytes(), Mtime: f.GetMtime(),
			Executable: f.GetExecutable(), SymlinkTarget: f.GetSymlinkTarget(), Action: pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET}
		if delta.Contains(f.GetIndex()) {
			m.Action = pb.DeltaAction_DELTA_ACTION_TRANSFER
			if f.GetKind() == pb.FileKind_FILE_KIND_REGULAR {
				m.Payload = layout.PayloadName(f.GetIndex())
			}
		}
		s.manifest.Files = append(s.manifest.Files, m)
		total += f.GetLogicalBytes()
		data += dataOf(f)
	}
	s.meter = newMeter(s.t, len(s.manifest.Files), total, data)
	return nil
}

// files stages the payload, or only digests what the target has.
func (s *staging) files(ctx context.Context) error {
	place := map[uint32]int{}
	for i := range s.tree.Files.Len() {
		place[s.tree.Files.Entry(i).GetIndex()] = i
	}
	methods := s.job.Definition.GetPolicies().GetStageMethods()
	if len(methods) == 0 {
		methods = defaults.GetStageMethods()
	}
	for start := 0; start < len(s.manifest.Files); start += batch {
		some := s.manifest.Files[start:min(start+batch, len(s.manifest.Files))]
		if err := s.stageBatch(ctx, some, place, methods); err != nil {
			return err
		}
	}
	return nil
}

func (s *staging) stageBatch(ctx context.Context, files []*pb.ManifestFile, place map[uint32]int, methods []pb.MaterializeMethod) error {
	var before, after []daemon.JournalEntry
	for _, f := range files {
		if f.GetPayload() == "" {
			continue
		}
		name := path.Join(s.dir, f.GetPayload())
		if done, err := s.staged(f, name); err != nil {
			return err
		} else if !done {
			before = append(before, daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_STAGE, Index: int64(f.GetIndex()), RootID: s.rootID, Name: name, State: daemon.Intent})
		}
	}
	if len(before) > 0 {
		if err := s.job.Journal.Put(ctx, before...); err != nil {
			return err
		}
	}
	s.w.o.Reached("stage: intent")
	for _, f := range files {
		if f.GetSha256() == "" && f.GetKind() == pb.FileKind_FILE_KIND_REGULAR {
			e, err := s.one(ctx, f, s.tree.Files.DiskPath(place[f.GetIndex()]), methods)
			if err != nil {
				return err
			}
			if f.GetPayload() != "" {
				after = append(after, e)
			}
		}
		s.meter.file(f.GetLogicalBytes(), f.GetAllocatedBytes())
	}
	s.w.o.Reached("stage: effect")
	if len(after) == 0 {
		return nil
	}
	return s.job.Journal.Put(ctx, after...)
}

// staged takes over a payload file that an earlier process has finished; what it had only begun is removed.
func (s *staging) staged(f *pb.ManifestFile, name string) (bool, error) {
	st, there, err := found(s.root, name)
	if err != nil || !there {
		return false, err
	}
	e := s.known[name]
	if e.State != daemon.Published || !same(e, st) || len(e.Detail) == 0 {
		return false, s.root.Unlink(name)
	}
	var data uint64
	var extents uint32
	if _, err := fmt.Sscanf(string(e.Detail), "%d %d", &data, &extents); err != nil {
		return false, s.root.Unlink(name)
	}
	s.fill(f, e.SHA256, e.Method, data, extents)
	return true, nil
}

func (s *staging) fill(f *pb.ManifestFile, digest string, method pb.MaterializeMethod, data uint64, extents uint32) {
	f.Sha256, f.StageMethod, f.AllocatedBytes, f.DataExtents = digest, method, data, extents
	f.Sparse = data < f.GetLogicalBytes()
}

func (s *staging) one(ctx context.Context, f *pb.ManifestFile, disk string, methods []pb.MaterializeMethod) (daemon.JournalEntry, error) {
	o := copyfile.Options{Limit: s.w.o.Read, Progress: s.meter.within, Check: func(st beneath.Stat) error {
		if uint64(st.Size) != f.GetLogicalBytes() {
			return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, fmt.Sprintf("%s has %d bytes, the preview says %d", f.GetPath(), st.Size, f.GetLogicalBytes()),
				"path", f.GetPath())
		}
		return nil
	}}
	var r copyfile.Result
	var err error
	name := path.Join(s.dir, f.GetPayload())
	if f.GetPayload() == "" {
		r, err = copyfile.Digest(ctx, s.content, disk, o)
	} else {
		r, err = copyfile.Place(ctx, s.content, disk, s.root, name, methods, o)
	}
	if err != nil {
		return daemon.JournalEntry{}, err
	}
	if r.Method == pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK {
		// The link changed nothing but the inode's time of change, which is part of the cache's key.
		if err := s.linked.changed(ctx, r.Source, r.Target); err != nil {
			return daemon.JournalEntry{}, err
		}
	}
	s.fill(f, hex.EncodeToString(r.SHA256[:]), r.Method, uint64(r.Data), r.Extents)
	e := identify(daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_STAGE, Index: int64(f.GetIndex()), RootID: s.rootID, Name: name, State: daemon.Published,
		Method: r.Method, SHA256: f.GetSha256(), Detail: fmt.Appendf(nil, "%d %d", r.Data, r.Extents)}, r.Target)
	return e, nil
}

// artifacts adds the torrent file, which may hold a private announce key and so is for its owner alone.
func (s *staging) artifacts(ctx context.Context) error {
	if !s.tree.Header.GetMetainfoAvailable() {
		return nil
	}
	metainfo, err := s.w.o.Backend.Metainfo(ctx, s.job.Definition.GetSource().GetResourceId())
	if err != nil {
		return err
	}
	w, err := layout.WriteAtomic(s.root, path.Join(s.dir, layout.Metainfo), metainfo)
	if err != nil {
		return err
	}
	_, info, err := layout.InfoDigests(metainfo)
	if err != nil {
		return err
	}
	s.manifest.Fingerprints.InfoSha256 = info
	s.manifest.Artifacts = append(s.manifest.Artifacts, &pb.ManifestArtifact{Kind: pb.ArtifactKind_ARTIFACT_KIND_METAINFO, Payload: layout.Metainfo,
		Bytes: w.Bytes, Sha256: w.SHA256})
	return nil
}

// finish fills in what is computed over all files.
func (s *staging) finish() {
	totals := &pb.ManifestTotals{}
	for _, f := range s.manifest.Files {
		totals.Files++
		totals.LogicalBytes += f.GetLogicalBytes()
		if f.GetPayload() != "" {
			totals.PayloadFiles++
			totals.PayloadLogicalBytes += f.GetLogicalBytes()
			totals.PayloadAllocatedBytes += f.GetAllocatedBytes()
		}
	}
	s.manifest.Totals = totals
	s.manifest.Fingerprints.TreeSha256 = layout.TreeFingerprint(s.manifest.Files)
}

func (s *staging) evidence() *pb.StepEvidence {
	t := s.manifest.GetTotals()
	e := &pb.StageEvidence{JobDir: path.Base(s.dir), ManifestSha256: s.written.SHA256, ManifestBytes: s.written.Bytes, PayloadFiles: t.GetPayloadFiles(),
		PayloadLogicalBytes: t.GetPayloadLogicalBytes(), PayloadAllocatedBytes: t.GetPayloadAllocatedBytes(), Methods: map[string]uint32{},
		ContentRevision: s.manifest.GetSource().GetContentRevision()}
	for _, f := range s.manifest.Files {
		if f.GetPayload() != "" {
			e.Methods[methodName(f.GetStageMethod())]++
		}
	}
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Stage{Stage: e}}
}

// makeJobDir makes a job directory, journaled before and after. One that an earlier call of this attempt made is used
// again.
func (w *Worker) makeJobDir(ctx context.Context, job *daemon.Job, step pb.JobStep, known entries, r *beneath.Root, rootID string, attempt uint32) error {
	return w.makeTree(ctx, job, step, known, r, rootID, layout.JobDir(job.ID.String(), attempt), func() error {
		return layout.CreateJobDir(r, job.ID.String(), attempt)
	})
}

// giveUp removes the directory of an attempt that failed.
func (w *Worker) giveUp(ctx context.Context, job *daemon.Job, rootID, dir string) error {
	if rootID == "" {
		return nil
	}
	return w.removeTrees(ctx, job, dir, pb.JobStep_JOB_STEP_STAGE)
}

// quiesceEntry is the name of the journal entry that keeps the backend's state from before the content was brought to
// rest.
const quiesceEntry = ".quiesce"

// quiesce brings the content to rest, so that wake can restore what was before, also after a crash.
func (w *Worker) quiesce(ctx context.Context, job *daemon.Job, resource string, earlier pb.BackendState) error {
	_, known, err := job.Journal.Get(ctx, pb.JobStep_JOB_STEP_STAGE, thing, quiesceEntry)
	if err != nil {
		return err
	}
	if !known {
		e := daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_STAGE, Index: thing, Name: quiesceEntry, State: daemon.Published, Size: uint64(earlier)}
		if err := job.Journal.Put(ctx, e); err != nil {
			return err
		}
	}
	return w.o.Backend.Quiesce(ctx, resource)
}

// wake restores the state from before quiesce, if there is one to restore.
func (w *Worker) wake(ctx context.Context, job *daemon.Job) error {
	e, known, err := job.Journal.Get(ctx, pb.JobStep_JOB_STEP_STAGE, thing, quiesceEntry)
	if err != nil || !known || e.State != daemon.Published {
		return err
	}
	err = w.o.Backend.Unquiesce(ctx, job.Definition.GetSource().GetResourceId(), pb.BackendState(e.Size))
	if err != nil && backend.CodeOf(err) != pb.ErrorCode_ERROR_CODE_NOT_FOUND {
		return err
	}
	e.State = daemon.Removed
	return job.Journal.Put(ctx, e)
}
