// Package copyfile brings one file from a place in a root to a place in a root, by rename, hard link, clone or copy, and
// says how and with which digest (daemon protocol 7.5, 7.6).
//
// Digests come from an ordinary sequential read of the whole logical length; the hole map only decides what is written.
// Nothing is ever replaced. Every function compares the source before and after and fails with STALE_FINGERPRINT when it
// changed. Failures are *beneath.Error. Memory is bounded by two buffers of Options.Buffer bytes a call.
package copyfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
)

// Options of one file.
type Options struct {
	Buffer int     // bytes read at a time; 0: 1 MiB, less under a low limit
	Limit  *Bucket // limits the bytes read; nil: no limit
	// Progress is told, from the calling goroutine, how many logical bytes of the file are done and how many of them are
	// data. It must not block.
	Progress func(logical, data int64)

	// Check sees the source before anything is done; its error ends the work and is returned.
	Check func(source beneath.Stat) error
	// SHA256 is the digest that the content must have, INTEGRITY_FAILURE otherwise; nil: any.
	SHA256 *[32]byte
	// SkipDigest saves the reading of content that is renamed or linked. Copies are digested all the same.
	SkipDigest bool

	Mode  fs.FileMode // permission bits of the new file; 0: 0600, and 0100 where the source is executable
	Mtime time.Time   // zero: that of the source
	// Dense writes every byte and reserves the blocks first. It is what SparsePolicy DENSE asks for.
	Dense bool
	// Resume lets a copy go on with what an earlier one left under the new name, as far as its bytes are the source's.
	Resume bool
}

// Result is what was done.
type Result struct {
	Method   pb.MaterializeMethod
	SHA256   [32]byte // zero when Digested is false
	Digested bool
	Source   beneath.Stat // before; the same after, except where it was renamed
	Target   beneath.Stat
	Data     int64  // bytes in data extents of the source
	Extents  uint32 // number of them
	Resumed  int64  // bytes that were there already
}

// Op names the whole work in errors that are no answer of the kernel.
const Op beneath.Op = "copy"

const (
	stale     = pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT
	integrity = pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE
)

func failure(code pb.ErrorCode, name, format string, args ...any) error {
	return &beneath.Error{Code: code, Op: Op, Path: name, Err: fmt.Errorf(format, args...)}
}

// Place brings src's file from to dst under the name to by the first of the methods that the file systems allow: RENAME,
// HARDLINK, REFLINK, COPY_SPARSE or COPY. Only "this cannot be done here" leads to the next method; every other failure
// ends the work. What Place made is removed again on failure, except the partial file of a copy with Resume and a file
// that was renamed already. Nothing but the file itself is flushed: flush the directories.
func Place(ctx context.Context, src *beneath.Root, from string, dst *beneath.Root, to string, methods []pb.MaterializeMethod, o Options) (Result, error) {
	var refused []string
	for _, m := range methods {
		var r Result
		var err error
		switch m {
		case pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME:
			r, err = rename(ctx, src, from, dst, to, o)
		case pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK:
			r, err = link(ctx, src, from, dst, to, o)
		case pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK:
			r, err = reflink(ctx, src, from, dst, to, o)
		case pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE:
			r, err = Copy(ctx, src, from, dst, to, o)
		case pb.MaterializeMethod_MATERIALIZE_METHOD_COPY:
			o.Dense = true
			r, err = Copy(ctx, src, from, dst, to, o)
		default:
			err = failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, to, "method %v brings no file to its place", m)
		}
		if !beneath.IsUnsupported(err) {
			return r, err
		}
		refused = append(refused, err.Error())
	}
	return Result{}, failure(beneath.Unsupported, to, "no method of the list can be used here: %s", strings.Join(refused, "; "))
}

// source opens the file and describes it.
func source(src *beneath.Root, from string, o *Options) (*beneath.File, beneath.Stat, error) {
	f, err := src.Open(from)
	if err != nil {
		return nil, beneath.Stat{}, err
	}
	st, err := f.Stat()
	if err == nil && o.Check != nil {
		err = o.Check(st)
	}
	if err != nil {
		f.Close()
		return nil, st, err
	}
	if o.Mode == 0 {
		o.Mode = 0o600
		if st.Executable() {
			o.Mode = 0o700
		}
	}
	if o.Mtime.IsZero() {
		o.Mtime = st.Mtime()
	}
	return f, st, nil
}

// unchanged compares the open file, and what its name leads to now, with the stat taken before.
func unchanged(f *beneath.File, src *beneath.Root, before beneath.Stat) error {
	after, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := src.Lstat(f.Name())
	if err != nil && !beneath.IsNotFound(err) {
		return err
	}
	switch {
	case err != nil:
		return failure(stale, f.Name(), "removed while it was read")
	case !named.SameFile(before):
		return failure(stale, f.Name(), "replaced by another file while it was read")
	case !after.Unchanged(before):
		return failure(stale, f.Name(), "changed while it was read: %d bytes of %s before, %d bytes of %s after",
			before.Size, before.Mtime().Format(time.RFC3339Nano), after.Size, after.Mtime().Format(time.RFC3339Nano))
	}
	return nil
}

// Digest reads a file once, from its first to its last logical byte, and describes it. Method stays unspecified.
func Digest(ctx context.Context, src *beneath.Root, name string, o Options) (Result, error) {
	f, before, err := source(src, name, &o)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	r := Result{Source: before, Target: before}
	if err := read(ctx, f, &r, o); err != nil {
		return r, err
	}
	return r, unchanged(f, src, before)
}

// read digests the open file and then counts its extents.
func read(ctx context.Context, f *beneath.File, r *Result, o Options) error {
	p := newPass(f, r.Source.Size, o)
	for p.next(ctx) {
		p.done(0)
	}
	if p.err != nil {
		return p.err
	}
	if err := p.finish(r, f.Name()); err != nil {
		return err
	}
	err := count(f, r)
	if err == nil {
		p.report(r.Data)
	}
	return err
}

func count(f *beneath.File, r *Result) error {
	return f.Extents(func(_, n int64) error {
		r.Extents++
		r.Data += n
		return nil
	})
}

func rename(ctx context.Context, src *beneath.Root, from string, dst *beneath.Root, to string, o Options) (Result, error) {
	f, before, err := source(src, from, &o)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	r := Result{Method: pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME, Source: before}
	if !src.SameFilesystem(dst) { // known before everything is read
		return r, failure(beneath.Unsupported, to, "source and target are not on one file system")
	}
	if err := linked(ctx, f, &r, o); err != nil {
		return r, err
	}
	if err := unchanged(f, src, before); err != nil {
		return r, err
	}
	if err := src.RenameNoReplace(from, dst, to); err != nil {
		return r, err
	}
	return r, dress(dst, to, &r, o)
}

// linked is what rename and link do to the content: read it, or only look at its hole map.
func linked(ctx context.Context, f *beneath.File, r *Result, o Options) error {
	if !o.SkipDigest || o.SHA256 != nil {
		return read(ctx, f, r, o)
	}
	if err := count(f, r); err != nil {
		return err
	}
	if o.Progress != nil {
		o.Progress(r.Source.Size, r.Data)
	}
	return nil
}

// dress gives a file that now has its place the mode and the time, flushes it and describes it.
func dress(dst *beneath.Root, to string, r *Result, o Options) error {
	f, err := dst.Open(to)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return err
	} else if !st.SameFile(r.Source) {
		return failure(stale, to, "another file than the one renamed")
	}
	return settle(f, r, o)
}

// settle sets mode and time, flushes and describes.
func settle(f *beneath.File, r *Result, o Options) error {
	if err := f.Chmod(o.Mode); err != nil {
		return err
	}
	if err := f.SetMtime(o.Mtime.UnixNano()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	var err error
	r.Target, err = f.Stat()
	return err
}

// link shares the inode, so neither mode nor time is touched.
func link(ctx context.Context, src *beneath.Root, from string, dst *beneath.Root, to string, o Options) (r Result, err error) {
	f, before, err := source(src, from, &o)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	r = Result{Method: pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK, Source: before}
	if err := src.Link(from, dst, to); err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dst.Unlink(to))
		}
	}()
	if r.Target, err = dst.Lstat(to); err != nil {
		return r, err
	}
	if !r.Target.SameFile(before) {
		return r, failure(stale, from, "replaced by another file while it was linked")
	}
	if err = linked(ctx, f, &r, o); err != nil {
		return r, err
	}
	if err = f.Sync(); err != nil {
		return r, err
	}
	if err = unchanged(f, src, before); err != nil {
		return r, err
	}
	r.Target, err = dst.Lstat(to)
	return r, err
}

// reflink digests the clone: what it reads is what will be used, and the source is compared by its stat.
func reflink(ctx context.Context, src *beneath.Root, from string, dst *beneath.Root, to string, o Options) (r Result, err error) {
	f, before, err := source(src, from, &o)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	r = Result{Method: pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK, Source: before}
	clone, err := dst.Create(to, 0o600)
	if err != nil {
		return r, err
	}
	defer func() {
		if closed := clone.Close(); err == nil {
			err = closed
		}
		if err != nil {
			err = errors.Join(err, dst.Unlink(to))
		}
	}()
	if err = f.Reflink(clone); err != nil {
		return r, err
	}
	if r.Target, err = clone.Stat(); err != nil {
		return r, err
	}
	if r.Target.Size != before.Size {
		return r, failure(stale, from, "changed while it was cloned: %d bytes before, %d bytes in the clone", before.Size, r.Target.Size)
	}
	if err = read(ctx, clone, &r, o); err != nil {
		return r, err
	}
	if err = unchanged(f, src, before); err != nil {
		return r, err
	}
	return r, settle(clone, &r, o)
}

// SparseLost reports whether allocation grew by more than a copy may cost: by more than 1 MiB and by more than 5 % of what
// the source has (daemon protocol 7.5). Both are bytes of blocks in use.
func SparseLost(source, target int64) bool { return target-source > max(1<<20, source/20) }
