package daemon

import (
	"context"
	"errors"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
)

// Point names a moment between two durable writes: the letters of daemon protocol 3.7, client side.
type Point byte

// The moments at which a test can end the daemon as kill -9 would.
const (
	Received       Point = 'a' // a command was read, nothing is stored
	Stored         Point = 'b' // command, answer and lease are durable, nobody knows
	Answered       Point = 'c' // the acknowledgement is queued
	IntentStored   Point = 'd' // the journal has the intent, the effect has not begun
	EffectDone     Point = 'e' // the effect has happened, the journal does not know
	EffectStored   Point = 'f' // the journal knows the effect
	EndStored      Point = 'g' // the terminal event is durable
	EventSent      Point = 'h' // an event is queued for the socket
	AckStored      Point = 'i' // the outbox row is marked as confirmed
	CommitRecorded Point = 'r' // the commit record is durable, the backend was not asked yet
)

// Hooks are for tests.
type Hooks struct {
	// At is called at each point with the job, uuid.Nil for commands without one. An error ends the daemon at that
	// instant: nothing is stored or sent any more, and Run returns the error.
	At func(p Point, job uuid.UUID) error
}

// errKilled ends everything after a hook's error.
var errKilled = errors.New("the daemon was ended by a hook")

// at passes a point.
func (d *Daemon) at(p Point, job uuid.UUID) error {
	if d.dead.Load() {
		return errKilled
	}
	if d.o.Hooks.At == nil {
		return nil
	}
	if err := d.o.Hooks.At(p, job); err != nil {
		d.dead.Store(true)
		d.cancel(err)
		return errKilled
	}
	return nil
}

// update runs a write transaction unless the daemon was ended by a hook.
func (d *Daemon) update(ctx context.Context, op string, fn func(Tx) error) error {
	if d.dead.Load() {
		return errKilled
	}
	return d.o.Store.Update(ctx, op, fn)
}

// Notice tells the composition root what an operator may want to read. It never carries a secret.
type Notice struct {
	What string // a constant of this package: What…
	Job  uuid.UUID
	Step pb.JobStep
	// Command is the command or lease; its ID.
	Command uuid.UUID
	Code    pb.ErrorCode
	// Generation of the connection.
	Generation uint64
	Err        error
}

// What a Notice tells.
const (
	WhatConnected    = "connected"
	WhatDisconnected = "disconnected"
	WhatRefused      = "registration refused"
	WhatCommand      = "command refused"
	WhatConflict     = "command conflict"
	WhatStepStarted  = "step started"
	WhatStepDone     = "step completed"
	WhatStepFailed   = "step failed"
	WhatHeld         = "job held"
	WhatCancelled    = "job cancelled"
	WhatCleanup      = "clean-up of a job failed, it is tried again"
	WhatStore        = "database refused a write"
	WhatProtocol     = "control reported an error"
	WhatRoute        = "route changed"
	WhatInventory    = "inventory answer failed"
)

// tell passes a notice on.
func (d *Daemon) tell(n Notice) {
	if d.o.Notify != nil && !d.dead.Load() {
		d.o.Notify(n)
	}
}
