package archiveconn

import (
	"context"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/transport"
	"signalbox/transport/session"
)

const (
	// Path is where daemons connect, Subprotocol what they must offer (daemon protocol 2.2).
	Path        = "/daemon/v2"
	Subprotocol = "archive-control.v2"

	// maxFirstFrame is the largest frame before the registration (daemon protocol 5.2).
	maxFirstFrame = 512 << 10
	// MaxUnregistered is how many sockets may be without a registration (daemon protocol 2.5); places tells whose.
	MaxUnregistered = 64
	// maxSockets bounds all sockets, those being closed included; more are refused before the upgrade.
	maxSockets = 2048
	// closeWait bounds the end of a socket: what is queued, the close frame, the peer's answer.
	closeWait = 2 * time.Second
)

// Registry is who may send; *registry.Registry is one.
type Registry interface {
	Register(ctx context.Context, q registry.Request, token []byte) (*registry.Registration, *registry.Refusal)
	Attach(link archive.Link, s registry.Sender) bool
	Detach(link archive.Link)
	Heartbeat(ctx context.Context, link archive.Link, hb *pb.Heartbeat) (*pb.HeartbeatAck, error)
	Liveness() registry.Liveness
}

// Commands is what is sent; *command.Queue is one.
type Commands interface {
	Connect(link archive.Link, wake func()) *command.Sending
	Acked(ctx context.Context, link archive.Link, ack *pb.CommandAck) error
}

// Jobs takes what daemons tell of jobs. A nil acknowledgement is none.
type Jobs interface {
	Event(ctx context.Context, link archive.Link, event *pb.JobEvent) (*pb.JobEventAck, error)
	Snapshot(ctx context.Context, link archive.Link, part *pb.JobSnapshot) error
	// Acks returns the acknowledgements to be sent now, the go-aheads of daemon protocol 4.5. It is asked whenever the
	// connection is woken, must be cheap, and gives each only once.
	Acks(ctx context.Context, link archive.Link) ([]*pb.JobEventAck, error)
}

// Inventory takes the answers to queries.
type Inventory interface {
	Chunk(ctx context.Context, link archive.Link, chunk *pb.InventoryChunk) error
	// OnDetach tells that the link's socket is closed: no more chunks will come on it.
	OnDetach(link archive.Link)
}

// Routes takes what daemons tell of routes. A nil acknowledgement is none.
type Routes interface {
	Update(ctx context.Context, link archive.Link, update *pb.RouteUpdate) (*pb.RouteUpdateAck, error)
}

var (
	_ Registry = (*registry.Registry)(nil)
	_ Commands = (*command.Queue)(nil)
)

// Services are what the endpoint is wired to. All fields are required but Metrics.
//
// Errors decide what happens to the connection: Stale closes it as replaced, Invalid is a protocol violation, Unavailable,
// Canceled and OutcomeUnknown drop the message (the daemon sends again what was not acknowledged), all else is ours and
// closes the connection.
type Services struct {
	Registry  Registry
	Commands  Commands
	Jobs      Jobs
	Inventory Inventory
	Routes    Routes
	Hub       *wake.Hub
	Clock     clock.Clock
	Log       zerolog.Logger
	Metrics   *Metrics // nil: of its own, registered nowhere
}

// Server serves daemons. Create it with New.
type Server struct {
	svc    Services
	plane  *session.Plane
	places places
}

// closeCodes are those of daemon protocol 2.2.
var closeCodes = map[session.Reason]session.CloseCode{
	session.Normal:           {Code: 1000},
	session.PeerClosed:       {Code: 1000},
	session.Lapsed:           {Code: 1000, Text: "no heartbeat within the offline threshold"},
	session.Oversize:         {Code: 1009, Text: "frame over limit"},
	session.Protocol:         {Code: 4400, Text: "protocol violation"},
	session.Refused:          {Code: 4400, Text: "registration refused"},
	session.HandshakeTimeout: {Code: 4408, Text: "no registration within the deadline"},
	session.Replaced:         {Code: 4409, Text: "replaced by a newer connection of the same client"},
	session.Slow:             {Code: 4429, Text: "outbound queue overflow"},
	session.Draining:         {Code: 4503, Text: "control is shutting down; come back"},
	session.Capacity:         {Code: 4503, Text: "too many unregistered connections; come back"},
	session.Internal:         {Code: 1011, Text: "internal error"},
	session.Panic:            {Code: 1011, Text: "internal error"},
}

// New adds the plane of daemons to the session group.
func New(group *session.Group, s Services) *Server {
	if s.Clock == nil {
		s.Clock = clock.System()
	}
	if s.Metrics == nil {
		s.Metrics = NewMetrics(nil)
	}
	v := &Server{svc: s}
	v.plane = group.NewPlane(session.Options{
		Kind:        "archive",
		Outgoing:    session.Text,
		Subprotocol: Subprotocol,
		MaxMessage:  maxFirstFrame,
		MaxSessions: maxSockets,
		CloseWait:   closeWait,
		Codes:       closeCodes,
	})
	v.svc.Metrics.watch(v.places.count)
	return v
}

// Routes registers the endpoint.
func (v *Server) Routes(mux *http.ServeMux) { mux.Handle("GET "+Path, v) }

// ServeHTTP upgrades the request. What is wrong after that is told by a close code.
func (v *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !session.IsUpgrade(r) {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		transport.WriteError(w, r, fault.New(fault.Incompatible, "this path speaks WebSocket only, subprotocol %s", Subprotocol))
		return
	}
	peer := transport.AddrKey(transport.ClientAddr(r.Context()))
	if err := v.plane.Accept(w, r, peer, v.open); err != nil {
		transport.WriteError(w, r, err)
	}
}
