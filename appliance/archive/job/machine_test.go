package job_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
)

func failing(code pb.ErrorCode) func(*pb.JobEvent) {
	return func(ev *pb.JobEvent) {
		ev.Error = &pb.ErrorDetail{Code: code, Retryable: archive.Retryable(code), Message: "the test fails the step",
			Details: map[string]string{"needed_bytes": "4096"}}
	}
}

// audited counts the audit rows of an action about the job.
func (r *rig) audited(action string, id uuid.UUID) int64 {
	return r.number(`SELECT count(*) FROM audit_log WHERE action = ? AND target_id = ?`, action, id.String())
}

func (r *rig) alerts(id uuid.UUID, kind archive.AlertKind) int {
	r.t.Helper()
	list, err := r.reg.Alerts(r.ctx(), registry.AlertFilter{JobNo: r.show(id).No})
	r.ok("alerts", err)
	n := 0
	for _, a := range list {
		if a.Kind == kind {
			n++
		}
	}
	return n
}

func TestPreflightFailsForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.checks.out = []job.Outcome{{Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, Message: "a/../b leaves the root"}}}
	id := r.begin()
	d := r.in(id, failed)
	if d.Error.GetMessage() != "a/../b leaves the root" || len(d.Reservations) != 0 {
		t.Fatalf("%v %v", d.Error, d.Reservations)
	}
	r.nas.nothing()
}

func TestPreflightWaitsAndTriesAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	busy := job.Outcome{Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: "no tree came"}}
	r.checks.out = []job.Outcome{busy, busy}
	id := r.begin()
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETRY_BACKOFF)
	first := d.RetryAt.Sub(r.clk.Now())
	if d.Kept != preflightState || len(d.Reservations) == 0 {
		t.Fatalf("%v %v", d.Kept, d.Reservations)
	}
	r.clk.Advance(first - time.Microsecond)
	r.run()
	r.in(id, waiting)
	r.clk.Advance(time.Microsecond)
	r.run()
	if second := r.in(id, waiting).RetryAt.Sub(r.clk.Now()); second <= first {
		t.Fatalf("waits %v, then %v", first, second)
	}
	r.clk.Advance(time.Hour)
	r.run()
	if d := r.in(id, assigning); d.Failures != 0 {
		t.Fatalf("%d failures of the preflight count for the first step", d.Failures)
	}
}

func TestPreflightWaitsForADaemonUntilItRegisters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.checks.out = []job.Outcome{{Wait: pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE, Error: &pb.ErrorDetail{
		Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true, Message: "vault is offline"}}}
	r.vault.offline()
	id := r.begin()
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE)
	r.clk.Advance(time.Hour)
	r.run()
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE)
	r.vault.register()
	r.run()
	r.in(id, assigning)
}

func TestCancelBeforeAssignment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.checks.out = []job.Outcome{{Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: "no tree came"}}}
	id := r.begin()
	r.in(id, waiting)
	r.ok("cancel", r.eng.Cancel(r.ctx(), id, "not wanted", job.By{Principal: "ann"}))
	if d := r.in(id, cancelled); len(d.Reservations) != 0 || r.audited("archive.job.cancel", id) != 1 {
		t.Fatalf("%v", d.Reservations)
	}
	r.wants("again", r.eng.Cancel(r.ctx(), id, "", job.By{}), fault.Conflict, "CANCELLED")
	r.nas.nothing()
}

func TestAssignmentRejected(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.nas.accept(r.nas.one(archive.AssignJob))
	r.vault.reject(r.vault.one(archive.AssignJob), pb.ErrorCode_ERROR_CODE_UNSUPPORTED)
	d := r.in(id, cancelling)
	if d.Outcome != failed {
		t.Fatalf("outcome %v", d.Outcome)
	}
	r.nas.accept(r.nas.one(archive.CancelJob))
	r.nas.does(id, cancelledEvent)
	// The other never had the job: its AssignJob was rejected.
	for _, c := range r.vault.take() {
		r.vault.reject(c, pb.ErrorCode_ERROR_CODE_NOT_FOUND)
	}
	if d = r.in(id, failed); d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_UNSUPPORTED {
		t.Fatalf("error %v", d.Error)
	}
	r.nas.accept(r.nas.one(archive.CloseJob))
	r.vault.nothing()
}

func TestProgressStalledResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.nas.does(id, progressEvent)
	before := r.in(id, running)
	if before.Permille != 50 || before.Progress.GetFilesDone() == 0 {
		t.Fatalf("%d %v", before.Permille, before.Progress)
	}
	r.clk.Advance(time.Minute)
	r.nas.does(id, stalledEvent, func(ev *pb.JobEvent) { ev.Progress = before.Progress })
	d := r.in(id, stalled)
	if d.Permille != 50 || !d.MovedAt.Equal(before.MovedAt) || d.Step != stage {
		t.Fatalf("%+v", d.Job)
	}
	// A newer time alone is no movement.
	r.nas.does(id, progressEvent, func(ev *pb.JobEvent) { ev.Progress = before.Progress })
	r.in(id, stalled)
	r.nas.does(id, progressEvent)
	r.in(id, running)
	r.nas.does(id, stalledEvent)
	r.nas.does(id, resumedEvent)
	r.in(id, running)
	if got := r.in(id, running).Revision; got != 2 {
		t.Fatalf("revision %d: progress must not move it", got)
	}
}

func TestStepFailuresUseUpTheAllowance(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	for n := uint32(1); n <= archive.StepAttempts; n++ {
		c := r.nas.one(archive.ExecuteStep)
		if got := c.GetExecuteStep().GetStepAttempt(); got != n {
			t.Fatalf("attempt %d, want %d", got, n)
		}
		r.nas.accept(c)
		r.nas.does(id, startedEvent)
		r.eng.Poked()
		r.nas.does(id, failedEvent)
		if n < archive.StepAttempts && !r.eng.Poked() {
			t.Fatal("nobody told the timer of the next try")
		}
		if n == archive.StepAttempts {
			break
		}
		d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETRY_BACKOFF)
		if d.Kept != running {
			t.Fatalf("kept %v", d.Kept)
		}
		r.nas.nothing()
		r.clk.Advance(d.RetryAt.Sub(r.clk.Now()))
		r.run()
	}
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_OPERATOR_HOLD)
	r.clk.Advance(24 * time.Hour)
	r.run()
	r.nas.nothing()
	r.ok("retry", r.eng.Retry(r.ctx(), id, 1, job.By{Principal: "ann"}))
	r.nas.step(id, stage)
	if d := r.in(id, running); d.Failures != 0 || d.Allowance != archive.StepAttempts || r.audited("archive.job.grant", id) != 1 {
		t.Fatalf("%+v", d.Job)
	}
	r.wants("retry of a running job", r.eng.Retry(r.ctx(), id, 1, job.By{}), fault.Conflict, "RUNNING")
	r.wants("too many", r.eng.Retry(r.ctx(), id, 1000, job.By{}), fault.Invalid, "attempts")
}

func TestNoSpaceIsTriedAgainOnlyWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, transfer)
	for n := range 12 { // more often than the allowance
		r.vault.accept(r.vault.one(archive.ExecuteStep))
		r.vault.does(id, startedEvent)
		r.vault.does(id, failedEvent, failing(pb.ErrorCode_ERROR_CODE_NO_SPACE))
		d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_NO_SPACE)
		// Where there seems to be room and is none, as with a quota, the attempts must become rare.
		if pause := d.RetryAt.Sub(r.clk.Now()); n == 0 && pause != time.Minute || n == 11 && pause != time.Hour {
			t.Fatalf("after %d attempts the next look is in %v", n+1, pause)
		}
		r.stor.room = false
		r.clk.Advance(time.Hour)
		r.run()
		r.in(id, waiting, pb.WaitReason_WAIT_REASON_NO_SPACE)
		r.vault.nothing()
		r.stor.room = true
		r.clk.Advance(time.Minute)
		r.run()
		r.in(id, running)
	}
	// A person who made room need not wait for the next look.
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, startedEvent)
	r.vault.does(id, failedEvent, failing(pb.ErrorCode_ERROR_CODE_NO_SPACE))
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_NO_SPACE)
	r.ok("retry", r.eng.Retry(r.ctx(), id, 0, job.By{Principal: "ann"}))
	r.vault.one(archive.ExecuteStep)
	r.in(id, running)
	for _, q := range r.stor.asked {
		if q.Daemon != r.vault.id || q.Need != 4096 || q.Step != transfer {
			t.Fatalf("%+v", q)
		}
	}
}

func TestPermanentFailureWindsDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, materialize)
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, startedEvent)
	r.vault.does(id, failedEvent, failing(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT))
	if d := r.in(id, cancelling); d.Outcome != failed || len(d.Reservations) == 0 {
		t.Fatalf("%v", d.Outcome)
	}
	r.nas.nothing() // one at a time, first the one whose step is active
	c := r.vault.one(archive.CancelJob)
	if c.GetCancelJob().GetReason() != "the test fails the step" {
		t.Fatalf("reason %q", c.GetCancelJob().GetReason())
	}
	r.vault.accept(c)
	r.nas.nothing()
	r.vault.does(id, cancelledEvent)
	r.nas.accept(r.nas.one(archive.CancelJob))
	r.in(id, cancelling)
	r.nas.does(id, cancelledEvent)
	d := r.in(id, failed)
	if d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_PATH_CONFLICT || len(d.Reservations) != 0 || !d.Undone {
		t.Fatalf("%+v", d)
	}
}

func TestOperatorCancelsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, transfer)
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, startedEvent)
	r.ok("cancel", r.eng.Cancel(r.ctx(), id, "changed my mind", job.By{Principal: "ann", SourceIP: "192.0.2.1"}))
	r.nas.nothing()
	c := r.vault.one(archive.CancelJob)
	// Events of the step lease that is still open are stored; no next step follows.
	late := r.vault.emit(id, progressEvent)
	if ack := r.vault.deliver(late); ack == nil {
		t.Fatal("an event of an open lease was not stored")
	}
	// Its precondition is older than the daemon's cursor now.
	r.vault.reject(c, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE)
	r.clk.Advance(time.Minute)
	r.run()
	r.vault.accept(r.vault.one(archive.CancelJob))
	r.vault.does(id, cancelledEvent)
	r.nas.accept(r.nas.one(archive.CancelJob))
	r.nas.does(id, cancelledEvent)
	r.in(id, cancelled)
	if r.audited("archive.job.cancel", id) != 1 {
		t.Fatal("not audited")
	}
	r.nas.accept(r.nas.one(archive.CloseJob))
	r.vault.accept(r.vault.one(archive.CloseJob))
}

func TestCommitWinsOverCancel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, commit)
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, startedEvent)
	r.ok("cancel", r.eng.Cancel(r.ctx(), id, "too late", job.By{Principal: "ann"}))
	r.in(id, cancelling)
	c := r.vault.one(archive.CancelJob)
	r.vault.does(id, completedEvent)
	r.in(id, completed)
	if r.audited("archive.job.cancel_withdrawn", id) != 1 {
		t.Fatal("the withdrawn cancel is not audited")
	}
	r.vault.reject(c, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE)
	r.in(id, completed)
	r.wants("cancel", r.eng.Cancel(r.ctx(), id, "", job.By{}), fault.Conflict, "COMPLETED")
}
