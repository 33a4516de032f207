package inventory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
)

// stream is a good answer of n files in chunks of random sizes.
func stream(r *rand.Rand, snapshot string, revision uint64, n int) (out []*pb.InventoryChunk) {
	for from := 0; from < n || len(out) == 0; {
		k := min(1+r.IntN(4), n-from)
		var list []uint32
		for i := range k {
			list = append(list, uint32(from+i))
		}
		p := files(list...)
		if len(out) == 0 {
			p = withHeader(p)
		}
		c := treeChunk(uint32(len(out)), false, p)
		c.SnapshotId, c.Revision = snapshot, revision
		out = append(out, c)
		from += k
	}
	last := out[len(out)-1]
	last.LastChunk, last.EntriesTotal = true, uint32(n)
	return out
}

// disturb is what a faulty peer, or a bad line, may do to a stream.
func disturb(r *rand.Rand, list []*pb.InventoryChunk) []*pb.InventoryChunk {
	i := r.IntN(len(list))
	j := r.IntN(len(list))
	switch r.IntN(9) {
	case 0: // loss
		return slices.Delete(list, i, i+1)
	case 1: // repetition
		return slices.Insert(list, i, proto.CloneOf(list[j]))
	case 2: // another order
		list[i], list[j] = list[j], list[i]
	case 3:
		list[i] = proto.CloneOf(list[i])
		list[i].Revision++
	case 4:
		list[i] = proto.CloneOf(list[i])
		list[i].EntriesTotal += uint32(r.IntN(3))
	case 5: // files lost inside a chunk
		list[i] = proto.CloneOf(list[i])
		if f := list[i].GetContentTree(); len(f.GetFiles()) > 0 {
			f.Files = f.Files[1:]
		}
	case 6: // early end
		list[i] = proto.CloneOf(list[i])
		list[i].LastChunk = true
	case 7: // begun anew in the middle
		return append(slices.Clone(list[:i]), stream(r, other.String(), uint64(7+r.IntN(2)), 1+r.IntN(12))...)
	case 8: // no end
		list[len(list)-1] = proto.CloneOf(list[len(list)-1])
		list[len(list)-1].LastChunk, list[len(list)-1].EntriesTotal = false, 0
	}
	return list
}

// An answer counts only as a whole, whatever happens on the way: when accept says that it is finished, what is staged is
// exactly the files of one snapshot.
func TestAcceptTakesWholeSnapshotsOnly(t *testing.T) {
	t.Parallel()
	finished, refused := 0, 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := r.IntN(12)
		list := stream(r, snapshot.String(), 7, n)
		var whole []uint32
		for _, c := range list {
			whole = append(whole, indices(c)...)
		}
		if r.IntN(4) > 0 { // one fault: two may make up for each other
			list = disturb(r, list)
		}
		req, q := treeRequest(), under(0)
		var staged []uint32
		done := false
		for _, c := range list {
			s := accept(req, q, client, c)
			if s.discard {
				staged = nil
			}
			if s.verdict == faulty || s.verdict == fail {
				refused++
				break
			}
			staged = append(staged, indices(c)...)
			if s.verdict == finish {
				done = true
				break
			}
		}
		if !done {
			continue
		}
		finished++
		if q.Snapshot == snapshot && !slices.Equal(staged, whole) {
			t.Fatalf("seed %d: staged %v of %v\n%s", seed, staged, whole, show(list))
		}
		for i, index := range staged {
			if int(index) != i {
				t.Fatalf("seed %d: staged %v\n%s", seed, staged, show(list))
			}
		}
	}
	if finished < 1000 || refused < 1000 {
		t.Errorf("%d streams finished and %d were refused: the streams say little", finished, refused)
	}
}

func indices(c *pb.InventoryChunk) (out []uint32) {
	for _, f := range c.GetContentTree().GetFiles() {
		out = append(out, f.GetIndex())
	}
	return out
}

func show(list []*pb.InventoryChunk) (out string) {
	for _, c := range list {
		out += fmt.Sprintf("%.4s.. #%d rev %d last %v total %d: %v\n", c.GetSnapshotId()[9:], c.GetChunkIndex(), c.GetRevision(), c.GetLastChunk(),
			c.GetEntriesTotal(), indices(c))
	}
	return out
}
