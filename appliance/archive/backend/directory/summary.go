package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/torrent"
)

// summary is what a listing says about a resource. What took reading the hash cache is kept for the next listing, as
// long as the stamp is the same.
type summary struct {
	stamp    [sha256.Size]byte
	known    bool // every file is in the hash cache
	complete bool // every selected file is complete
	identity *archivepb.ResourceIdentity
	totals   *archivepb.ContentTotals
	revision string // of the tree as far as it is known

	message *archivepb.ResourceSummary
	trouble string // code and message where there is no tree
}

func hexSum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// summarize describes a resource for a listing. It reads no content; trouble with one resource does not spoil the list.
func (b *Backend) summarize(ctx context.Context, r *resource, s *snapshot, trouble error, last summary) (summary, error) {
	m := &archivepb.ResourceSummary{
		Resource: &archivepb.ResourceRef{ResourceId: r.id, Identity: &archivepb.ResourceIdentity{DisplayName: torrent.DisplayName(shown(r.name))}},
	}
	if r.root >= 0 {
		m.ContentRootId, m.RelativeDir = b.o.Roots[r.root].ID, r.dir
	}
	sum := summary{message: m}
	if r.torrent != nil {
		if mi, err := b.metainfo(r.torrent); err == nil {
			m.Resource.Identity = mi.Identity()
		}
		if side := r.torrent.sidecar(); side != nil {
			m.Category, m.Labels = side.Category, side.Labels
		}
		m.AddedAt = timestamppb.New(r.torrent.files[0].stat.Mtime())
	}
	if trouble != nil {
		m.BackendState = archivepb.BackendState_BACKEND_STATE_ERROR
		d := backend.Detail(trouble)
		sum.trouble = d.GetCode().String() + " " + d.GetMessage()
		return sum, nil
	}
	sum.stamp = s.stamp()
	if last.known && last.stamp == sum.stamp {
		sum.known, sum.complete, sum.identity, sum.totals, sum.revision = true, last.complete, last.identity, last.totals, last.revision
	} else {
		missing, err := b.recall(ctx, s)
		if err != nil {
			return sum, err
		}
		if sum.identity, err = s.identity(); err != nil {
			return sum, err
		}
		sum.known, sum.complete, sum.totals = len(missing) == 0, s.incomplete() < 0, s.totals()
		sum.revision = b.revision(s, sum.identity)
	}
	m.Resource.Identity = sum.identity
	t := sum.totals
	m.LogicalBytes, m.SelectedBytes, m.CompletedSelectedBytes = t.Logical, t.Selected, t.CompletedSelected
	m.FileCount = uint32(t.FileCount)
	m.BackendState = r.state(sum.complete)
	m.PartialSelection = t.Selected < t.Logical
	if sum.known {
		m.ContentRevision = sum.revision
	}
	return sum, nil
}

// identity is that of the torrent, or of the tree if it is known.
func (s *snapshot) identity() (*archivepb.ResourceIdentity, error) {
	if s.m != nil {
		return s.m.Identity(), nil
	}
	fp, err := s.fingerprint()
	return &archivepb.ResourceIdentity{TreeFingerprint: fp, DisplayName: torrent.DisplayName(s.res.name)}, err
}

// totals adds up the tree. logical, selected and completed_selected leave padding out, which has its own sum; file_count
// counts every entry.
func (s *snapshot) totals() *archivepb.ContentTotals {
	t := &archivepb.ContentTotals{FileCount: uint64(len(s.files))}
	for i := range s.files {
		f := &s.files[i]
		if f.kind == archivepb.FileKind_FILE_KIND_PADDING {
			t.Padding += uint64(f.logical)
			continue
		}
		t.Logical += uint64(f.logical)
		if f.selected {
			t.Selected += uint64(f.logical)
			t.CompletedSelected += uint64(f.completed)
		}
		if f.there && f.stat.Mode.IsRegular() {
			t.Allocated += uint64(f.stat.Allocated)
		}
	}
	return t
}

// incomplete returns the first selected file that is not known to be complete, -1 if there is none. Links do not count:
// a policy may leave them out.
func (s *snapshot) incomplete() int {
	for i := range s.files {
		f := &s.files[i]
		if f.kind == archivepb.FileKind_FILE_KIND_REGULAR && f.selected && (!f.usable() || !f.known || f.completed < f.logical) {
			return i
		}
	}
	return -1
}

// state is the backend state (daemon protocol 2.10). A torrent whose file lies in the library, or that was activated
// without one, counts as seeding: whoever watches the library has it.
func (r *resource) state(complete bool) archivepb.BackendState {
	switch {
	case r.torrent == nil:
		return archivepb.BackendState_BACKEND_STATE_NOT_MANAGED
	case !complete:
		return archivepb.BackendState_BACKEND_STATE_STOPPED_INCOMPLETE
	case r.torrent.inLibrary():
		return archivepb.BackendState_BACKEND_STATE_SEEDING
	}
	return archivepb.BackendState_BACKEND_STATE_STOPPED_COMPLETE
}

// location is where the content lies.
func (b *Backend) location(r *resource) backend.Location {
	if r.root < 0 {
		return backend.Location{}
	}
	return backend.Location{RootID: b.o.Roots[r.root].ID, Dir: r.dir}
}

func (b *Backend) revision(s *snapshot, id *archivepb.ResourceIdentity) string {
	r := backend.NewRevision(id, b.location(s.res), 0, 0)
	for i := range s.files {
		f := &s.files[i]
		r.File(backend.RevisionFile{Index: uint32(i), Path: f.path, Kind: f.kind, Logical: uint64(f.logical),
			Completed: uint64(f.completed), Selected: f.selected, Present: f.presence(), DiskBytes: f.diskBytes(), MtimeNS: f.mtime()})
	}
	return r.Sum()
}

func (f *diskFile) presence() archivepb.DiskPresence {
	if f.there {
		return archivepb.DiskPresence_DISK_PRESENCE_FINAL_NAME
	}
	return archivepb.DiskPresence_DISK_PRESENCE_ABSENT
}

// diskBytes and mtime are those of regular files: a link has neither size nor time that matter.
func (f *diskFile) diskBytes() uint64 {
	if !f.there || !f.stat.Mode.IsRegular() {
		return 0
	}
	return uint64(f.stat.Size)
}

func (f *diskFile) mtime() int64 {
	if !f.there || !f.stat.Mode.IsRegular() {
		return 0
	}
	return f.stat.MtimeNS
}
