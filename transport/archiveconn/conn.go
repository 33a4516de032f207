package archiveconn

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
	"signalbox/transport/session"
)

// conn is the handler and the source of a registered socket. The reader goroutine takes messages, the writer goroutine
// pulls commands.
type conn struct {
	srv       *Server
	session   *session.Session
	link      archive.Link
	client    string // the daemon's id as the wire has it
	peerMinor uint32 // advertised
	maxFrame  int

	watch   *wake.Watch
	sending *command.Sending
}

// start lets commands flow. The answer to the registration is queued, so nothing can overtake it.
func (c *conn) start() {
	c.sending = c.srv.svc.Commands.Connect(c.link, c.session.Wake)
	c.watch = c.srv.svc.Hub.Notify(archive.DaemonKey(c.link.Daemon.No), c.session.Wake)
	c.session.Pull(c)
}

// OnMessage checks one frame and hands its payload on.
func (c *conn) OnMessage(ctx context.Context, typ session.MessageType, data []byte) error {
	m := c.srv.svc.Metrics
	if typ != session.Text {
		m.violation(1)
		return session.Fail(session.Protocol, errBinary)
	}
	f, violation := frame.Decode(data, frame.Options{From: frame.FromClient, Registered: true, Client: c.client,
		PeerMinor: c.peerMinor, OwnMinor: registry.Minor, MaxChunkEntries: int(c.link.Limits.MaxChunkEntries),
		MaxCursors: int(c.link.Limits.MaxActiveCursors)})
	if violation != nil {
		m.violation(violation.Check)
		return c.violated(violation)
	}
	e := f.Envelope
	m.received(e)
	if e.ConnectionGeneration != uint64(c.link.Generation) {
		m.stale.Inc()
		return nil
	}
	answer, err := c.dispatch(ctx, e)
	if err != nil {
		return c.failed(e, err)
	}
	if answer == nil {
		return nil
	}
	return c.srv.send(c.session, c.to(e.EnvelopeId), answer)
}

func (c *conn) to(answers string) envelope {
	return envelope{id: peeked{answers, c.client}, generation: uint64(c.link.Generation)}
}

// dispatch gives the payload to its service and returns the answer, nil for none.
func (c *conn) dispatch(ctx context.Context, e *pb.Envelope) (proto.Message, error) {
	v := c.srv
	switch p := e.Payload.(type) {
	case *pb.Envelope_Heartbeat:
		return answer(v.svc.Registry.Heartbeat(ctx, c.link, p.Heartbeat))
	case *pb.Envelope_CommandAck:
		return nil, v.svc.Commands.Acked(ctx, c.link, p.CommandAck)
	case *pb.Envelope_JobEvent:
		return answer(v.svc.Jobs.Event(ctx, c.link, p.JobEvent))
	case *pb.Envelope_JobSnapshot:
		return nil, v.svc.Jobs.Snapshot(ctx, c.link, p.JobSnapshot)
	case *pb.Envelope_InventoryChunk:
		return nil, v.svc.Inventory.Chunk(ctx, c.link, p.InventoryChunk)
	case *pb.Envelope_RouteUpdate:
		return answer(v.svc.Routes.Update(ctx, c.link, p.RouteUpdate))
	case *pb.Envelope_ProtocolError:
		v.svc.Log.Warn().Str("daemon", c.client).Str("code", label(p.ProtocolError.Error.GetCode())).
			Str("envelope", p.ProtocolError.OffendingEnvelopeId).Bool("fatal", p.ProtocolError.Fatal).
			Msg("the daemon reports a protocol error")
		return nil, nil
	}
	return nil, fault.New(fault.Invalid, "payload: is not for control")
}

// answer keeps a nil acknowledgement from becoming a message that is not nil.
func answer[T any, P interface {
	*T
	proto.Message
}](ack P, err error) (proto.Message, error) {
	if ack == nil || err != nil {
		return nil, err
	}
	return ack, nil
}

// failed is a message that a service did not take.
func (c *conn) failed(e *pb.Envelope, err error) error {
	switch fault.CodeOf(err) {
	case fault.Stale:
		c.srv.svc.Metrics.stale.Inc()
		return session.Fail(session.Replaced, err)
	case fault.Invalid:
		c.srv.svc.Metrics.violation(8)
		return c.violated(&frame.Violation{Check: 8, Offset: -1, Code: pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION,
			Reason: fault.Message(err), EnvelopeID: e.EnvelopeId})
	case fault.Unavailable, fault.Canceled, fault.OutcomeUnknown:
		c.srv.svc.Metrics.dropped.Inc()
		if c.session.Context().Err() == nil {
			c.srv.svc.Log.Warn().Err(err).Str("daemon", c.client).Str("payload", payloadName(e)).
				Msg("a message of a daemon was not stored; it sends again what is not acknowledged")
		}
		return nil
	}
	return session.Fail(session.Internal, fmt.Errorf("%s of daemon %s: %w", payloadName(e), c.client, err))
}

// violated tells the peer, if its socket takes it, and returns what the session ends for.
func (c *conn) violated(v *frame.Violation) error {
	report := &pb.ProtocolError{Error: valid.Detail(v.Code, v.Error()), OffendingEnvelopeId: v.EnvelopeID, Fatal: true}
	if err := c.srv.send(c.session, c.to(v.EnvelopeID), report); err != nil {
		return err
	}
	if v.Code == pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH {
		return &session.CloseError{Reason: session.Protocol, Code: 4406, Text: "version not supported", Err: v}
	}
	return session.Fail(session.Protocol, v)
}

// Next gives the writer what follows once the answers are written: go-aheads, then commands, each counted before its bytes
// leave (daemon protocol 4.5, 2.6).
func (c *conn) Next(ctx context.Context, maxBytes int) ([][]byte, error) {
	frames, err := c.pull(ctx, maxBytes)
	switch {
	case err == nil:
		return frames, nil
	case fault.Is(err, fault.Stale):
		return nil, session.Fail(session.Replaced, err)
	case ctx.Err() != nil:
		return nil, nil
	case fault.Is(err, fault.Unavailable), fault.Is(err, fault.OutcomeUnknown), fault.Is(err, fault.Canceled):
		c.srv.svc.Log.Warn().Err(err).Str("daemon", c.client).Msg("commands of a daemon could not be read; trying again")
		c.sending.Later()
		return nil, nil
	}
	return nil, fmt.Errorf("commands of daemon %s: %w", c.client, err)
}

func (c *conn) pull(ctx context.Context, maxBytes int) ([][]byte, error) {
	acks, err := c.srv.svc.Jobs.Acks(ctx, c.link)
	if err != nil {
		return nil, err
	}
	var frames [][]byte
	for _, ack := range acks {
		data, err := c.srv.encode(c.to(""), ack)
		if err != nil {
			return nil, err
		}
		frames = append(frames, data)
		c.srv.svc.Metrics.sent(ack)
	}
	if len(frames) > 0 {
		return frames, nil
	}
	for len(frames) == 0 {
		claimed, err := c.sending.Next(ctx, maxBytes)
		if err != nil || len(claimed) == 0 {
			return nil, err
		}
		for _, one := range claimed {
			data, err := c.srv.encode(c.to(""), one.Command)
			if err == nil && len(data) <= c.maxFrame {
				frames = append(frames, data)
				c.srv.svc.Metrics.sent(one.Command)
				continue
			}
			c.unsendable(ctx, one, len(data), err)
		}
	}
	return frames, nil
}

// unsendable parks a command that no envelope of this connection can hold. Preflights keep jobs from getting here. When the
// database does not take it, the command comes up again after command_retry.
func (c *conn) unsendable(ctx context.Context, one command.Claimed, size int, cause error) {
	reason := fmt.Sprintf("the envelope has %d bytes, %d were negotiated", size, c.maxFrame)
	if cause != nil {
		reason = "it cannot be encoded"
	}
	err := c.sending.Unsendable(ctx, one, reason)
	c.srv.svc.Log.Error().AnErr("cause", cause).Err(err).Str("daemon", c.client).Str("command", one.Command.CommandId).
		Str("reason", reason).Msg("a command cannot be sent")
}

// OnClose ends what the socket had. The daemon stays online until the threshold.
func (c *conn) OnClose(ctx context.Context, closed session.Closed) {
	c.watch.Stop()
	c.srv.svc.Registry.Detach(c.link)
	c.srv.svc.Inventory.OnDetach(c.link)
	if err := c.sending.Close(ctx, "the connection ended ("+closed.Reason.String()+") before the bytes were known to have left"); err != nil {
		c.srv.svc.Log.Warn().Err(err).Str("daemon", c.client).Msg("the end of a delivery was not stored")
	}
}
