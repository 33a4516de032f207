package beneath

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// ControlDir is the directory of this product's own files in every root (daemon protocol 7.1).
const ControlDir = ".archive-control"

const (
	ownerFile  = ControlDir + "/owner"
	maxOwner   = 512 // bytes of an owner file
	maxOwnerID = 255
	ownPerm    = 0o600
	ownDirPerm = 0o700
	ofDaemon   = "daemon " // before the daemon's ID, in the second line
)

// Owner is whom a root belongs to. Root IDs are alike on many machines, so the daemon is named too. The zero value is
// nobody.
type Owner struct {
	Root   string // root ID
	Daemon string // client ID of the daemon; empty in a file that an early version wrote
}

// ErrOtherDaemon is in the chain when a root has the right ID and belongs to another daemon: its disk comes from another
// machine, or two daemons were given one directory.
var ErrOtherDaemon = errors.New("root belongs to another daemon")

// Claim binds the root to its owner through the owner file in ControlDir. A root that is used for the first time gets the
// file when create is set; pass create only then, because a root known from before that has none is most likely an empty
// mount point. A missing file, one with another root ID, or one of another daemon is UNAVAILABLE, and nothing is written;
// only a file without a daemon is completed when the root is known from before. After Claim, Verify also looks for the file.
func (r *Root) Claim(o Owner, create bool) error {
	if err := o.check(); err != nil {
		return err
	}
	err := r.checkOwner(o)
	switch {
	case create && errors.Is(err, errNoOwner):
		if err = r.writeOwner(o, false); err == nil || CodeOf(err) == PathConflict {
			err = r.checkOwner(o)
		}
	case !create && errors.Is(err, errNoDaemon):
		if err = r.writeOwner(o, true); err == nil {
			err = r.checkOwner(o)
		}
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.owner = o
	r.mu.Unlock()
	return nil
}

// Accept hands a root of another daemon over to o, for an operator who moved its disk. The root ID must be the one in the
// owner file; a root without that file is UNAVAILABLE. It returns whom the root belonged to. The other daemon finds it
// taken.
func (r *Root) Accept(o Owner) (was Owner, err error) {
	if err := o.check(); err != nil {
		return was, err
	}
	if was, err = r.Owner(); err != nil {
		return was, err
	}
	err = r.checkOwner(o)
	if errors.Is(err, ErrOtherDaemon) || errors.Is(err, errNoDaemon) {
		err = r.writeOwner(o, true)
	}
	return was, err
}

func (o Owner) check() error {
	for _, f := range []struct{ what, id string }{{"root ID", o.Root}, {"daemon ID", o.Daemon}} {
		if f.id == "" || len(f.id) > maxOwnerID || strings.ContainsFunc(f.id, func(c rune) bool { return c < 0x20 || c == 0x7f }) {
			return &Error{Code: InvalidArgument, Op: OpVerify, Path: ownerFile,
				Err: fmt.Errorf("%s must be 1 to %d bytes without control characters", f.what, maxOwnerID)}
		}
	}
	return nil
}

// Owner returns what the owner file says; the zero Owner when there is no such file.
func (r *Root) Owner() (Owner, error) {
	b, err := r.ReadFile(ownerFile, maxOwner)
	if err != nil {
		if IsNotFound(err) {
			err = nil
		}
		return Owner{}, err
	}
	root, rest, _ := strings.Cut(string(b), "\n")
	line, _, _ := strings.Cut(rest, "\n")
	id, _ := strings.CutPrefix(line, ofDaemon)
	return Owner{Root: root, Daemon: id}, nil
}

var (
	errNoOwner  = errors.New("no owner file: the file system that belongs here may not be mounted")
	errNoDaemon = errors.New("its owner file names no daemon")
)

func (r *Root) checkOwner(o Owner) error {
	found, err := r.Owner()
	switch {
	case err != nil:
		return err
	case found == Owner{}:
		err = errNoOwner
	case found.Root != o.Root:
		err = fmt.Errorf("root belongs to %q, expected %q", found.Root, o.Root)
	case found.Daemon == "":
		err = errNoDaemon
	case found.Daemon != o.Daemon:
		err = fmt.Errorf("%w: %q of daemon %s, not of %s", ErrOtherDaemon, found.Root, found.Daemon, o.Daemon)
	default:
		return nil
	}
	return &Error{Code: Unavailable, Op: OpVerify, Path: ownerFile, Err: err}
}

// writeOwner writes the file whole: the temporary one is flushed before it gets the name.
func (r *Root) writeOwner(o Owner, replace bool) error {
	if _, err := r.MkdirAll(ControlDir, ownDirPerm); err != nil {
		return err
	}
	temp := ownerFile + ".tmp-" + random()
	f, err := r.Create(temp, ownPerm)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(o.Root+"\n"+ofDaemon+o.Daemon+"\n"), 0)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	switch {
	case err != nil:
	case replace:
		err = r.pair(OpRename, temp, r, ownerFile, unix.Renameat)
	default:
		err = r.RenameNoReplace(temp, r, ownerFile)
	}
	if err != nil {
		return errors.Join(err, ignoreNotFound(r.Unlink(temp)))
	}
	if _, err := r.SyncDir(ControlDir); err != nil {
		return err
	}
	_, err = r.SyncDir("")
	return err
}

// ReadFile reads a whole regular file of at most limit bytes; a longer one is FILESYSTEM_LIMIT and is not read.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	b, _, err := r.ReadFileStat(name, limit)
	return b, err
}

// ReadFileStat is ReadFile with the description of the file that was opened, taken before it was read.
func (r *Root) ReadFileStat(name string, limit int64) ([]byte, Stat, error) {
	f, err := r.Open(name)
	if err != nil {
		return nil, Stat{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, st, err
	}
	if st.Size > limit {
		return nil, st, &Error{Code: FilesystemLimit, Op: OpRead, Path: name, Err: fmt.Errorf("%d bytes, at most %d are read", st.Size, limit)}
	}
	b := make([]byte, st.Size)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil
	}
	return b[:n], st, err
}

func random() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
