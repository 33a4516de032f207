package daemonstore

import (
	"context"
	"encoding/binary"
	"time"

	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/store"
)

// proven is the key of what this package keeps of a file; others may follow.
const proven = "proven"

// HashCache returns the cache of what reading files has proven. Losing it costs time only, so a value that cannot be read
// counts as not known.
func (d *DB) HashCache() hashcache.Cache { return hashes{d.db} }

type hashes struct{ db *store.DB }

var _ hashcache.Cache = hashes{}

func eight(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

const (
	// keepUnused is how long a row that nobody asked for is kept: the file may be gone, and the file system may never use its
	// inode again.
	keepUnused = 180 * 24 * time.Hour
	// usedEvery is how exactly the time of the last use is kept.
	usedEvery = 7 * 24 * time.Hour
)

// cached reads the value of exactly this state of the file, and when it was used last.
func cached(q queries, k hashcache.Key) (v hashcache.Value, used time.Time, ok bool, err error) {
	var text []byte
	err = q.QueryRow(`SELECT value, used_at FROM hash_cache WHERE device = ? AND inode = ? AND key = ? AND size = ? AND mtime_ns = ? AND ctime_ns = ?`,
		eight(k.Device), eight(k.Inode), proven, k.Size, k.MtimeNS, k.CtimeNS).Scan(&text, &used)
	if ok, err = found(err); !ok {
		return v, used, false, err
	}
	v, bad := hashcache.Parse(text)
	return v, used, bad == nil, nil
}

// Get implements hashcache.Cache.
func (h hashes) Get(ctx context.Context, keys []hashcache.Key, found func(int, hashcache.Value)) error {
	values := make([]hashcache.Value, len(keys))
	known := make([]bool, len(keys))
	var stale []hashcache.Key
	err := h.db.View(ctx, func(tx *store.ReadTx) (err error) {
		stale = stale[:0]
		for i, k := range keys {
			var used time.Time
			if values[i], used, known[i], err = cached(tx, k); err != nil {
				return err
			}
			if known[i] && tx.Now().Sub(used) >= usedEvery {
				stale = append(stale, k)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_ = h.use(ctx, stale) // a use that is not noted costs, at worst, reading the file once more
	for i, v := range values {
		if known[i] {
			found(i, v)
		}
	}
	return nil
}

// use notes that the rows are used.
func (h hashes) use(ctx context.Context, keys []hashcache.Key) error {
	if len(keys) == 0 {
		return nil
	}
	return h.db.Update(ctx, "daemon.hash_cache_used", func(tx *store.Tx) error {
		for _, k := range keys {
			if _, err := tx.Exec(`UPDATE hash_cache SET used_at = ? WHERE device = ? AND inode = ? AND key = ?`, tx.Now(), eight(k.Device),
				eight(k.Inode), proven); err != nil {
				return err
			}
		}
		return nil
	})
}

// expireHashes deletes rows that were not used since the time, at most limit, and returns how many.
func (t *tx) expireHashes(before time.Time, limit int) (int64, error) {
	res, err := t.tx.Exec(`DELETE FROM hash_cache WHERE rowid IN (SELECT rowid FROM hash_cache WHERE used_at < ? ORDER BY used_at LIMIT ?)`,
		before, int64(limit))
	return res.RowsAffected(), err
}

// Put implements hashcache.Cache.
func (h hashes) Put(ctx context.Context, entries []hashcache.Entry) error {
	return h.db.Update(ctx, "daemon.hash_cache", func(tx *store.Tx) error {
		for _, e := range entries {
			v, _, _, err := cached(tx, e.Key)
			if err != nil {
				return err
			}
			_, err = tx.Exec(`INSERT INTO hash_cache(device, inode, size, mtime_ns, ctime_ns, key, value, used_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (device, inode, key) DO UPDATE SET size = excluded.size, mtime_ns = excluded.mtime_ns, ctime_ns = excluded.ctime_ns,
					value = excluded.value, used_at = excluded.used_at`,
				eight(e.Key.Device), eight(e.Key.Inode), e.Key.Size, e.Key.MtimeNS, e.Key.CtimeNS, proven, v.Merge(e.Value).Bytes(), tx.Now())
			if err != nil {
				return err
			}
		}
		return nil
	})
}
