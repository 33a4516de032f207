package session

import (
	"encoding/binary"
	"net"
	"runtime/debug"
	"sync"
	"time"
)

// writeChunk is the most that small frames are packed into before one Write. Larger frames go out by one vectored write
// of header and bytes, without a copy.
const writeChunk = 16 << 10

// sourceBytes is what a source is asked for at a time: a few chunks, so that control frames get their turn.
const sourceBytes = 4 * writeChunk

// Opcodes of RFC 6455 section 5.2; the data opcodes are those of MessageType.
const (
	opClose = 8
	opPing  = 9
	opPong  = 10
	final   = 0x80
)

var chunks = sync.Pool{New: func() any { b := make([]byte, 0, writeChunk); return &b }}

// startWriter starts the writer unless it runs. The caller holds s.mu. The reader goroutine outlives every writer (it
// waits for flushed), so the group's count of readers covers them.
func (s *Session) startWriter() {
	if s.writing {
		return
	}
	s.writing = true
	go s.writeLoop()
}

// batch is what the writer does next.
type batch struct {
	frames []frame
	bytes  int
	ping   bool
	pong   []byte
	hasPong,
	pull,
	closing bool
}

// next takes all that waits. ok is false when nothing does: the writer has then signed off and must return.
func (s *Session) next() (b batch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b = batch{ping: s.ping, pong: s.pong, hasPong: s.hasPong, closing: s.reason != None}
	s.ping, s.pong, s.hasPong = false, nil, false
	if b.closing && !policies[s.reason].flush {
		s.queue, s.frames, s.bytes = nil, 0, 0
	}
	if len(s.queue) > 0 {
		b.frames = s.queue
		for i := range b.frames {
			b.bytes += len(b.frames[i].data)
		}
		s.queue, s.spare = s.spare[:0], nil
	} else if !b.closing && s.pull {
		b.pull, s.pull = true, false
	}
	if b.closing || b.pull || b.ping || b.hasPong || len(b.frames) > 0 {
		return b, true
	}
	s.writing = false
	s.spare = nil
	if cap(s.queue) > keepQueue {
		s.queue = nil
	}
	return b, false
}

// keepQueue is how many slots an idle session keeps for its next burst.
const keepQueue = 4

// written gives the batch's room back.
func (s *Session) written(b batch) {
	if len(b.frames) == 0 {
		return
	}
	clear(b.frames)
	s.mu.Lock()
	s.bytes -= b.bytes
	s.frames -= len(b.frames)
	s.spare = b.frames[:0]
	s.mu.Unlock()
	s.messagesOut.Add(uint64(len(b.frames)))
}

// writeLoop writes until nothing waits. When the session closes it writes the end and closes flushed.
func (s *Session) writeLoop() {
	buf := chunks.Get().(*[]byte)
	w := &packer{s: s, buf: (*buf)[:0]}
	defer func() {
		*buf = w.buf[:0]
		chunks.Put(buf)
	}()
	for {
		b, ok := s.next()
		if !ok {
			return
		}
		err := w.batch(b)
		s.written(b)
		if err == nil && b.pull {
			err = s.pullSource(w)
		} else if err != nil {
			s.closeWith(WriteFailed, "", err)
		}
		if b.closing {
			s.writeEnd(w, err)
			return
		}
	}
}

// writeEnd sends the close frame and, unless the peer's answer is awaited, closes the socket.
func (s *Session) writeEnd(w *packer, err error) {
	s.mu.Lock()
	reason, number, text := s.reason, s.code, s.text
	s.queue, s.spare, s.frames, s.bytes = nil, nil, 0, 0
	s.mu.Unlock()
	p := policies[reason]
	if err == nil && p.frame {
		code := s.plane.code(reason)
		if text == "" {
			text = code.Text
		}
		if number == 0 {
			number = code.Code
		}
		body := binary.BigEndian.AppendUint16(make([]byte, 0, 2+maxCloseText), uint16(number))
		err = w.add(opClose, append(body, clipCloseText(text)...))
		if err == nil {
			err = w.flush()
		}
	}
	if err != nil || !p.await {
		s.kill()
	}
	close(s.flushed)
}

// pullSource writes what the source has, up to sourceBytes, and asks for another turn when there was something.
func (s *Session) pullSource(w *packer) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.plane.panicked(s, v, debug.Stack())
			s.closeWith(Panic, "", nil)
		}
	}()
	s.mu.Lock()
	source := s.source
	s.mu.Unlock()
	frames, err := source.Next(s.ctx, sourceBytes)
	if err != nil {
		s.CloseErr(err)
		return nil
	}
	if len(frames) == 0 {
		return nil
	}
	for _, f := range frames {
		if err := w.add(byte(s.plane.opts.Outgoing), f); err != nil {
			s.closeWith(WriteFailed, "", err)
			return err
		}
	}
	if err := w.flush(); err != nil {
		s.closeWith(WriteFailed, "", err)
		return err
	}
	s.messagesOut.Add(uint64(len(frames)))
	s.mu.Lock()
	s.pull = s.reason == None
	s.mu.Unlock()
	return nil
}

// packer packs frames into as few socket writes as it can.
type packer struct {
	s   *Session
	buf []byte
	err error // the first failed write; after it nothing may follow the torn frame
}

// batch writes control frames first (they must not wait behind a long queue), then the data frames.
func (w *packer) batch(b batch) error {
	if b.hasPong {
		if err := w.add(opPong, b.pong); err != nil {
			return err
		}
	}
	if b.ping {
		if err := w.add(opPing, nil); err != nil {
			return err
		}
	}
	for i := range b.frames {
		if err := w.add(b.frames[i].op, b.frames[i].data); err != nil {
			return err
		}
	}
	return w.flush()
}

// maxHeader is the longest header of an unmasked frame.
const maxHeader = 10

func (w *packer) add(op byte, data []byte) error {
	if len(w.buf)+maxHeader+len(data) > writeChunk {
		if len(data) >= writeChunk/2 && len(w.buf)+maxHeader <= writeChunk {
			w.buf = appendHeader(w.buf, op, len(data))
			return w.writev(data)
		}
		if err := w.flush(); err != nil {
			return err
		}
		if maxHeader+len(data) > writeChunk {
			w.buf = appendHeader(w.buf, op, len(data))
			return w.writev(data)
		}
	}
	w.buf = appendHeader(w.buf, op, len(data))
	w.buf = append(w.buf, data...)
	return nil
}

func (w *packer) flush() error {
	if w.err != nil || len(w.buf) == 0 {
		return w.err
	}
	w.deadline()
	_, w.err = w.s.conn.Conn.Write(w.buf)
	w.buf = w.buf[:0]
	return w.err
}

// writev sends the buffer and data in one system call on TCP.
func (w *packer) writev(data []byte) error {
	if w.err != nil {
		return w.err
	}
	w.deadline()
	vec := net.Buffers{w.buf, data}
	_, w.err = vec.WriteTo(w.s.conn.Conn)
	w.buf = w.buf[:0]
	return w.err
}

// deadline uses the system's time whatever the group's clock is: the kernel does not know that one.
func (w *packer) deadline() {
	_ = w.s.conn.Conn.SetWriteDeadline(time.Now().Add(w.s.plane.opts.WriteTimeout))
}

func appendHeader(buf []byte, op byte, n int) []byte {
	switch {
	case n < 126:
		return append(buf, final|op, byte(n))
	case n < 1<<16:
		return append(buf, final|op, 126, byte(n>>8), byte(n))
	default:
		return binary.BigEndian.AppendUint64(append(buf, final|op, 127), uint64(n))
	}
}
