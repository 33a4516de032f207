package daemon

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
)

var (
	testSelf = uuid.MustParse("11111111-1111-4111-8111-111111111111")
	testJob  = uuid.MustParse("33333333-3333-4333-8333-333333333333")
	leaseA   = uuid.MustParse("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa")
	leaseB   = uuid.MustParse("bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb")
)

const (
	accept     = pb.AckStatus_ACK_STATUS_ACCEPTED
	reject     = pb.AckStatus_ACK_STATUS_REJECTED
	dup        = pb.AckStatus_ACK_STATUS_DUPLICATE
	conflicts  = pb.AckStatus_ACK_STATUS_CONFLICT
	stOpen     = pb.LeaseState_LEASE_STATE_OPEN
	stSettled  = pb.LeaseState_LEASE_STATE_SETTLED
	stRetired  = pb.LeaseState_LEASE_STATE_RETIRED
	stAssigned = pb.JobState_JOB_STATE_ASSIGNED
	stRunning  = pb.JobState_JOB_STATE_RUNNING
	stStalled  = pb.JobState_JOB_STATE_STALLED
	stManual   = pb.JobState_JOB_STATE_MANUAL
)

func testDefinition() *pb.JobDefinition {
	return &pb.JobDefinition{JobId: testJob.String(), Operation: pb.JobOperation_JOB_OPERATION_ADOPT, TargetClientId: testSelf.String(),
		Source: &pb.ResourceRef{ClientId: testSelf.String(), ResourceId: "films"}}
}

// testFacts are a job at revision 5 and event 7 of which control has confirmed 4 and 6.
func testFacts(state pb.JobState, leases ...Lease) Facts {
	d := testDefinition()
	f := Facts{Machine: Machine{ClientID: testSelf.String(), Role: pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET, MaxJobs: 4,
		Capabilities: []string{archive.CapRouteSharedDirectory, archive.CapRouteProvisioning}}}
	f.Job = &JobFacts{Row: JobRow{ID: testJob, Definition: d, Digest: archive.DefinitionDigest(d), Role: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET,
		Revision: 5, Sequence: 7, ConfirmedRevision: 4, ConfirmedSequence: 6, State: state}, Leases: leases}
	f.Named = map[uuid.UUID]Lease{}
	for _, l := range leases {
		f.Named[l.CommandID] = l
	}
	return f
}

func testLease(id uuid.UUID, step pb.JobStep, state pb.LeaseState) Lease {
	return Lease{CommandID: id, JobID: testJob, Kind: LeaseStep, Step: step, Attempt: 1, State: state}
}

func testCommand(f Facts, revision, sequence uint64) *pb.Command {
	c := &pb.Command{CommandId: uuid.NewString(), ClientId: testSelf.String(), JobId: testJob.String(), Attempt: 1,
		IssuedAt: &timestamppb.Timestamp{Seconds: 1_800_000_000}, Precondition: &pb.CommandPrecondition{ExpectedRevision: revision, ExpectedLastEventSequence: sequence}}
	c.Precondition.DefinitionSha256 = archive.DefinitionDigest(testDefinition())
	return c
}

func withExecute(c *pb.Command, step pb.JobStep) *pb.Command {
	c.Operation = &pb.Command_ExecuteStep{ExecuteStep: &pb.ExecuteStepCommand{Step: step, StepAttempt: 1}}
	return c
}

func withCancel(c *pb.Command) *pb.Command {
	c.Operation = &pb.Command_CancelJob{CancelJob: &pb.CancelJobCommand{Cleanup: pb.CleanupPolicy_CLEANUP_POLICY_KEEP_ALL}}
	return c
}

func withClose(c *pb.Command) *pb.Command {
	c.Operation = &pb.Command_CloseJob{CloseJob: &pb.CloseJob{FinalState: pb.JobState_JOB_STATE_FAILED, DiscardJobFiles: true}}
	return c
}

func withAssign(c *pb.Command, role pb.ParticipantRole) *pb.Command {
	c.Operation = &pb.Command_AssignJob{AssignJob: &pb.AssignJob{Definition: testDefinition(), Role: role,
		DefinitionSha256: archive.DefinitionDigest(testDefinition())}}
	return c
}

func withReconcile(c *pb.Command, d pb.ReconcileDisposition, committed bool, retire ...uuid.UUID) *pb.Command {
	state := pb.JobState_JOB_STATE_RUNNING
	if d == pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON {
		state = pb.JobState_JOB_STATE_FAILED
	}
	x := &pb.ReconcileJobCommand{Disposition: d, Definition: testDefinition(), Authoritative: &pb.JobCursor{JobId: c.GetJobId(), Revision: 4,
		LastEventSequence: 6, State: state, Role: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, Committed: committed,
		DefinitionSha256: archive.DefinitionDigest(testDefinition())}}
	for _, id := range retire {
		x.RetireCommandIds = append(x.RetireCommandIds, id.String())
	}
	c.Operation = &pb.Command_ReconcileJob{ReconcileJob: x}
	return c
}

const (
	dispResume  = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME
	dispRestore = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION
	dispHold    = pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD
	dispAbandon = pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON
	stepMat     = pb.JobStep_JOB_STEP_MATERIALIZE
	stepVerify  = pb.JobStep_JOB_STEP_VERIFY
	stepCommit  = pb.JobStep_JOB_STEP_COMMIT
	roleTarget  = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
	roleSource  = pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
)

// TestDecisionTable has a case for every row of 2.6 and for every command row of 3.5.
func TestDecisionTable(t *testing.T) {
	t.Parallel()
	ids := func(f Facts, ids ...uuid.UUID) Facts { f.Job.Unacked = ids; return f }
	committed := func(f Facts) Facts { f.Job.Row.Committed = true; return f }
	undone := func(f Facts) Facts { f.Job.Row.Undone = true; return f }
	noJob := func(f Facts) Facts { f.Job = nil; return f }
	type want struct {
		status pb.AckStatus
		code   string
		store  bool
		state  pb.JobState // of Job or NewJob; 0: no change
	}
	ok := func(s pb.JobState) want { return want{accept, "", true, s} }
	no := func(code string) want { return want{reject, code, true, 0} }
	assigned, running := testFacts(stAssigned), testFacts(stRunning, testLease(leaseA, stepMat, stOpen))
	committing := committed(testFacts(stRunning, testLease(leaseA, stepCommit, stOpen)))
	at := func(f Facts) *pb.Command { return testCommand(f, 5, 7) }
	withKnown := func(f Facts, c *pb.Command, k StoredCommand) Facts {
		k.Payload, _ = frame.PayloadIdentity(c)
		_, k.Digest = frame.PayloadIdentity(c)
		k.ID = uuid.MustParse(c.GetCommandId())
		f.Known = &k
		return f
	}
	first := withExecute(at(assigned), stepMat)
	changed := proto.CloneOf(first)
	changed.JobId = uuid.NewString()
	foreign := withExecute(at(assigned), stepMat)
	foreign.ClientId = uuid.NewString()
	otherDigest := withExecute(at(assigned), stepMat)
	otherDigest.Precondition.DefinitionSha256 = strings.Repeat("a", 64)
	noPrecondition := withExecute(at(assigned), stepMat)
	noPrecondition.Precondition = nil
	snapshot := at(assigned)
	snapshot.Precondition = nil
	snapshot.Operation = &pb.Command_RequestJobSnapshot{RequestJobSnapshot: &pb.RequestJobSnapshot{FromSequence: 1}}
	ended := testFacts(pb.JobState_JOB_STATE_COMPLETED)
	ended.Job.Row.Ended = true
	unsupported := valid.Detail(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "unknown step")
	fresh := func(role pb.ParticipantRole) *pb.Command { return withAssign(testCommand(assigned, 0, 0), role) }
	needs := fresh(roleTarget)
	needs.GetAssignJob().Definition.RequiredCapabilities = []string{"content.reflink"}
	needs.GetAssignJob().DefinitionSha256 = archive.DefinitionDigest(needs.GetAssignJob().Definition)
	needs.Precondition.DefinitionSha256 = needs.GetAssignJob().DefinitionSha256
	forged := fresh(roleTarget)
	forged.GetAssignJob().Definition.RouteId = uuid.NewString()
	full := noJob(testFacts(stAssigned))
	full.ActiveJobs = 4
	otherRole := withReconcile(at(assigned), dispResume, false)
	otherRole.GetReconcileJob().Authoritative.Role = roleSource
	for i, test := range []struct {
		name string
		f    Facts
		c    *pb.Command
		want want
	}{
		{"a repeat", withKnown(assigned, first, StoredCommand{Status: accept}), first, want{dup, "", false, 0}},
		{"a repeat of a refusal", withKnown(assigned, first, StoredCommand{Status: reject, Error: unsupported}), first, want{dup, "UNSUPPORTED", false, 0}},
		{"a repeat that was not readable", withKnown(assigned, first, StoredCommand{Status: reject, Error: unsupported, Unreadable: true}), changed,
			want{dup, "UNSUPPORTED", false, 0}},
		{"the same ID with another payload", withKnown(assigned, first, StoredCommand{Status: accept}), changed, want{conflicts, "COMMAND_CONFLICT", false, 0}},
		{"another client's", assigned, foreign, want{reject, "INVALID_ARGUMENT", false, 0}},
		{"an unknown step", func() Facts { f := testFacts(stAssigned); f.Refusal, f.Partial = unsupported, true; return f }(), at(assigned), no("UNSUPPORTED")},
		{"no operation", assigned, at(assigned), no("UNSUPPORTED")},
		{"a retired ID", func() Facts { f := testFacts(stAssigned); f.Retired = true; return f }(), withExecute(at(assigned), stepMat), no("STALE_LEASE")},
		{"an unknown job", noJob(testFacts(stAssigned)), withExecute(at(assigned), stepMat), no("NOT_FOUND")},
		{"a snapshot of an unknown job", noJob(testFacts(stAssigned)), snapshot, no("NOT_FOUND")},
		{"RESUME of an unknown job", noJob(testFacts(stAssigned)), withReconcile(at(assigned), dispResume, false), no("NOT_FOUND")},
		{"an ended job", ended, withExecute(at(assigned), stepMat), no("UNSAFE_STATE")},
		{"HOLD of an ended job", ended, withReconcile(at(assigned), dispHold, false), no("UNSAFE_STATE")},
		{"another definition", assigned, otherDigest, no("UNSAFE_STATE")},
		{"no precondition", assigned, noPrecondition, no("INVALID_ARGUMENT")},
		{"a lower revision", assigned, withExecute(testCommand(assigned, 4, 7), stepMat), no("STALE_REVISION")},
		{"a lower sequence", assigned, withExecute(testCommand(assigned, 5, 6), stepMat), no("STALE_SEQUENCE")},
		{"a lower revision and a higher sequence", assigned, withExecute(testCommand(assigned, 4, 9), stepMat), no("STALE_REVISION")},
		{"an assignment of a known job", assigned, fresh(roleTarget), no("STALE_REVISION")},
		{"ahead", assigned, withExecute(testCommand(assigned, 8, 12), stepMat), ok(stRunning)},
		{"ahead in the sequence alone", assigned, withExecute(testCommand(assigned, 5, 12), stepMat), ok(stRunning)},
		{"ahead with an open lease", running, withCancel(testCommand(running, 8, 12)), no("STALE_SEQUENCE")},
		{"ahead with an outbox", ids(testFacts(stAssigned), leaseA), withExecute(testCommand(assigned, 8, 12), stepMat), no("STALE_SEQUENCE")},
		{"absurdly ahead", assigned, withExecute(testCommand(assigned, 1<<62, 1<<62), stepMat), no("INVALID_ARGUMENT")},

		{"a step", assigned, withExecute(at(assigned), stepMat), ok(stRunning)},
		{"a step of another plan", assigned, withExecute(at(assigned), pb.JobStep_JOB_STEP_PURGE), no("INVALID_ARGUMENT")},
		{"a step over a step", running, withExecute(at(running), stepVerify), no("BUSY")},
		{"a step of a held job", testFacts(stManual), withExecute(at(assigned), stepMat), no("UNSAFE_STATE")},
		{"a step of a held job with a lease", testFacts(stManual, testLease(leaseA, stepMat, stOpen)), withExecute(at(assigned), stepMat), no("BUSY")},
		{"a step of a cancelled job", testFacts(pb.JobState_JOB_STATE_CANCELLED), withExecute(at(assigned), stepMat), no("UNSAFE_STATE")},
		{"cancel of an assigned job", assigned, withCancel(at(assigned)), ok(pb.JobState_JOB_STATE_CANCELLING)},
		{"cancel of a running job", running, withCancel(at(running)), ok(pb.JobState_JOB_STATE_CANCELLING)},
		{"cancel of a stalled job", testFacts(stStalled, testLease(leaseA, stepMat, stOpen)), withCancel(at(running)), ok(pb.JobState_JOB_STATE_CANCELLING)},
		{"cancel while cancelling", testFacts(pb.JobState_JOB_STATE_CANCELLING), withCancel(at(assigned)), no("BUSY")},
		{"cancel of a committed job", committing, withCancel(at(assigned)), no("UNSAFE_STATE")},
		{"cancel of a held job", testFacts(stManual), withCancel(at(assigned)), no("UNSAFE_STATE")},
		{"cancel of a cancelled job", testFacts(pb.JobState_JOB_STATE_CANCELLED), withCancel(at(assigned)), no("UNSAFE_STATE")},
		{"close", assigned, withClose(at(assigned)), ok(pb.JobState_JOB_STATE_FAILED)},
		{"close of a cancelled job", testFacts(pb.JobState_JOB_STATE_CANCELLED), withClose(at(assigned)), ok(pb.JobState_JOB_STATE_FAILED)},
		{"close over a step", running, withClose(at(running)), no("BUSY")},
		{"close of a held job", testFacts(stManual), withClose(at(assigned)), no("UNSAFE_STATE")},
		{"a snapshot", assigned, snapshot, ok(0)},

		{"an assignment", noJob(testFacts(stAssigned)), fresh(roleTarget), ok(stAssigned)},
		{"an assignment that expects a cursor", noJob(testFacts(stAssigned)), withAssign(testCommand(assigned, 1, 0), roleTarget), no("INVALID_ARGUMENT")},
		{"an assignment in another role", noJob(testFacts(stAssigned)), fresh(roleSource), no("INVALID_ARGUMENT")},
		{"an assignment that needs more", noJob(testFacts(stAssigned)), needs, no("UNSUPPORTED")},
		{"an assignment with a forged definition", noJob(testFacts(stAssigned)), forged, no("INVALID_ARGUMENT")},
		{"an assignment beyond the limit", full, fresh(roleTarget), no("LIMIT_EXCEEDED")},

		{"RESUME", assigned, withReconcile(at(assigned), dispResume, false), ok(stAssigned)},
		{"RESUME with a cursor that control has not seen", assigned, withReconcile(testCommand(assigned, 4, 6), dispResume, false), ok(stAssigned)},
		{"RESUME below what is confirmed", assigned, withReconcile(testCommand(assigned, 3, 6), dispResume, false), no("STALE_REVISION")},
		{"RESUME below the confirmed sequence", assigned, withReconcile(testCommand(assigned, 4, 5), dispResume, false), no("STALE_SEQUENCE")},
		{"RESUME that retires the lease", running, withReconcile(at(running), dispResume, false, leaseA), ok(stAssigned)},
		{"RESUME that leaves the lease", running, withReconcile(at(running), dispResume, false), ok(stRunning)},
		{"RESUME of a held job with a lease", testFacts(stManual, testLease(leaseA, stepMat, stOpen)), withReconcile(at(running), dispResume, false), ok(stRunning)},
		{"RESUME of a held job", testFacts(stManual), withReconcile(at(running), dispResume, false), ok(stAssigned)},
		{"RESUME that clears the commit flag", committed(testFacts(stAssigned)), withReconcile(at(assigned), dispResume, false), no("COMMIT_CONFLICT")},
		{"RESUME that keeps the commit flag", committed(testFacts(stAssigned)), withReconcile(at(assigned), dispResume, true), ok(stAssigned)},
		{"RESUME that retires a committed lease", committing, withReconcile(at(assigned), dispResume, true, leaseA), no("COMMIT_CONFLICT")},
		{"RESUME with events of a lease it does not name", ids(testFacts(stAssigned, testLease(leaseA, stepMat, stSettled)), leaseA),
			withReconcile(at(assigned), dispResume, false, leaseB), no("BUSY")},
		{"RESUME while cancelling", undone(testFacts(pb.JobState_JOB_STATE_CANCELLING)), withReconcile(at(assigned), dispResume, false), no("UNSAFE_STATE")},
		{"RESUME of a cancelled job", undone(testFacts(pb.JobState_JOB_STATE_CANCELLED)), withReconcile(at(assigned), dispResume, false), no("UNSAFE_STATE")},
		{"RESUME of a held job that was cancelled", undone(testFacts(stManual)), withReconcile(at(assigned), dispResume, false), no("UNSAFE_STATE")},
		{"RESUME in another role", assigned, otherRole, no("INVALID_ARGUMENT")},
		{"RESTORE of a lost job", noJob(testFacts(stAssigned)), withReconcile(at(assigned), dispRestore, true, leaseA), ok(stAssigned)},
		{"RESTORE of a job that is there", assigned, withReconcile(at(assigned), dispRestore, false), ok(stAssigned)},
		{"HOLD", committing, withReconcile(at(assigned), dispHold, false), ok(stManual)},
		{"HOLD with events that are not confirmed", ids(testFacts(stRunning, testLease(leaseA, stepMat, stOpen)), leaseA),
			withReconcile(at(assigned), dispHold, false), ok(stManual)},
		{"stale HOLD", assigned, withReconcile(testCommand(assigned, 3, 3), dispHold, false), no("STALE_REVISION")},
		{"ABANDON", running, withReconcile(at(running), dispAbandon, false), ok(pb.JobState_JOB_STATE_FAILED)},
		{"ABANDON past the commit point", committing, withReconcile(at(assigned), dispAbandon, true), no("COMMIT_CONFLICT")},
		{"ABANDON of a held job past the commit point", committed(testFacts(stManual, testLease(leaseA, stepCommit, stOpen))),
			withReconcile(at(assigned), dispAbandon, true), ok(pb.JobState_JOB_STATE_FAILED)},
	} {
		t.Run(fmt.Sprintf("%02d %s", i, test.name), func(t *testing.T) {
			if test.f.Digest == "" {
				_, test.f.Digest = frame.PayloadIdentity(test.c)
			}
			o := Decide(test.c, test.f)
			code := strings.TrimPrefix(o.Error.GetCode().String(), "ERROR_CODE_")
			if o.Error == nil {
				code = ""
			}
			var state pb.JobState
			switch {
			case o.Job != nil:
				state = o.Job.State
			case o.NewJob != nil:
				state = o.NewJob.State
			}
			if got := (want{o.Status, code, o.Store, state}); got != test.want {
				t.Errorf("got %+v (%v), want %+v", got, o.Error, test.want)
			}
			if o.Status != accept && (o.Job != nil || o.NewJob != nil || len(o.Leases) > 0 || len(o.DropEvents) > 0 || o.DropOutbox ||
				o.DropAbove != nil || o.AckAll || o.Route != nil || o.Work || o.Interrupt) {
				t.Errorf("%v has an effect: %+v", o.Status, o)
			}
		})
	}
}
