package torrent_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/fault"
)

type dict = map[string]any

// v1With is a v1 torrent of one byte a file whose file list is given.
func v1With(files ...any) dict {
	return dict{"announce": torrenttest.Announce,
		"info": dict{"name": "n", "piece length": 16384, "pieces": make([]byte, 20), "files": files}}
}

func entry(path ...any) dict { return dict{"length": 1, "path": path} }

func v2With(tree dict) dict {
	return dict{"info": dict{"name": "n", "piece length": 16384, "meta version": 2, "file tree": tree}}
}

func leaf() dict { return dict{"": dict{"length": 1, "pieces root": make([]byte, 32)}} }

func TestHostilePaths(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	deep := make([]any, 3000)
	for i := range deep {
		deep[i] = "d"
	}
	type c struct {
		code string
		top  dict
	}
	cases := map[string]c{
		"parent":            {"PATH_UNSAFE", v1With(entry("..", "etc"))},
		"parent inside":     {"PATH_UNSAFE", v1With(entry("a", "..", "b"))},
		"dot":               {"PATH_UNSAFE", v1With(entry(".", "b"))},
		"empty component":   {"PATH_UNSAFE", v1With(entry("a", "", "b"))},
		"absolute":          {"PATH_UNSAFE", v1With(entry("/etc/passwd"))},
		"slash inside":      {"PATH_UNSAFE", v1With(entry("a/../../b"))},
		"backslash":         {"PATH_UNSAFE", v1With(entry(`..\b`))},
		"NUL":               {"PATH_UNSAFE", v1With(entry("a\x00b"))},
		"newline":           {"PATH_UNSAFE", v1With(entry("a\nb"))},
		"escape":            {"PATH_UNSAFE", v1With(entry("a\x1b[2J"))},
		"not UTF-8":         {"PATH_UNSAFE", v1With(entry("a\xff"))},
		"256 bytes":         {"PATH_UNSAFE", v1With(entry(long))},
		"4097 bytes":        {"PATH_UNSAFE", v1With(entry(deep...))},
		"utf-8 variant":     {"PATH_UNSAFE", v1With(dict{"length": 1, "path": []any{"a"}, "path.utf-8": []any{"..", "a"}})},
		"padding parent":    {"PATH_UNSAFE", v1With(dict{"length": 1, "attr": "p", "path": []any{"..", "a"}})},
		"name parent":       {"PATH_UNSAFE", dict{"info": dict{"name": "..", "piece length": 16384, "pieces": make([]byte, 20), "length": 1}}},
		"name slash":        {"PATH_UNSAFE", dict{"info": dict{"name": "a/b", "piece length": 16384, "pieces": make([]byte, 20), "length": 1}}},
		"name reserved":     {"PATH_UNSAFE", dict{"info": dict{"name": ".archive-control", "piece length": 16384, "pieces": make([]byte, 20), "length": 1}}},
		"name utf-8":        {"PATH_UNSAFE", dict{"info": dict{"name": "a", "name.utf-8": "..", "piece length": 16384, "pieces": make([]byte, 20), "length": 1}}},
		"same name twice":   {"PATH_CONFLICT", v1With(entry("a"), entry("a"))},
		"file below file":   {"PATH_CONFLICT", v1With(entry("a"), entry("a", "b"))},
		"file above file":   {"PATH_CONFLICT", v1With(entry("a", "b"), entry("a"))},
		"file far below":    {"PATH_CONFLICT", v1With(entry("a", "b", "c", "d"), entry("a-"), entry("a", "b"), entry("a", "b!"), entry("a"+" "))},
		"file below link":   {"PATH_CONFLICT", v1With(dict{"length": 0, "attr": "l", "path": []any{"a"}, "symlink path": []any{"b"}}, entry("a", "b"))},
		"link out":          {"PATH_UNSAFE", v1With(dict{"length": 0, "attr": "l", "path": []any{"a"}, "symlink path": []any{"..", "b"}}, entry("b"))},
		"link absolute":     {"PATH_UNSAFE", v1With(dict{"length": 0, "attr": "l", "path": []any{"a"}, "symlink path": []any{"/etc"}}, entry("b"))},
		"link with bytes":   {"UNSUPPORTED_FORMAT", v1With(dict{"length": 1, "attr": "l", "path": []any{"a"}, "symlink path": []any{"b"}})},
		"link no target":    {"UNSUPPORTED_FORMAT", v1With(dict{"length": 0, "attr": "l", "path": []any{"a"}}, entry("b"))},
		"link and padding":  {"UNSUPPORTED_FORMAT", v1With(dict{"length": 0, "attr": "lp", "path": []any{"a"}, "symlink path": []any{"b"}})},
		"v2 parent":         {"PATH_UNSAFE", v2With(dict{"..": dict{"a": leaf()}})},
		"v2 slash":          {"PATH_UNSAFE", v2With(dict{"a": dict{"b/../../c": leaf()}})},
		"v2 NUL":            {"PATH_UNSAFE", v2With(dict{"a\x00": leaf(), "b": leaf()})},
		"v2 link out":       {"PATH_UNSAFE", v2With(dict{"a": leaf(), "b": dict{"": dict{"length": 0, "attr": "l", "symlink path": []any{"..", "x"}}}})},
		"v2 file and dir":   {"UNSUPPORTED_FORMAT", v2With(dict{"a": dict{"": leaf()[""], "b": leaf()}})},
		"v2 empty dir":      {"UNSUPPORTED_FORMAT", v2With(dict{"a": dict{}, "b": leaf()})},
		"v2 root leaf":      {"PATH_UNSAFE", v2With(leaf())},
		"v2 padding":        {"UNSUPPORTED_FORMAT", v2With(dict{"a": dict{"": dict{"length": 1, "attr": "p", "pieces root": make([]byte, 32)}}})},
		"v2 lone link file": {"PATH_UNSAFE", v2With(dict{"n": dict{"": dict{"length": 0, "attr": "l", "symlink path": []any{"..", "x"}}}})},
	}
	for name, c := range cases {
		_, err := torrent.Parse(torrenttest.Encode(c.top))
		checkRefused(t, name, err, c.code)
		if err != nil && strings.HasPrefix(c.code, "PATH") && len(err.Error()) > 600 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		}
	}
}

func checkRefused(t *testing.T, name string, err error, code string) {
	t.Helper()
	if got := fault.Details(err)["error_code"]; got != code {
		t.Errorf("%s: got %v (%v), want %s", name, got, err, code)
	}
	if err == nil {
		return
	}
	for _, secret := range []string{"tracker", "passkey", "\x00", "\x1b", "\n"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the message holds %q", name, secret)
		}
	}
}

func TestHostileShapes(t *testing.T) {
	t.Parallel()
	info := func(change func(dict)) dict {
		d := torrenttest.Tree(torrenttest.Options{Version: torrenttest.Hybrid, Name: "n"},
			[]torrenttest.Entry{{Path: "a", Data: torrenttest.Bytes(1, 40_000)}, {Path: "b", Data: []byte("b")}})
		change(d)
		return d
	}
	in := func(change func(info dict)) dict { return info(func(d dict) { change(d["info"].(dict)) }) }
	tree := func(d dict) dict { return d["file tree"].(dict) }
	for name, c := range map[string]struct {
		code string
		top  dict
	}{
		"no info":             {"UNSUPPORTED_FORMAT", dict{"announce": torrenttest.Announce}},
		"no name":             {"UNSUPPORTED_FORMAT", in(func(d dict) { delete(d, "name") })},
		"empty name":          {"UNSUPPORTED_FORMAT", in(func(d dict) { d["name"] = "" })},
		"piece length 0":      {"UNSUPPORTED_FORMAT", in(func(d dict) { d["piece length"] = 0 })},
		"piece length -1":     {"UNSUPPORTED_FORMAT", in(func(d dict) { d["piece length"] = -1 })},
		"piece length huge":   {"UNSUPPORTED_FORMAT", in(func(d dict) { d["piece length"] = int64(math.MaxInt64 / 2) })},
		"piece length odd":    {"UNSUPPORTED_FORMAT", in(func(d dict) { d["piece length"] = 20_000 })},
		"piece length small":  {"UNSUPPORTED_FORMAT", in(func(d dict) { d["piece length"] = 8192 })},
		"hashes short":        {"UNSUPPORTED_FORMAT", in(func(d dict) { d["pieces"] = make([]byte, 40) })},
		"hashes odd":          {"UNSUPPORTED_FORMAT", in(func(d dict) { d["pieces"] = make([]byte, 81) })},
		"no hashes":           {"UNSUPPORTED_FORMAT", in(func(d dict) { delete(d, "pieces") })},
		"files and length":    {"UNSUPPORTED_FORMAT", in(func(d dict) { d["length"] = 3 })},
		"no files":            {"UNSUPPORTED_FORMAT", in(func(d dict) { d["files"] = []any{} })},
		"version 3":           {"UNSUPPORTED_FORMAT", in(func(d dict) { d["meta version"] = 3 })},
		"tree without v2":     {"UNSUPPORTED_FORMAT", in(func(d dict) { delete(d, "meta version") })},
		"v2 without tree":     {"UNSUPPORTED_FORMAT", in(func(d dict) { delete(d, "file tree") })},
		"negative length":     {"UNSUPPORTED_FORMAT", v1With(dict{"length": -1, "path": []any{"a"}})},
		"no length":           {"UNSUPPORTED_FORMAT", v1With(dict{"path": []any{"a"}})},
		"no path":             {"UNSUPPORTED_FORMAT", v1With(dict{"length": 1})},
		"empty path":          {"UNSUPPORTED_FORMAT", v1With(dict{"length": 1, "path": []any{}})},
		"sizes overflow":      {"LIMIT_EXCEEDED", v1With(dict{"length": int64(math.MaxInt64 - 1), "path": []any{"a"}}, dict{"length": int64(math.MaxInt64 - 1), "path": []any{"b"}})},
		"more pieces":         {"UNSUPPORTED_FORMAT", v1With(dict{"length": int64(math.MaxInt64 / 4), "path": []any{"a"}})},
		"length a string":     {"UNSUPPORTED_FORMAT", v1With(dict{"length": torrenttest.Announce, "path": []any{"a"}})},
		"path a string":       {"UNSUPPORTED_FORMAT", v1With(dict{"length": 1, "path": torrenttest.Announce})},
		"info a list":         {"UNSUPPORTED_FORMAT", dict{"info": []any{}}},
		"no layers":           {"UNSUPPORTED_FORMAT", info(func(d dict) { delete(d, "piece layers") })},
		"layers not by root":  {"UNSUPPORTED_FORMAT", info(func(d dict) { d["piece layers"] = dict{"x": make([]byte, 32)} })},
		"layer size":          {"UNSUPPORTED_FORMAT", info(func(d dict) { changeLayer(d, func(b []byte) []byte { return b[:64] }) })},
		"layer hash":          {"UNSUPPORTED_FORMAT", info(func(d dict) { changeLayer(d, func(b []byte) []byte { b[40] ^= 1; return b }) })},
		"root size":           {"UNSUPPORTED_FORMAT", in(func(d dict) { tree(d)["b"].(dict)[""].(dict)["pieces root"] = make([]byte, 31) })},
		"no root":             {"UNSUPPORTED_FORMAT", in(func(d dict) { delete(tree(d)["b"].(dict)[""].(dict), "pieces root") })},
		"lists differ: size":  {"UNSUPPORTED_FORMAT", in(func(d dict) { tree(d)["b"].(dict)[""].(dict)["length"] = 2 })},
		"lists differ: name":  {"UNSUPPORTED_FORMAT", in(func(d dict) { tree(d)["c"] = tree(d)["b"]; delete(tree(d), "b") })},
		"lists differ: more":  {"UNSUPPORTED_FORMAT", in(func(d dict) { tree(d)["c"] = leaf() })},
		"lists differ: fewer": {"UNSUPPORTED_FORMAT", in(func(d dict) { delete(tree(d), "b") })},
		"not padded": {"UNSUPPORTED_FORMAT", in(func(d dict) {
			files := d["files"].([]any)
			d["files"] = []any{files[0], files[2]}
		})},
	} {
		_, err := torrent.Parse(torrenttest.Encode(c.top))
		checkRefused(t, name, err, c.code)
	}
	for _, raw := range []string{"", "x", "de", "d4:infoe", "d4:info3:abce", "d4:infod4:name1:a4:name1:bee",
		"d8:announce" + torrenttest.Announce} {
		_, err := torrent.Parse([]byte(raw))
		checkRefused(t, raw, err, "UNSUPPORTED_FORMAT")
	}
	_, err := torrent.Parse([]byte("d4:info" + strings.Repeat("d1:a", 100_000)))
	checkRefused(t, "deep", err, "LIMIT_EXCEEDED")
}

func changeLayer(top dict, change func([]byte) []byte) {
	for k, v := range top["piece layers"].(dict) {
		top["piece layers"].(dict)[k] = change(v.([]byte))
	}
}

func TestManyFiles(t *testing.T) {
	t.Parallel()
	files := make([]any, torrent.MaxFiles+1)
	for i := range files {
		files[i] = dict{"length": 0, "path": []any{fmt.Sprint("d", i/1000), fmt.Sprint("f", i)}}
	}
	top := v1With(files...)
	top["info"].(dict)["pieces"] = ""
	_, err := torrent.Parse(torrenttest.Encode(top))
	checkRefused(t, "one file too many", err, "LIMIT_EXCEEDED")
	top["info"].(dict)["files"] = files[1:]
	m, err := torrent.Parse(torrenttest.Encode(top))
	if err != nil || len(m.Files) != torrent.MaxFiles || m.Pieces != 0 {
		t.Fatalf("%v", err)
	}
}

// TestManyDirectories has a file list that names 2 million directories: it must not take memory for each.
func TestManyDirectories(t *testing.T) {
	const files, depth = 5_000, 380
	b := []byte("d4:infod5:filesl")
	for i := range files {
		b = append(b, "d6:lengthi0e4:pathl"...)
		b = append(b, torrenttest.Encode(fmt.Sprint(i))...)
		for range depth {
			b = append(b, "1:d"...)
		}
		b = append(b, "ee"...)
	}
	b = append(b, "e4:name1:n12:piece lengthi16384e6:pieces0:ee"...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := torrent.Parse(b)
	runtime.ReadMemStats(&after)
	if err != nil || len(m.Files) != files {
		t.Fatal(err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 40<<20 {
		t.Errorf("%d MiB were allocated", used>>20)
	}
}

func TestNamesThatAreAllowed(t *testing.T) {
	t.Parallel()
	// Normal forms and case are not ours to fold: a byte-exact client would not find the file (daemon protocol 7.4).
	m, err := torrent.Parse(torrenttest.Encode(v1With(entry(strings.Repeat("x", 255)), entry("é"), entry("e\u0301"), entry("A"), entry("a"),
		entry("sub", ".archive-control"), dict{"length": 5, "attr": "p", "path": []any{".pad", "5"}}, dict{"length": 5, "attr": "p", "path": []any{".pad", "5"}})))
	if err != nil {
		t.Fatal(err)
	}
	if m.Files[1].Path != "n/é" || m.Files[2].Path != "n/e\u0301" {
		t.Errorf("names were changed: %q %q", m.Files[1].Path, m.Files[2].Path)
	}
}

func TestCoverage(t *testing.T) {
	t.Parallel()
	r := func(first, last uint32) torrent.PieceSpan {
		return torrent.PieceSpan{Bytes: 1, First: first, Last: last, Requested: true}
	}
	u := func(first, last uint32) torrent.PieceSpan {
		return torrent.PieceSpan{Bytes: 1, First: first, Last: last}
	}
	pad := torrent.PieceSpan{Bytes: 1, First: 2, Last: 2, Padding: true}
	empty := torrent.PieceSpan{First: 2, Last: 2}
	for name, c := range map[string]struct {
		files  []torrent.PieceSpan
		stored []uint32
		want   []torrent.Gap
	}{
		"all requested":           {[]torrent.PieceSpan{r(0, 2), r(2, 4)}, nil, nil},
		"none requested":          {[]torrent.PieceSpan{u(0, 2), u(2, 4)}, nil, nil},
		"both ends":               {[]torrent.PieceSpan{u(0, 2), r(2, 4), u(4, 5)}, nil, []torrent.Gap{{Piece: 2, File: 0, For: 1}, {Piece: 4, File: 2, For: 1}}},
		"one end stored":          {[]torrent.PieceSpan{u(0, 2), r(2, 4), u(4, 5)}, []uint32{2}, []torrent.Gap{{Piece: 4, File: 2, For: 1}}},
		"aligned":                 {[]torrent.PieceSpan{u(0, 1), r(2, 4), u(5, 5)}, nil, nil},
		"padding between":         {[]torrent.PieceSpan{r(0, 2), pad, u(3, 4)}, nil, nil},
		"empty unrequested":       {[]torrent.PieceSpan{r(0, 2), empty, r(2, 4)}, nil, nil},
		"three in one piece":      {[]torrent.PieceSpan{r(0, 0), u(0, 0), r(0, 0)}, nil, []torrent.Gap{{Piece: 0, File: 1, For: 0}}},
		"small between two":       {[]torrent.PieceSpan{r(0, 3), u(3, 3), r(3, 6)}, nil, []torrent.Gap{{Piece: 3, File: 1, For: 0}}},
		"first piece of many":     {[]torrent.PieceSpan{u(0, 0), u(0, 0), r(0, 9)}, nil, []torrent.Gap{{Piece: 0, File: 0, For: 2}}},
		"last piece number there": {[]torrent.PieceSpan{u(0, math.MaxUint32), r(math.MaxUint32, math.MaxUint32)}, nil, []torrent.Gap{{Piece: math.MaxUint32, File: 0, For: 1}}},
	} {
		stored := func(p uint32) bool {
			for _, s := range c.stored {
				if s == p {
					return true
				}
			}
			return false
		}
		if got := torrent.Coverage(c.files, stored); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// FuzzParse holds that whatever is accepted keeps the promises that the rest of the archive plane builds on.
func FuzzParse(f *testing.F) {
	for _, o := range versions {
		f.Add(torrenttest.Make(o, sample()))
	}
	f.Add(torrenttest.Encode(v1With(entry("..", "a"))))
	f.Add(torrenttest.Encode(v2With(dict{"a": leaf()})))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := torrent.Parse(data)
		if err != nil {
			if fault.Details(err)["error_code"] == nil {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		var total int64
		for i, file := range m.Files {
			for _, c := range strings.Split(file.Path, "/") {
				if c == "" || c == "." || c == ".." {
					t.Fatalf("path %q", file.Path)
				}
			}
			if file.Bytes < 0 || (file.Kind == torrent.Symlink) != (file.Target != "") {
				t.Fatalf("file %+v", file)
			}
			total += file.Bytes
			if s := m.Span(i); s.First < 0 || s.Last < s.First || (s.Count > 0 && s.Last >= m.Pieces) {
				t.Fatalf("span %+v of %d pieces", s, m.Pieces)
			}
		}
		if total != m.TotalBytes || m.PieceBytes <= 0 || (m.V1Hex() == "" && m.V2Hex() == "") {
			t.Fatalf("%+v", m.Facts())
		}
	})
}
