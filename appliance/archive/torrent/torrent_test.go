package torrent_test

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/fault"
)

func sample() []torrenttest.Entry {
	return []torrenttest.Entry{
		{Path: "a.bin", Data: torrenttest.Bytes(1, 70_000)},
		{Path: "b/empty"},
		{Path: "b/exact", Data: torrenttest.Bytes(2, 65_536)},
		{Path: "b/link", Target: "a.bin"},
		{Path: "b/tiny", Data: []byte("x"), Attr: "x"},
		{Path: "c.hidden", Data: torrenttest.Bytes(3, 130_001), Attr: "h"},
		{Path: "d", Data: torrenttest.Bytes(4, 16_384)},
	}
}

func mustParse(t testing.TB, data []byte) *torrent.Metainfo {
	t.Helper()
	m, err := torrent.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var versions = map[string]torrenttest.Options{
	"v1":        {Version: torrenttest.V1, Name: "set", PieceBytes: 32 << 10},
	"v1 odd":    {Version: torrenttest.V1, Name: "set", PieceBytes: 10_007},
	"v1 padded": {Version: torrenttest.V1, Name: "set", PieceBytes: 32 << 10, Pad: true},
	"v2":        {Version: torrenttest.V2, Name: "set", PieceBytes: 32 << 10},
	"v2 small":  {Version: torrenttest.V2, Name: "set", PieceBytes: 16 << 10},
	"hybrid":    {Version: torrenttest.Hybrid, Name: "set", PieceBytes: 64 << 10},
}

func TestParseGivesFilesAndIdentity(t *testing.T) {
	t.Parallel()
	for name, o := range versions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tree := torrenttest.Tree(o, sample())
			m := mustParse(t, torrenttest.Encode(tree))
			info := torrenttest.Encode(tree["info"])
			v1, v2 := sha1.Sum(info), sha256.Sum256(info)
			wantV1, wantV2 := hex.EncodeToString(v1[:]), hex.EncodeToString(v2[:])
			if o.Version == torrenttest.V1 {
				wantV2 = ""
			}
			if o.Version == torrenttest.V2 {
				wantV1 = ""
			}
			if m.V1Hex() != wantV1 || m.V2Hex() != wantV2 {
				t.Errorf("infohashes %q %q, want %q %q", m.V1Hex(), m.V2Hex(), wantV1, wantV2)
			}
			if m.Name != "set" || !m.MultiFile || m.PieceBytes != int64(o.PieceBytes) {
				t.Errorf("facts: %+v", m.Facts())
			}
			var got, want []string
			for _, f := range m.Files {
				if f.Kind != torrent.Padding {
					got = append(got, fmt.Sprintf("%s %d %d %t %t %s", f.Path, f.Kind, f.Bytes, f.Executable, f.Hidden, f.Target))
				}
			}
			for _, e := range sample() {
				kind, target := torrent.Regular, ""
				if e.Target != "" {
					kind, target = torrent.Symlink, "set/"+e.Target
				}
				want = append(want, fmt.Sprintf("set/%s %d %d %t %t %s", e.Path, kind, len(e.Data), e.Attr == "x", e.Attr == "h", target))
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("files:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			aligned := o.Version != torrenttest.V1 || o.Pad
			padded := o.Version == torrenttest.Hybrid || o.Pad
			if m.Aligned != aligned || m.HasPadding != padded || m.Facts().V1LayoutAligned != aligned {
				t.Errorf("aligned %t, padded %t", m.Aligned, m.HasPadding)
			}
		})
	}
}

func TestSingleFile(t *testing.T) {
	t.Parallel()
	for _, v := range []torrenttest.Version{torrenttest.V1, torrenttest.V2, torrenttest.Hybrid} {
		m := mustParse(t, torrenttest.Make(torrenttest.Options{Version: v, Name: "film.mkv", Single: true},
			[]torrenttest.Entry{{Path: "film.mkv", Data: torrenttest.Bytes(1, 40_000)}}))
		if m.MultiFile || len(m.Files) != 1 || m.Files[0].Path != "film.mkv" || m.Pieces != 3 {
			t.Errorf("version %d: %+v", v, m)
		}
	}
}

func TestFilesOfTheSameNameAsTheTorrent(t *testing.T) {
	t.Parallel()
	// A directory whose only file has the directory's name is several files in v1 and cannot be told apart in v2.
	m := mustParse(t, torrenttest.Make(torrenttest.Options{Version: torrenttest.V1, Name: "x"},
		[]torrenttest.Entry{{Path: "x", Data: []byte("1")}}))
	if m.Files[0].Path != "x/x" {
		t.Errorf("v1: %q", m.Files[0].Path)
	}
}

// feed checks content against the torrent, one small write after the other. Files in skip are passed over.
func feed(m *torrent.Metainfo, data map[string][]byte, skip map[string]bool, chunk int) []torrent.PieceState {
	v1, v2 := make([]torrent.PieceState, m.Pieces), make([]torrent.PieceState, m.Pieces)
	if m.HasV1 {
		feedV1(m, m.NewV1Pieces(v1, 0), data, skip, chunk)
	}
	if m.HasV2 {
		feedV2(m, m.NewV2Pieces(v2), data, skip, chunk)
	}
	out := make([]torrent.PieceState, m.Pieces)
	for i := range out {
		out[i] = torrent.Merge(v1[i], v2[i])
	}
	return out
}

func feedV1(m *torrent.Metainfo, c *torrent.V1Pieces, data map[string][]byte, skip map[string]bool, chunk int) {
	for _, f := range m.Files {
		b := data[f.Path]
		switch {
		case f.Kind == torrent.Padding:
			c.Zeros(f.Bytes)
			continue
		case skip[f.Path]:
			c.Gap(f.Bytes, torrent.Skipped)
			continue
		}
		c.Gap(f.Bytes-int64(writeChunks(b, chunk, c.Write)), torrent.Bad)
	}
	c.Close()
}

func feedV2(m *torrent.Metainfo, c *torrent.V2Pieces, data map[string][]byte, skip map[string]bool, chunk int) {
	for i, f := range m.Files {
		if f.Kind != torrent.Regular || f.Bytes == 0 {
			continue
		}
		c.Begin(i)
		if skip[f.Path] {
			c.Gap(f.Bytes, torrent.Skipped)
		} else {
			writeChunks(data[f.Path], chunk, c.Write)
		}
		c.Close()
	}
}

func writeChunks(b []byte, chunk int, write func([]byte)) int {
	total := len(b)
	for len(b) > 0 {
		n := min(chunk, len(b))
		write(b[:n])
		b = b[n:]
	}
	return total
}

func content(entries []torrenttest.Entry) map[string][]byte {
	out := map[string][]byte{}
	for _, e := range entries {
		out["set/"+e.Path] = append([]byte(nil), e.Data...)
	}
	return out
}

func TestPiecesOfRightContentAreGood(t *testing.T) {
	t.Parallel()
	for name, o := range versions {
		m := mustParse(t, torrenttest.Make(o, sample()))
		for _, chunk := range []int{1000, 16_384, 1 << 20} {
			for p, s := range feed(m, content(sample()), nil, chunk) {
				if s != torrent.Good {
					t.Fatalf("%s, chunks of %d: piece %d is %d", name, chunk, p, s)
				}
			}
		}
	}
}

func TestEveryFlippedByteSpoilsExactlyItsPiece(t *testing.T) {
	t.Parallel()
	for name, o := range versions {
		m := mustParse(t, torrenttest.Make(o, sample()))
		for i, f := range m.Files {
			if f.Kind != torrent.Regular || f.Bytes == 0 {
				continue
			}
			for _, at := range []int64{0, f.Bytes / 2, f.Bytes - 1} {
				data := content(sample())
				data[f.Path][at] ^= 1
				states := feed(m, data, nil, 1<<20)
				bad := int((f.Offset + at) / m.PieceBytes)
				for p, s := range states {
					if (s == torrent.Good) == (p == bad) {
						t.Fatalf("%s: byte %d of %s: piece %d is %d, the flipped one is %d", name, at, f.Path, p, s, bad)
					}
				}
				span := m.Span(i)
				lost := min(int64(bad+1)*m.PieceBytes, f.Offset+f.Bytes) - max(int64(bad)*m.PieceBytes, f.Offset)
				if good := m.GoodBytes(i, states); good != f.Bytes-lost {
					t.Fatalf("%s: %s has %d good bytes of %d, lost %d, span %+v", name, f.Path, good, f.Bytes, lost, span)
				}
			}
		}
	}
}

func TestV2PiecesAloneAgreeWithTheWriter(t *testing.T) {
	t.Parallel()
	for _, piece := range []int{16 << 10, 32 << 10, 128 << 10, 1 << 20} {
		for _, size := range []int{1, 16_383, 16_384, 16_385, 32_768, 32_769, 131_072, 131_073, 400_000} {
			data := torrenttest.Bytes(byte(size), size)
			m := mustParse(t, torrenttest.Make(torrenttest.Options{Version: torrenttest.V2, Name: "f", Single: true, PieceBytes: piece},
				[]torrenttest.Entry{{Path: "f", Data: data}}))
			check := func(data []byte) []torrent.PieceState {
				states := make([]torrent.PieceState, m.Pieces)
				c := m.NewV2Pieces(states)
				c.Begin(0)
				for rest := data; len(rest) > 0; {
					n := min(7001, len(rest))
					c.Write(rest[:n])
					rest = rest[n:]
				}
				c.Close()
				return states
			}
			for p, s := range check(data) {
				if s != torrent.Good {
					t.Fatalf("piece length %d, %d bytes: piece %d is %d", piece, size, p, s)
				}
			}
			short := check(data[:size-1])
			if short[len(short)-1] != torrent.Bad {
				t.Fatalf("piece length %d, %d bytes: a missing last byte goes unseen", piece, size)
			}
			broken := append([]byte(nil), data...)
			broken[size/2] ^= 0x80
			if states := check(broken); states[size/2/piece] != torrent.Bad {
				t.Fatalf("piece length %d, %d bytes: a flipped bit goes unseen", piece, size)
			}
		}
	}
}

func TestSkippedFilesSpoilOnlySharedPieces(t *testing.T) {
	t.Parallel()
	for name, o := range versions {
		m := mustParse(t, torrenttest.Make(o, sample()))
		skip := map[string]bool{"set/c.hidden": true}
		states := feed(m, content(sample()), skip, 1<<20)
		gaps := torrent.Coverage(m.Spans(func(i int) bool { return !skip[m.Files[i].Path] }), nil)
		want := make([]torrent.PieceState, m.Pieces)
		for i := range want {
			want[i] = torrent.Good
		}
		for i, f := range m.Files {
			if s := m.Span(i); skip[f.Path] {
				for p := s.First; p <= s.Last; p++ {
					want[p] = torrent.Skipped
				}
			}
		}
		for p := range want {
			if states[p] != want[p] {
				t.Errorf("%s: piece %d is %d, want %d", name, p, states[p], want[p])
			}
		}
		if (len(gaps) == 0) != m.Aligned {
			t.Errorf("%s: aligned %t and %d gaps", name, m.Aligned, len(gaps))
		}
		for _, g := range gaps {
			if states[g.Piece] != torrent.Skipped || m.Files[g.File].Path != "set/c.hidden" {
				t.Errorf("%s: gap %+v", name, g)
			}
		}
	}
}

func TestTruncatedFileSpoilsTheRest(t *testing.T) {
	t.Parallel()
	m := mustParse(t, torrenttest.Make(versions["hybrid"], sample()))
	data := content(sample())
	data["set/c.hidden"] = data["set/c.hidden"][:70_000]
	states := feed(m, data, nil, 4096)
	for i, f := range m.Files {
		if f.Path == "set/c.hidden" {
			if s := m.Span(i); states[s.First] != torrent.Good || states[s.First+1] != torrent.Bad || states[s.Last] != torrent.Bad {
				t.Fatalf("%v", states[s.First:s.Last+1])
			}
			if good := m.GoodBytes(i, states); good != 64<<10 {
				t.Fatalf("%d good bytes", good)
			}
		}
	}
}

func TestHybridNeedsBothHashes(t *testing.T) {
	t.Parallel()
	entries := []torrenttest.Entry{{Path: "a", Data: torrenttest.Bytes(1, 40_000)}}
	tree := torrenttest.Tree(torrenttest.Options{Version: torrenttest.Hybrid, Name: "set"}, entries)
	pieces := tree["info"].(map[string]any)["pieces"].([]byte)
	pieces[20] ^= 1
	m := mustParse(t, torrenttest.Encode(tree))
	states := feed(m, content(entries), nil, 1<<20)
	if states[0] != torrent.Good || states[1] != torrent.Bad || states[2] != torrent.Good {
		t.Fatalf("%v", states)
	}
}

func TestTreeFingerprint(t *testing.T) {
	t.Parallel()
	a, b := sha256.Sum256([]byte("a")), sha256.Sum256([]byte("bb"))
	f := torrent.NewTreeFingerprint()
	f.File("x/a", 1, a)
	f.File("x/b", 2, b)
	f.Symlink("x/c", "x/a")
	got, err := f.Sum()
	if err != nil {
		t.Fatal(err)
	}
	target := sha256.Sum256([]byte("x/a"))
	raw := "\x00\x00\x00\x00\x00\x00\x00\x03x/a\x00\x00\x00\x00\x00\x00\x00\x01" + string(a[:]) +
		"\x00\x00\x00\x00\x00\x00\x00\x03x/b\x00\x00\x00\x00\x00\x00\x00\x02" + string(b[:]) +
		"\x00\x00\x00\x00\x00\x00\x00\x03x/c\xff\xff\xff\xff\xff\xff\xff\xff" + string(target[:])
	sum := sha256.Sum256([]byte(raw))
	if want := hex.EncodeToString(sum[:]); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	for _, second := range []string{"x/a", "x/A"} {
		f := torrent.NewTreeFingerprint()
		f.File("x/a", 1, a)
		f.File(second, 1, a)
		if _, err := f.Sum(); !fault.Is(err, fault.Internal) {
			t.Errorf("%s after x/a: %v", second, err)
		}
	}
}

func TestLinkText(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"s/a", "s/b", "b"}, {"s/d/a", "s/b", "../b"}, {"s/d/a", "s/d/b", "b"}, {"s/a", "s/d/e", "d/e"},
		{"s/d/e/f", "s/x/y", "../../x/y"}, {"s/d/a", "s/d", "../d"},
	} {
		if got := torrent.LinkText(c[0], c[1]); got != c[2] {
			t.Errorf("%s to %s: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestDisplayNameKeepsCharactersWhole(t *testing.T) {
	t.Parallel()
	if got := torrent.DisplayName(strings.Repeat("é", 300)); got != strings.Repeat("é", 256) {
		t.Errorf("%d bytes", len(got))
	}
	if got := torrent.DisplayName("x" + strings.Repeat("é", 300)); got != "x"+strings.Repeat("é", 255) {
		t.Errorf("%d bytes", len(got))
	}
}
