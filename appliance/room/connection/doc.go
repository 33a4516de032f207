// Package connection knows who is connected: the live connections of every agent, the rooms they claim, the sessions
// they have placed, the role leases held under them. It keeps everything in memory and starts with nothing (N.3).
// Section names in comments are those of the rooms protocol.
//
// Locks. Everything of one agent changes under that agent's claim lock (F.1 rule 5). No lock is held while the database
// is asked, no two agents' locks are ever held together, and the order is claim lock, then index, then leases. What a
// change has to tell others, wakes and observations, is called after the lock is given back. Stream.Covers takes no lock:
// it reads a snapshot that every change of claims or membership throws away and the next reader builds anew.
//
// Time. Liveness does not run on the clock but on registry time: the clock less every stall of the server. Sweep is
// what proves that the server is awake. When it comes more than StallAfter late, the lateness is taken out of registry
// time, which is the same as adding it to every last beat (C.3). Whoever else asks for the time between the end of a
// stall and that sweep sees it too, since a sweep is overdue then, and reads the time at which it was due: nobody lapses
// before the sweep has settled how long the stall was. A registry that is never swept therefore lets nobody lapse beyond
// the first seconds; tests move the clock in steps of SweepEvery and sweep after each.
package connection
