// Package conformance replays the acceptance vectors of the rooms protocol (section M) against a server, knowing only its
// address and a key: those that a client can bring about by itself. Section names in comments and results are those of
// the rooms protocol.
//
// It makes two agents, speaks as one of them, listens as the other, and takes away at the end what it made. Every vector
// has rooms and connections of its own, so that a failed one does not spoil the next.
package conformance
