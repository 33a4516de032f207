package work

import (
	"context"
	"fmt"
	"path"
	"sort"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// released is one file that RELEASE moves. The journal keeps in Detail how many names of it stay elsewhere.
type released struct {
	entry daemon.JournalEntry
	inode uint64
	names uint32 // of the inode, all of them
}

// release gives up the source copy (daemon protocol 3.2): everything is checked first, then the flag is set, then the
// torrent is forgotten without its data, and the data is renamed into the trash area of the same file system.
func (w *Worker) release(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	var files []daemon.JournalEntry
	var at backend.Location
	id := uuid.New()
	if r := t.Job.Record; r != nil {
		id = r.CommitID
		at.RootID, at.Dir, _ = strings.Cut(string(r.Action), "\n")
		var err error
		if files, err = recorded(ctx, t.Job); err != nil {
			return nil, err
		}
	} else {
		var err error
		if files, at, err = w.mayRelease(ctx, t); err != nil {
			return nil, err
		}
	}
	root, err := w.root(at.RootID, "content root of the resource")
	if err != nil {
		return nil, err
	}
	w.o.Reached("release: before the record")
	if err := t.Commit(ctx, daemon.CommitRecord{CommitID: id, Step: pb.JobStep_JOB_STEP_RELEASE,
		VerifyEvidenceSHA256: t.Execute.GetRelease().GetReverifyEvidenceSha256(), Action: []byte(at.RootID + "\n" + at.Dir)}); err != nil {
		return nil, err
	}
	w.o.Reached("release: after the record")
	resource := t.Job.Definition.GetSource().GetResourceId()
	e := &pb.ReleaseEvidence{ReleasedResourceId: resource}
	if err := w.forget(ctx, t.Job, resource, e); err != nil {
		return nil, err
	}
	if err := w.trash(ctx, t, root, at.Dir, files, e); err != nil {
		return nil, err
	}
	e.ReleasedAt = timestamppb.New(w.o.Clock.Now())
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Release{Release: e}}, nil
}

// recorded lists the files that a RELEASE past its record moves: the backend may have forgotten the resource already.
func recorded(ctx context.Context, job *daemon.Job) ([]daemon.JournalEntry, error) {
	var files []daemon.JournalEntry
	err := job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		if e.Index != thing {
			files = append(files, e)
		}
		return true
	}, pb.JobStep_JOB_STEP_RELEASE)
	return files, err
}

// mayRelease checks that the content is what was verified elsewhere and that nothing else uses it (daemon protocol 9,
// rows 40 and 41). It returns what is to be moved, journaled so that it outlives the record, and where it is.
func (w *Worker) mayRelease(ctx context.Context, t *daemon.Task) (files []daemon.JournalEntry, at backend.Location, err error) {
	if err := w.noTrash(t.Job); err != nil {
		return nil, at, err
	}
	begun, err := w.begun(ctx, t)
	if err != nil {
		return nil, at, err
	}
	// First the wait for control, which may be long, then the checks, so that they are fresh when the record is written.
	if err := t.Confirmed(ctx); err != nil {
		return nil, at, err
	}
	params, def := t.Execute.GetRelease(), t.Job.Definition
	if c := params.GetTargetCommit(); c.GetCommitId() == "" || c.GetCommitId() != def.GetEviction().GetTargetCommit().GetCommitId() {
		return nil, at, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "the release names another commit than the job's definition")
	}
	// The age of the verification is control's to judge; what can be seen here is how long this step has waited since.
	age := archive.DefaultMaxVerifyAge
	if limit := def.GetEviction().GetMaxVerifyAge(); limit != nil {
		age = limit.AsDuration()
	}
	if waited := w.o.Clock.Now().UnixNano() - begun; waited > int64(age) {
		return nil, at, failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the release waited longer than the verification at the target may be old; "+
			"nothing was given up", "expected", age.String())
	}
	resource := def.GetSource().GetResourceId()
	if err := w.o.Backend.Quiesce(ctx, resource); err != nil {
		return nil, at, err
	}
	tree, err := w.treeOf(ctx, t, resource)
	if err != nil {
		return nil, at, err
	}
	if revision := params.GetExpectedContentRevision(); tree.Header.GetContentRevision() != revision {
		return nil, at, failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content has changed since the preview; nothing was given up",
			"expected", revision, "found", tree.Header.GetContentRevision())
	}
	switch tree.Header.GetBackendState() {
	case pb.BackendState_BACKEND_STATE_CHECKING, pb.BackendState_BACKEND_STATE_MOVING, pb.BackendState_BACKEND_STATE_DOWNLOADING:
		return nil, at, failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the backend is at work on the content", "state", tree.Header.GetBackendState().String())
	}
	if shared := tree.Header.GetSharedWith(); len(shared) > 0 {
		return nil, at, failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, fmt.Sprintf("%s also uses files of this content; nothing was given up", shared[0]),
			"resource_id", shared[0])
	}
	files, err = w.toRelease(t.Job, tree)
	if err == nil {
		var root *beneath.Root
		if root, err = w.root(tree.Location.RootID, "content root of the resource"); err == nil {
			err = w.notKept(t.Job, root, files)
		}
	}
	if err != nil {
		return nil, at, err
	}
	return files, tree.Location, putAll(ctx, t.Job, files)
}

// begunEntry is the name of the journal entry that keeps when an attempt at RELEASE began: before each, control has the
// content verified anew when that was too long ago.
func begunEntry(attempt uint32) string { return fmt.Sprintf(".begun-%d", attempt) }

// begun is when this attempt at RELEASE began, in Unix ns of this machine's clock. Only the difference to later times counts.
func (w *Worker) begun(ctx context.Context, t *daemon.Task) (int64, error) {
	name := begunEntry(t.Execute.GetStepAttempt())
	e, known, err := t.Job.Journal.Get(ctx, pb.JobStep_JOB_STEP_RELEASE, thing, name)
	if err != nil || known {
		return e.MtimeNs, err
	}
	e = daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_RELEASE, Index: thing, Name: name, State: daemon.Intent, MtimeNs: w.o.Clock.Now().UnixNano()}
	return e.MtimeNs, t.Job.Journal.Put(ctx, e)
}

// toRelease lists what is to be moved. Names that the files have elsewhere, in a library for one, stay and are counted, or
// stop the step when the job does not allow them.
func (w *Worker) toRelease(job *daemon.Job, tree *backend.Tree) ([]daemon.JournalEntry, error) {
	r, err := w.root(tree.Location.RootID, "content root of the resource")
	if err != nil {
		return nil, err
	}
	want, err := requestedSet(job)
	if err != nil {
		return nil, err
	}
	trash := layout.TrashDir(job.ID.String())
	var list []released
	moved := map[uint64]uint32{} // names of an inode that are moved
	for i := range tree.Files.Len() {
		f := tree.Files.Entry(i)
		name := tree.Files.DiskPath(i)
		if !want.Contains(f.GetIndex()) || f.GetKind() == pb.FileKind_FILE_KIND_PADDING || name == "" {
			continue
		}
		st, there, err := found(r, name)
		switch {
		case err != nil:
			return nil, err
		case !there:
			return nil, failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, fmt.Sprintf("%s is gone since the preview; nothing was given up", name), "path", name)
		case len(trash)+1+len(name) > maxPath:
			return nil, failure(pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT, fmt.Sprintf("the name of %s is too long to be moved into the trash area; "+
				"nothing was given up", name), "path", name)
		}
		list = append(list, released{inode: st.Ino, names: st.Nlink, entry: identify(daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_RELEASE,
			Index: int64(f.GetIndex()), RootID: tree.Location.RootID, Name: name, TempName: path.Join(trash, name),
			Method: pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME, State: daemon.Intent}, st)})
		moved[st.Ino]++
	}
	files := make([]daemon.JournalEntry, len(list))
	for i, f := range list {
		files[i] = f.entry
		kept := f.names - min(f.names, moved[f.inode])
		if kept == 0 {
			continue
		}
		if !job.Definition.GetEviction().GetAllowLibraryLinks() {
			return nil, failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, fmt.Sprintf("%s has another name outside this content, in a library or as the copy "+
				"itself on one file system, and the job does not allow library links; nothing was given up", f.entry.Name), "path", f.entry.Name)
		}
		files[i].Detail = strconv.AppendUint(nil, uint64(kept), 10)
		delete(moved, f.inode) // counted once
		moved[f.inode] = f.names
	}
	return files, nil
}

// forget has the backend forget the torrent. What it put aside of its own files is journaled, so that PURGE removes that too.
func (w *Worker) forget(ctx context.Context, job *daemon.Job, resource string, e *pb.ReleaseEvidence) error {
	list, err := w.o.Backend.RemoveEntry(ctx, resource, job.ID.String())
	if err != nil {
		return err
	}
	w.o.Reached("release: entry removed")
	var aside []daemon.JournalEntry
	for _, t := range list {
		if t.RootID == "" {
			continue // in a directory that is no root: it stays there, aside
		}
		r, err := w.root(t.RootID, "content root of the backend's files")
		if err != nil {
			return err
		}
		st, there, err := found(r, t.Name)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		aside = append(aside, identify(daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_RELEASE, Index: thing, RootID: t.RootID, Name: t.Name,
			TempName: t.Name, State: daemon.Trashed}, st))
		e.TrashEntries++
		e.TrashBytes += uint64(st.Size)
	}
	return putAll(ctx, job, aside)
}

// trash renames the files into the job's trash area, one by one, and removes the directories that this emptied.
func (w *Worker) trash(ctx context.Context, t *daemon.Task, r *beneath.Root, saveDir string, files []daemon.JournalEntry, e *pb.ReleaseEvidence) error {
	meter := newMeter(t, len(files), total(files), 0)
	dirs, made := map[string]bool{}, map[string]bool{}
	for start := 0; start < len(files); start += batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		some := files[start:min(start+batch, len(files))]
		for i := range some {
			f := &some[i]
			if err := w.trashOne(r, f, made); err != nil {
				return err
			}
			if f.State == daemon.Trashed {
				e.TrashEntries++
				e.TrashBytes += f.Size
				if kept, err := strconv.ParseUint(string(f.Detail), 10, 32); err == nil {
					e.SharedNamesKept += uint32(kept)
				}
				for d := path.Dir(f.Name); len(d) > len(saveDir) && d != "." && !dirs[d]; d = path.Dir(d) {
					dirs[d] = true
				}
			}
			meter.file(f.Size, 0)
		}
		w.o.Reached("release: effect")
		if err := t.Job.Journal.Put(ctx, some...); err != nil {
			return err
		}
	}
	if err := removeEmpty(r, dirs); err != nil {
		return err
	}
	return syncDirs(r, func(each func(string)) {
		each(".")
		each(path.Join(layout.TrashDir(t.Job.ID.String()), saveDir))
		for d := range dirs {
			each(d)
			each(path.Dir(d))
			each(path.Join(layout.TrashDir(t.Job.ID.String()), d))
		}
	})
}

// removeEmpty removes the directories that hold nothing, deepest first. One that is in use, or may not be removed, stays.
func removeEmpty(r *beneath.Root, dirs map[string]bool) error {
	names := make([]string, 0, len(dirs))
	for d := range dirs {
		names = append(names, d)
	}
	sort.Sort(sort.Reverse(sort.StringSlice(names)))
	for _, d := range names {
		switch err := r.Rmdir(d); beneath.CodeOf(err) {
		case 0, beneath.NotFound, beneath.PathConflict, beneath.Busy, beneath.PermissionDenied:
		default:
			return err
		}
	}
	return nil
}

// trashOne moves one file, or finds that it was moved.
func (w *Worker) trashOne(r *beneath.Root, f *daemon.JournalEntry, made map[string]bool) error {
	if f.State == daemon.Trashed {
		return nil
	}
	st, there, err := found(r, f.Name)
	if err != nil {
		return err
	}
	if !there {
		moved, in, err := found(r, f.TempName)
		if err != nil {
			return err
		}
		f.State = daemon.Trashed
		if !in || !same(*f, moved) {
			f.State = daemon.RolledBack // neither here nor there: somebody took it, and there is nothing to release
		}
		return nil
	}
	if !same(*f, st) {
		f.State = daemon.RolledBack // another file now: it stays
		return nil
	}
	if dir := path.Dir(f.TempName); !made[dir] {
		if _, err := r.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		made[dir] = true
	}
	if err := r.RenameNoReplace(f.Name, r, f.TempName); err != nil {
		return err
	}
	f.State = daemon.Trashed
	return nil
}

func total(files []daemon.JournalEntry) (sum uint64) {
	for _, f := range files {
		sum += f.Size
	}
	return sum
}
