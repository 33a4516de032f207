package verify

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/clock"
)

// stages makes the hashes of a segment, each with a queue as long as there are buffers.
func (r *run) stages(s segment) []stage {
	out := []stage{{take: r.digests()}}
	if r.v1 != nil {
		out = append(out, stage{take: r.v1Pieces(s)})
	}
	if r.v2 != nil {
		out = append(out, stage{take: r.v2Pieces()})
	}
	for i := range out {
		out[i].queue = make(chan part, Buffers)
	}
	return out
}

// digests computes the SHA-256 of every file that is read in full.
func (r *run) digests() func(part) {
	sum := sha256.New()
	return func(p part) {
		if p.first {
			sum.Reset()
		}
		if p.buf != nil {
			sum.Write(p.buf.b[:p.n])
		}
		if !p.whole {
			return
		}
		f := &r.result.Files[p.file]
		sum.Sum(f.SHA256[:0])
		f.Digested = true
		if !r.wanted(p.file) {
			r.found(p.file)
		}
	}
}

// wanted tells whether the digest of the file is the one it must have.
func (r *run) wanted(i int) bool {
	if r.content.Want == nil {
		return true
	}
	want, known := r.content.Want(i)
	return !known || want == r.result.Files[i].SHA256
}

func (r *run) v1Pieces(s segment) func(part) {
	t := r.content.Torrent
	last := len(t.Files) - 1
	c := t.NewV1Pieces(r.v1, t.Span(s.from).First)
	return func(p part) {
		bad := c.Bad()
		switch {
		case p.buf != nil:
			c.Write(p.buf.b[:p.n])
		case p.zeros:
			c.Zeros(p.n)
		default:
			c.Gap(p.n, p.gap)
		}
		if p.last && p.file == last {
			c.Close()
		}
		if c.Bad() > bad {
			r.found(p.file)
		}
	}
}

func (r *run) v2Pieces() func(part) {
	t := r.content.Torrent
	c := t.NewV2Pieces(r.v2)
	return func(p part) {
		if f := &t.Files[p.file]; f.Kind != torrent.Regular || f.Bytes == 0 {
			return
		}
		bad := c.Bad()
		if p.first {
			c.Begin(p.file)
		}
		if p.buf != nil {
			c.Write(p.buf.b[:p.n])
		} else {
			c.Gap(p.n, p.gap)
		}
		if p.last {
			c.Close()
		}
		if c.Bad() > bad {
			r.found(p.file)
		}
	}
}

// conclude turns what the hashes left behind into findings.
func (r *run) conclude() {
	res, t := r.result, r.content.Torrent
	if t != nil {
		res.Pieces = make([]torrent.PieceState, t.Pieces)
		for p := range res.Pieces {
			switch {
			case r.v2 == nil:
				res.Pieces[p] = r.v1[p]
			case r.v1 == nil:
				res.Pieces[p] = r.v2[p]
			default:
				res.Pieces[p] = both(r.v1[p], r.v2[p])
			}
			res.count(res.Pieces[p])
		}
	}
	for i := range res.Files {
		if r.content.asked(i) {
			r.concludeFile(i)
		}
		if f := &res.Files[i]; f.Digested {
			res.FilesChecked++
		}
		if res.FirstBad < 0 && res.Files[i].State.Bad() {
			res.FirstBad = i
		}
	}
	res.FirstBad = r.blamed(res.FirstBad)
}

// both is the state of a piece with two hashes: not proven before both have seen it.
func both(a, b torrent.PieceState) torrent.PieceState {
	if m := torrent.Merge(a, b); m != torrent.Good {
		return m
	}
	return min(a, b)
}

func (res *Result) count(s torrent.PieceState) {
	switch s {
	case torrent.Good:
		res.PiecesGood++
		res.PiecesChecked++
	case torrent.Bad:
		res.PiecesChecked++
	case torrent.Skipped:
		res.PiecesSkipped++
	}
}

func (r *run) concludeFile(i int) {
	f, t := &r.result.Files[i], r.content.Torrent
	if t != nil && f.State != Changed {
		f.GoodBytes = t.GoodBytes(i, r.result.Pieces)
	}
	if f.State != NotAsked || !f.Digested {
		return // found by the reader, or not reached
	}
	if !r.wanted(i) {
		f.State = DigestDiffers
		return
	}
	f.State = Complete
	if t == nil {
		f.GoodBytes = r.content.bytes(i)
		return
	}
	s := t.Span(i)
	for p := s.First; p < s.First+s.Count; p++ {
		switch r.result.Pieces[p] {
		case torrent.Bad:
			f.State, f.BadPiece = PieceDiffers, p
			return
		case torrent.Skipped, torrent.Unchecked:
			f.State = Unproven
		}
	}
}

// blamed looks among the files that share the bad piece for one that is wrong by itself.
func (r *run) blamed(i int) int {
	if i < 0 || r.result.Files[i].State != PieceDiffers {
		return i
	}
	t := r.content.Torrent
	end := int64(r.result.Files[i].BadPiece+1) * t.PieceBytes
	for j := i + 1; j < len(t.Files) && t.Files[j].Offset < end; j++ {
		if s := r.result.Files[j].State; s.Bad() && s != PieceDiffers {
			return j
		}
	}
	return i
}

// pacer spreads reads so that they do not pass a rate. All readers share one.
type pacer struct {
	clock clock.Clock
	rate  int64

	mu   sync.Mutex
	free time.Time // when the bytes read so far are paid for
}

// wait blocks until n more bytes are within the rate.
func (p *pacer) wait(ctx context.Context, n int64) error {
	if p.rate <= 0 {
		return nil
	}
	p.mu.Lock()
	now := p.clock.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	delay := p.free.Sub(now)
	p.mu.Unlock()
	timer := p.clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
