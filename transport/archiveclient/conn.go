package archiveclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

// urgentFrames bounds the lane of heartbeats and acknowledgements; a full one blocks the reader, which is what makes the
// acknowledgements.
const urgentFrames = 64

// lastWrites is how long the socket may take what is left when a connection ends.
const lastWrites = time.Second

// conn is one connection. Its writer goroutine alone writes frames.
type conn struct {
	ws      *websocket.Conn
	timeout time.Duration

	urgent chan []byte
	bulk   *queue

	finish chan struct{} // closed: no more frames are taken
	once   sync.Once
	code   int
	text   string
	last   []byte // a final frame; may be nil
	why    error

	token   secret.Text // until Register has used it
	options frame.Options
	number  uint64 // generation
	most    int    // bytes of a frame
}

func newConn(ws *websocket.Conn, token secret.Text, timeout time.Duration) *conn {
	c := prepareConn(ws, token, timeout)
	go c.write()
	return c
}

// prepareConn is a connection whose writer does not run yet.
func prepareConn(ws *websocket.Conn, token secret.Text, timeout time.Duration) *conn {
	c := &conn{ws: ws, timeout: timeout, token: token, urgent: make(chan []byte, urgentFrames), finish: make(chan struct{}),
		most: valid.RegistrationBytes, options: frame.Options{From: frame.FromControl}}
	c.bulk = newQueue(valid.DefaultOutboundEnvelopes, valid.DefaultOutboundBytes)
	ws.SetReadLimit(valid.RegistrationBytes)
	return c
}

// Register sends the request with the token and waits for the answer.
func (c *conn) Register(ctx context.Context, e *pb.Envelope) (*pb.Envelope, error) {
	stop := context.AfterFunc(ctx, func() { c.end(daemon.CloseNormal, "", nil, context.Cause(ctx)) })
	defer stop()
	q := proto.CloneOf(e)
	q.GetRegisterRequest().Token = c.token.Reveal()
	c.token = secret.Text{}
	b, err := frame.Marshal(q)
	q.GetRegisterRequest().Token = ""
	if err != nil {
		return nil, err
	}
	if len(b) > c.most {
		return nil, fault.New(fault.TooLarge, "the registration has %d bytes, at most %d are taken", len(b), c.most)
	}
	c.options.Client = e.GetClientId()
	if err := c.queueUrgent(ctx, b); err != nil {
		return nil, err
	}
	f, err := c.Receive()
	if err != nil {
		return nil, err
	}
	return f.Envelope, nil
}

// Negotiated sets what the rest of the connection keeps to.
func (c *conn) Negotiated(n daemon.Negotiated) {
	c.number = n.Generation
	c.most = int(n.Limits.GetMaxEnvelopeBytes())
	c.ws.SetReadLimit(int64(c.most))
	c.bulk.resize(int(n.Limits.GetMaxOutboundEnvelopes()), int(n.Limits.GetMaxOutboundBytes()))
	c.options = frame.Options{From: frame.FromControl, Registered: true, Client: n.Client, PeerMinor: n.PeerMinor, OwnMinor: n.OwnMinor,
		MaxChunkEntries: int(n.Limits.GetMaxChunkEntries()), MaxCursors: int(n.Limits.GetMaxActiveCursors())}
}

// Send queues the envelope on its lane.
func (c *conn) Send(ctx context.Context, e *pb.Envelope, lane daemon.Lane) error {
	b, err := frame.Marshal(e)
	if err != nil {
		return err
	}
	if len(b) > c.most {
		return fault.New(fault.TooLarge, "an envelope has %d bytes, at most %d were agreed", len(b), c.most)
	}
	if lane == daemon.Urgent {
		return c.queueUrgent(ctx, b)
	}
	return c.bulk.put(ctx, b, c.finish, c.cause)
}

func (c *conn) queueUrgent(ctx context.Context, b []byte) error {
	select {
	case <-c.finish:
		return c.cause()
	default:
	}
	select {
	case c.urgent <- b:
		return nil
	case <-c.finish:
		return c.cause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cause is why the connection has ended.
func (c *conn) cause() error {
	<-c.finish
	if c.why != nil {
		return c.why
	}
	return fault.New(fault.Unavailable, "the connection is closed")
}

// Receive returns the next frame that passed the checks.
func (c *conn) Receive() (*frame.Frame, error) {
	kind, data, err := c.ws.ReadMessage()
	if err != nil {
		err = readError(err)
		c.end(daemon.CloseNormal, "", nil, err)
		return nil, c.cause()
	}
	if kind != websocket.TextMessage {
		err := fault.New(fault.Incompatible, "control sent a binary frame")
		c.end(daemon.CloseViolation, "check 1", nil, err)
		return nil, c.cause()
	}
	f, v := frame.Decode(data, c.options)
	if v != nil {
		err := fault.Wrap(fault.Incompatible, v, "control sent a frame that breaks the protocol")
		c.end(daemon.CloseViolation, fmt.Sprintf("check %d", v.Check), c.protocolError(v), err)
		return nil, c.cause()
	}
	return f, nil
}

// protocolError is the final frame after a violation; nil before the registration, when only control may answer.
func (c *conn) protocolError(v *frame.Violation) []byte {
	if !c.options.Registered {
		return nil
	}
	b, err := frame.Marshal(&pb.Envelope{EnvelopeId: uuid.NewString(), Version: &pb.ProtocolVersion{Major: 2, Minor: c.options.OwnMinor},
		SentAt: timestamppb.Now(), ClientId: c.options.Client, ConnectionGeneration: c.number, CorrelationId: v.EnvelopeID, Payload: &pb.Envelope_ProtocolError{
			ProtocolError: &pb.ProtocolError{Error: valid.Detail(v.Code, v.Error()), OffendingEnvelopeId: v.EnvelopeID, Fatal: true}}})
	if err != nil {
		return nil
	}
	return b
}

// readError names the end of a socket.
func readError(err error) error {
	var ce *websocket.CloseError
	switch {
	case errors.As(err, &ce) && ce.Code != websocket.CloseAbnormalClosure:
		return fault.Wrap(fault.Unavailable, err, "control closed the connection with %d", ce.Code)
	case errors.Is(err, websocket.ErrReadLimit):
		return fault.Wrap(fault.TooLarge, err, "control sent a frame over the limit")
	}
	return fault.Wrap(fault.Unavailable, err, "the connection broke")
}

// Close ends the connection.
func (c *conn) Close(code int, text string) { c.end(code, text, nil, nil) }

// end lets the writer finish. The first reason wins.
func (c *conn) end(code int, text string, last []byte, why error) {
	c.once.Do(func() {
		c.code, c.text, c.last, c.why = code, text, last, why
		// A write that hangs must not keep the socket: the deadline of the connection below cuts it short.
		_ = c.ws.NetConn().SetWriteDeadline(time.Now().Add(lastWrites))
		close(c.finish)
	})
}

// write is the writer goroutine: the urgent lane goes first.
func (c *conn) write() {
	for {
		select {
		case <-c.finish:
			c.writeLast()
			return
		case b := <-c.urgent:
			c.writeFrame(b)
			continue
		default:
		}
		select {
		case <-c.finish:
			c.writeLast()
			return
		case b := <-c.urgent:
			c.writeFrame(b)
		case b := <-c.bulk.out():
			c.bulk.taken(len(b))
			c.writeFrame(b)
		}
	}
}

func (c *conn) writeFrame(b []byte) {
	_ = c.ws.SetWriteDeadline(time.Now().Add(c.timeout))
	if err := c.ws.WriteMessage(websocket.TextMessage, b); err != nil {
		c.end(websocket.CloseAbnormalClosure, "", nil, fault.Wrap(fault.Unavailable, err, "the connection broke"))
	}
}

// writeLast sends what a connection still owes: acknowledgements that wait, a final frame, the close frame.
func (c *conn) writeLast() {
	deadline := time.Now().Add(lastWrites)
	_ = c.ws.SetWriteDeadline(deadline)
	for waiting := true; waiting; {
		select {
		case b := <-c.urgent:
			waiting = c.ws.WriteMessage(websocket.TextMessage, b) == nil
		default:
			waiting = false
		}
	}
	if c.last != nil {
		_ = c.ws.WriteMessage(websocket.TextMessage, c.last)
	}
	if c.code != websocket.CloseAbnormalClosure {
		_ = c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(c.code, c.text), deadline)
	}
	_ = c.ws.Close()
}
