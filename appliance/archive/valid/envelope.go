package valid

import pb "signalbox/appliance/archive/archivepb"

// Envelope checks the envelope alone (daemon protocol 2.3), the version first: another major has the code
// VERSION_MISMATCH.
func Envelope(m *pb.Envelope) error { return run(m, (*checker).envelope) }

func (c *checker) envelope(m *pb.Envelope) {
	required(c, "version", m.Version, (*checker).version)
	c.uuid("envelope_id", m.EnvelopeId)
	c.timeRequired("sent_at", m.SentAt)
	c.uuid("client_id", m.ClientId)
	c.uuidOrEmpty("correlation_id", m.CorrelationId)
}

// Payload checks what an envelope carries; exactly one payload must be set.
func Payload(m *pb.Envelope) error { return run(m, (*checker).payload) }

func (c *checker) payload(m *pb.Envelope) {
	switch p := m.Payload.(type) {
	case *pb.Envelope_RegisterRequest:
		required(c, "register_request", p.RegisterRequest, (*checker).registerRequest)
		if c.err == nil {
			c.must(p.RegisterRequest.ProtocolVersion.Minor == m.GetVersion().GetMinor(), "register_request.protocol_version", "must be the version of the envelope")
			c.must(p.RegisterRequest.ClientId == m.ClientId, "register_request.client_id", "must be the client of the envelope")
		}
	case *pb.Envelope_RegisterResponse:
		required(c, "register_response", p.RegisterResponse, (*checker).registerResponse)
	case *pb.Envelope_RegisterRejected:
		required(c, "register_rejected", p.RegisterRejected, (*checker).registerRejected)
	case *pb.Envelope_Heartbeat:
		required(c, "heartbeat", p.Heartbeat, (*checker).heartbeat)
	case *pb.Envelope_HeartbeatAck:
		required(c, "heartbeat_ack", p.HeartbeatAck, (*checker).heartbeatAck)
	case *pb.Envelope_Command:
		required(c, "command", p.Command, (*checker).command)
	case *pb.Envelope_CommandAck:
		required(c, "command_ack", p.CommandAck, (*checker).commandAck)
	case *pb.Envelope_JobEvent:
		required(c, "job_event", p.JobEvent, (*checker).event)
	case *pb.Envelope_JobEventAck:
		required(c, "job_event_ack", p.JobEventAck, (*checker).eventAck)
	case *pb.Envelope_JobSnapshot:
		required(c, "job_snapshot", p.JobSnapshot, (*checker).snapshot)
	case *pb.Envelope_InventoryChunk:
		required(c, "inventory_chunk", p.InventoryChunk, (*checker).chunk)
	case *pb.Envelope_RouteUpdate:
		required(c, "route_update", p.RouteUpdate, (*checker).routeUpdate)
	case *pb.Envelope_RouteUpdateAck:
		required(c, "route_update_ack", p.RouteUpdateAck, (*checker).routeUpdateAck)
	case *pb.Envelope_ProtocolError:
		required(c, "protocol_error", p.ProtocolError, (*checker).protocolError)
	default:
		c.fail("payload", "is required")
	}
}
