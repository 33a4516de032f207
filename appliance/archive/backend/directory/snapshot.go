package directory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io/fs"
	"path"
	"sort"
	"strings"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/archive/torrent"
)

// diskFile is one entry of a content tree with what the file system says about it.
type diskFile struct {
	path      string // from the save directory
	kind      archivepb.FileKind
	logical   int64
	selected  bool
	there     bool // a regular file or the right link stands under the name
	sparse    bool
	stat      beneath.Stat
	target    string
	completed int64
	known     bool // completed, and for a tree digest, are known
	digest    [sha256.Size]byte
}

// usable tells whether the file's bytes may be the torrent's.
func (f *diskFile) usable() bool { return f.there && f.stat.Size <= f.logical }

// snapshot is the state of one resource at one time.
type snapshot struct {
	res   *resource
	m     *torrent.Metainfo // nil for a tree
	root  *beneath.Root     // nil if the place is not known
	files []diskFile
}

// snapshot looks at all files of a resource at a place.
func (b *Backend) snapshot(ctx context.Context, r *resource) (*snapshot, error) {
	s := &snapshot{res: r}
	if r.problem != nil {
		return nil, r.problem
	}
	if r.root >= 0 {
		s.root = b.o.Roots[r.root].Dir
	}
	if r.torrent == nil {
		return s, s.readTree(ctx)
	}
	m, err := b.metainfo(r.torrent)
	if err != nil {
		return nil, err
	}
	s.m = m
	return s, s.readTorrent(ctx, r.torrent.sidecar())
}

func (s *snapshot) readTorrent(ctx context.Context, side *Sidecar) error {
	s.files = make([]diskFile, len(s.m.Files))
	for i := range s.m.Files {
		t, f := &s.m.Files[i], &s.files[i]
		f.path, f.logical, f.target = t.Path, t.Bytes, t.Target
		f.selected = t.Kind != torrent.Padding && side.selects(i)
		switch t.Kind {
		case torrent.Padding:
			f.kind = archivepb.FileKind_FILE_KIND_PADDING
		case torrent.Symlink:
			f.kind = archivepb.FileKind_FILE_KIND_SYMLINK
		default:
			f.kind = archivepb.FileKind_FILE_KIND_REGULAR
		}
		if s.root == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.look(f); err != nil {
			return err
		}
	}
	return nil
}

// look describes what stands under the name of a torrent's file.
func (s *snapshot) look(f *diskFile) error {
	name := join(s.res.dir, f.path)
	stat, err := s.root.Lstat(name)
	if beneath.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err // also a link among the directories: PATH_UNSAFE
	}
	switch {
	case f.kind == archivepb.FileKind_FILE_KIND_SYMLINK:
		if stat.Mode&fs.ModeSymlink == 0 {
			return nil
		}
		text, err := s.root.Readlink(name)
		if err != nil || text != torrent.LinkText(f.path, f.target) {
			return nil
		}
	case !stat.Mode.IsRegular():
		return nil
	}
	f.there, f.stat = true, stat
	return nil
}

// maxTreeDepth bounds the directories below a top-level entry: no deeper path could be named anyway.
const maxTreeDepth = pathrule.MaxPath / 2

// readTree lists a top-level entry without following links, sorted by path.
func (s *snapshot) readTree(ctx context.Context) error {
	top := join(s.res.dir, s.res.name)
	stat, err := s.root.Lstat(top)
	if err != nil {
		return err
	}
	if !stat.Mode.IsDir() {
		err = s.addTreeFile(s.res.name, stat)
	} else {
		err = s.readDir(ctx, s.res.name, 0)
	}
	if err != nil {
		return err
	}
	if len(s.files) == 0 {
		return backend.Fail("RESOURCE_INCOMPLETE", "the directory %q holds no files", s.res.name).With("path", shown(s.res.name))
	}
	sort.Slice(s.files, func(i, j int) bool { return s.files[i].path < s.files[j].path })
	return nil
}

func (s *snapshot) readDir(ctx context.Context, dir string, depth int) error {
	if depth > maxTreeDepth {
		return backend.Fail("PATH_UNSAFE", "the directory %q is too deep", shown(dir)).With("path", shown(dir))
	}
	var names []beneath.Entry
	err := s.root.ReadDir(join(s.res.dir, dir), func(e beneath.Entry) error {
		if len(s.files)+len(names) > torrent.MaxFiles {
			return tooManyFiles(s.res.name)
		}
		names = append(names, e)
		return nil
	})
	if err != nil {
		return err
	}
	for _, e := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := dir + "/" + e.Name
		if e.Type.IsDir() {
			if err := s.readDir(ctx, p, depth+1); err != nil {
				return err
			}
			continue
		}
		stat, err := s.root.Lstat(join(s.res.dir, p))
		if err != nil {
			if beneath.IsNotFound(err) {
				continue
			}
			return err
		}
		if err := s.addTreeFile(p, stat); err != nil {
			return err
		}
	}
	return nil
}

func tooManyFiles(name string) error {
	return backend.Fail("LIMIT_EXCEEDED", "%q has more than %d files", shown(name), torrent.MaxFiles).With("path", shown(name))
}

func (s *snapshot) addTreeFile(p string, stat beneath.Stat) error {
	if err := pathrule.Check(p); err != nil {
		return err
	}
	if len(s.files) >= torrent.MaxFiles {
		return tooManyFiles(s.res.name)
	}
	f := diskFile{path: p, selected: true, there: true, stat: stat}
	switch {
	case stat.Mode.IsRegular():
		f.kind, f.logical, f.completed = archivepb.FileKind_FILE_KIND_REGULAR, stat.Size, stat.Size
	case stat.Mode&fs.ModeSymlink != 0:
		f.kind = archivepb.FileKind_FILE_KIND_SYMLINK
		text, err := s.root.Readlink(join(s.res.dir, p))
		if err != nil {
			return err
		}
		f.target = resolveLink(p, text)
		if err := pathrule.CheckSymlink(p, f.target); err != nil {
			return backend.Fail("PATH_UNSAFE", "the symbolic link %q leads out of its tree", shown(p)).With("path", shown(p))
		}
		f.known = true
	default:
		return backend.Fail("UNSUPPORTED_FORMAT", "%q is neither a file nor a directory", shown(p)).With("path", shown(p))
	}
	s.files = append(s.files, f)
	return nil
}

// resolveLink turns a link's text into a path from the save directory; "" if it leaves it.
func resolveLink(link, text string) string {
	if strings.HasPrefix(text, "/") {
		return ""
	}
	target := path.Join(path.Dir(link), text)
	if target == ".." || strings.HasPrefix(target, "../") {
		return ""
	}
	return target
}

func shown(p string) string {
	p = strings.ToValidUTF8(p, "\uFFFD")
	if len(p) > 1000 {
		p = strings.ToValidUTF8(p[:1000], "")
	}
	return p
}

// stamp is a digest over everything about the files that the hash cache's keys hold: equal stamps mean that what is
// known about the resource still holds.
func (s *snapshot) stamp() [sha256.Size]byte {
	h := sha256.New()
	b := append([]byte(s.res.id), 0, byte(s.res.root), byte(s.res.root>>8))
	h.Write(append(b, s.res.dir...))
	for i := range s.files {
		f := &s.files[i]
		b = append(b[:0], 0)
		b = append(b, f.path...)
		b = append(b, 0, byte(f.kind), boolByte(f.there), boolByte(f.selected))
		b = appendKey(b, hashcache.KeyOf(f.stat))
		b = append(b, f.target...)
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendKey(b []byte, k hashcache.Key) []byte {
	for _, n := range [...]uint64{k.Device, k.Inode, uint64(k.Size), uint64(k.MtimeNS), uint64(k.CtimeNS)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}
