package copyfile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/copyfile"
)

const (
	byRename  = pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME
	byLink    = pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK
	byReflink = pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK
	byCopy    = pb.MaterializeMethod_MATERIALIZE_METHOD_COPY
	bySparse  = pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE

	stale     = pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT
	integrity = pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE
)

type methods = []pb.MaterializeMethod

func mustCode(t *testing.T, what string, err error, want beneath.Code) {
	t.Helper()
	if got := beneath.CodeOf(err); got != want {
		t.Errorf("%s: code %v, want %v (%v)", what, got, want, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(int64(n))).Read(b)
	return b
}

// content writes a source file of three blocks and a bit, with an old time.
func content(t *testing.T, dir string, n int) []byte {
	t.Helper()
	b := random(n)
	must(t, os.WriteFile(filepath.Join(dir, "source"), b, 0o600))
	old := time.Unix(1_500_000_000, 123456789)
	must(t, os.Chtimes(filepath.Join(dir, "source"), old, old))
	return b
}

func TestEveryMethodBringsTheContent(t *testing.T) {
	for _, c := range []struct {
		name  string
		list  methods
		hooks []beneath.Hook
		want  pb.MaterializeMethod
	}{
		{"rename", methods{byRename, bySparse}, nil, byRename},
		{"link", methods{byLink, bySparse}, nil, byLink},
		{"copy", methods{byCopy}, nil, byCopy},
		{"sparse copy", methods{bySparse}, nil, bySparse},
		{"copy without kernel ranges", methods{bySparse}, []beneath.Hook{beneathtest.Always(beneath.OpCopyRange, "", syscall.EXDEV)}, bySparse},
		{"copy without kernel ranges in the middle", methods{bySparse}, []beneath.Hook{beneathtest.Fail(beneath.OpCopyRange, "", 2, syscall.EINVAL)}, bySparse},
		{"copy without a hole map", methods{bySparse}, []beneath.Hook{beneathtest.Always(beneath.OpSeek, "", syscall.EINVAL)}, bySparse},
		{"reservation not possible", methods{byCopy}, []beneath.Hook{beneathtest.Always(beneath.OpAllocate, "", syscall.EOPNOTSUPP)}, byCopy},
		{"third choice", methods{byLink, byReflink, bySparse}, []beneath.Hook{
			beneathtest.Always(beneath.OpLink, "", syscall.EMLINK), beneathtest.Always(beneath.OpReflink, "", syscall.EOPNOTSUPP)}, bySparse},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			want := content(t, dir, 300_001)
			must(t, os.Chmod(filepath.Join(dir, "source"), 0o755))
			r := beneathtest.Open(t, dir, c.hooks...)
			var logical, data int64
			res, err := copyfile.Place(t.Context(), r, "source", r, "target", c.list, copyfile.Options{Buffer: 100_000, Progress: func(l, d int64) {
				if l < logical || d < data || d > l {
					t.Errorf("progress went from %d/%d to %d/%d", logical, data, l, d)
				}
				logical, data = l, d
			}})
			must(t, err)
			got, err := os.ReadFile(filepath.Join(dir, "target"))
			must(t, err)
			if !bytes.Equal(got, want) || res.SHA256 != sha256.Sum256(want) || !res.Digested || res.Method != c.want {
				t.Fatalf("%d bytes, %+v", len(got), res)
			}
			if logical != 300_001 || data != 300_001 || res.Data != 300_001 || res.Extents != 1 {
				t.Errorf("progress %d/%d, %+v", logical, data, res)
			}
			st, err := r.Lstat("target")
			must(t, err)
			if st != res.Target || st.MtimeNS != res.Source.MtimeNS || !st.Executable() || st.SameFile(res.Source) != (c.want == byLink || c.want == byRename) {
				t.Errorf("target %+v, reported %+v, source %+v", st, res.Target, res.Source)
			}
			if c.want == byCopy && st.Allocated < 300_001 {
				t.Errorf("dense copy has %d bytes allocated", st.Allocated)
			}
		})
	}
}

func TestAcrossFileSystems(t *testing.T) {
	a, b := t.TempDir(), beneathtest.Tmpfs(t, 4<<20)
	want := content(t, a, 300_001)
	src, dst := beneathtest.Open(t, a), beneathtest.Open(t, b)
	if src.SameFilesystem(dst) {
		t.Fatal("one file system")
	}
	_, err := copyfile.Place(t.Context(), src, "source", dst, "target", methods{byRename, byLink, byReflink}, copyfile.Options{})
	mustCode(t, "without a copy in the list", err, beneath.Unsupported)
	if left, err := os.ReadDir(b); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	res, err := copyfile.Place(t.Context(), src, "source", dst, "target", methods{byRename, byLink, byReflink, bySparse}, copyfile.Options{})
	must(t, err)
	got, err := os.ReadFile(filepath.Join(b, "target"))
	if err != nil || !bytes.Equal(got, want) || res.Method != bySparse {
		t.Fatalf("%d bytes, %v, %v", len(got), res.Method, err)
	}
}

func TestAnExistingNameIsLeftAlone(t *testing.T) {
	for _, m := range (methods{byRename, byLink, byReflink, byCopy, bySparse}) {
		dir := t.TempDir()
		content(t, dir, 1000)
		must(t, os.WriteFile(filepath.Join(dir, "target"), []byte("foreign"), 0o600))
		r := beneathtest.Open(t, dir)
		_, err := copyfile.Place(t.Context(), r, "source", r, "target", methods{m}, copyfile.Options{})
		mustCode(t, m.String(), err, beneath.PathConflict)
		if b, err := os.ReadFile(filepath.Join(dir, "target")); err != nil || string(b) != "foreign" {
			t.Fatalf("%v: %q, %v", m, b, err)
		}
	}
}

func TestOneBlockInAGibibyte(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir)
	f, err := r.Create("source", 0o600)
	must(t, err)
	must(t, f.Truncate(1<<30))
	_, err = f.WriteAt(random(4096), 700<<20)
	must(t, err)
	must(t, f.Close())
	res, err := copyfile.Copy(t.Context(), r, "source", r, "target", copyfile.Options{})
	must(t, err)
	if res.Target.Size != 1<<30 || res.Target.Allocated >= 1<<20 || res.Extents != 1 || res.Data > 1<<20 {
		t.Errorf("%+v", res)
	}
}

func TestHolesBetweenAndAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir)
	f, err := r.Create("source", 0o600)
	must(t, err)
	for _, off := range []int64{0, 3 << 20, 9<<20 - 5000} {
		_, err = f.WriteAt(random(10_000), off)
		must(t, err)
	}
	must(t, f.Truncate(16<<20))
	must(t, f.Close())
	want, err := os.ReadFile(filepath.Join(dir, "source"))
	must(t, err)
	for name, o := range map[string]copyfile.Options{"small": {Buffer: 4096}, "odd": {Buffer: 777_777}, "whole": {Buffer: 32 << 20}, "dense": {Dense: true}} {
		res, err := copyfile.Copy(t.Context(), r, "source", r, name, o)
		must(t, err)
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) || res.SHA256 != sha256.Sum256(want) || res.Extents != 3 {
			t.Fatalf("%s: %d bytes, %+v, %v", name, len(got), res, err)
		}
		if dense := res.Target.Allocated >= 16<<20; dense != o.Dense {
			t.Errorf("%s: %d bytes allocated", name, res.Target.Allocated)
		}
		if copyfile.SparseLost(res.Source.Allocated, res.Target.Allocated) != o.Dense {
			t.Errorf("%s: allocation went from %d to %d", name, res.Source.Allocated, res.Target.Allocated)
		}
	}
	read, err := copyfile.Digest(t.Context(), r, "source", copyfile.Options{})
	if err != nil || read.SHA256 != sha256.Sum256(want) || read.Extents != 3 || read.Data >= read.Source.Size {
		t.Fatalf("%+v, %v", read, err)
	}
	if _, err := r.Create("empty", 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := copyfile.Copy(t.Context(), r, "empty", r, "empty copy", copyfile.Options{})
	if err != nil || res.SHA256 != sha256.Sum256(nil) || res.Target.Size != 0 {
		t.Fatal(res, err)
	}
}

// A hole map that hides data must not lead to a copy that is taken for good.
func TestAWrongHoleMapFailsTheCopy(t *testing.T) {
	dir := t.TempDir()
	content(t, dir, 300_001)
	r := beneathtest.Open(t, dir, beneathtest.Always(beneath.OpSeek, "source", syscall.ENXIO))
	_, err := copyfile.Copy(t.Context(), r, "source", r, "target", copyfile.Options{Buffer: 100_000})
	mustCode(t, "copy", err, integrity)
	if _, err := r.Lstat("target"); !beneath.IsNotFound(err) {
		t.Error(err)
	}
	res, err := copyfile.Copy(t.Context(), r, "source", r, "target", copyfile.Options{Buffer: 100_000, Dense: true}) // does not go by the map
	must(t, err)
	got, err := os.ReadFile(filepath.Join(dir, "target"))
	if err != nil || sha256.Sum256(got) != res.SHA256 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestSourceChangedMeanwhile(t *testing.T) {
	for change, do := range map[string]func(name string) error{
		"written": func(name string) error { return os.WriteFile(name, random(300_001), 0o600) },
		"grown":   func(name string) error { return os.Truncate(name, 400_000) },
		"cut off": func(name string) error { return os.Truncate(name, 150_000) },
		"replaced": func(name string) error {
			return errors.Join(os.WriteFile(name+"2", random(300_001), 0o600), os.Rename(name+"2", name))
		},
		"removed": os.Remove,
	} {
		for _, m := range (methods{byLink, bySparse, byCopy, byRename}) {
			dir := t.TempDir()
			content(t, dir, 300_001)
			r := beneathtest.Open(t, dir, beneathtest.At(beneath.OpRead, "source", 2, func(string) error { return do(filepath.Join(dir, "source")) }))
			_, err := copyfile.Place(t.Context(), r, "source", r, "target", methods{m}, copyfile.Options{Buffer: 100_000})
			mustCode(t, change+" "+m.String(), err, stale)
			if _, err := r.Lstat("target"); !beneath.IsNotFound(err) {
				t.Errorf("%s, %v: the target is there (%v)", change, m, err)
			}
		}
	}
}

func TestCheckSeesTheSourceFirst(t *testing.T) {
	dir := t.TempDir()
	content(t, dir, 1000)
	r := beneathtest.Open(t, dir)
	refused := errors.New("not the file of the preview")
	for _, m := range (methods{byRename, byLink, byReflink, byCopy, bySparse}) {
		_, err := copyfile.Place(t.Context(), r, "source", r, "target", methods{m}, copyfile.Options{Check: func(st beneath.Stat) error {
			if st.Size != 1000 {
				t.Error(st)
			}
			return refused
		}})
		if err != refused {
			t.Errorf("%v: %v", m, err)
		}
		if _, err := r.Lstat("target"); !beneath.IsNotFound(err) {
			t.Error(err)
		}
	}
}

func TestExpectedDigest(t *testing.T) {
	for _, m := range (methods{byRename, byLink, byCopy, bySparse}) {
		dir := t.TempDir()
		want := sha256.Sum256(content(t, dir, 1000))
		r := beneathtest.Open(t, dir)
		other := sha256.Sum256(nil)
		_, err := copyfile.Place(t.Context(), r, "source", r, "target", methods{m}, copyfile.Options{SHA256: &other, SkipDigest: true})
		mustCode(t, m.String(), err, integrity)
		if _, err := r.Lstat("target"); !beneath.IsNotFound(err) {
			t.Error(err)
		}
		_, err = copyfile.Place(t.Context(), r, "source", r, "target", methods{m}, copyfile.Options{SHA256: &want})
		must(t, err)
	}
}

func TestFaultsOfTheDisk(t *testing.T) {
	fail := func(op beneath.Op, name string, n int, errno syscall.Errno) func() beneath.Hook {
		return func() beneath.Hook { return beneathtest.Fail(op, name, n, errno) }
	}
	unranged := func(hook func() beneath.Hook) func() beneath.Hook {
		return func() beneath.Hook {
			return beneathtest.All(beneathtest.Always(beneath.OpCopyRange, "", syscall.EXDEV), hook())
		}
	}
	for _, c := range []struct {
		name string
		hook func() beneath.Hook
		want beneath.Code
	}{
		{"bad sector", fail(beneath.OpRead, "source", 2, syscall.EIO), beneath.ReadError},
		{"no space for a range", fail(beneath.OpCopyRange, "", 2, syscall.ENOSPC), beneath.NoSpace},
		{"no space", unranged(fail(beneath.OpWrite, "", 2, syscall.ENOSPC)), beneath.NoSpace},
		{"write error", unranged(fail(beneath.OpWrite, "", 2, syscall.EIO)), beneath.WriteError},
		{"flush error", fail(beneath.OpSync, "", 1, syscall.EIO), beneath.WriteError},
		{"error on close", fail(beneath.OpClose, "target", 1, syscall.EIO), beneath.WriteError},
	} {
		for _, resume := range []bool{false, true} {
			dir := t.TempDir()
			content(t, dir, 300_001)
			r := beneathtest.Open(t, dir, c.hook())
			_, err := copyfile.Copy(t.Context(), r, "source", r, "target", copyfile.Options{Buffer: 100_000, Resume: resume})
			mustCode(t, c.name, err, c.want)
			var e *beneath.Error
			if errors.As(err, &e) && e.Path != "source" && e.Path != "target" {
				t.Errorf("%s: names %q", c.name, e.Path)
			}
			if _, err := r.Lstat("target"); beneath.IsNotFound(err) == resume {
				t.Errorf("%s, resume %v: %v", c.name, resume, err)
			}
		}
	}
}

func TestCopyGoesOnWhenThereIsRoomAgain(t *testing.T) {
	a, b := t.TempDir(), beneathtest.Tmpfs(t, 1<<20)
	want := content(t, a, 3<<20)
	src, dst := beneathtest.Open(t, a), beneathtest.Open(t, b)
	o := copyfile.Options{Buffer: 64 << 10, Resume: true}
	_, err := copyfile.Copy(t.Context(), src, "source", dst, "target", o)
	mustCode(t, "copy to a full disk", err, beneath.NoSpace)
	part, err := dst.Lstat("target")
	must(t, err)
	if part.Size < 512<<10 {
		t.Fatalf("%d bytes kept", part.Size)
	}
	must(t, unix.Mount("", b, "", unix.MS_REMOUNT, "size=8m"))
	res, err := copyfile.Copy(t.Context(), src, "source", dst, "target", o)
	must(t, err)
	got, err := os.ReadFile(filepath.Join(b, "target"))
	if err != nil || !bytes.Equal(got, want) || res.SHA256 != sha256.Sum256(want) {
		t.Fatal(len(got), err)
	}
	if res.Resumed != part.Size {
		t.Errorf("%d bytes of %d were used again", res.Resumed, part.Size)
	}
}

func TestResume(t *testing.T) {
	for _, dense := range []bool{false, true} {
		for _, c := range []struct {
			name    string
			left    func(want []byte) []byte
			resumed int64
		}{
			{"nothing", func([]byte) []byte { return nil }, 0},
			{"a beginning", func(b []byte) []byte { return b[:150_000] }, 150_000},
			{"everything", func(b []byte) []byte { return b }, 300_001},
			{"more than everything", func(b []byte) []byte { return append(bytes.Clone(b), "more"...) }, 300_001},
			{"other bytes", func(b []byte) []byte { return random(123) }, 0},
			{"a beginning, then zeros", func(b []byte) []byte { return append(bytes.Clone(b[:150_000]), make([]byte, 150_001)...) }, 100_000},
			{"one wrong byte", func(b []byte) []byte { b = bytes.Clone(b); b[250_000]++; return b }, 200_000},
		} {
			dir := t.TempDir()
			want := content(t, dir, 300_001)
			must(t, os.WriteFile(filepath.Join(dir, "target"), c.left(want), 0o600))
			r := beneathtest.Open(t, dir)
			res, err := copyfile.Copy(t.Context(), r, "source", r, "target", copyfile.Options{Buffer: 100_000, Resume: true, Dense: dense})
			must(t, err)
			got, err := os.ReadFile(filepath.Join(dir, "target"))
			if err != nil || !bytes.Equal(got, want) || res.SHA256 != sha256.Sum256(want) || res.Resumed != c.resumed {
				t.Errorf("%s, dense %v: %d bytes, %d resumed, %v", c.name, dense, len(got), res.Resumed, err)
			}
		}
	}
}

// A name that an earlier link left must never be written through: it is the source.
func TestResumeNeverWritesThroughALink(t *testing.T) {
	dir := t.TempDir()
	content(t, dir, 1000)
	must(t, os.WriteFile(filepath.Join(dir, "foreign"), []byte("foreign"), 0o600))
	r := beneathtest.Open(t, dir)
	must(t, r.Link("source", r, "linked"))
	must(t, r.Link("foreign", r, "shared"))
	must(t, r.Symlink("foreign", "pointing"))
	for name, want := range map[string]beneath.Code{"linked": beneath.PathConflict, "shared": beneath.PathConflict, "pointing": beneath.PathUnsafe} {
		_, err := copyfile.Copy(t.Context(), r, "source", r, name, copyfile.Options{Resume: true})
		mustCode(t, name, err, want)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "foreign")); err != nil || string(b) != "foreign" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestCancelKeepsThePartialFile(t *testing.T) {
	dir := t.TempDir()
	content(t, dir, 300_001)
	r := beneathtest.Open(t, dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("step cancelled")
	o := copyfile.Options{Buffer: 100_000, Resume: true, Progress: func(logical, _ int64) {
		if logical == 200_000 {
			cancel(stop)
		}
	}}
	if _, err := copyfile.Copy(ctx, r, "source", r, "target", o); err != stop {
		t.Fatal(err)
	}
	if st, err := r.Lstat("target"); err != nil || st.Size != 200_000 {
		t.Fatal(st, err)
	}
}

func TestSparseLost(t *testing.T) {
	for _, c := range []struct {
		source, target int64
		lost           bool
	}{
		{0, 1 << 20, false}, {0, 1<<20 + 1, true}, {100 << 20, 105 << 20, false}, {100 << 20, 105<<20 + 1, true},
		{10 << 20, 11 << 20, false}, {10 << 20, 11<<20 + 1, true}, {5 << 20, 1 << 20, false},
	} {
		if copyfile.SparseLost(c.source, c.target) != c.lost {
			t.Errorf("%+v", c)
		}
	}
}

func TestReflink(t *testing.T) {
	dir := beneathtest.Cloning(t)
	want := content(t, dir, 300_001)
	r := beneathtest.Open(t, dir)
	m, err := r.Probe(t.Context())
	must(t, err)
	if !m.Profile.SupportsReflink {
		t.Error(m)
	}
	res, err := copyfile.Place(t.Context(), r, "source", r, "target", methods{byReflink}, copyfile.Options{})
	must(t, err)
	if res.Method != byReflink || res.SHA256 != sha256.Sum256(want) || res.Target.SameFile(res.Source) || res.Target.MtimeNS != res.Source.MtimeNS {
		t.Errorf("%+v", res)
	}
	must(t, os.WriteFile(filepath.Join(dir, "source"), []byte("other"), 0o600)) // the clone is a file of its own
	if got, err := os.ReadFile(filepath.Join(dir, "target")); err != nil || !bytes.Equal(got, want) {
		t.Fatal(len(got), err)
	}

	content(t, dir, 300_001)
	grow := beneathtest.At(beneath.OpRead, "late", 1, func(string) error { return os.Truncate(filepath.Join(dir, "source"), 400_000) })
	_, err = copyfile.Place(t.Context(), beneathtest.Open(t, dir, grow), "source", beneathtest.Open(t, dir, grow), "late", methods{byReflink}, copyfile.Options{})
	mustCode(t, "changed after the clone", err, stale)
	if _, err := r.Lstat("late"); !beneath.IsNotFound(err) {
		t.Error(err)
	}
}
