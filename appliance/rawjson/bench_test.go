package rawjson

import (
	"crypto/sha256"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// benchEvents is an event_batch as agents send it: 250 events in about 100 KB.
func benchEvents() []byte {
	var b strings.Builder
	b.WriteString(`{"v":2,"id":"ev_00112233445566778899aabbccddeeff","ts":"2026-01-02T03:04:06Z","nonce":"BBBBBBBBBBBBBBBBBBBBBB","seq":7,"hmac":"6c4f896a74fa9eecee78685bcdf23ae89a6e671209661b5d934adc7e17ebb8f8","type":"event_batch","payload":{"events":[`)
	for i := range 250 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":"0b7f3c52-8f0e-4a43-9a38-%012d","kind":"task.succeeded","engine":"celery","task_id":"4f1d1d0e-8a90-4c6e-b1a0-%012d","occurred_at":"2026-01-02T03:04:05.%06d+00:00","data":{"task_name":"app.tasks.deliver_mail","queue":"emails","worker":"celery@box-%d","runtime_ms":%d.%d,"result":"{\"status\": \"sent\", \"to\": 3}","args":"['user-%d', 'welcome']","kwargs":"{}","retries":0}}`,
			i, i*7, i*311, i%8, 100+i, i%10, i)
	}
	b.WriteString(`]}}`)
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B) {
	in := benchEvents()
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		d, err := Parse(in)
		if err != nil {
			b.Fatal(err)
		}
		d.Release()
	}
}

// BenchmarkCanonical parses and writes the canonical form, and reports what that costs relative to hashing the result
// (goal: at most 4). The ratio is that of the fastest rounds, so that other load on the machine does not decide it.
func BenchmarkCanonical(b *testing.B) {
	in := benchEvents()
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	var out []byte
	best := time.Duration(math.MaxInt64)
	for b.Loop() {
		start := time.Now()
		d, err := Parse(in)
		if err != nil {
			b.Fatal(err)
		}
		out = AppendCanonical(out[:0], d.Root())
		d.Release()
		best = min(best, time.Since(start))
	}
	hash := time.Duration(math.MaxInt64)
	for range 200 {
		start := time.Now()
		sha256.Sum256(out)
		hash = min(hash, time.Since(start))
	}
	b.ReportMetric(float64(best)/float64(hash), "x-sha256")
}

func BenchmarkCanonicalWriteOnly(b *testing.B) {
	in := benchEvents()
	d, err := Parse(in)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		out = AppendCanonical(out[:0], d.Root())
	}
}

// BenchmarkHostileKeys canonicalises one object of 100,000 keys in about 1 MiB.
func BenchmarkHostileKeys(b *testing.B) {
	var s strings.Builder
	s.WriteByte('{')
	for i := range 100_000 {
		if i > 0 {
			s.WriteByte(',')
		}
		fmt.Fprintf(&s, `"%06x":1`, (i*7919)%100_000)
	}
	s.WriteByte('}')
	in := []byte(s.String())
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if _, err := Canonical(in); err != nil {
			b.Fatal(err)
		}
	}
}
