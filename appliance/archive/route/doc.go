// Package route keeps the ways for job directories from one daemon to another (daemon protocol 6).
//
// A route has two sides. Each side is created at its daemon by a durable command and tells of itself in updates, which are
// numbered from 1 within that command: they are stored in order, repeated ones are acknowledged again, and a gap or a
// conflict quarantines the side until the daemon's whole history agrees with what is stored (6.4). A route is ready only
// while five conditions hold (6.3); Judge computes them from both sides and says what is missing.
//
// A probe goes over both sides in order. The source is asked first, with a fresh nonce, and leaves a probe file in its
// outbox root; once it reports READY the target is asked with the same nonce, and reads that file.
//
// A kind of route is one entry of the table kinds: its capability, its endpoints and what its probes must show.
package route
