package valid_test

import (
	"math"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/valid/validtest"
)

// TestCounters holds what only grows to numbers that both sides can store, and count on from.
func TestCounters(t *testing.T) {
	for _, high := range []uint64{valid.MaxCounter + 1, math.MaxInt64, math.MaxUint64} {
		hold(t, func() *pb.JobCursor { return validtest.Cursor(validtest.Job) }, []rule[*pb.JobCursor]{
			{"the highest", "", func(m *pb.JobCursor) { m.Revision, m.LastEventSequence = valid.MaxCounter, valid.MaxCounter }, 0},
			{"revision", "revision", func(m *pb.JobCursor) { m.Revision = high }, 0},
			{"sequence", "last_event_sequence", func(m *pb.JobCursor) { m.LastEventSequence = high }, 0},
		})
		hold(t, func() *pb.JobEvent { return validtest.Event(pb.JobEventKind_JOB_EVENT_KIND_PROGRESS) }, []rule[*pb.JobEvent]{
			{"sequence", "sequence", func(m *pb.JobEvent) { m.Sequence = high }, 0},
			{"revision", "resulting_revision", func(m *pb.JobEvent) { m.ResultingRevision = high }, 0},
		})
		hold(t, func() *pb.RouteUpdate { return validtest.Update(1) }, []rule[*pb.RouteUpdate]{{"sequence", "sequence", func(m *pb.RouteUpdate) { m.Sequence = high }, 0}})
		hold(t, func() *pb.InventoryChunk { return validtest.Chunks()[0] }, []rule[*pb.InventoryChunk]{{"revision", "revision", func(m *pb.InventoryChunk) { m.Revision = high }, 0}})
	}
}
