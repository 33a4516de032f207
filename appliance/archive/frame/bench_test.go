package frame

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid/validtest"
)

// benchFrames are an envelope of about 2 KB and a chunk of 1,000 files.
func benchFrames(tb testing.TB) map[string][]byte {
	tb.Helper()
	chunk := validtest.Envelopes()["inventory_chunk_1"]
	part := chunk.GetInventoryChunk().GetContentTree()
	part.Files = nil
	for i := range 1000 {
		f := validtest.File(uint32(i))
		f.Hidden, f.Executable, f.Sparse, f.PiecesRoot = false, false, false, ""
		part.Files = append(part.Files, f)
	}
	chunk.GetInventoryChunk().EntriesTotal = 1000
	out := make(map[string][]byte)
	for name, e := range map[string]*pb.Envelope{"envelope": validtest.Envelopes()["job_event_20"], "chunk": chunk} {
		b, err := Marshal(e)
		if err != nil {
			tb.Fatal(err)
		}
		out[name] = b
	}
	return out
}

func BenchmarkDecode(b *testing.B) {
	for name, data := range benchFrames(b) {
		b.Run(name, func(b *testing.B) {
			o := Options{From: FromControl, Registered: true}
			if name == "chunk" {
				o.From = FromClient
			}
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if f, v := Decode(data, o); v != nil || f.Refusal != nil {
					b.Fatal(v, f)
				}
			}
		})
	}
}

// BenchmarkScan reports what the scan costs relative to the parser that reads the same bytes (goal: at most 0.06). Both
// count by their fastest round, so that other load on the machine does not decide the ratio.
func BenchmarkScan(b *testing.B) {
	for name, data := range benchFrames(b) {
		b.Run(fmt.Sprintf("%s-%d", name, len(data)), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			rounds := 1 + 100_000/len(data)
			scanning := time.Duration(math.MaxInt64)
			for b.Loop() {
				start := time.Now()
				for range rounds {
					if _, v := scan(data, roleEnvelope, bounds{entries: 2000}); v != nil {
						b.Fatal(v)
					}
				}
				scanning = min(scanning, time.Since(start))
			}
			parse := time.Duration(math.MaxInt64)
			for range 100 {
				start := time.Now()
				for range rounds {
					if err := protojson.Unmarshal(data, new(pb.Envelope)); err != nil {
						b.Fatal(err)
					}
				}
				parse = min(parse, time.Since(start))
			}
			b.ReportMetric(float64(scanning)/float64(parse), "x-protojson")
			b.ReportMetric(float64(scanning)/float64(rounds), "ns/scan")
		})
	}
}

// TestMemoryOfDecoding feeds the frames that make the most of their bytes. What a decode allocates stays below a fixed
// multiple of the frame, whatever is in it.
func TestMemoryOfDecoding(t *testing.T) {
	const size = 512 << 10
	fill := func(head, element, tail string) []byte {
		out := []byte(head)
		for n := 0; len(out) < size; n++ {
			if n > 0 {
				out = append(out, ',')
			}
			if element == "key" {
				out = fmt.Appendf(out, `"%x":1`, n)
			} else {
				out = append(out, element...)
			}
		}
		return append(out, tail...)
	}
	for name, c := range map[string]struct {
		data []byte
		o    Options
	}{
		"empty cursors":  {fill(`{"registerRequest":{"activeJobs":[`, `{}`, `]}}`), Options{From: FromClient}},
		"empty entries":  {fill(`{"inventoryChunk":{"contentTree":{"files":[`, `{}`, `]}}}`), Options{From: FromClient, Registered: true}},
		"empty events":   {fill(`{"jobSnapshot":{"events":[`, `{}`, `]}}`), Options{From: FromClient, Registered: true}},
		"empty updates":  {fill(`{"inventoryChunk":{"routes":{"entries":[{"updates":[`, `{}`, `]}]}}}`), Options{From: FromClient, Registered: true}},
		"small updates":  {fill(`{"inventoryChunk":{"routes":{"entries":[{"updates":[`, `{"a":1}`, `]}]}}}`), Options{From: FromClient, Registered: true, PeerMinor: 1}},
		"empty texts":    {fill(`{"registerRequest":{"capabilities":[`, `""`, `]}}`), Options{From: FromClient}},
		"keys":           {fill(`{"x":{`, "key", `}}`), Options{From: FromClient, Registered: true, PeerMinor: 1}},
		"keys of a map":  {fill(`{"protocolError":{"error":{"details":{`, "key", `}}}}`), Options{From: FromClient, Registered: true}},
		"other payloads": {fill(`{"jobEvent":{"x":[`, `{}`, `]}}`), Options{From: FromClient}},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, v := Decode(c.data, c.o)
			runtime.ReadMemStats(&after)
			if v == nil {
				t.Fatal("accepted")
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 64*size {
				t.Errorf("%d bytes for %d: %v", used, len(c.data), v)
			} else {
				t.Logf("%.1f times the frame: %v", float64(used)/float64(len(c.data)), v)
			}
		})
	}
}
