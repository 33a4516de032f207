package work_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// manyFiles makes a tree of n small files, a thousand to a directory.
func (r *rig) manyFiles(n int) {
	r.t.Helper()
	for i := range n {
		dir := r.src.at("content", fmt.Sprintf("many/%03d", i/1000))
		if i%1000 == 0 {
			must(r.t, os.MkdirAll(dir, 0o755))
		}
		must(r.t, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), strconv.AppendInt(nil, int64(i), 10), 0o644))
	}
}

// heap is what is in use now.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestManyFiles bounds the commits and the memory of a large tree: a few for every 64 files, and less than 3 KiB a file.
func TestManyFiles(t *testing.T) {
	files := 6_000
	if n, err := strconv.Atoi(os.Getenv("SIGNALBOX_TEST_FILES")); err == nil {
		files = n // 200000 is the protocol's limit
	}
	r := newRig(t)
	r.manyFiles(files)
	r.start()
	r.transfer("many")
	r.def.Policies.StageMethods = methods{bySparse}
	r.dst.hooks["receive"] = elsewhere
	batches := (files + 63) / 64
	for _, step := range plan(r.def) {
		j := r.where(step).journal.(*memory)
		before, peak := j.puts, uint64(0)
		base := heap()
		r.where(step).reached = func(point string) {
			if point == "materialize: built" || point == "stage: before the manifest" || point == "transfer: ready.json" || point == "verify: read" {
				peak = heap()
			}
		}
		r.steps(step)
		r.where(step).reached = nil
		per := float64(peak-min(peak, base)) / float64(files)
		t.Logf("%v: %d journal writes, %.0f bytes a file", step, j.puts-before, per)
		if got := j.puts - before; got > 3*batches+20 {
			t.Errorf("%v: %d journal writes for %d files", step, got, files)
		}
		if per > 3<<10 {
			t.Errorf("%v: %.0f bytes a file", step, per)
		}
	}
	r.close()
	r.noLeftovers()
	if got, want := len(fileNames(listing(t, r.dst.paths["content"]))), files; got != want {
		t.Errorf("%d files arrived, want %d", got, want)
	}
}

// benchBytes is the size of the content that benchmarks move; figures are for a GiB by the rate.
const benchBytes = 256 << 20

// benchRig makes content of four files and an open job, on the disk of the temporary directory.
func benchRig(b *testing.B) *rig {
	r := newRigIn(b, b.TempDir())
	for i := range byte(4) {
		r.src.put("bench/"+strconv.Itoa(int(i)), torrenttest.Bytes(i, benchBytes/4), 0o644)
	}
	r.dst.hooks["receive"] = elsewhere
	r.start()
	r.transfer("bench")
	r.def.Policies.StageMethods, r.def.Policies.MaterializeMethods = methods{bySparse}, methods{bySparse}
	return r
}

// benchStep measures one step of a copying job.
func benchStep(b *testing.B, step pb.JobStep) {
	for b.Loop() {
		b.StopTimer()
		r := benchRig(b)
		for _, before := range plan(r.def) {
			if before == step {
				break
			}
			if _, err := r.run(before); err != nil {
				b.Fatal(err)
			}
		}
		unix.Sync()
		b.StartTimer()
		if _, err := r.run(step); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = os.RemoveAll(filepath.Dir(r.src.dir))
		b.StartTimer()
	}
	b.SetBytes(benchBytes)
}

// BenchmarkStage, BenchmarkTransfer and BenchmarkMaterialize copy, digest and flush; BenchmarkPlainCopy is the same by the
// plainest means, to compare with in one run.
func BenchmarkStage(b *testing.B)       { benchStep(b, stage) }
func BenchmarkTransfer(b *testing.B)    { benchStep(b, transfer) }
func BenchmarkMaterialize(b *testing.B) { benchStep(b, materialize) }

func BenchmarkPlainCopy(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		r := benchRig(b)
		unix.Sync()
		b.StartTimer()
		for i := range 4 {
			if err := plainCopy(r.src.at("content", "bench/"+strconv.Itoa(i)), filepath.Join(r.dst.dir, strconv.Itoa(i))); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		_ = os.RemoveAll(filepath.Dir(r.src.dir))
		b.StartTimer()
	}
	b.SetBytes(benchBytes)
}

func plainCopy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	sum := sha256.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(out, sum)}, struct{ io.Reader }{in}, make([]byte, 1<<20)); err != nil {
		return err
	}
	return out.Sync()
}
