package archiveconn

import (
	"context"
	"encoding/json"
	"errors"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/archive/valid"
	"signalbox/transport/session"
)

// open is the registration: the first frame, within the deadline (daemon protocol 2.5).
func (v *Server) open(ctx context.Context, s *session.Session) (session.Handler, error) {
	place, ok := v.places.enter(s)
	if !ok {
		v.svc.Metrics.refused("capacity")
		return nil, session.Fail(session.Capacity, nil)
	}
	c, err := v.register(ctx, s, place)
	if err != nil {
		s.CloseErr(err)
		place.end()
		return place, nil
	}
	return c, nil
}

func (v *Server) register(ctx context.Context, s *session.Session, place *pending) (session.Handler, error) {
	typ, data, err := s.ReadFirst(v.svc.Registry.Liveness().RegistrationDeadline)
	if err == nil && !place.begin() {
		err = session.Fail(session.Capacity, nil)
	}
	if err != nil {
		clear(data)
		switch s.Reason() {
		case session.HandshakeTimeout:
			v.svc.Metrics.refused("deadline")
		case session.Capacity:
			v.svc.Metrics.refused("capacity")
		}
		return nil, err
	}
	if typ != session.Text {
		v.svc.Metrics.violation(1)
		v.svc.Metrics.refused(label(pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION))
		return nil, session.Fail(session.Protocol, errBinary)
	}
	f, violation := frame.Decode(data, frame.Options{From: frame.FromClient})
	if violation != nil {
		v.svc.Metrics.violation(violation.Check)
		var e envelope
		if violation.Check > 3 { // it is one JSON object at least
			e.id = peek(data)
		}
		clear(data)
		return nil, v.reject(s, e, &registry.Refusal{Detail: valid.Detail(violation.Code, violation.Error())})
	}
	clear(data)
	e := f.Envelope
	req := e.GetRegisterRequest()
	token := frame.TakeToken(req)
	v.svc.Metrics.received(e)
	answer := envelope{id: peeked{e.EnvelopeId, e.ClientId}}
	if e.ConnectionGeneration != 0 {
		clear(token)
		v.svc.Metrics.violation(8)
		return nil, v.reject(s, answer, &registry.Refusal{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION,
			"connection_generation: must be 0 before the registration")})
	}
	reg, refusal := v.svc.Registry.Register(ctx, registry.Request{Register: req, SentAt: e.SentAt.AsTime(), Remote: s.Peer()}, token)
	clear(token)
	if refusal != nil {
		return nil, v.reject(s, answer, refusal)
	}
	place.leave() // before the daemon knows: whoever comes after that finds it free
	return v.registered(s, e, reg)
}

var errBinary = errors.New("a binary frame")

// registered answers and joins the socket to the daemon.
func (v *Server) registered(s *session.Session, e *pb.Envelope, reg *registry.Registration) (session.Handler, error) {
	req, link := e.GetRegisterRequest(), reg.Link
	c := &conn{srv: v, session: s, link: link, client: link.Daemon.ID.String(), peerMinor: req.ProtocolVersion.GetMinor(),
		maxFrame: int(link.Limits.MaxEnvelopeBytes)}
	s.SetPrincipal(c.client)
	s.SetLimits(c.maxFrame, int(link.Limits.MaxOutboundEnvelopes), int(link.Limits.MaxOutboundBytes))
	answer := envelope{id: peeked{e.EnvelopeId, c.client}, generation: uint64(link.Generation)}
	if err := v.send(s, answer, reg.Response); err != nil {
		return nil, err
	}
	if !v.svc.Registry.Attach(link, closer{s}) {
		return nil, session.Fail(session.Replaced, nil)
	}
	c.start()
	v.svc.Log.Info().Str("daemon", c.client).Int64("generation", link.Generation).Str("peer", s.Peer()).
		Str("software", req.Software).Uint32("minor", link.Minor).Bool("takeover", reg.Takeover).Msg("daemon registered")
	return c, nil
}

// closer is the registry's hold on the socket.
type closer struct{ s *session.Session }

// Close ends the socket. It does not wait.
func (c closer) Close(why registry.Why) {
	switch why {
	case registry.Lapsed:
		c.s.Close(session.Lapsed)
	default:
		c.s.Close(session.Replaced)
	}
}

// reject answers a refused registration, when it is known to whom, and returns what the socket ends for.
func (v *Server) reject(s *session.Session, to envelope, f *registry.Refusal) error {
	code := f.Detail.Code
	v.svc.Metrics.refused(label(code))
	if f.Err != nil {
		v.svc.Log.Error().Err(f.Err).Str("peer", s.Peer()).Msg("a daemon could not be registered")
	}
	if to.id.client != "" {
		if err := v.send(s, to, f.Rejected(registry.Minor)); err != nil {
			return err
		}
	}
	e := &session.CloseError{Reason: session.Refused, Code: 4400, Text: "protocol violation", Err: errors.New(label(code))}
	switch code {
	case pb.ErrorCode_ERROR_CODE_UNAUTHENTICATED:
		e.Code, e.Text = 4401, "token refused"
	case pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH, pb.ErrorCode_ERROR_CODE_UNSUPPORTED:
		e.Code, e.Text = 4406, "version or feature not supported"
	case pb.ErrorCode_ERROR_CODE_UNAVAILABLE:
		e.Code, e.Text = 4503, "not now; come back"
	}
	return e
}

// peeked are the two ids that an answer needs, empty unless both are valid.
type peeked struct{ envelope, client string }

// peek reads the ids of a frame that failed a check. Whatever else is in it, the token for one, is not looked at.
func peek(data []byte) peeked {
	top := map[string]json.RawMessage{}
	if json.Unmarshal(data, &top) != nil {
		return peeked{}
	}
	id := func(keys ...string) (text string) {
		for _, key := range keys {
			if raw, ok := top[key]; ok && json.Unmarshal(raw, &text) != nil {
				return ""
			}
		}
		return text
	}
	p := peeked{id("envelopeId", "envelope_id"), id("clientId", "client_id")}
	if !valid.IsUUID(p.envelope) || !valid.IsUUID(p.client) {
		return peeked{}
	}
	return p
}
