package copyfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
)

const (
	defaultBuffer = 1 << 20
	leastBuffer   = 16 << 10
)

// pass is one sequential read of a file, block by block, with the digest of all that was read.
type pass struct {
	f        *beneath.File
	o        Options
	size     int64
	pos, end int64 // the block that was read last
	buf      []byte
	sum      hash.Hash
	data     int64
	err      error
}

func newPass(f *beneath.File, size int64, o Options) *pass {
	n := o.Buffer
	if n <= 0 {
		n = defaultBuffer
		if rate := o.Limit.Rate(); rate > 0 {
			n = int(min(max(rate/4, leastBuffer), defaultBuffer)) // so that progress moves several times a second
		}
	}
	return &pass{f: f, o: o, size: size, buf: make([]byte, min(int64(n), max(size, 1))), sum: sha256.New()}
}

// next reads the next block. It returns false at the end and on an error.
func (p *pass) next(ctx context.Context) bool {
	p.pos = p.end
	if p.pos >= p.size || p.err != nil {
		return false
	}
	n := int(min(int64(len(p.buf)), p.size-p.pos))
	if p.err = p.o.Limit.Wait(ctx, n); p.err != nil {
		return false
	}
	if err := ctx.Err(); err != nil {
		p.err = context.Cause(ctx)
		return false
	}
	got, err := p.f.ReadAt(p.buf[:n], p.pos)
	if got < n {
		if err == io.EOF {
			err = failure(stale, p.f.Name(), "cut off while it was read: %d bytes before, %d now", p.size, p.pos+int64(got))
		}
		p.err = err
		return false
	}
	p.end = p.pos + int64(n)
	p.sum.Write(p.block())
	return true
}

// block is what next read.
func (p *pass) block() []byte { return p.buf[:p.end-p.pos] }

// done tells that the block is where it belongs.
func (p *pass) done(data int64) { p.data += data; p.report(p.data) }

func (p *pass) report(data int64) {
	if p.o.Progress != nil {
		p.o.Progress(p.end, data)
	}
}

// finish puts the digest into the result and compares it.
func (p *pass) finish(r *Result, name string) error {
	p.sum.Sum(r.SHA256[:0])
	r.Digested = true
	if p.o.SHA256 != nil && *p.o.SHA256 != r.SHA256 {
		return failure(integrity, name, "content has SHA-256 %x, expected %x", r.SHA256, *p.o.SHA256)
	}
	return nil
}

// Copy copies a file to a new name: its data extents, or with Dense every byte. With Resume an existing file of the name
// is continued as far as it is equal to the source; otherwise an existing name is PATH_CONFLICT. On failure the new file
// is removed, with Resume it stays for the next call. Only the new file is flushed: flush its directory.
func Copy(ctx context.Context, src *beneath.Root, from string, dst *beneath.Root, to string, o Options) (r Result, err error) {
	f, before, err := source(src, from, &o)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	r = Result{Method: pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE, Source: before}
	if o.Dense {
		r.Method = pb.MaterializeMethod_MATERIALIZE_METHOD_COPY
	}
	target, there, err := open(dst, to, before, o)
	if err != nil {
		return r, err
	}
	defer func() {
		if closed := target.Close(); err == nil {
			err = closed
		}
		if err != nil && !o.Resume {
			err = errors.Join(err, dst.Unlink(to))
		}
	}()
	c := &copier{pass: newPass(f, before.Size, o), to: target, have: there, result: &r, ranges: !o.Dense}
	if err = c.run(ctx); err != nil {
		return r, err
	}
	if err = unchanged(f, src, before); err != nil {
		return r, err
	}
	return r, settle(target, &r, o)
}

// open makes the new file, or opens what is there. It returns how many of its bytes may be kept.
func open(dst *beneath.Root, to string, source beneath.Stat, o Options) (*beneath.File, int64, error) {
	f, err := dst.Create(to, 0o600)
	if err == nil || !o.Resume || beneath.CodeOf(err) != beneath.PathConflict {
		return f, 0, err
	}
	if f, err = dst.OpenWrite(to); err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.SameFile(source):
		err = failure(beneath.PathConflict, to, "is the source itself")
	case st.Nlink != 1:
		err = failure(beneath.PathConflict, to, "has other names, so it is not a file to continue")
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, min(st.Size, source.Size), nil
}

// copier writes what a pass reads.
type copier struct {
	*pass
	to          *beneath.File
	have        int64 // bytes of the target that may already be right
	there       []byte
	start, stop int64 // the data extent at or after the block, once asked for; stop 0 before
	ranges      bool  // the kernel may copy ranges
	result      *Result
}

func (c *copier) run(ctx context.Context) error {
	if c.have == 0 {
		if err := c.begin(); err != nil {
			return err
		}
	}
	for c.next(ctx) {
		if c.have > c.pos {
			equal, err := c.same()
			if err != nil {
				return err
			}
			if !equal {
				c.have = c.pos
				if err := c.begin(); err != nil {
					return err
				}
			}
		}
		data, err := c.write()
		if err != nil {
			return err
		}
		c.done(data)
	}
	if c.err != nil {
		return c.err
	}
	if err := c.finish(c.result, c.f.Name()); err != nil {
		return err
	}
	return c.to.Truncate(c.size) // a hole at the end, or more than the source has
}

// begin cuts the target to the bytes that stay and reserves the rest where that is asked for.
func (c *copier) begin() error {
	if err := c.to.Truncate(c.have); err != nil {
		return err
	}
	if c.o.Dense {
		if err := c.to.Allocate(c.size); err != nil && !beneath.IsUnsupported(err) {
			return err
		}
	}
	return nil
}

// same compares the block with what the target has of it; a block that it has only the beginning of counts as not there
// beyond that.
func (c *copier) same() (bool, error) {
	if c.there == nil {
		c.there = make([]byte, len(c.buf))
	}
	n := min(c.have, c.end) - c.pos
	got, err := c.to.ReadAt(c.there[:n], c.pos)
	if err != nil && err != io.EOF {
		return false, err
	}
	if int64(got) < n || !bytes.Equal(c.there[:n], c.buf[:n]) {
		return false, nil
	}
	c.result.Resumed += n
	return true, nil
}

// write puts the data of the block into the target, without what is already there, and returns the bytes of data in the
// block. The hole map is asked after the block was read; a hole that was read as something else than zeros is a wrong map.
func (c *copier) write() (data int64, err error) {
	if c.o.Dense {
		if err := c.copyOut(c.pos, c.end); err != nil {
			return 0, err
		}
	}
	for at := c.pos; at < c.end; {
		if at >= c.stop {
			if c.start, c.stop, err = c.f.NextData(at, c.size); err != nil {
				return data, err
			}
			if c.start < c.stop {
				c.result.Extents++
				c.result.Data += c.stop - c.start
			} else {
				c.start, c.stop = c.size, c.size+1 // none left
			}
		}
		from, to := max(at, c.start), min(c.stop, c.end)
		if hole := min(from, c.end); hole > at && !c.o.Dense && !isZero(c.buf[at-c.pos:hole-c.pos]) {
			return data, failure(integrity, c.f.Name(), "the file system reports a hole between byte %d and byte %d, but there is data", at, hole)
		}
		if from >= c.end {
			break
		}
		if !c.o.Dense {
			if err := c.copyOut(from, to); err != nil {
				return data, err
			}
		}
		data += to - from
		at = to
	}
	return data, nil
}

// copyOut writes the bytes from..to, which lie in the block, except those that the target has.
func (c *copier) copyOut(from, to int64) error {
	from = max(from, c.have)
	for c.ranges && from < to {
		n, err := c.f.CopyRange(c.to, from, to-from)
		if beneath.IsUnsupported(err) || err == nil && n == 0 {
			c.ranges = false
			break
		}
		if err != nil {
			return err
		}
		from += n
	}
	if from >= to {
		return nil
	}
	_, err := c.to.WriteAt(c.buf[from-c.pos:to-c.pos], from)
	return err
}

var zeros [64 << 10]byte

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}
