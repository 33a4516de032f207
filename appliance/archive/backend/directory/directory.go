// Package directory is the backend for plain directories: content roots, torrent files that lie beside them, and no
// torrent client (daemon protocol 8.2).
//
// # Where torrents come from
//
// Torrent files are read from three places: the metainfo directory and the library directory, if configured, and the
// directory .archive-control/torrents of each content root, where AddStopped puts its own. A file X.torrent may have a
// sidecar X.torrent.json with its place, selection, category and labels (see Sidecar). Torrent files that are refused
// are named in Listing-independent form by Refused.
//
// # Where content is
//
// A torrent without a place in its sidecar is looked for by name in every directory of the roots down to SearchDepth. A
// place fits if no file there is larger than the torrent says and at least one has the right size; the place where all
// have the right size wins. Two places that fit equally are ambiguous: the resource is listed in state ERROR without a
// place, and its content tree fails with RESOURCE_CONFLICT and names them.
//
// A top-level entry of a root in which no torrent was found is a resource of its own. Its identity is the tree
// fingerprint; it needs the digest of every file, so it is known once ContentTree or Check has read them, and as long as
// the hash cache knows the files. A top-level directory with torrents somewhere below is not a resource.
//
// # What is never done
//
// Symbolic links are not followed. Names beginning with .archive-control at the top of a root are not content. Content is
// only read. What this package writes is: torrent files, sidecars and markers of its own, by the atomic procedure, and
// renames of torrent files into a trash area by RemoveEntry.
package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"sync"
	"time"

	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/verify"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// Root is a content root: an open directory with its configured ID.
type Root struct {
	ID  string
	Dir *beneath.Root
}

// Options say what a backend works on. The directories stay the caller's, who closes them after the last call.
type Options struct {
	Roots    []Root
	Metainfo *beneath.Root // nil: none
	Library  *beneath.Root // nil: Activate only records that a resource is active
	// LibraryMode is the mode of torrent files in the library directory; 0: 0600. They may hold private announce keys.
	LibraryMode uint32
	Cache       hashcache.Cache // nil: one in memory
	Clock       clock.Clock     // nil: the system's
	// QuietTime is the time between the two scans of Quiesce; 0: 5 s.
	QuietTime time.Duration
	// CheckOpenFiles makes Quiesce look into /proc for processes that have a file open for writing. Only processes that
	// this one may inspect are seen.
	CheckOpenFiles bool
	// SearchDepth is how deep below a root the directory may lie that holds a torrent's content; 0: 3. Negative: only
	// the root itself.
	SearchDepth int
	// Verify limits reading: BytesPerSecond, Readers and BufferBytes are used.
	Verify verify.Options

	// For tests.
	proc   string // "": /proc
	proven func() // called by Activate between the proof and the effect
}

// Backend implements backend.Backend. It is safe for concurrent use.
type Backend struct {
	o        Options
	torrents *torrentCache
	change   sync.Mutex // held while files of the backend's own are written or moved
	hashing  keyLock    // by resource: content is hashed by one call at a time

	mu      sync.Mutex
	index   *index             // of the last scan; nil: none yet
	memo    map[string]summary // by resource
	refused []error
}

const (
	controlDir   = pathrule.ControlDir
	torrentsDir  = controlDir + "/torrents"
	trashDir     = controlDir + "/trash"
	defaultDepth = 3
	defaultQuiet = 5 * time.Second
)

var _ backend.Backend = (*Backend)(nil)

// New makes a backend. It reads nothing yet.
func New(o Options) (*Backend, error) {
	if len(o.Roots) == 0 {
		return nil, fault.Field("roots", "at least one content root is needed")
	}
	seen := map[string]bool{}
	for _, r := range o.Roots {
		if r.ID == "" || r.Dir == nil {
			return nil, fault.Field("roots", "a content root needs an ID and a directory")
		}
		if seen[r.ID] {
			return nil, fault.Field("roots", "the ID %q is given twice", r.ID)
		}
		seen[r.ID] = true
	}
	if o.Cache == nil {
		o.Cache = hashcache.NewMemory()
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.QuietTime <= 0 {
		o.QuietTime = defaultQuiet
	}
	if o.SearchDepth == 0 {
		o.SearchDepth = defaultDepth
	}
	if o.LibraryMode == 0 {
		o.LibraryMode = 0o600
	}
	if o.proc == "" {
		o.proc = "/proc"
	}
	if o.proven == nil {
		o.proven = func() {}
	}
	o.Verify = verify.Options{BytesPerSecond: o.Verify.BytesPerSecond, Readers: o.Verify.Readers,
		BufferBytes: o.Verify.BufferBytes, Clock: o.Clock}
	return &Backend{o: o, torrents: newTorrentCache(), memo: map[string]summary{}}, nil
}

// Describe implements backend.Backend. It fails with UNAVAILABLE when a root is not what it was when it was opened.
func (b *Backend) Describe(context.Context) (backend.Description, error) {
	if err := b.verifyRoots(); err != nil {
		return backend.Description{}, err
	}
	return backend.Description{
		Kind:             "directory",
		Version:          "1",
		Capabilities:     []string{"backend.export_metainfo", "content.v2", "verify.pieces"},
		MaxFiles:         torrent.MaxFiles,
		SparseUnselected: true,
	}, nil
}

func (b *Backend) verifyRoots() error {
	for _, r := range b.o.Roots {
		if err := r.Dir.Verify(); err != nil {
			return err
		}
	}
	for _, d := range []*beneath.Root{b.o.Metainfo, b.o.Library} {
		if d == nil {
			continue
		}
		if err := d.Verify(); err != nil {
			return err
		}
	}
	return nil
}

// Refused returns why torrent files and sidecars were refused in the last scan, at most 100, each by its name.
func (b *Backend) Refused() []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]error(nil), b.refused...)
}

// MapPath implements backend.Backend: backend paths are absolute paths as the roots are configured.
func (b *Backend) MapPath(backendPath string) (backend.Location, error) {
	clean := path.Clean(backendPath)
	best, found := backend.Location{}, -1
	for _, r := range b.o.Roots {
		dir := path.Clean(r.Dir.Dir())
		if len(dir) <= found {
			continue
		}
		if clean == dir {
			best, found = backend.Location{RootID: r.ID}, len(dir)
		} else if below, ok := strings.CutPrefix(clean, strings.TrimSuffix(dir, "/")+"/"); ok {
			best, found = backend.Location{RootID: r.ID, Dir: below}, len(dir)
		}
	}
	if found < 0 || !strings.HasPrefix(backendPath, "/") {
		return backend.Location{}, backend.Fail("PATH_UNMAPPED", "the path %q is below no content root", backendPath).With("path", backendPath)
	}
	if err := pathrule.CheckDir(best.Dir); err != nil {
		return backend.Location{}, err
	}
	return best, nil
}

// UnmapPath implements backend.Backend.
func (b *Backend) UnmapPath(l backend.Location) (string, error) {
	r, err := b.root(l.RootID)
	if err != nil {
		return "", err
	}
	if err := pathrule.CheckDir(l.Dir); err != nil {
		return "", err
	}
	return path.Join(path.Clean(r.Dir.Dir()), l.Dir), nil
}

func (b *Backend) root(id string) (Root, error) {
	for _, r := range b.o.Roots {
		if r.ID == id {
			return r, nil
		}
	}
	return Root{}, backend.Fail("PATH_UNMAPPED", "there is no content root %q", id).With("root_id", id)
}

// torrentID and treeID make resource IDs.
func torrentID(m *torrent.Metainfo) string {
	if m.HasV1 {
		return "torrent:" + m.V1Hex()
	}
	return "torrent:" + m.V2Hex()
}

func treeID(rootID, place string) string {
	h := sha256.Sum256([]byte(rootID + "\x00" + place))
	return "tree:" + hex.EncodeToString(h[:20])
}

// join puts a directory and a name together; the directory may be empty.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// keyLock lets one holder a key at a time.
type keyLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock waits for the key; the function returned gives it back.
func (k *keyLock) lock(ctx context.Context, key string) (func(), error) {
	for {
		k.mu.Lock()
		if k.held == nil {
			k.held = map[string]chan struct{}{}
		}
		wait, taken := k.held[key]
		if !taken {
			mine := make(chan struct{})
			k.held[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
