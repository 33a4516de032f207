// Package work does the steps of archive jobs: it stages, transfers, materializes, verifies, commits, releases and purges
// content, beneath the daemon's roots and through its backend (daemon protocol 3.2, 7).
//
// Every effect on the disk is journaled before and after (7.6). A step that is called again goes on from the journal: a
// name that stands where an entry says, as the inode that it says, is ours; a name without an entry is somebody else's,
// and is never changed or removed. Nothing is ever replaced.
package work

import (
	"context"
	"fmt"
	"io/fs"
	"slices"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/clock"
)

// Roots opens the daemon's configured directories. A root is valid until the daemon ends; both methods check that it is
// still the directory that was opened, and fail with UNAVAILABLE when it is not (daemon protocol 9, row 24).
type Roots interface {
	// Root returns a configured root by its ID; NOT_FOUND when there is none.
	Root(id string) (*beneath.Root, error)
	// Shared returns the place where this machine sees the shared outbox of a route; NOT_FOUND when it is not configured.
	Shared(marker string) (*beneath.Root, error)
	// ContentRoots lists the IDs of the content roots.
	ContentRoots() []string
}

// Options are what a Worker is made from. Roots, Backend and Clock are required.
type Options struct {
	Roots   Roots
	Backend backend.Backend
	Clock   clock.Clock
	// Cache is the backend's: what is known of a file is carried over when staging gives it one more name. nil: none.
	Cache hashcache.Cache
	// Read limits what staging reads, over all steps at work; nil: no limit.
	Read *copyfile.Bucket
	// Write limits what TRANSFER and MATERIALIZE copy, over all steps at work; nil: no limit.
	Write *copyfile.Bucket
	// ReadRate is Read's rate in bytes per second for verification, which has a limit of its own; 0: no limit.
	ReadRate int64
	// Readers is how many places of one content VERIFY reads at once; 0: one.
	Readers int
	// FileMode and DirMode are the permission bits of published files and directories; an executable file gets the
	// matching execute bits beside. Zero: 0644 and 0755.
	FileMode, DirMode fs.FileMode
	// Group owns published files; below zero: the daemon's own.
	Group int
	// StartsWhole says that the backend starts only content of which every file is selected, as the directory backend does
	// with a library that a torrent client watches (product rule P3). A COMMIT that has to start anything else is then
	// refused before its record.
	StartsWhole bool
	// Reached is called at the named points of the work, for tests that end the process there; nil: nothing.
	Reached func(point string)
}

// Worker implements daemon.Steps. It is safe for concurrent use, one call per job at a time.
type Worker struct {
	o Options
}

var _ daemon.Steps = (*Worker)(nil)

// New makes a worker.
func New(o Options) *Worker {
	if o.FileMode == 0 {
		o.FileMode = 0o644
	}
	if o.DirMode == 0 {
		o.DirMode = 0o755
	}
	if o.Reached == nil {
		o.Reached = func(string) {}
	}
	return &Worker{o}
}

// Run implements daemon.Steps.
func (w *Worker) Run(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	var e *pb.StepEvidence
	var err error
	switch step := t.Execute.GetStep(); step {
	case pb.JobStep_JOB_STEP_STAGE:
		e, err = w.stage(ctx, t)
	case pb.JobStep_JOB_STEP_TRANSFER:
		e, err = w.transfer(ctx, t)
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		e, err = w.materialize(ctx, t)
	case pb.JobStep_JOB_STEP_VERIFY:
		e, err = w.verify(ctx, t)
	case pb.JobStep_JOB_STEP_COMMIT:
		e, err = w.commit(ctx, t)
	case pb.JobStep_JOB_STEP_RELEASE:
		e, err = w.release(ctx, t)
	case pb.JobStep_JOB_STEP_PURGE:
		e, err = w.purge(ctx, t)
	default:
		err = failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, fmt.Sprintf("step %v is not known here", step))
	}
	return e, outcome(err)
}

// root opens a root of the job.
func (w *Worker) root(id, what string) (*beneath.Root, error) {
	if id == "" {
		return nil, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "the job names no "+what)
	}
	r, err := w.o.Roots.Root(id)
	if r == nil && isNotFound(err) {
		return nil, failure(pb.ErrorCode_ERROR_CODE_NOT_FOUND, fmt.Sprintf("the %s %q is not configured on this machine", what, id), "root_id", id)
	}
	return r, err
}

// receiveRoot and outboxRoot are the job's ends of its route.
func (w *Worker) receiveRoot(job *daemon.Job) (*beneath.Root, string, error) {
	id := job.Route.GetTarget().GetRootId()
	r, err := w.root(id, "receive root of the route")
	return r, id, err
}

func (w *Worker) outboxRoot(job *daemon.Job) (*beneath.Root, string, error) {
	id := job.Route.GetSource().GetRootId()
	r, err := w.root(id, "outbox root of the route")
	return r, id, err
}

func (w *Worker) contentRoot(job *daemon.Job) (*beneath.Root, string, error) {
	id := job.Definition.GetDestination().GetContentRootId()
	if id != "" && !slices.Contains(w.o.Roots.ContentRoots(), id) {
		// Receive and outbox roots hold the directories of other jobs.
		return nil, id, failure(pb.ErrorCode_ERROR_CODE_NOT_FOUND, fmt.Sprintf("%q is no content root of this machine", id), "root_id", id)
	}
	r, err := w.root(id, "content root of the destination")
	return r, id, err
}
