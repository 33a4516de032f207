package work

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// keeps is the file in the work area of an EVICT's target that names the copy which stays: where its first file is, below
// the content root. Two machines may see one directory, a network file system for one: the copy that the target verifies
// can then be the very files that the source is to give up, and nothing else tells (product rule P1).
func keeps(job *daemon.Job) string { return path.Join(layout.WorkDir(job.ID.String()), "keeps") }

// markKept leaves the mark. It is removed with the work area at the end of the job.
func (w *Worker) markKept(ctx context.Context, job *daemon.Job, tree *backend.Tree) error {
	root, err := w.root(tree.Location.RootID, "content root of the resource")
	if err != nil {
		return err
	}
	place, err := firstFile(job, tree)
	if err != nil || place == "" {
		return err
	}
	if err := w.writeKept(ctx, job, root, tree.Location.RootID, place); err != nil {
		return fmt.Errorf("the copy that is to stay cannot be marked as such, so nothing is given up: %w", err)
	}
	return nil
}

func (w *Worker) writeKept(ctx context.Context, job *daemon.Job, root *beneath.Root, rootID, place string) error {
	known, err := load(ctx, job, pb.JobStep_JOB_STEP_VERIFY)
	if err != nil {
		return err
	}
	dir := layout.WorkDir(job.ID.String())
	_, there, err := found(root, dir)
	if err != nil {
		return err
	}
	// One without an entry was made before this database was lost: the name is the job's all the same.
	if _, ours := known[dir]; ours || !there {
		if err := w.makeTree(ctx, job, pb.JobStep_JOB_STEP_VERIFY, known, root, rootID, dir,
			func() error { return layout.CreateWorkDir(root, job.ID.String()) }); err != nil {
			return err
		}
	}
	switch said, err := root.ReadFile(keeps(job), maxPath); {
	case err == nil && string(said) == place:
		return nil
	case err == nil:
		if err := root.Unlink(keeps(job)); err != nil { // the content has another place since
			return err
		}
	case !isNotFound(err):
		return err
	}
	_, err = layout.WriteAtomic(root, keeps(job), []byte(place))
	w.o.Reached("verify: marked")
	return err
}

// firstFile is where the first file of the job's content is on the disk.
func firstFile(job *daemon.Job, tree *backend.Tree) (string, error) {
	want, err := requestedSet(job)
	if err != nil {
		return "", err
	}
	for i := range tree.Files.Len() {
		if f := tree.Files.Entry(i); want.Contains(f.GetIndex()) && f.GetKind() == pb.FileKind_FILE_KIND_REGULAR {
			return tree.Files.DiskPath(i), nil
		}
	}
	return "", nil
}

// notKept refuses to give up the files when they are the copy that stays. The target's root may be the source's own, lie in
// it around the content, or hold it: so the mark is looked for in every directory above the files, below the root and above
// it. A place that cannot be looked at is no place without a mark.
func (w *Worker) notKept(job *daemon.Job, root *beneath.Root, files []daemon.JournalEntry) error {
	names := make(map[string]bool, len(files))
	dirs := map[string]bool{}
	for _, f := range files {
		names[f.Name] = true
		for d := path.Dir(f.Name); !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	mark := keeps(job)
	look := func(r *beneath.Root, dir string, name func(place string) string) error {
		place, err := r.ReadFile(path.Join(dir, mark), maxPath)
		switch {
		case isNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("whether the content is the copy that is to stay cannot be seen, so nothing was given up: %w", err)
		}
		if own := name(string(place)); names[own] {
			return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, fmt.Sprintf("%s is the copy that is to stay: both machines see the same files; nothing "+
				"was given up", own), "path", own)
		}
		return nil
	}
	for d := range dirs {
		if err := look(root, d, func(place string) string { return path.Join(d, place) }); err != nil {
			return err
		}
	}
	at, err := filepath.EvalSymlinks(root.Dir())
	if err == nil {
		at, err = filepath.Abs(at)
	}
	if err != nil {
		return err
	}
	for below, up := filepath.Base(at), filepath.Dir(at); up != at; below, at, up = filepath.Join(filepath.Base(up), below), up, filepath.Dir(up) {
		above, err := beneath.Open(up, beneath.Options{})
		if beneath.CodeOf(err) == beneath.PermissionDenied {
			if _, own := os.Lstat(filepath.Join(up, beneath.ControlDir)); errors.Is(own, fs.ErrNotExist) {
				continue // may be passed and not read, and is no root
			}
		}
		if err != nil {
			return fmt.Errorf("whether the content is the copy that is to stay cannot be seen, so nothing was given up: %w", err)
		}
		err = look(above, ".", func(place string) string {
			name, in := strings.CutPrefix(place, below+"/")
			if !in {
				return ""
			}
			return name
		})
		if err = errors.Join(err, above.Close()); err != nil {
			return err
		}
	}
	return nil
}
