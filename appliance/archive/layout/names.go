package layout

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/valid"
)

// The names of daemon protocol 7.1, relative to a root or to a job directory.
const (
	Jobs         = "jobs"
	Payload      = "payload"
	Aux          = "aux"
	ManifestFile = "manifest.json"
	MarkerFile   = "ready.json"
	Metainfo     = Aux + "/metainfo"
	Partfile     = Aux + "/partfile"
	Fragments    = Aux + "/fragments"
	Hints        = Aux + "/hints"
	work         = beneath.ControlDir + "/work"
	trash        = beneath.ControlDir + "/trash"
)

// Modes of what is made here.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// JobDir returns the path of a job directory in an outbox or receive root. attempt is the step_attempt of STAGE.
func JobDir(jobID string, attempt uint32) string {
	return fmt.Sprintf("%s/%s-%d", Jobs, jobID, attempt)
}

// WorkDir returns the path of a job's work area in a content root.
func WorkDir(jobID string) string { return work + "/" + jobID }

// TrashDir returns the path of a job's released content in a content root.
func TrashDir(jobID string) string { return trash + "/" + jobID }

// PayloadName returns the name of a file's payload in the job directory.
func PayloadName(index uint32) string { return valid.PayloadName(index) }

// ParseJobDir reads the last component of a job directory's path.
func ParseJobDir(name string) (jobID string, attempt uint32, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 || !valid.IsUUID(name[:i]) {
		return "", 0, false
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != name[i+1:] {
		return "", 0, false
	}
	return name[:i], uint32(n), true
}

// temporary matches names that this product, rsync and Syncthing give to files in the making and to their own things.
var temporary = regexp.MustCompile(`^(?:.*\.tmp-[0-9a-f]{16}` + // ours
	`|\..+\.[A-Za-z0-9]{6}|\.~tmp~|\.rsync-(?:partial|tmp)` + // rsync
	`|\.syncthing\..*\.tmp|~syncthing~.*\.tmp|\.stfolder.*|\.stversions|\.stignore|.*\.sync-conflict-[0-9]{8}-[0-9]{6}.*)$`) // Syncthing

// IsTemporary reports a name that is never payload: a temporary name of this product, of rsync or of Syncthing.
func IsTemporary(name string) bool { return temporary.MatchString(name) }

// JobDirs calls each for every job directory of a root, in no order, whatever is in it. Other names are passed over. A
// root without job directories is no error.
func JobDirs(root *beneath.Root, each func(jobID string, attempt uint32) error) error {
	err := root.ReadDir(Jobs, func(e beneath.Entry) error {
		if id, attempt, ok := ParseJobDir(e.Name); ok && e.Type.IsDir() {
			return each(id, attempt)
		}
		return nil
	})
	var own *beneath.Error
	if errors.As(err, &own) && own.Code == beneath.NotFound && own.Path == Jobs {
		return nil
	}
	return err
}
