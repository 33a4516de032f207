package torrent

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Facts is the TorrentFacts message (daemon protocol 2.10). v1_layout_aligned is set for pure v2 as well: its files lie
// on piece boundaries by nature.
func (m *Metainfo) Facts() *archivepb.TorrentFacts {
	return &archivepb.TorrentFacts{
		MetaVersion:     m.MetaVersion(),
		PieceBytes:      uint64(m.PieceBytes),
		PieceCount:      uint32(m.Pieces),
		Private:         m.Private,
		Name:            m.Name,
		MultiFile:       m.MultiFile,
		HasPadding:      m.HasPadding,
		V1LayoutAligned: m.Aligned,
	}
}

// Identity is the resource identity of the torrent: both infohashes as far as it has them, and its name, cut to the 512
// bytes a display name may have.
func (m *Metainfo) Identity() *archivepb.ResourceIdentity {
	return &archivepb.ResourceIdentity{InfohashV1: m.V1Hex(), InfohashV2: m.V2Hex(), DisplayName: DisplayName(m.Name)}
}

// DisplayName cuts a name to 512 bytes without splitting a character.
func DisplayName(name string) string {
	const most = 512
	if len(name) <= most {
		return name
	}
	cut := most
	for cut > 0 && name[cut]&0xc0 == 0x80 {
		cut--
	}
	return name[:cut]
}

// TreeFingerprint computes the identity of content without a torrent (daemon protocol 2.4, tree_fingerprint): SHA-256
// over path, size and file digest of all files. Files are added in ascending byte order of their paths; each gives
//
//	8 bytes  length of the path in bytes, big-endian
//	n bytes  the path: relative to the save directory, "/"-separated, beginning with the resource's own name
//	8 bytes  size in bytes, big-endian; all ones for a symbolic link
//	32 bytes SHA-256 of the content; for a symbolic link, of its target's path written in the same form as a path
//
// There is nothing before, between or after the files. Empty directories, times, modes and padding have no part in it.
type TreeFingerprint struct {
	sum  hash.Hash
	last string
	n    int
	err  error
}

// NewTreeFingerprint begins a fingerprint.
func NewTreeFingerprint() *TreeFingerprint { return &TreeFingerprint{sum: sha256.New()} }

// File adds a regular file.
func (t *TreeFingerprint) File(path string, size uint64, digest [32]byte) { t.add(path, size, digest) }

// Symlink adds a symbolic link.
func (t *TreeFingerprint) Symlink(path, target string) {
	t.add(path, ^uint64(0), sha256.Sum256([]byte(target)))
}

func (t *TreeFingerprint) add(path string, size uint64, digest [32]byte) {
	if t.n > 0 && path <= t.last && t.err == nil {
		t.err = fault.New(fault.Internal, "tree fingerprint: %q is added after %q", path, t.last)
	}
	t.n, t.last = t.n+1, path
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(len(path)))
	t.sum.Write(b[:])
	t.sum.Write([]byte(path))
	binary.BigEndian.PutUint64(b[:], size)
	t.sum.Write(b[:])
	t.sum.Write(digest[:])
}

// Sum returns the fingerprint in lowercase hexadecimal. It fails if files were not added in order, each once.
func (t *TreeFingerprint) Sum() (string, error) {
	if t.err != nil {
		return "", t.err
	}
	return hex.EncodeToString(t.sum.Sum(nil)), nil
}
