package job

import (
	"context"
	"encoding/json"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// parent returns the definition of the job that an EVICT rests on, and its commit.
func (b *book) parent() (*pb.JobDefinition, *pb.CommitEvidence, error) {
	return parentOf(b.rtx, b.row.ParentNo)
}

func parentOf(tx ReadTx, no int64) (*pb.JobDefinition, *pb.CommitEvidence, error) {
	row, err := tx.JobByNo(no)
	if err != nil {
		return nil, nil, err
	}
	def, err := parse(row.Definition, &pb.JobDefinition{})
	if err != nil {
		return nil, nil, err
	}
	p, ok, err := tx.JobProof(no, int32(pb.JobStep_JOB_STEP_COMMIT))
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, fault.New(fault.Conflict, "job %s has no evidence of a commit", row.ID)
	}
	e, err := parse(p.Evidence, &pb.StepEvidence{})
	return def, e.GetCommit(), err
}

// followUp makes the EVICT of a move: a job of its own, with this one as its parent. It has no preview: its preflight plans
// afresh.
func (b *book) followUp() error {
	var req Request
	if err := json.Unmarshal([]byte(b.row.Request), &req); err != nil {
		return fault.Wrap(fault.Internal, err, "the request of job %s cannot be read", b.row.ID)
	}
	if !req.EvictAfter || b.row.Operation != pb.JobOperation_JOB_OPERATION_TRANSFER {
		return nil
	}
	next := Request{Operation: pb.JobOperation_JOB_OPERATION_EVICT, Source: req.Source, Target: req.Target,
		ResourceID: req.ResourceID, Policies: req.Policies, Parent: b.row.ID, MaxVerifyAge: req.MaxVerifyAge,
		AllowLibraryLinks: req.AllowLibraryLinks}
	f, err := b.e.create(b.tx, newJob{request: next, sourceNo: b.row.SourceNo, targetNo: b.row.TargetNo, parentNo: b.row.No,
		title: b.row.Title, by: b.row.CreatedBy})
	if err != nil {
		return err
	}
	if err := b.entry(EntryMove, 0, 0, map[string]any{"evict_job": f.row.ID}); err != nil {
		return err
	}
	if err := f.advance(decide.OperatorStart{}, cause{what: "the move goes on with giving up the source copy",
		by: By{Principal: b.row.CreatedBy}}); err != nil {
		return err
	}
	f.done()
	return nil
}

// expire takes an unanswered RELEASE back whose verification has become too old; the job verifies again (daemon protocol
// 3.2).
func (e *Engine) expire(ctx context.Context, jobNo int64) error {
	return e.update(ctx, "job_expire", func(tx Tx) error {
		row, err := tx.JobByNo(jobNo)
		if err != nil || row.Operation != pb.JobOperation_JOB_OPERATION_EVICT {
			return err
		}
		b, err := e.load(tx, row)
		if err != nil || b.view.VerifyFresh {
			return err
		}
		for _, c := range b.cmds {
			if c.Kind != archive.ExecuteStep || c.Step != pb.JobStep_JOB_STEP_RELEASE || !c.State.Unanswered() ||
				c.State == command.Parked {
				continue
			}
			if err := e.commands.Supersede(tx, c.No); err != nil {
				return err
			}
			if err := b.entry(EntryWithdrawn, c.Daemon.No, c.No, map[string]any{"command": c.Kind.String(),
				"note": "the verification before it is too old"}); err != nil {
				return err
			}
			if err := b.refresh(); err != nil {
				return err
			}
			// The row is nobody's any more: the machine looks at the job anew and commands VERIFY.
			if err := b.advance(decide.Exhausted{ID: c.ID}, cause{what: "the verification is too old"}); err != nil {
				return err
			}
			break
		}
		b.done()
		return nil
	})
}
