package archivesim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/fault"
)

// Options of a simulated daemon. ID, Name and Dialer are required.
type Options struct {
	ID      uuid.UUID
	Name    string
	Dialer  daemon.Dialer
	Content Content
	// Progress is how many PROGRESS events each step has.
	Progress int
	// Window is how many events of a job may be on their way; 0: 1.
	Window int
	// Closed is told of every job that control has closed, after the answer was queued; it must not block. May be nil.
	Closed func(job string, final pb.JobState)
	// Recorder may be shared between daemons; nil: one of its own.
	Recorder *Recorder
}

// Daemon is one connected simulated daemon.
type Daemon struct {
	o     Options
	id    string
	begun time.Time
	conn  daemon.Conn

	generation uint64
	limits     *pb.Limits

	ctx   context.Context
	end   context.CancelCauseFunc
	group sync.WaitGroup

	mu     sync.Mutex
	known  map[string]*pb.CommandAck // by command
	jobs   map[string]*job
	routes map[routeKey]*sideOfRoute
	fewer  chan struct{} // closed and replaced when routes has lost one
}

// errClosed is why a daemon ended that was closed.
var errClosed = errors.New("closed")

// Connect dials and registers, and returns when control has accepted the daemon. ctx bounds only that.
func Connect(ctx context.Context, o Options) (*Daemon, error) {
	if o.Recorder == nil {
		o.Recorder = &Recorder{}
	}
	o.Window = max(o.Window, 1)
	d := &Daemon{o: o, id: o.ID.String(), begun: time.Now().UTC().Truncate(time.Second), known: map[string]*pb.CommandAck{},
		jobs: map[string]*job{}, routes: map[routeKey]*sideOfRoute{}, fewer: make(chan struct{})}
	conn, err := o.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	offer := &pb.Limits{MaxEnvelopeBytes: valid.DefaultEnvelopeBytes, MaxChunkEntries: valid.DefaultChunkEntries,
		MaxOutboundEnvelopes: valid.DefaultOutboundEnvelopes, MaxOutboundBytes: valid.DefaultOutboundBytes, MaxActiveCursors: valid.MaxActiveCursors}
	e := d.envelope("")
	e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: &pb.RegisterRequest{ProtocolVersion: version(), ClientId: d.id,
		ClientName: o.Name, Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET, ConnectionInstanceId: uuid.NewString(),
		Capabilities: []string{archive.CapRouteSharedDirectory, archive.CapRouteProvisioning, archive.CapHardlink,
			archive.CapSparse, archive.CapVerifyPieces}, StateEpoch: uuid.NewString(),
		OfferedLimits: offer, Software: "archivesim"}}
	answer, err := conn.Register(ctx, e)
	if err == nil && answer.GetRegisterResponse() == nil {
		refused := answer.GetRegisterRejected().GetError()
		err = fault.New(fault.Unavailable, "control refused the registration: %s (%s)", refused.GetMessage(), refused.GetCode())
	}
	if err != nil {
		conn.Close(daemon.CloseNormal, "")
		return nil, err
	}
	r := answer.GetRegisterResponse()
	d.conn, d.generation, d.limits = conn, r.GetConnectionGeneration(), valid.LowerLimits(offer, r.GetLimits())
	conn.Negotiated(daemon.Negotiated{Client: d.id, PeerMinor: answer.GetVersion().GetMinor(), OwnMinor: daemon.OwnMinor,
		Generation: d.generation, Limits: d.limits})
	d.ctx, d.end = context.WithCancelCause(context.Background())
	beat := r.GetLiveness().GetHeartbeatInterval().AsDuration()
	if beat <= 0 {
		beat = archive.HeartbeatInterval
	}
	d.group.Go(func() { d.end(d.read()) })
	d.group.Go(func() { d.end(d.beat(beat)) })
	context.AfterFunc(d.ctx, func() { conn.Close(daemon.CloseNormal, "") })
	return d, nil
}

// ID is the daemon's.
func (d *Daemon) ID() uuid.UUID { return d.o.ID }

// Done is closed when the connection has ended; Err then says why, nil after Close.
func (d *Daemon) Done() <-chan struct{} { return d.ctx.Done() }

// Err is why the connection has ended; nil before, and after Close.
func (d *Daemon) Err() error {
	if err := context.Cause(d.ctx); !errors.Is(err, errClosed) {
		return err
	}
	return nil
}

// Close ends the connection and waits for everything that the daemon does.
func (d *Daemon) Close() {
	d.end(errClosed)
	d.conn.Close(daemon.CloseNormal, "")
	d.group.Wait()
}

func version() *pb.ProtocolVersion { return &pb.ProtocolVersion{Major: 2, Minor: daemon.OwnMinor} }

func (d *Daemon) envelope(correlation string) *pb.Envelope {
	return &pb.Envelope{EnvelopeId: uuid.NewString(), Version: version(), SentAt: timestamppb.Now(), ClientId: d.id,
		ConnectionGeneration: d.generation, CorrelationId: correlation}
}

// read handles what control sends.
func (d *Daemon) read() error {
	for {
		f, err := d.conn.Receive()
		if err != nil {
			return err
		}
		switch p := f.Envelope.GetPayload().(type) {
		case *pb.Envelope_Command:
			err = d.command(p.Command)
		case *pb.Envelope_JobEventAck:
			d.acknowledged(p.JobEventAck)
		case *pb.Envelope_RouteUpdateAck:
			d.routeAcknowledged(p.RouteUpdateAck)
		case *pb.Envelope_ProtocolError:
			err = fault.New(fault.Incompatible, "control reports %s: %s", p.ProtocolError.GetError().GetCode(), p.ProtocolError.GetError().GetMessage())
		}
		if err != nil {
			return err
		}
	}
}

// beat sends heartbeats.
func (d *Daemon) beat(every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-t.C:
		case <-d.ctx.Done():
			return nil
		}
		e := d.envelope("")
		e.Payload = &pb.Envelope_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: n, SentAt: timestamppb.Now()}}
		if err := d.conn.Send(d.ctx, e, daemon.Urgent); err != nil {
			return err
		}
	}
}
