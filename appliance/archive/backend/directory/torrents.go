package directory

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"sort"
	"strings"
	"sync"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/archive/torrent"
)

// Sidecar is the JSON file X.torrent.json beside X.torrent, and tree-*.json for content without a torrent that does not
// lie at the top of its root.
type Sidecar struct {
	// RootID and RelativeDir say where the content lies; without RootID it is searched for. In the directory of a
	// content root itself RootID must be that of the root.
	RootID      string `json:"root_id,omitempty"`
	RelativeDir string `json:"relative_dir,omitempty"`
	// Name is the top-level name of content without a torrent.
	Name string `json:"name,omitempty"`
	// Selected lists ranges of indices, both ends included; absent: all.
	Selected [][2]uint32 `json:"selected,omitempty"`
	Category string      `json:"category,omitempty"`
	Labels   []string    `json:"labels,omitempty"`
}

const maxSidecar = 4 << 20

func parseSidecar(b []byte) (*Sidecar, error) {
	var s Sidecar
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("it is not valid")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is data after the object")
	}
	if err := pathrule.CheckDir(s.RelativeDir); err != nil {
		return nil, err
	}
	if s.Name != "" {
		if err := pathrule.Check(join(s.RelativeDir, s.Name)); err != nil {
			return nil, err
		}
	}
	for i, r := range s.Selected {
		if r[0] > r[1] || (i > 0 && r[0] <= s.Selected[i-1][1]) {
			return nil, fmt.Errorf("selected must be ascending ranges that do not overlap")
		}
	}
	return &s, nil
}

// selects tells whether a sidecar selects an index.
func (s *Sidecar) selects(i int) bool {
	if s == nil || s.Selected == nil {
		return true
	}
	n := sort.Search(len(s.Selected), func(k int) bool { return int64(s.Selected[k][1]) >= int64(i) })
	return n < len(s.Selected) && int64(s.Selected[n][0]) <= int64(i)
}

// rangesOf turns an index set of the protocol into a sidecar's ranges. A set that holds every file is the same as none.
func rangesOf(set *archivepb.IndexSet, m *torrent.Metainfo) [][2]uint32 {
	if set == nil {
		return nil
	}
	s := &Sidecar{Selected: [][2]uint32{}}
	for _, r := range set.GetRanges() {
		s.Selected = append(s.Selected, [2]uint32{r.GetFirst(), r.GetLast()})
	}
	for i, f := range m.Files {
		if f.Kind != torrent.Padding && !s.selects(i) {
			return s.Selected
		}
	}
	return nil
}

// origin is where a torrent file lies.
type origin uint8

const (
	fromRoot origin = iota // .archive-control/torrents of a content root: the backend's own
	fromMetainfo
	fromLibrary
)

func (o origin) String() string { return [...]string{"torrents", "metainfo", "library"}[o] }

// torrentFile is one torrent file as it was found.
type torrentFile struct {
	from    origin
	dir     *beneath.Root
	rootID  string // of fromRoot
	name    string // relative to dir
	stat    beneath.Stat
	sidecar *Sidecar
}

func (f *torrentFile) String() string { return f.from.String() + " file " + path.Base(f.name) }

// torrentRef is a torrent with all its files.
type torrentRef struct {
	id     string
	name   string // top-level name of the content
	files  []*torrentFile
	active bool // a marker says that it was activated
}

func (t *torrentRef) sidecar() *Sidecar {
	for _, f := range t.files {
		if f.sidecar != nil {
			return f.sidecar
		}
	}
	return nil
}

func (t *torrentRef) inLibrary() bool {
	for _, f := range t.files {
		if f.from == fromLibrary {
			return true
		}
	}
	return t.active
}

// found is what the torrent directories hold.
type found struct {
	torrents map[string]*torrentRef
	trees    []treeSidecar
	refused  []error
}

type treeSidecar struct {
	root int
	file string
	s    *Sidecar
}

const maxRefused = 100

func (f *found) refuse(what string, err error) {
	if len(f.refused) < maxRefused {
		d := backend.Detail(err)
		reason := d.GetMessage()
		if d.GetCode() == archivepb.ErrorCode_ERROR_CODE_INTERNAL {
			reason = err.Error()
		}
		f.refused = append(f.refused, fmt.Errorf("%s is refused: %s", what, reason))
	}
}

// findTorrents reads all torrent directories.
func (b *Backend) findTorrents(ctx context.Context) (*found, error) {
	f := &found{torrents: map[string]*torrentRef{}}
	markers := map[string]bool{}
	for i, r := range b.o.Roots {
		err := b.readTorrentDir(ctx, f, torrentFile{from: fromRoot, dir: r.Dir, rootID: r.ID}, torrentsDir, func(name string) {
			if hash, ok := strings.CutSuffix(name, ".active"); ok {
				markers["torrent:"+hash] = true
			}
			if strings.HasPrefix(name, "tree-") && strings.HasSuffix(name, ".json") {
				b.readTreeSidecar(f, i, torrentsDir+"/"+name)
			}
		})
		if err != nil && !beneath.IsNotFound(err) {
			return nil, err
		}
	}
	if b.o.Metainfo != nil {
		if err := b.readTorrentDir(ctx, f, torrentFile{from: fromMetainfo, dir: b.o.Metainfo}, "", nil); err != nil {
			return nil, err
		}
	}
	if b.o.Library != nil {
		if err := b.readTorrentDir(ctx, f, torrentFile{from: fromLibrary, dir: b.o.Library}, "", nil); err != nil {
			return nil, err
		}
	}
	for id := range markers {
		if t := f.torrents[id]; t != nil {
			t.active = true
		}
	}
	return f, nil
}

func (b *Backend) readTreeSidecar(f *found, root int, name string) {
	r := b.o.Roots[root]
	raw, err := r.Dir.ReadFile(name, maxSidecar)
	if err == nil {
		var s *Sidecar
		if s, err = parseSidecar(raw); err == nil && (s.Name == "" || s.RootID != r.ID) {
			err = fmt.Errorf("it has no name or names another root")
		}
		if err == nil {
			f.trees = append(f.trees, treeSidecar{root: root, file: name, s: s})
			return
		}
	}
	f.refuse("the file "+name, err)
}

// readTorrentDir adds the torrent files of one directory, in order of their names; other hears of other names.
func (b *Backend) readTorrentDir(ctx context.Context, f *found, proto torrentFile, dir string, other func(string)) error {
	var names []string
	err := proto.dir.ReadDir(dir, func(e beneath.Entry) error {
		if e.Type == 0 && strings.HasSuffix(e.Name, ".torrent") && !strings.HasPrefix(e.Name, tempPrefix) {
			names = append(names, e.Name)
		} else if e.Type == 0 && other != nil {
			other(e.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sort.Strings(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		file := proto
		file.name = join(dir, name)
		b.addTorrent(f, &file)
	}
	return nil
}

func (b *Backend) addTorrent(f *found, file *torrentFile) {
	m, stat, err := b.torrents.load(file)
	file.stat = stat
	if err != nil {
		f.refuse("the "+file.String(), err)
		return
	}
	raw, err := file.dir.ReadFile(file.name+".json", maxSidecar)
	if err == nil {
		if file.sidecar, err = parseSidecar(raw); err == nil && file.from == fromRoot && file.sidecar.RootID != file.rootID {
			err = fmt.Errorf("it names another root")
		}
		if err == nil && file.sidecar.RootID != "" {
			_, err = b.root(file.sidecar.RootID)
		}
	} else if beneath.IsNotFound(err) {
		err = nil
	}
	if err != nil {
		f.refuse("the sidecar of the "+file.String(), err)
		return
	}
	id := torrentID(m)
	t := f.torrents[id]
	if t == nil {
		t = &torrentRef{id: id, name: m.Name}
		f.torrents[id] = t
	}
	t.files = append(t.files, file)
}

// metainfo reads the torrent again, from the first of its files that still says the same.
func (b *Backend) metainfo(t *torrentRef) (*torrent.Metainfo, error) {
	var last error
	for _, f := range t.files {
		m, _, err := b.torrents.load(f)
		if err == nil && torrentID(m) == t.id {
			return m, nil
		}
		last = err
	}
	if last == nil || beneath.IsNotFound(last) {
		return nil, backend.Fail("NOT_FOUND", "the torrent file of %q is gone or was replaced", t.name)
	}
	return nil, last
}

// torrentCache keeps parsed torrent files up to a budget of memory.
type torrentCache struct {
	mu    sync.Mutex
	byKey map[hashcache.Key]*list.Element
	order list.List // of *cachedTorrent, the latest in front
	bytes int
}

type cachedTorrent struct {
	key   hashcache.Key
	m     *torrent.Metainfo
	bytes int
}

const torrentBudget = 64 << 20

func newTorrentCache() *torrentCache { return &torrentCache{byKey: map[hashcache.Key]*list.Element{}} }

// load reads and parses a torrent file and describes it.
func (c *torrentCache) load(f *torrentFile) (*torrent.Metainfo, beneath.Stat, error) {
	stat, err := f.dir.Lstat(f.name)
	if err != nil {
		return nil, stat, err
	}
	key := hashcache.KeyOf(stat)
	if m := c.get(key); m != nil {
		return m, stat, nil
	}
	raw, err := f.dir.ReadFile(f.name, torrent.MaxMetainfoBytes)
	if err != nil {
		return nil, stat, err
	}
	m, err := torrent.Parse(raw)
	if err != nil {
		return nil, stat, err
	}
	c.keep(&cachedTorrent{key: key, m: m, bytes: len(raw) + 250*len(m.Files)})
	return m, stat, nil
}

func (c *torrentCache) get(key hashcache.Key) *torrent.Metainfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedTorrent).m
}

func (c *torrentCache) keep(t *cachedTorrent) {
	if t.bytes > torrentBudget/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[t.key] != nil {
		return
	}
	c.byKey[t.key] = c.order.PushFront(t)
	c.bytes += t.bytes
	for c.bytes > torrentBudget {
		old := c.order.Remove(c.order.Back()).(*cachedTorrent)
		delete(c.byKey, old.key)
		c.bytes -= old.bytes
	}
}
