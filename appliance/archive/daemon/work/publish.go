package work

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// publish moves what was built to its final names (daemon protocol 7.4). Content below one new top-level directory
// appears whole, by one rename; otherwise file by file.
func (m *build) publish(ctx context.Context) error {
	if err := m.makeDirs(ctx, []string{m.job.Definition.GetDestination().GetRelativeDir()}); err != nil {
		return err
	}
	groups := map[string][]*target{}
	for _, f := range m.files {
		groups[top(f.file.GetPath())] = append(groups[top(f.file.GetPath())], f)
	}
	tops := make([]string, 0, len(groups))
	for name := range groups {
		tops = append(tops, name)
	}
	sort.Strings(tops)
	for _, name := range tops {
		whole, err := m.publishWhole(ctx, name, groups[name])
		if err != nil {
			return err
		}
		if !whole {
			if err := m.publishFiles(ctx, groups[name]); err != nil {
				return err
			}
		}
	}
	return m.flush()
}

// publishWhole renames a top-level directory. It reports false where there is none to rename: for a single file, for a
// directory that exists, and on a file system that cannot promise not to replace one.
func (m *build) publishWhole(ctx context.Context, name string, files []*target) (bool, error) {
	if len(files) == 1 && files[0].file.GetPath() == name {
		return false, nil
	}
	final, built := finalName(m.job, name), path.Join(m.work, name)
	e := m.known[final]
	st, there, err := found(m.to, final)
	if err != nil {
		return false, err
	}
	if there {
		if string(e.Detail) != isContent || !sameInode(e, st) || e.State == daemon.RolledBack || e.State == daemon.Published {
			return false, nil
		}
		// Renamed, but not said. What is not in it is published file by file.
		e.State = daemon.Published
		m.known[final] = e
		return false, m.job.Journal.Put(ctx, e)
	}
	st, built1, err := found(m.to, built)
	if err != nil || !built1 {
		return false, err
	}
	e = identify(daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_MATERIALIZE, Index: thing, RootID: m.toID, Name: final, TempName: built,
		State: daemon.Intent, Detail: []byte(isContent)}, st)
	if err := m.job.Journal.Put(ctx, e); err != nil {
		return false, err
	}
	m.w.o.Reached("publish: intent")
	// The files of the directory are flushed already; its own names are flushed before they appear.
	if err := m.syncBelow(files); err != nil {
		return false, err
	}
	err = m.to.RenameNoReplace(built, m.to, final)
	if beneath.IsUnsupported(err) || isTaken(err) {
		e.State = daemon.RolledBack
		return false, m.job.Journal.Put(ctx, e)
	}
	if err != nil {
		return false, err
	}
	m.w.o.Reached("publish: effect")
	return true, m.published(ctx, e, files)
}

// published journals that a directory and the files in it stand under their final names.
func (m *build) published(ctx context.Context, e daemon.JournalEntry, files []*target) error {
	for start := 0; start < len(files); start += batch {
		var after []daemon.JournalEntry
		for _, f := range files[start:min(start+batch, len(files))] {
			f.entry.State, f.done = daemon.Published, true
			after = append(after, f.entry)
		}
		if len(after) > 0 {
			if err := m.job.Journal.Put(ctx, after...); err != nil {
				return err
			}
		}
	}
	e.State = daemon.Published
	m.known[e.Name] = e
	return m.job.Journal.Put(ctx, e)
}

// publishFiles moves file by file into directories that exist or that it makes.
func (m *build) publishFiles(ctx context.Context, files []*target) error {
	dirs := map[string]bool{}
	for _, f := range files {
		if !f.done {
			dirs[path.Dir(f.final)] = true
		}
	}
	names := make([]string, 0, len(dirs))
	for d := range dirs {
		names = append(names, d)
	}
	sort.Strings(names)
	if err := m.makeDirs(ctx, names); err != nil {
		return err
	}
	for start := 0; start < len(files); start += batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		var after []daemon.JournalEntry
		var stop error
		for _, f := range files[start:min(start+batch, len(files))] {
			if f.done && f.entry.State == daemon.Published {
				continue
			}
			if !f.done {
				// The entry says BUILT with the inode: whoever finds that inode under the final name knows whose it is.
				if stop = m.to.RenameNoReplace(f.built, m.to, f.final); stop != nil {
					if isTaken(stop) {
						stop = failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, fmt.Sprintf("%s appeared at the destination while the job was at work; "+
							"nothing of it was written over", f.final), "path", f.final)
					}
					break
				}
				m.w.o.Reached("publish: file")
			}
			f.entry.State, f.done = daemon.Published, true
			after = append(after, f.entry)
		}
		if len(after) > 0 && ctx.Err() == nil {
			if err := m.job.Journal.Put(ctx, after...); err != nil {
				return err
			}
		}
		if stop != nil {
			return stop
		}
	}
	return nil
}

// makeDirs makes the missing directories of the list and those above them. Each is made in the work area, journaled with its
// inode, and then renamed: whatever happens, it can be told from one that somebody else made under the same name.
func (m *build) makeDirs(ctx context.Context, dirs []string) error {
	var missing []daemon.JournalEntry
	seen := map[string]bool{}
	for _, dir := range dirs {
		var above []string
		for d := path.Clean(dir); d != "." && d != "/" && !seen[d]; d = path.Dir(d) {
			seen[d] = true
			st, there, err := found(m.to, d)
			if err != nil {
				return err
			}
			if there && st.Mode&fs.ModeSymlink != 0 {
				return failure(pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, fmt.Sprintf("%s is a symbolic link; nothing is written where it leads", d), "path", d)
			}
			if there && !st.Mode.IsDir() {
				return failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, fmt.Sprintf("%s is no directory", d), "path", d)
			}
			if !there {
				above = append(above, d)
			}
		}
		slices.Reverse(above)
		for _, d := range above {
			missing = append(missing, daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_MATERIALIZE, Index: thing, RootID: m.toID, Name: d,
				State: daemon.Built, Detail: []byte(isDir)})
		}
	}
	for start := 0; start < len(missing); start += batch {
		if err := m.someDirs(ctx, missing[start:min(start+batch, len(missing))]); err != nil {
			return err
		}
	}
	return nil
}

func (m *build) someDirs(ctx context.Context, some []daemon.JournalEntry) error {
	aside := path.Join(layout.WorkDir(m.job.ID.String()), "dirs")
	if _, err := m.to.MkdirAll(aside, 0o700); err != nil {
		return err
	}
	for i := range some {
		some[i].TempName = path.Join(aside, uuid.NewString())
		if err := m.to.Mkdir(some[i].TempName, m.w.o.DirMode); err != nil {
			return err
		}
		if err := m.w.dressDir(m.to, some[i].TempName); err != nil {
			return err
		}
		st, err := m.to.Lstat(some[i].TempName)
		if err != nil {
			return err
		}
		some[i] = identify(some[i], st)
	}
	if err := m.job.Journal.Put(ctx, some...); err != nil {
		return err
	}
	m.w.o.Reached("directories: built")
	var made []daemon.JournalEntry
	for _, e := range some {
		err := m.to.RenameNoReplace(e.TempName, m.to, e.Name)
		if beneath.IsUnsupported(err) {
			e, err = m.plainDir(e)
		}
		if isTaken(err) {
			continue // somebody else's, made since we looked; the entry has another inode and takes nothing back
		}
		if err != nil {
			return err
		}
		e.State = daemon.Published
		m.known[e.Name] = e
		made = append(made, e)
	}
	m.w.o.Reached("directories: published")
	if len(made) == 0 {
		return nil
	}
	return m.job.Journal.Put(ctx, made...)
}

// plainDir makes a directory where it belongs, on a file system that cannot rename one without replacing another.
func (m *build) plainDir(e daemon.JournalEntry) (daemon.JournalEntry, error) {
	if err := m.to.Mkdir(e.Name, m.w.o.DirMode); err != nil {
		return e, err
	}
	if err := m.w.dressDir(m.to, e.Name); err != nil {
		return e, err
	}
	st, err := m.to.Lstat(e.Name)
	return identify(e, st), err
}

// syncBelow flushes the directories in the work area that hold the files.
func (m *build) syncBelow(files []*target) error {
	return syncDirs(m.to, func(each func(string)) {
		for _, f := range files {
			for d := path.Dir(f.built); d != "." && len(d) >= len(m.work); d = path.Dir(d) {
				each(d)
			}
		}
	})
}

// flush makes the final names durable.
func (m *build) flush() error {
	return syncDirs(m.to, func(each func(string)) {
		each(".")
		for _, f := range m.files {
			for d := path.Dir(f.final); d != "." && d != "/"; d = path.Dir(d) {
				each(d)
			}
		}
	})
}

// syncDirs flushes each directory once. A file system that cannot do that is not asked for more than it can.
func syncDirs(r *beneath.Root, list func(each func(dir string))) error {
	done := map[string]bool{}
	var failed error
	list(func(dir string) {
		if failed != nil || done[dir] {
			return
		}
		done[dir] = true
		if _, err := r.SyncDir(dir); err != nil && !isNotFound(err) {
			failed = err
		}
	})
	return failed
}
