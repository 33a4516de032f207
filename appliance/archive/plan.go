package archive

import pb "signalbox/appliance/archive/archivepb"

// Planned is one step of a plan (daemon protocol 3.1).
type Planned struct {
	Step   pb.JobStep
	Weight uint32 // ‰ of the job's progress
}

// CompleteWeight is the sum of the weights of every plan.
const CompleteWeight = 1000

var plans = map[pb.JobOperation][]Planned{
	pb.JobOperation_JOB_OPERATION_TRANSFER: {
		{pb.JobStep_JOB_STEP_STAGE, 100}, {pb.JobStep_JOB_STEP_TRANSFER, 500}, {pb.JobStep_JOB_STEP_MATERIALIZE, 100},
		{pb.JobStep_JOB_STEP_VERIFY, 250}, {pb.JobStep_JOB_STEP_COMMIT, 50}},
	pb.JobOperation_JOB_OPERATION_ADOPT: {
		{pb.JobStep_JOB_STEP_MATERIALIZE, 150}, {pb.JobStep_JOB_STEP_VERIFY, 800}, {pb.JobStep_JOB_STEP_COMMIT, 50}},
	pb.JobOperation_JOB_OPERATION_EVICT: {
		{pb.JobStep_JOB_STEP_VERIFY, 600}, {pb.JobStep_JOB_STEP_RELEASE, 300}, {pb.JobStep_JOB_STEP_PURGE, 100}},
}

// Plan returns the steps of an operation in order, nil for an unknown one. The caller must not change it.
func Plan(op pb.JobOperation) []Planned { return plans[op] }

// StepAt returns the step at a position of the plan, UNSPECIFIED beyond its end.
func StepAt(op pb.JobOperation, position int) pb.JobStep {
	if p := plans[op]; position >= 0 && position < len(p) {
		return p[position].Step
	}
	return pb.JobStep_JOB_STEP_UNSPECIFIED
}

// Position returns the place of a step in the plan of an operation.
func Position(op pb.JobOperation, step pb.JobStep) (int, bool) {
	for i, p := range plans[op] {
		if p.Step == step {
			return i, true
		}
	}
	return 0, false
}

// Carrier returns the participant that executes TRANSFER over a route of the kind (daemon protocol 6.1), UNSPECIFIED
// for an unknown kind.
func Carrier(kind pb.RouteKind) pb.ParticipantRole {
	switch kind {
	case pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, pb.RouteKind_ROUTE_KIND_SYNCTHING:
		return pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
	case pb.RouteKind_ROUTE_KIND_RSYNC_SSH:
		return pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	}
	return pb.ParticipantRole_PARTICIPANT_ROLE_UNSPECIFIED
}

// Executor returns the participant that executes a step (daemon protocol 3.1); kind matters for TRANSFER only.
func Executor(step pb.JobStep, kind pb.RouteKind) pb.ParticipantRole {
	switch step {
	case pb.JobStep_JOB_STEP_STAGE, pb.JobStep_JOB_STEP_RELEASE, pb.JobStep_JOB_STEP_PURGE:
		return pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE
	case pb.JobStep_JOB_STEP_TRANSFER:
		return Carrier(kind)
	case pb.JobStep_JOB_STEP_MATERIALIZE, pb.JobStep_JOB_STEP_VERIFY, pb.JobStep_JOB_STEP_COMMIT:
		return pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
	}
	return pb.ParticipantRole_PARTICIPANT_ROLE_UNSPECIFIED
}

// Roles returns the participants of an operation: one for ADOPT, which the target does alone.
func Roles(op pb.JobOperation) []pb.ParticipantRole {
	switch op {
	case pb.JobOperation_JOB_OPERATION_ADOPT:
		return []pb.ParticipantRole{pb.ParticipantRole_PARTICIPANT_ROLE_TARGET}
	case pb.JobOperation_JOB_OPERATION_TRANSFER, pb.JobOperation_JOB_OPERATION_EVICT:
		return []pb.ParticipantRole{pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE, pb.ParticipantRole_PARTICIPANT_ROLE_TARGET}
	}
	return nil
}

// Commits reports whether a step sets the commit flag (daemon protocol 3.2).
func Commits(step pb.JobStep) bool {
	return step == pb.JobStep_JOB_STEP_COMMIT || step == pb.JobStep_JOB_STEP_RELEASE
}

// Irreversible reports whether a step can do what no later decision takes back: COMMIT, RELEASE, PURGE.
func Irreversible(step pb.JobStep) bool { return Commits(step) || step == pb.JobStep_JOB_STEP_PURGE }
