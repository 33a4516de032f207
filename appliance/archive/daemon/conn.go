package daemon

import (
	"context"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// Lane is a way out of a connection. Heartbeats and acknowledgements have their own, so that bulk cannot starve liveness
// (daemon protocol 5.2).
type Lane uint8

// The lanes.
const (
	// Bulk takes events, snapshots, chunks and route updates; Send blocks while its queue is full.
	Bulk Lane = iota
	// Urgent takes heartbeats and acknowledgements.
	Urgent
)

// Dialer makes connections to control. Tests give one without sockets.
type Dialer interface {
	// Dial opens a connection that has not registered yet. It ends with ctx.
	Dial(ctx context.Context) (Conn, error)
}

// Conn is one connection. Register comes first, then Negotiated, then the rest; Send is safe for concurrent use, Receive
// is for one goroutine. After Close every method fails.
type Conn interface {
	// Register sends the request, which carries no token: the connection puts it in. It returns the answer's envelope, a
	// RegisterResponse or a RegisterRejected that passed the checks. It ends with ctx.
	Register(ctx context.Context, e *pb.Envelope) (*pb.Envelope, error)
	// Negotiated sets what the rest of the connection keeps to: read limit, queue bounds, versions.
	Negotiated(n Negotiated)
	// Send queues the envelope. It blocks while the lane is full, and fails when the connection or ctx ends. nil means
	// queued, not sent.
	Send(ctx context.Context, e *pb.Envelope, lane Lane) error
	// Receive returns the next frame that passed the checks. A frame that failed them is answered and ends the connection.
	Receive() (*frame.Frame, error)
	// Close ends the connection with a WebSocket close code and a short text for people. Safe to call twice and at any time.
	Close(code int, text string)
}

// Negotiated is the outcome of a registration.
type Negotiated struct {
	// Client is this daemon's ID; PeerMinor is the minor that control speaks, OwnMinor this program's own.
	Client              string
	PeerMinor, OwnMinor uint32
	Generation          uint64
	Limits              *pb.Limits
}

// Close codes that the daemon uses (2.2).
const (
	CloseNormal    = 1000
	CloseViolation = 4400
)
