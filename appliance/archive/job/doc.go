// Package job is the job engine of the archive plane's control: it applies what package decide decides.
//
// The database is the only state. Every event, acknowledgement, registration, timer and decision of an operator is one
// transaction that reads the job, lets decide say what follows, and writes all of it: event, cursor, state, evidence,
// timeline and the rows of the next commands. What stays in memory are hints: which go-aheads a connection was sent, the
// parts of a snapshot that is not complete, and one timer. A process that is killed at any instruction goes on from the
// database (daemon protocol 3.7).
package job
