package agent

// AgentKey is woken, with the agent's number, when its sessions should look again: a command to take, a revocation, an
// archived or reactivated project.
type AgentKey int64

// ProjectCommands is woken, with the project's number, after every committed change of a command of that project.
type ProjectCommands int64

// ProjectEvents is woken, with the project's number, after new events of that project were committed.
type ProjectEvents int64

// AgentsOnline is woken, with the project's number, after an agent of that project came online or what it reports to
// serve changed: whatever waits for an agent looks again.
type AgentsOnline int64

// AgentsOffline is woken after one or more agents went offline.
type AgentsOffline struct{}

// SweepKey is woken when a command got a deadline earlier than the one the time-out sweep sleeps until.
type SweepKey struct{}
