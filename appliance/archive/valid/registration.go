package valid

import (
	"google.golang.org/protobuf/types/known/durationpb"

	pb "signalbox/appliance/archive/archivepb"
)

// Sizes of daemon protocol 2.5.
const (
	MaxClientName = 128
	MaxSoftware   = 128
	MinTokenBytes = 32
	MaxTokenBytes = 512
	aboveZero     = "must be a duration above 0 and at most 24 hours"
)

// RegisterRequest checks a registration, with up to MaxActiveCursors cursors. That its version and client are those of
// the envelope is checked by Payload; the number of cursors last negotiated and the token are the receiver's.
func RegisterRequest(m *pb.RegisterRequest) error { return run(m, (*checker).registerRequest) }

func (c *checker) registerRequest(m *pb.RegisterRequest) {
	required(c, "protocol_version", m.ProtocolVersion, (*checker).version)
	c.uuid("client_id", m.ClientId)
	c.size("client_name", m.ClientName, 1, MaxClientName)
	c.printable("client_name", m.ClientName)
	chosen(c, "role", m.Role, pb.ClientRole_name)
	c.uuid("connection_instance_id", m.ConnectionInstanceId)
	c.capabilities("capabilities", m.Capabilities)
	c.size("token", m.Token, MinTokenBytes, MaxTokenBytes)
	c.uuid("state_epoch", m.StateEpoch)
	required(c, "offered_limits", m.OfferedLimits, (*checker).limits)
	c.size("software", m.Software, 0, MaxSoftware)
	c.cursors("active_jobs", m.ActiveJobs)
	seen := make(map[string]struct{}, len(m.ActiveJobs))
	for i, job := range m.ActiveJobs {
		if _, twice := seen[job.GetJobId()]; twice {
			c.fail("active_jobs["+itoa(i)+"].job_id", "must not be in the list twice")
		}
		seen[job.GetJobId()] = struct{}{}
	}
}

func (c *checker) cursors(field string, list []*pb.JobCursor) {
	c.must(len(list) <= MaxActiveCursors, field, "must have at most "+itoa(MaxActiveCursors)+" elements")
	each(c, field, list, (*checker).cursor)
}

// RegisterResponse checks the answer to a registration.
func RegisterResponse(m *pb.RegisterResponse) error { return run(m, (*checker).registerResponse) }

func (c *checker) registerResponse(m *pb.RegisterResponse) {
	required(c, "negotiated_version", m.NegotiatedVersion, (*checker).version)
	c.must(m.ConnectionGeneration >= 1, "connection_generation", "must be at least 1")
	c.uuid("server_id", m.ServerId)
	c.uuid("server_epoch", m.ServerEpoch)
	c.time("server_time", m.ServerTime)
	required(c, "liveness", m.Liveness, (*checker).liveness)
	required(c, "limits", m.Limits, (*checker).limits)
	c.capabilities("capabilities", m.Capabilities)
	c.cursors("control_cursors", m.ControlCursors)
}

// LivenessSettings checks the times of a connection. An unset one stands for its default.
func LivenessSettings(m *pb.LivenessSettings) error { return run(m, (*checker).liveness) }

func (c *checker) liveness(m *pb.LivenessSettings) {
	above := func(field string, d *durationpb.Duration) {
		c.duration(field, d, day)
		c.must(d == nil || d.AsDuration() > 0, field, aboveZero)
	}
	above("heartbeat_interval", m.HeartbeatInterval)
	above("offline_threshold", m.OfflineThreshold)
	above("stable_reset", m.StableReset)
	above("reconnect_initial", m.ReconnectInitial)
	above("reconnect_cap", m.ReconnectCap)
	above("command_retry", m.CommandRetry)
	above("registration_deadline", m.RegistrationDeadline)
}

// RegisterRejected checks the refusal of a registration.
func RegisterRejected(m *pb.RegisterRejected) error { return run(m, (*checker).registerRejected) }

func (c *checker) registerRejected(m *pb.RegisterRejected) {
	required(c, "error", m.Error, (*checker).detail)
	c.duration("retry_after", m.RetryAfter, day)
}

// Heartbeat checks a heartbeat. That its sequence is the next one is the receiver's to check.
func Heartbeat(m *pb.Heartbeat) error { return run(m, (*checker).heartbeat) }

func (c *checker) heartbeat(m *pb.Heartbeat) {
	c.must(m.Sequence >= 1, "sequence", "must be at least 1")
	c.time("sent_at", m.SentAt)
}

// HeartbeatAck checks the answer to a heartbeat.
func HeartbeatAck(m *pb.HeartbeatAck) error { return run(m, (*checker).heartbeatAck) }

func (c *checker) heartbeatAck(m *pb.HeartbeatAck) {
	c.must(m.Sequence >= 1, "sequence", "must be at least 1")
	c.time("server_time", m.ServerTime)
}
