// Package torrenttest writes torrent files for tests. It computes hashes in the plainest way and shares no code with
// the reader, so that a mistake in one shows against the other.
package torrenttest

import (
	"crypto/sha1"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// Version chooses what a torrent holds.
type Version int

// The versions.
const (
	V1 Version = iota + 1
	V2
	Hybrid
)

// Entry is one file of a torrent.
type Entry struct {
	Path   string // below the torrent's name
	Data   []byte
	Attr   string // "x", "h"; "l" is set for links
	Target string // of a link, below the torrent's name
}

// Options say how to write a torrent.
type Options struct {
	Version    Version
	Name       string
	PieceBytes int    // default 16 KiB
	Pad        bool   // v1: pad every file to a piece boundary; always so in a hybrid
	Single     bool   // a torrent of one file: the only entry, without a directory
	Announce   string // default an address that tests can look for in output
	Private    bool
}

// Announce is the tracker address of torrents that name none: a secret that must show up nowhere.
const Announce = "https://tracker.invalid/0123456789abcdef-passkey/announce"

// Encode writes maps, slices, strings, byte slices, ints and int64s in bencode.
func Encode(v any) []byte { return appendValue(nil, v) }

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case int:
		return append(append(append(b, 'i'), strconv.Itoa(v)...), 'e')
	case int64:
		return append(append(append(b, 'i'), strconv.FormatInt(v, 10)...), 'e')
	case string:
		return append(append(append(b, strconv.Itoa(len(v))...), ':'), v...)
	case []byte:
		return appendValue(b, string(v))
	case []any:
		b = append(b, 'l')
		for _, e := range v {
			b = appendValue(b, e)
		}
		return append(b, 'e')
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		b = append(b, 'd')
		for _, k := range keys {
			b = appendValue(appendValue(b, k), v[k])
		}
		return append(b, 'e')
	}
	panic("torrenttest: a value of this type has no bencoding")
}

// Make writes a torrent of the entries. They are put into the order of the v2 file tree.
func Make(o Options, entries []Entry) []byte {
	return Encode(Tree(o, entries))
}

// Tree is Make before it is encoded, for tests that break something.
func Tree(o Options, entries []Entry) map[string]any {
	if o.PieceBytes == 0 {
		o.PieceBytes = 16 << 10
	}
	if o.Announce == "" {
		o.Announce = Announce
	}
	entries = append([]Entry(nil), entries...)
	sort.Slice(entries, func(i, j int) bool { return less(entries[i].Path, entries[j].Path) })
	info := map[string]any{"name": o.Name, "piece length": o.PieceBytes}
	if o.Private {
		info["private"] = 1
	}
	top := map[string]any{"announce": o.Announce, "info": info}
	if o.Version != V2 {
		addV1(o, info, entries)
	}
	if o.Version != V1 {
		addV2(o, top, info, entries)
	}
	return top
}

// less orders paths by their components, as a sorted tree does.
func less(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return len(x) < len(y)
}

func list(path string) []any {
	var out []any
	for _, c := range strings.Split(path, "/") {
		out = append(out, c)
	}
	return out
}

func addV1(o Options, info map[string]any, entries []Entry) {
	var all []byte
	var files []any
	for i, e := range entries {
		if o.Single {
			info["length"] = len(e.Data)
			all = e.Data
			break
		}
		f := map[string]any{"length": len(e.Data), "path": list(e.Path)}
		attr := e.Attr
		if e.Target != "" {
			attr += "l"
			f["symlink path"] = list(e.Target)
		}
		if attr != "" {
			f["attr"] = attr
		}
		files = append(files, f)
		all = append(all, e.Data...)
		if gap := len(all) % o.PieceBytes; gap != 0 && (o.Pad || o.Version == Hybrid) && bytesFollow(entries[i+1:]) {
			n := o.PieceBytes - gap
			files = append(files, map[string]any{"attr": "p", "length": n, "path": []any{".pad", strconv.Itoa(n)}})
			all = append(all, make([]byte, n)...)
		}
	}
	if !o.Single {
		info["files"] = files
	}
	var hashes []byte
	for len(all) > 0 {
		n := min(o.PieceBytes, len(all))
		h := sha1.Sum(all[:n])
		hashes, all = append(hashes, h[:]...), all[n:]
	}
	info["pieces"] = hashes
}

func bytesFollow(entries []Entry) bool {
	for _, e := range entries {
		if len(e.Data) > 0 {
			return true
		}
	}
	return false
}

func addV2(o Options, top, info map[string]any, entries []Entry) {
	info["meta version"] = 2
	tree := map[string]any{}
	layers := map[string]any{}
	for _, e := range entries {
		dir := tree
		for _, c := range strings.Split(e.Path, "/") {
			next, _ := dir[c].(map[string]any)
			if next == nil {
				next = map[string]any{}
				dir[c] = next
			}
			dir = next
		}
		leaf := map[string]any{"length": len(e.Data)}
		if e.Target != "" {
			leaf["attr"] = e.Attr + "l"
			leaf["symlink path"] = list(e.Target)
		} else if e.Attr != "" {
			leaf["attr"] = e.Attr
		}
		if len(e.Data) > 0 {
			root, layer := Root(e.Data, o.PieceBytes)
			leaf["pieces root"] = root[:]
			if len(e.Data) > o.PieceBytes {
				layers[string(root[:])] = layer
			}
		}
		dir[""] = leaf
	}
	info["file tree"] = tree
	if len(layers) > 0 {
		top["piece layers"] = layers
	}
}

// Root computes a file's v2 root and piece layer by building the whole tree.
func Root(data []byte, pieceBytes int) (root [32]byte, layer []byte) {
	const block = 16 << 10
	var row [][32]byte
	for rest := data; len(rest) > 0; {
		n := min(block, len(rest))
		row = append(row, sha256.Sum256(rest[:n]))
		rest = rest[n:]
	}
	pieces := (len(data) + pieceBytes - 1) / pieceBytes
	leaves := 1
	for leaves < len(row) {
		leaves *= 2
	}
	if pieces > 1 {
		leaves = max(leaves, pieceBytes/block)
	}
	for len(row) < leaves {
		row = append(row, [32]byte{})
	}
	for width := 1; ; width *= 2 {
		if width == pieceBytes/block {
			for i := range min(pieces, len(row)) {
				layer = append(layer, row[i][:]...)
			}
		}
		if len(row) == 1 {
			return row[0], layer
		}
		var up [][32]byte
		for i := 0; i < len(row); i += 2 {
			up = append(up, sha256.Sum256(append(append([]byte(nil), row[i][:]...), row[i+1][:]...)))
		}
		row = up
	}
}

// FromDir reads the entries below dir: regular files, and links that lead to a place inside it. Executable files get
// the attribute.
func FromDir(t testing.TB, dir string) []Entry {
	t.Helper()
	var out []Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := Entry{Path: filepath.ToSlash(rel)}
		if d.Type()&fs.ModeSymlink != 0 {
			text, err := os.Readlink(path)
			if err != nil {
				return err
			}
			target, err := filepath.Rel(dir, filepath.Join(filepath.Dir(path), text))
			e.Target = filepath.ToSlash(target)
			out = append(out, e)
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&0o100 != 0 {
			e.Attr = "x"
		}
		e.Data, err = os.ReadFile(path)
		out = append(out, e)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Lay writes the entries' content below dir, which is made.
func Lay(t testing.TB, dir string, entries []Entry) {
	t.Helper()
	for _, e := range entries {
		path := filepath.Join(dir, filepath.FromSlash(e.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if e.Target != "" {
			target, err := filepath.Rel(filepath.Dir(path), filepath.Join(dir, filepath.FromSlash(e.Target)))
			if err == nil {
				err = os.Symlink(target, path)
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.Contains(e.Attr, "x") {
			mode = 0o755
		}
		if err := os.WriteFile(path, e.Data, mode); err != nil {
			t.Fatal(err)
		}
	}
}

// Bytes returns n bytes that depend on seed and do not repeat soon.
func Bytes(seed byte, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 12345
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}
