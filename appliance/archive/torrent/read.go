package torrent

import (
	"bytes"
	"strings"

	"signalbox/appliance/archive/bencode"
	"signalbox/appliance/archive/pathrule"
)

// rawInfo is the info dictionary before its parts are held against each other.
type rawInfo struct {
	name, nameUTF8 string
	hasName        bool
	pieceBytes     int64
	version        int64
	private        bool
	hashes         []byte
	hasHashes      bool
	length         int64
	hasLength      bool
	single         rawFile // attributes of a torrent of one file
	files          []rawFile
	hasFiles       bool
	tree           []rawFile
	hasTree        bool
}

// rawFile is an entry of the v1 file list or a leaf of the v2 file tree.
type rawFile struct {
	path      string // components joined by "/"
	length    int64
	hasLength bool
	padding   bool
	symlink   bool
	exec      bool
	hidden    bool
	target    string
	root      [32]byte
	hasRoot   bool
}

func readInfo(d *bencode.Decoder) (*rawInfo, error) {
	r := &rawInfo{version: 1}
	err := d.Dict(func(key []byte) (err error) {
		switch string(key) {
		case "name":
			r.hasName = true
			r.name, err = text(d)
		case "name.utf-8":
			r.nameUTF8, err = text(d)
		case "piece length":
			r.pieceBytes, err = d.Int()
		case "meta version":
			r.version, err = d.Int()
		case "private":
			var n int64
			n, err = d.Int()
			r.private = n == 1
		case "pieces":
			r.hasHashes = true
			r.hashes, err = d.Bytes()
		case "length":
			r.hasLength = true
			r.length, err = d.Int()
		case "attr":
			err = r.single.readAttr(d)
		case "symlink path":
			r.single.target, err = components(d)
		case "files":
			r.hasFiles = true
			err = d.List(func() error {
				f, err := readListFile(d)
				if err != nil {
					return err
				}
				if len(r.files) >= MaxFiles {
					return tooLarge("the torrent has more than %d files", MaxFiles)
				}
				r.files = append(r.files, f)
				return nil
			})
		case "file tree":
			r.hasTree = true
			err = r.readTree(d, "")
		}
		return err
	})
	return r, err
}

func text(d *bencode.Decoder) (string, error) {
	b, err := d.Bytes()
	return string(b), err
}

// components reads a list of path components. A component that holds a "/" or is empty is refused here, for the joined
// path would not show it.
func components(d *bencode.Decoder) (string, error) {
	var b strings.Builder
	at, n := d.Offset(), 0
	err := d.List(func() error {
		c, err := d.Bytes()
		if err != nil {
			return err
		}
		if n++; n > 1 {
			b.WriteByte('/')
		}
		if b.Len()+len(c) > pathrule.MaxPath {
			return unsafePath("PATH_UNSAFE", b.String(), "the path is longer than 4096 bytes")
		}
		if err := checkComponent(b.String(), c); err != nil {
			return err
		}
		b.Write(c)
		return nil
	})
	if err == nil && n == 0 {
		err = d.Fail(at, "a path has no components")
	}
	return b.String(), err
}

func checkComponent(dir string, c []byte) error {
	switch {
	case len(c) == 0:
		return unsafePath("PATH_UNSAFE", dir, "a path component is empty")
	case bytes.IndexByte(c, '/') >= 0:
		return unsafePath("PATH_UNSAFE", dir+string(c), `a path component holds a "/"`)
	}
	return nil
}

func (f *rawFile) readAttr(d *bencode.Decoder) error {
	b, err := d.Bytes()
	for _, c := range b {
		switch c {
		case 'p':
			f.padding = true
		case 'l':
			f.symlink = true
		case 'x':
			f.exec = true
		case 'h':
			f.hidden = true
		}
	}
	return err
}

func readListFile(d *bencode.Decoder) (f rawFile, err error) {
	at := d.Offset()
	err = d.Dict(func(key []byte) (err error) {
		switch string(key) {
		case "length":
			f.hasLength = true
			f.length, err = d.Int()
		case "path":
			f.path, err = components(d)
		case "path.utf-8": // comes after "path" and is the better spelling of it
			f.path, err = components(d)
		case "attr":
			err = f.readAttr(d)
		case "symlink path":
			f.target, err = components(d)
		}
		return err
	})
	if err == nil && f.path == "" {
		err = d.Fail(at, "a file has no path")
	}
	return f, err
}

// readTree reads a directory of the v2 file tree. A leaf is the dictionary under the empty key.
func (r *rawInfo) readTree(d *bencode.Decoder, dir string) error {
	return d.Dict(func(key []byte) error {
		if err := checkComponent(dir, key); err != nil {
			return err
		}
		path := string(key)
		if dir != "" {
			path = dir + "/" + path
		}
		if len(path) > pathrule.MaxPath {
			return unsafePath("PATH_UNSAFE", path, "the path is longer than 4096 bytes")
		}
		return r.readNode(d, path)
	})
}

// readNode reads what stands under a name: either one empty key with a file's properties, or a directory.
func (r *rawInfo) readNode(d *bencode.Decoder, path string) error {
	at, leaf, children := d.Offset(), false, 0
	err := d.Dict(func(key []byte) error {
		if len(key) == 0 {
			leaf = true
			return r.readLeaf(d, path)
		}
		children++
		if leaf {
			return d.Fail(at, "a name in the file tree is both a file and a directory")
		}
		if err := checkComponent(path, key); err != nil {
			return err
		}
		child := path + "/" + string(key)
		if len(child) > pathrule.MaxPath {
			return unsafePath("PATH_UNSAFE", child, "the path is longer than 4096 bytes")
		}
		return r.readNode(d, child)
	})
	if err == nil && !leaf && children == 0 {
		err = d.Fail(at, "a directory in the file tree is empty")
	}
	return err
}

func (r *rawInfo) readLeaf(d *bencode.Decoder, path string) error {
	f := rawFile{path: path}
	at := d.Offset()
	err := d.Dict(func(key []byte) (err error) {
		switch string(key) {
		case "length":
			f.hasLength = true
			f.length, err = d.Int()
		case "pieces root":
			at := d.Offset()
			var b []byte
			if b, err = d.Bytes(); err == nil && len(b) != len(f.root) {
				err = d.Fail(at, "a pieces root is not 32 bytes long")
			}
			if err == nil {
				f.hasRoot = true
				copy(f.root[:], b)
			}
		case "attr":
			err = f.readAttr(d)
		case "symlink path":
			f.target, err = components(d)
		}
		return err
	})
	if err != nil {
		return err
	}
	if f.padding {
		return d.Fail(at, "the file tree holds a padding file")
	}
	if len(r.tree) >= MaxFiles {
		return tooLarge("the torrent has more than %d files", MaxFiles)
	}
	r.tree = append(r.tree, f)
	return nil
}

func readLayers(d *bencode.Decoder) (map[[32]byte][]byte, error) {
	layers := map[[32]byte][]byte{}
	err := d.Dict(func(key []byte) error {
		if len(key) != 32 {
			return d.Fail(d.Offset(), "a piece layer is not named by a root of 32 bytes")
		}
		at := d.Offset()
		b, err := d.Bytes()
		if err != nil {
			return err
		}
		if len(b) == 0 || len(b)%32 != 0 {
			return d.Fail(at, "a piece layer is not made of hashes of 32 bytes")
		}
		if len(layers) >= MaxFiles {
			return tooLarge("the torrent has more than %d piece layers", MaxFiles)
		}
		layers[[32]byte(key)] = b
		return nil
	})
	return layers, err
}
