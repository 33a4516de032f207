package archive

import (
	"math"
	"time"

	pb "signalbox/appliance/archive/archivepb"
)

// Progress economy (daemon protocol 2.8, 3.5): a daemon sends a PROGRESS at most and, while bytes move, at least this
// often; a step whose counters stand still this long is STALLED.
const (
	ProgressAtMost  = 2 * time.Second
	ProgressAtLeast = 30 * time.Second
	StalledAfter    = 120 * time.Second
	// QuietAfterStale is how long a daemon adds no PROGRESS, STALLED or RESUMED to a job after a stale refusal (2.6).
	QuietAfterStale = 30 * time.Second
)

// Clamp returns a fraction within [0,1]; what is not a number is 0.
func Clamp(f float64) float64 {
	switch {
	case math.IsNaN(f) || f < 0:
		return 0
	case f > 1:
		return 1
	}
	return f
}

// CompletedPermille returns the sum of the weights of the completed steps of a plan.
func CompletedPermille(op pb.JobOperation, completed int) uint32 {
	var sum uint32
	for i, p := range plans[op] {
		if i < completed {
			sum += p.Weight
		}
	}
	return sum
}

// OverallPermille returns the progress of a job with so many completed steps whose active step is at the fraction, in ‰,
// rounded down (daemon protocol 3.1). It is never below the sum of the completed steps.
func OverallPermille(op pb.JobOperation, completed int, fraction float64) uint32 {
	sum := CompletedPermille(op, completed)
	if p := plans[op]; completed >= 0 && completed < len(p) {
		sum += uint32(float64(p[completed].Weight) * Clamp(fraction))
	}
	return sum
}

// Overall is OverallPermille as a fraction, not rounded.
func Overall(op pb.JobOperation, completed int, fraction float64) float64 {
	sum := float64(CompletedPermille(op, completed))
	if p := plans[op]; completed >= 0 && completed < len(p) {
		sum += float64(p[completed].Weight) * Clamp(fraction)
	}
	return Clamp(sum / CompleteWeight)
}

// Moved reports whether a counter differs between two progresses. A newer time alone is no movement (daemon protocol 2.8).
func Moved(before, after *pb.Progress) bool {
	b, a := before.GetBytes(), after.GetBytes()
	return b.GetLogicalDone() != a.GetLogicalDone() || b.GetAllocatedDone() != a.GetAllocatedDone() ||
		before.GetFilesDone() != after.GetFilesDone()
}
