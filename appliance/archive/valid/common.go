package valid

import (
	"math"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Major is the protocol's major version; MajorText is the same as text.
const (
	Major     = 2
	MajorText = "2"
)

// Sizes of daemon protocol 2.4.
const (
	MaxDisplayName = 512
	MaxResourceID  = 160
	MaxOpenLeases  = 4
)

// ProtocolVersion checks a version: another major has the code VERSION_MISMATCH.
func ProtocolVersion(m *pb.ProtocolVersion) error { return run(m, (*checker).version) }

func (c *checker) version(m *pb.ProtocolVersion) {
	if m.Major != Major {
		c.failAs(pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH, "major", "must be "+MajorText)
	}
}

// ResourceIdentity checks an identity (daemon protocol 2.4).
func ResourceIdentity(m *pb.ResourceIdentity) error { return run(m, (*checker).identity) }

func (c *checker) identity(m *pb.ResourceIdentity) {
	c.hexOrEmpty("infohash_v1", m.InfohashV1, 40)
	c.hashOrEmpty("infohash_v2", m.InfohashV2)
	c.hashOrEmpty("tree_fingerprint", m.TreeFingerprint)
	c.size("display_name", m.DisplayName, 0, MaxDisplayName)
	if m.InfohashV1 == "" && m.InfohashV2 == "" && m.TreeFingerprint == "" {
		c.fail("infohash_v1", "or infohash_v2 or tree_fingerprint is required")
	}
}

// ResourceRef checks a resource (daemon protocol 2.4).
func ResourceRef(m *pb.ResourceRef) error { return run(m, (*checker).resource) }

func (c *checker) resource(m *pb.ResourceRef) {
	c.uuid("client_id", m.ClientId)
	c.size("resource_id", m.ResourceId, 1, MaxResourceID)
	required(c, "identity", m.Identity, (*checker).identity)
}

// ByteCounters checks byte counters (daemon protocol 2.4).
func ByteCounters(m *pb.ByteCounters) error { return run(m, (*checker).bytes) }

func (c *checker) bytes(m *pb.ByteCounters) {
	if !m.Known && (m.LogicalTotal != 0 || m.LogicalDone != 0 || m.AllocatedTotal != 0 || m.AllocatedDone != 0) {
		c.fail("known", "must be true if a counter is not 0")
	}
	c.must(m.LogicalDone <= m.LogicalTotal, "logical_done", "must be at most logical_total")
}

// Progress checks a progress. Its fractions must be finite; archive.Clamp and archive.OverallPermille bound them for use.
func Progress(m *pb.Progress) error { return run(m, (*checker).progress) }

func (c *checker) progress(m *pb.Progress) {
	c.must(finite(m.FractionComplete), "fraction_complete", "must be finite")
	c.must(finite(m.OverallFractionComplete), "overall_fraction_complete", "must be finite")
	optional(c, "bytes", m.Bytes, (*checker).bytes)
	c.time("last_content_movement_at", m.LastContentMovementAt)
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// JobCursor checks a cursor (daemon protocol 2.4).
func JobCursor(m *pb.JobCursor) error { return run(m, (*checker).cursor) }

func (c *checker) cursor(m *pb.JobCursor) {
	c.uuid("job_id", m.JobId)
	chosen(c, "state", m.State, pb.JobState_name)
	chosen(c, "role", m.Role, pb.ParticipantRole_name)
	if m.Revision == 0 && assigned(m.State) {
		c.fail("revision", "must be at least 1 once the job is assigned")
	}
	c.counter("revision", m.Revision)
	c.counter("last_event_sequence", m.LastEventSequence)
	c.hash("definition_sha256", m.DefinitionSha256)
	known(c, "active_step", m.ActiveStep, pb.JobStep_name)
	c.uuids("open_command_ids", m.OpenCommandIds, MaxOpenLeases)
	c.uuids("settled_command_ids", m.SettledCommandIds, MaxOpenLeases)
	c.must(m.OutboxFirstSequence <= m.LastEventSequence, "outbox_first_sequence", "must be at most last_event_sequence")
	c.hashOrEmpty("commit_evidence_sha256", m.CommitEvidenceSha256)
}

// assigned reports whether a job can have the state only after its assignment.
func assigned(s pb.JobState) bool {
	switch s {
	case pb.JobState_JOB_STATE_ASSIGNED, pb.JobState_JOB_STATE_RUNNING, pb.JobState_JOB_STATE_STALLED, pb.JobState_JOB_STATE_COMPLETED:
		return true
	}
	return false
}

// MaxCounter bounds revisions and sequences: they only grow, one by one, and both sides keep them in 64 bits with a sign.
const MaxCounter = math.MaxInt64 >> 8

// counter holds a number that only grows to what it can ever come to.
func (c *checker) counter(field string, v uint64) {
	c.must(v <= MaxCounter, field, "is higher than such a number can ever come")
}

// Limits checks the ranges of daemon protocol 5.2.
func Limits(m *pb.Limits) error { return run(m, (*checker).limits) }

func (c *checker) limits(m *pb.Limits) {
	within := func(field string, v uint32, least, most int) {
		c.must(v >= uint32(least) && v <= uint32(most), field, "must be "+itoa(least)+" to "+itoa(most))
	}
	within("max_envelope_bytes", m.MaxEnvelopeBytes, MinEnvelopeBytes, MaxEnvelopeBytes)
	within("max_chunk_entries", m.MaxChunkEntries, MinChunkEntries, MaxChunkEntries)
	within("max_outbound_envelopes", m.MaxOutboundEnvelopes, MinOutboundEnvelopes, MaxOutboundEnvelopes)
	within("max_outbound_bytes", m.MaxOutboundBytes, MinOutboundBytes, MaxOutboundBytes)
	within("max_active_cursors", m.MaxActiveCursors, MinActiveCursors, MaxActiveCursors)
}

// ErrorDetail checks an error (daemon protocol 2.4): the retryable mark must be that of the code.
func ErrorDetail(m *pb.ErrorDetail) error { return run(m, (*checker).detail) }

func (c *checker) detail(m *pb.ErrorDetail) {
	chosen(c, "code", m.Code, pb.ErrorCode_name)
	c.must(m.Retryable == archive.Retryable(m.Code), "retryable", "must be that of the code")
	c.size("message", m.Message, 0, MaxErrorMessage)
	c.must(len(m.Details) <= MaxErrorDetails, "details", "must have at most "+itoa(MaxErrorDetails)+" entries")
	for k, v := range m.Details {
		c.must(isKey(k, MaxDetailKey, 'a'), "details", "must have keys of 1 to 40 characters of a-z, 0-9 and _")
		c.must(len(v) <= MaxDetailValue, "details", "must have values of at most "+itoa(MaxDetailValue)+" bytes")
	}
	c.must(m.RetryAfter == nil || m.Retryable, "retry_after", "must be set only if retryable")
	c.duration("retry_after", m.RetryAfter, day)
}

// ProtocolError checks a protocol error (daemon protocol 2.11).
func ProtocolError(m *pb.ProtocolError) error { return run(m, (*checker).protocolError) }

func (c *checker) protocolError(m *pb.ProtocolError) {
	required(c, "error", m.Error, (*checker).detail)
	c.uuidOrEmpty("offending_envelope_id", m.OffendingEnvelopeId)
}
