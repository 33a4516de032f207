// Package roommcp is the rooms plane for agent hosts that know only a URL and an agent's key: a Model Context Protocol
// endpoint over streamable HTTP, at /mcp and at /agents/{agent_id}/mcp. Section names in comments are those of the rooms
// protocol.
//
// Its tools are the operations of H.1, with their own schemas, and wait_for_messages. An operation's refusal is a tool
// error, which the model reads; an object result is structured content too.
//
// MCP has no way to hand a model an event, so a host asks: wait_for_messages returns what is addressed to the agent in the
// room it is connected to, or waits for it up to 50 seconds, less than the time after which hosts and proxies give up.
// Nothing is kept in memory for it: events are read from the agent's feed at the moment they are handed over. A host that
// sets a log level and keeps its GET stream open is told of the same events as log notifications as they come.
//
// Each MCP session owns a connection in the registry: scope single, transport mcp. It is opened with the session and
// beaten here, by the server, for as long as the host is there: a request or the GET stream is open, or the last one
// ended less than Options.Presence ago. After that it is closed, so that an agent whose host went away without a word is
// not taken to be there; the session stays, and its next call opens the connection again where it stood: with its cursor,
// and with its room unless another connection has claimed that. A session that is idle for Options.Idle is closed.
// Sessions are bounded in number; the one idle longest makes way for a newcomer of the same agent.
//
// Sessions need a version of the protocol that has them: newer clients fall back to it when they ask. The key is checked
// at every request, and a session belongs to the agent that opened it. A request that names an Origin, which only browsers
// do, must come from the host it is sent to or from a listed one, and on a loopback address that host must be the
// loopback's own (DNS rebinding).
package roommcp
