package daemon

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/fault"
)

// ended tells how one attempt to be connected went.
type ended struct {
	// registeredFor is how long the connection was registered; 0 when it never was.
	registeredFor time.Duration
	// retryAfter is control's lower bound for the next attempt.
	retryAfter time.Duration
	err        error
}

// connections keeps a connection until the run ends: it retries for ever, whatever the reason (2.5).
func (d *Daemon) connections() {
	for n := 0; d.ctx.Err() == nil; n++ {
		d.setState(Dialing)
		e := d.connect(d.ctx)
		d.setState(Waiting)
		r := d.reconnect()
		if e.registeredFor > 0 && e.registeredFor >= r.StableReset {
			n = 0
		}
		delay := archive.Backoff{Initial: r.Initial, Cap: r.Cap}.Delay(n, d.o.Random())
		delay = max(delay, min(e.retryAfter, r.Cap))
		if !d.sleep(d.ctx, delay) {
			return
		}
	}
}

func (d *Daemon) setState(s State) {
	d.mu.Lock()
	d.state = s
	d.mu.Unlock()
}

// reconnect is what control said last, with the defaults for what it did not.
func (d *Daemon) reconnect() Reconnect {
	d.mu.Lock()
	r := d.id.Reconnect
	d.mu.Unlock()
	orDefault(&r.Initial, archive.ReconnectInitial)
	orDefault(&r.Cap, archive.ReconnectCap)
	orDefault(&r.StableReset, archive.StableReset)
	return r
}

func orDefault(v *time.Duration, d time.Duration) {
	if *v <= 0 {
		*v = d
	}
}

// connect dials, registers and serves one connection until it ends.
func (d *Daemon) connect(ctx context.Context) ended {
	// The deadline of a registration, which control keeps too, covers the way there.
	dialing, stop := d.deadline(ctx, archive.RegistrationDeadline)
	defer stop()
	conn, err := d.o.Dialer.Dial(dialing)
	if err != nil {
		d.tell(Notice{What: WhatDisconnected, Err: err})
		return ended{err: err}
	}
	defer conn.Close(CloseNormal, "")
	answer, err := d.register(dialing, conn)
	if err != nil {
		d.tell(Notice{What: WhatDisconnected, Err: err})
		return ended{err: err}
	}
	stop()
	if r := answer.GetRegisterRejected(); r != nil {
		d.tell(Notice{What: WhatRefused, Code: r.GetError().GetCode(), Err: errors.New(r.GetError().GetMessage())})
		return ended{retryAfter: max(r.GetRetryAfter().AsDuration(), r.GetError().GetRetryAfter().AsDuration())}
	}
	s, err := d.registered(ctx, conn, answer)
	if err != nil {
		d.tell(Notice{What: WhatDisconnected, Err: err})
		return ended{err: err}
	}
	begun := d.o.Clock.Now()
	err = s.serve(ctx)
	d.tell(Notice{What: WhatDisconnected, Generation: s.generation, Err: err})
	return ended{registeredFor: max(d.o.Clock.Now().Sub(begun), 1), err: err}
}

// deadline is a context that ends after t on the daemon's clock.
func (d *Daemon) deadline(ctx context.Context, t time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := d.o.Clock.NewTimer(t)
	d.group.Go(func() {
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel(fault.New(fault.Timeout, "control did not answer within %v", t))
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil) }
}

// register sends the request and returns the answer.
func (d *Daemon) register(ctx context.Context, conn Conn) (*pb.Envelope, error) {
	q := &pb.RegisterRequest{ProtocolVersion: ownVersion(), ClientId: d.machine.ClientID, ClientName: d.o.Name, Role: d.o.Role,
		ConnectionInstanceId: uuid.NewString(), Capabilities: d.machine.Capabilities, OfferedLimits: d.o.Offer, Software: d.o.Software}
	err := d.o.Store.View(ctx, func(tx ReadTx) error {
		id, err := tx.Identity()
		if err != nil {
			return err
		}
		q.StateEpoch, q.LastGeneration = id.Epoch.String(), id.LastGeneration
		q.ActiveJobs, err = activeCursors(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn.Register(ctx, &pb.Envelope{EnvelopeId: uuid.NewString(), Version: ownVersion(), SentAt: timestamppb.New(d.o.Clock.Now()),
		ClientId: d.machine.ClientID, Payload: &pb.Envelope_RegisterRequest{RegisterRequest: q}})
}

func ownVersion() *pb.ProtocolVersion { return &pb.ProtocolVersion{Major: 2, Minor: OwnMinor} }

// registered takes in the answer of a successful registration. The generation is durable before the first envelope of the
// connection is sent (2.5).
func (d *Daemon) registered(ctx context.Context, conn Conn, e *pb.Envelope) (*session, error) {
	a := e.GetRegisterResponse()
	generation := a.GetConnectionGeneration()
	if generation == 0 || generation > math.MaxInt64 {
		conn.Close(CloseViolation, "connection_generation")
		return nil, fault.Field("connection_generation", "control sent %d, which is outside its range", generation)
	}
	limits := valid.LowerLimits(d.o.Offer, a.GetLimits())
	l := a.GetLiveness()
	r := Reconnect{Initial: atLeast(l.GetReconnectInitial(), shortestDelay), Cap: atLeast(l.GetReconnectCap(), shortestDelay),
		StableReset:      atLeast(l.GetStableReset(), 0),
		MaxActiveCursors: limits.GetMaxActiveCursors()}
	err := d.update(ctx, "daemon.registered", func(tx Tx) error {
		if err := tx.SetLastGeneration(generation); err != nil {
			return err
		}
		return tx.SetReconnect(r)
	})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.id.Reconnect = r
	d.mu.Unlock()
	conn.Negotiated(Negotiated{Client: d.machine.ClientID, PeerMinor: e.GetVersion().GetMinor(), OwnMinor: OwnMinor,
		Generation: generation, Limits: limits})
	s := &session{d: d, conn: conn, generation: generation, limits: limits, heartbeat: atLeast(l.GetHeartbeatInterval(), shortestBeat),
		retry: atLeast(l.GetCommandRetry(), shortestBeat), flows: map[uuid.UUID]*flow{}, answered: map[string]bool{}, dirty: make(chan struct{}, 1),
		routesDirty: make(chan struct{}, 1)}
	orDefault(&s.heartbeat, archive.HeartbeatInterval)
	orDefault(&s.retry, archive.CommandRetry)
	d.tell(Notice{What: WhatConnected, Generation: generation})
	return s, nil
}

// What control may ask at most, so that a mistake there does not make this machine spin.
const (
	shortestDelay = 10 * time.Millisecond
	shortestBeat  = 100 * time.Millisecond
)

// atLeast reads a setting of control: 0 when it is not set, and otherwise no less than the floor.
func atLeast(p *durationpb.Duration, floor time.Duration) time.Duration {
	d := p.AsDuration()
	if d <= 0 {
		return 0
	}
	return max(d, floor)
}
