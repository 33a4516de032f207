package appliance_test

import (
	"testing"
)

// TestArchiveCopy moves a tree from one machine to another: the copy is equal, the source untouched, and nothing is left.
func TestArchiveCopy(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.nas.Put("content", "shows/one.mkv", noise(1, 3<<20))
	r.nas.Put("content", "shows/season 2/two.mkv", noise(2, 100_001))
	r.nas.Put("content", "shows/season 2/empty", nil)
	before := listing(t, r.nas.Path("content", ""))
	r.start()
	j := r.run("shows", nil)
	r.await(j.ID, "completed")
	sameListing(t, listing(t, r.vault.Path("content", "")), before)
	sameListing(t, listing(t, r.nas.Path("content", "")), before)
	r.clean()
}
