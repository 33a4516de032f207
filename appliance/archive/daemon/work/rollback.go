package work

import (
	"context"
	"fmt"
	"path"
	"sort"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// Undo implements daemon.Steps: it takes back what the job made and nobody else has touched since (daemon protocol 3.5,
// 7.6). Names of others stay.
func (w *Worker) Undo(ctx context.Context, job *daemon.Job, cleanup pb.CleanupPolicy) error {
	return outcome(w.undo(ctx, job, cleanup))
}

func (w *Worker) undo(ctx context.Context, job *daemon.Job, cleanup pb.CleanupPolicy) error {
	if err := w.lookForEffects(ctx, job); err != nil {
		return err
	}
	if err := w.wake(ctx, job); err != nil {
		return err
	}
	if err := w.unregister(ctx, job); err != nil {
		return err
	}
	if err := w.rollback(ctx, job); err != nil {
		return err
	}
	if err := w.removeTrees(ctx, job, "", pb.JobStep_JOB_STEP_VERIFY); err != nil { // the mark of an EVICT
		return err
	}
	if cleanup == pb.CleanupPolicy_CLEANUP_POLICY_KEEP_ALL {
		return nil
	}
	return w.removeTrees(ctx, job, "", pb.JobStep_JOB_STEP_STAGE, pb.JobStep_JOB_STEP_TRANSFER)
}

// Close implements daemon.Steps: the job's own directories go, by journal; content and trash stay.
func (w *Worker) Close(ctx context.Context, job *daemon.Job) error {
	if err := w.wake(ctx, job); err != nil {
		return outcome(err)
	}
	return outcome(w.removeTrees(ctx, job, "", pb.JobStep_JOB_STEP_STAGE, pb.JobStep_JOB_STEP_TRANSFER, pb.JobStep_JOB_STEP_MATERIALIZE,
		pb.JobStep_JOB_STEP_VERIFY))
}

// removeTrees removes the directories that the steps made for the job alone: the one of that name, or all when it is
// empty. One that is another directory now, or is gone, stays as it is.
func (w *Worker) removeTrees(ctx context.Context, job *daemon.Job, name string, steps ...pb.JobStep) error {
	var trees []daemon.JournalEntry
	err := job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		if string(e.Detail) == isTree && e.State != daemon.Removed && e.State != daemon.RolledBack && (name == "" || name == e.Name) {
			trees = append(trees, e)
		}
		return true
	}, steps...)
	if err != nil {
		return err
	}
	for _, e := range trees {
		r, err := w.root(e.RootID, "root of the job's directories")
		if err != nil {
			return err
		}
		if err := w.dropTree(ctx, r, e); err != nil {
			return err
		}
		e.State = daemon.Removed
		if err := job.Journal.Put(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// dropTree removes the directory of an entry if it still is that directory. An intent without an inode was made, or not,
// just before a crash: its name holds the job's ID and was free when the intent was written.
func (w *Worker) dropTree(ctx context.Context, r *beneath.Root, e daemon.JournalEntry) error {
	st, there, err := found(r, e.Name)
	if err != nil {
		return err
	}
	if there && (e.Inode == 0 || sameInode(e, st)) {
		if err := w.removeTree(ctx, r, e.Name); err != nil {
			return err
		}
		w.o.Reached("close: removed")
	}
	return nil
}

// rollback takes back the names of MATERIALIZE. A payload that was renamed goes back to the job directory, so that a
// further attempt finds it.
func (w *Worker) rollback(ctx context.Context, job *daemon.Job) error {
	var files, dirs []daemon.JournalEntry
	holding := map[string]bool{} // directories that files of the job are or were in
	err := job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		if e.Index != thing {
			holding[path.Dir(e.Name)] = true
		}
		switch {
		case e.State == daemon.RolledBack || e.State == daemon.Removed:
		case e.Index == thing:
			dirs = append(dirs, e)
		case e.Method != pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT:
			files = append(files, e)
		}
		return true
	}, pb.JobStep_JOB_STEP_MATERIALIZE)
	if err != nil || len(files)+len(dirs) == 0 {
		return err
	}
	to, _, err := w.contentRoot(job)
	if err != nil {
		return err
	}
	from, err := w.receivedFrom(ctx, job)
	if err != nil {
		return err
	}
	for start := 0; start < len(files); start += batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		some := files[start:min(start+batch, len(files))]
		for i, e := range some {
			if err := takeBack(e, from, to); err != nil {
				return err
			}
			some[i].State = daemon.RolledBack
		}
		w.o.Reached("rollback: effect")
		if err := job.Journal.Put(ctx, some...); err != nil {
			return err
		}
	}
	return w.rollbackDirs(ctx, job, to, dirs, holding)
}

// receivedFrom is the root that the job's payload came to. The route may be gone by now: the journal knows it.
func (w *Worker) receivedFrom(ctx context.Context, job *daemon.Job) (*beneath.Root, error) {
	id := ""
	err := job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		id = e.RootID
		return id == ""
	}, pb.JobStep_JOB_STEP_TRANSFER)
	if err != nil {
		return nil, err
	}
	if id == "" {
		r, _, err := w.receiveRoot(job)
		return r, err
	}
	return w.root(id, "receive root of the job")
}

// ours describes a name, and whether it still has what the entry says. Where something else stands in the way of the name
// now, a link for one, it is not ours.
func ours(r *beneath.Root, name string, e daemon.JournalEntry) (beneath.Stat, bool, error) {
	st, there, err := found(r, name)
	if code := beneath.CodeOf(err); code == beneath.PathUnsafe || code == beneath.PathConflict {
		return st, false, nil
	}
	return st, err == nil && there && holds(e, st), err
}

// takeBack removes both names that a file of the job may have: the final one when it still is the job's, and the one in the
// work area.
func takeBack(e daemon.JournalEntry, from, to *beneath.Root) error {
	st, mine, err := ours(to, e.Name, e)
	if err != nil {
		return err
	}
	if mine {
		if err := giveBack(e, st, e.Name, from, to); err != nil {
			return err
		}
	}
	if e.TempName == "" {
		return nil
	}
	st, there, err := found(to, e.TempName)
	if err != nil || !there {
		return err
	}
	return giveBack(e, st, e.TempName, from, to)
}

// giveBack returns a file to the job directory if it came from there by a rename, which shows by the payload's absence, and
// removes it otherwise.
func giveBack(e daemon.JournalEntry, st beneath.Stat, name string, from, to *beneath.Root) error {
	if payload := string(e.Detail); payload != "" && st.Mode.IsRegular() {
		_, there, err := found(from, payload)
		if err != nil {
			return err
		}
		if !there {
			_, dir, err := found(from, path.Dir(payload))
			if err != nil {
				return err
			}
			if dir {
				if err := to.RenameNoReplace(name, from, payload); err == nil || !beneath.IsUnsupported(err) {
					return err
				}
			}
		}
	}
	return to.Unlink(name)
}

// rollbackDirs removes the directories that the job made, deepest first, as far as nobody else put anything into them.
func (w *Worker) rollbackDirs(ctx context.Context, job *daemon.Job, to *beneath.Root, dirs []daemon.JournalEntry, holding map[string]bool) error {
	made := map[string]bool{}
	for _, d := range dirs {
		if string(d.Detail) == isTree {
			continue
		}
		_, mine, err := ours(to, d.Name, d)
		if err != nil {
			return err
		}
		if !mine {
			continue
		}
		made[d.Name] = true
		if string(d.Detail) == isContent { // the directories below came with it
			for dir := range holding {
				for p := dir; len(p) > len(d.Name) && p[:len(d.Name)+1] == d.Name+"/"; p = path.Dir(p) {
					made[p] = true
				}
			}
		}
	}
	names := make([]string, 0, len(made))
	for name := range made {
		names = append(names, name)
	}
	sort.Sort(sort.Reverse(sort.StringSlice(names))) // a directory sorts before what is below it
	for _, name := range names {
		if err := to.Rmdir(name); err != nil && !isNotFound(err) && !isTaken(err) {
			return err
		}
	}
	for i := range dirs {
		if string(dirs[i].Detail) == isTree {
			if err := w.dropTree(ctx, to, dirs[i]); err != nil {
				return err
			}
		}
		dirs[i].State = daemon.RolledBack
	}
	w.o.Reached("rollback: directories")
	return putAll(ctx, job, dirs)
}

// lookForEffects finds what only a commit can have made while the job has no commit record: then the database is older
// than the disk, and nothing is undone (daemon protocol 3.7).
func (w *Worker) lookForEffects(ctx context.Context, job *daemon.Job) error {
	if job.Record != nil {
		return nil
	}
	if job.Definition.GetOperation() == pb.JobOperation_JOB_OPERATION_EVICT {
		if job.Role != pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE {
			return nil
		}
		return w.noTrash(job)
	}
	return w.notStarted(ctx, job)
}

// noTrash holds the job when a trash area of it exists although it has released nothing.
func (w *Worker) noTrash(job *daemon.Job) error {
	name := layout.TrashDir(job.ID.String())
	for _, id := range w.o.Roots.ContentRoots() {
		r, err := w.root(id, "content root")
		if err != nil {
			return err
		}
		_, there, err := found(r, name)
		if err != nil {
			return err
		}
		if there {
			return held(pb.ErrorCode_ERROR_CODE_STATE_LOST, fmt.Sprintf("%s exists below content root %s and this daemon has no record of releasing "+
				"anything into it", name, id), "path", name, "root_id", id)
		}
	}
	return nil
}
