package verify_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/archive/verify"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// memory is content in memory, with faults where a test wants them.
type memory struct {
	data    map[int][]byte
	readErr map[int]error
	openErr map[int]error
	after   map[int]int64 // size that Stat tells after the first call
	opened  atomic.Int64
	open    atomic.Int64
	short   bool // reads return a few bytes at a time
	read    func(index int, off int64)
}

type memoryFile struct {
	m     *memory
	index int
	stats int
}

func (m *memory) OpenFile(_ context.Context, i int) (verify.File, error) {
	if err := m.openErr[i]; err != nil {
		return nil, err
	}
	if _, ok := m.data[i]; !ok {
		return nil, fs.ErrNotExist
	}
	m.opened.Add(1)
	m.open.Add(1)
	return &memoryFile{m: m, index: i}, nil
}

func (f *memoryFile) ReadAt(p []byte, off int64) (int, error) {
	if f.m.read != nil {
		f.m.read(f.index, off)
	}
	if err := f.m.readErr[f.index]; err != nil && off > 0 {
		return 0, err
	}
	if f.m.short && len(p) > 100 {
		p = p[:100]
	}
	return bytes.NewReader(f.m.data[f.index]).ReadAt(p, off)
}

func (f *memoryFile) Stat() (beneath.Stat, error) {
	f.stats++
	s := beneath.Stat{Dev: 1, Ino: uint64(f.index), Size: int64(len(f.m.data[f.index])), Mode: 0o644}
	if after, ok := f.m.after[f.index]; ok && f.stats > 1 {
		s.Size = after
	}
	return s, nil
}

func (f *memoryFile) Close() error { f.m.open.Add(-1); return nil }

func entries(rng *rand.Rand, n int) []torrenttest.Entry {
	out := make([]torrenttest.Entry, n)
	for i := range out {
		size := rng.IntN(100_000)
		switch i % 7 {
		case 3:
			size = 0
		case 5:
			size = 16_384 * (1 + rng.IntN(4))
		}
		out[i] = torrenttest.Entry{Path: fmt.Sprintf("d%d/f%03d", i/10, i), Data: torrenttest.Bytes(byte(i), size)}
	}
	return out
}

var kinds = map[string]torrenttest.Options{
	"v1":        {Version: torrenttest.V1, Name: "n", PieceBytes: 32 << 10},
	"v1 padded": {Version: torrenttest.V1, Name: "n", PieceBytes: 32 << 10, Pad: true},
	"v2":        {Version: torrenttest.V2, Name: "n", PieceBytes: 32 << 10},
	"hybrid":    {Version: torrenttest.Hybrid, Name: "n", PieceBytes: 32 << 10},
}

func load(t testing.TB, o torrenttest.Options, list []torrenttest.Entry) (*torrent.Metainfo, *memory) {
	t.Helper()
	m, err := torrent.Parse(torrenttest.Make(o, list))
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string][]byte{}
	for _, e := range list {
		byPath["n/"+e.Path] = append([]byte(nil), e.Data...)
	}
	mem := &memory{data: map[int][]byte{}}
	for i, f := range m.Files {
		if f.Kind == torrent.Regular {
			mem.data[i] = byPath[f.Path]
		}
	}
	return m, mem
}

func run(t testing.TB, c verify.Content, m *memory, o verify.Options) *verify.Result {
	t.Helper()
	r, err := verify.Run(t.Context(), c, m, o)
	if err != nil {
		t.Fatal(err)
	}
	if n := m.open.Load(); n != 0 {
		t.Fatalf("%d files were left open", n)
	}
	return r
}

// settings are the ways to run that must all find the same.
var settings = map[string]verify.Options{
	"one reader":     {},
	"four readers":   {Readers: 4},
	"tiny buffers":   {BufferBytes: 777},
	"stop":           {StopAtFirstBad: true},
	"stop, readers":  {StopAtFirstBad: true, Readers: 4, BufferBytes: 4096},
	"sixteen, whole": {Readers: 16},
}

func TestGoodContent(t *testing.T) {
	t.Parallel()
	list := entries(rand.New(rand.NewPCG(1, 2)), 60)
	for kind, o := range kinds {
		m, mem := load(t, o, list)
		for name, opts := range settings {
			var last verify.Progress
			opts.Progress = func(p verify.Progress) {
				if p.Bytes < last.Bytes || p.Files < last.Files {
					t.Errorf("%s, %s: progress goes back from %+v to %+v", kind, name, last, p)
				}
				last = p
			}
			r := run(t, verify.Content{Torrent: m}, mem, opts)
			if err := r.Err(verify.Content{Torrent: m}); err != nil || r.FirstBad != -1 {
				t.Fatalf("%s, %s: %v", kind, name, err)
			}
			var total int64
			files := 0
			for i, f := range m.Files {
				if f.Kind != torrent.Regular {
					continue
				}
				files++
				total += f.Bytes
				got := r.Files[i]
				if got.State != verify.Complete || got.GoodBytes != f.Bytes || got.SHA256 != sha256.Sum256(mem.data[i]) {
					t.Fatalf("%s, %s: %s: %+v", kind, name, f.Path, got)
				}
			}
			if r.BytesRead != total || r.FilesChecked != files || r.PiecesGood != m.Pieces || r.PiecesChecked != m.Pieces {
				t.Errorf("%s, %s: %d bytes, %d files, %d of %d pieces", kind, name, r.BytesRead, r.FilesChecked, r.PiecesGood, m.Pieces)
			}
			if last != (verify.Progress{Bytes: total, TotalBytes: total, Files: files, TotalFiles: files}) {
				t.Errorf("%s, %s: last progress %+v", kind, name, last)
			}
		}
	}
}

func TestShortReads(t *testing.T) {
	t.Parallel()
	m, mem := load(t, kinds["hybrid"], entries(rand.New(rand.NewPCG(3, 4)), 8))
	mem.short = true
	if r := run(t, verify.Content{Torrent: m}, mem, verify.Options{}); r.FirstBad != -1 {
		t.Fatal(r.Err(verify.Content{Torrent: m}))
	}
}

// TestFindsTheFirstBadFile spoils content at random and compares every way to run with what was done.
func TestFindsTheFirstBadFile(t *testing.T) {
	t.Parallel()
	list := entries(rand.New(rand.NewPCG(5, 6)), 25)
	for kind, o := range kinds {
		for seed := range uint64(6) {
			rng := rand.New(rand.NewPCG(seed, 7))
			m, mem := load(t, o, list)
			digests := map[int][32]byte{}
			var regular []int
			for i, f := range m.Files {
				if f.Kind == torrent.Regular {
					digests[i] = sha256.Sum256(mem.data[i])
					if f.Bytes > 0 {
						regular = append(regular, i)
					}
				}
			}
			spoiled := map[int]verify.State{}
			for range 3 {
				i := regular[rng.IntN(len(regular))]
				if spoiled[i] != verify.NotAsked {
					continue
				}
				spoiled[i] = spoil(rng, mem, i)
			}
			want := func(i int) ([32]byte, bool) { d, ok := digests[i]; return d, ok }
			for name, opts := range settings {
				c := verify.Content{Torrent: m, Want: want}
				r := run(t, c, mem, opts)
				first := len(m.Files)
				for i := range spoiled {
					first = min(first, i)
				}
				err := r.Err(c)
				code := "INTEGRITY_FAILURE"
				if spoiled[first] == verify.Changed {
					code = "STALE_FINGERPRINT"
				}
				if d := fault.Details(err); r.FirstBad != first || d["error_code"] != code || d["path"] != m.Files[first].Path {
					t.Fatalf("%s, seed %d, %s: blamed %d (%v), spoiled %v", kind, seed, name, r.FirstBad, err, spoiled)
				}
				if got := r.Files[first].State; got != spoiled[first] {
					t.Fatalf("%s, seed %d, %s: state %d, spoiled %v", kind, seed, name, got, spoiled)
				}
				if opts.StopAtFirstBad {
					continue
				}
				for i := range m.Files {
					state, bad := r.Files[i].State, spoiled[i]
					if bad != verify.NotAsked && state != bad {
						t.Fatalf("%s, seed %d, %s: file %d is %d, spoiled as %d", kind, seed, name, i, state, bad)
					}
					if bad == verify.NotAsked && state.Bad() && (state != verify.PieceDiffers || m.Aligned) {
						t.Fatalf("%s, seed %d, %s: file %d is %d and was left alone", kind, seed, name, i, state)
					}
				}
			}
		}
	}
}

func spoil(rng *rand.Rand, m *memory, i int) verify.State {
	switch rng.IntN(5) {
	case 0:
		delete(m.data, i)
		return verify.Absent
	case 1:
		m.data[i] = m.data[i][:rng.IntN(len(m.data[i]))]
		return verify.SizeDiffers
	case 2:
		m.data[i] = append(m.data[i], 0)
		return verify.SizeDiffers
	case 3:
		if m.after == nil {
			m.after = map[int]int64{}
		}
		m.after[i] = int64(len(m.data[i])) + 1
		return verify.Changed
	}
	m.data[i][rng.IntN(len(m.data[i]))] ^= 1
	return verify.DigestDiffers
}

func TestPieceAloneFindsAFlippedByte(t *testing.T) {
	t.Parallel()
	list := entries(rand.New(rand.NewPCG(8, 9)), 20)
	for kind, o := range kinds {
		m, mem := load(t, o, list)
		at := 11
		for m.Files[at].Kind != torrent.Regular || m.Files[at].Bytes < 80_000 {
			at++
		}
		mem.data[at][50_000] ^= 1
		r := run(t, verify.Content{Torrent: m}, mem, verify.Options{})
		f := r.Files[at]
		piece := int((m.Files[at].Offset + 50_000) / m.PieceBytes)
		if f.State != verify.PieceDiffers || f.BadPiece != piece || r.FirstBad != at || r.PiecesChecked-r.PiecesGood != 1 {
			t.Errorf("%s: %+v, first bad %d, file %d, piece %d", kind, f, r.FirstBad, at, piece)
		}
		if err := r.Err(verify.Content{Torrent: m}); !strings.Contains(err.Error(), fmt.Sprint("piece ", piece)) || !strings.Contains(err.Error(), m.Files[at].Path) {
			t.Errorf("%s: %v", kind, err)
		}
		if f.GoodBytes != m.Files[at].Bytes-m.PieceBytes {
			t.Errorf("%s: %d good bytes of %d", kind, f.GoodBytes, m.Files[at].Bytes)
		}
	}
}

func TestPartialSelection(t *testing.T) {
	t.Parallel()
	list := entries(rand.New(rand.NewPCG(10, 11)), 30)
	for kind, o := range kinds {
		m, mem := load(t, o, list)
		for i := range m.Files {
			if i%3 == 1 {
				delete(mem.data, i)
			}
		}
		c := verify.Content{Torrent: m, Selected: func(i int) bool { return i%3 != 1 }}
		r := run(t, c, mem, verify.Options{})
		if err := r.Err(c); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		gaps := map[int]bool{}
		for _, g := range torrent.Coverage(m.Spans(c.Selected), nil) {
			gaps[int(g.Piece)] = true
		}
		if (len(gaps) == 0) != m.Aligned {
			t.Errorf("%s: %d gaps", kind, len(gaps))
		}
		for i, f := range m.Files {
			if f.Kind != torrent.Regular || f.Bytes == 0 {
				continue
			}
			want := verify.Complete
			for p := m.Span(i).First; p <= m.Span(i).Last; p++ {
				if gaps[p] {
					want = verify.Unproven
				}
			}
			if i%3 == 1 {
				want = verify.NotAsked
			}
			if r.Files[i].State != want {
				t.Errorf("%s: file %d is %d, want %d", kind, i, r.Files[i].State, want)
			}
		}
		if r.PiecesSkipped == 0 || r.PiecesGood+r.PiecesSkipped != m.Pieces {
			t.Errorf("%s: %d good, %d skipped of %d", kind, r.PiecesGood, r.PiecesSkipped, m.Pieces)
		}
	}
}

func TestWithoutATorrent(t *testing.T) {
	t.Parallel()
	mem := &memory{data: map[int][]byte{0: []byte("abc"), 1: {}, 2: torrenttest.Bytes(1, 5<<20)}}
	c := verify.Content{Files: []verify.Entry{{Path: "t/a", Bytes: 3}, {Path: "t/b"}, {Path: "t/c", Bytes: 5 << 20}, {Path: "t/l", Symlink: true}}}
	for _, readers := range []int{1, 3} {
		r := run(t, c, mem, verify.Options{Readers: readers})
		for i := range 3 {
			if f := r.Files[i]; f.State != verify.Complete || f.SHA256 != sha256.Sum256(mem.data[i]) || f.GoodBytes != int64(len(mem.data[i])) {
				t.Errorf("file %d: %+v", i, f)
			}
		}
		if r.FirstBad != -1 || r.Files[3].State != verify.NotAsked || r.Pieces != nil {
			t.Errorf("%+v", r)
		}
	}
}

func TestNothingToRead(t *testing.T) {
	t.Parallel()
	r := run(t, verify.Content{}, &memory{}, verify.Options{Readers: 2})
	if r.FirstBad != -1 || len(r.Files) != 0 {
		t.Errorf("%+v", r)
	}
	m, mem := load(t, kinds["v1"], entries(rand.New(rand.NewPCG(1, 1)), 3))
	if _, err := verify.Run(t.Context(), verify.Content{Torrent: m, Files: []verify.Entry{{}}}, mem, verify.Options{}); !fault.Is(err, fault.Internal) {
		t.Errorf("a torrent and files: %v", err)
	}
}

func TestReadErrorsNameTheFileAndEndTheRun(t *testing.T) {
	t.Parallel()
	list := entries(rand.New(rand.NewPCG(12, 13)), 20)
	for name, c := range map[string]struct {
		set  func(*memory, int)
		code any
	}{
		"read": {func(m *memory, i int) { m.readErr = map[int]error{i: syscall.EIO}; m.short = true }, "READ_ERROR"},
		"open": {func(m *memory, i int) { m.openErr = map[int]error{i: syscall.EIO} }, "READ_ERROR"},
	} {
		for _, readers := range []int{1, 4} {
			m, mem := load(t, kinds["v1"], list)
			at := 11
			for m.Files[at].Bytes < 1000 {
				at++
			}
			c.set(mem, at)
			r, err := verify.Run(t.Context(), verify.Content{Torrent: m}, mem, verify.Options{Readers: readers})
			if d := fault.Details(err); r != nil || d["error_code"] != c.code || d["path"] != m.Files[at].Path || !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v, %v", name, err, d)
			}
			if mem.open.Load() != 0 {
				t.Errorf("%s: files were left open", name)
			}
		}
	}
	m, mem := load(t, kinds["v1"], list)
	denied := &beneath.Error{Code: beneath.PermissionDenied, Op: beneath.OpOpen, Path: m.Files[2].Path, Err: syscall.EACCES}
	mem.openErr = map[int]error{2: denied}
	if _, err := verify.Run(t.Context(), verify.Content{Torrent: m}, mem, verify.Options{}); beneath.CodeOf(err) != beneath.PermissionDenied {
		t.Errorf("an error of beneath lost its code: %v", err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	m, mem := load(t, kinds["hybrid"], entries(rand.New(rand.NewPCG(14, 15)), 30))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reads atomic.Int64
	mem.read = func(int, int64) {
		if reads.Add(1) == 20 {
			cancel()
		}
	}
	_, err := verify.Run(ctx, verify.Content{Torrent: m}, mem, verify.Options{BufferBytes: 1000})
	if !errors.Is(err, context.Canceled) || reads.Load() > 25 || mem.open.Load() != 0 {
		t.Fatalf("%v after %d reads, %d open", err, reads.Load(), mem.open.Load())
	}
}

func TestStopsReadingAfterABadFile(t *testing.T) {
	t.Parallel()
	m, mem := load(t, kinds["v2"], entries(rand.New(rand.NewPCG(16, 17)), 400))
	at := 1
	for m.Files[at].Bytes == 0 {
		at++
	}
	delete(mem.data, at)
	run(t, verify.Content{Torrent: m}, mem, verify.Options{StopAtFirstBad: true})
	if n := mem.opened.Load(); int(n) > at {
		t.Fatalf("%d files were opened, the bad one is number %d", n, at)
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	mem := &memory{data: map[int][]byte{0: make([]byte, 10_000)}}
	var read atomic.Int64
	mem.read = func(int, int64) { read.Add(1000) }
	done := make(chan error)
	go func() {
		_, err := verify.Run(t.Context(), verify.Content{Files: []verify.Entry{{Path: "f", Bytes: 10_000}}}, mem,
			verify.Options{BytesPerSecond: 2000, BufferBytes: 1000, Clock: fake})
		done <- err
	}()
	for n := range 10 {
		fake.BlockUntil(1)
		if got := read.Load(); got != int64(n+1)*1000 {
			t.Fatalf("%d bytes read after %d half seconds", got, n)
		}
		fake.Advance(500 * time.Millisecond)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestManySmallFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 200,000 files")
	}
	t.Parallel()
	files := make([]verify.Entry, torrent.MaxFiles)
	mem := &memory{data: make(map[int][]byte, len(files))}
	for i := range files {
		files[i] = verify.Entry{Path: fmt.Sprint("d/", i), Bytes: 1}
		mem.data[i] = []byte{byte(i)}
	}
	r := run(t, verify.Content{Files: files}, mem, verify.Options{Readers: 2})
	if r.FirstBad != -1 || r.FilesChecked != len(files) {
		t.Fatalf("%d files", r.FilesChecked)
	}
}

var _ io.ReaderAt = (*memoryFile)(nil)
