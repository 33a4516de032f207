package job_test

import "testing"

// BenchmarkProgress is one PROGRESS event from the message to its acknowledgement, one commit each.
func BenchmarkProgress(b *testing.B) {
	r := newRig(b)
	id := r.staging()
	b.ResetTimer()
	for b.Loop() {
		r.nas.does(id, progressEvent)
	}
}
