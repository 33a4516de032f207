package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/fault"
)

// session is one registered connection. Its reader handles frames one by one; the other goroutines beat, deliver the
// outboxes and answer queries. The first of them to fail ends all.
type session struct {
	d          *Daemon
	conn       Conn
	generation uint64
	limits     *pb.Limits
	heartbeat  time.Duration
	retry      time.Duration // of unacknowledged events and route updates

	ctx   context.Context
	end   context.CancelCauseFunc
	group sync.WaitGroup

	mu       sync.Mutex
	beats    uint64 // heartbeats sent
	acked    uint64 // the highest acknowledged
	flows    map[uuid.UUID]*flow
	answered map[string]bool // command IDs of queries that this connection answers or has answered
	queries  int             // inventory answers at work

	dirty       chan struct{} // the outboxes have something to send
	routesDirty chan struct{} // so has the route outbox
}

// serve runs the connection until it ends and waits for everything that it started.
func (s *session) serve(ctx context.Context) error {
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.d.mu.Lock()
	s.d.session, s.d.state = s, Registered
	s.d.mu.Unlock()
	s.group.Go(func() { s.end(s.beat()) })
	s.group.Go(func() { s.end(s.pump()) })
	s.group.Go(func() { s.end(s.pumpRoutes()) })
	s.group.Go(func() { s.end(s.read()) })
	<-s.ctx.Done()
	s.d.mu.Lock()
	s.d.session, s.d.state = nil, Waiting
	s.d.mu.Unlock()
	s.conn.Close(CloseNormal, "")
	s.group.Wait()
	return context.Cause(s.ctx)
}

// send queues one payload. The error ends the connection.
func (s *session) send(ctx context.Context, e *pb.Envelope, lane Lane, correlation string) error {
	if s.d.dead.Load() {
		return errKilled
	}
	e.EnvelopeId, e.Version, e.SentAt = uuid.NewString(), ownVersion(), timestamppb.New(s.d.o.Clock.Now())
	e.ClientId, e.ConnectionGeneration, e.CorrelationId = s.d.machine.ClientID, s.generation, correlation
	return s.conn.Send(ctx, e, lane)
}

// read handles what control sends.
func (s *session) read() error {
	for {
		f, err := s.conn.Receive()
		if err != nil {
			return err
		}
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if f.Envelope.GetConnectionGeneration() != s.generation {
			continue // of a replaced connection: dropped
		}
		if err := s.handle(f); err != nil {
			return err
		}
	}
}

func (s *session) handle(f *frame.Frame) error {
	switch p := f.Envelope.GetPayload().(type) {
	case *pb.Envelope_Command:
		return s.d.command(s.ctx, s, f)
	case *pb.Envelope_HeartbeatAck:
		s.mu.Lock()
		if p.HeartbeatAck.GetSequence() <= s.beats {
			s.acked = max(s.acked, p.HeartbeatAck.GetSequence())
		}
		s.mu.Unlock()
		return nil
	case *pb.Envelope_JobEventAck:
		return s.eventAck(p.JobEventAck)
	case *pb.Envelope_RouteUpdateAck:
		return s.routeAck(p.RouteUpdateAck)
	case *pb.Envelope_ProtocolError:
		e := p.ProtocolError.GetError()
		err := fault.New(fault.Incompatible, "control reports %s: %s", e.GetCode(), e.GetMessage())
		s.d.tell(Notice{What: WhatProtocol, Generation: s.generation, Code: e.GetCode(), Err: err})
		if p.ProtocolError.GetFatal() {
			return err
		}
	}
	return nil
}

// missedBeats is how many unanswered heartbeats end the connection (2.5).
const missedBeats = 2

// beat sends heartbeats and ends the connection when two were not acknowledged.
func (s *session) beat() error {
	t := s.d.o.Clock.NewTimer(s.heartbeat)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-t.C():
		}
		s.mu.Lock()
		missing := s.beats - s.acked
		s.beats++
		sequence := s.beats
		s.mu.Unlock()
		if missing >= missedBeats {
			return fault.New(fault.Timeout, "control did not acknowledge %d heartbeats", missing)
		}
		hb := &pb.Heartbeat{Sequence: sequence, SentAt: timestamppb.New(s.d.o.Clock.Now()), OutboxDepth: s.d.outboxDepth(s.ctx),
			BusyWorkers: s.d.busyWorkers()}
		if err := s.send(s.ctx, &pb.Envelope{Payload: &pb.Envelope_Heartbeat{Heartbeat: hb}}, Urgent, ""); err != nil {
			return err
		}
		t.Reset(s.heartbeat)
	}
}

// outboxDepth is the number of unconfirmed events; the last known one when the database does not answer.
func (d *Daemon) outboxDepth(ctx context.Context) uint32 {
	var n uint64
	err := d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		n, err = tx.OutboxDepth()
		return err
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.depth = n
	}
	return uint32(min(d.depth, 1<<31))
}

func (d *Daemon) busyWorkers() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return uint32(len(d.runners))
}
