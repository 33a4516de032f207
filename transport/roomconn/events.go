package roomconn

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
	"signalbox/transport/session"
)

// keepaliveAfter is how long a stream may be silent (C.8).
const keepaliveAfter = 15 * time.Second

// codeRemoved tells clients to go back to the socket (G.1).
const codeRemoved = "transport_removed"

// errDraining refuses a stream that would end at once.
var errDraining = &fault.Error{Code: fault.Unavailable, Msg: "restarting, come back", Retry: time.Second}

// serveEvents is the stream of Server-Sent Events, or the long poll of clients that do not ask for one (G.1).
func (v *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead { // a stream that nobody reads must not displace one that somebody does
		transport.RefuseMethod(w, r, http.MethodGet)
		return
	}
	if err := v.streamEvents(w, r); err != nil {
		v.metrics.refused(connection.SSE, roomhttp.Status(err))
		if !isRefusal(err) {
			v.logFailure(err, "a stream of a room agent did not open")
		}
		roomhttp.WriteError(w, r, err)
	}
}

func (v *Server) streamEvents(w http.ResponseWriter, r *http.Request) error {
	c := callerOf(r)
	if v.opts.RemoveSSE {
		if _, err := v.agents.AuthenticateAgent(r.Context(), c.authorization); err != nil {
			return err
		}
		return &room.Refused{Class: fault.Gone, Code: codeRemoved,
			Message: "this server no longer streams over HTTP: open /agents/{agent_id}/connection/ws"}
	}
	ctx, cancel := transport.Parked(r.Context())
	defer cancel()
	if !wantsStream(r.Header) {
		return v.longPoll(ctx, w, r)
	}
	if ctx.Err() != nil {
		return errDraining
	}
	c.lastEventID = r.Header.Get("Last-Event-ID")
	s := &eventStream{srv: v, w: w, rc: http.NewResponseController(w), wake: make(chan struct{}, 1)}
	p, first, err := v.attach(ctx, c, connection.SSE, streamFrames{}, s.hint)
	if err != nil {
		if ctx.Err() != nil && r.Context().Err() == nil {
			return errDraining
		}
		return err
	}
	defer p.close()
	v.metrics.opened(connection.SSE)
	s.pump = p
	why := session.Panic
	defer func() { v.metrics.closed(connection.SSE, why) }()
	why = s.run(ctx, first)
	return nil
}

// eventStream writes one stream. It belongs to the request's goroutine.
type eventStream struct {
	srv  *Server
	pump *pump
	w    http.ResponseWriter
	rc   *http.ResponseController
	wake chan struct{}

	buf    []byte
	wrote  time.Time
	failed error // of the last write
}

// hint wakes the stream. It never blocks.
func (s *eventStream) hint() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes until the stream is over, the client gone, or the server going down: then the body just ends, and the
// connection stays, detached. It returns what the stream ended for, by the names of sessions.
func (s *eventStream) run(ctx context.Context, first *page) session.Reason {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("Connection", "keep-alive")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	defer s.finish()
	timer := s.srv.clock.NewTimer(keepaliveAfter)
	defer timer.Stop()
	if !s.write(first) {
		return s.broken(ctx)
	}
	for ctx.Err() == nil {
		w, end, wait, err := s.pump.next(ctx, pageBytes)
		if err != nil {
			if ctx.Err() == nil {
				s.srv.logFailure(err, "a stream of a room agent broke off: delivery failed")
				return session.Internal
			}
			break
		}
		some := w != nil
		if some && !s.write(w) {
			break
		}
		if end != nil {
			return reasonOf(end.Code)
		}
		if !some && !s.wait(ctx, timer, wait) {
			break
		}
	}
	return s.broken(ctx)
}

// broken is why a stream ended that the protocol did not end: a client that takes nothing is told from one that is gone.
func (s *eventStream) broken(ctx context.Context) session.Reason {
	switch {
	case errors.Is(s.failed, os.ErrDeadlineExceeded):
		return session.WriteFailed
	case errors.Is(context.Cause(ctx), transport.ErrDraining):
		return session.Draining
	default:
		return session.PeerGone
	}
}

// wait returns when there may be something to write. It returns false when the stream is over.
func (s *eventStream) wait(ctx context.Context, timer clock.Timer, lapse time.Duration) bool {
	now := s.srv.clock.Now()
	if lapse <= 0 {
		lapse = keepaliveAfter
	}
	timer.ResetAt(now.Add(min(keepaliveAfter-now.Sub(s.wrote), lapse)))
	select {
	case <-ctx.Done():
		return false
	case <-s.wake:
	case <-timer.C():
	}
	if s.srv.clock.Now().Sub(s.wrote) >= keepaliveAfter {
		return s.flush(keepalive)
	}
	return true
}

// write sends a page at once. It returns false when the client does not take it.
func (s *eventStream) write(w *page) bool {
	defer w.release()
	s.buf = s.buf[:0]
	for _, f := range w.frames {
		s.buf = append(s.buf, f...)
	}
	ok := s.flush(s.buf)
	if cap(s.buf) > 4*pageBytes {
		s.buf = nil
	}
	return ok
}

func (s *eventStream) flush(b []byte) bool {
	s.allow()
	_, err := s.w.Write(b)
	if err == nil {
		err = s.rc.Flush()
	}
	s.failed = err
	s.wrote = s.srv.clock.Now()
	return err == nil
}

// allow bounds the next write. It uses the system's time whatever the clock is: the kernel does not know that one.
func (s *eventStream) allow() { _ = s.rc.SetWriteDeadline(time.Now().Add(s.srv.opts.WriteTimeout)) }

// finish gives the end of the body its time. A client that has not taken what came before gets none.
func (s *eventStream) finish() {
	if s.failed == nil {
		s.allow()
	}
}
