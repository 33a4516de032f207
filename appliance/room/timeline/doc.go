// Package timeline is the log of each room: what is said there, by whom, in which order, who is told of it, and what the
// server answers (rooms protocol D.6 to D.8, H.3, H.5, I).
//
// Saying something is one transaction: the item at the next position of the room, an event for every agent it is for,
// and the automatic answers it brings about. What the live connections know, roles held and statuses, is sampled before
// the transaction, because a transaction takes no locks.
//
// Automatic answers are marked so: they address nobody and bring about no answer, whoever they seem to come from, so no
// two agents can keep each other busy through them.
//
// No notice is posted when a message finds an agent offline (H.7 leaves it to the server). It would be one more event
// for every other agent of the room; the poster is told the statuses of those it addressed instead.
package timeline
