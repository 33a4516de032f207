// Package agentconn is the agent protocol on its two transports: the WebSocket at /ws/agent (agent protocol B) and the
// long-poll routes below /api/v1/agent/ (agent protocol F).
//
// Both pass the same gate (rate bucket, allowlist, bearer, project), feed the same router, and claim commands from the
// same service. What a frame does is the domain's business; what is here is order of checks, sessions, signatures, and
// who is told what when something is refused.
package agentconn

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/secret"
	"signalbox/transport/wire"
)

// Directory is what the transports ask about agents.
type Directory interface {
	// Authenticate proves an Authorization header. An archived project returns the identity and a ProjectInactive error.
	Authenticate(ctx context.Context, authorization string) (agent.Identity, error)
	// MarkOnline stores a hello: agent online, inventory, worker slot online, in one commit, and returns the connect time
	// it wrote. Unauthenticated when the agent was revoked meanwhile.
	MarkOnline(ctx context.Context, p agent.Peer, h agent.Hello) (connectedAt time.Time, err error)
	// CheckAlive returns Unauthenticated for a revoked agent and ProjectInactive for an archived project.
	CheckAlive(ctx context.Context, agentNo int64) error
	// WorkerOffline ends a worker slot; last says that the agent has no session left.
	WorkerOffline(ctx context.Context, p agent.Peer, last bool, connectedAt time.Time) error
	// TouchLongPoll refreshes the agent's liveness after an authenticated upload.
	TouchLongPoll(ctx context.Context, p agent.Peer) error
	// StoreRuntimeFeatures keeps what a probe reported.
	StoreRuntimeFeatures(ctx context.Context, p agent.Peer, features []string) error
	// RecordRefusal writes the audit row of a refused peer.
	RecordRefusal(ctx context.Context, e audit.Entry) error
}

// Router takes authentic frames and returns one outcome for each, when what it says is durable.
type Router interface {
	Dispatch(ctx context.Context, p agent.Peer, frames []agent.Frame) []agent.Outcome
}

// Commands hands out commands and takes note of what became of them.
type Commands interface {
	ClaimPending(ctx context.Context, p agent.Peer, c agent.ClaimRequest) (agent.ClaimResult, error)
	MarkSent(ctx context.Context, deliveries ...int64) error
	SendFailed(ctx context.Context, c agent.Claimed, reason string) error
	SignFailed(ctx context.Context, c agent.Claimed) error
	// Connected and Disconnected frame the time in which a WebSocket session can answer.
	Connected(p agent.Peer)
	Disconnected(p agent.Peer)
}

// Log fields.
const (
	fieldAgent   = "agent"
	fieldProject = "project"
	fieldCommand = "command"
)

// cleanupTimeout bounds writes that follow a session or response which is over already.
const cleanupTimeout = 10 * time.Second

// binding is what the signatures of a session cover.
func binding(secretOf func(uuid.UUID) secret.Bytes, id agent.Identity, session string) wire.Binding {
	return wire.Binding{Secret: secretOf(id.Project.ID), AgentID: id.Agent.ID, ProjectID: id.Project.ID, Session: session}
}

func peerOf(id agent.Identity, t agent.Transport, session, worker string) agent.Peer {
	return agent.Peer{ProjectNo: id.Project.No, ProjectID: id.Project.ID, AgentNo: id.Agent.No, AgentID: id.Agent.ID,
		Transport: t, Session: session, Worker: worker}
}

// domainFrames gives the router what it needs of verified frames. The payloads stay in the frames' memory.
func domainFrames(frames []wire.Frame) []agent.Frame {
	out := make([]agent.Frame, len(frames))
	for i := range frames {
		f := &frames[i]
		out[i] = agent.Frame{Type: string(f.Type), ID: f.ID, At: f.Time, Payload: f.Payload}
	}
	return out
}
