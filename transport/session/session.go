// Package session is the WebSocket engine that all planes share: it upgrades, reads, queues, writes, pings and closes,
// and knows nothing of what the messages mean.
//
// A session has one reader goroutine, which owns the protocol state and handles messages one by one, and at most one
// writer goroutine, which alone writes to the socket. The writer exists only while there is something to write: an idle
// session costs one parked goroutine and 1 KiB of read buffer. Timeouts and pings of all sessions hang on one timer
// (sweep.go), so no session holds a timer or ticker of its own.
//
// gorilla/websocket does the upgrade and parses what comes in. It never writes after the upgrade: frames from a server
// are a short header and the bytes as they are, so the writer packs many of them into one buffer of 16 KiB and hands it
// to the socket in one Write, which gorilla's message writer cannot do.
package session

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// MessageType is the kind of a data message.
type MessageType int

// The two kinds of data messages.
const (
	Text   MessageType = websocket.TextMessage
	Binary MessageType = websocket.BinaryMessage
)

// Handler is the protocol state machine of one session. Its methods run on the session's reader goroutine, never two at
// once.
type Handler interface {
	// OnMessage handles one message. data is valid until it returns: copy what must outlive the call. The context ends
	// when the session is closed. Nothing is read meanwhile, which is the back pressure on the peer. An error closes the
	// session: a *CloseError for its reason, anything else as Internal.
	OnMessage(ctx context.Context, typ MessageType, data []byte) error
	// OnClose runs exactly once, last, after the socket is closed: unregistering and slow clean-up belong here. The
	// context is fresh, with Options.CleanupTimeout.
	OnClose(ctx context.Context, closed Closed)
}

// OpenFunc is the handshake of a plane. It runs on the session's reader goroutine after the HTTP handler has returned,
// may call ReadFirst and Send, and returns the handler of the messages that follow. An error refuses the peer: a
// *CloseError with its reason, anything else as Internal. When it returns an error no OnClose follows.
type OpenFunc func(ctx context.Context, s *Session) (Handler, error)

// Source gives the frames that a session writes once its queue is empty: the way to serve a log from a cursor, so that
// slow readers cost no memory. It runs on the writer goroutine, one call at a time.
type Source interface {
	// Next returns the frames that follow, in order, about maxBytes at most; none when there is nothing for now. It is
	// called again until it returns none, then after the next Wake; the frames have been written by then, and their
	// memory may be used again. An error closes the session as OnMessage's does.
	Next(ctx context.Context, maxBytes int) ([][]byte, error)
}

// Session is one live socket. Send, Wake, Close and the readers of state are safe from any goroutine; the rest belongs
// to the OpenFunc. It holds no message and no lock while idle.
type Session struct {
	id     uint64
	plane  *Plane
	ws     *websocket.Conn
	conn   *socket
	peer   string
	opened time.Time

	ctx    context.Context // the session's own life; cancelled with the *CloseError that ends it
	cancel context.CancelCauseFunc

	done    chan struct{} // closed last
	flushed chan struct{} // closed by the writer when it has written the last byte

	// Times of sweep.now.
	heard    atomic.Int64 // last application message, or end of its handling
	pongDue  atomic.Int64 // 0: no ping is unanswered
	firstDue atomic.Int64 // 0: no first message is awaited
	closeDue atomic.Int64 // 0: not closing
	drainAt  atomic.Int64 // 0: no drain planned
	busy     atomic.Bool  // a handler runs: pongs wait unread behind it
	nextPing int64        // owned by the sweep
	heapPos  int          // under the sweep's lock; -1 when not in it
	dueAt    int64        // under the sweep's lock

	messagesIn, messagesOut atomic.Uint64

	maxMessage atomic.Int64 // instead of the plane's; 0: the plane's

	mu        sync.Mutex // guards all below
	maxBytes  int        // of the queue, instead of the plane's; 0: the plane's
	maxFrames int
	principal string
	source    Source
	queue     []frame
	spare     []frame // the slice the writer has emptied, to be swapped in
	bytes     int     // queued or being written
	frames    int
	writing   bool // a writer goroutine runs, or has ended for good
	pull      bool // the source may have more
	ping      bool
	pong      []byte
	hasPong   bool
	reason    Reason
	code      int // instead of the plane's; 0: the plane's
	text      string
	cause     error
	peerCode  int
}

// frame is one queued message.
type frame struct {
	op   byte
	data []byte
}

// ID is unique in the process and grows with time.
func (s *Session) ID() uint64 { return s.id }

// Kind is the plane's kind.
func (s *Session) Kind() string { return s.plane.opts.Kind }

// Peer is the address given to Accept.
func (s *Session) Peer() string { return s.peer }

// Opened is when the socket was upgraded.
func (s *Session) Opened() time.Time { return s.opened }

// Context ends when the session starts to close; its cause is a *CloseError.
func (s *Session) Context() context.Context { return s.ctx }

// Done is closed when the socket is closed and OnClose has returned.
func (s *Session) Done() <-chan struct{} { return s.done }

// SetPrincipal names who the session belongs to, for the log.
func (s *Session) SetPrincipal(name string) {
	s.mu.Lock()
	s.principal = name
	s.mu.Unlock()
}

// Reason returns why the session is closing, None while it is not.
func (s *Session) Reason() Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// QueuedBytes is what waits to be written or is being written.
func (s *Session) QueuedBytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Send queues one message of the plane's type and returns at once. The session keeps data until it is written, so
// nobody may change it afterwards; one slice may go to any number of sessions. ErrClosed and ErrSlow mean that it was
// not queued; with ErrSlow the session is being closed. A nil error promises order, not arrival.
func (s *Session) Send(data []byte) error { return s.SendAs(s.plane.opts.Outgoing, data) }

// SendAs is Send with a message type.
func (s *Session) SendAs(typ MessageType, data []byte) error {
	s.mu.Lock()
	if s.reason != None {
		s.mu.Unlock()
		return ErrClosed
	}
	maxFrames, maxBytes := s.queueLimits()
	if s.frames > 0 && (s.frames >= maxFrames || s.bytes+len(data) > maxBytes) {
		s.mu.Unlock()
		s.closeWith(Slow, "", nil)
		return ErrSlow
	}
	s.queue = append(s.queue, frame{byte(typ), data})
	s.frames++
	s.bytes += len(data)
	s.startWriter()
	s.mu.Unlock()
	return nil
}

// SetLimits gives the session bounds of its own instead of the plane's, as a handshake negotiated them: MaxMessage,
// QueueFrames and QueueBytes of Options. Zero leaves the plane's. The size of a message counts from the next one read.
func (s *Session) SetLimits(maxMessage, queueFrames, queueBytes int) {
	s.maxMessage.Store(int64(maxMessage))
	s.mu.Lock()
	s.maxFrames, s.maxBytes = queueFrames, queueBytes
	s.mu.Unlock()
}

// queueLimits runs under s.mu.
func (s *Session) queueLimits() (frames, bytes int) {
	frames, bytes = s.maxFrames, s.maxBytes
	orDefault(&frames, s.plane.opts.QueueFrames)
	orDefault(&bytes, s.plane.opts.QueueBytes)
	return frames, bytes
}

// messageLimit is the largest message that is accepted now.
func (s *Session) messageLimit() int {
	if n := s.maxMessage.Load(); n > 0 {
		return int(n)
	}
	return s.plane.opts.MaxMessage
}

// Pull sets the source that the writer reads when the queue is empty, and wakes it.
func (s *Session) Pull(source Source) {
	s.mu.Lock()
	s.source = source
	s.mu.Unlock()
	s.Wake()
}

// Wake tells the writer that the source may have more. It never blocks and hints coalesce.
func (s *Session) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source == nil || s.reason != None {
		return
	}
	s.pull = true
	s.startWriter()
}

// Close ends the session for the reason, with the plane's code and text. It returns at once: what is queued is flushed
// if the reason allows, then comes the close frame, then the peer's answer, all within Options.CloseWait; wait on Done
// for the end. Only the first reason counts.
func (s *Session) Close(reason Reason) { s.closeWith(reason, "", nil) }

// CloseErr is Close with the reason of an error, as OnMessage's error would close it.
func (s *Session) CloseErr(err error) {
	s.end(closeReasonOf(err))
}

func (s *Session) closeWith(reason Reason, text string, cause error) {
	s.end(CloseError{Reason: reason, Text: text, Err: cause})
}

// end records the first reason and sets the closing in motion.
func (s *Session) end(why CloseError) {
	reason, text, cause := why.Reason, why.Text, why.Err
	if reason == None || reason >= reasonEnd {
		reason = Internal
	}
	s.mu.Lock()
	if s.reason != None {
		s.mu.Unlock()
		return
	}
	s.reason, s.code, s.text, s.cause = reason, why.Code, text, cause
	s.pull = false
	wait := s.plane.opts.CloseWait
	if !policies[reason].await {
		wait = min(wait, slowCloseWait)
	}
	due := s.plane.group.sweep.now() + int64(wait)
	s.closeDue.Store(due)
	s.startWriter()
	// Under the lock, so that whoever comes second finds the context ended. Nothing runs in here but context's own code.
	s.cancel(&CloseError{Reason: reason, Code: why.Code, Text: text, Err: cause})
	s.mu.Unlock()
	s.plane.group.sweep.schedule(s, due)
}

// slowCloseWait bounds the last write to a peer that is not expected to take it.
const slowCloseWait = time.Second

// kill closes the socket under the reader and the writer.
func (s *Session) kill() { _ = s.conn.Conn.Close() }

// IsUpgrade reports whether the request asks for a WebSocket.
func IsUpgrade(r *http.Request) bool { return websocket.IsWebSocketUpgrade(r) }
