package registry

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Daemon is what control knows of a daemon.
type Daemon struct {
	No         int64
	ID         uuid.UUID
	Name       string
	Role       pb.ClientRole
	Software   string
	Major      uint32
	Minor      uint32 // advertised
	Negotiated uint32 // minor
	Limits     *pb.Limits
	// Generation is the highest that was issued; GenerationUsed the highest that the database of Epoch is known to have
	// stored.
	Generation, GenerationUsed int64
	Instance                   uuid.UUID // of the latest connection
	Epoch                      uuid.UUID // of the daemon's database
	EpochSince                 time.Time
	PreviousEpoch              uuid.UUID // uuid.Nil: there was none
	FirstEpoch                 uuid.UUID
	Paused                     bool // two databases answer to its id: no new assignments
	Online                     bool // owns its generation
	RegisteredAt               time.Time
	LastSeenAt                 time.Time // registration or heartbeat; up to SeenEvery old while the process runs
	OfflineAt                  time.Time // zero: online
	ClockSkew                  time.Duration
	Remote                     string
	CreatedAt                  time.Time
	ForgottenAt                time.Time // zero: not forgotten
	// Capabilities are what it announced, known to us or not, sorted.
	Capabilities []string
	// Attached tells whether a socket is open; only Registry.Daemons and Registry.Daemon set it.
	Attached bool
}

// Ref names the daemon.
func (d Daemon) Ref() archive.DaemonRef { return archive.DaemonRef{No: d.No, ID: d.ID} }

// Owner is what a fence looks at.
type Owner struct {
	Generation int64
	Used       int64
	Online     bool
	Paused     bool
}

// Rollback is what a registration shows of databases that went back in time or were replaced (daemon protocol 4.6).
type Rollback struct {
	// Daemon: the daemon runs an old copy of the database it had.
	Daemon bool
	// Control: the daemon has seen a generation that this database never issued, so this database is an old copy.
	Control bool
	// NewEpoch: the daemon came with another database than last time.
	NewEpoch bool
}

// Alert is something that an operator must know. Open while ClearedAt is zero.
type Alert struct {
	No        int64
	DaemonNo  int64     // 0: none
	DaemonID  uuid.UUID // uuid.Nil: none
	JobNo     int64     // 0: none
	JobID     uuid.UUID // uuid.Nil: none
	Kind      archive.AlertKind
	Detail    string
	RaisedAt  time.Time
	LastAt    time.Time
	Times     int64
	ClearedAt time.Time
}

// AlertFilter selects alerts. Zero fields select all.
type AlertFilter struct {
	DaemonNo int64
	JobNo    int64
	Cleared  bool // also those that are cleared
	Limit    int  // newest first; 0: 100
}

// Seen is the last sign of life of a daemon, to be stored.
type Seen struct {
	DaemonNo   int64
	Generation int64
	At         time.Time
	ClockSkew  time.Duration
}

// Uses are what keeps a daemon from being forgotten.
type Uses struct {
	Jobs   []uuid.UUID // active ones that name it, the first ten
	Routes []string    // names of routes, the first ten
}
