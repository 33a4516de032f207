package daemonhost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/daemonconfig"
)

// rootsFile remembers, in the data directory, which roots this daemon has used: a root that is known and does not carry
// its owner file is most likely an empty mount point.
const rootsFile = "roots.json"

// roots are the open directories of one daemon. They stay what they were when they were opened; a file system that is
// mounted anew is taken up by the next start.
type roots struct {
	list   []opened
	shares map[string]*beneath.Root
}

type opened struct {
	daemonconfig.Root
	dir *beneath.Root
}

var kinds = map[daemonconfig.RootKind]pb.RootKind{
	daemonconfig.Content: pb.RootKind_ROOT_KIND_CONTENT,
	daemonconfig.Receive: pb.RootKind_ROOT_KIND_RECEIVE,
	daemonconfig.Outbox:  pb.RootKind_ROOT_KIND_OUTBOX,
}

// openRoots opens and claims every root. first is called for a root that is used for the first time and may make its
// owner file; what is known from before must carry it.
func openRoots(c *daemonconfig.Config, files func(root string) beneath.Hook) (r *roots, err error) {
	r = &roots{shares: map[string]*beneath.Root{}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	known, err := readKnown(c.DataDir)
	if err != nil {
		return r, err
	}
	for _, root := range c.Roots {
		dir, err := openDir(fmt.Sprintf("root %s", root.ID), root.Path, hookOf(files, root.ID))
		if err != nil {
			return r, err
		}
		r.list = append(r.list, opened{root, dir})
		if err := apart(r.list); err != nil {
			return r, err
		}
		if err := dir.Claim(beneath.Owner{Root: root.ID, Daemon: c.ClientID}, !known[root.ID]); err != nil {
			return r, fmt.Errorf("root %s (%s): %w", root.ID, root.Path, moved(root.ID, err))
		}
		known[root.ID] = true
	}
	for _, s := range c.Shared {
		dir, err := openDir(fmt.Sprintf("shared %s", s.Marker), s.Path, hookOf(files, s.Marker))
		if err != nil {
			return r, err
		}
		r.shares[s.Marker] = dir
	}
	return r, writeKnown(c.DataDir, known)
}

// moved adds what to do about a root of another daemon.
func moved(id string, err error) error {
	if errors.Is(err, beneath.ErrOtherDaemon) {
		return fmt.Errorf("%w; if its disk was moved here for good, take it over: signalbox daemon accept %s", err, id)
	}
	return err
}

func hookOf(files func(root string) beneath.Hook, root string) beneath.Hook {
	if files == nil {
		return nil
	}
	return files(root)
}

// openDir opens a configured directory.
func openDir(what, path string, hook beneath.Hook) (*beneath.Root, error) {
	dir, err := beneath.Open(path, beneath.Options{Hook: hook})
	switch {
	case beneath.IsNotFound(err):
		return nil, fmt.Errorf("%s: there is no directory %s; make it, or mount the file system that holds it", what, path)
	case err != nil:
		return nil, fmt.Errorf("%s (%s): %w", what, path, err)
	}
	return dir, nil
}

// apart refuses the last root of the list if it and another one lie in each other: links on the way, or a second mount of
// the same directory, do not show in the configured paths. A mount of a directory inside another root cannot be seen.
func apart(list []opened) error {
	last := list[len(list)-1]
	for _, other := range list[:len(list)-1] {
		for _, p := range [][2]opened{{last, other}, {other, last}} {
			in, err := liesIn(p[0].Path, p[1].dir)
			if err != nil {
				return fmt.Errorf("root %s (%s): %w", p[0].ID, p[0].Path, err)
			}
			if in {
				return fmt.Errorf("root %s (%s) lies in root %s (%s): a file would have two names; give each root a directory of its own",
					p[0].ID, p[0].Path, p[1].ID, p[1].Path)
			}
		}
	}
	return nil
}

// liesIn reports whether the directory at the path is the root or lies below it.
func liesIn(path string, root *beneath.Root) (bool, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	device, inode := root.Identity()
	for {
		info, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && uint64(st.Dev) == device && st.Ino == inode {
			return true, nil
		}
		up := filepath.Dir(path)
		if up == path {
			return false, nil
		}
		path = up
	}
}

func (r *roots) close() {
	for _, o := range r.list {
		_ = o.dir.Close()
	}
	for _, s := range r.shares {
		_ = s.Close()
	}
}

func notFound(what, id string) error {
	return &beneath.Error{Code: beneath.NotFound, Op: beneath.OpVerify, Path: id, Err: fmt.Errorf("%s is not configured on this machine", what)}
}

// Root implements work.Roots.
func (r *roots) Root(id string) (*beneath.Root, error) {
	for _, o := range r.list {
		if o.ID == id {
			return o.dir, o.dir.Verify()
		}
	}
	return nil, notFound("root "+id, id)
}

// Shared implements work.Roots.
func (r *roots) Shared(marker string) (*beneath.Root, error) {
	dir, ok := r.shares[marker]
	if !ok {
		return nil, notFound("shared outbox "+marker, marker)
	}
	return dir, dir.Verify()
}

// ContentRoots implements work.Roots.
func (r *roots) ContentRoots() []string {
	var ids []string
	for _, o := range r.list {
		if o.Kind == daemonconfig.Content {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// engineRoots is the same for the engine.
func (r *roots) engineRoots() (list []daemon.Root, shares []daemon.Share) {
	for _, o := range r.list {
		list = append(list, daemon.Root{ID: o.ID, Kind: kinds[o.Kind], Open: func() (*beneath.Root, error) { return o.dir, o.dir.Verify() }})
	}
	for marker, dir := range r.shares {
		shares = append(shares, daemon.Share{Marker: marker, Open: func() (*beneath.Root, error) { return dir, dir.Verify() }})
	}
	return list, shares
}

func readKnown(dataDir string) (map[string]bool, error) {
	known := map[string]bool{}
	text, err := os.ReadFile(filepath.Join(dataDir, rootsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	if err := json.Unmarshal(text, &ids); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dataDir, rootsFile), err)
	}
	for _, id := range ids {
		known[id] = true
	}
	return known, nil
}

// writeKnown replaces the file whole: the temporary file is flushed before it gets the name.
func writeKnown(dataDir string, known map[string]bool) error {
	ids := []string{}
	for id := range known {
		ids = append(ids, id)
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	path := filepath.Join(dataDir, rootsFile)
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(temp, path)
}
