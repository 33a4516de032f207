package work

import (
	"context"
	"fmt"
	"path"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
	"signalbox/appliance/archive/torrent"
)

// materialize gives the requested files their final names on the content root's file system (daemon protocol 3.2, 7.4,
// 7.6): built in the job's work area, then published without replacing anything. ADOPT finds them in place.
func (w *Worker) materialize(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	if t.Job.Definition.GetOperation() == pb.JobOperation_JOB_OPERATION_ADOPT {
		return w.adopt(ctx, t)
	}
	m, err := w.openBuild(ctx, t)
	if err != nil {
		return nil, err
	}
	if err = m.run(ctx); err == nil {
		return m.evidence()
	}
	if !ended(ctx, err) {
		// Names that were given are taken back, so that the next attempt, or the wind-down, finds nothing half done.
		err = afterwards(explained(err, m.manifest), w.rollback(ctx, t.Job))
	}
	return nil, err
}

// build is one run of MATERIALIZE.
type build struct {
	w        *Worker
	t        *daemon.Task
	job      *daemon.Job
	manifest *pb.TransferManifest
	from     *beneath.Root // receive root
	fromID   string
	jobDir   string // of the job, below the receive root
	to       *beneath.Root
	toID     string
	work     string          // the work area's tree, below the content root
	known    entries         // about directories
	made     map[string]bool // directories of the work area that this run has made or seen
	files    []*target
	meter    *meter
	dropped  bool // pieces that files share with unselected ones cannot be had, and the job accepts it
}

// target is one requested file with its names.
type target struct {
	file  *pb.ManifestFile
	final string // below the content root
	built string // in the work area
	entry daemon.JournalEntry
	done  bool // stands under its final name
}

// workTree is where a job builds what it publishes.
func workTree(job *daemon.Job) string { return path.Join(layout.WorkDir(job.ID.String()), "tree") }

// finalName is the name of a file below the content root.
func finalName(job *daemon.Job, file string) string {
	return path.Join(job.Definition.GetDestination().GetRelativeDir(), file)
}

// maxPath is the longest name that one call to the operating system takes.
const maxPath = 4095

func (w *Worker) openBuild(ctx context.Context, t *daemon.Task) (*build, error) {
	m := &build{w: w, t: t, job: t.Job, work: workTree(t.Job), known: entries{}, made: map[string]bool{}}
	params := t.Execute.GetMaterialize()
	var err error
	if m.from, m.fromID, err = w.receiveRoot(t.Job); err != nil {
		return nil, err
	}
	if m.to, m.toID, err = w.contentRoot(t.Job); err != nil {
		return nil, err
	}
	files := map[int64]daemon.JournalEntry{}
	err = t.Job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		if e.Index == thing {
			m.known[e.Name] = e
		} else {
			files[e.Index] = e
		}
		return true
	}, pb.JobStep_JOB_STEP_MATERIALIZE)
	if err != nil {
		return nil, err
	}
	got, err := w.received(ctx, m.from, t.Job, params.GetJobDir(), params.GetManifestSha256(), len(files) > 0)
	if err != nil && len(files) == 0 {
		got, err = m.payloadBack(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	m.manifest, m.jobDir = got.Manifest, path.Join(layout.Jobs, params.GetJobDir())
	want, err := requestedSet(t.Job)
	if err != nil {
		return nil, err
	}
	if err := m.covered(path.Base(m.jobDir)); err != nil {
		return nil, err
	}
	var data uint64
	for _, f := range m.manifest.GetFiles() {
		if !want.Contains(f.GetIndex()) || f.GetKind() == pb.FileKind_FILE_KIND_PADDING {
			continue
		}
		to := &target{file: f, final: finalName(t.Job, f.GetPath()), built: path.Join(m.work, f.GetPath()), entry: files[int64(f.GetIndex())]}
		if max(len(to.final), len(to.built)) > maxPath {
			return nil, failure(pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT, fmt.Sprintf("the name of file %d is too long below this destination: %d bytes "+
				"with its work area, at most %d can be used", f.GetIndex(), max(len(to.final), len(to.built)), maxPath), "path", f.GetPath())
		}
		data += f.GetAllocatedBytes()
		m.files = append(m.files, to)
	}
	m.meter = newMeter(t, len(m.files), m.manifest.GetTotals().GetLogicalBytes(), data)
	return m, nil
}

// covered applies the piece coverage rule (daemon protocol 3.3, check 11) once more, before anything is made: bytes of
// unselected neighbours are not brought, so the pieces that hold them can be neither verified nor seeded. A job that does
// not accept that ends here.
func (m *build) covered(dir string) error {
	_, meta, err := readMetainfo(m.from, dir, m.manifest)
	if err != nil || meta == nil {
		return err
	}
	want, err := requestedSet(m.job)
	if err != nil {
		return err
	}
	gaps := torrent.Coverage(meta.Spans(func(i int) bool { return want.Contains(uint32(i)) }), nil)
	m.dropped = len(gaps) > 0
	if !m.dropped || m.job.Definition.GetPolicies().GetPartfileMode() == pb.PartfileMode_PARTFILE_MODE_DROP {
		return nil
	}
	return failure(pb.ErrorCode_ERROR_CODE_PARTFILE_MISMATCH, fmt.Sprintf("%d pieces hold bytes of files that are not part of the job, the first of them "+
		"shared by %s and %s; nothing was made. Select those files too, or accept with partfile mode DROP that these pieces are not available",
		len(gaps), meta.Files[gaps[0].For].Path, meta.Files[gaps[0].File].Path), "path", meta.Files[gaps[0].For].Path)
}

func (m *build) run(ctx context.Context) error {
	if err := m.settle(ctx); err != nil {
		return err
	}
	if err := m.w.makeTree(ctx, m.job, pb.JobStep_JOB_STEP_MATERIALIZE, m.known, m.to, m.toID, layout.WorkDir(m.job.ID.String()),
		func() error { return layout.CreateWorkDir(m.to, m.job.ID.String()) }); err != nil {
		return err
	}
	for start := 0; start < len(m.files); start += batch {
		if err := m.buildBatch(ctx, m.files[start:min(start+batch, len(m.files))]); err != nil {
			return err
		}
	}
	m.w.o.Reached("materialize: built")
	return m.publish(ctx)
}

// settle looks at every final name before anything is made: what an earlier call has published, what stands there
// already and is identical, and what is in the way (daemon protocol 9, rows 20 and 22).
func (m *build) settle(ctx context.Context) error {
	var present []daemon.JournalEntry
	for _, f := range m.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		st, there, err := found(m.to, f.final)
		if err != nil {
			return err
		}
		switch {
		case there && (f.entry.State == daemon.Published || f.entry.State == daemon.Built) && holds(f.entry, st):
			// Published, perhaps by a process that did not live to say so (row 3).
			f.done = true
		case there:
			if err := m.identical(ctx, f, st); err != nil {
				return err
			}
			f.entry = identify(m.entryOf(f, pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT), st)
			f.entry.TempName, f.entry.State = "", daemon.Published
			f.done = true
			present = append(present, f.entry)
		case f.file.GetAction() == pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET:
			return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, fmt.Sprintf("%s was here when the job was planned and is not any more; "+
				"make a new preview", f.final), "path", f.final)
		}
		if f.done {
			m.finished(f)
		}
	}
	return putAll(ctx, m.job, present)
}

func (m *build) finished(f *target) {
	m.meter.file(f.file.GetLogicalBytes(), f.file.GetAllocatedBytes())
}

// timeForm shows times in messages about conflicts.
const timeForm = "2006-01-02T15:04:05Z"

// identical decides about a destination name that somebody else made.
func (m *build) identical(ctx context.Context, f *target, st beneath.Stat) error {
	conflict := func(why string) error {
		return failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, fmt.Sprintf("%s exists at the destination %s: %d bytes of %s there, %d bytes of %s in "+
			"the job; nothing was written", f.final, why, st.Size, st.Mtime().Format(timeForm), f.file.GetLogicalBytes(),
			f.file.GetMtime().AsTime().Format(timeForm)), "path", f.final, "expected", fmt.Sprint(f.file.GetLogicalBytes()), "found", fmt.Sprint(st.Size))
	}
	if m.job.Definition.GetPolicies().GetConflictPolicy() != pb.ConflictPolicy_CONFLICT_POLICY_ADOPT_IDENTICAL &&
		f.file.GetAction() != pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET {
		return conflict("and the job does not adopt existing files")
	}
	if f.file.GetKind() == pb.FileKind_FILE_KIND_SYMLINK {
		if !isLink(st) {
			return conflict("and is no symbolic link")
		}
		text, err := m.to.Readlink(f.final)
		if err != nil {
			return err
		}
		if text != torrent.LinkText(f.file.GetPath(), f.file.GetSymlinkTarget()) {
			return conflict("and leads elsewhere")
		}
		return nil
	}
	want := digestOf(f.file.GetSha256())
	switch {
	case !st.Mode.IsRegular():
		return conflict("and is no regular file")
	case uint64(st.Size) != f.file.GetLogicalBytes() || want == nil:
		return conflict("with other content")
	}
	got, err := copyfile.Digest(ctx, m.to, f.final, copyfile.Options{Limit: m.w.o.Read, Progress: m.meter.within})
	if err != nil {
		return err
	}
	if got.SHA256 != *want {
		return conflict("with other content")
	}
	return nil
}

// symlinked is the method of symbolic links, which have no bytes.
const symlinked = pb.MaterializeMethod_MATERIALIZE_METHOD_SYNTHESIZED

// entryOf is the journal entry of a file before its effect.
func (m *build) entryOf(f *target, method pb.MaterializeMethod) daemon.JournalEntry {
	e := daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_MATERIALIZE, Index: int64(f.file.GetIndex()), RootID: m.toID, Name: f.final,
		TempName: f.built, Method: method, State: daemon.Intent, SHA256: f.file.GetSha256()}
	if f.file.GetPayload() != "" {
		e.Detail = []byte(path.Join(m.jobDir, f.file.GetPayload()))
	}
	return e
}

// evidence proves what was made, from the journal and the published files.
func (m *build) evidence() (*pb.StepEvidence, error) {
	e := &pb.MaterializeEvidence{Methods: map[string]uint32{}}
	if m.dropped {
		e.PartfileResult = pb.PartfileMode_PARTFILE_MODE_DROP
	}
	p := newProvenance()
	for _, f := range m.files {
		p.add(f.entry)
		e.Methods[methodName(f.entry.Method)]++
		if f.entry.Method == pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT {
			e.FilesAlreadyPresent++
			continue
		}
		e.FilesCreated++
		if !m.watchesHoles(f) {
			continue
		}
		// Counted here, so that files of earlier calls count too.
		st, err := m.to.Lstat(f.final)
		if err != nil {
			return nil, err
		}
		lost, err := m.dense(f, f.final, st)
		if err != nil {
			return nil, err
		}
		if lost {
			e.SparseLost++
		} else {
			e.SparseKept++
		}
	}
	e.ProvenanceSha256 = p.sum()
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Materialize{Materialize: e}}, nil
}

// watchesHoles reports a file whose holes the job cares about.
func (m *build) watchesHoles(f *target) bool {
	return f.file.GetSparse() && f.file.GetKind() == pb.FileKind_FILE_KIND_REGULAR &&
		m.job.Definition.GetPolicies().GetSparsePolicy() != pb.SparsePolicy_SPARSE_POLICY_DENSE
}

// dense reports that a file with holes takes more here than it may (daemon protocol 7.5). Blocks that are reserved and not
// written count as holes: the hole map decides where the block count says too much.
func (m *build) dense(f *target, name string, st beneath.Stat) (bool, error) {
	if !copyfile.SparseLost(int64(f.file.GetAllocatedBytes()), st.Allocated) {
		return false, nil
	}
	file, err := m.to.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	var data int64
	err = file.Extents(func(_, n int64) error {
		data += n
		return nil
	})
	return copyfile.SparseLost(int64(f.file.GetAllocatedBytes()), data), err
}

// sparse ends the step when a file lost its holes and the policy requires them.
func (m *build) sparse(f *target, st beneath.Stat) error {
	if !m.watchesHoles(f) || m.job.Definition.GetPolicies().GetSparsePolicy() != pb.SparsePolicy_SPARSE_POLICY_REQUIRE {
		return nil
	}
	lost, err := m.dense(f, f.built, st)
	if err != nil || !lost {
		return err
	}
	return failure(pb.ErrorCode_ERROR_CODE_SPARSE_LOST, fmt.Sprintf("%s has %d bytes of data at the source and takes %d here: this file system, "+
		"or the way here, does not keep holes", f.file.GetPath(), f.file.GetAllocatedBytes(), st.Allocated),
		"path", f.file.GetPath(), "expected", fmt.Sprint(f.file.GetAllocatedBytes()), "found", fmt.Sprint(st.Allocated))
}

// adopt finds the content in its place; nothing is made.
func (w *Worker) adopt(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	tree, err := w.treeOf(ctx, t, t.Job.Definition.GetSource().GetResourceId())
	if err != nil {
		return nil, err
	}
	if revision := t.Execute.GetMaterialize().GetAdoptContentRevision(); tree.Header.GetContentRevision() != revision {
		return nil, failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content has changed since the preview; make a new one",
			"expected", revision, "found", tree.Header.GetContentRevision())
	}
	e := &pb.MaterializeEvidence{Methods: map[string]uint32{}}
	p := newProvenance()
	want, err := requestedSet(t.Job)
	if err != nil {
		return nil, err
	}
	for i := range tree.Files.Len() {
		f := tree.Files.Entry(i)
		if !want.Contains(f.GetIndex()) {
			continue
		}
		if f.GetPresent() != pb.DiskPresence_DISK_PRESENCE_FINAL_NAME || f.GetKind() == pb.FileKind_FILE_KIND_REGULAR && f.GetDiskBytes() != f.GetLogicalBytes() {
			return nil, failure(pb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE, fmt.Sprintf("%s is not complete at its place", f.GetPath()), "path", f.GetPath(),
				"expected", fmt.Sprint(f.GetLogicalBytes()), "found", fmt.Sprint(f.GetDiskBytes()))
		}
		p.add(daemon.JournalEntry{Index: int64(f.GetIndex()), Name: f.GetPath(), Size: f.GetLogicalBytes(),
			Method: pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT})
		e.FilesAlreadyPresent++
	}
	if e.FilesAlreadyPresent > 0 {
		e.Methods[methodName(pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT)] = e.FilesAlreadyPresent
	}
	e.ProvenanceSha256 = p.sum()
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Materialize{Materialize: e}}, nil
}

// top is the first component of a path.
func top(name string) string {
	first, _, _ := strings.Cut(name, "/")
	return first
}
