package directory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io/fs"
	"sort"
	"strings"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
)

// resource is one unit of content and where it lies.
type resource struct {
	id      string
	torrent *torrentRef // nil for a tree
	name    string      // top-level name of the content
	root    int         // index of the content root, -1 if the place is not known
	dir     string      // save directory
	sidecar string      // of a tree below the top: its file in the root
	problem error       // why it has no content tree: ambiguous places
}

// top is the path of the content below its root.
func (r *resource) top() string { return join(r.dir, r.name) }

// index is the outcome of one scan.
type index struct {
	resources map[string]*resource
	order     []*resource // sorted by ID
}

// place is a directory that may hold a torrent's content.
type place struct {
	root int
	dir  string
}

// scan finds all resources. look is called for each with its snapshot, if it has one; nil: snapshots are only made
// where a place must be judged.
func (b *Backend) scan(ctx context.Context, look func(*resource, *snapshot, error) error) (*index, error) {
	if err := b.verifyRoots(); err != nil {
		return nil, err
	}
	f, err := b.findTorrents(ctx)
	if err != nil {
		return nil, err
	}
	places, tops, err := b.walkRoots(ctx, f)
	if err != nil {
		return nil, err
	}
	ix := &index{resources: map[string]*resource{}}
	occupied := map[place]bool{} // tops of located resources and every directory above them
	add := func(r *resource, s *snapshot, err error) error {
		ix.resources[r.id] = r
		ix.order = append(ix.order, r)
		if r.root >= 0 {
			for p := r.top(); ; p = p[:strings.LastIndexByte(p, '/')] {
				occupied[place{r.root, p}] = true
				if !strings.Contains(p, "/") {
					break
				}
			}
		}
		if look == nil {
			return nil
		}
		if s == nil && err == nil {
			s, err = b.snapshot(ctx, r)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return look(r, s, err)
	}
	for _, t := range sorted(f.torrents) {
		r, s, err := b.locate(ctx, t, places[t.name])
		if err != nil {
			return nil, err
		}
		if err := add(r, s, nil); err != nil {
			return nil, err
		}
	}
	for _, t := range f.trees {
		r := &resource{id: treeID(b.o.Roots[t.root].ID, join(t.s.RelativeDir, t.s.Name)), root: t.root, dir: t.s.RelativeDir, name: t.s.Name, sidecar: t.file}
		if ix.resources[r.id] != nil || occupied[place{r.root, r.top()}] {
			continue
		}
		if _, err := b.o.Roots[t.root].Dir.Lstat(r.top()); err != nil {
			continue // the content is gone; its sidecar may stay
		}
		if err := add(r, nil, nil); err != nil {
			return nil, err
		}
	}
	for _, p := range tops {
		if occupied[p] {
			continue
		}
		if err := add(&resource{id: treeID(b.o.Roots[p.root].ID, p.dir), root: p.root, name: p.dir}, nil, nil); err != nil {
			return nil, err
		}
	}
	sort.Slice(ix.order, func(i, j int) bool { return ix.order[i].id < ix.order[j].id })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.index, b.refused = ix, f.refused
	return ix, nil
}

func sorted(torrents map[string]*torrentRef) []*torrentRef {
	out := make([]*torrentRef, 0, len(torrents))
	for _, t := range torrents {
		out = append(out, t)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].id < out[j].id })
	return out
}

// maxPlaces bounds the places that are judged for one torrent name.
const maxPlaces = 64

// walkRoots finds the places of all torrents' names, and the top-level entries of the roots as places whose dir is the
// entry's name.
func (b *Backend) walkRoots(ctx context.Context, f *found) (map[string][]place, []place, error) {
	names := map[string]bool{}
	for _, t := range f.torrents {
		names[t.name] = true
	}
	places := map[string][]place{}
	var tops []place
	for i, r := range b.o.Roots {
		var walk func(dir string, depth int) error
		walk = func(dir string, depth int) error {
			var below []string
			err := r.Dir.ReadDir(dir, func(e beneath.Entry) error {
				if dir == "" && e.Name == controlDir {
					return nil
				}
				if dir == "" && (e.Type == 0 || e.Type.IsDir()) {
					tops = append(tops, place{i, e.Name})
				}
				if names[e.Name] && e.Type&fs.ModeSymlink == 0 && len(places[e.Name]) < maxPlaces {
					places[e.Name] = append(places[e.Name], place{i, dir})
				}
				if e.Type.IsDir() && depth < b.o.SearchDepth && len(names) > 0 && pathrule.Check(join(dir, e.Name)) == nil {
					below = append(below, join(dir, e.Name))
				}
				return nil
			})
			if err != nil {
				return err
			}
			sort.Strings(below)
			for _, d := range below {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := walk(d, depth+1); err != nil && !beneath.IsNotFound(err) && beneath.CodeOf(err) != beneath.PermissionDenied {
					return err
				}
			}
			return nil
		}
		if err := walk("", 0); err != nil {
			return nil, nil, err
		}
	}
	sort.Slice(tops, func(i, j int) bool {
		return tops[i].root < tops[j].root || (tops[i].root == tops[j].root && tops[i].dir < tops[j].dir)
	})
	return places, tops, nil
}

// fit tells how well a place holds a torrent's content.
type fit uint8

const (
	noFit   fit = iota
	partFit     // some files of the right size, none too large
	fullFit     // all files of the right size
)

func (s *snapshot) fit() fit {
	right, wrong := 0, 0
	for i := range s.files {
		f := &s.files[i]
		if f.kind != archivepb.FileKind_FILE_KIND_REGULAR {
			continue
		}
		switch {
		case f.there && f.stat.Size > f.logical:
			return noFit
		case f.there && f.stat.Size == f.logical:
			right++
		default:
			wrong++
		}
	}
	switch {
	case right == 0:
		return noFit
	case wrong == 0:
		return fullFit
	}
	return partFit
}

// locate finds the place of a torrent's content: its sidecar's, or the only one that fits best.
func (b *Backend) locate(ctx context.Context, t *torrentRef, places []place) (*resource, *snapshot, error) {
	r := &resource{id: t.id, torrent: t, name: t.name, root: -1}
	if side := t.sidecar(); side != nil && side.RootID != "" {
		for i := range b.o.Roots {
			if b.o.Roots[i].ID == side.RootID {
				r.root, r.dir = i, side.RelativeDir
			}
		}
		return r, nil, nil
	}
	var best *snapshot
	bestFit, ties := noFit, []place(nil)
	for _, p := range places {
		at := &resource{id: t.id, torrent: t, name: t.name, root: p.root, dir: p.dir}
		s, err := b.snapshot(ctx, at)
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			continue // a place that cannot be read holds nothing that could be used
		}
		switch f := s.fit(); {
		case f == noFit || f < bestFit:
		case f > bestFit:
			best, bestFit, ties = s, f, []place{p}
		default:
			ties = append(ties, p)
		}
	}
	if len(ties) > 1 {
		r.problem = b.ambiguous(t, ties)
		return r, nil, nil
	}
	if best != nil {
		return best.res, best, nil
	}
	return r, nil, nil
}

func (b *Backend) ambiguous(t *torrentRef, ties []place) error {
	var names []string
	for _, p := range ties[:min(len(ties), 10)] {
		names = append(names, b.o.Roots[p.root].ID+":"+shown(join(p.dir, t.name)))
	}
	return backend.Fail("RESOURCE_CONFLICT", "the content of %q was found in %d places that fit equally; say in the torrent's sidecar which one it is",
		shown(t.name), len(ties)).With("places", strings.Join(names, ", "))
}

// ListResources implements backend.Backend.
func (b *Backend) ListResources(ctx context.Context) (*backend.Listing, error) {
	out := &backend.Listing{}
	b.mu.Lock()
	memo := b.memo
	b.mu.Unlock()
	fresh := map[string]summary{}
	_, err := b.scan(ctx, func(r *resource, s *snapshot, err error) error {
		sum, err := b.summarize(ctx, r, s, err, memo[r.id])
		if err != nil {
			return err
		}
		fresh[r.id] = sum
		out.Resources = append(out.Resources, sum.message)
		return nil
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(out.Resources, func(i, j int) bool {
		return out.Resources[i].GetResource().GetResourceId() < out.Resources[j].GetResource().GetResourceId()
	})
	h := sha256.New()
	var n [8]byte
	for _, m := range out.Resources {
		sum := fresh[m.GetResource().GetResourceId()]
		for _, part := range []string{m.GetResource().GetResourceId(), sum.revision, m.GetBackendState().String(), m.GetCategory(), strings.Join(m.GetLabels(), "\x00"), sum.trouble} {
			binary.BigEndian.PutUint64(n[:], uint64(len(part)))
			h.Write(n[:])
			h.Write([]byte(part))
		}
	}
	out.Token = hexSum(h)
	b.mu.Lock()
	b.memo = fresh
	b.mu.Unlock()
	return out, nil
}

// find returns a resource, from the last scan if that knows it.
func (b *Backend) find(ctx context.Context, id string, rescan bool) (*resource, error) {
	b.mu.Lock()
	ix := b.index
	b.mu.Unlock()
	if ix == nil || rescan || ix.resources[id] == nil || ix.resources[id].problem != nil || ix.resources[id].root < 0 {
		var err error
		if ix, err = b.scan(ctx, nil); err != nil {
			return nil, err
		}
	}
	r := ix.resources[id]
	if r == nil {
		return nil, backend.Fail("NOT_FOUND", "there is no resource %q", shown(id)).With("resource_id", shown(id))
	}
	return r, nil
}
