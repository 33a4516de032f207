package preflight

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/route"
)

// State tells how far a preview is.
type State string

// The states.
const (
	Running State = "running"
	Passed  State = "passed"
	Failed  State = "failed"
)

// Preview is a stored preview.
type Preview struct {
	No         int64
	ID         uuid.UUID
	Operation  pb.JobOperation
	Request    string // JSON of a job.Request; the files and the destination are filled in when it passed
	State      State
	By         string
	SourceRev  string // content revisions that it was made from; empty: not known, or absent
	TargetRev  string
	Draft      *pb.JobDefinition // when it passed
	Summary    Summary
	Warnings   []string
	Error      *pb.ErrorDetail // when it failed
	JobNo      int64           // the job that was started from it; 0: none
	Job        uuid.UUID       // its id; uuid.Nil: none
	CreatedAt  time.Time
	FinishedAt time.Time
}

// ReadTx is the snapshot that previews are made from. Lookups report false where there is no row.
type ReadTx interface {
	archive.Reader
	route.ReadTx

	// PreflightPeer reads a daemon; jobNo is a job that is not counted among its active ones.
	PreflightPeer(id uuid.UUID, jobNo int64) (Peer, bool, error)
	// PreflightHolder finds an active job other than jobNo that holds one of the names at a daemon.
	PreflightHolder(names []Name, jobNo int64) (Holder, bool, error)
	// PreflightParent reads the definition and the commit of a completed job.
	PreflightParent(id uuid.UUID) (def *pb.JobDefinition, commit *pb.CommitEvidence, ok bool, err error)

	PreviewByNo(no int64) (Preview, bool, error)
	PreviewByID(id uuid.UUID) (Preview, bool, error)
	// Previews returns up to limit previews below the number, newest first; before 0 means from the newest.
	Previews(before int64, limit int) ([]Preview, error)
	PreviewsRunning() ([]Preview, error)
	// PreviewFiles returns up to limit planned files after the index.
	PreviewFiles(previewNo, after int64, limit int) ([]PlannedFile, error)
}

// Tx is the write transaction of previews.
type Tx interface {
	ReadTx
	archive.Writer

	PreviewInsert(p *Preview) error // sets No
	PreviewUpdate(p *Preview) error
	PreviewInsertFiles(previewNo int64, files []PlannedFile) error
	PreviewDropFiles(previewNo int64) error
	// PreviewPrune deletes up to limit finished previews that were made before the time and that no job names.
	PreviewPrune(before time.Time, limit int) (int64, error)
}

// Name is something that a job keeps for itself at a daemon.
type Name struct {
	DaemonNo int64
	Kind     string // as in reservations
	Name     string
}

// Store is where previews are kept.
type Store = archive.Store[Tx, ReadTx]
