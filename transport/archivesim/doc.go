// Package archivesim simulates daemons of the archive plane for load and scale tests: they speak the daemon protocol over
// real sockets and keep nothing on any disk. A simulated daemon registers, beats, tells of content that is made up as it is
// asked for, takes every command at once, and runs the steps of jobs as messages alone, as fast as control acknowledges
// its events. It does not reconnect: the end of its connection is the end of it.
package archivesim
