// Package hashcache remembers what reading a file has proven, for as long as the file is untouched (daemon protocol 8.2:
// cached by device, inode, size, mtime and ctime).
package hashcache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/fault"
)

// Key names one state of one file. Whatever changes the file changes its key: content, and also links, modes and owners,
// by the ctime.
type Key struct {
	Device, Inode uint64
	Size          int64
	MtimeNS       int64
	CtimeNS       int64
}

// KeyOf is the key of a file as the file system describes it.
func KeyOf(s beneath.Stat) Key {
	return Key{Device: s.Dev, Inode: s.Ino, Size: s.Size, MtimeNS: s.MtimeNS, CtimeNS: s.CtimeNS}
}

// Proof is what was proven about a file's place in a torrent.
type Proof struct {
	// Scope names the torrent, the file in it, and the state of all files that the proof rests on.
	Scope [sha256.Size]byte
	// GoodBytes counts the bytes in good pieces.
	GoodBytes int64
}

// maxProofs is how many torrents one file can be proven for at a time; the oldest goes first.
const maxProofs = 4

// Value is what is known about a file in the state of its key.
type Value struct {
	SHA256   [sha256.Size]byte
	Digested bool // SHA256 is known
	Proofs   []Proof
}

// Proof finds the proof of a scope.
func (v *Value) Proof(scope [sha256.Size]byte) (goodBytes int64, ok bool) {
	for _, p := range v.Proofs {
		if p.Scope == scope {
			return p.GoodBytes, true
		}
	}
	return 0, false
}

// Merge adds what a newer value knows.
func (v Value) Merge(newer Value) Value {
	if newer.Digested {
		v.SHA256, v.Digested = newer.SHA256, true
	}
	proofs := slices.Clone(v.Proofs)
	for _, p := range newer.Proofs {
		proofs = slices.DeleteFunc(proofs, func(o Proof) bool { return o.Scope == p.Scope })
		proofs = append(proofs, p)
	}
	v.Proofs = proofs[max(0, len(proofs)-maxProofs):]
	return v
}

const (
	format    = 1
	proofSize = sha256.Size + 8
)

// Bytes is the value for storage: at most 200 bytes.
func (v Value) Bytes() []byte {
	b := []byte{format, 0}
	if v.Digested {
		b[1] = 1
		b = append(b, v.SHA256[:]...)
	}
	for _, p := range v.Proofs {
		b = append(b, p.Scope[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(p.GoodBytes))
	}
	return b
}

// Parse reads what Bytes wrote. Anything else is a Corrupt fault; a cache treats it as not known.
func Parse(b []byte) (Value, error) {
	var v Value
	bad := fault.New(fault.Corrupt, "hash cache: a value of %d bytes is malformed", len(b))
	if len(b) < 2 || b[0] != format || b[1] > 1 {
		return v, bad
	}
	rest := b[2:]
	if b[1] == 1 {
		if len(rest) < sha256.Size {
			return v, bad
		}
		v.Digested = true
		rest = rest[copy(v.SHA256[:], rest):]
	}
	if len(rest)%proofSize != 0 || len(rest)/proofSize > maxProofs {
		return Value{}, bad
	}
	for ; len(rest) > 0; rest = rest[proofSize:] {
		p := Proof{Scope: [sha256.Size]byte(rest[:sha256.Size]), GoodBytes: int64(binary.BigEndian.Uint64(rest[sha256.Size:]))}
		if p.GoodBytes < 0 {
			return Value{}, bad
		}
		v.Proofs = append(v.Proofs, p)
	}
	return v, nil
}

// Entry is a value under its key.
type Entry struct {
	Key   Key
	Value Value
}

// MaxBatch is how many keys or entries one call takes.
const MaxBatch = 500

// Cache keeps values. It holds at most one key a file (device and inode): a newer state replaces the older one. Losing
// a value costs time, never correctness. Implementations are safe for concurrent use.
type Cache interface {
	// Get calls found, on the caller's goroutine, for the keys that are known, with their place in keys.
	Get(ctx context.Context, keys []Key, found func(i int, v Value)) error
	// Put merges the entries into what is known under the same keys (Value.Merge) and replaces other states of the same
	// files.
	Put(ctx context.Context, entries []Entry) error
}

// Memory is a Cache that lasts as long as the process.
type Memory struct {
	mu     sync.Mutex
	byFile map[[2]uint64]Entry
}

// NewMemory makes an empty one.
func NewMemory() *Memory { return &Memory{byFile: map[[2]uint64]Entry{}} }

// Get implements Cache.
func (m *Memory) Get(_ context.Context, keys []Key, found func(int, Value)) error {
	for i, k := range keys {
		m.mu.Lock()
		e, ok := m.byFile[[2]uint64{k.Device, k.Inode}]
		m.mu.Unlock()
		if ok && e.Key == k {
			found(i, e.Value)
		}
	}
	return nil
}

// Put implements Cache.
func (m *Memory) Put(_ context.Context, entries []Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		file := [2]uint64{e.Key.Device, e.Key.Inode}
		old, ok := m.byFile[file]
		if ok && old.Key == e.Key {
			e.Value = old.Value.Merge(e.Value)
		}
		m.byFile[file] = e
	}
	return nil
}
