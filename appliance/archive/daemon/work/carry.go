package work

import (
	"context"

	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
)

// inodes carries what the cache knows about files over changes that this program itself makes to their inodes by adding or
// removing names: only the time of change moves then, and without this the content would be read again to be known. Losing
// some of it costs time only. It belongs to one goroutine.
type inodes struct {
	cache  hashcache.Cache // nil: nothing is carried
	before []hashcache.Key
	after  []hashcache.Key
}

// changed notes one change of a file's inode.
func (n *inodes) changed(ctx context.Context, before, after beneath.Stat) error {
	if n.cache == nil || !before.Unchanged(after) || before.CtimeNS == after.CtimeNS {
		return nil
	}
	n.before, n.after = append(n.before, hashcache.KeyOf(before)), append(n.after, hashcache.KeyOf(after))
	if len(n.before) < hashcache.MaxBatch {
		return nil
	}
	return n.flush(ctx)
}

// flush writes what was noted.
func (n *inodes) flush(ctx context.Context) error {
	if len(n.before) == 0 {
		return nil
	}
	var known []hashcache.Entry
	err := n.cache.Get(ctx, n.before, func(i int, v hashcache.Value) {
		known = append(known, hashcache.Entry{Key: n.after[i], Value: v})
	})
	if err == nil && len(known) > 0 {
		err = n.cache.Put(ctx, known)
	}
	n.before, n.after = n.before[:0], n.after[:0]
	return err
}

// unlink removes a name of the job's own. A file that keeps other names stays known.
func (n *inodes) unlink(ctx context.Context, r *beneath.Root, name string) error {
	st, err := r.Lstat(name)
	if err != nil || n.cache == nil || !st.Mode.IsRegular() || st.Nlink < 2 {
		if err != nil {
			return err
		}
		return r.Unlink(name)
	}
	f, err := r.Open(name)
	if err != nil {
		return r.Unlink(name) // not readable: nothing is known about it anyway
	}
	defer func() { _ = f.Close() }()
	if st, err = f.Stat(); err != nil {
		return err
	}
	if err := r.Unlink(name); err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return err
	}
	return n.changed(ctx, st, after)
}
