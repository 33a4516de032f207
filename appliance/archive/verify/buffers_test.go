package verify_test

import (
	"runtime"
	"testing"

	"signalbox/appliance/archive/verify"
)

// TestBuffersFitTheContent reads small files: what a run takes of memory follows what it reads, since steps of jobs verify
// small content time and again.
func TestBuffersFitTheContent(t *testing.T) {
	m := &memory{data: map[int][]byte{0: make([]byte, 1000), 1: make([]byte, 10)}}
	content := verify.Content{Files: []verify.Entry{{Path: "a", Bytes: 1000}, {Path: "b", Bytes: 10}}}
	const runs = 50
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		r, err := verify.Run(t.Context(), content, m, verify.Options{})
		if err != nil || r.FirstBad != -1 {
			t.Fatal(r, err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / runs; each > 64<<10 {
		t.Errorf("a run over 1010 bytes takes %d", each)
	}
}
