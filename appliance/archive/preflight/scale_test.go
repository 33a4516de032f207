package preflight_test

import (
	"fmt"
	"runtime"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/preflight"
)

func live() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

func TestPreviewOf200000Files(t *testing.T) {
	r := newRig(t)
	big := tree("Show", inventory.MaxTreeFiles)
	for i, f := range big.Files {
		f.Path = fmt.Sprintf("Show/season %03d/directory %04d/a file with a name of usual length %07d.mkv", i/10_000, i/100, i)
	}
	r.s.put("r1", "data", "tv", big)
	base, used := live(), 0.0
	r.n.before = func(q *pb.InventoryQuery) *pb.ErrorDetail {
		if q.GetScope() == pb.InventoryScope_INVENTORY_SCOPE_STORAGE { // the source's tree is in memory by now
			used = live() - base
		}
		return nil
	}
	v := r.passed(r.transfer())
	if used > 64 {
		t.Errorf("a tree of %d files takes %.0f MiB", inventory.MaxTreeFiles, used)
	}
	if v.Summary.Transfer != inventory.MaxTreeFiles || len(v.Draft.GetRequested().GetRanges()) != 1 {
		t.Errorf("%+v, %v", v.Summary, v.Draft.GetRequested())
	}
	if n := r.count(`SELECT count(*) FROM archive_preview_files WHERE preview_no = ?`, v.No); n != inventory.MaxTreeFiles {
		t.Errorf("%d files are planned", n)
	}
	files, err := r.pre.Files(ctx, v.ID, inventory.MaxTreeFiles-2, 10)
	if err != nil || len(files) != 1 || files[0].Action != pb.DeltaAction_DELTA_ACTION_TRANSFER {
		t.Errorf("the last page: %v, %v", files, err)
	}
	if v.State != preflight.Passed {
		t.Errorf("state %s", v.State)
	}
}
