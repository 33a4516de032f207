package roomconn

import (
	"context"
	"net/http"
	"sync/atomic"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
	"signalbox/transport/session"
)

// serveSocket upgrades the request and returns. Whatever is refused is refused on the socket (B.3): a client cannot read
// the status of an upgrade that failed.
func (v *Server) serveSocket(w http.ResponseWriter, r *http.Request) {
	if !session.IsUpgrade(r) {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		roomhttp.WriteError(w, r, fault.New(fault.Incompatible, "this path speaks WebSocket only; where a proxy strips Upgrade headers, use /agents/{agent_id}/events"))
		return
	}
	c := callerOf(r)
	err := v.plane.Accept(w, r, transport.AddrKey(transport.ClientAddr(r.Context())),
		func(ctx context.Context, s *session.Session) (session.Handler, error) { return v.openSocket(ctx, s, c) })
	if err != nil {
		roomhttp.WriteError(w, r, err)
	}
}

// openSocket is B.2 from the handshake on.
func (v *Server) openSocket(ctx context.Context, s *session.Session, c caller) (session.Handler, error) {
	p, first, err := v.attach(ctx, c, connection.WebSocket, socketFrames{}, s.Wake)
	if err != nil {
		return nil, v.refuseSocket(s, err)
	}
	k := &socket{srv: v, session: s, pump: p}
	s.SetPrincipal(p.info.AgentID.String())
	for _, frame := range first.frames {
		if err := s.Send(frame); err != nil {
			p.close()
			return nil, err
		}
	}
	first.release()
	v.metrics.opened(connection.WebSocket)
	k.beat()
	v.pings.add(k)
	s.Pull(k)
	return k, nil
}

// refuseSocket tells why, in a frame, and returns what the socket ends for (B.3).
func (v *Server) refuseSocket(s *session.Session, err error) error {
	if fault.Is(err, fault.Unauthenticated) {
		v.metrics.refused(connection.WebSocket, http.StatusUnauthorized)
		return &session.CloseError{Reason: session.Unauthenticated, Text: fault.Message(err)}
	}
	if !isRefusal(err) {
		v.logFailure(err, "a socket of a room agent did not open")
		return session.Fail(session.Internal, err)
	}
	status := roomhttp.Status(err)
	v.metrics.refused(connection.WebSocket, status)
	frame, encodeErr := socketFrames{}.control(frameRefused, refusedData{status, roomhttp.Detail(err)})
	if encodeErr != nil {
		return session.Fail(session.Internal, encodeErr)
	}
	if err := s.Send(frame); err != nil {
		return err
	}
	return &session.CloseError{Reason: session.Refused, Code: 4000 + status, Text: http.StatusText(status), Err: err}
}

// socket is the handler and the source of one WebSocket. The reader goroutine takes the pongs, the writer goroutine runs
// the pump.
type socket struct {
	srv     *Server
	session *session.Session
	pump    *pump
	refused atomic.Pointer[connection.End] // a pong was

	// Of the writer.
	out  *page // what was returned last
	last error // the stream is over: what the session ends for

	lapse atomic.Int64 // ticks of the pinger: the connection lapses then, unless it beats
	place place        // under the pinger's lock
}

// Next runs the pump (E.4). The frames it returned before have been written by now.
func (k *socket) Next(ctx context.Context, maxBytes int) ([][]byte, error) {
	k.out.release()
	k.out = nil
	if k.last != nil {
		return nil, k.last
	}
	if refused := k.refused.Load(); refused != nil {
		if pass := k.pump.stream.Pass(); pass.End != nil { // that came first
			refused = pass.End
		}
		return k.farewell(refused)
	}
	w, end, wait, err := k.pump.next(ctx, min(maxBytes, pageBytes))
	if err != nil {
		return nil, err
	}
	if end != nil {
		k.last = session.Fail(reasonOf(end.Code), nil)
	}
	k.lapse.Store(k.srv.pings.at(wait))
	k.out = w
	if w == nil {
		return nil, nil
	}
	return w.frames, nil
}

// farewell is the end of a stream whose pong was refused (C.5).
func (k *socket) farewell(e *connection.End) ([][]byte, error) {
	k.last = session.Fail(reasonOf(e.Code), nil)
	frame, err := socketFrames{}.control(frameEvicted, evicted(e))
	if err != nil {
		return nil, err
	}
	return [][]byte{frame}, nil
}

// reasonOf is what a session ends for after an evicted frame; the close code is 1000 for all (C.7).
func reasonOf(code string) session.Reason {
	switch code {
	case room.CodeTakenOver:
		return session.Replaced
	case room.CodeHeartbeatLapsed:
		return session.Lapsed
	default:
		return session.Evicted
	}
}

// OnMessage takes pongs and ignores all else (C.5).
func (k *socket) OnMessage(_ context.Context, typ session.MessageType, data []byte) error {
	if typ != session.Text {
		return nil
	}
	cursor, ok := parsePong(data)
	if !ok {
		return nil
	}
	if err := k.pump.stream.Pong(cursor); err != nil {
		code := room.RefusedCode(err)
		if code == "" {
			code = room.CodeConnectionError
		}
		k.refused.CompareAndSwap(nil, &connection.End{Code: code, Reason: "the pong was refused: " + err.Error()})
		k.session.Wake()
		return nil
	}
	k.beat()
	return nil
}

// beat notes when the connection would lapse without another one.
func (k *socket) beat() { k.lapse.Store(k.srv.pings.at(connection.LapseAfter)) }

// ping sends one, before the pages that wait; a session that ends takes none.
func (k *socket) ping() { _ = k.session.Send(pingFrame) }

// look makes the pump find out whether the connection has lapsed.
func (k *socket) look() { k.session.Wake() }

// OnClose leaves the connection detached (C.4).
func (k *socket) OnClose(_ context.Context, c session.Closed) {
	k.srv.pings.remove(k)
	k.pump.close()
	k.srv.metrics.closed(connection.WebSocket, c.Reason)
}
