package directory

import (
	"context"
	"sort"
	"strings"
)

// inode names a file across the roots.
type inode struct{ dev, ino uint64 }

// sharedWith lists the other resources that name a file or an inode of this one (daemon protocol 2.10, 9 row 40). Other
// resources are only looked at if they lie at the same place, or if a file here has more than one name.
func (b *Backend) sharedWith(ctx context.Context, s *snapshot) ([]string, error) {
	if s.root == nil {
		return nil, nil
	}
	b.mu.Lock()
	ix := b.index
	b.mu.Unlock()
	if ix == nil {
		return nil, nil
	}
	inodes := map[inode]bool{}
	linked := false
	for i := range s.files {
		if f := &s.files[i]; f.there && f.stat.Mode.IsRegular() {
			inodes[inode{f.stat.Dev, f.stat.Ino}] = true
			linked = linked || f.stat.Nlink > 1
		}
	}
	var out []string
	for _, r := range ix.order {
		if r.id == s.res.id || r.root < 0 || (!linked && !overlap(r, s.res)) {
			continue
		}
		other, err := b.snapshot(ctx, r)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			if overlap(r, s.res) {
				out = append(out, r.id) // it cannot be told, and the place is the same
			}
			continue
		}
		for i := range other.files {
			if f := &other.files[i]; f.there && inodes[inode{f.stat.Dev, f.stat.Ino}] {
				out = append(out, r.id)
				break
			}
		}
	}
	sort.Strings(out)
	return out, nil
}

// overlap tells whether the places of two resources are the same or one inside the other.
func overlap(a, b *resource) bool {
	x, y := a.top()+"/", b.top()+"/"
	return a.root == b.root && (strings.HasPrefix(x, y) || strings.HasPrefix(y, x))
}
