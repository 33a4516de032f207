package verify_test

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/archive/verify"
)

type onDisk struct {
	root  *beneath.Root
	files []torrent.File
}

func (d onDisk) OpenFile(_ context.Context, i int) (verify.File, error) {
	return d.root.Open(d.files[i].Path)
}

// BenchmarkContent compares the engine with one sequential read of the same files in one goroutine that feeds the same
// digests. What VERIFY must compute for each byte is the SHA-256 of the file and the hashes of the torrent: SHA-1 of v1
// pieces, SHA-256 of v2 blocks of 16 KiB, or both for a hybrid torrent, which so needs a third digest that no reading
// can save. "read+sha256+sha1" is the baseline of "v1" and "v2", "read+sha256+sha1+blocks" that of "hybrid". Goal G15 is
// a throughput of at least 0.9 of the baseline's; cpu-ns/KiB is the processor time of the whole process, which other
// programs on the machine disturb less.
func BenchmarkContent(b *testing.B) {
	const files, size = 8, 16 << 20
	var list []torrenttest.Entry
	for i := range files {
		list = append(list, torrenttest.Entry{Path: fmt.Sprint("f", i), Data: torrenttest.Bytes(byte(i), size+i*1000)})
	}
	dir := b.TempDir()
	torrenttest.Lay(b, filepath.Join(dir, "n"), list)
	root, err := beneath.Open(dir, beneath.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	measure := func(name string, pass func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(files * size)
			runtime.GC()
			before := processorTime(b)
			for b.Loop() {
				pass(b)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/(files*size>>10), "cpu-ns/KiB")
		})
	}
	engine := func(m *torrent.Metainfo) func(b *testing.B) {
		return func(b *testing.B) {
			r, err := verify.Run(b.Context(), verify.Content{Torrent: m}, onDisk{root, m.Files}, verify.Options{})
			if err != nil || r.FirstBad != -1 {
				b.Fatal(err, r.FirstBad)
			}
		}
	}
	baseline := func(others ...io.Writer) func(b *testing.B) {
		buf := make([]byte, 256<<10)
		return func(b *testing.B) {
			for _, e := range list {
				f, err := os.Open(filepath.Join(dir, "n", e.Path))
				if err != nil {
					b.Fatal(err)
				}
				to := io.MultiWriter(append([]io.Writer{sha256.New()}, others...)...)
				if _, err := io.CopyBuffer(onlyWriter{to}, onlyReader{f}, buf); err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		}
	}
	made := map[string]*torrent.Metainfo{}
	for _, kind := range []string{"v1", "v2", "hybrid"} {
		o := kinds[kind]
		o.PieceBytes = 1 << 20
		if made[kind], err = torrent.Parse(torrenttest.Make(o, list)); err != nil {
			b.Fatal(err)
		}
	}
	measure("read+sha256+sha1", baseline(sha1.New()))
	measure("v1", engine(made["v1"]))
	measure("v2", engine(made["v2"]))
	measure("read+sha256+sha1+blocks", baseline(sha1.New(), &blocks{sum: sha256.New()}))
	measure("hybrid", engine(made["hybrid"]))
}

// blocks is SHA-256 of every 16 KiB, without the tree above them.
type blocks struct {
	sum  hash.Hash
	have int
	out  [sha256.Size]byte
}

func (w *blocks) Write(p []byte) (int, error) {
	all := len(p)
	for len(p) > 0 {
		n := min(len(p), 16<<10-w.have)
		w.sum.Write(p[:n])
		p = p[n:]
		if w.have += n; w.have == 16<<10 {
			w.sum.Sum(w.out[:0])
			w.sum.Reset()
			w.have = 0
		}
	}
	return all, nil
}

// processorTime is what the process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type onlyWriter struct{ io.Writer }

type onlyReader struct{ io.Reader }
