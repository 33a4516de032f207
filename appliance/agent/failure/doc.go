// Package failure puts failed tasks into groups: failures of one task that raise the same class of exception in the same
// place are one group, however often they happen and whatever their message says. A group is open, resolved or ignored; a
// recurrence opens a resolved one again.
//
// Fingerprint is pure. Recorder counts a failure inside the transaction that stores its event, Service serves people.
package failure
