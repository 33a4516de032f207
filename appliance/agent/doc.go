// Package agent is the task-queue plane: projects, agents, what they report, and the durable commands they are given.
//
// It holds types, pure rules and services. It knows no SQL and no sockets: each service declares the narrow transaction
// interface it needs, which package store implements, and transports declare the few methods they call.
//
//   - Directory: projects, agents, their liveness, API keys; who a credential proves.
//   - Router: verified frames in, one outcome each; event ingest and the projection into tasks, workers and queues.
//   - Commands: issue, claim, deliver, result, timeout, and the delivery ledger that explain reads.
//   - Records: pages of events, tasks, workers and queues for people and scripts.
//
// Every write happens inside one Update of the store, so it is durable when the method returns; hints to waiters
// (package wake) are sent only after that.
package agent
