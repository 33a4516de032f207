// Package torrent reads torrent files (v1, v2 and hybrid) and checks content against their piece hashes.
//
// It is strict where leniency could hurt: a path that leaves the torrent's own directory, two files of one name, a file
// below another file, sizes that do not add up, a hybrid whose two file lists differ and a piece layer that does not
// lead to its file's root are all refused with the file's name (daemon protocol 7.4, 9 row 28). It never looks at
// announce URLs: they are secrets (8.7), are not kept, and no error quotes the input except for the path it is about.
package torrent

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"

	"signalbox/appliance/archive/bencode"
)

// Limits of what Parse accepts (daemon protocol 5.2).
const (
	MaxFiles         = 200_000   // entries in the file list, padding included
	MaxMetainfoBytes = 100 << 20 // size of a torrent file
	maxPieceBytes    = 1 << 30
	maxDepth         = 256
)

// blockBytes is the leaf size of the v2 hash trees.
const blockBytes = 16 << 10

// Kind tells what an entry of the file list is.
type Kind uint8

// The kinds of file entries.
const (
	Regular Kind = iota + 1
	Padding      // only aligns the next file; all zeros
	Symlink      // has a target and no bytes
)

// File is one entry of the torrent's own file list.
type File struct {
	// Path is relative to the save directory and "/"-separated: "<name>/<path>" in a torrent of several files,
	// "<name>" in a torrent of one. Bytes are as named by the torrent. Padding entries may share a path.
	Path  string
	Kind  Kind
	Bytes int64
	// Offset is the place of the first byte in the piece space.
	Offset     int64
	Executable bool
	Hidden     bool
	// Target is the path a symlink leads to, in the same form as Path (from the save directory, not from the link).
	Target string
	// Root is the v2 root of the file; set when HasRoot.
	Root    [32]byte
	HasRoot bool

	layer []byte // v2 piece layer: 32 bytes a piece; nil when the file has one piece at most
}

// Metainfo is what a torrent file says. It keeps no reference to the parsed bytes.
type Metainfo struct {
	HasV1  bool
	HasV2  bool
	InfoV1 [20]byte // SHA-1 of the info dictionary; set when HasV1
	InfoV2 [32]byte // SHA-256 of it; set when HasV2

	Name       string
	MultiFile  bool
	Private    bool
	PieceBytes int64
	Pieces     int
	Files      []File
	HasPadding bool
	// Aligned: every regular file with bytes begins on a piece boundary, so no piece holds bytes of two regular files.
	// Always true for v2 and hybrid.
	Aligned bool
	// TotalBytes counts every entry, padding included.
	TotalBytes int64

	hashes []byte // v1 piece hashes, 20 bytes each
}

// MetaVersion is 2 if the torrent has a v2 part, else 1.
func (m *Metainfo) MetaVersion() uint32 {
	if m.HasV2 {
		return 2
	}
	return 1
}

// V1Hex is the v1 infohash in lowercase hexadecimal, "" if there is none.
func (m *Metainfo) V1Hex() string {
	if !m.HasV1 {
		return ""
	}
	return hex.EncodeToString(m.InfoV1[:])
}

// V2Hex is the v2 infohash in lowercase hexadecimal, "" if there is none.
func (m *Metainfo) V2Hex() string {
	if !m.HasV2 {
		return ""
	}
	return hex.EncodeToString(m.InfoV2[:])
}

// Parse reads a torrent file. Errors are fault errors whose details name the daemon protocol's code ("error_code":
// PATH_UNSAFE, PATH_CONFLICT, LIMIT_EXCEEDED or UNSUPPORTED_FORMAT) and, where there is one, the "path".
func Parse(data []byte) (*Metainfo, error) {
	if len(data) > MaxMetainfoBytes {
		return nil, tooLarge("the torrent file is larger than %d bytes", MaxMetainfoBytes)
	}
	d := bencode.NewDecoder(data, bencode.Limits{Bytes: MaxMetainfoBytes, Depth: maxDepth})
	var info *rawInfo
	var infoBytes []byte
	var layers map[[32]byte][]byte
	err := d.Dict(func(key []byte) error {
		switch string(key) {
		case "info":
			from := d.Offset()
			var err error
			if info, err = readInfo(d); err != nil {
				return err
			}
			infoBytes = d.Slice(from, d.Offset())
		case "piece layers":
			var err error
			layers, err = readLayers(d)
			return err
		}
		return nil
	})
	if err == nil {
		err = d.End()
	}
	if err != nil {
		return nil, malformed(err)
	}
	if info == nil {
		return nil, unsupported("the torrent file has no info dictionary")
	}
	m, err := info.build(layers)
	if err != nil {
		return nil, err
	}
	if m.HasV1 {
		m.InfoV1 = sha1.Sum(infoBytes)
	}
	if m.HasV2 {
		m.InfoV2 = sha256.Sum256(infoBytes)
	}
	return m, nil
}
