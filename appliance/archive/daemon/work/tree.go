package work

import (
	"context"
	"fmt"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
	"signalbox/appliance/archive/verify"
)

// treeOf reads a resource's content tree, hashing what the backend does not know yet.
func (w *Worker) treeOf(ctx context.Context, t *daemon.Task, resource string) (*backend.Tree, error) {
	var m *meter
	return w.o.Backend.ContentTree(ctx, resource, backend.TreeOptions{Progress: func(p verify.Progress) {
		if m == nil {
			m = counting(t)
		}
		m.at(p.Bytes, p.TotalBytes, p.Files, p.TotalFiles)
	}})
}

// requestedSet is what the job asks for.
func requestedSet(job *daemon.Job) (archive.IndexSet, error) {
	return archive.ReadIndexSet("requested", job.Definition.GetRequested())
}

// received reads the job directory in the receive root, or takes what MATERIALIZE has left of it: its payload may have
// been renamed to the content already.
func (w *Worker) received(ctx context.Context, r *beneath.Root, job *daemon.Job, dir, digest string, consumed bool) (*layout.Received, error) {
	id, attempt, ok := layout.ParseJobDir(dir)
	if !ok || id != job.ID.String() {
		return nil, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, fmt.Sprintf("%q is no directory of this job", dir), "path", dir)
	}
	got, err := layout.Receive(ctx, r, id, attempt, expectation(job, digest))
	if layout.IsNotReady(err) {
		if consumed && got != nil {
			return got, nil
		}
		return nil, failure(pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID, "the received job directory is not complete: "+err.Error(), "path", dir)
	}
	return got, err
}

// expectation is what a manifest of the job must say.
func expectation(job *daemon.Job, digest string) layout.Expect {
	return layout.Expect{Definition: job.Definition, ClientID: job.Definition.GetTargetClientId(), RouteKind: job.Route.GetKind(), ManifestSHA256: digest}
}

// targetResource is the backend's ID of the job's content at the target.
func (w *Worker) targetResource(ctx context.Context, job *daemon.Job) (string, error) {
	switch job.Definition.GetOperation() {
	case pb.JobOperation_JOB_OPERATION_ADOPT:
		return job.Definition.GetSource().GetResourceId(), nil
	case pb.JobOperation_JOB_OPERATION_EVICT:
		return job.Definition.GetEviction().GetTargetCommit().GetResource().GetResourceId(), nil
	}
	e, ok, err := registered(ctx, job)
	if err != nil {
		return "", err
	}
	if !ok || e.State != daemon.Published {
		return "", held(pb.ErrorCode_ERROR_CODE_STATE_LOST, "this daemon does not know under which name its backend holds the content")
	}
	return string(e.Detail), nil
}

// opener opens the files of content by their index.
type opener struct {
	root *beneath.Root
	name func(index int) string
}

// OpenFile implements verify.Opener.
func (o opener) OpenFile(_ context.Context, index int) (verify.File, error) {
	f, err := o.root.Open(o.name(index))
	if err != nil {
		return nil, err
	}
	return f, nil
}
