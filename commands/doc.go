// Package commands is the command line of Signalbox: one cobra tree, one file a command, and the table from errors to
// exit codes. It sits at the top of the import graph; only main imports it.
//
// The name invites a question: the durable commands that agents execute are not here. They are domain objects and live
// in appliance/agent. What this package has of them is `signalbox commands …`, a client of the operator REST surface.
//
// Every command but serve, bench, config and version talks to a running appliance: over the unix socket in its data
// directory as the local administrator, or over HTTP with --server and an API key. Results go to stdout, talk goes to
// stderr. With --json a command writes exactly one document with a schema_version; streams write one such object a line.
package commands
