package torrent

import (
	"bytes"
	"errors"
	"math"
	"slices"

	"signalbox/appliance/archive/pathrule"
)

// build holds the parts of the info dictionary against each other.
func (r *rawInfo) build(layers map[[32]byte][]byte) (*Metainfo, error) {
	m := &Metainfo{Name: r.name, Private: r.private, PieceBytes: r.pieceBytes}
	if r.nameUTF8 != "" {
		m.Name = r.nameUTF8
	}
	if err := r.checkShape(m); err != nil {
		return nil, err
	}
	var err error
	switch {
	case m.HasV1 && m.HasV2:
		err = r.buildHybrid(m)
	case m.HasV1:
		err = r.buildV1(m)
	default:
		err = r.buildV2(m)
	}
	if err != nil {
		return nil, err
	}
	if err := m.checkPaths(); err != nil {
		return nil, err
	}
	if m.HasV2 {
		if err := m.attachLayers(layers); err != nil {
			return nil, err
		}
	}
	if m.HasV1 {
		if want := 20 * int64(m.Pieces); int64(len(r.hashes)) != want {
			return nil, unsupported("the torrent has %d bytes of piece hashes, its files need %d", len(r.hashes), want)
		}
		m.hashes = bytes.Clone(r.hashes)
	}
	return m, nil
}

func (r *rawInfo) checkShape(m *Metainfo) error {
	if !r.hasName || m.Name == "" {
		return unsupported("the torrent has no name")
	}
	if err := checkComponent("", []byte(m.Name)); err != nil {
		return err
	}
	switch r.version {
	case 1:
		m.HasV1 = true
		if r.hasTree {
			return unsupported("the torrent has a file tree and does not say meta version 2")
		}
	case 2:
		m.HasV2 = true
		m.HasV1 = r.hasHashes || r.hasFiles || r.hasLength
		if !r.hasTree {
			return unsupported("the torrent says meta version 2 and has no file tree")
		}
		if r.pieceBytes < blockBytes || r.pieceBytes&(r.pieceBytes-1) != 0 {
			return unsupported("the piece length %d is not a power of two of at least 16 KiB", r.pieceBytes)
		}
	default:
		return unsupported("the torrent has meta version %d, which is not known", r.version)
	}
	if r.pieceBytes <= 0 || r.pieceBytes > maxPieceBytes {
		return unsupported("the piece length %d is not between 1 and %d", r.pieceBytes, maxPieceBytes)
	}
	if m.HasV1 {
		if r.hasFiles == r.hasLength {
			return unsupported("the torrent must have either a file list or a length")
		}
		if !r.hasHashes {
			return unsupported("the torrent has no piece hashes")
		}
	}
	return nil
}

// list returns the v1 entries with the paths they have on disk.
func (r *rawInfo) list(m *Metainfo) ([]File, error) {
	if r.hasLength {
		f := r.single
		f.path, f.length, f.hasLength = m.Name, r.length, true
		file, err := f.file()
		if err != nil {
			return nil, err
		}
		if file.Kind != Regular {
			return nil, unsafePath("UNSUPPORTED_FORMAT", file.Path, "the only file of a torrent must be a regular one")
		}
		return []File{file}, nil
	}
	m.MultiFile = true
	return within(m.Name, r.files)
}

// leaves returns the v2 entries with the paths they have on disk. A tree of one file with the torrent's own name is a
// torrent of one file.
func (r *rawInfo) leaves(m *Metainfo) ([]File, bool, error) {
	if len(r.tree) == 1 && r.tree[0].path == m.Name && !r.tree[0].symlink {
		file, err := r.tree[0].file()
		return []File{file}, false, err
	}
	files, err := within(m.Name, r.tree)
	return files, true, err
}

func within(name string, raw []rawFile) ([]File, error) {
	files := make([]File, 0, len(raw))
	for _, f := range raw {
		f.path = name + "/" + f.path
		if f.target != "" {
			f.target = name + "/" + f.target
		}
		file, err := f.file()
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil, unsupported("the torrent has no files")
	}
	return files, nil
}

func (f rawFile) file() (File, error) {
	out := File{Path: f.path, Kind: Regular, Bytes: f.length, Executable: f.exec, Hidden: f.hidden,
		Root: f.root, HasRoot: f.hasRoot && f.length > 0}
	switch {
	case f.symlink && f.padding:
		return out, unsafePath("UNSUPPORTED_FORMAT", f.path, "it is both a padding file and a symbolic link")
	case f.symlink:
		out.Kind, out.Target = Symlink, f.target
		if f.target == "" {
			return out, unsafePath("UNSUPPORTED_FORMAT", f.path, "it is a symbolic link without a target")
		}
		if f.length != 0 {
			return out, unsafePath("UNSUPPORTED_FORMAT", f.path, "it is a symbolic link with bytes")
		}
		return out, nil
	case f.padding:
		out.Kind = Padding
	}
	if !f.hasLength || f.length < 0 {
		return out, unsafePath("UNSUPPORTED_FORMAT", f.path, "its length is missing or negative")
	}
	return out, nil
}

func (r *rawInfo) buildV1(m *Metainfo) (err error) {
	if m.Files, err = r.list(m); err != nil {
		return err
	}
	m.Aligned = true
	for i := range m.Files {
		f := &m.Files[i]
		f.Offset = m.TotalBytes
		if f.Bytes > math.MaxInt64-m.PieceBytes-m.TotalBytes {
			return tooLarge("the sizes of the files do not fit 64 bits")
		}
		m.TotalBytes += f.Bytes
		if f.Kind == Padding {
			m.HasPadding = true
		} else if f.Bytes > 0 && f.Offset%m.PieceBytes != 0 {
			m.Aligned = false
		}
	}
	return m.countPieces(m.TotalBytes)
}

func (m *Metainfo) countPieces(bytes int64) error {
	n := bytes / m.PieceBytes
	if bytes%m.PieceBytes != 0 {
		n++
	}
	// No torrent file within its size limit can hold this many hashes.
	if n > MaxMetainfoBytes/20 {
		return unsupported("the torrent has %d pieces, more than a torrent file can hold hashes for", n)
	}
	m.Pieces = int(n)
	return nil
}

func (r *rawInfo) buildV2(m *Metainfo) (err error) {
	if m.Files, m.MultiFile, err = r.leaves(m); err != nil {
		return err
	}
	m.Aligned = true
	var space int64
	for i := range m.Files {
		f := &m.Files[i]
		if f.Bytes > 0 && !f.HasRoot {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "it has no pieces root")
		}
		f.Offset = space
		if f.Bytes > math.MaxInt64-2*m.PieceBytes-space {
			return tooLarge("the sizes of the files do not fit 64 bits")
		}
		m.TotalBytes += f.Bytes
		space += (f.Bytes + m.PieceBytes - 1) / m.PieceBytes * m.PieceBytes
	}
	return m.countPieces(space)
}

// buildHybrid requires that both file lists name the same files in the same order and that padding puts every file on
// a piece boundary, so that one piece number means the same bytes in both.
func (r *rawInfo) buildHybrid(m *Metainfo) error {
	if err := r.buildV1(m); err != nil {
		return err
	}
	leaves, multi, err := r.leaves(m)
	if err != nil {
		return err
	}
	if multi != m.MultiFile {
		return unsupported("the two parts of the hybrid torrent disagree whether it holds one file")
	}
	var space int64
	next := 0
	for i := range m.Files {
		f := &m.Files[i]
		if f.Kind == Padding {
			continue
		}
		if next >= len(leaves) {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "only the v1 part of the hybrid torrent has it")
		}
		leaf := leaves[next]
		next++
		if leaf.Path != f.Path || leaf.Bytes != f.Bytes || leaf.Kind != f.Kind || leaf.Target != f.Target {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "the two parts of the hybrid torrent disagree about it")
		}
		if f.Bytes == 0 {
			continue
		}
		if !leaf.HasRoot {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "it has no pieces root")
		}
		if f.Offset != space {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "padding does not put it on its piece boundary")
		}
		f.Root, f.HasRoot = leaf.Root, true
		if f.Bytes > math.MaxInt64-2*m.PieceBytes-space {
			return tooLarge("the sizes of the files do not fit 64 bits")
		}
		space += (f.Bytes + m.PieceBytes - 1) / m.PieceBytes * m.PieceBytes
	}
	if next != len(leaves) {
		return unsafePath("UNSUPPORTED_FORMAT", leaves[next].Path, "only the v2 part of the hybrid torrent has it")
	}
	if space != int64(m.Pieces)*m.PieceBytes {
		return unsupported("the two parts of the hybrid torrent have different numbers of pieces")
	}
	return nil
}

// checkPaths applies the path rules and refuses two entries of one name and an entry below a file or link. It needs no
// memory for directories, of which a hostile torrent can name millions.
func (m *Metainfo) checkPaths() error {
	named := make([]string, 0, len(m.Files))
	for i := range m.Files {
		f := &m.Files[i]
		if err := checkPath(f.Path); err != nil {
			return err
		}
		if f.Kind == Symlink {
			if err := pathError(f.Path, pathrule.CheckSymlink(f.Path, f.Target)); err != nil {
				return err
			}
		}
		if f.Kind != Padding {
			named = append(named, f.Path)
		}
	}
	slices.SortFunc(named, compareAsTree)
	for i := 1; i < len(named); i++ {
		above, path := named[i-1], named[i]
		if path == above {
			return unsafePath("PATH_CONFLICT", path, "two files have this name")
		}
		if len(path) > len(above) && path[len(above)] == '/' && path[:len(above)] == above {
			return unsafePath("PATH_CONFLICT", above, "another file lies below it")
		}
	}
	return nil
}

// compareAsTree orders paths so that what lies below a name comes right after it: "/" is before every other byte.
func compareAsTree(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if x, y := a[i], b[i]; x != y {
			switch {
			case x == '/':
				return -1
			case y == '/':
				return 1
			}
			return int(x) - int(y)
		}
	}
	return len(a) - len(b)
}

func checkPath(path string) error { return pathError(path, pathrule.Check(path)) }

// pathError says which file of the torrent breaks which rule.
func pathError(path string, err error) error {
	var broken *pathrule.Error
	if errors.As(err, &broken) {
		return unsafePath("PATH_UNSAFE", path, broken.Rule)
	}
	return err
}

// attachLayers gives every file of several pieces its piece layer and proves that the layer leads to the file's root.
func (m *Metainfo) attachLayers(layers map[[32]byte][]byte) error {
	pad := zeroRoot(m.PieceBytes / blockBytes)
	for i := range m.Files {
		f := &m.Files[i]
		if f.Bytes <= m.PieceBytes {
			continue
		}
		layer := layers[f.Root]
		if want := (f.Bytes + m.PieceBytes - 1) / m.PieceBytes * 32; int64(len(layer)) != want {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "its piece layer is missing or of the wrong size")
		}
		layer = bytes.Clone(layer)
		if merkleRoot(bytes.Clone(layer), pad) != f.Root {
			return unsafePath("UNSUPPORTED_FORMAT", f.Path, "its piece layer does not lead to its pieces root")
		}
		f.layer = layer
	}
	return nil
}
