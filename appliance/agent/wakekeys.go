package agent

// AgentKey is woken, with the agent's number, when its sessions should look again: a command to take, a revocation, an
// archived or reactivated project.
type AgentKey int64

// ProjectCommands is woken, with the project's number, after every committed change of a command of that project.
type ProjectCommands int64

// ProjectEvents is woken, with the project's number, after new events of that project were committed.
type ProjectEvents int64

// SweepKey is woken when a command got a deadline earlier than the one the time-out sweep sleeps until.
type SweepKey struct{}
