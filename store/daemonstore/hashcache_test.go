package daemonstore_test

import (
	"context"
	"crypto/sha256"
	"path/filepath"
	"testing"
	"time"

	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/clock"
	"signalbox/store/daemonstore"
)

func TestHashCacheKeepsOneStateOfAFile(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "daemon.db")
	open := func() *daemonstore.DB {
		db, err := daemonstore.Open(ctx, daemonstore.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	c := db.HashCache()
	k := hashcache.Key{Device: 1<<63 + 5, Inode: 1<<64 - 1, Size: 10, MtimeNS: -3, CtimeNS: 4}
	sum := sha256.Sum256([]byte("x"))
	scope := sha256.Sum256([]byte("torrent"))
	if err := c.Put(ctx, []hashcache.Entry{{Key: k, Value: hashcache.Value{SHA256: sum, Digested: true}}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Put(ctx, []hashcache.Entry{{Key: k, Value: hashcache.Value{Proofs: []hashcache.Proof{{Scope: scope, GoodBytes: 7}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open()
	defer func() { _ = db.Close() }()
	c = db.HashCache()
	changed := k
	changed.CtimeNS++
	get := func() map[int]hashcache.Value {
		got := map[int]hashcache.Value{}
		if err := c.Get(ctx, []hashcache.Key{changed, k}, func(i int, v hashcache.Value) { got[i] = v }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := get()
	v, ok := got[1]
	if good, proof := v.Proof(scope); !ok || len(got) != 1 || v.SHA256 != sum || !v.Digested || good != 7 || !proof {
		t.Errorf("got %+v, want both findings of the same state, and nothing of another one", got)
	}
	if err := c.Put(ctx, []hashcache.Entry{{Key: changed, Value: hashcache.Value{}}}); err != nil {
		t.Fatal(err)
	}
	if got = get(); len(got) != 1 || got[0].Digested {
		t.Errorf("got %+v, want the new state alone", got)
	}
}

// TestHashCacheForgetsWhatNobodyUses lets half a year pass: file systems that never use an inode again would make the cache
// grow for ever.
func TestHashCacheForgetsWhatNobodyUses(t *testing.T) {
	ctx := context.Background()
	c := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	db := open(t, daemonstore.Options{Clock: c})
	cache := db.HashCache()
	const n = 30
	keys := make([]hashcache.Key, n)
	entries := make([]hashcache.Entry, n)
	for i := range keys {
		keys[i] = hashcache.Key{Device: 1, Inode: uint64(i + 1), Size: 1}
		entries[i] = hashcache.Entry{Key: keys[i], Value: hashcache.Value{Digested: true}}
	}
	if err := cache.Put(ctx, entries); err != nil {
		t.Fatal(err)
	}
	known := func(list []hashcache.Key) (out []int) {
		if err := cache.Get(ctx, list, func(i int, _ hashcache.Value) { out = append(out, i) }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	expire := func() {
		for more := true; more; {
			update(t, db, func(tx daemon.Tx) (err error) {
				more, err = tx.Expire(tx.Now().Add(-31*24*time.Hour), 1)
				return err
			})
		}
	}
	c.Advance(100 * 24 * time.Hour)
	expire()
	if got := known(keys[:3]); len(got) != 3 {
		t.Fatalf("known after 100 days: %v", got)
	}
	c.Advance(100 * 24 * time.Hour)
	expire()
	if got := known(keys); len(got) != 3 || got[2] != 2 {
		t.Errorf("known after 200 days: %v, want those that were used after 100", got)
	}
}
