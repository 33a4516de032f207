// Package registry knows the daemons of the archive plane: who registered, under which generation, and who is there
// (daemon protocol 2.5, 4.6).
//
// A generation is the right of one connection to change anything. A registration issues the next one in a transaction;
// every write that a message causes is fenced by it in its own transaction, so a message that was read from an older
// socket takes no effect. Liveness is known in memory only: the times of the last heartbeats, and one timer for all
// daemons. After a restart each daemon that owned its generation has the whole threshold again.
package registry
