package work

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/daemon"
)

// commit makes the target's content count (daemon protocol 3.2, 3.7): the record first, durable, then what the backend is
// asked to do, then the evidence. With a record from before it only rolls forward.
func (w *Worker) commit(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	want := t.Execute.GetCommit().GetVerifyEvidenceSha256()
	if t.Job.Record == nil {
		// First the wait for control, which may be long, then the checks, so that they are fresh when the record is written.
		if err := t.Confirmed(ctx); err != nil {
			return nil, err
		}
		if err := w.mayCommit(ctx, t, want); err != nil {
			return nil, err
		}
	}
	id := uuid.New()
	if t.Job.Record != nil {
		id = t.Job.Record.CommitID
	}
	w.o.Reached("commit: before the record")
	if err := t.Commit(ctx, daemon.CommitRecord{CommitID: id, Step: pb.JobStep_JOB_STEP_COMMIT, VerifyEvidenceSHA256: want,
		Action: []byte(t.Job.Definition.GetPolicies().GetActivation().String())}); err != nil {
		return nil, err
	}
	w.o.Reached("commit: after the record")
	resource, err := w.targetResource(ctx, t.Job)
	if err != nil {
		return nil, err
	}
	var state pb.BackendState
	if t.Job.Definition.GetPolicies().GetActivation() != pb.ActivationPolicy_ACTIVATION_POLICY_LEAVE_STOPPED {
		if state, err = w.o.Backend.Activate(ctx, resource); err != nil {
			return nil, err
		}
	}
	w.o.Reached("commit: active")
	tree, err := w.treeOf(ctx, t, resource)
	if err != nil {
		return nil, err
	}
	if state == pb.BackendState_BACKEND_STATE_UNSPECIFIED {
		state = tree.Header.GetBackendState()
	}
	if state == pb.BackendState_BACKEND_STATE_DOWNLOADING {
		// The backend is never to fetch what is missing (product rule P3): stopped at once, and for a person.
		if err := w.o.Backend.Quiesce(ctx, resource); err != nil {
			return nil, err
		}
		return nil, held(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the backend began to download after the start; it was stopped at once", "resource_id", resource)
	}
	ref := tree.Header.GetResource()
	ref.ClientId = t.Job.ClientID.String()
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Commit{Commit: &pb.CommitEvidence{CommitId: id.String(), JobId: t.Job.ID.String(),
		ClientId: t.Job.ClientID.String(), VerifyEvidenceSha256: want, Resource: ref, ContentRevision: tree.Header.GetContentRevision(),
		ActivatedAt: timestamppb.New(w.o.Clock.Now()), ActivationState: state}}}, nil
}

// mayCommit checks what the commit rests on: this daemon's own verification, of the content as it is now.
func (w *Worker) mayCommit(ctx context.Context, t *daemon.Task, want string) error {
	evidence, err := t.Job.Evidence(ctx, pb.JobStep_JOB_STEP_VERIFY)
	if err != nil {
		return err
	}
	if evidence == nil {
		return held(pb.ErrorCode_ERROR_CODE_STATE_LOST, "this daemon has no record of the verification that the commit rests on")
	}
	if got := archive.EvidenceDigest(evidence); got != want {
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "the commit rests on another verification than this daemon made", "expected", want, "found", got)
	}
	if err := w.notStarted(ctx, t.Job); err != nil {
		return err
	}
	resource, err := w.targetResource(ctx, t.Job)
	if err != nil {
		return err
	}
	tree, err := w.treeOf(ctx, t, resource)
	if err != nil {
		return err
	}
	if verified := evidence.GetVerify().GetContentRevision(); tree.Header.GetContentRevision() != verified {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "the content has changed since it was verified", "expected", verified,
			"found", tree.Header.GetContentRevision())
	}
	if t.Job.Definition.GetPolicies().GetActivation() == pb.ActivationPolicy_ACTIVATION_POLICY_LEAVE_STOPPED {
		return nil
	}
	return w.mayStart(t.Job, tree)
}

// mayStart refuses to start what the backend could not run without fetching something (daemon protocol 3.3, product rule
// P3): pieces that were dropped, or files that are not selected where it cannot leave them out. It is asked before the
// record: afterwards the job could neither go on nor back.
func (w *Worker) mayStart(job *daemon.Job, tree *backend.Tree) error {
	want, err := requestedSet(job)
	if err != nil {
		return err
	}
	const remedy = "; make the job again with the activation LEAVE_STOPPED"
	for i := range tree.Files.Len() {
		f := tree.Files.Entry(i)
		switch {
		case f.GetKind() != pb.FileKind_FILE_KIND_REGULAR:
		case want.Contains(f.GetIndex()) && f.GetCompletedBytes() != f.GetLogicalBytes():
			return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, fmt.Sprintf("%s shares pieces with files that are not there, and starting it would "+
				"download them%s", f.GetPath(), remedy), "path", f.GetPath())
		case w.o.StartsWhole && tree.Header.GetMetainfoAvailable() && !f.GetSelected():
			return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, fmt.Sprintf("%s is not selected, and starting the content would download it%s",
				f.GetPath(), remedy), "path", f.GetPath())
		}
	}
	return nil
}
