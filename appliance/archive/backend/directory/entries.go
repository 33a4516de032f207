package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/verify"
)

// AddStopped implements backend.Backend. The torrent goes into .archive-control/torrents of the content root, with a
// sidecar; nothing is put into the library. Proven spares hashing for files that are still as they were read.
func (b *Backend) AddStopped(ctx context.Context, a backend.Addition) (string, error) {
	root, err := b.root(a.Location.RootID)
	if err != nil {
		return "", err
	}
	if err := pathrule.CheckDir(a.Location.Dir); err != nil {
		return "", err
	}
	b.change.Lock()
	defer b.change.Unlock()
	if a.Metainfo == nil {
		return b.addTree(ctx, root, a)
	}
	m, err := torrent.Parse(a.Metainfo)
	if err != nil {
		return "", err
	}
	if err := pathrule.Check(join(a.Location.Dir, m.Name)); err != nil {
		return "", err
	}
	id := torrentID(m)
	selected := rangesOf(a.Selected, m)
	ix, err := b.scan(ctx, nil)
	if err != nil {
		return "", err
	}
	if r := ix.resources[id]; r != nil && (r.root >= 0 || r.ownEntry()) {
		if err := b.sameEntry(r, a.Location, selected); err != nil {
			return "", err
		}
		return id, b.learnProven(ctx, id, a.Proven)
	}
	side := &Sidecar{RootID: root.ID, RelativeDir: a.Location.Dir, Selected: selected, Category: a.Category, Labels: a.Labels}
	if err := b.writeEntry(root.Dir, hashOf(id), side, a.Metainfo); err != nil {
		return "", err
	}
	r, err := b.find(ctx, id, true)
	if err == nil {
		err = b.sameEntry(r, a.Location, selected)
	}
	if err != nil {
		return "", fmt.Errorf("read back the torrent that was added: %w", err)
	}
	return id, b.learnProven(ctx, id, a.Proven)
}

func hashOf(id string) string { return strings.TrimPrefix(id, "torrent:") }

// ownEntry tells whether AddStopped made the resource.
func (r *resource) ownEntry() bool {
	return r.torrent != nil && slices.ContainsFunc(r.torrent.files, func(f *torrentFile) bool { return f.from == fromRoot })
}

// sameEntry refuses a resource that exists elsewhere or with another selection.
func (b *Backend) sameEntry(r *resource, l backend.Location, selected [][2]uint32) error {
	at := b.location(r)
	if at != l {
		return backend.Fail("RESOURCE_CONFLICT", "the torrent %q is registered at %s:%s already", shown(r.name), at.RootID, shown(at.Dir)).
			With("root_id", at.RootID).With("path", shown(at.Dir))
	}
	var now [][2]uint32
	if s := r.torrent.sidecar(); s != nil {
		now = s.Selected
	}
	if !slices.Equal(now, selected) || (now == nil) != (selected == nil) {
		return backend.Fail("RESOURCE_CONFLICT", "the torrent %q is registered with another selection already", shown(r.name))
	}
	return nil
}

// writeEntry makes the files of an entry: the sidecar first, so that a torrent file is never there without it. A sidecar
// without a torrent file is what a crash left of an earlier attempt, and is made anew.
func (b *Backend) writeEntry(dir *beneath.Root, hash string, s *Sidecar, raw []byte) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := makeDir(dir, torrentsDir); err != nil {
		return err
	}
	name := torrentsDir + "/" + hash + ".torrent"
	if _, err := dir.Lstat(name); beneath.IsNotFound(err) {
		if same, _ := sameFile(dir, name+".json", data); !same {
			if err := dir.Unlink(name + ".json"); err != nil && !beneath.IsNotFound(err) {
				return err
			}
		}
	}
	if err := placeFile(dir, name+".json", data, 0o600); err != nil {
		return err
	}
	return placeFile(dir, name, raw, 0o600)
}

// addTree registers content without a torrent. At the top of a root it is a resource by itself; elsewhere it needs a
// sidecar.
func (b *Backend) addTree(ctx context.Context, root Root, a backend.Addition) (string, error) {
	top := join(a.Location.Dir, a.Name)
	if err := pathrule.Check(a.Name); err != nil {
		return "", err
	}
	if strings.Contains(a.Name, "/") {
		return "", backend.Fail("INVALID_ARGUMENT", "name: must be one path component")
	}
	if err := pathrule.Check(top); err != nil {
		return "", err
	}
	if a.Selected != nil {
		return "", backend.Fail("INVALID_ARGUMENT", "selected: content without a torrent has no selection")
	}
	if _, err := root.Dir.Lstat(top); err != nil {
		return "", err
	}
	if a.Location.Dir != "" {
		data, err := json.Marshal(&Sidecar{RootID: root.ID, RelativeDir: a.Location.Dir, Name: a.Name})
		if err != nil {
			return "", err
		}
		if err := makeDir(root.Dir, torrentsDir); err != nil {
			return "", err
		}
		id := treeID(root.ID, top)
		if err := placeFile(root.Dir, torrentsDir+"/tree-"+strings.TrimPrefix(id, "tree:")+".json", data, 0o600); err != nil {
			return "", err
		}
	}
	id := treeID(root.ID, top)
	if _, err := b.find(ctx, id, true); err != nil {
		if backend.CodeOf(err) == archivepb.ErrorCode_ERROR_CODE_NOT_FOUND {
			return "", backend.Fail("RESOURCE_CONFLICT", "%s belongs to a torrent already", shown(top)).With("path", shown(top))
		}
		return "", err
	}
	return id, b.learnProven(ctx, id, a.Proven)
}

// learnProven takes over what VERIFY read, for files that are still as they were. Losing some of it costs only time.
func (b *Backend) learnProven(ctx context.Context, id string, r *verify.Result) error {
	if r == nil {
		return nil
	}
	s, err := b.current(ctx, id, false)
	if err != nil {
		return err
	}
	if s.m == nil {
		return b.learnDigests(ctx, s, r)
	}
	if len(r.Files) != len(s.files) {
		return nil
	}
	var part []int
	for i := range s.files {
		got := &r.Files[i]
		if !s.needed(i) {
			continue
		}
		same := got.State != verify.NotAsked && got.State != verify.Changed && hashcache.KeyOf(got.Stat) == hashcache.KeyOf(s.files[i].stat)
		if same {
			part = append(part, i)
		} else if !s.m.Aligned {
			return nil // what shares its pieces was not proven in full
		}
	}
	return b.learn(ctx, s, part, r, false)
}

// learnDigests takes over digests of files without a torrent. Whoever verified may have had another list of files: they
// are told apart by their keys.
func (b *Backend) learnDigests(ctx context.Context, s *snapshot, r *verify.Result) error {
	proven := make(map[hashcache.Key]*verify.FileResult, len(r.Files))
	for i := range r.Files {
		if f := &r.Files[i]; f.Digested && f.State == verify.Complete {
			proven[hashcache.KeyOf(f.Stat)] = f
		}
	}
	sub := &verify.Result{}
	var part []int
	for i := range s.files {
		if f := proven[hashcache.KeyOf(s.files[i].stat)]; f != nil && s.needed(i) {
			part = append(part, i)
			sub.Files = append(sub.Files, *f)
		}
	}
	return b.learn(ctx, s, part, sub, false)
}

// Activate implements backend.Backend: the torrent file goes into the library directory by the atomic procedure, if
// there is one, and a marker says that it was done. With a library every file must be selected: whoever watches it would
// download the others (product rule P3).
func (b *Backend) Activate(ctx context.Context, id string) (archivepb.BackendState, error) {
	none := archivepb.BackendState_BACKEND_STATE_UNSPECIFIED
	proven, err := b.current(ctx, id, true)
	if err != nil {
		return none, err
	}
	if err := b.complete(ctx, proven, backend.TreeOptions{}); err != nil { // may take hours
		return none, err
	}
	b.o.proven()
	b.change.Lock()
	defer b.change.Unlock()
	s, err := b.current(ctx, id, true)
	if err != nil {
		return none, err
	}
	if s.stamp() != proven.stamp() {
		return none, backend.Fail("STALE_FINGERPRINT", "the content of %q changed before it was activated", shown(s.res.name))
	}
	s.files = proven.files
	if s.m == nil {
		return archivepb.BackendState_BACKEND_STATE_NOT_MANAGED, nil
	}
	if i := s.incomplete(); i >= 0 {
		return none, backend.Fail("RESOURCE_INCOMPLETE", "the file %s is not complete", shown(s.files[i].path)).With("path", shown(s.files[i].path))
	}
	if s.res.torrent.active {
		return s.res.state(true), nil
	}
	raw, ok := rawTorrent(s.res)
	if !ok {
		return none, backend.Fail("NOT_FOUND", "there is no torrent file for %q", shown(s.res.name))
	}
	if b.o.Library != nil && !s.res.torrent.inLibrary() {
		for i := range s.files {
			if f := &s.files[i]; f.kind == archivepb.FileKind_FILE_KIND_REGULAR && !f.selected {
				return none, backend.Fail("UNSAFE_STATE", "the file %s is not selected, and a client that watches the library would download it", shown(f.path)).
					With("path", shown(f.path))
			}
		}
		if err := placeFile(b.o.Library, hashOf(id)+".torrent", raw, fs.FileMode(b.o.LibraryMode)); err != nil {
			return none, err
		}
	}
	if err := makeDir(s.root, torrentsDir); err != nil {
		return none, err
	}
	if err := placeFile(s.root, torrentsDir+"/"+hashOf(id)+".active", nil, 0o600); err != nil {
		return none, err
	}
	r, err := b.find(ctx, id, true)
	if err != nil {
		return none, err
	}
	return r.state(true), nil
}

// RemoveEntry implements backend.Backend: every torrent file, sidecar and marker of the resource is renamed into the
// trash area of its content root (.archive-control/trash/<job>), the library's first. Files on another file system than
// the root go to the trash area of the directory they are in. Nothing is deleted.
func (b *Backend) RemoveEntry(ctx context.Context, id, job string) ([]backend.Trashed, error) {
	return b.remove(ctx, id, job, func(entryFile) bool { return true }, func(r *resource) bool { return r.torrent != nil })
}

var _ backend.Unadder = (*Backend)(nil)

// UndoAdd implements backend.Unadder: torrent files in the metainfo directory and the library are never AddStopped's.
func (b *Backend) UndoAdd(ctx context.Context, id, job string) ([]backend.Trashed, error) {
	return b.remove(ctx, id, job, func(e entryFile) bool { return e.from == fromRoot }, (*resource).ownEntry)
}

// remove puts the files of an entry aside that are chosen. remains tells that some of them are still there.
func (b *Backend) remove(ctx context.Context, id, job string, chosen func(entryFile) bool, remains func(*resource) bool) ([]backend.Trashed, error) {
	if err := pathrule.Check(job); err != nil || strings.Contains(job, "/") {
		return nil, backend.Fail("INVALID_ARGUMENT", "job: must be one path component")
	}
	b.change.Lock()
	defer b.change.Unlock()
	r, err := b.find(ctx, id, true)
	if backend.CodeOf(err) == archivepb.ErrorCode_ERROR_CODE_NOT_FOUND {
		return b.trashed(id, job)
	}
	if err != nil {
		return nil, err
	}
	for _, e := range b.entryFiles(r) {
		if !chosen(e) {
			continue
		}
		if err := b.trashFile(r, e, id, job); err != nil {
			return nil, err
		}
	}
	ix, err := b.scan(ctx, nil)
	if err != nil {
		return nil, err
	}
	if left := ix.resources[id]; left != nil && remains(left) {
		return nil, backend.Fail("WRITE_ERROR", "the %s is still there", left.torrent.files[0])
	}
	return b.trashed(id, job)
}

// entryFile is a file that belongs to an entry.
type entryFile struct {
	dir  *beneath.Root
	from origin
	name string
}

// entryFiles lists the files of an entry in the order they are moved: what others watch first, sidecars after their
// torrents.
func (b *Backend) entryFiles(r *resource) []entryFile {
	var out []entryFile
	if r.torrent == nil {
		if r.sidecar != "" {
			out = append(out, entryFile{b.o.Roots[r.root].Dir, fromRoot, r.sidecar})
		}
		return out
	}
	files := slices.Clone(r.torrent.files)
	sort.SliceStable(files, func(i, j int) bool { return files[i].from > files[j].from })
	for _, f := range files {
		out = append(out, entryFile{f.dir, f.from, f.name}, entryFile{f.dir, f.from, f.name + ".json"})
	}
	for _, root := range b.o.Roots {
		out = append(out, entryFile{root.Dir, fromRoot, torrentsDir + "/" + hashOf(r.id) + ".active"})
	}
	return out
}

// entryPrefix begins the names of an entry's files in the trash.
func entryPrefix(id string) string { return "entry-" + id[strings.IndexByte(id, ':')+1:] + "-" }

func (b *Backend) trashFile(r *resource, e entryFile, id, job string) error {
	if _, err := e.dir.Lstat(e.name); err != nil {
		if beneath.IsNotFound(err) {
			return nil
		}
		return err
	}
	// The name ends differently, so that nothing that watches a directory takes it for a torrent file.
	base := entryPrefix(id) + e.from.String() + "-" + path.Base(e.name)
	if len(base) > 230 {
		base = base[:230]
	}
	dirs := []*beneath.Root{e.dir}
	if r.root >= 0 && b.o.Roots[r.root].Dir != e.dir {
		dirs = []*beneath.Root{b.o.Roots[r.root].Dir, e.dir}
	}
	var err error
	for _, to := range dirs {
		if err = moveTo(e.dir, e.name, to, trashDir+"/"+job, base); err == nil || !beneath.IsUnsupported(err) {
			return err
		}
	}
	return err
}

// moveTo renames a file into a directory, under another name if the name is taken.
func moveTo(from *beneath.Root, name string, to *beneath.Root, dir, base string) error {
	if err := makeDir(to, dir); err != nil {
		return err
	}
	for n := 0; ; n++ {
		target := fmt.Sprintf("%s/%s.%d.released", dir, base, n)
		err := from.RenameNoReplace(name, to, target)
		if beneath.CodeOf(err) == beneath.PathConflict && n < 100 {
			continue
		}
		if err != nil {
			return err
		}
		if _, err := to.SyncDir(dir); err != nil {
			return err
		}
		_, err = from.SyncDir(path.Dir(name))
		return err
	}
}

// trashed lists what an entry left in the trash of a job.
func (b *Backend) trashed(id, job string) ([]backend.Trashed, error) {
	if !strings.Contains(id, ":") {
		return nil, nil
	}
	var out []backend.Trashed
	read := func(rootID string, dir *beneath.Root) error {
		err := dir.ReadDir(trashDir+"/"+job, func(e beneath.Entry) error {
			if strings.HasPrefix(e.Name, entryPrefix(id)) {
				out = append(out, backend.Trashed{RootID: rootID, Name: trashDir + "/" + job + "/" + e.Name})
			}
			return nil
		})
		if beneath.IsNotFound(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, r := range b.o.Roots {
		errs = append(errs, read(r.ID, r.Dir))
	}
	for _, d := range []*beneath.Root{b.o.Metainfo, b.o.Library} {
		if d != nil {
			errs = append(errs, read("", d))
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].RootID < out[j].RootID || (out[i].RootID == out[j].RootID && out[i].Name < out[j].Name)
	})
	return out, errors.Join(errs...)
}
