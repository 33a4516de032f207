package route

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/registry"
)

const (
	source = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	target = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
)

// Route is what is stored of a route. Its message never changes.
type Route struct {
	No      int64
	ID      uuid.UUID
	Name    string
	Message *pb.Route
	State   pb.RouteState // as judged last
	// Broken: the histories of control and a daemon disagree. Only a new route helps.
	Broken    bool
	Error     *pb.ErrorDetail
	CreatedAt time.Time
	UpdatedAt time.Time
	RemovedAt time.Time // when a person removed it; its daemons may still have to be told
	Source    Daemon
	Target    Daemon
}

// Daemon is what routes look at of a daemon.
type Daemon struct {
	Ref          archive.DaemonRef
	Name         string
	Role         pb.ClientRole
	Online       bool
	Capabilities []string
}

// Side is one side of a route, once its daemon was asked to create it.
type Side struct {
	RouteNo      int64
	Role         pb.ParticipantRole
	Daemon       archive.DaemonRef
	Creation     uuid.UUID // the CreateRoute that opened the sequence
	Latest       uuid.UUID // the create or update command that readiness must follow
	LatestNo     int64     // number of that command
	Accepted     bool      // it was acknowledged ACCEPTED
	Nonce        string    // of its probe; empty: see unasked
	LastSequence uint64    // stored contiguously from 1
	FreshAfter   uint64    // LastSequence when the latest command was made: only updates above it follow it
	State        pb.RouteState
	Probe        *pb.ProbeResult // of the latest update that has one
	Error        *pb.ErrorDetail // of the latest update, or of the refusal of the latest command
	Quarantined  bool
	Quarantine   string    // why
	AskedNo      int64     // inventory request for the daemon's snapshot
	AskedAfter   uint64    // LastSequence when it was made
	Remove       uuid.UUID // the RemoveRoute; uuid.Nil: none
	UpdatedAt    time.Time
}

// newDatabase is why a side is in quarantine whose daemon came with a new database. Such a database need not know the side:
// then it is created there anew.
const newDatabase = "the daemon came with a new database"

// renewed reports whether the side waits for what a new database of its daemon knows.
func (s *Side) renewed() bool { return s.Quarantined && s.Quarantine == newDatabase }

// unasked reports whether the side is to be created, or probed, anew and its daemon was not asked yet.
func (s *Side) unasked() bool { return s.Nonce == "" }

// missing reports whether the daemon does not have the side, as far as control knows.
func (s *Side) missing() bool { return !s.Accepted && (s.unasked() || s.Creation == s.Latest) }

// refused reports whether the daemon has refused the latest command, or never answered it.
func (s *Side) refused() bool { return !s.Accepted && s.Error != nil }

// Update is one stored update.
type Update struct {
	RouteNo  int64
	Side     pb.ParticipantRole
	Creation uuid.UUID
	Sequence uint64
	ID       uuid.UUID
	Buffered bool // arrived above a gap and not applied
	Message  *pb.RouteUpdate
	At       time.Time
}

// ReadTx is the snapshot that routes are read from. Lookups report false where there is no row.
type ReadTx interface {
	archive.Reader

	RouteByNo(no int64) (Route, bool, error)
	RouteByID(id uuid.UUID) (Route, bool, error)
	RouteByName(name string) (Route, bool, error)
	// Routes returns up to limit routes after the number; removed ones only when asked.
	Routes(removed bool, after int64, limit int) ([]Route, error)
	// RoutesOf returns the routes of the daemon that are not removed at both of its sides.
	RoutesOf(daemonNo int64) ([]Route, error)
	RouteSide(routeNo int64, role pb.ParticipantRole) (Side, bool, error)
	// RouteSideOfCommand finds the side by the ID of its latest or removing command.
	RouteSideOfCommand(id uuid.UUID) (Side, bool, error)
	RouteUpdateAt(s *Side, sequence uint64) (Update, bool, error)
	RouteUpdateByID(s *Side, id uuid.UUID) (Update, bool, error)
	// RouteBuffered counts the buffered updates of the side.
	RouteBuffered(s *Side) (int, error)
	// RouteFirst is the sequence of the oldest applied update that is kept of the side's creation; 0 when there is none.
	RouteFirst(s *Side) (uint64, error)
	// RouteUpdates returns up to limit applied updates of the side, newest first.
	RouteUpdates(routeNo int64, role pb.ParticipantRole, limit int) ([]Update, error)

	RouteDaemon(id uuid.UUID) (Daemon, bool, error)
	RouteStorage(daemonNo int64) ([]*pb.StorageEntry, error)
	// RouteCreation returns the CreateRoute of the daemon with the ID.
	RouteCreation(daemonNo int64, id uuid.UUID) (*pb.CreateRoute, bool, error)
	// RouteJobs returns IDs of active jobs that use the route, up to limit.
	RouteJobs(routeNo int64, limit int) ([]uuid.UUID, error)
	// RouteAsking reports whether the inventory request is still open.
	RouteAsking(requestNo int64) (bool, error)
	// RouteAskingOf reports whether any request for the routes of the daemon is open.
	RouteAskingOf(daemonNo int64) (bool, error)
	// RouteRemovals returns the payloads of RemoveRoute commands of the daemon that are not answered.
	RouteRemovals(daemonNo int64) ([]*pb.Command, error)
}

// Tx is the write transaction of routes.
type Tx interface {
	ReadTx
	registry.FenceTx

	RouteInsert(r *Route) error // sets No; Conflict when the name is taken
	RouteUpdate(r *Route) error
	RoutePutSide(s *Side) error
	RouteInsertUpdate(u *Update) error
	RouteApplyUpdate(u *Update) error // clears Buffered
	RouteDropBuffered(s *Side) error
	// RouteTrimUpdates deletes the updates of the side's creation through the sequence.
	RouteTrimUpdates(s *Side, through uint64) error
	RouteForget(daemonNo int64) error
}

// Store is where routes are kept.
type Store = archive.Store[Tx, ReadTx]
