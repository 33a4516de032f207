package registry

import (
	"github.com/google/uuid"

	"signalbox/appliance/archive"
)

// FenceTx is what a fence needs of the transaction it protects. Parts that write on behalf of a message embed it.
type FenceTx interface {
	archive.Writer
	// RegistryOwner returns who owns the daemon's generation; NotFound without the daemon.
	RegistryOwner(daemonNo int64) (Owner, error)
	// RegistryUse notes that the daemon has used the generation.
	RegistryUse(daemonNo, generation int64) error
}

// AlertTx is what raising and clearing alerts needs of a transaction.
type AlertTx interface {
	archive.Writer
	// RegistryRaise opens an alert, or counts an open one of the same kind and subject up. 0 is no daemon, no job.
	RegistryRaise(kind archive.AlertKind, daemonNo, jobNo int64, detail string) error
	// RegistryClear closes the open alert of the kind and subject; cleared is false when there is none.
	RegistryClear(kind archive.AlertKind, daemonNo, jobNo int64) (cleared bool, err error)
}

// ReadTx reads daemons and alerts. Lookups give NotFound; forgotten daemons are found by RegistryDaemonByID and
// RegistryDaemon only.
type ReadTx interface {
	archive.Reader
	RegistryDaemon(daemonNo int64) (Daemon, error)
	RegistryDaemonByID(id uuid.UUID) (Daemon, error)
	// RegistryDaemons returns all that are not forgotten, by name.
	RegistryDaemons() ([]Daemon, error)
	// RegistryUses returns the active jobs and the routes that name the daemon.
	RegistryUses(daemonNo int64) (Uses, error)
	RegistryAlerts(f AlertFilter) ([]Alert, error)
}

// Tx is the registry's write transaction.
type Tx interface {
	FenceTx
	AlertTx
	ReadTx
	// RegistryInsert adds a daemon and its capabilities and sets its number.
	RegistryInsert(d *Daemon) error
	// RegistryUpdate writes every field of a registration, the capabilities included.
	RegistryUpdate(d *Daemon) error
	// RegistryOffline releases the generation; done is false when it is not the current one or was released before.
	RegistryOffline(daemonNo, generation int64) (done bool, err error)
	// RegistrySeen stores signs of life of generations that are still current.
	RegistrySeen(seen []Seen) error
	// RegistryResume ends the pause; done is false when there is none or the epoch is another one by now.
	RegistryResume(daemonNo int64, epoch uuid.UUID) (done bool, err error)
	// RegistryForget hides the daemon and drops what is kept for it alone.
	RegistryForget(daemonNo int64) error
	// RegistryClearAlert closes an alert by its number; NotFound when it is not open.
	RegistryClearAlert(alertNo int64) error
}
