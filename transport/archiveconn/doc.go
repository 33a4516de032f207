// Package archiveconn is control's end of the daemons' WebSocket: /daemon/v2, subprotocol archive-control.v2 (daemon
// protocol 2.2 to 2.6).
//
// The reader goroutine of a session checks each frame, hands its payload to one service, and queues the answer. Answers
// are the small lane: they wait in the session's queue, which is bounded by the negotiated limits and closes as too slow.
// Commands never wait there. The writer pulls them from the database when the queue is empty, so a slow daemon costs no
// memory and no command can keep an acknowledgement waiting. There are no pings: liveness is the business of the registry.
//
// Nothing of a frame reaches a log, an error or a metric: failures are told by check and byte offset.
package archiveconn
