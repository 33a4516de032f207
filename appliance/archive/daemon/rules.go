package daemon

import (
	"strings"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Limits of daemon protocol 2.4, 2.8, 2.9 and 5.2.
const (
	maxOpenSnapshots  = 4    // inventory answers at work
	maxListedCommands = 4    // open and settled IDs in a cursor, each
	keptProgress      = 1000 // confirmed PROGRESS, STALLED and RESUMED rows of a job
)

// executes says why the participant does not execute the step; "" when it does.
func executes(row JobRow, step pb.JobStep, kind pb.RouteKind) string {
	if _, ok := archive.Position(row.Definition.GetOperation(), step); !ok {
		return "is no step of the job's plan"
	}
	if step == pb.JobStep_JOB_STEP_TRANSFER && kind == pb.RouteKind_ROUTE_KIND_UNSPECIFIED {
		return "" // the step itself finds out that the route is not there
	}
	if archive.Executor(step, kind) != row.Role {
		return "the other participant executes it"
	}
	return ""
}

// stateName is the state in the words of the protocol.
func stateName(s pb.JobState) string { return strings.TrimPrefix(s.String(), "JOB_STATE_") }
