package layout

import (
	"signalbox/appliance/archive/beneath"
)

// CreateJobDir makes an empty job directory and flushes its name. An attempt is never used twice: a directory that
// exists is PATH_CONFLICT.
func CreateJobDir(root *beneath.Root, jobID string, attempt uint32) error {
	if _, err := root.MkdirAll(Jobs, 0o755); err != nil {
		return err
	}
	dir := JobDir(jobID, attempt)
	for _, name := range []string{dir, dir + "/" + Payload, dir + "/" + Aux} {
		if err := root.Mkdir(name, dirMode); err != nil {
			return err
		}
	}
	_, err := syncDirs(root, dir, Jobs, "")
	return err
}

// CreateWorkDir makes a job's work area in a content root; one that exists is used again.
func CreateWorkDir(root *beneath.Root, jobID string) error { return makeOwn(root, WorkDir(jobID)) }

func makeOwn(root *beneath.Root, dir string) error {
	made, err := root.MkdirAll(dir, dirMode)
	if err != nil || len(made) == 0 {
		return err
	}
	_, err = syncDirs(root, dir, work[:len(beneath.ControlDir)], "")
	return err
}

// syncDirs flushes directories; durable is false when the file system has no such flush.
func syncDirs(root *beneath.Root, dirs ...string) (durable bool, err error) {
	durable = true
	for _, dir := range dirs {
		ok, err := root.SyncDir(dir)
		if err != nil {
			return false, err
		}
		durable = durable && ok
	}
	return durable, nil
}
