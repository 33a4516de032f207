package preflight_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/preflight"
)

// TestSlowReadersKeepNoPreviewWaiting: previews that wait for a daemon that reads content first, more than are made at a
// time, let another one pass.
func TestSlowReadersKeepNoPreviewWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	busy := true
	r.s.before = func(q *pb.InventoryQuery) *pb.ErrorDetail {
		mu.Lock()
		defer mu.Unlock()
		if busy && q.GetScope() == pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE {
			return &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BUSY, Retryable: true, Message: "the content is being read"}
		}
		return nil
	}
	var slow []uuid.UUID
	for range 4 {
		id, err := r.pre.PreviewFiles(ctx, r.transfer(), nil, "")
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, id)
	}
	r.clock.BlockUntil(4) // all of them rest
	mu.Lock()
	busy = false
	mu.Unlock()
	r.passed(r.transfer())
	for _, id := range slow {
		if v, err := r.pre.Show(ctx, id); err != nil || v.State != preflight.Running {
			t.Errorf("a preview that rests is %v, %v", v.State, err)
		}
	}
}
