package command

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	"signalbox/appliance/archive/registry"
)

// ReadTx reads commands and what decides on them. Lookups give NotFound.
type ReadTx interface {
	archive.Reader
	// RegistryOwner returns who owns the daemon's generation.
	RegistryOwner(daemonNo int64) (registry.Owner, error)
	DaemonCommand(commandNo int64) (Row, error)
	DaemonCommandByID(id uuid.UUID) (Row, error)
	// DaemonCommandsBetween returns up to limit ids in [low, high], ascending.
	DaemonCommandsBetween(low, high uuid.UUID, limit int) ([]uuid.UUID, error)
	// DaemonCommandOwners returns the name of the command's daemon, and the id of its job; uuid.Nil: it is of no job.
	DaemonCommandOwners(commandNo int64) (daemon string, job uuid.UUID, err error)
	// DaemonCommandsOfJob returns every command of the job, oldest first.
	DaemonCommandsOfJob(jobNo int64) ([]Row, error)
	// DaemonCommandsToSend returns the commands of the daemon in state pending or sent, in the order of sends, without their
	// payloads: many may wait for something else, and each may be large.
	DaemonCommandsToSend(daemonNo int64) ([]Row, error)
	// DaemonCommandsWaiting tells whether there are any of those.
	DaemonCommandsWaiting(daemonNo int64) (bool, error)
	// DaemonDeliveries returns the ledger of a command, oldest first.
	DaemonDeliveries(commandNo int64) ([]Delivery, error)
}

// Tx is a write transaction that handles commands.
type Tx interface {
	registry.FenceTx
	registry.AlertTx
	ReadTx
	// DaemonCommandInsert adds a row and sets its number. Conflict when its id, or its step attempt, exists.
	DaemonCommandInsert(r *Row) error
	// DaemonCommandUpdate writes attempts, allowance, state, ack, lease and times.
	DaemonCommandUpdate(r *Row) error
	// DaemonDeliveryInsert adds an attempt in flight and ends those in flight before it as superseded.
	DaemonDeliveryInsert(d *Delivery) error
	// DaemonDeliverySent stamps an attempt once, unless it failed.
	DaemonDeliverySent(deliveryNo int64, at time.Time) error
	// DaemonDeliveryFailed ends an attempt that is still in flight and not stamped.
	DaemonDeliveryFailed(deliveryNo int64, reason string) error
	// DaemonDeliveriesAcked ends the attempts in flight of a command: the latest as acked, the others as superseded.
	DaemonDeliveriesAcked(commandNo int64, at time.Time, reason string) error
	// DaemonCommandsPrune deletes up to limit closed commands of no job that nothing refers to and that ended before the
	// time, with their ledger, and returns how many.
	DaemonCommandsPrune(before time.Time, limit int) (int64, error)
}

// Store is where commands are kept.
type Store = archive.Store[Tx, ReadTx]
