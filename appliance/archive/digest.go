package archive

import (
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame/canonical"
)

// DefinitionDigest returns the digest of a job definition: 64 hex digits over its deterministic binary form
// (daemon protocol 2.7).
func DefinitionDigest(d *pb.JobDefinition) string { return canonical.Sum(d) }

// EvidenceDigest returns the digest of a step's evidence: 64 hex digits over the deterministic binary form of the whole
// StepEvidence. Every *_evidence_sha256 of the protocol is this one, commit_evidence_sha256 of a cursor included.
func EvidenceDigest(e *pb.StepEvidence) string { return canonical.Sum(e) }

// PayloadDigest returns the digest that identifies the payload of a command: without its attempt (daemon protocol 2.6).
func PayloadDigest(c *pb.Command) string {
	if c.GetAttempt() != 0 {
		c = proto.CloneOf(c)
		c.Attempt = 0
	}
	return canonical.Sum(c)
}
