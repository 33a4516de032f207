package valid

import pb "signalbox/appliance/archive/archivepb"

// MaxCarrierDetail is the size of what a carrier says.
const MaxCarrierDetail = 512

// EvidenceStep returns the step that an evidence proves, UNSPECIFIED if it has none.
func EvidenceStep(m *pb.StepEvidence) pb.JobStep {
	switch m.GetEvidence().(type) {
	case *pb.StepEvidence_Stage:
		return pb.JobStep_JOB_STEP_STAGE
	case *pb.StepEvidence_Transfer:
		return pb.JobStep_JOB_STEP_TRANSFER
	case *pb.StepEvidence_Materialize:
		return pb.JobStep_JOB_STEP_MATERIALIZE
	case *pb.StepEvidence_Verify:
		return pb.JobStep_JOB_STEP_VERIFY
	case *pb.StepEvidence_Commit:
		return pb.JobStep_JOB_STEP_COMMIT
	case *pb.StepEvidence_Release:
		return pb.JobStep_JOB_STEP_RELEASE
	case *pb.StepEvidence_Purge:
		return pb.JobStep_JOB_STEP_PURGE
	}
	return pb.JobStep_JOB_STEP_UNSPECIFIED
}

// StepEvidence checks an evidence (daemon protocol 2.8).
func StepEvidence(m *pb.StepEvidence) error { return run(m, (*checker).evidence) }

func (c *checker) evidence(m *pb.StepEvidence) {
	switch e := m.Evidence.(type) {
	case *pb.StepEvidence_Stage:
		required(c, "stage", e.Stage, (*checker).stageEvidence)
	case *pb.StepEvidence_Transfer:
		required(c, "transfer", e.Transfer, (*checker).transferEvidence)
	case *pb.StepEvidence_Materialize:
		required(c, "materialize", e.Materialize, (*checker).materializeEvidence)
	case *pb.StepEvidence_Verify:
		required(c, "verify", e.Verify, (*checker).verifyEvidence)
	case *pb.StepEvidence_Commit:
		required(c, "commit", e.Commit, (*checker).commitEvidence)
	case *pb.StepEvidence_Release:
		required(c, "release", e.Release, (*checker).releaseEvidence)
	case *pb.StepEvidence_Purge:
		required(c, "purge", e.Purge, (*checker).purgeEvidence)
	default:
		c.fail("evidence", "is required")
	}
}

// methods checks a count of files by method.
func (c *checker) methods(m map[string]uint32) {
	for name := range m {
		if v := pb.MaterializeMethod_value["MATERIALIZE_METHOD_"+name]; v == 0 {
			c.fail("methods", "must have names of methods without their prefix, such as HARDLINK, as keys")
		}
	}
}

// StageEvidence checks the evidence of STAGE.
func StageEvidence(m *pb.StageEvidence) error { return run(m, (*checker).stageEvidence) }

func (c *checker) stageEvidence(m *pb.StageEvidence) {
	c.component("job_dir", m.JobDir)
	c.hash("manifest_sha256", m.ManifestSha256)
	c.methods(m.Methods)
	c.hash("content_revision", m.ContentRevision)
}

// TransferEvidence checks the evidence of TRANSFER.
func TransferEvidence(m *pb.TransferEvidence) error { return run(m, (*checker).transferEvidence) }

func (c *checker) transferEvidence(m *pb.TransferEvidence) {
	c.component("job_dir", m.JobDir)
	c.hash("manifest_sha256", m.ManifestSha256)
	c.size("carrier_detail", m.CarrierDetail, 0, MaxCarrierDetail)
}

// MaterializeEvidence checks the evidence of MATERIALIZE.
func MaterializeEvidence(m *pb.MaterializeEvidence) error {
	return run(m, (*checker).materializeEvidence)
}

func (c *checker) materializeEvidence(m *pb.MaterializeEvidence) {
	c.hash("provenance_sha256", m.ProvenanceSha256)
	c.methods(m.Methods)
	known(c, "partfile_result", m.PartfileResult, pb.PartfileMode_name)
}

// VerifyEvidence checks the evidence of VERIFY.
func VerifyEvidence(m *pb.VerifyEvidence) error { return run(m, (*checker).verifyEvidence) }

func (c *checker) verifyEvidence(m *pb.VerifyEvidence) {
	chosen(c, "level", m.Level, pb.VerifyLevel_name)
	c.must(m.PiecesGood <= m.PiecesChecked, "pieces_good", "must be at most pieces_checked")
	c.hashOrEmpty("manifest_sha256", m.ManifestSha256)
	c.hashOrEmpty("content_revision", m.ContentRevision)
	c.time("verified_at", m.VerifiedAt)
}

// CommitEvidence checks the evidence of COMMIT.
func CommitEvidence(m *pb.CommitEvidence) error { return run(m, (*checker).commitEvidence) }

func (c *checker) commitEvidence(m *pb.CommitEvidence) {
	c.uuid("commit_id", m.CommitId)
	c.uuid("job_id", m.JobId)
	c.uuid("client_id", m.ClientId)
	c.hash("verify_evidence_sha256", m.VerifyEvidenceSha256)
	required(c, "resource", m.Resource, (*checker).resource)
	c.must(m.Resource.GetClientId() == m.ClientId, "resource.client_id", "must be the client of the commit")
	c.hash("content_revision", m.ContentRevision)
	c.time("activated_at", m.ActivatedAt)
	known(c, "activation_state", m.ActivationState, pb.BackendState_name)
}

// ReleaseEvidence checks the evidence of RELEASE.
func ReleaseEvidence(m *pb.ReleaseEvidence) error { return run(m, (*checker).releaseEvidence) }

func (c *checker) releaseEvidence(m *pb.ReleaseEvidence) {
	c.size("released_resource_id", m.ReleasedResourceId, 1, MaxResourceID)
	c.time("released_at", m.ReleasedAt)
}

// PurgeEvidence checks the evidence of PURGE; every value of its fields is valid.
func PurgeEvidence(m *pb.PurgeEvidence) error { return run(m, (*checker).purgeEvidence) }

func (c *checker) purgeEvidence(*pb.PurgeEvidence) {}
