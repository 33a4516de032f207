package valid_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame/canonical"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/valid/validtest"
)

const (
	unsupported = pb.ErrorCode_ERROR_CODE_UNSUPPORTED
	unsafe      = pb.ErrorCode_ERROR_CODE_PATH_UNSAFE
)

// rule is a change of a valid message and the field that it spoils, empty if the message stays valid.
type rule[M proto.Message] struct {
	name   string
	field  string
	change func(M)
	code   pb.ErrorCode // 0 is INVALID_ARGUMENT
}

// hold applies every rule to a fresh message.
func hold[M proto.Message](t *testing.T, fresh func() M, rules []rule[M]) {
	t.Helper()
	for _, r := range rules {
		m := fresh()
		r.change(m)
		err := valid.AsError(valid.Message(m))
		want := r.code
		if want == 0 {
			want = pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT
		}
		switch {
		case r.field == "" && err != nil:
			t.Errorf("%T: %s: %v", m, r.name, err)
		case r.field == "":
		case err == nil:
			t.Errorf("%T: %s is valid", m, r.name)
		case err.Field != r.field || err.Code != want:
			t.Errorf("%T: %s: %v (%v), want %s (%v)", m, r.name, err, err.Code, r.field, want)
		}
	}
}

func uuids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = validtest.UUID(100 + i)
	}
	return out
}

func TestSharedMessages(t *testing.T) {
	hold(t, validtest.Version, []rule[*pb.ProtocolVersion]{
		{"major 1", "major", func(m *pb.ProtocolVersion) { m.Major = 1 }, pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH},
		{"any minor", "", func(m *pb.ProtocolVersion) { m.Minor = 99 }, 0},
	})
	hold(t, validtest.Failure, []rule[*pb.ErrorDetail]{
		{"no code", "code", func(m *pb.ErrorDetail) { m.Code = 0 }, unsupported},
		{"retryable of a permanent code", "retryable", func(m *pb.ErrorDetail) { m.Code = pb.ErrorCode_ERROR_CODE_INTERNAL }, 0},
		{"permanent of a retryable code", "retryable", func(m *pb.ErrorDetail) { m.Retryable = false }, 0},
		{"longest message", "", func(m *pb.ErrorDetail) { m.Message = strings.Repeat("x", 1024) }, 0},
		{"message too long", "message", func(m *pb.ErrorDetail) { m.Message = strings.Repeat("x", 1025) }, 0},
		{"retry_after of a permanent code", "retry_after", func(m *pb.ErrorDetail) { m.Code, m.Retryable = pb.ErrorCode_ERROR_CODE_INTERNAL, false }, 0},
		{"retry_after of a day", "", func(m *pb.ErrorDetail) { m.RetryAfter = durationpb.New(24 * time.Hour) }, 0},
		{"retry_after above a day", "retry_after", func(m *pb.ErrorDetail) { m.RetryAfter = durationpb.New(24*time.Hour + 1) }, 0},
		{"retry_after with two signs", "retry_after", func(m *pb.ErrorDetail) { m.RetryAfter = &durationpb.Duration{Seconds: 1, Nanos: -1} }, 0},
		{"33 details", "details", func(m *pb.ErrorDetail) {
			m.Details = map[string]string{}
			for i := range 33 {
				m.Details[fmt.Sprint("k", i)] = ""
			}
		}, 0},
		{"empty key", "details", func(m *pb.ErrorDetail) { m.Details[""] = "x" }, 0},
		{"key of 41", "details", func(m *pb.ErrorDetail) { m.Details[strings.Repeat("k", 41)] = "x" }, 0},
		{"capital key", "details", func(m *pb.ErrorDetail) { m.Details["Key"] = "x" }, 0},
		{"value too long", "details", func(m *pb.ErrorDetail) { m.Details["k"] = strings.Repeat("x", 1025) }, 0},
	})
	hold(t, validtest.Identity, []rule[*pb.ResourceIdentity]{
		{"fingerprint alone", "", func(m *pb.ResourceIdentity) { m.InfohashV1, m.InfohashV2 = "", "" }, 0},
		{"nothing", "infohash_v1", func(m *pb.ResourceIdentity) { m.InfohashV1, m.InfohashV2, m.TreeFingerprint = "", "", "" }, 0},
		{"name too long", "display_name", func(m *pb.ResourceIdentity) { m.DisplayName = strings.Repeat("x", 513) }, 0},
	})
	hold(t, func() *pb.ResourceRef { return validtest.Resource(validtest.Client) }, []rule[*pb.ResourceRef]{
		{"no ID", "resource_id", func(m *pb.ResourceRef) { m.ResourceId = "" }, 0},
		{"ID of 161", "resource_id", func(m *pb.ResourceRef) { m.ResourceId = strings.Repeat("x", 161) }, 0},
		{"no identity", "identity", func(m *pb.ResourceRef) { m.Identity = nil }, 0},
		{"identity", "identity.infohash_v1", func(m *pb.ResourceRef) { m.Identity.InfohashV1 = "x" }, 0},
	})
	hold(t, validtest.Progress, []rule[*pb.Progress]{
		{"done above total", "bytes.logical_done", func(m *pb.Progress) { m.Bytes.LogicalDone = 101 }, 0},
		{"unknown with numbers", "bytes.known", func(m *pb.Progress) { m.Bytes.Known = false }, 0},
		{"unknown", "", func(m *pb.Progress) { m.Bytes = &pb.ByteCounters{} }, 0},
		{"above 1", "", func(m *pb.Progress) { m.FractionComplete = 1.5 }, 0},
	})
	hold(t, func() *pb.JobCursor { return validtest.Cursor(validtest.Job) }, []rule[*pb.JobCursor]{
		{"no state", "state", func(m *pb.JobCursor) { m.State = 0 }, unsupported},
		{"no role", "role", func(m *pb.JobCursor) { m.Role = 0 }, unsupported},
		{"no revision while running", "revision", func(m *pb.JobCursor) { m.Revision = 0 }, 0},
		{"no revision before the assignment", "", func(m *pb.JobCursor) { m.Revision, m.State = 0, pb.JobState_JOB_STATE_ASSIGNING }, 0},
		{"no step", "", func(m *pb.JobCursor) { m.ActiveStep = 0 }, 0},
		{"no digest", "definition_sha256", func(m *pb.JobCursor) { m.DefinitionSha256 = "" }, 0},
		{"four leases", "", func(m *pb.JobCursor) { m.OpenCommandIds, m.SettledCommandIds = uuids(4), uuids(4) }, 0},
		{"five open", "open_command_ids", func(m *pb.JobCursor) { m.OpenCommandIds = uuids(5) }, 0},
		{"five settled", "settled_command_ids", func(m *pb.JobCursor) { m.SettledCommandIds = uuids(5) }, 0},
		{"second is none", "open_command_ids[1]", func(m *pb.JobCursor) { m.OpenCommandIds = append(uuids(1), "x") }, 0},
		{"outbox above last", "outbox_first_sequence", func(m *pb.JobCursor) { m.OutboxFirstSequence = 6 }, 0},
		{"no commit evidence", "", func(m *pb.JobCursor) { m.CommitEvidenceSha256 = "" }, 0},
	})
	hold(t, validtest.Limits, []rule[*pb.Limits]{
		{"defaults", "", func(m *pb.Limits) { proto.Reset(m); proto.Merge(m, valid.DefaultLimits()) }, 0},
		{"least", "", func(m *pb.Limits) {
			m.MaxEnvelopeBytes, m.MaxChunkEntries, m.MaxOutboundEnvelopes, m.MaxOutboundBytes, m.MaxActiveCursors = 64<<10, 50, 64, 1<<20, 16
		}, 0},
		{"most", "", func(m *pb.Limits) {
			m.MaxEnvelopeBytes, m.MaxChunkEntries, m.MaxOutboundEnvelopes, m.MaxOutboundBytes, m.MaxActiveCursors = 4<<20, 2000, 1024, 32<<20, 512
		}, 0},
		{"envelope below", "max_envelope_bytes", func(m *pb.Limits) { m.MaxEnvelopeBytes = 64<<10 - 1 }, 0},
		{"envelope above", "max_envelope_bytes", func(m *pb.Limits) { m.MaxEnvelopeBytes = 4<<20 + 1 }, 0},
		{"entries below", "max_chunk_entries", func(m *pb.Limits) { m.MaxChunkEntries = 49 }, 0},
		{"entries above", "max_chunk_entries", func(m *pb.Limits) { m.MaxChunkEntries = 2001 }, 0},
		{"queue below", "max_outbound_envelopes", func(m *pb.Limits) { m.MaxOutboundEnvelopes = 63 }, 0},
		{"queue above", "max_outbound_envelopes", func(m *pb.Limits) { m.MaxOutboundEnvelopes = 1025 }, 0},
		{"queue bytes below", "max_outbound_bytes", func(m *pb.Limits) { m.MaxOutboundBytes = 1<<20 - 1 }, 0},
		{"queue bytes above", "max_outbound_bytes", func(m *pb.Limits) { m.MaxOutboundBytes = 32<<20 + 1 }, 0},
		{"cursors below", "max_active_cursors", func(m *pb.Limits) { m.MaxActiveCursors = 15 }, 0},
		{"cursors above", "max_active_cursors", func(m *pb.Limits) { m.MaxActiveCursors = 513 }, 0},
	})
}

func TestRegistrationMessages(t *testing.T) {
	names := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprint("c", i)
		}
		return out
	}
	hold(t, validtest.Registration, []rule[*pb.RegisterRequest]{
		{"no version", "protocol_version", func(m *pb.RegisterRequest) { m.ProtocolVersion = nil }, 0},
		{"no name", "client_name", func(m *pb.RegisterRequest) { m.ClientName = "" }, 0},
		{"name of 129", "client_name", func(m *pb.RegisterRequest) { m.ClientName = strings.Repeat("x", 129) }, 0},
		{"control character", "client_name", func(m *pb.RegisterRequest) { m.ClientName = "a\u0085b" }, 0},
		{"no role", "role", func(m *pb.RegisterRequest) { m.Role = 0 }, unsupported},
		{"64 capabilities", "", func(m *pb.RegisterRequest) { m.Capabilities = names(64) }, 0},
		{"65 capabilities", "capabilities", func(m *pb.RegisterRequest) { m.Capabilities = names(65) }, 0},
		{"unknown capability", "", func(m *pb.RegisterRequest) { m.Capabilities = []string{"new.one_2.x"} }, 0},
		{"capability twice", "capabilities[1]", func(m *pb.RegisterRequest) { m.Capabilities = []string{"a", "a"} }, 0},
		{"empty capability", "capabilities[0]", func(m *pb.RegisterRequest) { m.Capabilities = []string{""} }, 0},
		{"capital capability", "capabilities[0]", func(m *pb.RegisterRequest) { m.Capabilities = []string{"A"} }, 0},
		{"dot first", "capabilities[0]", func(m *pb.RegisterRequest) { m.Capabilities = []string{".a"} }, 0},
		{"dot last", "capabilities[0]", func(m *pb.RegisterRequest) { m.Capabilities = []string{"a."} }, 0},
		{"two dots", "capabilities[0]", func(m *pb.RegisterRequest) { m.Capabilities = []string{"a..b"} }, 0},
		{"capability of 65", "capabilities[0]", func(m *pb.RegisterRequest) { m.Capabilities = []string{strings.Repeat("a", 65)} }, 0},
		{"job twice", "active_jobs[1].job_id", func(m *pb.RegisterRequest) { m.ActiveJobs[1].JobId = m.ActiveJobs[0].JobId }, 0},
		{"cursor", "active_jobs[1].role", func(m *pb.RegisterRequest) { m.ActiveJobs[1].Role = 0 }, unsupported},
		{"513 cursors", "active_jobs", func(m *pb.RegisterRequest) {
			m.ActiveJobs = nil
			for _, id := range uuids(513) {
				m.ActiveJobs = append(m.ActiveJobs, validtest.Cursor(id))
			}
		}, 0},
		{"token of 31", "token", func(m *pb.RegisterRequest) { m.Token = strings.Repeat("t", 31) }, 0},
		{"token of 513", "token", func(m *pb.RegisterRequest) { m.Token = strings.Repeat("t", 513) }, 0},
		{"no limits", "offered_limits", func(m *pb.RegisterRequest) { m.OfferedLimits = nil }, 0},
		{"limits", "offered_limits.max_chunk_entries", func(m *pb.RegisterRequest) { m.OfferedLimits.MaxChunkEntries = 0 }, 0},
		{"software of 129", "software", func(m *pb.RegisterRequest) { m.Software = strings.Repeat("x", 129) }, 0},
	})
	envelope := func(name string) func() *pb.Envelope {
		return func() *pb.Envelope { return validtest.Envelopes()[name] }
	}
	hold(t, envelope("register_request"), []rule[*pb.Envelope]{
		{"no version", "version", func(m *pb.Envelope) { m.Version = nil }, 0},
		{"major", "version.major", func(m *pb.Envelope) { m.Version.Major = 3 }, pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH},
		{"version before all else", "version.major", func(m *pb.Envelope) { m.Version.Major, m.EnvelopeId = 3, "" }, pb.ErrorCode_ERROR_CODE_VERSION_MISMATCH},
		{"no ID", "envelope_id", func(m *pb.Envelope) { m.EnvelopeId = "" }, 0},
		{"no time", "sent_at", func(m *pb.Envelope) { m.SentAt = nil }, 0},
		{"no client", "client_id", func(m *pb.Envelope) { m.ClientId = "" }, 0},
		{"no correlation", "", func(m *pb.Envelope) { m.CorrelationId = "" }, 0},
		{"correlation", "correlation_id", func(m *pb.Envelope) { m.CorrelationId = "x" }, 0},
		{"no payload", "payload", func(m *pb.Envelope) { m.Payload = nil }, 0},
		{"empty payload", "register_request", func(m *pb.Envelope) { m.Payload = &pb.Envelope_RegisterRequest{} }, 0},
		{"another minor", "register_request.protocol_version", func(m *pb.Envelope) { m.Version.Minor = 1 }, 0},
		{"another client", "register_request.client_id", func(m *pb.Envelope) { m.ClientId = validtest.Target }, 0},
	})
	hold(t, func() *pb.RegisterResponse { return validtest.Envelopes()["register_response"].GetRegisterResponse() }, []rule[*pb.RegisterResponse]{
		{"no version", "negotiated_version", func(m *pb.RegisterResponse) { m.NegotiatedVersion = nil }, 0},
		{"generation 0", "connection_generation", func(m *pb.RegisterResponse) { m.ConnectionGeneration = 0 }, 0},
		{"no liveness", "liveness", func(m *pb.RegisterResponse) { m.Liveness = nil }, 0},
		{"defaults", "", func(m *pb.RegisterResponse) { m.Liveness = &pb.LivenessSettings{} }, 0},
		{"interval 0", "liveness.heartbeat_interval", func(m *pb.RegisterResponse) { m.Liveness.HeartbeatInterval = durationpb.New(0) }, 0},
		{"no limits", "limits", func(m *pb.RegisterResponse) { m.Limits = nil }, 0},
		{"cursor", "control_cursors[0].job_id", func(m *pb.RegisterResponse) { m.ControlCursors[0].JobId = "" }, 0},
	})
	hold(t, func() *pb.RegisterRejected { return validtest.Envelopes()["register_rejected"].GetRegisterRejected() }, []rule[*pb.RegisterRejected]{
		{"no error", "error", func(m *pb.RegisterRejected) { m.Error = nil }, 0},
	})
	hold(t, func() *pb.Heartbeat { return validtest.Envelopes()["heartbeat"].GetHeartbeat() }, []rule[*pb.Heartbeat]{
		{"sequence 0", "sequence", func(m *pb.Heartbeat) { m.Sequence = 0 }, 0},
	})
	hold(t, func() *pb.ProtocolError { return validtest.Envelopes()["protocol_error"].GetProtocolError() }, []rule[*pb.ProtocolError]{
		{"no error", "error", func(m *pb.ProtocolError) { m.Error = nil }, 0},
		{"no envelope", "", func(m *pb.ProtocolError) { m.OffendingEnvelopeId = "" }, 0},
	})
}

func TestLowerLimits(t *testing.T) {
	a := &pb.Limits{MaxEnvelopeBytes: 1, MaxChunkEntries: 9, MaxOutboundEnvelopes: 1, MaxOutboundBytes: 9, MaxActiveCursors: 1}
	b := &pb.Limits{MaxEnvelopeBytes: 9, MaxChunkEntries: 1, MaxOutboundEnvelopes: 9, MaxOutboundBytes: 1, MaxActiveCursors: 9}
	want := &pb.Limits{MaxEnvelopeBytes: 1, MaxChunkEntries: 1, MaxOutboundEnvelopes: 1, MaxOutboundBytes: 1, MaxActiveCursors: 1}
	if got := valid.LowerLimits(a, b); !proto.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// definitionDigest sets the digests of a command to those of its definition.
func definitionDigest(c *pb.Command) {
	if a := c.GetAssignJob(); a != nil {
		a.DefinitionSha256 = canonical.Sum(a.Definition)
		c.Precondition.DefinitionSha256 = a.DefinitionSha256
	}
}
