package layout

import (
	"errors"
	"fmt"
	"path"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/valid"
)

// aside holds what a daemon found under a name of its own and has no record of: the database that made it is gone.
const aside = beneath.ControlDir + "/leftovers"

// places are the directories of a root that hold directories of jobs, with the names that these have in aside.
var places = []struct{ dir, below string }{{Jobs, aside + "/jobs"}, {work, aside + "/work"}}

// maxAside is how many directories of one name are put aside.
const maxAside = 1000

// PutAside renames the directory of a job, a job directory or a work area, to a free name below
// .archive-control/leftovers of the same root, and returns that name. Nothing in it changes and nothing is replaced; the
// person who looks at it removes it. PATH_CONFLICT: it is no directory.
func PutAside(root *beneath.Root, name string) (string, error) {
	for _, p := range places {
		if path.Dir(name) != p.dir {
			continue
		}
		st, err := root.Lstat(name)
		if err != nil {
			return "", err
		}
		if !st.Mode.IsDir() {
			return "", failure(beneath.PathConflict, name, "is not a directory")
		}
		if _, err := root.MkdirAll(p.below, dirMode); err != nil {
			return "", err
		}
		for n := 1; n <= maxAside; n++ {
			to := path.Join(p.below, path.Base(name))
			if n > 1 {
				to = fmt.Sprintf("%s.%d", to, n)
			}
			err := root.RenameNoReplace(name, root, to)
			if beneath.CodeOf(err) == pb.ErrorCode_ERROR_CODE_PATH_CONFLICT {
				continue
			}
			if err != nil {
				return "", err
			}
			_, err = syncDirs(root, p.below, aside, beneath.ControlDir, p.dir)
			return to, err
		}
		return "", failure(beneath.PathConflict, name, "%d directories of this name were put aside already", maxAside)
	}
	return "", failure(beneath.PathConflict, name, "is no directory of a job")
}

// Leftovers calls each for every directory of a job below the root that active does not tell to be of a job at work, in no
// order: job directories and work areas where jobs have them, and what was put aside, which active is not asked about and
// whose jobID is "".
func Leftovers(root *beneath.Root, active func(jobID string) bool, each func(jobID, name string) error) error {
	for _, p := range places {
		err := list(root, p.dir, func(name string) error {
			id := name
			if p.dir == Jobs {
				var ok bool
				if id, _, ok = ParseJobDir(name); !ok {
					return nil
				}
			}
			if !valid.IsUUID(id) || active(id) {
				return nil
			}
			return each(id, path.Join(p.dir, name))
		})
		if err == nil {
			err = list(root, p.below, func(name string) error { return each("", path.Join(p.below, name)) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list calls each for the directories of a directory, which need not exist.
func list(root *beneath.Root, dir string, each func(name string) error) error {
	err := root.ReadDir(dir, func(e beneath.Entry) error {
		if !e.Type.IsDir() {
			return nil
		}
		return each(e.Name)
	})
	var own *beneath.Error
	if errors.As(err, &own) && own.Code == beneath.NotFound {
		return nil
	}
	return err
}
