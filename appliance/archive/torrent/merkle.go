package torrent

import "crypto/sha256"

// merkleRoot reduces hashes of 32 bytes, in place, to the root of the balanced tree over them. Missing leaves up to the
// next power of two are pad, the root of an all-zero subtree of the leaves' height.
func merkleRoot(hashes []byte, pad [32]byte) [32]byte {
	n := len(hashes) / 32
	for n > 1 {
		half := n / 2
		for i := range half {
			h := sha256.Sum256(hashes[64*i : 64*i+64])
			copy(hashes[32*i:], h[:])
		}
		if n%2 == 1 {
			var pair [64]byte
			copy(pair[:32], hashes[32*(n-1):32*n])
			copy(pair[32:], pad[:])
			h := sha256.Sum256(pair[:])
			copy(hashes[32*half:], h[:])
			half++
		}
		pad = parent(pad, pad)
		n = half
	}
	return [32]byte(hashes[:32])
}

// merkleRootOf is merkleRoot over a tree of leaves leaves, a power of two, of which hashes are the first.
func merkleRootOf(hashes []byte, leaves int64) [32]byte {
	var pad [32]byte
	width := int64(1)
	for width*32 < int64(len(hashes)) {
		width *= 2
	}
	root := merkleRoot(hashes, pad)
	for zero := zeroRoot(width); width < leaves; width *= 2 {
		root = parent(root, zero)
		zero = parent(zero, zero)
	}
	return root
}

// zeroRoot is the root of a tree of leaves all-zero hashes; leaves is a power of two.
func zeroRoot(leaves int64) (h [32]byte) {
	for ; leaves > 1; leaves /= 2 {
		h = parent(h, h)
	}
	return h
}

func parent(a, b [32]byte) [32]byte {
	var pair [64]byte
	copy(pair[:32], a[:])
	copy(pair[32:], b[:])
	return sha256.Sum256(pair[:])
}
