package torrent

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"hash"
)

// PieceState is what is known about one piece. Higher states win where several parts of a piece disagree.
type PieceState uint8

// The states of a piece.
const (
	Unchecked PieceState = iota
	Good                 // all bytes were read and match the torrent
	Skipped              // it holds bytes that were not asked for and not read
	Bad                  // bytes that were asked for are missing or do not match
)

// Merge is the state of a piece that was looked at twice: once by its v1 hash and once by its v2 hash, or over two
// parts.
func Merge(a, b PieceState) PieceState { return max(a, b) }

// V1Pieces checks v1 pieces. It is fed the bytes of all entries of the file list in order, padding included, and is not
// safe for concurrent use.
type V1Pieces struct {
	m      *Metainfo
	states []PieceState
	piece  int
	filled int64
	gap    PieceState
	sum    hash.Hash
	bad    int
}

// Bad counts the bad pieces so far.
func (v *V1Pieces) Bad() int { return v.bad }

// NewV1Pieces begins at a piece; states is the caller's, one entry a piece of the torrent.
func (m *Metainfo) NewV1Pieces(states []PieceState, firstPiece int) *V1Pieces {
	return &V1Pieces{m: m, states: states, piece: firstPiece, sum: sha1.New()}
}

// Write takes the next bytes. It never fails.
func (v *V1Pieces) Write(p []byte) {
	for len(p) > 0 {
		n := min(int64(len(p)), v.m.PieceBytes-v.filled)
		if v.gap == Unchecked {
			v.sum.Write(p[:n])
		}
		p = p[n:]
		v.advance(n)
	}
}

var zeros [64 << 10]byte

// Zeros takes n zero bytes, the content of a padding entry.
func (v *V1Pieces) Zeros(n int64) {
	for n > 0 {
		part := min(n, int64(len(zeros)))
		v.Write(zeros[:part])
		n -= part
	}
}

// Gap passes over n bytes that are not there. Pieces that hold any of them get the state, Bad or Skipped.
func (v *V1Pieces) Gap(n int64, state PieceState) {
	for n > 0 {
		part := min(n, v.m.PieceBytes-v.filled)
		v.gap = Merge(v.gap, state)
		n -= part
		v.advance(part)
	}
}

func (v *V1Pieces) advance(n int64) {
	v.filled += n
	if v.filled == v.m.PieceBytes {
		v.Close()
	}
}

// Close ends the piece that is begun. It is called after the last byte; at a piece boundary it does nothing.
func (v *V1Pieces) Close() {
	if v.filled == 0 || v.piece >= len(v.states) {
		return
	}
	state := v.gap
	if state == Unchecked {
		var sum [20]byte
		state = Bad
		if bytes.Equal(v.sum.Sum(sum[:0]), v.m.hashes[20*v.piece:20*v.piece+20]) {
			state = Good
		}
	}
	if state == Bad {
		v.bad++
	}
	v.states[v.piece] = Merge(v.states[v.piece], state)
	v.piece, v.filled, v.gap = v.piece+1, 0, Unchecked
	v.sum.Reset()
}

// V2Pieces checks the v2 pieces of one file at a time. It is not safe for concurrent use.
type V2Pieces struct {
	m      *Metainfo
	states []PieceState
	file   *File
	piece  int   // in the file
	done   int64 // bytes of the file so far
	filled int64 // bytes of the piece so far
	gap    PieceState
	block  int64 // bytes of the block so far
	sum    hash.Hash
	leaves []byte
	bad    int
}

// Bad counts the bad pieces so far, over all files.
func (v *V2Pieces) Bad() int { return v.bad }

// NewV2Pieces makes a checker; states is the caller's, one entry a piece of the torrent.
func (m *Metainfo) NewV2Pieces(states []PieceState) *V2Pieces {
	return &V2Pieces{m: m, states: states, sum: sha256.New()}
}

// Begin begins the file of that index. Close must have ended the one before.
func (v *V2Pieces) Begin(index int) {
	v.file = &v.m.Files[index]
	v.piece, v.done, v.filled, v.gap, v.block, v.leaves = 0, 0, 0, Unchecked, 0, v.leaves[:0]
	v.sum.Reset()
}

// Write takes the next bytes of the file. Bytes beyond the file's length are ignored.
func (v *V2Pieces) Write(p []byte) {
	p = p[:min(int64(len(p)), v.file.Bytes-v.done)]
	for len(p) > 0 {
		n := min(int64(len(p)), blockBytes-v.block)
		if v.gap == Unchecked {
			v.sum.Write(p[:n])
		}
		p = p[n:]
		v.advance(n)
	}
}

// Gap passes over n bytes that are not there. Pieces that hold any of them get the state, Bad or Skipped.
func (v *V2Pieces) Gap(n int64, state PieceState) {
	n = min(n, v.file.Bytes-v.done)
	for n > 0 {
		part := min(n, blockBytes-v.block)
		v.gap = Merge(v.gap, state)
		n -= part
		v.advance(part)
	}
}

func (v *V2Pieces) advance(n int64) {
	v.block += n
	v.filled += n
	v.done += n
	end := v.done == v.file.Bytes
	if v.block == blockBytes || end {
		if v.gap == Unchecked {
			v.leaves = v.sum.Sum(v.leaves)
		}
		v.sum.Reset()
		v.block = 0
	}
	if v.filled == v.m.PieceBytes || end {
		v.endPiece()
	}
}

func (v *V2Pieces) endPiece() {
	state := v.gap
	if state == Unchecked {
		state = Bad
		if v.file.layer == nil {
			if merkleRoot(v.leaves, [32]byte{}) == v.file.Root {
				state = Good
			}
		} else {
			got := merkleRootOf(v.leaves, v.m.PieceBytes/blockBytes)
			if [32]byte(v.file.layer[32*v.piece:32*v.piece+32]) == got {
				state = Good
			}
		}
	}
	at := int(v.file.Offset/v.m.PieceBytes) + v.piece
	if state == Bad {
		v.bad++
	}
	v.states[at] = Merge(v.states[at], state)
	v.piece, v.filled, v.gap, v.leaves = v.piece+1, 0, Unchecked, v.leaves[:0]
}

// Close ends the file; bytes that did not come count as missing.
func (v *V2Pieces) Close() { v.Gap(v.file.Bytes-v.done, Bad) }
