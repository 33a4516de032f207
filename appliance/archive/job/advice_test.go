package job_test

import (
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
)

// In every state that asks for a person there is exactly one next action, with a command line; and in every other one, what
// there is to see (product rule P6).
func TestEveryStateHasOneNextAction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	look := func(what string, want string) {
		t.Helper()
		next := r.show(id).Explanation.NextAction
		if strings.Count(next, "`") != 2 || strings.Count(next, "`signalbox ") != 1 || !strings.Contains(next, "`signalbox "+want) ||
			strings.Contains(next, "%!") || !strings.HasSuffix(next, ".") {
			t.Errorf("%s: %q, want `signalbox %s`", what, next, want)
		}
	}
	self := id.String()
	states := map[pb.JobState]string{pb.JobState_JOB_STATE_PENDING: "jobs cancel " + self, preflightState: "jobs watch " + self,
		assigning: "jobs watch " + self, running: "jobs watch " + self, stalled: "daemons show " + r.nas.id.String(),
		cancelling: "jobs watch " + self, manual: "jobs resolve " + self + " --resume --reason 'WHY'", failed: "jobs preview transfer " + r.nas.id.String() + " film " + r.vault.id.String()}
	for state, want := range states {
		if state == cancelling {
			r.exec(`UPDATE archive_jobs SET outcome = ? WHERE id = ?`, int32(failed), id)
		}
		r.exec(`UPDATE archive_jobs SET state = ?, ended_at = CASE WHEN ? >= 100 THEN 1 END WHERE id = ?`, int32(state), int32(state), id)
		look(state.String(), want)
	}
	waits := map[pb.WaitReason]string{pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE: "daemons show " + r.vault.id.String(),
		pb.WaitReason_WAIT_REASON_COMMAND_UNACKED: "jobs retry " + self, pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY: "routes test ",
		pb.WaitReason_WAIT_REASON_NO_SPACE: "jobs retry " + self, pb.WaitReason_WAIT_REASON_BACKEND_UNAVAILABLE: "jobs retry " + self,
		pb.WaitReason_WAIT_REASON_RETRY_BACKOFF: "jobs retry " + self, pb.WaitReason_WAIT_REASON_RECONCILING: "jobs watch " + self,
		pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED: "jobs watch " + self, pb.WaitReason_WAIT_REASON_OPERATOR_HOLD: "jobs retry " + self,
		pb.WaitReason_WAIT_REASON_RETENTION: "jobs show " + self}
	if names := pb.WaitReason(0).Descriptor().Values(); names.Len() != len(waits)+1 {
		t.Errorf("%d reasons to wait, and advice for %d", names.Len()-1, len(waits))
	}
	r.exec(`UPDATE archive_jobs SET state = ?, kept_state = ?, outcome = 0, ended_at = NULL WHERE id = ?`, int32(waiting), int32(running), id)
	r.vault.offline()
	r.routes.ready = false
	for reason, want := range waits {
		r.exec(`UPDATE archive_jobs SET wait_reason = ? WHERE id = ?`, int32(reason), id)
		look(reason.String(), want)
	}
	other := r.show(r.begin())
	if want := "`signalbox jobs explain " + self + "`"; !strings.Contains(other.Explanation.NextAction, want) {
		t.Errorf("%v: %q, want %q", other.Wait, other.Explanation.NextAction, want)
	}
}
