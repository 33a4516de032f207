package identity

import (
	"fmt"
	"testing"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/room"
)

func TestCacheKeepsNothingReadBeforeAChange(t *testing.T) {
	t.Parallel()
	c := newKeyCache(clock.NewFake(time.Unix(1_000_000, 0)))
	_, version, ok := c.get("hash")
	if ok {
		t.Fatal("found in an empty cache")
	}
	c.drop(7) // the key is rotated while the old row is being read
	c.put("hash", room.Agent{No: 7}, version)
	if _, _, ok := c.get("hash"); ok {
		t.Error("what was read before the change is kept after it")
	}
	_, version, _ = c.get("hash")
	c.put("hash", room.Agent{No: 7}, version)
	c.drop(8)
	if a, _, ok := c.get("hash"); !ok || a.No != 7 {
		t.Error("dropping another agent dropped this one")
	}
	c.clear()
	if _, _, ok := c.get("hash"); ok {
		t.Error("kept over a clear")
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(1_000_000, 0))
	c := newKeyCache(clk)
	put := func(hash string) {
		_, version, _ := c.get(hash)
		c.put(hash, room.Agent{}, version)
	}
	for i := range 2 * maxCache {
		put(fmt.Sprint(i))
	}
	if n := len(c.byHash); n != maxCache {
		t.Errorf("%d entries", n)
	}
	clk.Advance(cacheAge)
	put("fresh")
	if n := len(c.byHash); n != 1 {
		t.Errorf("%d entries after their time", n)
	}
}
