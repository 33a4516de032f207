// Package roomconn carries events to room agents: over the WebSocket at /agents/{agent_id}/connection/ws and, for older
// clients, as Server-Sent Events at /agents/{agent_id}/events; and it takes the requests that go with a stream: beat,
// subscribe, unsubscribe, placements, close, and the renewal of a role lease. Section names in comments are those of the
// rooms protocol.
//
// Who is connected is the registry's business, what waits for an agent the feed's. What is here is the order of checks,
// the loop that writes one after the other (pump), its two encodings, pings, and who is told what when something is
// refused.
package roomconn
