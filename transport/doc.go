// Package transport is the HTTP house of Signalbox: listeners and their TLS, the middleware every request passes, the
// rendering of errors, health, rate buckets and allowlists, and the orderly way down.
//
// It knows no plane. The WebSocket engine is package session; the agent plane's routes are agentconn, the operators' are
// api. The order around a handler is Front's, outermost first: Observe, RequestIDs, Recover, Hosts, ClientAddresses,
// Bodies. A panic is answered with the request's id, and a body is refused before any handler, bucket or allowlist looks
// at the request (agent protocol F.3).
package transport
