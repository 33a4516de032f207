package archiveconn

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/registry"
	"signalbox/transport/session"
)

// envelope is what an outgoing envelope says beside its payload.
type envelope struct {
	id         peeked // the envelope that is answered, if any, and the client
	generation uint64 // 0 before the registration
}

// encode makes the frame of a payload.
func (v *Server) encode(to envelope, payload proto.Message) ([]byte, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	e := &pb.Envelope{EnvelopeId: id.String(), Version: &pb.ProtocolVersion{Major: registry.Major, Minor: registry.Minor},
		SentAt: timestamppb.New(v.svc.Clock.Now()), ClientId: to.id.client, ConnectionGeneration: to.generation,
		CorrelationId: to.id.envelope}
	if err := put(e, payload); err != nil {
		return nil, err
	}
	return frame.Marshal(e)
}

// send queues an answer in the small lane.
func (v *Server) send(s *session.Session, to envelope, payload proto.Message) error {
	data, err := v.encode(to, payload)
	if err != nil {
		return err
	}
	if err := s.Send(data); err != nil {
		return err
	}
	v.svc.Metrics.sent(payload)
	return nil
}

// put sets the payload of an envelope of control.
func put(e *pb.Envelope, payload proto.Message) error {
	switch m := payload.(type) {
	case *pb.RegisterResponse:
		e.Payload = &pb.Envelope_RegisterResponse{RegisterResponse: m}
	case *pb.RegisterRejected:
		e.Payload = &pb.Envelope_RegisterRejected{RegisterRejected: m}
	case *pb.HeartbeatAck:
		e.Payload = &pb.Envelope_HeartbeatAck{HeartbeatAck: m}
	case *pb.Command:
		e.Payload = &pb.Envelope_Command{Command: m}
	case *pb.JobEventAck:
		e.Payload = &pb.Envelope_JobEventAck{JobEventAck: m}
	case *pb.RouteUpdateAck:
		e.Payload = &pb.Envelope_RouteUpdateAck{RouteUpdateAck: m}
	case *pb.ProtocolError:
		e.Payload = &pb.Envelope_ProtocolError{ProtocolError: m}
	default:
		return fmt.Errorf("control sends no %T", payload)
	}
	return nil
}

// label is the code as logs and metrics show it.
func label(code pb.ErrorCode) string {
	return strings.ToLower(strings.TrimPrefix(code.String(), "ERROR_CODE_"))
}
