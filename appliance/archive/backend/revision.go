package backend

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"signalbox/appliance/archive/archivepb"
)

// Revision computes a content_revision (daemon protocol 5.4): SHA-256 over all in a content tree that a plan depends on.
// What is volatile (ratios, peers, allocated bytes, link count, access and change times) is left out, so seeding does
// not change it. Strings are written as 8 bytes of length, big-endian, and their bytes; numbers as 8 bytes, big-endian;
// booleans as the numbers 0 and 1:
//
//	infohash_v1, infohash_v2, tree_fingerprint
//	content root ID, save directory (the mapping of the backend's save path)
//	partfile size, partfile mtime in ns (0 and 0 without one)
//	then per file in index order: index, path, kind, logical size, completed bytes, selected, present, size on disk,
//	mtime in ns
type Revision struct {
	sum hash.Hash
	b   []byte
}

// NewRevision begins a revision.
func NewRevision(id *archivepb.ResourceIdentity, l Location, partfileBytes uint64, partfileMtimeNS int64) *Revision {
	r := &Revision{sum: sha256.New()}
	r.text(id.GetInfohashV1())
	r.text(id.GetInfohashV2())
	r.text(id.GetTreeFingerprint())
	r.text(l.RootID)
	r.text(l.Dir)
	r.number(partfileBytes)
	r.number(uint64(partfileMtimeNS))
	return r
}

// RevisionFile is what a revision holds of one file.
type RevisionFile struct {
	Index     uint32
	Path      string
	Kind      archivepb.FileKind
	Logical   uint64
	Completed uint64
	Selected  bool
	Present   archivepb.DiskPresence
	DiskBytes uint64
	MtimeNS   int64
}

// File adds the next file, in index order.
func (r *Revision) File(f RevisionFile) {
	r.number(uint64(f.Index))
	r.text(f.Path)
	r.number(uint64(f.Kind))
	r.number(f.Logical)
	r.number(f.Completed)
	if f.Selected {
		r.number(1)
	} else {
		r.number(0)
	}
	r.number(uint64(f.Present))
	r.number(f.DiskBytes)
	r.number(uint64(f.MtimeNS))
	if len(r.b) > 32<<10 {
		r.flush()
	}
}

// Sum returns the revision in lowercase hexadecimal.
func (r *Revision) Sum() string {
	r.flush()
	return hex.EncodeToString(r.sum.Sum(nil))
}

func (r *Revision) text(s string) {
	r.number(uint64(len(s)))
	r.b = append(r.b, s...)
}

func (r *Revision) number(n uint64) { r.b = binary.BigEndian.AppendUint64(r.b, n) }

func (r *Revision) flush() {
	r.sum.Write(r.b)
	r.b = r.b[:0]
}
