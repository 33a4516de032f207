// Package roomapi serves the HTTP routes of room agents that need no stream: registration, operations, messages, typing,
// files, runtime states, the version (H.1, H.8), and the end of an agent (A.4). Section names in comments are those of the
// rooms protocol.
//
// The key alone decides who calls; a path that names another agent is refused (A.2). Errors are roomhttp's.
package roomapi
