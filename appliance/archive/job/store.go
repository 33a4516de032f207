package job

import (
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/audit"
)

// ReadTx is the snapshot that jobs are read from. Find methods report false where there is no row; the others return
// NotFound.
type ReadTx interface {
	command.ReadTx

	JobByNo(no int64) (Job, error)
	JobByID(id uuid.UUID) (Job, bool, error)
	// JobList returns up to limit jobs that match, newest first.
	JobList(f Filter, before int64, limit int) ([]Job, error)
	JobParticipants(jobNo int64) ([]Participant, error)
	// JobsAt returns the jobs that control believes active at the daemon: those that have not ended and it takes part in,
	// and those that ended and whose closing it has not acknowledged; oldest first.
	JobsAt(daemonNo int64) ([]int64, error)
	// JobCountAt is how many there are.
	JobCountAt(daemonNo int64) (int, error)
	// JobUndecidedAt reports whether any of them is undecided.
	JobUndecidedAt(daemonNo int64) (bool, error)
	// JobsUsing returns the jobs that have not ended and use the route.
	JobsUsing(routeNo int64) ([]int64, error)
	// JobsWaiting returns up to limit jobs in WAITING for the reason, oldest first, after the number.
	JobsWaiting(reason int32, after int64, limit int) ([]int64, error)
	// JobsIn returns up to limit jobs in the state, oldest first, after the number.
	JobsIn(state int32, after int64, limit int) ([]int64, error)
	// JobsDue returns up to limit jobs whose retry_at is at or before the time, earliest first.
	JobsDue(at time.Time, limit int) ([]int64, error)
	// JobNextDue returns the earliest retry_at; zero when there is none.
	JobNextDue() (time.Time, error)
	// JobCounts returns how many jobs are in each state.
	JobCounts() (map[int32]int64, error)

	JobPeer(daemonNo int64) (Peer, error)
	JobPeerByID(id uuid.UUID) (Peer, bool, error)
	JobRouteNo(id uuid.UUID) (int64, bool, error)
	JobRouteKind(routeNo int64) (pb.RouteKind, error)

	JobEvent(jobNo, sequence int64) (Stored, bool, error)
	JobEventByID(id uuid.UUID) (Stored, bool, error)
	// JobEvents returns all that are kept, ascending.
	JobEvents(jobNo int64) ([]Stored, error)
	JobAsides(jobNo, daemonNo int64) ([]Aside, error)
	JobProof(jobNo int64, step int32) (Proof, bool, error)
	JobProofs(jobNo int64) ([]Proof, error)

	JobPreview(id uuid.UUID) (Preview, bool, error)
	JobPreviewOf(jobNo int64) (Preview, bool, error)

	// JobHolder returns the job that holds the name now; 0 when nobody does.
	JobHolder(r Reservation) (int64, error)
	JobReservations(jobNo int64) ([]Reservation, error)

	// JobTimeline returns up to limit entries after the number, oldest first; jobNo 0 means all jobs.
	JobTimeline(jobNo, after int64, limit int) ([]Entry, error)
	// JobTimelineHead is the number of the last entry.
	JobTimelineHead() (int64, error)

	// JobHold is the time since which every participant must have registered before commands go out again (4.6); zero
	// when there is none.
	JobHold() (time.Time, error)
}

// Tx is the write transaction of the engine.
type Tx interface {
	ReadTx
	command.Tx
	audit.Tx

	JobInsert(j *Job) error // sets No
	JobUpdate(j *Job) error
	JobInsertParticipant(p *Participant) error
	JobUpdateParticipant(p *Participant) error

	JobInsertEvent(e *Stored) error
	// JobTrimEvents removes PROGRESS, STALLED and RESUMED rows of the daemon in the job beyond the newest keep of them.
	JobTrimEvents(jobNo, daemonNo int64, keep int) error
	JobInsertAside(a *Aside) error
	JobDropAsides(jobNo, daemonNo int64) error
	JobPutProof(p *Proof) error

	JobTakePreview(previewNo, jobNo int64) error

	// JobReserve takes the name; Conflict when another job holds it.
	JobReserve(r Reservation) error
	// JobUnreserve gives up one name of the job.
	JobUnreserve(r Reservation) error
	JobRelease(jobNo int64) error

	JobInsertEntry(e *Entry) error
	JobSetHold(since time.Time) error
	// JobBoundRetries brings retry_at of every job that has not ended, and does not wait for the end of a retention, forward to
	// latest when it lies after it.
	JobBoundRetries(latest time.Time) error
}
