package verify

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"signalbox/appliance/archive/torrent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// Run reads the content and returns what it found. Bad content is a finding, not an error: see Result.Err. An error is
// the end of ctx, or a file that could not be opened or read (READ_ERROR and the like, naming it; it is not tried again,
// daemon protocol 9 row 42); the result is then nil.
func Run(ctx context.Context, c Content, open Opener, o Options) (*Result, error) {
	if c.Torrent != nil && c.Files != nil {
		return nil, fault.New(fault.Internal, "verify: a torrent and a list of files are given")
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.BufferBytes <= 0 {
		o.BufferBytes = defaultBuffer
	}
	r := &run{content: c, open: open, options: o, result: &Result{Files: make([]FileResult, c.count()), FirstBad: -1}}
	if t := c.Torrent; t != nil {
		if t.HasV1 {
			r.v1 = make([]torrent.PieceState, t.Pieces)
		}
		if t.HasV2 {
			r.v2 = make([]torrent.PieceState, t.Pieces)
		}
	}
	for i := range r.result.Files {
		if c.asked(i) {
			r.progress.TotalFiles++
			r.progress.TotalBytes += c.bytes(i)
		}
	}
	r.bufferBytes = r.largest()
	r.stopAfter.Store(int64(len(r.result.Files)))
	r.pace = pacer{clock: o.Clock, rate: o.BytesPerSecond}
	if err := r.readAll(ctx); err != nil {
		return nil, err
	}
	r.conclude()
	return r.result, nil
}

type run struct {
	content Content
	open    Opener
	options Options
	result  *Result
	v1, v2  []torrent.PieceState
	pace    pacer

	bufferBytes int64

	stopAfter atomic.Int64 // index of a bad file: those behind it need not be read

	mu       sync.Mutex
	progress Progress
}

// largest is the size of a buffer: no more than the largest file that is read needs.
func (r *run) largest() (n int64) {
	for i := range r.result.Files {
		if r.content.asked(i) {
			n = max(n, r.content.bytes(i))
		}
	}
	return min(n, int64(r.options.BufferBytes))
}

// segment is a run of files that shares no piece with its neighbours.
type segment struct{ from, to int }

// segments cuts the file list so that several readers have something to do.
func (r *run) segments(readers int) []segment {
	n := r.content.count()
	if readers <= 1 {
		return []segment{{0, n}}
	}
	least := max(r.progress.TotalBytes/int64(8*readers), 1<<20)
	var out []segment
	from, size := 0, int64(0)
	for i := range n {
		if size >= least && r.mayCut(i) {
			out = append(out, segment{from, i})
			from, size = i, 0
		}
		size += r.content.bytes(i)
	}
	return append(out, segment{from, n})
}

func (r *run) mayCut(i int) bool {
	t := r.content.Torrent
	return t == nil || t.Files[i].Offset%t.PieceBytes == 0
}

func (r *run) readAll(ctx context.Context) error {
	readers := min(max(r.options.Readers, 1), maxReaders)
	segments := r.segments(readers)
	readers = min(readers, len(segments))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			buffers := &buffers{free: make(chan *buffer, Buffers), bytes: r.bufferBytes}
			for {
				k := int(next.Add(1)) - 1
				if k >= len(segments) || int64(segments[k].from) > r.stopAfter.Load() {
					return
				}
				if err := r.readSegment(ctx, segments[k], buffers); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// buffer is bytes on their way through the hashes; the last one to be done with it gives it back.
type buffer struct {
	b     []byte
	users atomic.Int32
}

// buffers are those of one reader, made when they are first needed: most files are read in one go.
type buffers struct {
	free  chan *buffer
	bytes int64
	made  int
}

func (s *buffers) take() *buffer {
	select {
	case b := <-s.free:
		return b
	default:
	}
	if s.made < Buffers {
		s.made++
		return &buffer{b: make([]byte, s.bytes)}
	}
	return <-s.free
}

// part is a stretch of one file: read bytes, zeros of padding, or a gap.
type part struct {
	file  int
	buf   *buffer // nil for zeros and gaps
	n     int64
	zeros bool
	gap   torrent.PieceState // of a stretch that is not there; Unchecked: it is
	first bool               // begins the file
	last  bool               // ends it
	whole bool               // with last: the file was read in full, its digest counts
}

// stage is one hash with its queue.
type stage struct {
	queue chan part
	take  func(part)
}

func (r *run) readSegment(ctx context.Context, s segment, buffers *buffers) error {
	stages := r.stages(s)
	var wg sync.WaitGroup
	for _, st := range stages {
		wg.Go(func() {
			for p := range st.queue {
				st.take(p)
				if p.buf != nil && p.buf.users.Add(-1) == 0 {
					buffers.free <- p.buf
				}
			}
		})
	}
	send := func(p part) {
		if p.buf != nil {
			p.buf.users.Store(int32(len(stages)))
		}
		for _, st := range stages {
			st.queue <- p
		}
	}
	rd := &reader{run: r, buffers: buffers, send: send}
	err := rd.files(ctx, s)
	for _, st := range stages {
		close(st.queue)
	}
	wg.Wait()
	return err
}

// reader reads the files of a segment in order.
type reader struct {
	*run
	buffers *buffers
	send    func(part)
}

func (r *reader) files(ctx context.Context, s segment) error {
	for i := s.from; i < s.to; i++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if int64(i) > r.stopAfter.Load() {
			return nil
		}
		if !r.content.asked(i) {
			r.pass(i)
			continue
		}
		if err := r.file(ctx, i); err != nil {
			return err
		}
		r.advance(0, 0, 1)
	}
	return nil
}

// pass goes over a file that is not read.
func (r *reader) pass(i int) {
	p := part{file: i, n: r.content.bytes(i), first: true, last: true, gap: torrent.Skipped}
	if t := r.content.Torrent; t != nil && t.Files[i].Kind == torrent.Padding {
		p.gap, p.zeros = torrent.Unchecked, true
	}
	r.send(p)
}

func (r *reader) file(ctx context.Context, i int) error {
	res, size := &r.result.Files[i], r.content.bytes(i)
	f, err := r.open.OpenFile(ctx, i)
	if err != nil {
		if !absent(err) {
			return readFailed(r.content.path(i), err)
		}
		r.missing(i, Absent, size)
		return nil
	}
	defer f.Close()
	res.OpenedAt = r.options.Clock.Now()
	if res.Stat, err = f.Stat(); err != nil {
		return readFailed(r.content.path(i), err)
	}
	if res.Stat.Size > size {
		// None of it counts: what lies here is not a beginning of the file.
		r.missing(i, SizeDiffers, size)
		return nil
	}
	done, err := r.bytes(ctx, i, f, min(size, res.Stat.Size), size)
	if err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return readFailed(r.content.path(i), err)
	}
	switch {
	case !after.Unchanged(res.Stat) || done < res.Stat.Size:
		r.blame(i, Changed)
	case done < size:
		r.blame(i, SizeDiffers)
	}
	return nil
}

// bytes reads the first have bytes of a file of size bytes and returns how many there were.
func (r *reader) bytes(ctx context.Context, i int, f File, have, size int64) (done int64, err error) {
	first := true
	for done < have {
		if err := context.Cause(ctx); err != nil {
			return done, err
		}
		buf := r.buffers.take()
		n, err := f.ReadAt(buf.b[:min(int64(len(buf.b)), have-done)], done)
		if n == 0 && err == nil {
			err = io.ErrNoProgress
		}
		if err != nil && err != io.EOF {
			r.buffers.free <- buf
			return done, readFailed(r.content.path(i), err)
		}
		done += int64(n)
		if n == 0 {
			r.buffers.free <- buf
			break
		}
		last := done == size
		r.send(part{file: i, buf: buf, n: int64(n), first: first, last: last, whole: last})
		first = false
		r.advance(int64(n), int64(n), 0)
		if err := r.pace.wait(ctx, int64(n)); err != nil {
			return done, err
		}
	}
	if done < size || size == 0 {
		r.send(part{file: i, n: size - done, gap: torrent.Bad, first: first, last: true, whole: size == 0})
		r.advance(size-done, 0, 0)
	}
	return done, nil
}

// missing records that none of the file can be used.
func (r *reader) missing(i int, s State, size int64) {
	r.blame(i, s)
	r.send(part{file: i, n: size, gap: torrent.Bad, first: true, last: true})
	r.advance(size, 0, 0)
}

func (r *run) blame(i int, s State) {
	r.result.Files[i].State = s
	r.found(i)
}

// found tells the readers that a file is bad.
func (r *run) found(i int) {
	if !r.options.StopAtFirstBad {
		return
	}
	for {
		old := r.stopAfter.Load()
		if int64(i) >= old || r.stopAfter.CompareAndSwap(old, int64(i)) {
			return
		}
	}
}

func (r *run) advance(bytes, read int64, files int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.BytesRead += read
	r.progress.Bytes += bytes
	r.progress.Files += files
	if r.options.Progress != nil {
		r.options.Progress(r.progress)
	}
}
