// Package command delivers durable commands to daemons (daemon protocol 2.6).
//
// A command is a row before it is sent. It is sent at least once, with the attempt counted in the database before the
// bytes leave, until it is acknowledged or its attempts, counted over all connections, are used up; then it is parked. An
// acknowledgement is taken whenever it comes. What a command means, and whether it may be sent now, is the business of the
// part that made it: the handler of its kind.
package command
