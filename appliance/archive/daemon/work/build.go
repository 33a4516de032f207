package work

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/torrent"
)

// buildBatch builds a few files under their names in the work area, with two writes of the journal.
func (m *build) buildBatch(ctx context.Context, files []*target) error {
	var todo []*target
	var before, after []daemon.JournalEntry
	for _, f := range files {
		if f.done {
			continue
		}
		ready, err := m.ready(f)
		if err != nil {
			return err
		}
		if ready {
			m.finished(f)
			after = append(after, f.entry)
			continue
		}
		f.entry = m.entryOf(f, 0)
		todo = append(todo, f)
		before = append(before, f.entry)
	}
	if len(before) > 0 {
		if err := m.job.Journal.Put(ctx, before...); err != nil {
			return err
		}
	}
	m.w.o.Reached("materialize: intent")
	var failed error
	for _, f := range todo {
		if failed = m.one(ctx, f); failed != nil {
			break
		}
		m.finished(f)
		after = append(after, f.entry)
	}
	m.w.o.Reached("materialize: effect")
	// What was built before a failure is journaled, so that the rollback knows its inodes.
	if len(after) > 0 && ctx.Err() == nil {
		if err := m.job.Journal.Put(ctx, after...); err != nil {
			return err
		}
	}
	return failed
}

// ready reports whether an earlier call has built the file in the work area; everything there is the job's own. A file
// that was renamed there from the job directory is complete, for a name moves in one piece, but may lack its mode and time.
func (m *build) ready(f *target) (bool, error) {
	switch f.entry.State {
	case daemon.Intent, daemon.Built, daemon.Published: // published, and the power went before the name was on the disk
	default:
		return false, nil
	}
	st, there, err := found(m.to, f.built)
	if err != nil || !there {
		return false, err
	}
	if holds(f.entry, st) {
		f.entry.State = daemon.Built
		return true, nil
	}
	if f.file.GetPayload() != "" && uint64(st.Size) == f.file.GetLogicalBytes() {
		_, payload, err := found(m.from, path.Join(m.jobDir, f.file.GetPayload()))
		if err != nil {
			return false, err
		}
		if !payload {
			if st, err = m.dress(f, st); err != nil {
				return false, err
			}
			f.entry = identify(m.entryOf(f, pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME), st)
			f.entry.State = daemon.Built
			return true, nil
		}
	}
	return false, m.to.Unlink(f.built)
}

// dress gives a file in the work area its mode, time and group, and flushes it. An inode with other names is left as it is:
// it is also somebody else's.
func (m *build) dress(f *target, st beneath.Stat) (beneath.Stat, error) {
	if st.Nlink > 1 {
		return st, nil
	}
	file, err := m.to.Open(f.built)
	if err != nil {
		return st, err
	}
	defer func() { _ = file.Close() }()
	if err := file.Chmod(m.w.modeOf(f.file.GetExecutable())); err != nil && !beneath.IsUnsupported(err) {
		return st, err
	}
	if err := m.w.own(m.to, f.built, st); err != nil {
		return st, err
	}
	if err := file.SetMtime(f.file.GetMtime().AsTime().UnixNano()); err != nil {
		return st, err
	}
	if err := file.Sync(); err != nil {
		return st, err
	}
	return file.Stat()
}

// one builds one file.
func (m *build) one(ctx context.Context, f *target) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := m.makeWorkDirs(path.Dir(f.built)); err != nil {
		return err
	}
	if f.file.GetKind() == pb.FileKind_FILE_KIND_SYMLINK {
		return m.symlink(f)
	}
	payload := path.Join(m.jobDir, f.file.GetPayload())
	st, err := m.from.Lstat(payload)
	if err != nil {
		return err
	}
	methods := m.methods()
	if st.Nlink > 1 {
		// The inode is also somebody else's, of the source's content for one: it is linked or copied as the policy says, and
		// not renamed, for that would change its mode and time.
		methods = slices.DeleteFunc(slices.Clone(methods), func(method pb.MaterializeMethod) bool {
			return method == pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME
		})
		if len(methods) == 0 {
			return m.rename(f, payload, st)
		}
	}
	// The proof of renamed and linked files is left to VERIFY, which reads every byte; copies are compared at once.
	r, err := copyfile.Place(ctx, m.from, payload, m.to, f.built, methods, copyfile.Options{Limit: m.w.o.Write, SkipDigest: true,
		Progress: m.meter.within, Mtime: f.file.GetMtime().AsTime(), Mode: m.w.modeOf(f.file.GetExecutable()),
		Dense: m.job.Definition.GetPolicies().GetSparsePolicy() == pb.SparsePolicy_SPARSE_POLICY_DENSE})
	if err != nil {
		return err
	}
	if want := digestOf(f.file.GetSha256()); r.Digested && want != nil && r.SHA256 != *want {
		return failure(pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE, fmt.Sprintf("the received file %s has SHA-256 %x, the manifest says %x",
			f.file.GetPath(), r.SHA256, *want), "path", f.file.GetPath())
	}
	if err := m.w.own(m.to, f.built, r.Target); err != nil {
		return err
	}
	return m.build(f, r.Method, r.Target)
}

// rename moves a payload whose inode has other names, without touching the inode.
func (m *build) rename(f *target, payload string, st beneath.Stat) error {
	if err := m.from.RenameNoReplace(payload, m.to, f.built); err != nil {
		return err
	}
	now, err := m.to.Lstat(f.built)
	if err != nil {
		return err
	}
	if !now.Unchanged(st) {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, fmt.Sprintf("%s changed while it was moved", f.file.GetPath()), "path", f.file.GetPath())
	}
	return m.build(f, pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME, now)
}

// build notes that the file stands in the work area.
func (m *build) build(f *target, method pb.MaterializeMethod, st beneath.Stat) error {
	f.entry.Method, f.entry.State = method, daemon.Built
	f.entry = identify(f.entry, st)
	return m.sparse(f, st)
}

// methods are those of the job's policy, or the defaults.
func (m *build) methods() []pb.MaterializeMethod {
	if list := m.job.Definition.GetPolicies().GetMaterializeMethods(); len(list) > 0 {
		return list
	}
	return defaults.GetMaterializeMethods()
}

// symlink makes a link whose target was checked to lie inside the content; nothing ever follows it.
func (m *build) symlink(f *target) error {
	if err := m.to.Symlink(torrent.LinkText(f.file.GetPath(), f.file.GetSymlinkTarget()), f.built); err != nil {
		return err
	}
	st, err := m.to.Lstat(f.built)
	if err != nil {
		return err
	}
	return m.build(f, symlinked, st)
}

func isLink(st beneath.Stat) bool { return st.Mode&fs.ModeSymlink != 0 }

// makeWorkDirs makes a directory of the tree in the work area and those above it, with the mode and group of published
// ones.
func (m *build) makeWorkDirs(dir string) error {
	if m.made[dir] {
		return nil
	}
	created, err := m.to.MkdirAll(dir, m.w.o.DirMode)
	if err != nil {
		return err
	}
	for _, d := range created {
		if err := m.w.dressDir(m.to, d); err != nil {
			return err
		}
	}
	m.made[dir] = true
	return nil
}

// dressDir gives a directory that the job made its mode, whatever the umask is, and its group.
func (w *Worker) dressDir(r *beneath.Root, name string) error {
	st, err := r.Lstat(name)
	if err != nil {
		return err
	}
	if st.Mode.Perm() != w.o.DirMode.Perm() {
		if err := r.Chmod(name, w.o.DirMode); err != nil && !beneath.IsUnsupported(err) {
			return err
		}
	}
	return w.own(r, name, st)
}

// modeOf is the permission bits of a published file.
func (w *Worker) modeOf(executable bool) fs.FileMode {
	mode := w.o.FileMode
	if executable {
		mode |= (mode & 0o444) >> 2
	}
	return mode
}

// own gives a name that the job made to the configured group. An inode with other names stays as it is.
func (w *Worker) own(r *beneath.Root, name string, st beneath.Stat) error {
	if w.o.Group < 0 || int64(st.GID) == int64(w.o.Group) || st.Mode.IsRegular() && st.Nlink > 1 {
		return nil
	}
	return r.Chown(name, -1, w.o.Group)
}
