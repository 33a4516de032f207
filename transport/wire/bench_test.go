package wire

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"testing"
	"time"

	"signalbox/appliance/rawjson"
)

// benchBatch signs an event_batch of n events.
func benchBatch(b *testing.B, n int) []byte {
	b.Helper()
	payload := []byte(`{"events":[`)
	for i := range n {
		if i > 0 {
			payload = append(payload, ',')
		}
		payload = fmt.Appendf(payload, `{"id":"0b7f3c52-8f0e-4a43-9a38-%012d","kind":"task.succeeded","engine":"celery","task_id":"4f1d1d0e-8a90-4c6e-b1a0-%012d","occurred_at":"2026-01-02T03:04:05.%06d+00:00","data":{"task_name":"app.tasks.deliver_mail","queue":"emails","worker":"celery@box-%d","runtime_ms":%d.%d,"result":"{\"status\": \"sent\"}","args":"['user-%d']","kwargs":"{}","retries":0}}`,
			i, i*7, i*311, i%8, 100+i, i%10, i)
	}
	payload = append(payload, `]}`...)
	canonical, err := rawjson.Canonical(payload)
	if err != nil {
		b.Fatal(err)
	}
	signed := NewSigner(testBinding).Sign(testNow, TypeEventBatch, "ev_00112233445566778899aabbccddeeff", canonical)
	// The peer sends another order than the one it signs.
	return bytes.Replace(signed, canonical, payload, 1)
}

// BenchmarkVerify parses and authenticates one frame, and reports the cost of the fastest round relative to the
// fastest SHA-256 over the same bytes.
func BenchmarkVerify(b *testing.B) {
	for _, n := range []int{1, 250} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			in := benchBatch(b, n)
			v := NewVerifier(testBinding)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			best := time.Duration(math.MaxInt64)
			for b.Loop() {
				start := time.Now()
				f, err := ParseFrame(in)
				if err != nil {
					b.Fatal(err)
				}
				v.seq, v.nonces = 0, nonceMemory{}
				if err := v.Verify(&f, testNow); err != nil {
					b.Fatal(err)
				}
				f.Release()
				best = min(best, time.Since(start))
			}
			hash := time.Duration(math.MaxInt64)
			for range 200 {
				start := time.Now()
				sha256.Sum256(in)
				hash = min(hash, time.Since(start))
			}
			b.ReportMetric(float64(best)/float64(hash), "x-sha256")
		})
	}
}

func BenchmarkSign(b *testing.B) {
	s := NewSigner(testBinding)
	payload := AppendEventBatchAck(nil, "ev_00112233445566778899aabbccddeeff", 1, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Sign(testNow, TypeEventBatchAck, "eba_ev_00112233445566778899aabbccddeeff", payload)
	}
}
