package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// keepBuffer is the largest message buffer that goes back to the pool.
const keepBuffer = 256 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// run is the reader goroutine: handshake, messages, and the end in the order state, flush, close frame, socket,
// clean-up, registry.
func (s *Session) run(open OpenFunc) {
	handler := s.open(open)
	open = nil // the handshake's closure holds the request
	if handler != nil {
		s.readLoop(handler)
	}
	s.awaitPeer()
	<-s.flushed
	s.kill()
	s.finish(handler)
}

// open runs the handshake; without a handler the session is closing.
func (s *Session) open(open OpenFunc) (handler Handler) {
	defer s.recovered()
	s.busy.Store(true)
	defer s.quiet()
	h, err := open(s.ctx, s)
	if err != nil {
		s.CloseErr(err)
		return nil
	}
	if h == nil {
		s.closeWith(Normal, "", nil)
	}
	return h
}

// recovered turns a panic into the end of this session alone.
func (s *Session) recovered() {
	if v := recover(); v != nil {
		s.plane.panicked(s, v, debug.Stack())
		s.closeWith(Panic, "", fmt.Errorf("panic: %v", v))
	}
}

// quiet marks the end of a handler: time it took counts neither as idle nor against the peer's pong.
func (s *Session) quiet() {
	now := s.plane.group.sweep.now()
	s.heard.Store(now)
	if s.pongDue.Load() != 0 {
		s.pongDue.Store(now + int64(s.plane.opts.PongWait))
	}
	s.busy.Store(false)
}

// ReadFirst waits for the first message, for OpenFuncs. The slice is the caller's. When it fails, the session is closing
// for the reason of the failure (HandshakeTimeout, Oversize, Protocol, PeerClosed, PeerGone, Draining ...) and the
// OpenFunc just returns the error.
func (s *Session) ReadFirst(timeout time.Duration) (MessageType, []byte, error) {
	due := s.plane.group.sweep.now() + int64(timeout)
	s.firstDue.Store(due)
	s.plane.group.sweep.schedule(s, due)
	s.busy.Store(false)
	typ, buf, err := s.read()
	s.firstDue.Store(0)
	s.busy.Store(true)
	if err != nil {
		return 0, nil, err
	}
	defer release(buf)
	if s.ctx.Err() != nil {
		return 0, nil, context.Cause(s.ctx)
	}
	return typ, append([]byte(nil), *buf...), nil
}

func (s *Session) readLoop(h Handler) {
	for {
		typ, buf, err := s.read()
		if err != nil {
			return
		}
		if s.ctx.Err() != nil {
			release(buf)
			return
		}
		s.handle(h, typ, *buf)
		release(buf)
		if s.ctx.Err() != nil {
			return
		}
	}
}

func (s *Session) handle(h Handler, typ MessageType, data []byte) {
	defer s.recovered()
	s.busy.Store(true)
	defer s.quiet()
	if err := h.OnMessage(s.ctx, typ, data); err != nil {
		s.CloseErr(err)
	}
}

// read returns the next data message in a pooled buffer. On error the session is closing. No buffer is held while
// waiting.
func (s *Session) read() (MessageType, *[]byte, error) {
	typ, r, err := s.ws.NextReader()
	if err != nil {
		return 0, nil, s.readFailed(err)
	}
	buf := buffers.Get().(*[]byte)
	data, err := readCapped(r, (*buf)[:0], s.messageLimit())
	*buf = data
	if err != nil {
		release(buf)
		return 0, nil, s.readFailed(err)
	}
	s.heard.Store(s.plane.group.sweep.now())
	s.pongDue.Store(0)
	s.messagesIn.Add(1)
	return MessageType(typ), buf, nil
}

// errOversize is a message above the cap; it never leaves the package.
var errOversize = errors.New("message above the cap")

// readCapped appends the message to buf and stops at the first byte above limit.
func readCapped(r io.Reader, buf []byte, limit int) ([]byte, error) {
	for {
		if len(buf) > limit {
			return buf, errOversize
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), max(min(2*cap(buf), limit+1), len(buf)+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), limit+1)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			if len(buf) > limit {
				return buf, errOversize
			}
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

func release(buf *[]byte) {
	if cap(*buf) <= keepBuffer {
		buffers.Put(buf)
	}
}

// readFailed closes the session for the reason that the failed read stands for and returns the close error.
func (s *Session) readFailed(err error) error {
	var ce *websocket.CloseError
	switch {
	case errors.Is(err, errOversize):
		s.closeWith(Oversize, "", fmt.Errorf("%w of %d bytes", err, s.messageLimit()))
	case s.conn.violated.Load():
		s.closeWith(Protocol, "", err)
	case errors.As(err, &ce) && ce.Code != websocket.CloseAbnormalClosure:
		s.mu.Lock()
		s.peerCode = ce.Code
		s.mu.Unlock()
		s.closeWith(PeerClosed, "", nil)
	default:
		s.closeWith(PeerGone, "", err)
	}
	return context.Cause(s.ctx)
}

// awaitPeer reads on, dropping what comes, until the peer closes or the sweep closes the socket at closeDue. Without it
// a socket with unread bytes would be reset, and the peer could lose the close frame.
func (s *Session) awaitPeer() {
	if !policies[s.Reason()].await {
		return
	}
	var scratch [512]byte
	for {
		_, r, err := s.ws.NextReader()
		if err != nil { // also a bare io.EOF, when the peer goes in the middle of a message being skipped
			break
		}
		for err == nil {
			_, err = r.Read(scratch[:])
		}
	}
	if s.conn.violated.Load() { // gorilla reads no further after a framing error
		for {
			if _, err := s.conn.Conn.Read(scratch[:]); err != nil {
				return
			}
		}
	}
}

// finish runs the clean-up, the log line and the count, and leaves the registry.
func (s *Session) finish(h Handler) {
	s.mu.Lock()
	closed := Closed{Reason: s.reason, PeerCode: s.peerCode, Err: s.cause,
		Age: s.plane.group.clock.Now().Sub(s.opened)}
	s.mu.Unlock()
	if h != nil {
		s.cleanUp(h, closed)
	}
	s.plane.ended(s, closed)
	close(s.done)
}

func (s *Session) cleanUp(h Handler, closed Closed) {
	defer s.recovered()
	ctx, cancel := context.WithTimeout(context.Background(), s.plane.opts.CleanupTimeout)
	defer cancel()
	h.OnClose(ctx, closed)
}

// onPing queues the answer; a peer that pings faster than it reads gets the latest only, as RFC 6455 5.5.3 allows.
func (s *Session) onPing(data string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == None {
		s.pong, s.hasPong = []byte(data), true
		s.startWriter()
	}
	return nil
}

func (s *Session) onPong(string) error {
	s.pongDue.Store(0)
	return nil
}
