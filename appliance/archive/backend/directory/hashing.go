package directory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/archive/verify"
)

// scopes names, for every file of a torrent, what a proof about it rests on: the torrent, its place in it, and the state
// of the files that share its pieces. In an aligned torrent those are the file alone, else all files.
func (s *snapshot) scopes() func(i int) [sha256.Size]byte {
	prefix := append([]byte("archive proof 1\x00"), s.m.InfoV1[:]...)
	prefix = append(prefix, s.m.InfoV2[:]...)
	if !s.m.Aligned {
		h := sha256.New()
		h.Write(prefix)
		var b []byte
		for i := range s.files {
			f := &s.files[i]
			if f.kind != archivepb.FileKind_FILE_KIND_REGULAR || f.logical == 0 {
				continue
			}
			b = append(b[:0], boolByte(f.usable()))
			h.Write(appendKey(b, hashcache.KeyOf(f.stat)))
		}
		prefix = h.Sum(nil)
	}
	return func(i int) [sha256.Size]byte {
		b := binary.BigEndian.AppendUint64(prefix[:len(prefix):len(prefix)], uint64(i))
		return sha256.Sum256(appendKey(b, hashcache.KeyOf(s.files[i].stat)))
	}
}

// needed lists the files that the cache has to know about: those with bytes that are there.
func (s *snapshot) needed(i int) bool {
	f := &s.files[i]
	if f.kind != archivepb.FileKind_FILE_KIND_REGULAR {
		return false
	}
	return s.m == nil || (f.usable() && f.logical > 0)
}

// recall fills in what the cache knows and returns the indices of the files that it does not.
func (b *Backend) recall(ctx context.Context, s *snapshot) (missing []int, err error) {
	var scope func(int) [sha256.Size]byte
	if s.m != nil {
		scope = s.scopes()
	}
	var at []int
	var keys []hashcache.Key
	ask := func() error {
		err := b.o.Cache.Get(ctx, keys, func(k int, v hashcache.Value) {
			f := &s.files[at[k]]
			if scope == nil {
				f.digest, f.known, f.completed = v.SHA256, v.Digested, f.logical
			} else {
				f.completed, f.known = v.Proof(scope(at[k]))
			}
		})
		for _, i := range at {
			if !s.files[i].known {
				missing = append(missing, i)
			}
		}
		at, keys = at[:0], keys[:0]
		return err
	}
	for i := range s.files {
		f := &s.files[i]
		if !s.needed(i) {
			f.known = true // nothing is there: 0 bytes are complete
			continue
		}
		at, keys = append(at, i), append(keys, hashcache.KeyOf(f.stat))
		if len(keys) == hashcache.MaxBatch {
			if err := ask(); err != nil {
				return nil, err
			}
		}
	}
	err = ask()
	if s.m != nil && !s.m.Aligned && len(missing) > 0 {
		// Neighbours share pieces: all that is there is read again.
		missing = missing[:0]
		for i := range s.files {
			if s.needed(i) {
				missing = append(missing, i)
			}
		}
	}
	return missing, err
}

// opener opens the files of a snapshot by their index in what is verified.
type opener struct {
	s  *snapshot
	at func(i int) int
}

func (o opener) OpenFile(_ context.Context, i int) (verify.File, error) {
	return o.s.root.Open(join(o.s.res.dir, o.s.files[o.at(i)].path))
}

// hash reads the files and puts what they prove into the cache and the snapshot. Long work is cut into parts, so that
// what is done survives an interruption; an unaligned torrent can only be proven as a whole.
func (b *Backend) hash(ctx context.Context, s *snapshot, missing []int, progress func(verify.Progress)) error {
	total := verify.Progress{TotalFiles: len(missing)}
	for _, i := range missing {
		total.TotalBytes += s.files[i].logical
	}
	done := total
	done.Bytes, done.Files = 0, 0
	for _, part := range s.parts(missing, total.TotalBytes) {
		o := b.o.Verify
		o.Progress = func(p verify.Progress) {
			if progress != nil {
				p.Bytes, p.Files = p.Bytes+done.Bytes, p.Files+done.Files
				p.TotalBytes, p.TotalFiles = total.TotalBytes, total.TotalFiles
				progress(p)
			}
		}
		if _, err := b.verifyPart(ctx, s, part, o); err != nil {
			return err
		}
		for _, i := range part {
			done.Bytes += s.files[i].logical
		}
		done.Files += len(part)
	}
	return nil
}

const partBytes = 4 << 30

// parts cuts the work.
func (s *snapshot) parts(missing []int, total int64) [][]int {
	files, size := len(missing), int64(partBytes)
	switch {
	case s.m == nil:
		files = 5000
	case s.m.Aligned:
		size = max(size, total/16) // every part costs a pass over the whole file list
	default:
		return [][]int{missing}
	}
	var out [][]int
	from, sum := 0, int64(0)
	for k, i := range missing {
		sum += s.files[i].logical
		if sum >= size || k-from+1 >= files {
			out = append(out, missing[from:k+1])
			from, sum = k+1, 0
		}
	}
	if from < len(missing) {
		out = append(out, missing[from:])
	}
	return out
}

// verifyPart reads some files. For a torrent the result's indices are those of its files, for a tree those of part.
func (b *Backend) verifyPart(ctx context.Context, s *snapshot, part []int, o verify.Options) (*verify.Result, error) {
	var c verify.Content
	op := opener{s, func(i int) int { return i }}
	if s.m != nil {
		asked := make([]bool, len(s.files))
		for _, i := range part {
			asked[i] = true
		}
		c.Torrent, c.Selected = s.m, func(i int) bool { return asked[i] }
	} else {
		c.Files = make([]verify.Entry, len(part))
		for k, i := range part {
			c.Files[k] = verify.Entry{Path: s.files[i].path, Bytes: s.files[i].logical}
		}
		op.at = func(k int) int { return part[k] }
	}
	stood, err := b.waitForAge(ctx, s, part)
	if err != nil {
		return nil, err
	}
	r, err := verify.Run(ctx, c, op, o)
	if err != nil {
		return nil, err
	}
	return r, b.learn(ctx, s, part, r, stood)
}

// A file system's clock moves in ticks. A file that is written again within the tick of its last change may keep its
// times, and its size, and so its key; only when the tick is over does a key name one content. Times in whole seconds
// hint at a file system that knows no finer ones. Times in the future, of a copied mtime or from before a clock was set
// back, tell no age; such a key may be trusted when it was seen unchanged over the longest tick of the process's own time.
const (
	tick       = 50 * time.Millisecond
	coarseTick = 2 * time.Second
)

// youth is how long after now a key must not be trusted yet; 0: it may be.
func youth(k hashcache.Key, now time.Time) time.Duration {
	t := tick
	if k.CtimeNS%int64(time.Second) == 0 && k.MtimeNS%int64(time.Second) == 0 {
		t = coarseTick
	}
	return max(0, time.Unix(0, max(k.CtimeNS, k.MtimeNS)).Add(t).Sub(now))
}

// waitForAge lets the keys of the files become trustworthy, at most as long as the longest tick. After that much, stood is
// set: a key of the snapshot that is still the file's has stood for a tick, whatever its times say. The timer counts that,
// for it does not follow when the clock is set.
func (b *Backend) waitForAge(ctx context.Context, s *snapshot, part []int) (stood bool, err error) {
	var wait time.Duration
	now := b.o.Clock.Now()
	for _, i := range part {
		wait = max(wait, youth(hashcache.KeyOf(s.files[i].stat), now))
	}
	if wait == 0 {
		return false, nil
	}
	timer := b.o.Clock.NewTimer(min(wait, coarseTick))
	defer timer.Stop()
	select {
	case <-timer.C():
		return wait >= coarseTick, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// learn takes over what reading has proven. Files that are not as they were in the snapshot end it: a proof about a mix
// of states is worth nothing. stood tells that the snapshot is older than any tick by the time it was read.
func (b *Backend) learn(ctx context.Context, s *snapshot, part []int, r *verify.Result, stood bool) error {
	for k, i := range part {
		got, f := &r.Files[s.at(k, i)], &s.files[i]
		if got.State == verify.Changed || hashcache.KeyOf(got.Stat) != hashcache.KeyOf(f.stat) {
			return changed(f.path)
		}
	}
	var scope func(int) [sha256.Size]byte
	if s.m != nil {
		scope = s.scopes()
	}
	var batch []hashcache.Entry
	for k, i := range part {
		got, f := &r.Files[s.at(k, i)], &s.files[i]
		v := hashcache.Value{SHA256: got.SHA256, Digested: got.Digested}
		if scope != nil {
			v.Proofs = []hashcache.Proof{{Scope: scope(i), GoodBytes: got.GoodBytes}}
			f.completed, f.known = got.GoodBytes, true
		} else {
			if got.State != verify.Complete {
				return changed(f.path)
			}
			f.completed, f.known, f.digest = f.logical, true, got.SHA256
		}
		if key := hashcache.KeyOf(f.stat); stood || youth(key, got.OpenedAt) == 0 {
			batch = append(batch, hashcache.Entry{Key: key, Value: v})
		}
		if len(batch) == hashcache.MaxBatch || k == len(part)-1 {
			if err := b.o.Cache.Put(ctx, batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return nil
}

// at is the place of a file in a result.
func (s *snapshot) at(k, i int) int {
	if s.m != nil {
		return i
	}
	return k
}

func changed(p string) error {
	return backend.Fail("STALE_FINGERPRINT", "the file %s changed while it was read", shown(p)).With("path", shown(p))
}

// fingerprint is the tree fingerprint, "" if a digest is not known.
func (s *snapshot) fingerprint() (string, error) {
	t := torrent.NewTreeFingerprint()
	for i := range s.files {
		f := &s.files[i]
		switch {
		case !f.known:
			return "", nil
		case f.kind == archivepb.FileKind_FILE_KIND_SYMLINK:
			t.Symlink(f.path, f.target)
		default:
			t.File(f.path, uint64(f.logical), f.digest)
		}
	}
	return t.Sum()
}
