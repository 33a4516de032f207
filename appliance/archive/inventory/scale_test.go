package inventory_test

import (
	"fmt"
	"runtime"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
)

// live is the memory that is in use after a collection, in MiB.
func live() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// bigPart is a part of a tree as a torrent with long paths has it.
func (d *daemon) bigPart(header bool, first, n int) *pb.ContentTreePart {
	p := d.tree("r", treeRevision, header, first, first+n-1)
	for _, f := range p.Files {
		f.Path = fmt.Sprintf("A torrent of many files/season %03d/directory %04d/a file with a name of usual length %07d.mkv", f.Index/10_000, f.Index/100, f.Index)
	}
	return p
}

const perChunk = 500

// sendTree answers with a tree of n files in pages, as the daemon does.
func (d *daemon) sendTree(n int, each func()) { d.sendParts(n, d.bigPart, each) }

func (d *daemon) sendParts(n int, part func(header bool, first, n int) *pb.ContentTreePart, each func()) {
	d.r.t.Helper()
	for from := 0; from < n; {
		c := d.one()
		a := d.answer(c, 1)
		end := min(n, from+int(c.GetInventoryQuery().GetPageSize()))
		for from < end {
			k := min(perChunk, end-from)
			last := from+k == end
			chunk := a.part(part(a.next == 0, from, k), last)
			if from += k; last && from < n {
				chunk.NextPageToken = fmt.Sprint(from)
			}
			d.chunk(chunk)
			each()
		}
	}
}

func TestTreeOf200000Files(t *testing.T) {
	r := newRig(t)
	d := r.daemon("nas")
	_, wait, err := r.inv.Query(ctx, d.link.Daemon.ID, treeQuery("r"), pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
	if err != nil {
		t.Fatal(err)
	}
	base, peak, chunks := live(), 0.0, 0
	d.sendTree(inventory.MaxTreeFiles, func() {
		if chunks++; chunks%100 == 0 {
			peak = max(peak, live()-base)
		}
	})
	res, err := wait(ctx)
	if err != nil || res.Entries != inventory.MaxTreeFiles {
		t.Fatalf("%+v, %v", res, err)
	}
	if peak > 16 {
		t.Errorf("%.1f MiB are in use while a tree is received", peak)
	}
	if n := r.count(`SELECT count(*) FROM inventory_staging`); n != inventory.MaxTreeFiles/perChunk {
		t.Errorf("%d chunks are kept", n)
	}
	tree, err := r.inv.Tree(ctx, d.link.Daemon.ID, "r")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	base, peak = live(), 0
	if err := r.inv.EachFile(ctx, tree, func(f *pb.FileEntry) error {
		if int(f.GetIndex()) != n {
			t.Fatalf("file %d where %d was expected", f.GetIndex(), n)
		}
		if n++; n%40_000 == 0 {
			peak = max(peak, live()-base)
		}
		return nil
	}); err != nil || n != inventory.MaxTreeFiles {
		t.Errorf("read %d files: %v", n, err)
	}
	if peak > 16 {
		t.Errorf("%.1f MiB are in use while a tree is read", peak)
	}
	if p, err := r.inv.Files(ctx, d.link.Daemon.ID, "r", "", 199_990, 100); err != nil || len(p.Files) != 10 || p.Next != -1 {
		t.Errorf("the last page: %d files, %v", len(p.Files), err)
	}
}

func TestViewOf10000Resources(t *testing.T) {
	r := newRig(t)
	d := r.daemon("nas")
	const n = 10_000
	for round := range 2 {
		_, wait, err := r.inv.Query(ctx, d.link.Daemon.ID, resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
		if err != nil {
			t.Fatal(err)
		}
		base, peak := live(), 0.0
		for from := round; from < n; {
			c := d.one()
			a := d.answer(c, uint64(round)+1)
			end := min(n, from+int(c.GetInventoryQuery().GetPageSize()))
			for from < end {
				k := min(perChunk, end-from)
				var list []*pb.ResourceSummary
				for i := range k {
					list = append(list, d.resource(fmt.Sprintf("resource %05d", from+i)))
				}
				from += k
				chunk := a.part(list, from == end)
				if from == end && from < n {
					chunk.NextPageToken = fmt.Sprint(from)
				}
				d.chunk(chunk)
			}
			peak = max(peak, live()-base)
		}
		if res, err := wait(ctx); err != nil || res.Entries != int64(n-round) {
			t.Fatalf("%+v, %v", res, err)
		}
		if peak > 16 {
			t.Errorf("%.1f MiB are in use while a view is received", peak)
		}
	}
	if absent := r.count(`SELECT count(*) FROM daemon_resources WHERE absent = 1`); absent != 1 {
		t.Errorf("%d resources are absent, want 1", absent)
	}
}

// BenchmarkTree measures how fast the entries of content trees are stored, from parsed chunks.
func BenchmarkTree(b *testing.B) {
	r := newRig(b)
	d := r.daemon("nas")
	made := map[int]*pb.ContentTreePart{}
	part := func(header bool, first, n int) *pb.ContentTreePart {
		if made[first] == nil {
			made[first] = d.bigPart(header, first, n)
		}
		return made[first]
	}
	const files = 20_000
	for from := 0; from < files; from += perChunk {
		part(from%10_000 == 0, from, perChunk)
	}
	n := 0
	for b.Loop() {
		if _, _, err := r.inv.Query(ctx, d.link.Daemon.ID, treeQuery("r"), pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW); err != nil {
			b.Fatal(err)
		}
		d.sendParts(files, part, func() {})
		n += files
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkResources measures how fast the entries of resource views are stored.
func BenchmarkResources(b *testing.B) {
	r := newRig(b)
	d := r.daemon("nas")
	n := 0
	for b.Loop() {
		if _, _, err := r.inv.Query(ctx, d.link.Daemon.ID, resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW); err != nil {
			b.Fatal(err)
		}
		for from := 0; from < 10_000; {
			c := d.one()
			a := d.answer(c, uint64(n)+1)
			for range 4 {
				var list []*pb.ResourceSummary
				for i := range perChunk {
					list = append(list, d.resource(fmt.Sprintf("resource %05d", from+i)))
				}
				from += perChunk
				chunk := a.part(list, a.next == 3)
				if chunk.LastChunk && from < 10_000 {
					chunk.NextPageToken = fmt.Sprint(from)
				}
				d.chunk(chunk)
			}
		}
		n += 10_000
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "entries/s")
}
