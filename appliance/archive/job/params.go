package job

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// executeStep makes the command that starts a step, from the definition and the evidence of the steps before it.
// notBefore is for PURGE.
func executeStep(def *pb.JobDefinition, step pb.JobStep, attempt uint32, proofs map[pb.JobStep]proof,
	notBefore time.Time) (*pb.ExecuteStepCommand, error) {
	need := func(s pb.JobStep) (proof, error) {
		p, ok := proofs[s]
		if !ok {
			return p, fault.New(fault.Internal, "%s of job %s needs the evidence of %s, which is not there", stepText(step),
				def.GetJobId(), stepText(s))
		}
		return p, nil
	}
	c := &pb.ExecuteStepCommand{Step: step, StepAttempt: attempt}
	switch step {
	case pb.JobStep_JOB_STEP_STAGE:
		c.Params = &pb.ExecuteStepCommand_Stage{Stage: &pb.StageParams{ExpectedContentRevision: def.GetSourceContentRevision()}}
	case pb.JobStep_JOB_STEP_TRANSFER:
		stage, err := need(pb.JobStep_JOB_STEP_STAGE)
		if err != nil {
			return nil, err
		}
		e := stage.evidence.GetStage()
		c.Params = &pb.ExecuteStepCommand_Transfer{Transfer: &pb.TransferParams{ManifestSha256: e.GetManifestSha256(),
			JobDir: e.GetJobDir()}}
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		params := &pb.MaterializeParams{}
		if def.GetOperation() == pb.JobOperation_JOB_OPERATION_ADOPT {
			params.AdoptContentRevision = def.GetSourceContentRevision()
		} else {
			stage, err := need(pb.JobStep_JOB_STEP_STAGE)
			if err != nil {
				return nil, err
			}
			params.ManifestSha256, params.JobDir = stage.evidence.GetStage().GetManifestSha256(), stage.evidence.GetStage().GetJobDir()
		}
		c.Params = &pb.ExecuteStepCommand_Materialize{Materialize: params}
	case pb.JobStep_JOB_STEP_VERIFY:
		params := &pb.VerifyParams{}
		if def.GetOperation() == pb.JobOperation_JOB_OPERATION_TRANSFER {
			stage, err := need(pb.JobStep_JOB_STEP_STAGE)
			if err != nil {
				return nil, err
			}
			params.ManifestSha256 = stage.evidence.GetStage().GetManifestSha256()
		}
		if def.GetOperation() != pb.JobOperation_JOB_OPERATION_EVICT {
			made, err := need(pb.JobStep_JOB_STEP_MATERIALIZE)
			if err != nil {
				return nil, err
			}
			params.MaterializeEvidenceSha256 = made.digest
		}
		c.Params = &pb.ExecuteStepCommand_Verify{Verify: params}
	case pb.JobStep_JOB_STEP_COMMIT:
		verified, err := need(pb.JobStep_JOB_STEP_VERIFY)
		if err != nil {
			return nil, err
		}
		c.Params = &pb.ExecuteStepCommand_Commit{Commit: &pb.CommitParams{VerifyEvidenceSha256: verified.digest}}
	case pb.JobStep_JOB_STEP_RELEASE:
		verified, err := need(pb.JobStep_JOB_STEP_VERIFY)
		if err != nil {
			return nil, err
		}
		c.Params = &pb.ExecuteStepCommand_Release{Release: &pb.ReleaseParams{TargetCommit: def.GetEviction().GetTargetCommit(),
			ReverifyEvidenceSha256: verified.digest, ExpectedContentRevision: def.GetSourceContentRevision()}}
	case pb.JobStep_JOB_STEP_PURGE:
		released, err := need(pb.JobStep_JOB_STEP_RELEASE)
		if err != nil {
			return nil, err
		}
		c.Params = &pb.ExecuteStepCommand_Purge{Purge: &pb.PurgeParams{ReleaseEvidenceSha256: released.digest,
			NotBefore: timestamppb.New(notBefore)}}
	default:
		return nil, fault.New(fault.Internal, "no parameters for step %v", step)
	}
	return c, nil
}

// proof is the evidence of a completed step, read.
type proof struct {
	evidence *pb.StepEvidence
	digest   string
	at       time.Time
}
