package directory

import (
	"context"
	"encoding/hex"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/verify"
)

// ContentTree implements backend.Backend.
func (b *Backend) ContentTree(ctx context.Context, id string, o backend.TreeOptions) (*backend.Tree, error) {
	// A fresh scan, so that shared_with knows every torrent that there is.
	s, err := b.current(ctx, id, true)
	if err != nil {
		return nil, err
	}
	if err := b.complete(ctx, s, o); err != nil {
		return nil, err
	}
	return b.tree(ctx, s)
}

// current is the snapshot of a resource now. If the last scan's place has nothing of it any more, it is looked for anew.
func (b *Backend) current(ctx context.Context, id string, rescan bool) (*snapshot, error) {
	r, err := b.find(ctx, id, rescan)
	if err != nil {
		return nil, err
	}
	s, err := b.snapshot(ctx, r)
	if backend.CodeOf(err) == archivepb.ErrorCode_ERROR_CODE_NOT_FOUND || (err == nil && !s.anythingThere()) {
		if r, err = b.find(ctx, id, true); err != nil {
			return nil, err
		}
		s, err = b.snapshot(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return s, b.verifyRoots()
}

func (s *snapshot) anythingThere() bool {
	return slices.ContainsFunc(s.files, func(f diskFile) bool { return f.there })
}

// complete fills in what is proven, by the cache or by reading.
func (b *Backend) complete(ctx context.Context, s *snapshot, o backend.TreeOptions) error {
	missing, err := b.recall(ctx, s)
	if err != nil || len(missing) == 0 {
		return err
	}
	if o.CachedOnly {
		return backend.Fail("BUSY", "%d of %d files of %q have not been hashed in their present state", len(missing), len(s.files), shown(s.res.name)).
			With("files", len(missing))
	}
	unlock, err := b.hashing.lock(ctx, s.res.id)
	if err != nil {
		return err
	}
	defer unlock()
	if missing, err = b.recall(ctx, s); err != nil || len(missing) == 0 { // another call may have done it
		return err
	}
	return b.hash(ctx, s, missing, o.Progress)
}

// tree makes the answer from a snapshot with all completion known.
func (b *Backend) tree(ctx context.Context, s *snapshot) (*backend.Tree, error) {
	id, err := s.identity()
	if err != nil {
		return nil, err
	}
	if err := s.findHoles(ctx); err != nil {
		return nil, err
	}
	shared, err := b.sharedWith(ctx, s)
	if err != nil {
		return nil, err
	}
	h := &archivepb.ContentTree{
		Resource:          &archivepb.ResourceRef{ResourceId: s.res.id, Identity: id},
		ContentRevision:   b.revision(s, id),
		Totals:            s.totals(),
		BackendState:      s.res.state(s.incomplete() < 0),
		SharedWith:        shared,
		MetainfoAvailable: s.m != nil,
	}
	if s.m != nil {
		h.Torrent = s.m.Facts()
	}
	return &backend.Tree{Header: h, Location: b.location(s.res), Files: &fileList{s: s, revision: h.ContentRevision}}, nil
}

// findHoles looks at the hole maps of files that use less than their size (daemon protocol 7.5: the block count alone
// proves nothing).
func (s *snapshot) findHoles(ctx context.Context) error {
	for i := range s.files {
		f := &s.files[i]
		if !f.there || !f.stat.Mode.IsRegular() || f.stat.Allocated >= f.stat.Size {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if f.sparse, err = s.hasHole(join(s.res.dir, f.path)); err != nil && !beneath.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (s *snapshot) hasHole(name string) (bool, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	var data int64
	err = f.Extents(func(_, n int64) error { data += n; return nil })
	return data < st.Size, err
}

// fileList makes entries from a snapshot.
type fileList struct {
	s        *snapshot
	revision string
}

func (l *fileList) Len() int { return len(l.s.files) }

func (l *fileList) DiskPath(i int) string {
	if l.s.root == nil {
		return ""
	}
	return join(l.s.res.dir, l.s.files[i].path)
}

func (l *fileList) Entry(i int) *archivepb.FileEntry {
	f := &l.s.files[i]
	e := &archivepb.FileEntry{
		Index:           uint32(i),
		Path:            f.path,
		Kind:            f.kind,
		LogicalBytes:    uint64(f.logical),
		CompletedBytes:  uint64(f.completed),
		Selected:        f.selected,
		Sparse:          f.sparse,
		Padding:         f.kind == archivepb.FileKind_FILE_KIND_PADDING,
		DiskBytes:       f.diskBytes(),
		SymlinkTarget:   f.target,
		Present:         f.presence(),
		ContentRevision: l.revision,
	}
	if f.there && f.stat.Mode.IsRegular() {
		e.AllocatedBytes = uint64(f.stat.Allocated)
		e.Mtime = timestamppb.New(f.stat.Mtime())
		e.LinkCount = f.stat.Nlink
	}
	if m := l.s.m; m != nil {
		t, span := &m.Files[i], m.Span(i)
		e.FirstPiece, e.LastPiece = uint32(span.First), uint32(span.Last)
		e.Executable, e.Hidden = t.Executable, t.Hidden
		if t.HasRoot {
			e.PiecesRoot = hex.EncodeToString(t.Root[:])
		}
	} else {
		e.Executable = f.stat.Executable()
	}
	return e
}

// Check implements backend.Backend. Beside the selected files it reads unselected ones that are there, for pieces that
// they share.
func (b *Backend) Check(ctx context.Context, id string, progress func(verify.Progress)) (*backend.CheckResult, error) {
	s, err := b.current(ctx, id, false)
	if err != nil {
		return nil, err
	}
	unlock, err := b.hashing.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := b.recall(ctx, s); err != nil { // marks what has nothing to read
		return nil, err
	}
	var part []int
	for i := range s.files {
		if f := &s.files[i]; s.needed(i) {
			f.known, f.completed = false, 0
			part = append(part, i)
		}
	}
	o := b.o.Verify
	o.Progress = progress
	r, err := b.verifyPart(ctx, s, part, o)
	if err != nil {
		return nil, err
	}
	out := &backend.CheckResult{Verify: b.whole(s, part, r)}
	sid, err := s.identity()
	if err != nil {
		return nil, err
	}
	out.ContentRevision = b.revision(s, sid)
	if out.Verify.FirstBad >= 0 {
		out.Err = s.fault(out.Verify)
	}
	return out, nil
}

// whole is the result over all files of the tree.
func (b *Backend) whole(s *snapshot, part []int, r *verify.Result) *verify.Result {
	if s.m == nil {
		files := make([]verify.FileResult, len(s.files))
		for k, i := range part {
			files[i] = r.Files[k]
		}
		r.Files = files
	}
	for i := range s.files {
		f, got := &s.files[i], &r.Files[i]
		if f.kind != archivepb.FileKind_FILE_KIND_REGULAR || got.State != verify.NotAsked {
			continue
		}
		switch {
		case f.there && f.stat.Size != f.logical:
			got.State, got.Stat = verify.SizeDiffers, f.stat
		case f.there: // has no bytes
			got.State, got.Stat = verify.Complete, f.stat
		case f.selected:
			got.State = verify.Absent
		}
	}
	// The file to blame is selected, and rather wrong by itself than short of a neighbour.
	r.FirstBad = s.incomplete()
	for i := range s.files {
		if s.files[i].selected && r.Files[i].State.Bad() {
			r.FirstBad = i
			break
		}
	}
	return r
}

// fault names the file that keeps a resource from being complete.
func (s *snapshot) fault(r *verify.Result) error {
	c := verify.Content{Torrent: s.m}
	if s.m == nil {
		c.Files = make([]verify.Entry, len(s.files))
		for k := range s.files {
			c.Files[k] = verify.Entry{Path: s.files[k].path, Bytes: s.files[k].logical}
		}
	}
	if i := r.FirstBad; r.Files[i].State == verify.Unproven {
		f := &s.files[i]
		return backend.Fail("RESOURCE_INCOMPLETE", "the file %s shares a piece with a file that is not there", shown(f.path)).With("path", shown(f.path))
	}
	return r.Err(c)
}

// Metainfo implements backend.Backend.
func (b *Backend) Metainfo(ctx context.Context, id string) ([]byte, error) {
	r, err := b.find(ctx, id, false)
	if err != nil {
		return nil, err
	}
	if raw, ok := rawTorrent(r); ok {
		return raw, nil
	}
	if r, err = b.find(ctx, id, true); err != nil {
		return nil, err
	}
	if raw, ok := rawTorrent(r); ok {
		return raw, nil
	}
	return nil, backend.Fail("NOT_FOUND", "there is no torrent file for %q", shown(r.name))
}

// rawTorrent reads the first of a torrent's files that still holds it.
func rawTorrent(r *resource) ([]byte, bool) {
	if r.torrent == nil {
		return nil, false
	}
	for _, f := range r.torrent.files {
		raw, err := f.dir.ReadFile(f.name, torrent.MaxMetainfoBytes)
		if err != nil {
			continue
		}
		if m, err := torrent.Parse(raw); err == nil && torrentID(m) == r.id {
			return raw, true
		}
	}
	return nil, false
}
