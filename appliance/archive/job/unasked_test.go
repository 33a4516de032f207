package job_test

import (
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid/validtest"
)

// TestPartsThatNobodyAskedForTakeNoMemory has a daemon send the beginnings of snapshots under command ids of its own.
func TestPartsThatNobodyAskedForTakeNoMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	part := &pb.JobSnapshot{Cursor: proto.CloneOf(r.nas.part(id).cursor), StateEpoch: validtest.UUID(9)}
	for range 3 {
		part.CommandId, part.SnapshotId = uuid.NewString(), uuid.NewString()
		r.ok("part", r.eng.Snapshot(r.ctx(), r.nas.link, part))
	}
	if n := r.eng.Collecting(); n != 0 {
		t.Errorf("parts of %d daemons are kept", n)
	}
}
